"""Runs Python programs, above all fairseq's commands, each in a process of its own: fairseq keeps its registries, its
logging and its hydra state in globals. The processes are forked from one that has imported fairseq, which is most of
the time of a short command.

``FairseqCommands.python`` is an executable that stands for ``python`` in the scripts under test, and for
``sys.executable`` in the programs that run in it. It sends its arguments, environment and open files to the server,
over a socket, and ends with the status that comes back.
"""

import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

OUTPUT_TAIL = 4000
# On a machine with GPUs, --cpu alone does not keep fairseq from counting them as workers.
SETTINGS = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
START_TIMEOUT = 120
CLIENT = """#!{python} -IS
import os, runpy, sys
ask = runpy.run_path({helper!r})["ask"]
sys.exit(ask({address!r}, sys.argv[1:], os.getcwd(), dict(os.environ), (0, 1, 2)))
"""


class Ended(NamedTuple):
    """A command that has ended: its exit status, 0 if all is well, and what it printed, stdout and stderr as one."""

    status: int
    output: str


class FairseqCommands:
    """The parent's side. The server starts with the first command, and ends with :meth:`close`."""

    def __init__(self):
        self._server = None
        self._folder = tempfile.TemporaryDirectory()
        self._address = os.path.join(self._folder.name, "socket")

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
        return self._end(["-m", f"fairseq_cli.{command}", *map(str, args)], stdin, cwd, env)

    def program(self, text, stdin="", cwd=None, env=None):
        """Runs a Python program that imports fairseq; returns what it printed, and raises as a command does."""
        status, output = self._end(["-c", text], stdin, cwd, env)
        if status != 0:
            raise RuntimeError(f"the program ended with {status}:\n{output[-OUTPUT_TAIL:]}")
        return output

    @property
    def python(self):
        """The path of an executable that stands for ``python``."""
        path = os.path.join(self._folder.name, "python")
        if not os.path.exists(path):
            self._start()
            text = CLIENT.format(python=sys.executable, helper=__file__, address=self._address)
            Path(path).write_text(text, encoding="utf-8")
            os.chmod(path, 0o755)
        return path

    def _end(self, arguments, stdin, cwd, env):
        self._start()
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
            given.write(stdin.encode())
            given.seek(0)
            files = given.fileno(), printed.fileno(), printed.fileno()
            status = ask(self._address, arguments, str(cwd or os.getcwd()), {**os.environ, **(env or {})}, files)
            printed.seek(0)
            return Ended(status, printed.read().decode())

    def _start(self):
        if self._server is not None:
            return
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._address], env={**os.environ, **SETTINGS, "PYTHONPATH": ""}
        )
        deadline = time.monotonic() + START_TIMEOUT
        while not os.path.exists(self._address):
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the process that fairseq's commands are forked from did not start")
            time.sleep(0.01)

    def close(self):
        """Ends the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()


def ask(address, arguments, cwd, env, files):
    """Has the server at `address` run Python with `arguments`, and returns the exit status.

    Args:
        files: the numbers of the open files that become stdin, stdout and stderr
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
        connection.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        connection.sendall(json.dumps([arguments, cwd, env]).encode() + b"\n")
        # Nothing comes back from a process that a signal has ended.
        return int(connection.makefile().readline() or 1)


def _serve(address, executable):
    """Forks a process for each connection, as long as the process that started this one is there."""
    parent, listener = os.getppid(), socket.socket(socket.AF_UNIX)
    listener.settimeout(5)
    listener.bind(address + ".new")
    listener.listen()
    os.rename(address + ".new", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except socket.timeout:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            status = _answer(connection, executable)
            sys.stdout.flush()
            sys.stderr.flush()
            connection.sendall(f"{status}\n".encode())
            os._exit(0)  # cleaning up after all that was imported takes seconds
        connection.close()


def _answer(connection, executable):
    _, ((_, _, numbers),), *_ = connection.recvmsg(1, socket.CMSG_SPACE(12))
    for place in range(3):
        received = int.from_bytes(numbers[4 * place : 4 * place + 4], sys.byteorder)
        os.dup2(received, place)
        os.close(received)
    arguments, cwd, env = json.loads(connection.makefile().readline())
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(env, **SETTINGS)
    os.chdir(cwd)
    sys.executable = executable
    return _status(arguments)


def _status(arguments):
    """What the interpreter would end with."""
    try:
        _run(*arguments)
        return 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1


def _run(first, *rest):
    """What ``python`` does with its arguments: -m MODULE …, -c PROGRAM … or SCRIPT …"""
    # Where a fresh interpreter would look first.
    place = os.path.dirname(os.path.abspath(first)) if first not in ("-m", "-c") else os.getcwd()
    sys.path[:1] = [place, *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    if first == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<program>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def main(address):
    import fairseq  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch  # noqa: F401

    # A warning during the import has set up the log; each command does so in its own way, where nobody has before.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    _serve(address, os.path.join(os.path.dirname(address), "python"))


if __name__ == "__main__":
    main(sys.argv[1])
