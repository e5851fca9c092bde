"""``run(function, data=df)``: each rank gets an equal share of a DataFrame's rows, or the call is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from spark_estimator import HorovodRunner, TorchDistributor
from spark_estimator.errors import DataError, WorkerFailedError
from tests.launch import clusters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def look(data: Any, size: int = 4) -> dict[str, Any]:
    """What all ranks read in two epochs."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    pairs = data.loader(size, feature_cols=["a", "v"], label_cols=["y"], seed=3)
    epochs = [[(x.tolist(), y.tolist()) for x, y in pairs] for _ in range(2)]
    dicts = list(data.loader(100, columns=["y", "a"], shuffle=False))
    labels = [label for _, ys in epochs[0] for label in ys]
    return {
        "columns": data.columns,
        "batches": hvd.allgather_object([len(pairs), [len(ys) for _, ys in epochs[0]]]),
        "rows": hvd.allgather_object(sorted(labels)),
        "features": sorted(tuple(row) for xs, _ in epochs[0] for row in xs),
        "two orders": epochs[0] != epochs[1],
        "total": pairs.total_rows,
        "dict": {name: (str(values.dtype), list(values.shape)) for name, values in dicts[0].items()},
        "float": pairs and str(torch.get_default_dtype()),
    }


def rows_of(spark: SparkSession, count: int) -> Any:
    return spark.createDataFrame(
        [(i, [float(i), -1.0], 10 * i) for i in range(count)], "a int, v array<double>, y long"
    )


def test_each_rank_reads_an_equal_share(spark: SparkSession) -> None:
    seen = HorovodRunner(np=2).run(look, data=rows_of(spark, 21))
    assert seen["columns"] == ("a", "v", "y") and seen["total"] == 21
    assert sorted(seen["rows"][0] + seen["rows"][1]) == [10 * i for i in range(21)]
    assert sorted(map(len, seen["rows"])) == [10, 11]
    assert seen["batches"][0][0] == seen["batches"][1][0] == 3
    assert seen["features"] == sorted((y / 10, y / 10, -1.0) for y in seen["rows"][0])
    assert seen["two orders"]
    assert seen["dict"]["y"][0] == seen["dict"]["a"][0] == "torch.int64" and list(seen["dict"]) == ["y", "a"]


def test_files_are_read_by_the_ranks_also_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows_of(spark, 12).repartition(2).write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    seen = HorovodRunner(np=-2).run(look, size=5, data=frame)
    assert sorted(seen["rows"][0] + seen["rows"][1]) == [10 * i for i in range(12)]
    assert list(map(len, seen["rows"])) == [6, 6]
    through_spark = HorovodRunner(np=2).run(look, size=5, data=frame)
    assert through_spark["total"] == 12 and through_spark["dict"]["a"][0] == "torch.int64"


def test_torch_distributor_takes_it_too(spark: SparkSession) -> None:
    def train(data: Any) -> int:
        import torch

        torch.distributed.init_process_group("gloo")
        rows = torch.tensor(sum(len(batch["y"]) for batch in data.loader(3)))
        torch.distributed.all_reduce(rows)
        return int(rows)

    assert TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train, data=rows_of(spark, 10)) == 10


def test_what_cannot_be_read_is_refused_before_the_start(spark: SparkSession) -> None:
    runner = HorovodRunner(np=2)
    with pytest.raises(DataError, match="column 'name' has type string, and models need numbers"):
        runner.run(look, data=spark.createDataFrame([("x",)], "name string"))
    with pytest.raises(DataError, match=r"HorovodRunner\(np=2\)\.run: the DataFrame of data has no rows"):
        runner.run(look, data=rows_of(spark, 1).where("a < 0"))
    with pytest.raises(TypeError, match=r"sorted\(\) can't be called so .*: def sorted\(data, \.\.\.\)"):
        runner.run(sorted, data=rows_of(spark, 1))
    with pytest.raises(TypeError, match=r"look\(\) can't be called so \(multiple values for argument 'data'\)"):
        runner.run(look, 5, data=rows_of(spark, 1))
    with pytest.raises(DataError, match=r"processes without Spark, which can only read files.*df\.write\.parquet"):
        HorovodRunner(np=-2).run(look, data=rows_of(spark, 1))
    with pytest.raises(TypeError, match="a script takes strings"):
        runner.run("train.py", data=rows_of(spark, 1))


@pytest.mark.parametrize("np", [1, -1])
def test_a_value_that_only_a_rank_sees_is_an_error_of_the_data(spark: SparkSession, tmp_path: Path, np: int) -> None:
    rows = spark.createDataFrame([(1.0, 0.0), (None, 0.0)], "x double, y double").coalesce(1)
    rows.write.parquet(str(tmp_path / "rows"))
    frame = rows if np > 0 else spark.read.parquet(str(tmp_path / "rows"))
    with pytest.raises(DataError, match=r"^rank 0 \(host \S+\): column 'x' holds null") as raised:
        HorovodRunner(np=np).run(lambda data: len(list(data.loader(1))), data=frame)
    assert isinstance(raised.value.__cause__, WorkerFailedError)


def test_a_wrong_column_of_a_loader_is_named(spark: SparkSession) -> None:
    def train(data: Any) -> list[str]:
        texts = []
        for arguments in ({"columns": ["z"]}, {"columns": ["y"], "feature_cols": ["a"]}, {"label_cols": ["y"]}):
            try:
                data.loader(2, **arguments)
            except ValueError as error:
                texts.append(str(error))
        return texts

    texts = HorovodRunner(np=1).run(train, data=rows_of(spark, 2))
    assert texts[0] == "there is no column 'z': the DataFrame has a, v, y."
    assert "columns makes dicts" in texts[1] and "without feature_cols" in texts[2]


def test_other_values_of_that_name_are_arguments_as_before(spark: SparkSession) -> None:
    assert HorovodRunner(np=1).run(lambda data: data, data=[1, 2]) == [1, 2]


@pytest.mark.slow  # a separate Connect server
def test_over_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    (tmp_path / "program.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "from spark_estimator import HorovodRunner\n"
        "spark = SparkSession.builder.remote('local[2]').getOrCreate()\n"
        "def count(data):\n"
        "    return sum(len(y) for _, y in data.loader(3, feature_cols=['a'], label_cols=['y'])), data.columns\n"
        "print('RESULT', HorovodRunner(np=2).run(count, data=spark.range(20).selectExpr('id a', 'id * 2 y')))\n"
    )
    done = subprocess.run(
        [sys.executable, "program.py"],
        env=clusters.environment(PYSPARK_PYTHON=sys.executable),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "RESULT (10, ('a', 'y'))" in done.stdout, done.stdout + done.stderr
