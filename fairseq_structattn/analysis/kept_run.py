"""Runs of experiments: a finished run leaves a small file, and is not repeated while this file is there."""

import os
import shutil

from fairseq_structattn.analysis.files import read_json, read_lines, write_lines


class KeptRun:
    """One training and its result.

    A subclass defines ``folder``, where checkpoints and logs go; ``result``, the path of the file of the finished run,
    which contains the fingerprint; and ``fingerprint``.
    """

    folder: str
    result: str

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that determines the outcome, except the seed."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Whether the file of the result exists, made with these options from these data."""
        if not os.path.exists(self.result):
            return False
        return read_json(self.result, "fingerprint")["fingerprint"] == self.fingerprint

    def start_anew_where_options_changed(self) -> None:
        """Removes an unfinished training of other options or data."""
        mark = os.path.join(self.folder, "fingerprint")
        if os.path.exists(self.folder):
            if os.path.exists(mark) and read_lines(mark) == [self.fingerprint]:
                return
            shutil.rmtree(self.folder)
        write_lines(mark, [self.fingerprint])
