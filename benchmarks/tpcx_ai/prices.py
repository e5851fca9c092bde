"""Use case 5: the price of a product from the words of its description, by an embedding and a GRU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from benchmarks.tpcx_ai.use_case import UseCase, mapped, write_csv

_WORDS = 24  # of a sequence: longer texts lose their beginning
_KINDS = 40
_BRANDS = 25
_QUALITIES = 12
_FILLERS = 200
_BATCH = 512  # of all ranks together
_RATE = 0.004
_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "ti", "vo", "xe", "zu")


class Prices(UseCase):
    """A description names a kind of product, a brand and a quality, in any order and between words without meaning.

    The price is the product of their factors and of a random one, whose logarithm has the deviation 0.1: no model can
    have an error below 0.01.
    """

    number = 5
    title = "price prediction"
    measure = "mean squared logarithmic error"
    higher = False
    level = 0.05
    rows = 20_000
    epochs = 8

    def generate(self, folder: Path, rows: int, seed: int) -> None:
        """See `UseCase.generate`: a CSV file without quotation, separated by ``|``."""
        fixed = numpy.random.default_rng(5)  # the shop is the same for both sets of rows
        words = fixed.permutation([a + b + c for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES])
        kinds, brands, qualities, fillers, _ = numpy.split(words, numpy.cumsum([_KINDS, _BRANDS, _QUALITIES, _FILLERS]))
        factors = [
            fixed.uniform(numpy.log(5), numpy.log(200), _KINDS),
            fixed.normal(0, 0.5, _BRANDS),
            fixed.normal(0, 0.3, _QUALITIES),
        ]
        chance = numpy.random.default_rng(seed)
        table, truth = [], []
        for number in range(rows):
            chosen = [int(chance.integers(len(values))) for values in factors]
            logarithm = sum(values[place] for values, place in zip(factors, chosen, strict=True))
            price = f"{float(numpy.exp(logarithm + chance.normal(0, 0.1))):.2f}"
            text = [kinds[chosen[0]], brands[chosen[1]], qualities[chosen[2]]]
            text += list(chance.choice(fillers, int(chance.integers(5, _WORDS))))
            table.append((number, price, " ".join(chance.permutation(text)).capitalize() + "."))
            truth.append((number, price))
        write_csv(folder / "products.csv", ("id", "price", "description"), table, "|")
        write_csv(folder / "truth.csv", ("id", "truth"), truth)

    def load(self, spark: Any, folder: Path) -> Any:
        """See `UseCase.load`: the columns `id`, `price` and `description`."""
        return spark.read.csv(str(folder / "products.csv"), sep="|", header=True, inferSchema=True, quote="")

    def preprocess(self, data: Any, work: Path, *, training: bool) -> Any:
        """See `UseCase.preprocess`: `words`, the numbers of a text's last words behind zeros."""
        from pyspark.ml.feature import RegexTokenizer
        from pyspark.sql import functions

        tokens = RegexTokenizer(inputCol="description", outputCol="tokens", pattern="\\W").transform(data)
        path = work / "vocabulary.json"
        if training:
            distinct = tokens.select(functions.explode("tokens").alias("token")).distinct().collect()
            path.write_text(json.dumps(sorted(row[0] for row in distinct)), encoding="utf-8")
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        numbers = {word: number for number, word in enumerate(vocabulary, 2)}  # 0: no word; 1: an unknown one

        def padded(tokens: Any) -> Any:
            import pandas

            rows = []
            for words in tokens:
                known = [numbers.get(word, 1) for word in words[-_WORDS:]]
                rows.append([0] * (_WORDS - len(known)) + known)
            return pandas.Series(rows)

        columns = ["id", *(["price"] if training else [])]
        return tokens.select(*columns, mapped(padded, "array<int>", "tokens").alias("words"))

    def train(self, data: Any, ranks: int, work: Path) -> None:
        """See `UseCase.train`."""
        import keras
        from horovod.spark.common.store import Store
        from horovod.spark.keras import KerasEstimator

        keras.utils.set_random_seed(5)
        size = len(json.loads((work / "vocabulary.json").read_text(encoding="utf-8")))
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((_WORDS,), dtype="int32"),
                layers.Embedding(size + 2, 64),
                layers.GRU(32),
                layers.Dense(64, activation="relu"),
                layers.Dense(1, activation="exponential"),
            ]
        )
        estimator = KerasEstimator(
            num_proc=ranks,
            model=model,
            store=Store.create(str(work / "store")),
            optimizer=keras.optimizers.Adam(_RATE / ranks),  # the estimator multiplies it by the number of processes
            loss="mean_squared_logarithmic_error",
            feature_cols=["words"],
            label_cols=["price"],
            batch_size=_BATCH // ranks,
            epochs=self.epochs,
            random_seed=5,
            verbose=0,
        )
        estimator.fit(data).write().overwrite().save(str(work / "model"))

    def serve(self, spark: Any, data: Any, work: Path) -> Any:
        """See `UseCase.serve`."""
        from horovod.spark.keras import KerasModel

        model = KerasModel.load(str(work / "model"))
        return model.transform(data).selectExpr("id", "greatest(price__output, 0) AS prediction")

    def score(self, pairs: Sequence[tuple[str, str]]) -> float:
        """See `UseCase.score`: 0 is best."""
        truth, predicted = numpy.log1p(numpy.array(pairs, numpy.float64).T)
        return float(((truth - predicted) ** 2).mean())
