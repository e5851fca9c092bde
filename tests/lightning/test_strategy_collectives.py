"""What a module asks of the ranks: values logged, metrics, tensors and objects of all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from tests.lightning.training import loader, module_of, rows, trainer_of
from tests.torch.rank_pool import RankPool


def test_logged_values_and_metrics(two_ranks: RankPool) -> None:
    def check(rank: int) -> dict[str, Any]:
        import torchmetrics

        def setup(self: Any, stage: str) -> None:
            self.seen = torchmetrics.CatMetric()
            self.means = torchmetrics.MetricCollection(
                {"mean": torchmetrics.MeanMetric(), "sum": torchmetrics.SumMetric()}
            )
            self.stepwise = torchmetrics.SumMetric(dist_sync_on_step=True)
            self.local = torchmetrics.SumMetric(dist_sync_fn=lambda tensor, group: [tensor])

        def validation_step(self: Any, batch: Any, number: int) -> None:
            self.log("mean", float(rank), sync_dist=True, batch_size=1)
            self.log("sum", float(rank + 1), sync_dist=True, reduce_fx="sum", batch_size=1)
            self.log("max", torch.tensor(rank), sync_dist=True, reduce_fx="max", batch_size=1)
            self.means.update(torch.tensor(float(rank)))
            self.log_dict({f"metric_{name}": metric for name, metric in self.means.items()})
            if rank == 1:  # a state that rank 0 does not have
                self.seen.update(torch.arange(2 * number, 2 * number + 2.0))
            steps.append(float(self.stepwise(torch.tensor(1.0 + rank))))
            self.local.update(torch.tensor(1.0))

        def on_validation_epoch_end(self: Any) -> None:
            results["seen"] = self.seen.compute().tolist()
            results["local"] = float(self.local.compute())

        steps: list[float] = []
        results: dict[str, Any] = {}
        module = module_of(
            setup=setup, validation_step=validation_step, on_validation_epoch_end=on_validation_epoch_end
        )
        logged = trainer_of().validate(module, loader(16), verbose=False)
        assert module.seen.dist_sync_fn is None and module.local.dist_sync_fn is not None  # as they were
        return {**results, **logged[0], "steps": steps}

    first, second = two_ranks.run(check)
    assert first == second
    assert first == {
        "seen": [0, 1, 2, 3],
        "local": 2,
        "mean": 0.5,
        "sum": 6,
        "max": 1,
        "metric_mean": 0.5,
        "metric_sum": 2,
        "steps": [3, 3],
    }


def test_tensors_and_objects_of_all_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
            strategy = self.trainer.strategy
            mine = torch.full((2,), float(rank), requires_grad=True)
            everyone = self.all_gather({"mine": mine, "number": torch.tensor(rank)}, sync_grads=True)
            assert everyone["mine"].tolist() == [[0, 0], [1, 1]] and everyone["number"].tolist() == [0, 1]
            # Each rank's result depends on this rank's value, with a different weight.
            (everyone["mine"] * torch.tensor([[1.0], [10.0]]) * (rank + 1)).sum().backward()
            assert mine.grad is not None and mine.grad.tolist() == [3 * 10.0**rank] * 2
            assert not self.all_gather(mine).requires_grad
            full = torch.tensor([rank, 3])
            assert strategy.reduce(full).tolist() == [0.5, 3] and full.tolist() == [rank, 3]
            assert strategy.reduce(full, reduce_op="sum").tolist() == [1, 6]
            assert strategy.reduce(full, reduce_op=torch.distributed.ReduceOp.MAX).tolist() == [1, 3]
            assert strategy.reduce("no tensor") == "no tensor"
            with pytest.raises(ValueError, match="reduce_op='median' must be one of"):
                strategy.reduce(full, reduce_op="median")
            with pytest.raises(ValueError, match=r"does not use torch\.distributed groups"):
                strategy.reduce(full, group="a group")
            assert strategy.broadcast({"from": rank}, src=1) == {"from": 1}
            assert strategy.reduce_boolean_decision(rank == 1, all=False)
            assert not strategy.reduce_boolean_decision(rank == 1)
            assert strategy.reduce_boolean_decision(True)
            strategy.barrier("name")
            return self(batch[0]).sum()

        trainer_of(limit_train_batches=1).fit(module_of(training_step=training_step), loader())

    two_ranks.run(check)


def test_each_rank_predicts_its_own_share(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        def predict_step(self: Any, batch: Any, number: int) -> torch.Tensor:
            return batch[0][:, 0]

        return torch.cat(trainer_of().predict(module_of(predict_step=predict_step), loader(15))).tolist()

    first, second = two_ranks.run(check)
    column = rows(15).tensors[0][:, 0]
    assert first == column[::2].tolist()
    assert second == column[1::2].tolist()


def test_alone() -> None:
    module = module_of()
    trainer = trainer_of(limit_train_batches=2)
    trainer.fit(module, loader())
    strategy = trainer.strategy
    assert (trainer.world_size, trainer.global_rank, trainer.global_step) == (1, 0, 2)
    assert strategy.all_gather(torch.ones(2)).shape == (2,)
    assert strategy.broadcast("x") == "x" and strategy.reduce_boolean_decision(True)
    assert strategy.reduce(torch.ones(1), reduce_op="sum").tolist() == [1]
    hvd.shutdown()
