"""Runs of experiments that add up: a finished one leaves a small file, by which it is known the next time."""

import os
import shutil

from fairseq_structattn.analysis.files import read_json, read_lines, write_lines


class KeptRun:
    """One training and what it leaves.

    A subclass gives ``folder``, where checkpoints and logs go, ``result``, the path of the file that is left, which has
    the fingerprint among its content, and ``fingerprint``.
    """

    folder: str
    result: str

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the outcome but for the seed."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Whether its file is there, made with these options from these data."""
        if not os.path.exists(self.result):
            return False
        return read_json(self.result, "fingerprint")["fingerprint"] == self.fingerprint

    def start_anew_where_options_changed(self) -> None:
        """Removes a half-made training of other options or data."""
        mark = os.path.join(self.folder, "fingerprint")
        if os.path.exists(self.folder):
            if os.path.exists(mark) and read_lines(mark) == [self.fingerprint]:
                return
            shutil.rmtree(self.folder)
        write_lines(mark, [self.fingerprint])
