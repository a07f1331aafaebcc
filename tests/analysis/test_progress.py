"""analysis/progress.py: a bar in a terminal and in a file, and what is left of fairseq's lines."""

import io

import pytest

from fairseq_structattn.analysis import progress

OTHER = "2026-01-01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 1.0 | num_updates 20\n"


def line(done):
    return (
        f"2026-01-01 00:00:00 | INFO | train_inner | epoch 001:  {done} / 31 loss=4.5, nll_loss=4, ups=2, "
        f"num_updates={done}, lr=0.001\n"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(output, lines, seconds=6.0):
    times = (seconds * number for number in range(1000))
    progress.show(lines, progress.Progress(40, output, lambda: next(times)))
    return output.getvalue()


def test_lines_of_a_file_come_every_ten_seconds_and_at_the_end():
    text = shown(io.StringIO(), ["before\n", *map(line, (10, 15, 20)), OTHER, line(25), line(40)]).splitlines()
    assert text == [
        "before",
        "    [#######.......................] 10 of 40 updates, loss 4.5",
        "    [###############...............] 20 of 40 updates, loss 4.5, 0:24 left",
        OTHER[:-1],
        "    [##############################] 40 of 40 updates, loss 4.5",
    ]


def test_bar_of_a_terminal_stays_in_its_place():
    text = shown(Terminal(), [line(10), line(20), OTHER, line(30)], seconds=100.0)
    clear = progress.CLEAR
    assert text.count("\n") == 2 and text.endswith("1:40 left\n")
    assert f"20 of 40 updates, loss 4.5, 3:20 left{clear}{OTHER}{clear}    [" in text


@pytest.mark.parametrize("total", ("0", "-1"))
def test_nothing_to_do_is_refused(total):
    with pytest.raises(SystemExit):
        progress.main(["--", total])
