"""A whole training as users write it, on scikit-learn's handwritten digits: alone, on two ranks, in HorovodRunner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from tests.torch.rank_pool import RankPool

pytest.importorskip("sklearn")


def digits(folder: str, epochs: int = 12) -> dict[str, Any]:
    """Trains with validation, early stopping and checkpoints; tests the best of them. The same on all ranks."""
    import lightning.pytorch as pl
    import torch
    import torchmetrics
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset, random_split

    import spark_estimator.lightning  # noqa: F401

    class Reader(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
            self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            scores = self.net(batch[0])
            self.accuracy(scores, batch[1])
            self.log("val_accuracy", self.accuracy, on_epoch=True)
            self.log("val_loss", cross_entropy(scores, batch[1]), sync_dist=True)

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            # The learning rate grows with the joint batch.
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3 * self.trainer.world_size)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)]

    torch.manual_seed(1)  # seed_everything would stay in the environment of ranks that other tests use
    torch.set_num_threads(1)
    pixels, labels = load_digits(return_X_y=True)
    everything = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    train, val, test = random_split(everything, [1200, 240, 357], torch.Generator().manual_seed(0))
    best = ModelCheckpoint(folder, monitor="val_accuracy", mode="max")
    trainer = pl.Trainer(
        strategy="horovod",
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=5.0,
        callbacks=[best, EarlyStopping("val_loss", patience=3)],
        logger=pl.loggers.CSVLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Reader(), DataLoader(train, 24, shuffle=True), DataLoader(val, 24))
    (tested,) = trainer.test(dataloaders=DataLoader(test, 24), ckpt_path="best", verbose=False)
    return {"ranks": trainer.world_size, "epochs": trainer.current_epoch, "best": best.best_model_path, **tested}


@pytest.mark.slow
def test_alone(tmp_path: Path) -> None:
    result = digits(str(tmp_path))
    assert result["ranks"] == 1 and result["val_accuracy"] > 0.9
    import spark_estimator.torch as hvd

    hvd.shutdown()


@pytest.mark.slow
def test_two_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int) -> dict[str, Any]:
        return digits(str(tmp_path))

    first, second = two_ranks.run(check)
    assert first == second
    assert first["ranks"] == 2 and first["val_accuracy"] > 0.9
    assert Path(first["best"]).exists() and len(list(tmp_path.glob("*.ckpt"))) == 1
    assert len(list(tmp_path.glob("lightning_logs/*"))) == 1  # one log, of rank 0


@pytest.mark.slow
def test_in_horovod_runner(tmp_path: Path) -> None:
    result = HorovodRunner(np=-2).run(digits, folder=str(tmp_path), epochs=1)
    assert result["ranks"] == 2 and result["epochs"] == 1
