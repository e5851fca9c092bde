from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from chaos import program
from chaos.plan import OPERATIONS, Launcher, Run
from tests.ranks import run_ranks

OPERATIONS_OF_RUN = tuple((operation, "allreduce") for operation in OPERATIONS)


def run_of(size: int) -> Run:
    return Run("seed", 3, Launcher.LOCAL, size, False, True, OPERATIONS_OF_RUN, 17, 0, ())


def test_every_collective_comes_to_what_one_process_computes(tmp_path: Path) -> None:
    """With three ranks, whose shares of columns and rows differ."""

    def train(_rank: int, text: str, folder: str) -> int:
        from chaos import program

        return program.train(text, folder)

    run = run_of(3)
    assert run_ranks(3, train, args=(run.to_json(), str(tmp_path))) == [program.expected(run)] * 3
    assert program.checkpoint_is_whole((tmp_path / program.CHECKPOINT).read_bytes())


def test_the_result_does_not_depend_on_the_number_of_ranks_but_on_the_run() -> None:
    assert program.expected(run_of(3)) == program.expected(run_of(1))
    other = Run("seed", 4, Launcher.LOCAL, 3, False, True, OPERATIONS_OF_RUN, 17, 0, ())
    assert program.expected(other) != program.expected(run_of(3))


def test_a_wrong_number_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = program._together

    def wrong(*arguments: Any) -> Any:
        result = numpy.array(right(*arguments))
        result.flat[-1] += 1
        return result

    monkeypatch.setattr(program, "_together", wrong)
    from spark_estimator.collectives import context

    try:
        with pytest.raises(program.WrongNumbersError, match="in step 0"):
            program.train(run_of(1).to_json(), str(tmp_path))
    finally:
        context.shutdown()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content.replace(b"12", b"13", 1)])
def test_a_torn_checkpoint_is_noticed(damage: Any) -> None:
    content = program.checkpoint_of(12)
    assert program.checkpoint_is_whole(content)
    assert not program.checkpoint_is_whole(damage(content))
