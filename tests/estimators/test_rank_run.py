"""How a training begins and ends on a rank: its rows, and the result that it returns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.collectives import context
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.estimators.rank_run import KnownRun, RankRun, begin, check_loss, make_meter, to_averages
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.observe import progress
from spark_estimator.store import Store
from tests.estimators.specs import X, Y, spec_of


@pytest.fixture
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def run_of(rows: int, held: int) -> RankRun:
    def of(count: int) -> RankRows:
        return RankRows(([numpy.zeros((count, 1), numpy.float32)],), numpy.arange(count), (count,))

    return RankRun(of(rows), of(held) if held else None, None, KnownRun({}, 1))


def test_a_small_model_is_in_the_result_and_a_large_one_in_the_store(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    history = [{"epoch": 0}]
    small = run_of(5, 2).make_result(spec_of(store=store, large=4), b"1234", history, "model.pt")
    assert (small.state, small.rows, small.file, small.history) == (b"1234", (5, 2), None, history)
    assert run_of(5, 0).make_result(spec_of(large=4), b"12345", history, "model.pt").state == b"12345", (
        "there is no store"
    )
    large = run_of(5, 0).make_result(spec_of(store=store, large=4), b"12345", history, "model.pt")
    assert (large.state, large.rows) == (b"", (5, 0))
    assert large.file == (str(tmp_path / "runs/run/model.pt"), hashlib.sha256(b"12345").hexdigest())
    assert (tmp_path / "runs/run/model.pt").read_bytes() == b"12345"


@pytest.mark.usefixtures("alone")
def test_rows_are_read_and_a_share_is_left_out(tmp_path: Path) -> None:
    table = pyarrow.table({"x": [[float(n)] * 3 for n in range(20)], "y": [float(n) for n in range(20)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    source = FileRows(find_files(str(tmp_path / "rows.parquet")), RowEncoder(("x", "y"), (X, Y)))
    run = begin(spec_of(source=source, held_share=0.25), lambda spec, sums: {"sums": list(map(str, sums))}, TorchForm())
    assert run.held is not None and (run.rows.total, run.held.total) == (15, 5)
    assert (run.seed, run.kept, run.identity) == (5, None, {}), "without a store nothing identifies the training"
    assert begin(spec_of(source=source), lambda spec, sums: {}, TorchForm()).held is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_lost_ends_the_training(loss: float) -> None:
    with pytest.raises(DataError, match=rf"the loss of epoch 3 was {loss}.*multiplied with the number of processes"):
        check_loss(loss, 2)
    with pytest.raises(DataError, match=r"from the columns, or lower the learning rate\.\n"):
        check_loss(loss, 2, multiplied=False)
    check_loss(1e300, 2)


@pytest.mark.usefixtures("alone")
def test_a_lost_loss_names_the_column_and_the_row() -> None:
    fields = (Field(("a", "b"), ("c0", "c1"), (2, 1), "float32", (3,)), Field(("y",), ("c2",), (1,), "int64", ()))
    features = numpy.zeros((6000, 3), numpy.float32)
    rows = RankRows(([features], [numpy.zeros((6000, 1), numpy.int64)]), numpy.arange(6000), (6000,))
    with pytest.raises(DataError, match=r"was nan: all values of the columns are finite\. .*lower the learning rate"):
        check_loss(math.nan, 0, rows, fields)
    features[5000, 2] = features[5001, 2] = math.nan
    features[5002, 0] = math.inf
    with pytest.raises(DataError, match=r"column 'b' contains nan in row 5000 .* \(2 rows .*set nulls='drop'"):
        check_loss(math.nan, 0, rows, fields[:2])
    features[5000:5002] = 0
    with pytest.raises(DataError, match=r"column 'a' contains inf in row 5002 .* counted from 0: filter such rows"):
        check_loss(math.inf, 0, rows, fields)


def test_losses_come_first_in_what_the_display_shows() -> None:
    train = {"loss": 1.0, "all_metrics": [[0.5]], "metrics": {"mae": 0.5}}
    entry = {"train": train, "validation": {**train, "loss": 2.0}, "logged": {"train_loss": 1.0, "error": 3.0}}
    assert list(to_averages(entry).items()) == [
        ("loss", 1.0),
        ("val_loss", 2.0),
        ("mae", 0.5),
        ("val_mae", 0.5),
        ("error", 3.0),
    ]
    assert to_averages({"train": {"loss": 1.0, "all_metrics": []}}) == {"loss": 1.0}


def test_a_silent_estimator_reports_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_meter", None)
    make_meter(spec_of(verbose=0))
    assert progress._meter is None
    meter = make_meter(spec_of(verbose=1, epochs=3))
    assert progress._meter is meter and meter.epochs == 3
