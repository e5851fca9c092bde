"""Petastorm's names over this package: the converter, on Spark and in a job; a data set that petastorm wrote."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import (
    DataLoader,
    SparkDatasetConverter,
    make_batch_reader,
    make_reader,
    make_spark_converter,
)
from spark_estimator.data.petastorm import handover as petastorm_handover
from spark_estimator.data.petastorm.reader import Reader, chosen
from spark_estimator.data.petastorm.schema import fields_of
from spark_estimator.errors import DataError, PythonEnvironmentError
from tests.ranks import run_ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Ten rows by petastorm 0.13.1 on PySpark 3.5.9: id and y = id / 2; matrix [2, 3] (.npy) and packed [2] (.npz) of id;
# image [3, 4, 3] (PNG).
WRITTEN = Path(__file__).parent / "petastorm_written"


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """25 rows in two files: n = 0, 1, ... of each width, their halves, and pairs of them."""
    for start, stop in ((0, 11), (11, 25)):
        n = list(range(start, stop))
        table = pyarrow.table(
            {
                "n": pyarrow.array(n, pyarrow.int32()),
                "small": pyarrow.array(n, pyarrow.int8()),
                "even": [one % 2 == 0 for one in n],
                "half": [one / 2 for one in n],
                "pair": pyarrow.array([[one, -one] for one in n], pyarrow.list_(pyarrow.float32())),
                "name": [str(one) for one in n],
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / f"{start}.parquet", row_group_size=4)
    return f"file://{tmp_path}"


def sizes_and_rows(loader: Any, column: str = "n") -> tuple[list[int], list[float]]:
    batches = [batch[column] for batch in loader]
    return [len(one) for one in batches], torch.cat(batches).tolist()


def test_batches_have_petastorm_s_types_and_run_on_from_epoch_to_epoch(numbers: str) -> None:
    columns = ["n", "small", "even", "half", "pa.r"]
    reader = make_reader(numbers, schema_fields=columns, num_epochs=3, seed=1)
    with DataLoader(reader, batch_size=10) as loader:
        batches = list(loader)
        assert len(loader) == 8 == len(batches)
        again = [batch["n"] for batch in loader]
    types = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in batches[0].items()}
    assert types == {
        "n": (torch.int32, [10]),
        "small": (torch.int8, [10]),
        "even": (torch.uint8, [10]),
        "half": (torch.float64, [10]),
        "pair": (torch.float32, [10, 2]),
    }
    n = torch.cat([batch["n"] for batch in batches])
    epochs = [n[start : start + 25].tolist() for start in (0, 25, 50)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(one) for one in [*epochs, torch.cat(again)[:25].tolist()]}) == 4
    for batch in batches:
        assert torch.equal(batch["half"], batch["n"] / 2) and torch.equal(batch["pair"][:, 1], -batch["n"].float())
        batch["n"] += 1  # a copy


@pytest.mark.parametrize(("shards", "batch_size", "epochs"), [(1, 25, 1), (3, 8, 1), (2, 4, 1), (7, 3, 4), (4, 64, 3)])
def test_shards_are_equal_and_have_as_many_batches(numbers: str, shards: int, batch_size: int, epochs: int) -> None:
    found = []
    lengths = set()
    for shard in range(shards):
        arguments = {"num_epochs": epochs, "cur_shard": shard, "shard_count": shards, "seed": 5}
        loader = DataLoader(make_reader(numbers, ["n"], **arguments), batch_size)
        sizes, rows = sizes_and_rows(loader)
        own = epochs * loader.reader.rows
        assert len(sizes) == len(loader) and all(size == batch_size for size in sizes[: own // batch_size])
        found += rows[:own]
        assert len(rows) <= own + len(sizes) - own // batch_size
        lengths.add(len(sizes))
    assert len(lengths) == 1
    assert sorted(found) == sorted(list(range(25)) * epochs)


def test_order_seed_and_no_end(numbers: str) -> None:
    plain = {"shuffle_row_groups": False}
    assert sizes_and_rows(DataLoader(make_reader(numbers, ["n"], **plain), 9)) == ([9, 9, 7], list(range(25)))
    one, other = (sizes_and_rows(DataLoader(make_reader(numbers, ["n"], seed=seed), 9))[1] for seed in (1, 2))
    assert one != other and one == sizes_and_rows(DataLoader(make_reader(numbers, ["n"], seed=1), 9))[1]
    endless = DataLoader(make_reader(numbers, ["n"], num_epochs=None), 10)
    rows = torch.cat([batch["n"] for _, batch in zip(range(10), endless, strict=False)]).tolist()
    assert sorted(rows) == sorted(list(range(25)) * 4)
    with pytest.raises(TypeError, match="num_epochs=None there is no end"):
        len(endless)
    doubled = DataLoader(make_reader(numbers, ["n"]), 25, transform_fn=lambda array: torch.as_tensor(array * 2))
    assert sorted(sizes_and_rows(doubled)[1]) == list(range(0, 50, 2))


def test_a_reader_gives_rows_and_one_of_batches_many_at_a_time(numbers: str) -> None:
    """Each shard its own rows, once for each epoch, in the types of batches."""
    columns = {"schema_fields": ["n", "half", "pair"], "seed": 1, "num_epochs": 2}
    found = []
    for shard in range(2):
        reader = make_reader(numbers, cur_shard=shard, shard_count=2, **columns)
        rows = list(reader)
        assert len(rows) == 2 * reader.rows and len(list(reader)) == len(rows)
        assert all(row.half == row.n / 2 and row.pair.tolist() == [row.n, -row.n] for row in rows)
        found += [row.n.item() for row in rows]
    assert sorted(found) == sorted(list(range(25)) * 2)
    assert (type(rows[0].n), type(rows[0].half), rows[0].pair.dtype) == (numpy.int32, numpy.float64, numpy.float32)
    (batch,) = make_batch_reader(numbers, **columns)
    assert sorted(batch.n.tolist()) == sorted(found) and batch.pair.shape == (50, 2)
    endless = iter(make_reader(numbers, ["n"], num_epochs=None))
    assert len([next(endless) for _ in range(60)]) == 60


def test_what_is_refused(numbers: str) -> None:
    def refused(kind: type[Exception], text: str, **arguments: Any) -> None:
        with pytest.raises(kind, match=text):
            make_reader(numbers, ["n"], **arguments)

    refused(ValueError, "cur_shard=1 and shard_count=None: give both", cur_shard=1)
    refused(ValueError, "cur_shard=2: shards are numbered from 0", cur_shard=2, shard_count=2)
    refused(ValueError, "num_epochs is at least 1", num_epochs=0)
    refused(DataError, "25 rows cannot be shared out among 26 shards", cur_shard=0, shard_count=26)
    refused(ValueError, "predicate is not there; filter the DataFrame", predicate=len)
    refused(TypeError, "unexpected keyword argument 'num_epoch'", num_epoch=1)
    with pytest.raises(DataError, match=r"schema_fields: 'x' is no column of 'n', 'small'"):
        make_reader(numbers, ["x"])
    with pytest.raises(DataError, match=r"schema_fields: 'N' is no column of .*Did you mean 'n'\?"):
        make_reader(numbers, ["N"])
    for use in (lambda reader: DataLoader(reader, 4), list):
        with pytest.raises(DataError, match=r"'name' is of type string.*StringIndexer"):
            use(make_reader(numbers))
    with pytest.warns(UserWarning, match="hdfs_driver, results_queue_size: petastorm's, and without effect"):
        make_reader(numbers, ["n"], hdfs_driver="libhdfs", results_queue_size=3, cache_type=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_reader(numbers, ["n"], hdfs_driver="libhdfs")
    assert chosen(["a.b", "axb"], ["a.b"]) == ["a.b", "axb"], "a regular expression, as in petastorm"


def test_a_data_set_that_petastorm_wrote() -> None:
    folder = str(WRITTEN)
    with DataLoader(make_reader(folder, ["id", "y"], seed=3), 10) as loader:
        (batch,) = loader
    assert sorted(batch["id"].tolist()) == list(range(10)) and torch.equal(batch["y"], batch["id"] / 2)
    with pytest.raises(DataError, match=r"binary columns of 'matrix', 'packed', .*trust=True"):
        make_reader(folder, ["id", "matrix", "packed"])
    reader = make_reader(folder, ["id", "matrix", "packed"], trust=True, cur_shard=1, shard_count=2)
    (batch,) = DataLoader(pickle.loads(pickle.dumps(reader)), 10)
    assert (batch["matrix"].shape, batch["matrix"].dtype) == ((5, 2, 3), torch.float32)
    for n, matrix, packed in zip(batch["id"], batch["matrix"], batch["packed"], strict=True):
        assert torch.equal(matrix, torch.arange(6).reshape(2, 3) + n) and packed.tolist() == [n, -n]
    assert batch["packed"].dtype == torch.int64


def test_images_are_decoded_or_the_error_says_what_to_install() -> None:
    try:
        (batch,) = DataLoader(make_reader(str(WRITTEN), ["id", "image"], trust=True), 10)
    except DataError as error:
        assert "column 'image' holds PNG or JPEG images, and nothing here reads them: pip install pillow" in str(error)
        return
    assert batch["image"].dtype == torch.uint8
    for n, image in zip(batch["id"], batch["image"], strict=True):
        assert torch.equal(image.int(), torch.arange(36).reshape(3, 4, 3) + n)


def test_values_that_do_not_fit_the_schema(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, tmp_path / "set")
    part = tmp_path / "set" / "part-00001.parquet"
    table = pyarrow.parquet.read_table(part)

    def with_second(value: bytes | None) -> str:
        values = table.column("matrix").to_pylist()
        values[1] = value
        changed = table.set_column(2, pyarrow.field("matrix", pyarrow.binary()), [values])
        pyarrow.parquet.write_table(changed, part)
        with pytest.raises(DataError) as refused:
            list(DataLoader(make_reader(str(tmp_path / "set"), ["matrix"], trust=True, shuffle_row_groups=False), 4))
        return str(refused.value)

    def npy(array: Any) -> bytes:
        numpy.save(tmp_path / "one.npy", array, allow_pickle=True)
        return (tmp_path / "one.npy").read_bytes()

    assert "column 'matrix' holds null in row 6" in with_second(None)
    assert "float32 and shape [3, 2] in row 6 of this share, and float32 [2, 3] in the first" in with_second(
        npy(numpy.zeros((3, 2), numpy.float32))
    )
    assert "row 6 of this share, cannot be decoded" in with_second(b"no array")
    assert "cannot be decoded: Object arrays cannot be loaded" in with_second(npy(numpy.array([print], object)))


class Runs:
    """A pickle that calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_hostile_schema_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "it_ran"
    for hostile in (Runs(eval, f"open({str(trace)!r}, 'w')"), Runs(numpy.load, str(trace)), Runs(getattr, 1, "real")):
        with pytest.raises(DataError, match=r"folder: petastorm's schema .* it names .* which no schema of petastorm"):
            fields_of(pickle.dumps(OrderedDict(a=hostile), protocol), "folder")
    for strange in (b"", b"no pickle", pickle.dumps(OrderedDict(), protocol), pickle.dumps(print, protocol)):
        with pytest.raises(DataError, match="folder: petastorm's schema is not one that can be opened"):
            fields_of(strange, "folder")
    assert not trace.exists()


def test_petastorm_itself_only_where_it_works(numbers: str) -> None:
    works = {"petastorm": "0.13.1", "pyarrow": "14.0.2", "numpy": "1.26.4", "pandas": "2.2.3"}
    assert petastorm_handover.refusal(works.get, (3, 11)) is None
    newer = {**works, "pyarrow": "26.0.1"}
    text = petastorm_handover.refusal(newer.get, (3, 12))
    assert text is not None and "does not work with Python, pyarrow as installed here (Python 3.12, " in text
    assert "pyarrow 26.0.1" in text and "it needs Python 3.10 or 3.11 with petastorm 0.13.1, pyarrow 14.0.2" in text
    if petastorm_handover.refusal(petastorm_handover._installed, (3, 11)) is not None:
        converter = make_spark_converter(numbers)
        with pytest.raises(PythonEnvironmentError, match=r"petastorm \(not installed\).*leave out reader='petastorm'"):
            converter.make_torch_dataloader(reader="petastorm", schema_fields=["n"])
    with pytest.raises(ValueError, match="reader is 'native' or 'petastorm'"):
        make_spark_converter(numbers).make_torch_dataloader(reader="other")


def test_a_converter_of_files_and_of_any_other_plan(spark: SparkSession, numbers: str, tmp_path: Path) -> None:
    from pyspark.ml.feature import VectorAssembler

    files = make_spark_converter(spark.read.parquet(numbers))
    assert (len(files), files.dataset_size, files.cache_dir_url) == (25, 25, numbers)
    assert files.file_urls == [f"{numbers}/0.parquet", f"{numbers}/11.parquet"]
    with pytest.raises(DataError, match=r"'name' is of type string.*schema_fields=\['n', 'small', 'even', 'half', 'pa"):
        files.make_torch_dataloader(4)
    with files.make_torch_dataloader(25, 1, schema_fields=["half", "n"]) as loader:
        (batch,) = loader
    assert (batch["half"].dtype, sorted(batch["n"].tolist())) == (torch.float32, list(range(25)))
    files.delete()
    assert len(list(Path(numbers.removeprefix("file://")).glob("*.parquet"))) == 2, "the user's files stay"

    frame: DataFrame = VectorAssembler(inputCols=["n", "half"], outputCol="both").transform(
        spark.read.parquet(numbers).where("n < 20").select("n", "half")
    )
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    with pytest.raises(DataError, match=r"spark\.conf\.set\('petastorm\.spark\.converter\.parentCacheDirUrl'"):
        make_spark_converter(frame)
    parent = tmp_path / "cache"
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{parent}")
    written = make_spark_converter(frame)
    assert written.written is not None and Path(written.written).parent == parent and len(written) == 20
    assert make_spark_converter(frame).cache_dir_url == written.cache_dir_url, "the same plan is not written again"
    wide = make_spark_converter(frame, dtype="float64")
    assert wide.cache_dir_url != written.cache_dir_url
    travelled = cloudpickle.loads(cloudpickle.dumps(written))
    for converter, dtype in ((travelled, torch.float32), (wide, torch.float64)):
        with converter.make_torch_dataloader(20, 1, workers_count=None, seed=1) as loader:
            (batch,) = loader
        assert batch["half"].dtype == batch["both"].dtype == dtype and batch["n"].dtype == torch.int32
        assert torch.equal(batch["both"], torch.stack([batch["n"].to(dtype), batch["half"]], 1))
    written.delete()
    wide.delete()
    assert not list(parent.iterdir())
    assert len(make_spark_converter(frame)) == 20, "what was deleted is written again"


def test_ranks_read_a_converter_s_shares(numbers: str) -> None:
    def work(rank: int, converter: SparkDatasetConverter) -> tuple[int, list[int]]:
        import spark_estimator.torch as hvd

        hvd.init()
        shard = {"cur_shard": hvd.rank(), "shard_count": hvd.size()}
        with converter.make_torch_dataloader(4, 1, schema_fields=["n"], **shard) as loader:
            batches = [batch["n"].tolist() for batch in loader]
            total = hvd.allreduce(torch.tensor(sum(map(sum, batches))), op=hvd.Sum).item()
        converter.make_torch_dataloader(4, 1, schema_fields=["n"])
        hvd.shutdown()
        return int(total), [len(one) for one in batches]

    found = run_ranks(2, work, args=(make_spark_converter(numbers),))
    # 13 rows and 12: the second rank's fourth batch is its first row, 13, once more.
    assert found == [(300 + 13, [4, 4, 4, 1])] * 2


def test_a_reader_is_what_petastorm_s_callers_expect(numbers: str) -> None:
    with make_reader(numbers, ["n"]) as reader:
        assert isinstance(reader, Reader) and reader.num_epochs == 1
        reader.stop()
        reader.join()
