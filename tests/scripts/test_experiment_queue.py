"""scripts/experiments/queue.sh: how many trainings run at a time, failures, and that none outlives the script."""

import os
import signal
import subprocess
import time

import pytest
from helpers_scripts import SCRIPTS

EXPERIMENTS = SCRIPTS / "experiments"
# Each training notes what runs beside it, then does what its name says.
SCRIPT = r"""
set -euo pipefail
. "$QUEUE"
one() {
    touch "running.$1-$2"
    printf '%s\n' running.* | wc -l >> beside
    case "$1" in
        endless) python3 -c "import time; open('started', 'w').close(); time.sleep(600)" ;;
        bad) false ;;
        first) until [ -e second ]; do sleep 0.02; done ;;
        second) touch second ;;
        *) sleep 0.2 ;;
    esac && rm "running.$1-$2" && echo "$1-$2" >> done
}
"""


def script(jobs, seeds, *names):
    return ["bash", "-c", SCRIPT + 'queue "$@"; echo reported', "bash", str(jobs), seeds, *names]


def environment():
    return {**os.environ, "QUEUE": str(EXPERIMENTS / "queue.sh")}


def run(folder, *arguments):
    command = script(*arguments)
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=100)


def lines(path):
    return path.read_text().split()


def test_every_name_runs_with_every_seed_and_no_more_at_a_time_than_asked(tmp_path):
    ended = run(tmp_path, 2, "1 2", "a", "b", "c")
    assert ended.returncode == 0 and ended.stdout == "reported\n", ended.stderr
    assert sorted(lines(tmp_path / "done")) == ["a-1", "a-2", "b-1", "b-2", "c-1", "c-2"]
    assert max(map(int, lines(tmp_path / "beside"))) <= 2


def test_runs_go_on_side_by_side(tmp_path):
    assert run(tmp_path, 2, "1", "first", "second").returncode == 0  # the first ends when the second has run


def test_one_at_a_time_keeps_the_order(tmp_path):
    assert run(tmp_path, 1, "1 2", "a", "b").returncode == 0
    assert lines(tmp_path / "done") == ["a-1", "b-1", "a-2", "b-2"]


@pytest.mark.parametrize("names", [("bad", "a"), ("a", "bad")])
def test_a_failed_run_does_not_stop_the_others_but_the_report(tmp_path, names):
    ended = run(tmp_path, 1, "1", *names)
    assert ended.returncode == 1 and ended.stdout == ""
    assert "a run failed, see above; run again to continue" in ended.stderr
    assert lines(tmp_path / "done") == ["a-1"]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_training_outlives_the_script(tmp_path, kind):
    process = subprocess.Popen(
        script(1, "1", "endless"),
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
        # a shell cannot trap what was ignored when it began, as under nohup, or in the background of a script
        preexec_fn=lambda: signal.signal(kind, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(kind)
    assert process.wait(timeout=60) == 128 + kind
    while children_of_session(process.pid):
        assert time.monotonic() < deadline, "the training goes on"
        time.sleep(0.02)


def children_of_session(session):
    """Processes of a session that are not merely waiting to be reaped."""
    listed = subprocess.run(["ps", "-s", str(session), "-o", "stat="], capture_output=True, text=True).stdout.split()
    return [state for state in listed if not state.startswith("Z")]


@pytest.mark.parametrize(
    "name, message",
    [
        ("forest.sgd", "unknown system forest, choose from none flat"),
        ("tree.fast", "unknown setting fast, choose from"),
    ],
)
def test_unknown_runs_of_tree_transduction_are_answered_before_anything_is_trained(tmp_path, name, message):
    command = ["bash", str(EXPERIMENTS / "tree_transduction" / "run.sh"), str(tmp_path / "work"), "tree.sgd", name]
    ended = subprocess.run(command, env={**os.environ, "PYTHON": "false"}, capture_output=True, text=True)
    assert ended.returncode == 1 and message in ended.stderr


BEGINNING = r"""
set -euo pipefail
. "$QUEUE"
structattn_experiment "$@"
echo "$here, $work, ${names[*]}, $seeds, $jobs, ${given[--corpus]:-no corpus}, ${given[--dry-run]:-}, $PWD"
"""


def begin(*arguments, **variables):
    command = ["bash", "-c", BEGINNING, "bash", "run.sh", "--corpus= --dry-run", "1 2 3", *map(str, arguments)]
    place = EXPERIMENTS / "enja"  # where a user may stand, too
    run = subprocess.run(command, cwd=place, env={**environment(), **variables}, capture_output=True, text=True)
    return run.stdout.strip() or run.stderr.strip()


def test_what_an_experiment_begins_with(tmp_path):
    here, root = "scripts/experiments/enja", SCRIPTS.parent
    work = tmp_path / "new folder"
    assert begin(work) == f"{here}, {work}, , 1 2 3, 1, no corpus, , {root}" and work.is_dir()
    asked = begin("--corpus", "of mine", work, "a", "--dry-run", "b", SEEDS="7", JOBS="2")
    assert asked == f"{here}, {work}, a b, 7, 2, of mine, 1, {root}"
    assert "--corpus needs a value" in begin(work, "--corpus")
