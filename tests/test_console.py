"""A command whose reader has exited ends without a message, with the status that a shell has for SIGPIPE."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_estimator.console import UNREAD_STATUS, end_with_reader


@pytest.mark.parametrize(
    "command",
    [
        ["spark_estimator", "env"],
        ["spark_estimator", "--help"],
        ["spark_estimator", "doctor", "--json"],
        ["spark_estimator.launch.cli.main", "-np", "2", sys.executable, "-c", "print(list(range(9999)))"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("merged", [False, True], ids=["stdout", "both"])
def test_nobody_reads(command: list[str], merged: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        process = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=write,
            stderr=write if merged else subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert process.returncode == UNREAD_STATUS == 141
    assert not process.stderr


def test_another_pipe_that_breaks_is_an_error() -> None:
    @end_with_reader
    def main() -> None:
        read, write = os.pipe()
        os.close(read)
        try:
            os.write(write, b"x")
        finally:
            os.close(write)

    with pytest.raises(BrokenPipeError):
        main()


@pytest.mark.parametrize("streams", ["stdout", "stderr", "stdout and stderr"])
def test_a_full_disk_changes_no_status(streams: str) -> None:
    program = """
import sys
from spark_estimator.console import end_with_reader

@end_with_reader
def main():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.write("text")
            stream.flush()
        except OSError:
            pass
    sys.exit(7)

main()
"""
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full if "stdout" in streams else subprocess.PIPE,
            stderr=full if "stderr" in streams else subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert process.returncode == 7
    assert process.stderr in (None, b"text") and process.stdout in (None, b"text")
