"""TensorBoard's events of a training."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.estimators.torch.epoch_log import open_log
from spark_estimator.store import Store
from tests.estimators.specs import spec_of

ENTRY: dict[str, Any] = {
    "epoch": 1,
    "train": {"loss": 0.5, "all_metrics": [{"group_0_y": 0.25}]},
    "validation": {"loss": 0.75, "all_metrics": []},
}


def test_without_a_store_or_on_other_ranks_nothing_is_written(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    kept_out = Store.create(str(tmp_path), save_runs=False)
    for spec, rank in ((spec_of(), 0), (spec_of(store=store), 1), (spec_of(store=kept_out), 0)):
        with open_log(spec, functools.partial(int, rank)) as log:
            log(ENTRY)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_events_have_horovods_names(tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    store: Any = Store.create(scheme + str(tmp_path / "store"))
    with open_log(spec_of(store=store, run_id="mine"), lambda: 0) as log:
        log(ENTRY)
        [entry] = store.entries(store.get_logs_path("mine"))  # it is there before the training ends
    events = tmp_path / "events"
    events.write_bytes(store.read(entry.path))
    values = {
        value.tag: (event.step, value.tensor.float_val[0] if value.tensor.float_val else value.simple_value)
        for event in EventFileLoader(str(events)).Load()
        for value in event.summary.value
    }
    assert values == {"train/loss": (1, 0.5), "val/loss": (1, 0.75), "train/group_0_y:0": (1, 0.25)}


def test_a_store_that_takes_no_events_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    store: Any = Store.create(str(tmp_path / "store"))
    logs = Path(store.get_logs_path("mine"))
    logs.parent.mkdir(parents=True)
    logs.write_text("a file in the folder's place")
    with open_log(spec_of(store=store, run_id="mine"), lambda: 0) as log:
        log(ENTRY)
        log({**ENTRY, "epoch": 2})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"TensorBoard's events of epoch 1 and later can't be written to {logs}: ")
