"""Use case 2: conversations become text, by recurrent layers over cepstral coefficients and the CTC loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from benchmarks.tpcx_ai import sounds
from benchmarks.tpcx_ai.use_case import UseCase, mapped, write_csv

_MOST_LETTERS = 32  # of a transcript
_BATCH = 32  # of all ranks together
_RATE = 0.004
_SENTENCES = """
hello my order is late please help with the refund of this account number i can't pay when does it arrive
thank you for your call we are sorry about that parcel address invoice wrong colour send back tomorrow
"""


class Speech(UseCase):
    """Utterances of a few words, with a sound for each letter.

    As in TPCx-AI, the transcript is an input of the model, which returns the loss, and another model of its layers
    predicts.
    """

    number = 2
    title = "customer conversation transcription"
    measure = "word error rate"
    higher = False
    level = 0.2
    rows = 1_000
    epochs = 10

    def generate(self, folder: Path, rows: int, seed: int) -> None:
        """See `UseCase.generate`: a CSV file of names and transcripts, and a Parquet file of names and WAV files."""
        chance = numpy.random.default_rng(seed)
        words = _SENTENCES.split()
        names: list[str] = []
        contents, table, truth = [], [], []
        while len(names) < rows:
            text = " ".join(chance.choice(words, int(chance.integers(1, 5))))
            if len(text) > _MOST_LETTERS:
                continue
            number = len(names)
            names.append(f"calls/{number:06}.wav")
            contents.append(sounds.spoken(text, chance))
            table.append((number, names[-1], text.capitalize() + "."))
            truth.append((number, text))
        write_csv(folder / "calls.csv", ("id", "file", "transcript"), table, "|")
        write_csv(folder / "truth.csv", ("id", "truth"), truth)
        pyarrow.parquet.write_table(pyarrow.table({"file": names, "content": contents}), folder / "calls.parquet")

    def load(self, spark: Any, folder: Path) -> Any:
        """See `UseCase.load`: the columns `id`, `transcript` and `content`."""
        table = spark.read.csv(str(folder / "calls.csv"), sep="|", header=True, inferSchema=True, quote="")
        return table.join(spark.read.parquet(str(folder / "calls.parquet")), "file").drop("file")

    def preprocess(self, data: Any, work: Path, *, training: bool) -> Any:
        """See `UseCase.preprocess`: `frames`, as many for each row; with transcripts, their letters' numbers,
        too.
        """
        from pyspark.sql import functions

        def flat(content: Any) -> Any:
            import pandas

            return pandas.Series([sounds.coefficients(item).reshape(-1) for item in content])

        values = mapped(flat, "array<float>", "content")
        data = data.withColumn("values", values).withColumn("length", functions.size("values"))
        path = work / "frames.json"
        if training:
            longest = data.agg(functions.max("length")).first()[0]
            path.write_text(json.dumps(longest // sounds.COEFFICIENTS), encoding="utf-8")
        most = json.loads(path.read_text(encoding="utf-8")) * sounds.COEFFICIENTS
        zeros = functions.array_repeat(functions.lit(0.0).cast("float"), most)
        padded = functions.slice(functions.concat("values", zeros), 1, most).alias("frames")
        steps = functions.least(functions.lit(most), "length") / sounds.COEFFICIENTS
        columns = [functions.col("id"), padded, steps.cast("int").alias("steps")]
        if not training:
            return data.select(*columns)
        text = functions.regexp_replace(functions.lower("transcript"), f"[^{sounds.ALPHABET}]", "")
        held = (functions.col("id") % 10 == 0).alias("validation")  # a boolean column chooses the rows
        return data.select(*columns, *_letters(text), held).where(f"letters BETWEEN 1 AND {_MOST_LETTERS}")

    def train(self, data: Any, ranks: int, work: Path) -> None:
        """See `UseCase.train`."""
        import keras
        from horovod.spark.common.store import Store
        from horovod.spark.keras import KerasEstimator

        from benchmarks.tpcx_ai import speech_model

        keras.utils.set_random_seed(2)
        estimator = KerasEstimator(
            num_proc=ranks,
            model=speech_model.training_model(len(data.first()["frames"]) // sounds.COEFFICIENTS, _MOST_LETTERS),
            store=Store.create(str(work / "store")),
            optimizer=keras.optimizers.Adam(_RATE / ranks),  # the estimator multiplies it by the number of processes
            loss=speech_model.mean_of_outputs,
            custom_objects={"mean_of_outputs": speech_model.mean_of_outputs},
            feature_cols=["frames", "transcript", "steps", "letters"],
            label_cols=["transcript"],
            validation="validation",
            batch_size=_BATCH // ranks,
            epochs=self.epochs,
            random_seed=2,
            verbose=0,
        )
        estimator.fit(data).write().overwrite().save(str(work / "model"))

    def serve(self, spark: Any, data: Any, work: Path) -> Any:
        """See `UseCase.serve`."""
        from horovod.spark.keras import KerasModel
        from pyspark.ml.linalg import DenseVector
        from pyspark.sql import functions

        from benchmarks.tpcx_ai import speech_model

        trained = KerasModel.load(str(work / "model"), custom_objects=speech_model.custom_objects())
        facts = {"spark_data_type": DenseVector, "is_sparse_vector_only": False, "shape": None}
        facts |= {"intermediate_format": "array", "max_size": None}
        model = KerasModel(
            model=speech_model.predicting_model(trained.getModel()),
            feature_columns=["frames"],
            label_columns=["transcript"],
            _metadata={"frames": facts, "transcript": facts},
            _floatx="float32",
        )

        @functions.udf("string")
        def text(probabilities: Any, steps: int) -> str:
            matrix = probabilities.toArray().reshape(-1, len(sounds.ALPHABET) + 1)[:steps]
            best = matrix.argmax(1)
            changes = numpy.flatnonzero(numpy.diff(best, prepend=-1))
            return "".join(sounds.ALPHABET[number - 1] for number in best[changes] if number)

        return model.transform(data).select("id", text("transcript__output", "steps").alias("prediction"))

    def score(self, pairs: Sequence[tuple[str, str]]) -> float:
        """See `UseCase.score`: edits of words in all transcripts, divided by the number of words; 0 is best."""
        split = [(truth.split(), predicted.split()) for truth, predicted in pairs]
        return sum(sounds.edits(*words) for words in split) / sum(len(truth) for truth, _ in split)


def _letters(text: Any) -> list[Any]:
    """The columns `transcript`, a sparse vector of the letters' numbers from 1, and `letters`, how many there are."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import functions

    @functions.udf(VectorUDT())
    def numbers(text: str) -> Any:
        known = [sounds.ALPHABET.index(letter) + 1.0 for letter in text[:_MOST_LETTERS]]
        return Vectors.sparse(_MOST_LETTERS, range(len(known)), known)

    return [numbers(text).alias("transcript"), functions.length(text).alias("letters")]
