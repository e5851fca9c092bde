"""Trains on well-known tables in one process and with `TorchEstimator` on several ranks, and prints their scores.

``python -m examples.tables digits:1,2,3 breast_cancer:2 --rows 2000000``

The tables are scikit-learn's digits, breast_cancer, wine and diabetes, and a generated table of ``--rows`` rows. The
numbers after a table's name are the numbers of ranks. The total batch size, the learning rate, the initial parameters
and the number of steps are the same in all runs. The order of the rows differs, so the scores differ slightly. The
score is the accuracy on held-out rows; for diabetes, whose label is a number, it is R2.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import torch
from sklearn import datasets
from torch import nn

from spark_estimator import TorchEstimator
from spark_estimator.launch.spark.session import find_or_make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Array = numpy.ndarray[Any, Any]
HELD_OUT = 5  # every fifth row is held out for the score
BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")
FEATURES = 20  # of the generated table


@dataclass(frozen=True)
class Table:
    """Training data, and how to train on it.

    Attributes:
        features: [rows, columns] float32, with mean 0 and standard deviation 1.
        labels: [rows] int64 classes, or float32 numbers.
        batch: total batch size of all ranks; divisible by 1, 2, 3 and 4.
        epochs: number of epochs.
    """

    features: Array
    labels: Array
    batch: int
    epochs: int

    @property
    def classes(self) -> int:
        """The number of classes; 0 if the labels are numbers."""
        return int(self.labels.max()) + 1 if self.labels.dtype == numpy.int64 else 0

    def network(self) -> nn.Module:
        """A network with the same initial parameters at each call."""
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(self.features.shape[1], 64), nn.ReLU(), nn.Linear(64, self.classes or 1))

    def loss(self) -> nn.Module:
        """The loss function."""
        return nn.CrossEntropyLoss() if self.classes else nn.MSELoss()

    def parts(self) -> tuple[Table, Table]:
        """The training rows, and the held-out rows."""
        held = numpy.arange(len(self.labels)) % HELD_OUT == 0
        return (
            Table(self.features[~held], self.labels[~held], self.batch, self.epochs),
            Table(self.features[held], self.labels[held], self.batch, self.epochs),
        )

    def score(self, outputs: Array) -> float:
        """The accuracy, or R2 if the labels are numbers.

        Args:
            outputs: [rows, outputs], the model's outputs.
        """
        if self.classes:
            return float((outputs.argmax(1) == self.labels).mean())
        return float(1 - ((outputs[:, 0] - self.labels) ** 2).mean() / self.labels.var())


def table(name: str, rows: int) -> Table:
    """Loads or generates a table.

    Args:
        name: one of `BUNDLED`, or "generated".
        rows: number of rows of the generated table.
    """
    if name == "generated":
        generator = numpy.random.default_rng(0)
        features = generator.standard_normal((rows, FEATURES), numpy.float32)
        value = features[:, 0] * features[:, 1] + numpy.sin(2 * features[:, 2]) + 0.5 * features[:, 3]
        labels = value + 0.2 * generator.standard_normal(rows, numpy.float32) > 0
        return Table(features, labels.astype(numpy.int64), 960, max(1, 200_000 // rows))
    bundle = getattr(datasets, f"load_{name}")()
    order = numpy.random.default_rng(0).permutation(len(bundle.target))
    features = bundle.data[order]
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    target = bundle.target[order]
    if name == "diabetes":
        labels = ((target - target.mean()) / target.std()).astype(numpy.float32)
        return Table(features.astype(numpy.float32), labels, 48, 10)
    return Table(features.astype(numpy.float32), target.astype(numpy.int64), 48, 10)


def alone(whole: Table, rate: float = 0.005) -> float:
    """The score of plain PyTorch in this process."""
    train, held = whole.parts()
    net, loss = train.network(), train.loss()
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    features, labels = torch.from_numpy(train.features), torch.from_numpy(train.labels)
    for _ in range(train.epochs):
        for rows in torch.randperm(len(labels)).split(train.batch):
            optimizer.zero_grad()
            outputs = net(features[rows])
            loss(outputs if train.classes else outputs[:, 0], labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return held.score(net(torch.from_numpy(held.features)).numpy())


def on_ranks(spark: SparkSession, whole: Table, path: str, ranks: int, rate: float = 0.005) -> float:
    """The score of `TorchEstimator` on a DataFrame over a Parquet file.

    Args:
        path: the file with the training rows.
    """
    net = whole.network()
    columns = [f"x{number}" for number in range(whole.features.shape[1])]
    trained = TorchEstimator(
        num_proc=ranks,
        model=net,
        # An estimator's batch size and learning rate are those of one rank.
        optimizer=torch.optim.Adam(net.parameters(), lr=rate / ranks),
        batch_size=whole.batch // ranks,
        loss=whole.loss(),
        feature_cols=columns,
        label_cols=["y"],
        epochs=whole.epochs,
        random_seed=2,
        verbose=0,
    ).fit(spark.read.parquet(path))
    _, held = whole.parts()
    return held.score(numpy.asarray(trained.predict(held.features)))


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[f"{name}:1,2,3" for name in (*BUNDLED, "generated")])
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the generated table")
    options = parser.parse_args(argv)
    cases = {
        name: [int(size) for size in sizes.split(",")]
        for name, _, sizes in (case.partition(":") for case in options.cases)
    }
    if unknown := set(cases) - {*BUNDLED, "generated"}:
        parser.error(f"unknown tables: {', '.join(sorted(unknown))}. Choose from {', '.join(BUNDLED)}, generated.")
    spark = find_or_make_session(max(max(ranks) for ranks in cases.values()))
    for name, sizes in cases.items():
        whole = table(name, options.rows)
        torch.manual_seed(3)
        print(f"{name}: one process {alone(whole):.4f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            train, _ = whole.parts()
            frame = pandas.DataFrame(train.features, columns=[f"x{n}" for n in range(train.features.shape[1])])
            frame.assign(y=train.labels).to_parquet(f"{folder}/rows.parquet")
            for ranks in sizes:
                began = time.monotonic()
                reached = on_ranks(spark, whole, f"{folder}/rows.parquet", ranks)
                print(f"{name}: {ranks} ranks {reached:.4f} ({time.monotonic() - began:.1f} s)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
