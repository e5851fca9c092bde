"""A whole PyTorch training of one rank."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.errors import DataError
from spark_estimator.estimators.rank_run import KnownRun, RankRun
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.training import find_left_out, train
from tests.estimators.histories import drop_times
from tests.estimators.specs import X, Y, spec_of


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def parts(**changed: object) -> TorchParts:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    values = {"losses": [nn.MSELoss()], "loss_weights": [1.0], "metrics": [[nn.L1Loss()]], **changed}
    return TorchParts(net, torch.optim.SGD(net.parameters(), lr=0.01), **values)  # type: ignore[arg-type]


@pytest.mark.usefixtures("alone")
def test_one_rank_trains_as_a_loop_of_torch_does(tmp_path: Path) -> None:
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    table = pyarrow.table({"x": features.tolist(), "y": features.sum(1).tolist()})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    source = FileRows(find_files(str(tmp_path / "rows.parquet")), RowEncoder(("x", "y"), (X, Y)))
    result = train(spec_of(source=source, shuffle=False, batch_size=10, framework=parts()))
    plain = parts()
    losses = []
    for _ in range(2):
        epoch = 0.0
        for x in features.split(10):
            loss = nn.functional.mse_loss(plain.model(x).reshape(-1), x.sum(1))
            plain.optimizer.zero_grad()
            loss.backward()
            plain.optimizer.step()
            epoch += loss.item() * len(x)
        losses.append(epoch / 20)
    assert result is not None and result.rows == (20, 0)
    for entry in result.history:
        assert entry["time"].keys() == {"input", "compute", "peers", "network"}
        assert entry["time"]["input"] > 0 and entry["time"]["compute"] > 0
    assert [entry["train"]["loss"] for entry in result.history] == pytest.approx(losses, rel=1e-5)
    state = torch.load(io.BytesIO(result.state), weights_only=True)
    assert state["optimizer"]["param_groups"] == plain.optimizer.state_dict()["param_groups"]
    assert torch.allclose(state["model"]["weight"], plain.model.weight, atol=1e-6)  # type: ignore[arg-type]

    # The same rows in the same order, of which few are in memory at a time.
    limits = RowLimits(cache_bytes=80, buffer_bytes=100)
    limited = train(spec_of(source=source, shuffle=False, batch_size=10, framework=parts(), limits=limits))
    assert (
        limited is not None
        and drop_times(limited.history) == drop_times(result.history)
        and limited.state == result.state
    )

    local = train(
        spec_of(
            source=source,
            shuffle=False,
            batch_size=10,
            framework=parts(sync="local_sgd", inner_steps=3, rate_is_joint=True),
        )
    )
    assert local is not None
    state = torch.load(io.BytesIO(local.state), weights_only=True)
    assert "outer" not in state["optimizer"]
    assert torch.allclose(state["model"]["weight"], plain.model.weight, atol=1e-6)  # type: ignore[arg-type]

    endless = parts(losses=[lambda output, label: output.mean() / 0])
    with pytest.raises(DataError, match="the loss of epoch 1 was"):
        train(spec_of(source=source, framework=endless))


@pytest.mark.usefixtures("alone")
def test_rows_within_limits_that_are_dropped_may_have_a_loss_that_ignores_labels(tmp_path: Path) -> None:
    """CrossEntropyLoss reads the labels alone before the training."""
    labels = [None if row % 5 == 0 else row % 2 for row in range(20)]
    table = pyarrow.table({"x": [[float(row), 1.0, -1.0] for row in range(20)], "y": labels})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    y = Field(("y",), ("c1",), (1,), "int64", ())
    source = FileRows(find_files(str(tmp_path / "rows.parquet")), RowEncoder(("x", "y"), (X, y), nulls="drop"))
    changed = {"labels": (y,), "epochs": 1, "source": source, "shuffle": False}

    def trained(**more: object) -> object:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        framework = TorchParts(net, optimizer, [nn.CrossEntropyLoss()], loss_weights=[1.0], metrics=[[]])
        result = train(spec_of(**changed, framework=framework, **more))
        assert result is not None and result.rows == (16, 0)
        return drop_times(result.history)

    assert trained(limits=RowLimits(cache_bytes=80, buffer_bytes=100)) == trained()


@pytest.mark.usefixtures("alone")
def test_labels_of_which_none_counts_are_named() -> None:
    def run_of(*labels: int) -> RankRows:
        column = numpy.array(labels, numpy.int64).reshape(-1, 1)
        return RankRows(
            ([numpy.zeros((len(labels), 3), numpy.float32)], [column]), numpy.arange(len(labels)), (len(labels),)
        )

    def left_out(rows: RankRows, held: RankRows | None, **changed: object) -> frozenset[int]:
        made = parts(losses=[nn.CrossEntropyLoss()], labels=["y"], **changed)
        return find_left_out(made, spec_of(framework=made), RankRun(rows, held, None, KnownRun({}, 5)))

    assert left_out(run_of(0, 1), run_of(1)) == frozenset()
    assert left_out(run_of(-100, 1), None) == {0} == left_out(run_of(1, 1), run_of(0, -100))
    with pytest.raises(DataError, match=r"the rows for training have nothing to learn: all of column 'y' is of the cl"):
        left_out(run_of(-100, -100), run_of(1))
    with pytest.raises(DataError, match=r"the rows for validation have nothing to learn: add labels\."):
        left_out(run_of(1), run_of(-100), nothing_to_learn="add labels.")
