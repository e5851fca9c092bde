"""A worker's lines are passed on under its rank, and the last ones kept for its report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from spark_estimator.launch.log_relay.worker_output import WorkerIdentity, WorkerOutput


class Shown:
    """A relay that keeps the lines."""

    def __init__(self) -> None:
        self.lines_of: list[tuple[int, str, list[str]]] = []

    def pass_lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        self.lines_of.append((rank, stream, list(texts)))


@pytest.fixture
def worker() -> Iterator[tuple[WorkerOutput, WorkerIdentity, Shown, Any, Any]]:
    pipes = [os.pipe() for _ in range(2)]
    for read, _ in pipes:
        os.set_blocking(read, False)
    (out, print_out), (err, print_err) = pipes
    identity, shown = WorkerIdentity(0, "here"), Shown()
    with open(out, "rb") as stdout, open(err, "rb") as stderr:
        with open(print_out, "wb", 0) as prints, open(print_err, "wb", 0) as complains:
            yield WorkerOutput(stdout, stderr, identity, shown, {}), identity, shown, prints, complains  # type: ignore[arg-type]


def test_lines_go_out_under_the_present_rank(worker: tuple[Any, ...]) -> None:
    output, identity, shown, prints, complains = worker
    prints.write(b"one\ntwo\nthr")
    assert output.read("stdout") == 11
    identity.rank = 4
    prints.write(b"ee")
    complains.write(b"err\n")
    output.catch_up()
    output.flush()
    assert shown.lines_of == [(0, "stdout", ["one", "two"]), (4, "stderr", ["err"]), (4, "stdout", ["three"])]
    with pytest.raises(BlockingIOError):
        output.read("stdout")
    assert output.tail == "one\ntwo\nerr\nthree"


def test_what_stderr_says_of_the_end(worker: tuple[Any, ...]) -> None:
    output, _, _, prints, complains = worker
    assert (output.python_stack, output.python_error, output.lost_a_peer) == ("", "", False)
    prints.write(b"Traceback (most recent call last):\n")
    complains.write(b"step 1\nTraceback (most recent call last):\n  File x\nerrors.PeerLostError: gone\n\n")
    output.catch_up()
    assert output.python_stack.splitlines()[:2] == ["Traceback (most recent call last):", "  File x"]
    assert (output.python_error, output.lost_a_peer) == ("errors.PeerLostError: gone", True)
    complains.write(b"and then something else\n")
    output.catch_up()
    assert (output.python_error, output.lost_a_peer) == ("", False)
