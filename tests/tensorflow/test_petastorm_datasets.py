"""Petastorm's names for TensorFlow: datasets of a converter and of readers, on two ranks; tensors of a graph."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.tensorflow.rank_pool import RankPool


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Eleven rows in row groups of four: numbers, pairs, texts, days, moments, decimals, and nulls."""
    rows = range(11)
    table = pyarrow.table(
        {
            "n": pyarrow.array(rows, pyarrow.int32()),
            "small": pyarrow.array(rows, pyarrow.uint16()),
            "x": [n / 2 for n in rows],
            "pair": pyarrow.array([[n, -n] for n in rows], pyarrow.list_(pyarrow.float32())),
            "true": [n % 2 == 0 for n in rows],
            "text": [f"é{n}" for n in rows],
            "day": [datetime.date(1970, 1, 1 + n) for n in rows],
            "time": pyarrow.array([datetime.datetime(1970, 1, 1, second=n) for n in rows], pyarrow.timestamp("us")),
            "price": [Decimal(n) + Decimal("0.50") for n in rows],
            "hole": [None if n == 3 else n for n in rows],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    return str(tmp_path)


def test_a_converter_s_dataset_on_two_ranks(two_ranks: RankPool, folder: str) -> None:
    def work(rank: int, folder: str) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.data.petastorm import TransformSpec, make_spark_converter

        converter = make_spark_converter(folder)
        shard = {"cur_shard": hvd.rank(), "shard_count": hvd.size()}
        with converter.make_tf_dataset(4, num_epochs=2, schema_fields=["n", "pair"], prefetch=1, **shard) as dataset:
            batches = list(dataset)
            element = dataset.element_spec
        assert element._fields == ("n", "pair") and element.n.shape.as_list() == [None]
        assert all(bool(tf.reduce_all(batch.pair[:, 1] == -tf.cast(batch.n, tf.float32))) for batch in batches)
        # Texts are read from row groups, and mixed by the queue; an endless dataset ends with its with block.
        spec = TransformSpec(
            lambda frame: frame.assign(pair=frame["pair"].map(lambda pair: pair.reshape(1, 2))),
            [("pair", numpy.float32, (1, 2), False)],
        )
        names = ["pair", "text"]
        with converter.make_tf_dataset(
            4, schema_fields=names, transform_spec=spec, shuffling_queue_capacity=5, **shard
        ) as dataset:
            taken = list(dataset.take(5))
        assert [batch.pair.shape.as_list() for batch in taken] == [[4, 1, 2]] * 5
        texts = [text.decode() for batch in taken for text in batch.text.numpy()]
        return (
            [len(batch.n) for batch in batches],
            [n for b in batches for n in b.n.numpy().tolist()],
            sorted(set(texts)),
        )

    (sizes, rows, texts), (other_sizes, other_rows, other_texts) = two_ranks.run(work, folder)
    # Six rows and five: the second rank has five and five, and as many batches.
    assert (sizes, other_sizes) == ([4, 4, 4], [4, 4, 2])
    assert sorted(rows + other_rows) == sorted(list(range(11)) * 2)
    assert sorted(texts + other_texts) == sorted(f"é{n}" for n in range(11))


def test_types_and_datasets_of_readers(two_ranks: RankPool, folder: str) -> None:
    def work(rank: int, folder: str) -> Any:
        import warnings

        import tensorflow as tf

        from spark_estimator.data.petastorm import make_batch_reader, make_petastorm_dataset, make_reader

        names = ["n", "small", "x", "pair", "true", "text", "day", "time", "price"]
        order = {"shuffle_row_groups": False}
        with make_batch_reader(folder, names, **order) as reader:
            first, *rest = make_petastorm_dataset(reader)
        types = {name: (value.dtype.name, value.shape.as_list()) for name, value in first._asdict().items()}
        assert [len(batch.n) for batch in rest] == [4, 3]
        values = {name: getattr(first, name)[1].numpy() for name in names[5:]}
        with make_reader(folder, names, **order) as reader:
            dataset = make_petastorm_dataset(reader)
            rows = list(dataset)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                assert len(list(dataset)) == 11
        assert any("reads all epochs of the reader again" in str(warning.message) for warning in warned)
        assert rows[1].pair.shape.as_list() == [2] and rows[1].text.numpy().decode() == "é1"
        with make_reader(folder, ["hole"], **order) as reader:
            try:
                list(make_petastorm_dataset(reader))
            except tf.errors.InvalidArgumentError as error:
                return types, values, str(error)
        return None

    types, values, message = two_ranks.run(work, folder)[0]
    assert types == {
        "n": ("int32", [4]),
        "small": ("int32", [4]),
        "x": ("float64", [4]),
        "pair": ("float32", [4, 2]),
        "true": ("bool", [4]),
        "text": ("string", [4]),
        "day": ("int64", [4]),
        "time": ("int64", [4]),
        "price": ("string", [4]),
    }
    assert values == {"text": "é1".encode(), "day": 86400 * 10**9, "time": 10**9, "price": b"1.5"}
    assert "column 'hole' holds null, and TensorFlow's tensors have none" in message


def test_a_keras_model_on_a_dataset(two_ranks: RankPool, folder: str) -> None:
    def work(rank: int, folder: str) -> Any:
        import keras
        import tensorflow as tf

        from spark_estimator.data.petastorm import make_spark_converter

        assert keras.backend.backend() == "tensorflow"
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        converter = make_spark_converter(folder)
        with converter.make_tf_dataset(4, schema_fields=["pair", "x"], cur_shard=rank, shard_count=2) as dataset:
            data = dataset.map(lambda batch: (batch.pair, tf.reshape(batch.x, [-1, 1])))
            history = model.fit(data, steps_per_epoch=3, epochs=2, verbose=0)
        return len(history.history["loss"])

    assert two_ranks.run(work, folder) == [2, 2]


def test_tensors_of_a_graph(two_ranks: RankPool, folder: str) -> None:
    def work(rank: int, folder: str) -> Any:
        import tensorflow as tf

        from spark_estimator.data.petastorm import make_batch_reader, make_reader, tf_tensors

        with pytest.raises(RuntimeError, match=r"use make_petastorm_dataset\(reader\)"):
            tf_tensors(make_reader(folder, ["n"]))
        v1 = tf.compat.v1
        rows = []
        with tf.Graph().as_default(), v1.Session() as session, make_reader(folder, ["n", "text"]) as reader:
            row = tf_tensors(reader, shuffling_queue_capacity=6, min_after_dequeue=2)
            coordinator = v1.train.Coordinator()
            threads = v1.train.start_queue_runners(session, coordinator)
            with pytest.raises(tf.errors.OutOfRangeError):
                while True:
                    rows.append(session.run(row))
            coordinator.request_stop()
            coordinator.join(threads)
        with tf.Graph().as_default(), v1.Session() as session, make_batch_reader(folder, ["n"]) as reader:
            with pytest.raises(ValueError, match="shuffling_queue_capacity is for readers of rows"):
                tf_tensors(reader, 10)
            batch = tf_tensors(reader)
            assert batch.n.shape.as_list() == [None] and len(session.run(batch).n) in (3, 4)
        return sorted(int(row.n) for row in rows), rows[0]._fields

    assert two_ranks.run(work, folder) == [(list(range(11)), ("n", "text"))] * 2
