"""Prints the output of fairseq-train, with a progress bar and the time left in place of its lines about training.

    fairseq-train … --max-update 500 --log-format simple --log-interval 10 2>&1 |
        python -m fairseq_structattn.analysis.progress 500

In a terminal the bar stays in its place; in a file or a pipe it is a line every ten seconds. The time left is computed
from the updates of this run only, if the training continues an earlier one.
"""

import argparse
import re
import sys
import time
from typing import IO, Callable, Iterable, Optional

from fairseq_structattn.analysis.files import command

TRAINING = re.compile(r"\| train_inner \|.*[ |,]loss=([^,]+),.*num_updates=(\d+)")
CELLS = 30
SECONDS_BETWEEN_LINES = 10.0
CLEAR = "\r\x1b[K"


class Progress:
    """The bar.

    Args:
        total: updates of the whole training
        output: stream that the bar is written to
        clock: function that returns the time in seconds
    """

    def __init__(self, total: int, output: IO[str], clock: Callable[[], float] = time.monotonic):
        self.total, self.output, self.clock = total, output, clock
        self.first: Optional[int] = None
        self.start, self.last, self.drawn = clock(), float("-inf"), False

    def line(self, text: str) -> None:
        """Any other line."""
        self.output.write((CLEAR if self.drawn else "") + text)
        self.output.flush()
        self.drawn = False

    def update(self, done: int, loss: str) -> None:
        """Shows that so many updates are done."""
        now = self.clock()
        if self.first is None:
            self.first, self.start = done, now
        terminal = self.output.isatty()
        if not terminal and now - self.last < SECONDS_BETWEEN_LINES and done < self.total:
            return
        self.last = now
        filled = CELLS * min(done, self.total) // self.total
        bar = "#" * filled + "." * (CELLS - filled)
        left = _time_left(now - self.start, done - self.first, self.total - done)
        text = f"    [{bar}] {done} of {self.total} updates, loss {loss}{left}"
        self.output.write(CLEAR + text if terminal else text + "\n")
        self.output.flush()
        self.drawn = terminal


def _time_left(seconds: float, done: int, remaining: int) -> str:
    """``, 1:05 left``, at the speed of the updates `done` in so many seconds; empty if it cannot be told."""
    if remaining <= 0 or done == 0:
        return ""
    left = int(seconds / done * remaining)
    return f", {left // 60}:{left % 60:02} left"


def show(lines: Iterable[str], progress: Progress) -> None:
    """Turns the lines about training into the bar, and prints all others."""
    for line in lines:
        found = TRAINING.search(line)
        if found:
            progress.update(int(found.group(2)), found.group(1))
        else:
            progress.line(line)
    if progress.drawn:
        progress.output.write("\n")


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("total", type=int, metavar="UPDATES", help="number of updates of the training")
    options = parser.parse_args(arguments)
    if options.total < 1:
        parser.error(f"UPDATES {options.total}: must be 1 or more")
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    show(sys.stdin, Progress(options.total, sys.stdout))


if __name__ == "__main__":
    main()
