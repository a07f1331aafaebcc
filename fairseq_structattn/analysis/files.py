"""Files of scripts: checks before the work begins, one way to read and to write, one way to report errors.

An :class:`InputError` is an error in the user's input. It names the option or the file and line, the value and the way
out. A script's ``main`` that is decorated as a :func:`command` prints it as ``error: …`` and ends with code 2.

Text is UTF-8, plain or compressed with gzip, and its lines end at line feeds only: ``str.splitlines`` and Python's text
mode also break at characters that may stand inside a sentence. A byte order mark at the beginning belongs to no line.
"""

import codecs
import functools
import gzip
import json
import os
import sys
import zlib
from contextlib import contextmanager
from typing import IO, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

USAGE_ERROR = 2  # the code of argparse
GZIP = b"\x1f\x8b"
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class InputError(ValueError):
    """The input of a script is wrong: where, why, and what to do about it."""


class Refusal(SystemExit):
    """Ends a script with :data:`USAGE_ERROR`; the text is that of the error."""

    def __init__(self, message: str):
        super().__init__(message)
        self.code = USAGE_ERROR


def command(main: Callable) -> Callable:
    """A decorator for the ``main(arguments=None)`` of a script: errors that a user can correct are one line."""

    @functools.wraps(main)
    def run(arguments=None):
        try:
            return main(arguments)
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except InputError as error:
            message = str(error)
        except OSError as error:
            message = _named(error)
        except UnicodeEncodeError as error:
            message = (
                f"{error.object[error.start]!r} cannot be written in {error.encoding}; give names in UTF-8, and set "
                "PYTHONIOENCODING=utf-8 for what is printed"
            )
        print(f"error: {message}", file=sys.stderr)
        raise Refusal(message)

    return run


def _named(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


# Reading.


def check_inputs(paths: Dict[str, Optional[str]]) -> None:
    """Refuses paths that are no files that can be read.

    Args:
        paths: by option; None where an option was not given

    Raises:
        InputError: there is no such file, it is a folder, or reading it is not permitted
    """
    for option, path in paths.items():
        if path is not None:
            _check_input(path, f"{option} {path}")


def check_folders(paths: Dict[str, Optional[str]]) -> None:
    """Like :func:`check_inputs`, for folders."""
    for option, path in paths.items():
        if path is not None and not os.path.isdir(path):
            raise InputError(f"{option} {path}: {'a file, not a folder' if os.path.exists(path) else 'no such folder'}")


def _check_input(path: str, named: str) -> None:
    if os.path.isdir(path):
        raise InputError(f"{named}: a folder; name a file in it")
    if not os.path.exists(path):
        raise InputError(f"{named}: no such file; check the name and the folder, {os.path.abspath(path)}")
    if not os.access(path, os.R_OK):
        raise InputError(f"{named}: you may not read it; change its permissions")


def read_lines(path: str) -> List[str]:
    """The lines of a text file, without their line feeds.

    Raises:
        InputError: no such file, or text that is not UTF-8, by line
    """
    return [line.rstrip("\r\n") for _, line in numbered_lines(path)]


def numbered_lines(path: str) -> Iterator[Tuple[int, str]]:
    """The lines of a text file, counted from 1, with the line feeds that end them; raises as :func:`read_lines`."""
    _check_input(path, path)
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, 1):
                text = _decoded(line, path, number)
                if text:
                    yield number, text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: its gzip packing is broken ({error}); copy or pack the file again") from None


@contextmanager
def _opened(path: str) -> Iterator[Iterable[bytes]]:
    with open(path, "rb") as file:
        packed = file.peek(len(GZIP))[: len(GZIP)] == GZIP
        yield gzip.GzipFile(fileobj=file) if packed else file


def _decoded(line: bytes, path: str, number: int) -> str:
    if number == 1:
        if line.startswith(UTF16):
            raise InputError(f"{path}, line 1: UTF-16; convert the file: iconv -f UTF-16 -t UTF-8")
        if line.startswith(codecs.BOM_UTF8):
            line = line[len(codecs.BOM_UTF8) :]
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
            "convert the file, for example with iconv -t UTF-8"
        ) from None


def read_json(path: str, *needed: str) -> Dict:
    """An object of JSON that has the fields `needed`.

    Raises:
        InputError: no such file, no JSON, or other JSON
    """
    text = "".join(line for _, line in numbered_lines(path))
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); was the file cut off? Write it again") from None
    missing = [name for name in needed if not isinstance(content, dict) or name not in content]
    if missing or not isinstance(content, dict):
        lacks = f" with {', '.join(missing)}" if missing else ""
        raise InputError(f"{path}: not an object of JSON{lacks}; name the file that the script before this one wrote")
    return content


# Writing.


def check_outputs(paths: Dict[str, Optional[str]]) -> None:
    """Refuses outputs whose writing would fail when the work is done; creates nothing.

    Args:
        paths: files to be written, by option; None where an option was not given

    Raises:
        InputError: a path is a folder, its parent is no folder, writing is not permitted, or two paths are the same
    """
    seen: Dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        if not path or os.path.isdir(path) or path.endswith(os.sep):
            raise InputError(f"{option} '{path}': a folder; name a file in it, such as {os.path.join(path, 'NAME')}")
        _check_place(path, f"{option} {path}")
        same = seen.setdefault(os.path.realpath(path), option)
        if same != option and _is_replaced(path):
            raise InputError(f"{option} {path}: the file that {same} names, too; give each its own")


def check_output_folders(paths: Dict[str, str]) -> None:
    """Like :func:`check_outputs`, for folders to write into."""
    for option, path in paths.items():
        if os.path.exists(path) and not os.path.isdir(path):
            raise InputError(f"{option} {path}: a file, not a folder; name another")
        _check_place(os.path.join(path, "file"), f"{option} {path}")


def _check_place(path: str, named: str) -> None:
    """Checks that the folder of `path` exists or can be made, and that files can be written there."""
    if os.path.exists(path) and not _is_replaced(path):
        place = path
    else:
        place = os.path.dirname(os.path.realpath(path))
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place):
            raise InputError(f"{named}: {place} is a file, not a folder; name another place")
    if not os.access(place, os.W_OK):
        raise InputError(f"{named}: you may not write to {place}; name another place")


def _is_replaced(path: str) -> bool:
    """Whether a new file replaces `path`; devices and pipes, such as /dev/stdout, are written directly."""
    return os.path.isfile(path) or not os.path.exists(path)


@contextmanager
def beside(path: str) -> Iterator[str]:
    """The path of a temporary file, which is moved to `path` on success and removed on an error; makes the folder."""
    if not _is_replaced(path):
        yield path
        return
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    made = f"{path}.tmp"
    try:
        yield made
        os.replace(made, path)
    finally:
        if os.path.exists(made):
            os.remove(made)


@contextmanager
def replaced(path: str) -> Iterator[IO[str]]:
    """A text file that is written :func:`beside`; its lines end as they are given."""
    with beside(path) as made, open(made, "w", encoding="utf-8", newline="\n") as file:
        yield file
        file.flush()


def write_lines(path: str, lines) -> None:
    """Writes a text file of the given lines, each of which is ended by a line feed."""
    with replaced(path) as file:
        file.writelines(line + "\n" for line in lines)


def write_json(path: str, content) -> None:
    """Writes JSON, indented by one space. A list of objects within an object, such as the rows of results, is written
    with one object per line."""
    if not isinstance(content, dict) or not content:
        write_lines(path, [json.dumps(content, ensure_ascii=False, indent=1)])
        return
    entries = [f" {_json(name)}: {_rows(value) or _json(value)}" for name, value in content.items()]
    write_lines(path, ["{", *(entry + "," for entry in entries[:-1]), entries[-1], "}"])


def _json(content) -> str:
    # JSON strings contain no line feeds.
    return json.dumps(content, ensure_ascii=False, indent=1).replace("\n", "\n ")


def _rows(content) -> str:
    """A list of objects, with one object per line; an empty text for any other value."""
    if not content or not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        return ""
    return "[\n" + ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in content) + "\n ]"
