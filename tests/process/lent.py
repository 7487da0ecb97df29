"""Run as Spark's Python by a forked run: hands its streams to a process that has made the imports already, see `forked`.

It imports next to nothing. Where there is no such process, or workers are to be struck (see `hooks`), it becomes the Python that Spark wants.
"""

import json
import os
import socket
import sys

ADDRESS = "ICEFRONT_TEST_LENT"
PYTHON = "ICEFRONT_TEST_PYTHON"


def main() -> None:
    if {"MATRIX_STRIKE", "MATRIX_REUSE"} & set(os.environ):
        become_python()
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(os.environ.get(ADDRESS, ""))
        except OSError:
            become_python()
        socket.send_fds(line, [json.dumps(dict(os.environ)).encode() + b"\n"], [0, 1, 2])
        os.close(0)  # only the other one may hold these ends
        os.close(1)
        line.recv(1)  # until it ends


def become_python() -> None:
    python = os.environ.get(PYTHON, sys.executable)
    os.execv(python, [python, *sys.argv[1:]])


if __name__ == "__main__":
    main()
