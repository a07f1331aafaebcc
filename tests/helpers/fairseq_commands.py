"""Runs fairseq's commands, each in a process of its own: fairseq keeps its registries, its logging and its hydra state
in globals. The processes are forked from one that has imported fairseq, which is most of the time of a short command.

The parent sends the server a line of JSON for each command, and reads one with its exit status.
"""

import json
import logging
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

OUTPUT_TAIL = 4000
# On a machine with GPUs, --cpu alone does not keep fairseq from counting them as workers.
SETTINGS = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Ended(NamedTuple):
    """A command that has ended: its exit status, 0 if all is well, and what it printed, stdout and stderr as one."""

    status: int
    output: str


class FairseqCommands:
    """The parent's side. The server starts with the first command, and ends with :meth:`close`."""

    def __init__(self):
        self._server = None

    def __call__(self, command, *args, stdin="", cwd=None, env=None):
        """Runs fairseq's `command` ("train", "generate", "hydra_train" …); returns what it printed.

        Raises:
            RuntimeError: it has failed; the message has the end of what it printed
        """
        status, output = self.end(command, *args, stdin=stdin, cwd=cwd, env=env)
        if status != 0:
            raise RuntimeError(f"fairseq {command} ended with {status}:\n{output[-OUTPUT_TAIL:]}")
        return output

    def end(self, command, *args, stdin="", cwd=None, env=None):
        """Runs a command that may fail; returns how it has :class:`Ended`."""
        return self._end({"command": command, "args": [str(arg) for arg in args]}, stdin, cwd, env)

    def program(self, text, stdin="", cwd=None, env=None):
        """Runs a Python program that imports fairseq; returns what it printed, and raises as a command does."""
        status, output = self._end({"program": text}, stdin, cwd, env)
        if status != 0:
            raise RuntimeError(f"the program ended with {status}:\n{output[-OUTPUT_TAIL:]}")
        return output

    def _end(self, what, stdin, cwd, env):
        with tempfile.TemporaryDirectory() as folder:
            given, printed = Path(folder, "stdin"), Path(folder, "stdout")
            given.write_text(stdin, encoding="utf-8")
            printed.touch()
            job = {**what, "stdin": str(given), "stdout": str(printed), "env": {**os.environ, **(env or {})}}
            job["cwd"] = None if cwd is None else str(cwd)
            return Ended(self._ask(job), printed.read_text(encoding="utf-8"))

    def _ask(self, job):
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **SETTINGS, "PYTHONPATH": ""},
            )
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError("the process that fairseq's commands are forked from has ended")
        return json.loads(answer)

    def close(self):
        """Ends the server."""
        if self._server is not None:
            self._server.stdin.close()
            self._server.wait()


def _run(stdin, stdout, cwd, env, command=None, args=(), program=None):
    """A command as ``python -m fairseq_cli.COMMAND`` runs it, or a program as ``python -c`` does, in this process."""
    for number, path, flags in ((0, stdin, os.O_RDONLY), (1, stdout, os.O_WRONLY | os.O_APPEND)):
        os.dup2(os.open(path, flags), number)
    os.dup2(1, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(env, **SETTINGS)
    if cwd is not None:
        os.chdir(cwd)
    # Where a fresh interpreter would look first.
    sys.path[:1] = [os.getcwd(), *(path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path)]
    if program is not None:
        sys.argv = ["-c"]
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        return
    sys.argv = [f"fairseq-{command}", *args]
    runpy.run_module(f"fairseq_cli.{command}", run_name="__main__", alter_sys=True)


def _status(job):
    """What the interpreter would end with."""
    try:
        _run(**job)
        return 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1


def main():
    import fairseq  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch  # noqa: F401

    # A warning during the import has set up the log; each command does so in its own way, where nobody has before.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = _status(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        print(os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else -os.WTERMSIG(ended), file=answers, flush=True)
    os._exit(0)  # cleaning up after all that was imported takes seconds


if __name__ == "__main__":
    main()
