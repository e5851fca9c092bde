"""Lightning's own DDPStrategy, and torchmetrics, through the torch.distributed backend."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from tests.ranks import run_ranks

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")


@pytest.mark.slow
def test_lightnings_own_strategy_trains() -> None:
    def train(rank: int) -> dict[str, Any]:
        import lightning.pytorch as lightning
        import torchmetrics
        from lightning.fabric.plugins.environments import LightningEnvironment
        from lightning.pytorch.strategies import DDPStrategy

        import spark_estimator.torch.process_group  # noqa: F401

        torch.set_num_threads(1)
        hvd.init()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]

        class Environment(LightningEnvironment):
            """Ranks of another launcher. Lightning passes their address, rank and number to torch."""

            creates_processes_externally = True
            main_address = "127.0.0.1"
            main_port = hvd.broadcast_object(port)

            def world_size(self) -> int:
                return hvd.size()

            def global_rank(self) -> int:
                return hvd.rank()

            def local_rank(self) -> int:
                return hvd.local_rank()

        class Model(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(rank)
                self.layer = torch.nn.Linear(4, 1)
                self.ranks = torchmetrics.MeanMetric()

            def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
                loss = self.layer(batch[0]).square().mean()
                self.ranks.update(float(rank))
                self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
                self.log("ranks", self.ranks, on_step=False, on_epoch=True)
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        data = torch.utils.data.TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(process_group_backend="spark_estimator"),
            plugins=[Environment()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Model()
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
        everything = torchmetrics.CatMetric()
        everything.update(torch.arange(rank + 1.0))
        return {
            "backend": dist.get_backend(),
            "weights": model.layer.weight.tolist(),
            "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
            "uneven": everything.compute().tolist(),
        }

    first, second = run_ranks(2, train, timeout=100)
    assert first == second
    assert first["backend"] == "spark_estimator"
    assert first["metrics"]["ranks"] == 0.5
    assert first["uneven"] == [0, 0, 1]
