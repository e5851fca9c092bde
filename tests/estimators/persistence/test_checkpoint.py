"""Checkpoints in a store: damaged files, stores that cannot be written to, the best epoch, log lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.collectives import context
from spark_estimator.estimators.persistence import checkpoint
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, describe_epoch
from spark_estimator.estimators.persistence.run_identity import Identity
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.store import Store
from tests.estimators.specs import spec_of


def test_a_store_that_is_away(tmp_path: Path) -> None:
    """There is a file instead of its folder."""
    from spark_estimator.estimators.persistence.checkpoint import Saver
    from spark_estimator.estimators.torch.checkpoint import TorchForm

    class Spec:
        store = Store.create(str(tmp_path))
        run_id, owner, resume_on_other_rows = "run", "fit", False
        checkpoint_path = store.get_checkpoint_path("run")

    def away(yes: bool) -> None:
        runs = tmp_path / "runs"
        if runs.is_dir():
            runs.rename(tmp_path / "before")
        runs.unlink(missing_ok=True)
        if yes:
            runs.write_text("no folder")
        elif (tmp_path / "before").exists():
            (tmp_path / "before").rename(runs)

    def save(saver: Saver, epochs: int) -> None:
        saver.save(Checkpoint({}, 1, {}, [{"epoch": n} for n in range(epochs)], None))
        saver.wait()

    words = r"runs/run/checkpoint of \d+ bytes cannot be written on rank 0 \(host .*\): .*Error: .*must be writable"
    away(True)
    with pytest.raises(DataError, match=words):
        save(Saver(Spec(), TorchForm()), 1)  # type: ignore[arg-type]
    away(False)
    saver = Saver(Spec(), TorchForm())  # type: ignore[arg-type]
    save(saver, 1)
    away(True)
    save(saver, 2)
    save(saver, 3)
    away(False)
    assert torch.load(Spec.checkpoint_path or "")["epoch"] == 0, "the one before stays"
    save(saver, 4)
    away(True)
    save(saver, 5)
    save(saver, 6)
    with pytest.raises(DataError, match=words):
        save(saver, 7)
    away(False)
    assert torch.load(Spec.checkpoint_path or "")["epoch"] == 3


def test_a_checkpoint_that_is_damaged_is_not_gone_on_from(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A bit that has turned anywhere in it, an end that is lost, nothing at all, and another program's file."""
    import spark_estimator.torch as hvd
    from spark_estimator.estimators.persistence.checkpoint import Saver, load
    from spark_estimator.estimators.torch.checkpoint import TorchForm

    class Spec:
        store = Store.create(str(tmp_path))
        run_id, owner, resume_on_other_rows = "run", "fit", False
        checkpoint_path = store.get_checkpoint_path("run")

    hvd.init()
    request.addfinalizer(hvd.shutdown)
    net = nn.Linear(4, 1)
    with Saver(Spec(), TorchForm()) as saver:  # type: ignore[arg-type]
        saver.save(Checkpoint({}, 1, {"model": net.state_dict()}, [], None))
    file = tmp_path / "runs" / "run" / "checkpoint"
    whole = file.read_bytes()
    kept = load(Spec(), {}, TorchForm())  # type: ignore[arg-type]
    assert kept is not None and torch.equal(kept.state["model"]["weight"], net.weight)

    def turned(place: int) -> bytes:
        return whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]

    for content, words in (
        (turned(whole.find(net.weight.detach().numpy().tobytes()) + 3), "it is damaged, as its"),
        (turned(0), "it is damaged, as its"),
        (turned(len(whole) - 5), "it is damaged, as its|the last are not its SHA-256"),
        (whole[:-1], "the last are not its SHA-256, so its end is lost"),
        (whole[: len(whole) // 2], "the last are not its SHA-256"),
        (b"", "of its 0 bytes the last are not its SHA-256"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"runs/run/checkpoint is not a checkpoint that this .*({words})"):
            load(Spec(), {}, TorchForm())  # type: ignore[arg-type]


def test_lines_of_the_log() -> None:
    results = {"loss": 0.12345, "all_metrics": [[0.5], [2.0]], "metrics": {"accuracy": 0.5, "mae": 2.0}}
    assert describe_epoch({"epoch": 1, "train": results, "validation": {"loss": 2.0, "all_metrics": [[], []]}}, 3) == (
        "epoch 2/3, train loss 0.1235, train accuracy 0.5, train mae 2, validation loss 2"
    )
    skipping = {"loss": 1.0, "metrics": {"confusion": [[1, 0], [0, 1]]}, "skipped_steps": 3}
    assert describe_epoch({"epoch": 0, "train": skipping}, 1) == "epoch 1/1, train loss 1, 3 steps skipped"


@pytest.mark.parametrize(("verbose", "seconds", "lines"), [(1, 3.0, 1), (0, 3.0, 0), (1, 0.2, 0)])
def test_a_slow_store_is_reported_once(
    verbose: int, seconds: float, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer replaces each checkpoint that waits; time passes between the checkpoints."""
    now, texts = [0.0], []

    class Slow:
        def read_reports(self) -> list[Any]:
            return []

        def put(self, path: str, content: memoryview) -> bool:
            now[0] += seconds
            return now[0] > seconds

    monkeypatch.setattr(checkpoint, "make_saver", lambda *_: Slow())
    monkeypatch.setattr(checkpoint, "log_to_driver", texts.append)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    saver = checkpoint.Saver(spec_of(store=Store.create(str(tmp_path)), verbose=verbose), TorchForm())
    for _ in range(3):
        saver.save(Checkpoint({}, 1, {}, [], None))
    assert len(texts) == lines
    assert all("the store is slower than training: checkpoint " in text for text in texts)


def test_a_checkpoint_of_another_training_names_what_to_do(tmp_path: Path) -> None:
    spec = spec_of(store=Store.create(str(tmp_path)), owner="fit")
    kept = Checkpoint({"parameters": ["batch_size=32"]}, 1, {}, [], None)
    context.init()
    try:
        checkpoint.load(spec, {}, TorchForm())  # takes the run
        with checkpoint.Saver(spec, TorchForm()) as saver:
            saver.save(kept)
        with pytest.raises(DataError) as caught:
            checkpoint.load(spec, {"parameters": ["batch_size=7"]}, TorchForm())
    finally:
        context.shutdown()
    folder = tmp_path / "runs/run"
    assert str(caught.value).startswith(
        f"run_id='run': the checkpoint {folder}/checkpoint is from another training: parameters: batch_size=32 in the "
        "checkpoint, batch_size=7 now. Use another run_id (each fold and each ParamMap needs one) or the same "
        f"parameters and data, or remove the folder {folder}."
    )


def test_other_rows_are_refused_unless_the_run_is_to_continue_on_them(tmp_path: Path) -> None:
    def identity(checksum: int, columns: str = "x") -> Identity:
        return {"rows": [f"column {columns}", f"checksums [{checksum}]"], "model": ["Linear"]}

    spec = spec_of(store=Store.create(str(tmp_path)), owner="fit", initial="digest")
    context.init()
    try:
        checkpoint.load(spec, {}, TorchForm())  # takes the run
        with checkpoint.Saver(spec, TorchForm()) as saver:
            saver.save(Checkpoint(identity(1), 1, {}, [], None, initial="first"))
        with pytest.raises(
            DataError, match=r"checksums \[1\] in .*; set resume_on_other_rows=True to continue the run"
        ):
            checkpoint.load(spec, identity(2), TorchForm())
        continuing = replace(spec, resume_on_other_rows=True)
        kept = checkpoint.load(continuing, identity(2), TorchForm())
        assert kept is not None and (kept.initial, kept.owner) == ("first", "fit")
        with pytest.raises(
            DataError, match=r"rows: column x in the checkpoint, column y now\..*remove the folder \S+/run\.\n"
        ):
            checkpoint.load(continuing, identity(2, "y"), TorchForm())
    finally:
        context.shutdown()
