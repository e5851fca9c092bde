"""`TorchEstimator.fit` on a real session: numbers and uneven data."""

from __future__ import annotations

import copy
import functools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spark_estimator import DataError, TorchEstimator, TorchModel, WorkerFailedError
from spark_estimator.estimators.rows.sources import SAMPLE_ROWS
from spark_estimator.observe.status_line import Log
from spark_estimator.store import Store
from tests.estimators.conftest import ROWS, TRUTH, line_rows, linear
from tests.estimators.histories import drop_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


def weights(model: TorchModel) -> list[float]:
    net = model.getModel()
    return [*net.weight.detach().ravel().tolist(), *net.bias.detach().tolist()]  # type: ignore[union-attr, operator]


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["local_sgd", "diloco"])
def test_ranks_that_step_by_themselves_learn_and_resume(
    line: DataFrame, estimator: Make, tmp_path: Path, sync: str
) -> None:
    made = estimator(epochs=16, sync=sync, inner_steps=4, validation=0.2)
    model = made.fit(line)
    assert numpy.allclose(weights(model), [*TRUTH, 0.25], atol=0.05)
    stored = {"sync": sync, "inner_steps": 4, "store": str(tmp_path), "run_id": "again"}
    first = estimator(epochs=2, **stored).fit(line)
    more = estimator(epochs=4, **stored).fit(line)
    assert len(first.getHistory()) == 2 and len(more.getHistory()) == 4
    assert more.getHistory()[:2] == first.getHistory()


def test_it_learns_and_repeats_itself(line: DataFrame, estimator: Make) -> None:
    made = estimator(epochs=12)
    model = made.fit(line)
    assert numpy.allclose(weights(model), [*TRUTH, 0.25], atol=0.05)
    history = model.getHistory()
    assert [entry["epoch"] for entry in history] == list(range(12))
    assert history[-1]["train"]["loss"] < 0.01 < history[0]["train"]["loss"]
    # The same seed, the same bits; and fit() does not change the model that was passed to it.
    assert weights(made.fit(line)) == weights(model)


def test_one_batch_of_everything_is_one_process_on_the_joint_batch(line: DataFrame, estimator: Make) -> None:
    """203 rows on 2 ranks are 102 and 101: the mean over rows, not the mean of the ranks' means."""
    model = estimator(batch_size=ROWS, epochs=2).fit(line)
    features, labels = (torch.from_numpy(each) for each in line_rows())
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05 * 2)  # multiplied with the number of ranks
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(features).reshape(-1), labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert numpy.allclose([entry["train"]["loss"] for entry in model.getHistory()], losses, rtol=1e-5)
    assert numpy.allclose(weights(model)[:3], net.weight.detach().ravel(), rtol=1e-4, atol=1e-6)


def test_accumulated_gradients_are_a_mean_and_the_optimizer_comes_back(line: DataFrame, estimator: Make) -> None:
    """As in Horovod: each pass's loss is divided by the number of passes; the model has the optimizer's state."""
    net = linear()
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    model = estimator(
        model=net, optimizer=adam, num_proc=1, batch_size=ROWS // 2 + 1, epochs=1, backward_passes_per_step=2
    ).fit(line)
    features, labels = (torch.from_numpy(each) for each in line_rows())
    plain = linear()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    nn.functional.mse_loss(plain(features).reshape(-1), labels).backward()
    optimizer.step()
    assert numpy.allclose(weights(model)[:3], plain.weight.detach().ravel(), atol=1e-3)
    trained = model.getOptimizer()
    assert type(trained) is torch.optim.Adam and trained is not adam
    assert trained.param_groups[0]["params"] == list(model.getModel().parameters())
    assert trained.param_groups[0]["lr"] == 0.05
    assert trained.state[model.getModel().weight]["step"] == 1
    assert trained.state[model.getModel().weight]["exp_avg"].norm() > 0.01


@pytest.mark.slow
def test_rows_of_a_class_that_the_loss_leaves_out_count_on_no_rank(spark: SparkSession, estimator: Make) -> None:
    """torch's losses leave out -100 by default, and divide by the other rows."""
    rows = [(number / 40 - 0.5, -100 if number < 30 else number % 3) for number in range(40)]
    torch.manual_seed(0)
    net = nn.Linear(1, 3)
    model = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        loss=nn.functional.cross_entropy,
        feature_cols=["x"],
        batch_size=20,
        epochs=1,
    ).fit(spark.createDataFrame(rows, "x double, y int").repartition(3, "x"))
    features, labels = torch.tensor([[x] for x, _ in rows]), torch.tensor([y for _, y in rows])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05 * 2)
    loss = nn.functional.cross_entropy(net(features), labels)
    loss.backward()
    optimizer.step()
    assert model.getHistory()[0]["train"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert numpy.allclose(weights(model)[:3], net.weight.detach().ravel(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_progress_and_names_of_metrics(
    line: DataFrame, estimator: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, progress is lines on stderr; the workers report once a second."""

    def slow_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return (output - label).abs().mean()

    monkeypatch.setattr(Log, "interval", 0.2)
    first, *_, last = estimator(metrics=[slow_error], validation="held", epochs=3, verbose=1).fit(line).getHistory()
    for part in ("train", "validation"):
        assert first[part]["metrics"] == {"slow_error": first[part]["all_metrics"][0]["group_0_y"]}
    printed = capsys.readouterr()
    lines = "\n".join(text for text in printed.err.splitlines() if text.startswith("spark_estimator: epoch "))
    assert re.search(r"epoch \d/3 \[#*\.*\], (validation )?step \d/[25], .*loss \d", lines), printed.err
    assert re.search(r" rows/s, ETA [\d:]+, .*; epoch \d: loss [\d.]+, val_loss [\d.]+, slow_error [\d.]+, ", lines), (
        lines
    )
    assert f"epoch 3/3, train loss {last['train']['loss']:.4g}, train slow_error " in printed.out
    estimator(metrics=[slow_error], epochs=1).fit(line)
    assert not any(capsys.readouterr()), "verbose=0"


def test_scalar_columns_stand_side_by_side_and_sums_are_exact(line: DataFrame, estimator: Make) -> None:
    """A learning rate of 0: every average is one over known rows."""
    net = linear()
    still = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
        feature_cols=["x0", "x1", "x2"],
        metrics=[lambda output, label: (output - label).abs().mean()],
        validation="held",
        sample_weight_col="w",
        batch_size=7,
        epochs=1,
    )
    (entry,) = still.fit(line).getHistory()
    features, labels = line_rows()
    with torch.no_grad():
        errors = linear()(torch.from_numpy(features)).numpy().reshape(-1) - labels
    number = numpy.arange(ROWS)
    for name, chosen in (("train", number % 4 != 0), ("validation", number % 4 == 0)):
        weighted = (errors**2 * 2 * (number % 2))[chosen].mean()
        assert entry[name]["loss"] == pytest.approx(weighted, rel=1e-5)
        assert entry[name]["all_metrics"][0]["group_0_y"] == pytest.approx(abs(errors[chosen]).mean(), rel=1e-5)


@pytest.mark.parametrize("rows", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_few_rows_on_two_ranks(line: DataFrame, estimator: Make, rows: int) -> None:
    """Also one row: the other rank has none, and takes part in every step. One row at least is trained on."""
    model = estimator(batch_size=1, epochs=2, validation=0.9).fit(line.limit(rows))
    assert len(model.getHistory()) == 2
    assert ("validation" in model.getHistory()[0]) == (rows > 1)


@pytest.mark.slow
def test_all_rows_in_one_partition(line: DataFrame, estimator: Make) -> None:
    model = estimator(epochs=1, validation=0.25).fit(line.coalesce(1).limit(41))
    assert set(drop_times(model.getHistory())[0]) == {"epoch", "train", "validation"}


@pytest.mark.slow
def test_rows_that_are_all_alike(spark: SparkSession, estimator: Make) -> None:
    """A row's values choose its rank: Spark gives all of these to one rank, and the ranks share them."""
    frame = spark.range(0, 90, 1, 3).selectExpr("cast(1 as float) as x", "cast(2 as float) as y")
    net = nn.Linear(1, 1)
    model = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
        feature_cols=["x"],
        batch_size=5,
        epochs=1,
        metrics=[lambda output, label: torch.tensor(float(len(label)))],
    ).fit(frame)
    (entry,) = model.getHistory()
    with torch.no_grad():
        assert entry["train"]["loss"] == pytest.approx(float((net(torch.ones(1)) - 2) ** 2), rel=1e-5)
    assert entry["train"]["all_metrics"][0]["group_0_y"] == pytest.approx(5), (
        "45 rows on each rank: nine batches of five"
    )


@pytest.mark.slow
def test_doubles_that_are_classes_and_several_outputs(spark: SparkSession, estimator: Make) -> None:
    """StringIndexer writes classes as doubles; CrossEntropyLoss wants them as int64. Two inputs, two outputs."""
    rows = [(n % 5, [float(n % 3), 1.0], float(n % 3), n % 2) for n in range(40)]
    frame = spark.createDataFrame(rows, "item long, x array<double>, kind double, odd int")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(5, 4)
            self.kind = nn.Linear(6, 3)
            self.odd = nn.Linear(6, 1)

        def forward(self, item: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            both = torch.cat([self.items(item), x], dim=1)
            return self.kind(both), torch.sigmoid(self.odd(both))

    net = Two()
    model = estimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.01),
        feature_cols=["item", "x"],
        label_cols=["kind", "odd"],
        loss=[nn.CrossEntropyLoss(), nn.BCELoss()],
        loss_weights=[0.7, 0.3],
        epochs=1,
    ).fit(frame)
    predicted = model.transform(frame).select("kind__output", "odd__output").first()
    assert len(predicted.kind__output) == 3
    assert predicted.odd__output in (0, 1), "the label is an int, and its loss one of two classes"


@pytest.mark.slow
def test_a_compiled_model_takes_columns_side_by_side(line: DataFrame, estimator: Make) -> None:
    net = torch.compile(linear(), backend="eager")
    model = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),  # type: ignore[attr-defined]
        feature_cols=["x0", "x1", "x2"],
        epochs=2,
    ).fit(line)
    plain = estimator(feature_cols=["x0", "x1", "x2"], epochs=2).fit(line)
    assert [entry["train"]["loss"] for entry in model.getHistory()] == [
        entry["train"]["loss"] for entry in plain.getHistory()
    ]


def test_what_is_no_frame_of_spark_s(line: DataFrame, estimator: Make) -> None:
    for data in (line.toPandas(), numpy.ones((2, 3)), None):
        with pytest.raises(TypeError, match=r"fit\(\) takes a Spark DataFrame.*spark.createDataFrame"):
            estimator().fit(data)
    model = estimator(epochs=1, num_proc=1).fit(line)
    with pytest.raises(TypeError, match=r"transform\(\) takes a Spark DataFrame"):
        model.transform(line.toPandas())
    with pytest.raises(DataError, match=r"of a DataFrame of Spark's, transform\(df\) predicts"):
        model.predict(line)
    with pytest.raises(TypeError, match=r"predict\(\) was given None"):
        model.predict(None)


@pytest.mark.slow
def test_such_rows_have_no_weights_besides(spark: SparkSession, estimator: Make) -> None:
    rows = [(number / 40 - 0.5, -100 if number < 30 else number % 3, float(number >= 30)) for number in range(40)]
    net = nn.Linear(1, 3)
    make = functools.partial(
        estimator,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        loss=nn.CrossEntropyLoss(),
        feature_cols=["x"],
        sample_weight_col="w",
        epochs=1,
    )
    with pytest.raises(Exception, match=r"'y' holds -100.*'w'\) is not 0: give them the weight 0"):
        make().fit(
            spark.createDataFrame(rows, "x double, y int, w float").selectExpr("x", "y", "cast(1 as float) AS w")
        )
    loss = make().fit(spark.createDataFrame(rows, "x double, y int, w float")).getHistory()[0]["train"]["loss"]
    assert 0 < loss < 3


@pytest.mark.slow
def test_a_batch_of_one_row_and_a_batch_normalization(spark: SparkSession, estimator: Make) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    rows = [([1.0, 2.0, float(number)], 1.0) for number in range(3)]
    with pytest.raises(Exception, match=r"batch has a single row.*fewer processes \(num_proc\)"):
        estimator(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), batch_size=2).fit(
            spark.createDataFrame(rows, "features array<float>, y float")
        )


@pytest.mark.parametrize("read_files", [True, False])
def test_marks_of_the_first_rows_are_checked_before_the_start(
    spark: SparkSession, estimator: Make, tmp_path: Path, read_files: bool
) -> None:
    rows = [([1.0, 2.0, 3.0], 1.0, number % 3) for number in range(30)]
    spark.createDataFrame(rows, "features array<float>, y float, fold int").write.parquet(str(tmp_path / "rows"))
    with pytest.raises(DataError, match=r"^the column 'fold' of validation marks holds null, or a number") as raised:
        estimator(num_proc=1, validation="fold", read_files=read_files).fit(spark.read.parquet(str(tmp_path / "rows")))
    assert not isinstance(raised.value.__cause__, WorkerFailedError)


@pytest.mark.slow
@pytest.mark.parametrize("read_files", [True, False])
def test_marks_are_0_and_1(spark: SparkSession, estimator: Make, tmp_path: Path, read_files: bool) -> None:
    """The number of a fold, or another code, would put most rows aside."""
    # The driver sees the first rows only.
    rows = [([1.0, 2.0, 3.0], 1.0, number % (2 if number < SAMPLE_ROWS else 3)) for number in range(SAMPLE_ROWS + 30)]
    path = str(tmp_path / "rows")
    spark.createDataFrame(rows, "features array<float>, y float, fold int").coalesce(1).write.parquet(path)
    frame = spark.read.parquet(path)
    words = r"^rank 0 \(host \S+\): the column of validation marks holds null, or a number that is neither 0"
    with pytest.raises(DataError, match=words) as raised:
        estimator(num_proc=1, validation="fold", read_files=read_files).fit(frame)
    assert isinstance(raised.value.__cause__, WorkerFailedError)
    right = frame.withColumn("fold", (frame.fold == 1).cast("int"))
    right.write.parquet(path + "_right")
    model = estimator(num_proc=1, validation="fold", read_files=read_files).fit(spark.read.parquet(path + "_right"))
    assert "validation" in model.getHistory()[0]


def test_a_loss_that_becomes_nan_is_an_error(line: DataFrame, estimator: Make) -> None:
    net = linear()
    with pytest.raises(Exception, match=r"the loss of epoch . was (nan|inf).*learning rate"):
        estimator(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=1e20), epochs=3).fit(line)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loss": nn.MSELoss(reduction="sum")}, "reduction='sum'; a loss has to be a mean over the rows"),
        ({"optimizer": torch.optim.LBFGS(linear().parameters())}, "LBFGS is not supported"),
    ],
)
def test_what_batches_of_several_ranks_cannot_do(
    line: DataFrame, estimator: Make, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        estimator(**changed).fit(line)


@pytest.mark.slow
def test_a_scheduler_of_schedulers_meets_the_rate_of_one_process(line: DataFrame, estimator: Make) -> None:
    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        net = linear()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        kinds = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _, factor=f: factor) for f in (1.0, 0.5)]
        return net, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, kinds, [2])

    net, optimizer, scheduler = parts()
    model = estimator(model=net, optimizer=optimizer, lr_scheduler=scheduler, batch_size=ROWS, epochs=4).fit(line)
    features, labels = (torch.from_numpy(each) for each in line_rows())
    net, optimizer, scheduler = parts()
    for _ in range(4):
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = 2 * rate
        optimizer.zero_grad()
        nn.functional.mse_loss(net(features).reshape(-1), labels).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = rate
        scheduler.step()
    assert numpy.allclose(weights(model)[:3], net.weight.detach().ravel(), rtol=1e-4, atol=1e-6)


def as_it_is(row: dict[str, Any]) -> dict[str, Any]:
    return row


def test_names_with_dots_and_backticks_and_fields_of_structs(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    """Rows through Spark, through files of a store, and through a function are those of plain names."""
    parameters = {"batch_size": ROWS, "shuffle": False, "epochs": 2}
    expected = estimator(feature_cols=["x0", "x1", "x2"], **parameters).fit(line).getHistory()
    strange = line.selectExpr("x0 as `x.0`", "x1 as `x``1`", "struct(x2 as inner, held) as s", "y as `the.label`")
    parameters |= {"feature_cols": ["x.0", "x`1", "s.inner"], "label_cols": ["the.label"]}
    ways: list[dict[str, Any]] = [
        {},
        {"materialize": True, "store": Store.create(str(tmp_path))},
        {"transformation_fn": as_it_is},
    ]
    for way in ways:
        history = estimator(**parameters, **way).fit(strange).getHistory()
        losses = [entry["train"]["loss"] for entry in history]
        assert losses == pytest.approx([entry["train"]["loss"] for entry in expected], rel=1e-5), way


def test_a_parametrized_module_is_trained_as_in_one_process(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    net = parametrizations.weight_norm(nn.Linear(3, 1))
    alone = copy.deepcopy(net)
    model = estimator(model=net, batch_size=ROWS, epochs=3, shuffle=False).fit(line)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05 * 2)  # of two ranks
    features, labels = (torch.from_numpy(each) for each in line_rows())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(features).reshape(-1), labels).backward()
        optimizer.step()
    weight: Any = model.getModel().weight
    assert torch.allclose(weight, alone.weight, rtol=1e-4, atol=1e-6)
    row = model.transform(line.select("features")).first()
    assert row is not None
    expected = model.predict([row.features])
    assert row.y__output == pytest.approx(float(expected.reshape(-1)[0]), rel=1e-5)
    model.save(str(tmp_path / "model"))
    ways: list[dict[str, Any]] = [{"model": net}, {"trust": True}]
    for way in ways:
        assert TorchModel.load(str(tmp_path / "model"), **way).predict([row.features]) == pytest.approx(expected)


def test_a_script_is_refused(estimator: Make, line: DataFrame) -> None:
    inner = torch.jit.script(nn.Linear(3, 1))
    for net, words in ((inner, "model is a Scrip"), (nn.Sequential(inner), "the model's 0 is a Script")):
        with pytest.raises(ValueError, match=rf"{words}.*Give the torch\.nn\.Module .*torch\.jit\.script\(fitted\.get"):
            estimator(model=net).fit(line)
