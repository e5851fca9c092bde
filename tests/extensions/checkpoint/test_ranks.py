"""Checkpoints of several ranks: each writes its part, and other numbers of ranks read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator.checkpoint import complete_steps, load
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.folders import list_folders
from spark_estimator.extensions.checkpoint.reading import open_store
from tests.clocks import wrong_clock
from tests.ranks import run_ranks
from tests.torch.rank_pool import RankPool


def trained(rank: int, folder: str, steps: int, every: int = 2, **options: Any) -> tuple[int, int | None, Any]:
    """Trains up to a step. Returns the first step, that of the last checkpoint, and the model's numbers."""
    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer

    torch.set_num_threads(1)
    if not hvd.is_initialized():
        hvd.init()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(300, 900), torch.nn.BatchNorm1d(900), torch.nn.Dropout(0.5), torch.nn.Linear(900, 900)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    with Checkpointer(folder, model=model, optimizer=optimizer, every_steps=every, **options) as checkpointer:
        first = checkpointer.restore()
        for _ in range(first, steps):
            optimizer.zero_grad()
            model(torch.randn(8, 300)).square().mean().backward()
            optimizer.step()
            checkpointer.step()
        last = checkpointer.close()
    return first, last, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_training_that_goes_on_ends_with_the_same_bits(two_ranks: RankPool, tmp_path: Path, overlap: bool) -> None:
    undisturbed = two_ranks.run(trained, str(tmp_path / "one"), 6, 4)
    for steps, first in ((3, 0), (6, 2)):
        result = two_ranks.run(lambda *args: trained(*args, overlap=overlap), str(tmp_path / "two"), steps)
        assert [values[0] for values in result] == [first, first]
        assert {values[1] for values in result} == {steps // 2 * 2}
    for values, other in zip(undisturbed, result, strict=True):
        assert all(torch.equal(values[2][name], other[2][name]) for name in values[2])
    # The ranks' own buffers differ, so each had its own back.
    assert not torch.equal(result[0][2]["1.running_mean"], result[1][2]["1.running_mean"])
    folder = max((tmp_path / "two").glob("step-*"))
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix == ".distcp"}
    assert sizes.keys() == {"__0_0.distcp", "__1_0.distcp"}
    assert abs(sizes["__0_0.distcp"] - sizes["__1_0.distcp"]) < sum(sizes.values()) / 8


def test_another_number_of_ranks_has_the_same_parameters(two_ranks: RankPool, tmp_path: Path) -> None:
    before = two_ranks.run(trained, str(tmp_path), 2)[0][2]
    result = run_ranks(3, trained, 100, args=(str(tmp_path), 2, 9))
    assert [values[:2] for values in result] == [(2, None)] * 3
    for _, _, numbers in result:
        assert all(torch.equal(numbers[name], before[name]) for name in before)
    assert all(torch.equal(load(str(tmp_path))["model"][name], before[name]) for name in before)


def test_a_clock_that_was_a_day_ahead_costs_no_checkpoint(tmp_path: Path) -> None:
    root = str(tmp_path / "run")
    for steps, first, offset in ((2, 0, 86400), (4, 2, 0), (6, 4, -86400)):
        environ = wrong_clock(tmp_path, offset)
        result = run_ranks(2, trained, args=(root, steps), environ=environ)
        assert [values[:2] for values in result] == [(first, steps)] * 2
        numbers = result[0][2]
        assert torch.equal(load(root)["model"]["0.weight"], numbers["0.weight"])
    assert complete_steps(root) == [4, 6]
    days = [folder.time // 86400 for folder in list_folders(open_store(root), root)]
    assert days[0] < days[1], "they say when the hosts took them to be made"


def warned(rank: int, folder: str) -> int:
    """Rank 1 is warned before its third step, that its machine is about to be taken back."""
    import os
    import signal

    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer

    hvd.init()
    with Checkpointer(folder, model=torch.nn.Linear(2, 2), every_steps=100) as checkpointer:
        for step in range(6):
            if (step, rank) == (2, 1):
                os.kill(os.getpid(), signal.SIGUSR2)
            checkpointer.step()
        return checkpointer.steps


def test_a_warning_of_one_rank_brings_a_checkpoint_of_all(tmp_path: Path) -> None:
    environ = {"SPARK_ESTIMATOR_PREEMPTION_SIGNAL": "USR2"}
    assert run_ranks(2, warned, args=(str(tmp_path),), environ=environ) == [6, 6]
    assert complete_steps(str(tmp_path)) == [3]


def differing(rank: int, folder: str) -> str:
    from spark_estimator.checkpoint import Checkpointer

    model = torch.nn.Linear(2, 2 + rank)
    with Checkpointer(folder, model=model) as checkpointer:
        try:
            checkpointer.save()
        except DataError as error:
            return str(error)
    return ""


def test_states_of_different_structure_are_an_error_on_all_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    first, second = two_ranks.run(differing, str(tmp_path))
    assert first == second
    assert "the state of rank 1 differs from rank 0's" in first
    assert "model.bias" in first
    assert complete_steps(str(tmp_path)) == []


def failing(rank: int, folder: str) -> tuple[int | None, list[int]]:
    """Rank 1's writer dies while it writes, and later ones are complete."""
    import os
    import signal
    from datetime import timedelta

    from spark_estimator.checkpoint import Checkpointer
    from spark_estimator.collectives.ops import barrier
    from tests.extensions.checkpoint.slow_store import GatedStore

    model = torch.nn.Linear(200, 200)
    with Checkpointer(GatedStore(f"{folder}/run"), model=model) as checkpointer:
        checkpointer.step()
        checkpointer.save()
        if rank == 1:
            pid = checkpointer.writer_pid
            os.kill(pid, signal.SIGKILL)
            while checkpointer.writer_pid == pid:
                checkpointer._copies.read(timedelta(seconds=5))
            os.unlink(f"{folder}/closed")
        barrier()
        assert checkpointer.wait() is None
        checkpointer.step()
        checkpointer.save()
        return checkpointer.close(), [checkpointer.steps]


def test_a_writer_that_dies_costs_all_ranks_that_checkpoint_only(two_ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "closed").touch()
    assert two_ranks.run(failing, str(tmp_path)) == [(2, [2]), (2, [2])]
    assert complete_steps(str(tmp_path / "run")) == [2]


def changing(rank: int, folder: str) -> tuple[int | None, int | None]:
    """A parameter of rank 1 changes while the copy is made that waits. The earlier one may be lost with it."""
    from pathlib import Path

    from spark_estimator.checkpoint import Checkpointer
    from spark_estimator.extensions.checkpoint import copying
    from tests.extensions.checkpoint.slow_store import GatedStore

    model = torch.nn.Linear(2, 2)
    copy = copying._copy

    def change(target: torch.Tensor, source: torch.Tensor) -> None:
        copy(target, source)
        with torch.no_grad():
            source.add_(1)

    optimizer = torch.optim.SGD(model.parameters())
    with Checkpointer(GatedStore(f"{folder}/run"), model=model, optimizer=optimizer, overlap=True) as checkpointer:
        checkpointer.save()
        copying._copy = change if rank else copy
        checkpointer.step()
        checkpointer.save()
        copying._copy = copy
        Path(folder, "closed").unlink(missing_ok=True)
        first = checkpointer.wait()
        checkpointer.step()
        checkpointer.save()
        return first, checkpointer.close()


def test_a_copy_that_waits_on_some_ranks_only_is_given_up_by_all(two_ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "closed").touch()
    first, second = two_ranks.run(changing, str(tmp_path))
    assert first == second and first[0] in (None, 0) and first[1] == 2
    assert complete_steps(str(tmp_path / "run"))[-1] == 2


def keeping(rank: int, folder: str) -> list[int]:
    from spark_estimator.checkpoint import Checkpointer

    class Position:
        value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    position = Position()
    for value in (10 + rank, 0):
        position.value = value
        with Checkpointer(folder, model=torch.nn.Linear(1, 1), local={"position": position}) as checkpointer:
            if value:
                checkpointer.save()
            else:
                checkpointer.restore()
    return [position.value]


def test_local_state_is_each_ranks_own(two_ranks: RankPool, tmp_path: Path) -> None:
    assert two_ranks.run(keeping, str(tmp_path)) == [[10], [11]]
