"""Ranks that have fewer batches, want to stop, or fail: no rank waits for ever, and all end in the same way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import spark_estimator.torch as hvd
from spark_estimator.errors import HorovodInternalError
from tests.lightning.training import Batches, loader, module_of, package, trainer_of, weights
from tests.torch.rank_pool import RankPool


def test_ranks_with_fewer_batches(two_ranks: RankPool) -> None:
    def check(rank: int) -> tuple[list[int], list[float]]:
        class Rows(IterableDataset[list[torch.Tensor]]):
            """Of no known length, and longer on rank 1."""

            def __iter__(self) -> Iterator[list[torch.Tensor]]:
                return iter([[row, row[:3]] for row in torch.randn(12 + 8 * rank, 6)])

        taken = []
        module = module_of()
        for data in (loader(16 + 20 * rank), DataLoader(Rows(), batch_size=4), Batches(3 - rank)):
            trainer = trainer_of(use_distributed_sampler=False, max_epochs=2)
            trainer.fit(module, data)
            taken.append(trainer.global_step)
        return taken, weights(module)

    first, second = two_ranks.run(check)
    assert first == second
    assert first[0] == [8, 6, 4]


class Estimated(IterableDataset[list[torch.Tensor]]):
    """A data set of `rows` rows, and the length that it reports."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return iter([[row, row[:3]] for row in torch.randn(self.count, 6)])


def test_data_with_fewer_rows_than_they_say(two_ranks: RankPool) -> None:
    """On rank 1 alone; as the loader's data, as the loader itself, and beside one with its reported length."""

    def check(rank: int) -> list[Any]:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("spark_estimator.lightning")
        logger.addHandler(handler)
        short = Estimated(12 if rank == 1 else 20, 20)
        module, taken = module_of(), []
        for data in (DataLoader(short, batch_size=4), short):
            trainer = trainer_of(max_epochs=2)
            trainer.fit(module, data)
            taken.append(trainer.global_step)
        logger.removeHandler(handler)
        assert [line.partition(" at least")[0] for line in messages] == [
            f"A rank's data ended after {count} batches, but __len__ reports" for count in (3, 12)
        ][: 0 if rank else 2]

        def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
            first, second = (nn.functional.mse_loss(self(rows), targets) for rows, targets in batch)
            return first + second

        both = module_of(training_step=training_step)
        trainer = trainer_of(max_epochs=2)
        trainer.fit(both, [DataLoader(short, batch_size=4), loader(64)])
        return [*taken, trainer.global_step, weights(module), weights(both)]

    first, second = two_ranks.run(check)
    assert first == second
    assert first[:3] == [6, 24, 16]


def test_data_of_an_estimated_length_are_planned_with(two_ranks: RankPool) -> None:
    """With the smallest number of all ranks: shares of an epoch, later steps, and the time of validation."""

    def check(rank: int) -> list[Any]:
        from lightning.fabric.utilities.types import _Stateful

        class WithState(DataLoader[Any]):
            def state_dict(self) -> dict[str, Any]:
                return {}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                pass

        planned: list[Any] = []
        validated: list[int] = []

        def on_train_start(self: Any) -> None:
            planned.extend([self.trainer.num_training_batches, self.trainer.estimated_stepping_batches])

        def on_validation_epoch_end(self: Any) -> None:
            if not self.trainer.sanity_checking:
                validated.append(self.trainer.global_step)

        def validation_step(self: Any, batch: Any, number: int) -> None:
            self.log("value", 1.0, sync_dist=True, batch_size=1)

        methods = {
            "on_train_start": on_train_start,
            "on_validation_epoch_end": on_validation_epoch_end,
            "validation_step": validation_step,
        }
        steps = []
        for count, arguments in (
            (40, {"val_check_interval": 0.5}),
            (40, {"limit_train_batches": 0.5}),
            (40 + 16 * rank, {"max_epochs": 2}),  # each rank reports its own
        ):
            trainer = trainer_of(**arguments)
            trainer.fit(module_of(**methods), WithState(Estimated(count, count), batch_size=4), loader(8))
            assert trainer.train_dataloader.num_workers == 0
            assert isinstance(trainer.train_dataloader, _Stateful)
            steps.append(trainer.global_step)
        return [steps, planned, validated]

    assert two_ranks.run(check) == [[[10, 5, 20], [10, 10, 5, 5, 10, 20], [5, 10, 5, 10, 20]]] * 2


def test_a_rank_without_any_batch_is_told_on_all(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(ValueError, match=r"Rank\(s\) 1 have no batch, but others have \(4, 0 in rank order\)"):
            trainer_of(use_distributed_sampler=False).fit(module_of(), Batches(4 - 4 * rank))

    two_ranks.run(check)


@pytest.mark.parametrize("on_step", [False, True])
def test_evaluation_over_loaders_of_different_lengths(two_ranks: RankPool, on_step: bool) -> None:
    def check(rank: int) -> float:
        def validation_step(self: Any, batch: Any, number: int, dataloader_idx: int = 0) -> None:
            self.log("rank", float(rank), sync_dist=True, on_step=on_step, on_epoch=not on_step, batch_size=4)

        trainer = trainer_of(use_distributed_sampler=False)
        # With two loaders, the second of which is equally long on all ranks.
        module, data = module_of(validation_step=validation_step), [loader(4 + 8 * rank), loader(4)]
        if on_step:
            with pytest.raises(RuntimeError, match=r"different numbers of batches \(rank 0: 1, rank 1: 3\)"):
                trainer.validate(module, data, verbose=False)
            return 0.75
        return float(trainer.validate(module, data, verbose=False)[0]["rank/dataloader_idx_0"])

    assert two_ranks.run(check) == [0.75, 0.75]  # three of four batches are rank 1's


def test_one_rank_that_stops_stops_all(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[Any]:
        def on_train_batch_end(self: Any, outputs: Any, batch: Any, number: int) -> None:
            if rank == 1 and number == 2:
                self.trainer.should_stop = True

        def on_validation_epoch_end(self: Any) -> None:
            if rank == 0 and not self.trainer.sanity_checking:
                self.trainer.should_stop = True

        def on_train_batch_start(self: Any, batch: Any, number: int) -> int | None:
            return -1 if rank == 1 and number == 4 else None

        def on_train_epoch_end(self: Any) -> None:
            if rank == 1 and self.current_epoch == 1:
                self.trainer.should_stop = True

        def validation_step(self: Any, batch: Any, number: int) -> None:
            pass

        steps = []
        for methods, arguments in (
            ({"on_train_batch_end": on_train_batch_end}, {}),
            (
                {"on_validation_epoch_end": on_validation_epoch_end, "validation_step": validation_step},
                {"val_check_interval": 3},
            ),
            ({"on_train_batch_start": on_train_batch_start}, {"max_epochs": 3}),
            ({"on_train_epoch_end": on_train_epoch_end}, {"max_epochs": 5}),
            ({"on_train_batch_end": on_train_batch_end}, {"min_steps": 6, "min_epochs": 0}),
        ):
            trainer, module = trainer_of(**arguments), module_of(**methods)
            trainer.fit(module, loader(), loader(16) if "validation_step" in methods else None)
            assert not {"on_advance_end", "_should_check_val_fx"} & trainer.fit_loop.epoch_loop.__dict__.keys()
            steps.append(trainer.global_step)
        return [steps, weights(module)]

    first, second = two_ranks.run(check)
    assert first == second
    assert first[0] == [3, 3, 12, 16, 6]


def test_validation_by_the_clock_is_when_rank_0_says(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[int]:
        def on_validation_epoch_end(self: Any) -> None:
            if not self.trainer.sanity_checking:
                at.append(self.trainer.global_step)

        def validation_step(self: Any, batch: Any, number: int) -> None:
            self.log("value", 1.0, sync_dist=True, batch_size=1)

        at: list[int] = []
        module = module_of(validation_step=validation_step, on_validation_epoch_end=on_validation_epoch_end)
        interval = timedelta(seconds=1000 * rank)  # the clocks of two ranks are never alike
        trainer_of(val_check_interval=interval, check_val_every_n_epoch=None).fit(module, loader(), loader(8))
        return at

    assert two_ranks.run(check) == [list(range(1, 9))] * 2


def test_early_stopping_and_checkpoints(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> list[Any]:
        callbacks = package().callbacks
        written: list[str] = []

        class Checkpoint(callbacks.ModelCheckpoint):  # type: ignore[misc,name-defined]
            def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
                super()._save_checkpoint(trainer, filepath)
                written.append(filepath)
                assert Path(filepath).exists()  # no rank continues before it exists

        def validation_step(self: Any, batch: Any, number: int) -> None:
            # Gets worse on rank 1 alone: without an agreement rank 0 would continue.
            self.log("loss", float(rank * self.current_epoch), batch_size=1)

        stopping = callbacks.EarlyStopping("loss", patience=1)
        checkpoint = Checkpoint(tmp_path / "files", filename="{epoch}", save_top_k=-1)
        trainer = trainer_of(max_epochs=6, callbacks=[stopping, checkpoint], enable_checkpointing=True)
        module = module_of(validation_step=validation_step)
        trainer.fit(module, loader(), loader(8))
        return [trainer.current_epoch, written, weights(module)]

    first, second = two_ranks.run(check)
    assert first == second
    assert first[0] == 2
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["epoch=0.ckpt", "epoch=1.ckpt"]


def test_only_rank_0_writes_and_all_read(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> list[Any]:
        import os

        # Of one name on all ranks, seen by rank 0 alone, as on the disks of two hosts.
        folder = tmp_path / str(rank)
        folder.mkdir()
        os.chdir(folder)
        full, half, row_shape = (module_of() for _ in range(3))
        trainer_of(max_epochs=4).fit(full, loader())
        trainer = trainer_of(max_epochs=2)
        trainer.fit(half, loader())
        trainer.save_checkpoint("half.ckpt")
        assert os.path.exists("half.ckpt") == (rank == 0)
        trainer = trainer_of(max_epochs=4)
        trainer.fit(row_shape, loader(), ckpt_path="half.ckpt")
        shared = trainer_of(max_epochs=4)
        shared.fit(module_of(), loader(), ckpt_path=tmp_path / "0" / "half.ckpt")
        assert weights(shared.lightning_module) == weights(row_shape)
        return [trainer.global_step, weights(row_shape), weights(full)]

    first, second = two_ranks.run(check)
    assert first == second
    assert first[0] == 32
    assert first[1] == pytest.approx(first[2], abs=1e-6)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_rank_that_skips_a_step_is_told_at_once(two_ranks: RankPool, accumulated: int) -> None:
    def check(rank: int) -> None:
        def training_step(self: Any, batch: Any, number: int) -> torch.Tensor | None:
            loss = nn.functional.mse_loss(self(batch[0]), batch[1])
            return None if rank == 1 and number == 2 else loss

        trainer_of(accumulate_grad_batches=accumulated).fit(module_of(training_step=training_step), loader())

    first, second = two_ranks.outcomes(check)
    assert isinstance(second.error, RuntimeError)
    assert "rank 1 has returned None for batch 2 of epoch 0" in str(second.error)
    assert "loss * 0" in str(second.error)
    assert isinstance(first.error, HorovodInternalError)
    two_ranks.run(lambda rank: hvd.barrier())


def test_steps_without_a_loss_where_they_are_no_skips(two_ranks: RankPool) -> None:
    """With optimization by hand."""

    def check(rank: int) -> int:
        def training_step(self: Any, batch: Any, number: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(nn.functional.mse_loss(self(batch[0]), batch[1]))
            optimizer.step()

        trainer = trainer_of()
        trainer.fit(module_of(training_step=training_step, automatic_optimization=False), loader())
        return int(trainer.global_step)

    assert two_ranks.run(check) == [8, 8]


def test_a_rank_that_raises_ends_all(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> None:
        callbacks = package().callbacks

        def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
            if rank == 1 and number == 3:
                raise ZeroDivisionError("on rank 1 alone")
            return nn.functional.mse_loss(self(batch[0]), batch[1])

        # Ranks that do not know of its failure do not wait for what it saves at its end.
        saved = callbacks.OnExceptionCheckpoint(tmp_path)
        trainer_of(callbacks=[saved], enable_checkpointing=True).fit(module_of(training_step=training_step), loader())

    first, second = two_ranks.outcomes(check)
    assert isinstance(second.error, ZeroDivisionError)
    assert isinstance(first.error, HorovodInternalError)
    two_ranks.run(lambda rank: hvd.barrier())
