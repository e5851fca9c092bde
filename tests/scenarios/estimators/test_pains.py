"""What has hurt people who train on Spark, each by its name; more of them are met in the other files of this folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator import DataError, PreflightError, TorchEstimator
from spark_estimator.data.fields import Field
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Saver
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.estimators.torch.checkpoint import TorchForm, pack
from spark_estimator.estimators.torch.losses import TorchParts, compute_loss
from spark_estimator.store import FilesystemStore
from tests.estimators.conftest import line_rows, linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(300)
WEIGHTS = torch.tensor([1.0, 5.0])


class Ends(Callback):
    """On one rank only."""

    def __init__(self) -> None:
        self.epochs: list[Any] = []

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert isinstance(model, nn.Module) and optimizer.param_groups

    def on_epoch_begin(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> bool | None:
        assert self.epochs == list(range(epoch + 1))
        assert logs["epoch"] == epoch and logs["train"]["loss"] > 0
        return hvd.rank() == 1 and epoch == 1


def test_callbacks_do_not_hang_and_class_weights_weigh_as_on_one_process(spark: SparkSession, estimator: Make) -> None:
    """A callback of one rank ends all; the mean over classes' weights is that of the joint batch, to the last rank."""
    features, numbers = line_rows()
    labels = [int(number > 1.0) for number in numbers]
    rows = [([float(value) for value in row], label) for row, label in zip(features, labels, strict=True)]
    frame = spark.createDataFrame(rows, "features array<float>, y int").coalesce(1)
    net = nn.Linear(3, 2)
    alone = nn.Linear(3, 2)
    alone.load_state_dict(net.state_dict())
    model = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        loss=None,
        loss_constructors=[lambda: nn.CrossEntropyLoss(weight=WEIGHTS)],
        callbacks=[Ends()],
        batch_size=len(rows),
        epochs=5,
    ).fit(frame)
    history = model.getHistory()
    assert len(history) == 2, "rank 1 has ended it"
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for entry in history:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(alone(torch.from_numpy(features)), torch.tensor(labels), weight=WEIGHTS)
        assert entry["train"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        optimizer.step()
    assert torch.allclose(model.getModel().weight, alone.weight, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_a_step_of_one_s_own(line: DataFrame, estimator: Make) -> None:
    """Horovod's protocol; with gradients clipped, as no other test here clips them."""

    def clipped(
        model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, labels: Any, weights: Any
    ) -> Any:
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        return outputs, loss

    features, labels = (torch.from_numpy(each) for each in line_rows())
    model = estimator(train_minibatch_fn=clipped, batch_size=len(labels), epochs=2).fit(line)
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for entry in model.getHistory():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(features).reshape(-1), labels)
        assert entry["train"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    assert torch.allclose(model.getModel().weight, net.weight, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_half_precision_is_for_the_forward_pass() -> None:
    class Noting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = super().forward(x)
            kinds.append(output.dtype)
            return output

    kinds: list[torch.dtype] = []
    net = Noting(3, 1)
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]], precision="bf16")
    loss, outputs, _ = compute_loss(parts, net, [torch.ones(4, 3)], [torch.ones(4)], None, 4)
    assert kinds == [torch.bfloat16]
    assert (loss.value.dtype, outputs[0].dtype) == (torch.float32, torch.float32)
    with pytest.raises(ValueError, match="mixed_precision must be 'bf16', 'fp16' or None"):
        TorchEstimator(mixed_precision="fp8")


def memory(pid: int | str, name: str = "RssAnon") -> int:
    """A line of a process's status, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


class Measuring(Callback):
    """Ends the job if a rank, or the process that fills its spool, keeps rows in memory, or more with each epoch."""

    def __init__(self, rows_bytes: int, limit: int, before: int) -> None:
        self.rows_bytes = rows_bytes
        self.limit = limit
        self.before = before
        self.known: list[int] = []

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        supervisor = os.getppid()
        assert memory(supervisor, "VmHWM") - memory(supervisor, "VmRSS") < self.limit, "while it spooled"
        assert memory(supervisor) - self.before < self.rows_bytes
        other = nn.Linear(120, 1)  # what PyTorch takes for its first step is no row's
        other(torch.zeros(4096, 120)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        self.known = [memory("self")]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.known.append(memory("self"))
        assert self.known[-1] - self.known[0] < self.limit, self.known
        # Three batches of 2 MB that are made ahead; an order that stayed would be 2.4 MB in each epoch.
        assert self.known[-1] - self.known[1] < self.limit // 4, self.known


@pytest.mark.slow
def test_the_data_path_does_not_eat_memory(spark: SparkSession, estimator: Make) -> None:
    """144 MB of rows on one rank, which reads them from its disk ten times within a fifth of that."""
    from pyspark.sql import functions

    wide = functions.array_repeat(functions.col("id").cast("float") / 300_000, 120)
    frame = spark.range(300_000).select(wide.alias("x"), functions.lit(0.5).cast("float").alias("y"))
    net = nn.Linear(120, 1)
    # Spark uses its Python processes again: another test's modules are no rows of this one.
    before = max(spark.sparkContext.parallelize(range(8), 8).map(lambda _: memory("self")).collect())
    estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
        feature_cols=["x"],
        num_proc=1,
        batch_size=4096,
        epochs=10,
        callbacks=[Measuring(144_000_000, 144_000_000 // 5, before)],
    ).fit(frame)


@pytest.mark.slow
def test_a_large_model(spark: SparkSession, estimator: Make) -> None:
    """72 MB: more than other values of ranks may have."""
    net = nn.Sequential(nn.Embedding(150_000, 120), nn.Linear(120, 1))
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
    frame = spark.createDataFrame([(n, float(n % 2)) for n in range(8)], "item long, y float")
    net[0].requires_grad_(False)
    model = estimator(model=net, optimizer=optimizer, feature_cols=["item"], num_proc=1, epochs=1).fit(frame)
    assert torch.equal(model.getModel()[0].weight, net[0].weight)  # type: ignore[index]


def test_checkpoints_need_no_random_write(tmp_path: Path) -> None:
    """A store gets each checkpoint as one piece."""

    class Whole(FilesystemStore):
        def write(self, path: str, content: bytes) -> None:
            assert isinstance(content, bytes)
            with open(f"{self.prefix_path}/sizes", "a") as file:  # the process that writes is another one
                file.write(f"{len(content)}\n")

    class Spec:
        store = Whole(str(tmp_path))
        run_id, owner = "run", "fit"
        checkpoint_path = store.get_checkpoint_path("run")

    state = {"model": linear().state_dict(), "optimizer": {}}
    with Saver(Spec(), TorchForm()) as saver:  # type: ignore[arg-type]
        saver.save(Checkpoint({}, 1, state, [{"epoch": 0}], None))
    (size,) = (tmp_path / "sizes").read_text().split()
    assert int(size) >= len(pack(state))


def test_what_cannot_be_pickled_is_named(line: DataFrame, estimator: Make) -> None:
    net = linear()
    net.guard = threading.Lock()  # type: ignore[assignment]
    with pytest.raises((PreflightError, DataError), match="lock"):
        estimator(model=net).fit(line)


class Dict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: torch.Tensor) -> Any:
        return {"score": self.inner(x)}


def test_columns_and_parameters_that_do_not_fit_are_refused_in_one_sentence(
    spark: SparkSession, line: DataFrame, estimator: Make
) -> None:
    from pyspark.sql import functions

    stream = spark.readStream.format("rate").load().selectExpr("array(1f, 2f, 3f) AS features", "1f AS y")
    twice = line.select("features", "y", functions.lit(1.0).alias("y"))
    whole = line.withColumn("n", functions.lit(1)).select("n", "y")
    weighted = nn.CrossEntropyLoss(weight=WEIGHTS)
    for frame, changed, words in (
        (stream, {}, "support streaming DataFrames"),
        (twice, {}, "there are 2 columns named 'y'"),
        (whole, {"feature_cols": ["n"], "nulls": 0.5}, r"nulls=0\.5 isn't valid for integer column 'n' \(int\)"),
        (line, {"model": Dict()}, "the model returned a dict of 'score': return a tensor for each label"),
        (line, {"loss": weighted, "sample_weight_col": "w"}, "divides by its classes' weights and sample_weight_col"),
        (line, {"loss_constructors": [nn.MSELoss]}, "loss and loss_constructors can't be combined"),
        (line, {"train_minibatch_fn": print, "mixed_precision": "bf16"}, "train_minibatch_fn does the whole step"),
        (line, {"lr_scheduler": 1}, "lr_scheduler must be one of 'linear', 'cosine', 'constant'"),
    ):
        net = changed.get("model") or linear()
        parameters = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), 0.1), **changed}
        with pytest.raises((DataError, TypeError, ValueError), match=words):
            estimator(**parameters).fit(frame)


def test_fractions_are_not_cut_off() -> None:
    from spark_estimator import TorchModel

    field = Field(("n",), ("c0",), (1,), "int64", ())
    model = TorchModel(
        model=nn.Embedding(5, 1), inputs=[field], outputs=[1], label_types=["float"], label_columns=["y"]
    )
    assert model.predict(numpy.array([1.0, 2.0])).shape == (2, 1)
    words = r"column 'n' holds whole numbers in the first rows, .* row 1 of a batch of rows holds 2\.5"
    with pytest.raises(DataError, match=words):
        model.predict(numpy.array([1.0, 2.5]))
