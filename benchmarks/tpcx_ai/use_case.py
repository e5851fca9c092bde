"""What the use cases share: the order of their phases, and the times and the quality of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.interleaved import BenchmarkError

PHASES = ("load", "preprocessing", "training", "serving")


@dataclass(frozen=True)
class Result:
    """One run of a use case.

    Attributes:
        case: its number in TPCx-AI.
        ranks: processes of the training.
        rows, held_out: rows of the training, and those of the serving, which the training does not see.
        seconds: by phase.
        measure: the name of the quality.
        quality: of the predictions for the held-out rows.
        level: what `quality` has to reach.
    """

    case: int
    ranks: int
    rows: int
    held_out: int
    seconds: dict[str, float]
    measure: str
    quality: float
    level: float


class UseCase(ABC):
    """A program: data in files, preprocessing in Spark, a training with a KerasEstimator, predictions in Spark.

    Attributes:
        number, title: in TPCx-AI.
        measure: the quality, in words.
        higher: whether a higher quality is better.
        level: the quality that a run of `rows` rows and `epochs` epochs has to reach.
        rows: of the training, if the command names no other number.
        epochs: of the training, likewise.

    Args:
        epochs: of the training; None: those of the class.
    """

    number: int
    title: str
    measure: str
    higher: bool
    level: float
    rows: int
    epochs: int

    def __init__(self, epochs: int | None = None) -> None:
        if epochs is not None:
            self.epochs = epochs

    @abstractmethod
    def generate(self, folder: Path, rows: int, seed: int) -> None:
        """Writes `rows` rows into a new folder, and what is to be predicted into `folder`/truth.csv."""

    @abstractmethod
    def load(self, spark: Any, folder: Path) -> Any:
        """A DataFrame of the rows that `generate` wrote."""

    @abstractmethod
    def preprocess(self, data: Any, work: Path, *, training: bool) -> Any:
        """A DataFrame with the columns that the model takes.

        Args:
            work: has the files that the preprocessing for the training wrote.
            training: False: for predictions, from rows without labels.
        """

    @abstractmethod
    def train(self, data: Any, ranks: int, work: Path) -> None:
        """Trains on the preprocessed rows, and saves what `serve` needs in `work`."""

    @abstractmethod
    def serve(self, spark: Any, data: Any, work: Path) -> Any:
        """A DataFrame of predictions for preprocessed rows: columns `id` and `prediction`."""

    @abstractmethod
    def score(self, pairs: Sequence[tuple[str, str]]) -> float:
        """The quality of all predictions.

        Args:
            pairs: of the truth and the prediction, as texts.
        """

    def reaches(self, quality: float) -> bool:
        """Whether a quality is at least the level."""
        return quality >= self.level if self.higher else quality <= self.level

    def run(self, spark: Any, source: Path, work: Path, ranks: int) -> Result:
        """Runs all phases.

        Args:
            source: has the folders `training` and `serving`, which `generate` wrote.
            work: a new folder, for what the phases write.

        Raises:
            BenchmarkError: rows are missing among the predictions.
        """
        seconds: dict[str, float] = {}

        @contextmanager
        def phase(name: str) -> Iterator[None]:
            started = time.perf_counter()
            yield
            seconds[name] = time.perf_counter() - started

        with phase("load"):
            loaded = _stored(self.load(spark, source / "training"), work / "loaded")
        with phase("preprocessing"):
            preprocessed = _stored(self.preprocess(loaded, work, training=True), work / "preprocessed")
        with phase("training"):
            self.train(preprocessed, ranks, work)
        with phase("serving"):
            unseen = self.preprocess(self.load(spark, source / "serving"), work, training=False)
            predictions = _stored(self.serve(spark, unseen, work), work / "predictions")
        truth = spark.read.csv(str(source / "serving" / "truth.csv"), header=True).withColumnRenamed("id", "of")
        pairs = truth.join(predictions, truth["of"] == predictions["id"].cast("string")).select("truth", "prediction")
        scored = [(row[0] or "", str(row[1])) for row in pairs.collect()]
        rows = truth.count()
        if len(scored) != rows:
            raise BenchmarkError(f"{rows} rows were served, and {len(scored)} have a prediction")
        quality = self.score(scored)
        return Result(self.number, ranks, loaded.count(), rows, seconds, self.measure, quality, self.level)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]], separator: str = ",") -> None:
    """Writes a file of values that contain neither separators nor quotation marks."""
    lines = [separator.join(map(str, row)) for row in [header, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mapped(function: Callable[[Any], Any], kind: str, column: str) -> Any:
    """The column of type `kind` that a function of a pandas.Series makes of another."""
    import pandas
    from pyspark.sql.pandas import functions

    def called(values: Any) -> Any:
        return function(values)

    called.__annotations__ = dict.fromkeys(("values", "return"), pandas.Series)  # Spark reads them
    make: Any = functions.pandas_udf
    return make(called, kind)(column)


def _stored(frame: Any, path: Path) -> Any:
    """The rows of a DataFrame, once they are in Parquet files."""
    frame.write.parquet(str(path))
    return frame.sparkSession.read.parquet(str(path))
