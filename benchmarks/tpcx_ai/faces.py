"""Use case 9: who is in a picture, by an embedding of the aligned face and a classifier of the embeddings."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from benchmarks.tpcx_ai.use_case import UseCase, mapped, write_csv

_PICTURE = 64  # pixels a side
_FACE = 32  # pixels a side, once it is aligned
_VALUES = 64  # of an embedding
_PEOPLE = 24
_MARGIN = 0.2  # of the triplet loss
_BATCH = 128  # of all ranks together
_RATE = 0.002


class Person:
    """The traits of a face: sizes as shares of the face's size, and colours.

    Args:
        number: of the person, which determines the traits.
    """

    def __init__(self, number: int) -> None:
        chance = numpy.random.default_rng([9, number])
        self.width = chance.uniform(0.72, 0.95)
        self.eyes_apart = chance.uniform(0.15, 0.3)
        self.eye_height = chance.uniform(0.32, 0.45)
        self.eye_size = chance.uniform(0.04, 0.08)
        self.brow = chance.uniform(0.06, 0.14)
        self.nose = chance.uniform(0.1, 0.25)
        self.mouth_width = chance.uniform(0.12, 0.3)
        self.mouth_height = chance.uniform(0.68, 0.82)
        self.lips = chance.uniform(0.02, 0.06)
        self.hairline = chance.uniform(0.08, 0.26)
        self.skin = chance.choice([[216, 174, 146], [160, 116, 88]])
        self.hair = chance.choice([[60, 40, 28], [110, 76, 40]])

    def picture(self, chance: numpy.random.Generator) -> Any:
        """[_PICTURE, _PICTURE, 3] bytes: the face somewhere, tilted, in some size and light, with noise."""
        size = chance.uniform(0.55, 0.8) * _PICTURE
        left, top = chance.uniform(1, _PICTURE - size - 1, 2)
        across, down = numpy.meshgrid((numpy.arange(_PICTURE) - left) / size, (numpy.arange(_PICTURE) - top) / size)
        tilt = chance.uniform(-0.25, 0.25)
        across, down = across - 0.5, down - 0.5
        across, down = (
            across * numpy.cos(tilt) - down * numpy.sin(tilt),
            across * numpy.sin(tilt) + down * numpy.cos(tilt) + 0.5,
        )
        image = numpy.empty((_PICTURE, _PICTURE, 3))
        # A background is bluish, and a face is not: that is how it can be located.
        red, green = chance.uniform(20, 110, 2)
        image[:] = red, green, red + chance.uniform(40, 100)
        head = (across / (self.width / 2)) ** 2 + ((down - 0.5) / 0.5) ** 2 < 1
        image[head] = self.skin
        image[head & (down < self.hairline)] = self.hair
        smile = chance.uniform(-0.03, 0.03)
        for side in (-1, 1):
            away = across - side * self.eyes_apart
            eye = away**2 + (down - self.eye_height) ** 2 < self.eye_size**2
            image[head & eye] = [250, 245, 240]
            image[head & (away**2 + (down - self.eye_height) ** 2 < (self.eye_size / 2) ** 2)] = [40, 26, 20]
            brow = (abs(away) < 0.09) & (abs(down - self.eye_height + self.brow) < 0.018)
            image[head & brow] = self.hair
        middle = self.eye_height + 0.08 + self.nose / 2
        image[head & (abs(across) < 0.025) & (abs(down - middle) < self.nose / 2)] *= 0.75
        curve = down - self.mouth_height + smile * (across / self.mouth_width) ** 2
        image[head & (abs(across) < self.mouth_width) & (abs(curve) < self.lips)] = [176, 60, 56]
        light = chance.uniform(0.5, 1.15) + chance.uniform(-0.4, 0.4) * across[..., None]
        return numpy.clip(image * light + chance.normal(0, 14, image.shape), 0, 255).astype(numpy.uint8)


def aligned(picture: Any) -> Any:
    """[_FACE, _FACE, 3] numbers from 0 to 1: the box around a picture's face in the size of all faces.

    The face is what is more red than blue in the mean of 3 x 3 pixels, where rows and columns have
    more than four such pixels.
    """
    from PIL import Image

    colours = picture.astype(numpy.float32)
    warm = numpy.pad(colours[..., 0] - colours[..., 2], 1, mode="edge")
    smooth = sum(warm[y : y + _PICTURE, x : x + _PICTURE] for y in range(3) for x in range(3)) / 9
    mask: Any = smooth > 5
    rows, columns = (numpy.flatnonzero(mask.sum(axis) > 4) for axis in (1, 0))
    box = (0, 0, _PICTURE, _PICTURE)
    if len(rows) and len(columns):
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    image = Image.fromarray(picture).resize((_FACE, _FACE), Image.Resampling.BILINEAR, box=box)
    return numpy.asarray(image, numpy.float32) / 255


def triplet_loss(labels: Any, embeddings: Any) -> Any:
    """[rows] by how much faces of the same person are not closer than faces of others, with a margin.

    It is the mean over those pairs of faces, one of the same person and one of another, that are not.

    Args:
        labels: [rows, _VALUES] the number of the person, first.
        embeddings: [rows, _VALUES] of length 1.
    """
    from keras import ops

    people = ops.cast(labels[:, :1], "float32")
    same = ops.cast(ops.equal(people, ops.transpose(people)), "float32")
    apart = 2.0 - 2.0 * ops.matmul(embeddings, ops.transpose(embeddings))
    place = ops.cumsum(ops.ones_like(people), axis=0)
    itself = ops.cast(ops.equal(place, ops.transpose(place)), "float32")
    pairs = (same - itself)[:, :, None] * (1.0 - same[:, None, :])
    losses = ops.relu(apart[:, :, None] - apart[:, None, :] + _MARGIN) * pairs
    count = ops.sum(ops.cast(losses > 0, "float32"), axis=(1, 2))
    return ops.sum(losses, axis=(1, 2)) / ops.maximum(count, 1.0)


class Faces(UseCase):
    """Pictures of some people, drawn from their traits; each is seen many times in the training.

    As in TPCx-AI, the labels of the triplet loss are vectors as long as the embeddings, and the classifier of the
    embeddings is Spark ML's logistic regression.
    """

    number = 9
    title = "facial recognition"
    measure = "accuracy"
    higher = True
    level = 0.9
    rows = 1_440
    epochs = 12

    def generate(self, folder: Path, rows: int, seed: int) -> None:
        """See `UseCase.generate`: a CSV file of names and people, and a Parquet file of names and PNG files."""
        from PIL import Image

        chance = numpy.random.default_rng(seed)
        people = [Person(number) for number in range(_PEOPLE)]
        names, contents, table, truth = [], [], [], []
        for number in range(rows):
            who = number % _PEOPLE
            file = io.BytesIO()
            Image.fromarray(people[who].picture(chance)).save(file, "PNG")
            names.append(f"pictures/{number:06}.png")
            contents.append(file.getvalue())
            table.append((number, names[-1], f"person {who:02}"))
            truth.append((number, f"person {who:02}"))
        write_csv(folder / "people.csv", ("id", "file", "identity"), table)
        write_csv(folder / "truth.csv", ("id", "truth"), truth)
        pyarrow.parquet.write_table(pyarrow.table({"file": names, "content": contents}), folder / "pictures.parquet")

    def load(self, spark: Any, folder: Path) -> Any:
        """See `UseCase.load`: the columns `id`, `identity` and `content`."""
        pictures = spark.read.parquet(str(folder / "pictures.parquet"))
        table = spark.read.csv(str(folder / "people.csv"), header=True, inferSchema=True)
        return table.join(pictures, "file").select("id", "identity", "content")

    def preprocess(self, data: Any, work: Path, *, training: bool) -> Any:
        """See `UseCase.preprocess`: `face`, and `person`, the number of the person and zeros; both are vectors."""
        from pyspark.ml.feature import StringIndexer
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions

        def faces(content: Any) -> Any:
            import pandas
            from PIL import Image

            images = (numpy.asarray(Image.open(io.BytesIO(item)).convert("RGB")) for item in content)
            return pandas.Series([aligned(image).reshape(-1) for image in images])

        face = array_to_vector(mapped(faces, "array<double>", "content")).alias("face")
        if not training:
            return data.select("id", face)
        indexed = StringIndexer(inputCol="identity", outputCol="index").fit(data).transform(data)
        zeros = functions.array_repeat(functions.lit(0.0), _VALUES - 1)
        person = array_to_vector(functions.concat(functions.array("index"), zeros)).alias("person")
        return indexed.select("id", "identity", face, person)

    def train(self, data: Any, ranks: int, work: Path) -> None:
        """See `UseCase.train`: the embedding, then the classifier of the embeddings."""
        import keras
        from horovod.spark.common.store import Store
        from horovod.spark.keras import KerasEstimator
        from pyspark.ml import Pipeline
        from pyspark.ml.classification import LogisticRegression
        from pyspark.ml.feature import StringIndexer

        keras.utils.set_random_seed(9)
        estimator = KerasEstimator(
            num_proc=ranks,
            model=network(),
            store=Store.create(str(work / "store")),
            optimizer=keras.optimizers.Adam(_RATE / ranks),  # the estimator multiplies it by the number of processes
            loss=triplet_loss,
            custom_objects={"triplet_loss": triplet_loss},
            feature_cols=["face"],
            label_cols=["person"],
            batch_size=_BATCH // ranks,
            epochs=self.epochs,
            random_seed=9,
            verbose=0,
        )
        embedding = estimator.fit(data).setOutputCols(["embedding"])
        embedding.write().overwrite().save(str(work / "embedding"))
        stages: list[Any] = [
            StringIndexer(inputCol="identity", outputCol="label"),
            LogisticRegression(featuresCol="embedding", labelCol="label"),
        ]
        classifier = Pipeline(stages=stages).fit(embedding.transform(data))
        classifier.write().overwrite().save(str(work / "classifier"))

    def serve(self, spark: Any, data: Any, work: Path) -> Any:
        """See `UseCase.serve`."""
        from horovod.spark.keras import KerasModel
        from pyspark.ml import PipelineModel
        from pyspark.ml.feature import IndexToString

        embedding = KerasModel.load(str(work / "embedding"), custom_objects={"triplet_loss": triplet_loss})
        stages: list[Any] = PipelineModel.load(str(work / "classifier")).stages
        indexer, classifier = stages
        classified = classifier.transform(embedding.transform(data))
        names = IndexToString(inputCol="prediction", outputCol="name", labels=indexer.labels)
        return names.transform(classified).selectExpr("id", "name AS prediction")

    def score(self, pairs: Sequence[tuple[str, str]]) -> float:
        """See `UseCase.score`: the share of faces with the right name."""
        return sum(truth == predicted for truth, predicted in pairs) / len(pairs)


def network() -> Any:
    """The embedding of a face: convolutions, and a vector of length 1."""
    import keras

    layers = keras.layers
    stages: list[Any] = [keras.Input((_FACE, _FACE, 3))]
    for filters in (16, 32, 64):
        stages += [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.MaxPooling2D(),
        ]
    return keras.Sequential([*stages, layers.Flatten(), layers.Dense(_VALUES), layers.UnitNormalization()])
