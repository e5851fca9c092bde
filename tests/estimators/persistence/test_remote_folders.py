"""Saving to the session's file systems and loading from them: HDFS, of real daemons, in all its spellings."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel, trust_files
from spark_estimator.estimators.persistence.filesystems import FsspecFiles, HadoopFiles
from spark_estimator.estimators.persistence.folders import MANIFEST_FILE
from spark_estimator.estimators.persistence.remote_folders import RemoteFolder
from tests.hadoop_daemons import Hadoop, start_hadoop
from tests.launch import clusters
from tests.store.hadoop import core_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

OF_TORCH = {
    "estimator": "TorchEstimator",
    "model": "TorchModel=2.0",
    "pipeline": "Pipeline VectorAssembler TorchEstimator",
    "pipeline_model": "PipelineModel VectorAssembler TorchModel=2.0",
    "folds": "CrossValidatorModel PipelineModel VectorAssembler TorchModel=2.0",
    "split": "TrainValidationSplitModel PipelineModel VectorAssembler TorchModel=2.0",
    "one_vs_rest": "OneVsRestModel TorchModel=2.0 TorchModel=2.0",
}
OTHERS = {
    "keras_estimator": "KerasEstimator",
    "keras_model": "KerasModel",
    "lightning_estimator": "TorchEstimator",
    "transformers_model": "TransformersModel",
}


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with start_hadoop(tmp_path_factory.mktemp("hadoop") / "daemons") as running:
        yield running


def run(action: str, where: str, kinds: str, *folders: str, folder: Path, **env: str | None) -> dict[str, object]:
    """What the program did with each object, in a new session, with its own folder for temporary files."""
    private = folder / f"{action}-{time.monotonic_ns()}"
    private.mkdir()
    env = {"TMPDIR": str(private), **env}
    with clusters.driver("saved_models.py", action, where, kinds, *folders, folder=folder, env=env) as driver:
        result = driver.wait(240)
    assert not list(private.glob("spark_estimator-*")), "the copies on this machine's disk are removed"
    return result


def in_each(folders: tuple[str, ...], expected: Mapping[str, str | None]) -> dict[str, str | None]:
    return {f"{folder}/{name}": value for folder in folders for name, value in expected.items()}


@pytest.mark.parametrize(
    ("kinds", "expected", "spellings"),
    [
        ("one", {"model": OF_TORCH["model"]}, slice(1)),
        pytest.param("torch", OF_TORCH, slice(None), marks=pytest.mark.slow),
        pytest.param("keras,lightning,transformers", OTHERS, slice(None), marks=pytest.mark.slow),
    ],
    ids=["default", "torch", "others"],
)
def test_each_object_in_each_spelling(
    hadoop: Hadoop, tmp_path: Path, kinds: str, expected: dict[str, str], spellings: slice
) -> None:
    """Twice, the second time over the first; and loaded in another program."""
    env = hadoop.environ()
    root = f"/{kinds.partition(',')[0]}"
    folders = (f"{root}/a folder", f"{hadoop.uri}{root}/url", f"viewfs://view/data{root}", f"viewfs://disk/data{root}")
    folders = (*folders, f"file://{tmp_path}")[spellings]
    saved = run("save", "local[1]", kinds, *folders, folder=tmp_path, **env)
    assert saved == in_each(folders, dict.fromkeys(expected))
    assert run("load", "local[1]", kinds, *folders, folder=tmp_path, **env) == in_each(folders, expected)
    assert not re.search(r"\.(partial|next)", hadoop.shell("-ls", "-R", root)), "nothing is left beside them"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_over_connect(hadoop: Hadoop, tmp_path: Path) -> None:
    """The server reads and writes; the client has no configuration of Hadoop's. A classic session reads the same."""
    folders = ("/connect/plain", f"{hadoop.uri}/connect/url", f"file://{tmp_path}")
    expected = in_each(folders, OF_TORCH | {"large": "TorchModel=2.0"})
    with clusters.connect_server(tmp_path, "local[2]", env=hadoop.environ()) as address:
        assert run("save", address, "torch,large", *folders, folder=tmp_path) == dict.fromkeys(expected)
        assert run("load", address, "torch,large", *folders, folder=tmp_path) == expected
        elsewhere = "viewfs://view/data/connect"  # of which fsspec has no view
        refused = run("save", address, "large", elsewhere, folder=tmp_path)[f"{elsewhere}/large"]
        assert re.search(r"writes files only to its default file system, hdfs://.*fsspec does not", str(refused)), (
            refused
        )
    assert run("load", "local[1]", "torch,large", *folders, folder=tmp_path, **hadoop.environ()) == expected


@pytest.mark.parametrize("kills", [1, pytest.param(7, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_killed_driver_leaves_the_old_one_or_the_new_one(
    hadoop: Hadoop, spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    """Each kill interrupts eight writers, each at another moment."""
    for key, value in hadoop.views.items():
        spark.conf.set(key, value)  # settings of the session count
    places = [f"{uri}/killed/{number}" for uri in (hadoop.uri, "viewfs://disk/data") for number in range(4)]
    for _ in range(kills):
        with clusters.driver("endless_saves.py", *places, folder=tmp_path, env=hadoop.environ()) as driver:
            driver.wait_for("SAVING")
            time.sleep(random.SystemRandom().uniform(0, 3))
        for place in places:
            loaded = TorchEstimator.load(place)
            assert loaded.getEpochs() in (1, 2)
            assert set(loaded.getModel().weight.flatten().tolist()) == {float(loaded.getEpochs())}, place
    for place in places:
        TorchEstimator(model=nn.Linear(1, 1), loss=nn.MSELoss(), epochs=3).write().overwrite().save(place)
        assert TorchEstimator.load(place).getEpochs() == 3
    for uri in (hadoop.uri, "viewfs://disk/data"):
        assert not re.search(r"\.next", hadoop.shell("-ls", "-R", f"{uri}/killed")), "the next writer completes it"


class LateMove(HadoopFiles):
    """Lets another program act before the first move of a folder."""

    def __init__(self, spark: SparkSession, path: str, act: Callable[[], None]) -> None:
        super().__init__(spark, path)
        self._acts = [act]

    def move(self, source: str, target: str) -> None:
        while self._acts:
            self._acts.pop()()
        super().move(source, target)


def test_two_programs_put_a_folder_in_place(hadoop: Hadoop, spark: SparkSession) -> None:
    """Whichever is first, the folder that was saved last is there."""
    uri = f"{hadoop.uri}/together/model"

    def save(folder: RemoteFolder, text: str) -> None:
        with folder.replace(overwrite=True) as new:
            (new / MANIFEST_FILE).write_text(text)

    def finish() -> None:
        RemoteFolder(uri, HadoopFiles(spark, uri))._finish()

    save(RemoteFolder(uri, HadoopFiles(spark, uri)), "old")
    for text in ("new", "newer"):
        hadoop_files = HadoopFiles(spark, uri)
        # As a writer leaves it that was killed.
        with RemoteFolder(f"{hadoop.uri}/together/.model.next", hadoop_files).replace(overwrite=False) as new:
            (new / MANIFEST_FILE).write_text(text)
        RemoteFolder(uri, LateMove(spark, uri, finish))._finish()
        with RemoteFolder(uri, hadoop_files).fetch() as copy:
            assert (copy / MANIFEST_FILE).read_text() == text
    with pytest.raises(FileExistsError):
        with RemoteFolder(uri, HadoopFiles(spark, uri)).replace(overwrite=False):
            pass
    assert hadoop.shell("-ls", f"{hadoop.uri}/together").count("model") == 1


@pytest.mark.parametrize("path", ["hdfs://name/models/..", "hdfs://name/.", "hdfs://name", "memory://"])
def test_a_path_without_a_name(path: str) -> None:
    """It would have been a folder above the private copy, which is emptied."""
    with pytest.raises(DataError, match="has no name for a folder"):
        RemoteFolder(path, FsspecFiles("memory://models"))


def test_a_path_without_a_session(tmp_path: Path) -> None:
    """It is this machine's, unless Hadoop is configured so that Spark takes it for another."""
    program = (
        "from spark_estimator.estimators.persistence.remote_folders import find_folder\n"
        "for path in ('/models/a', 'file:///models/a', 's3a://bucket/a'):\n"
        "    try: print(find_folder(path))\n"
        "    except Exception as error: print(str(error).splitlines()[0])\n"
    )

    def answers(**env: str) -> list[str]:
        variables = {
            name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "HADOOP_HOME")
        }
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=variables | env, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.splitlines()

    no_session = "and there is no Spark session, which would reach it. Make the session first."
    local, by_url, elsewhere = answers()
    assert (local, by_url) == ("/models/a", "/models/a")
    assert elsewhere.startswith(f"s3a://bucket/a is not a path of this machine, {no_session}")
    local, by_url, elsewhere = answers(HADOOP_CONF_DIR=str(core_site(tmp_path, fs__defaultFS="hdfs://name:8020")))
    assert local.startswith(f"/models/a is on Hadoop's default file system, hdfs://name:8020, {no_session}")
    assert local.endswith("A folder of this machine is file:///models/a.")
    assert by_url == "/models/a"


def test_a_file_system_of_fsspec() -> None:
    """By which a client of Spark Connect writes where its server does not. Large files are whole."""
    for text in ("old", "new"):
        folder = RemoteFolder("memory://models/of fsspec", FsspecFiles("memory://models/of fsspec"))
        with folder.replace(overwrite=True) as new:
            (new / "inside").mkdir()
            (new / "inside" / f"{text}.txt").write_text(text)
            (new / MANIFEST_FILE).write_text(text)
        with folder.fetch() as copy:
            assert {str(file.relative_to(copy)) for file in copy.rglob("*.*")} == {f"inside/{text}.txt", MANIFEST_FILE}
            assert (copy / "inside" / f"{text}.txt").read_text() == text
    with pytest.raises(FileExistsError, match=r"memory://models/of fsspec is not saved.*exists already"):
        with folder.replace(overwrite=False):
            pass


def saved_model(width: int) -> TorchModel:
    return TorchModel(model=nn.Linear(width, 1), feature_columns=["x"], label_columns=["y"])


def test_a_full_quota(hadoop: Hadoop, spark: SparkSession) -> None:
    hadoop.shell("-mkdir", "/quota")
    path = f"{hadoop.uri}/quota/model"
    saved_model(3).save(path)
    hadoop.administrate("-setSpaceQuota", "9m", "/quota")
    with pytest.raises(
        OSError, match=rf"{path} is not saved, as user root: DSQuotaExceeded.*quota of /quota is exceeded"
    ):
        saved_model(3_000_000).write().overwrite().save(path)
    assert TorchModel.load(path).getModel().weight.shape == (1, 3)
    assert hadoop.shell("-ls", "-R", "/quota").count("weights.pt") == 1, "the partial folder is removed"


def test_what_is_refused(hadoop: Hadoop, spark: SparkSession, tmp_path: Path) -> None:
    path = f"{hadoop.uri}/refused/model"
    saved_model(3).save(path)
    with pytest.raises(FileExistsError, match=f"{path} is not saved.*it exists already.*overwrite"):
        saved_model(3).save(path)
    with pytest.raises(DataError, match=f"{hadoop.uri}/none doesn't contain a TorchModel: .*not exist, for user root"):
        TorchModel.load(f"{hadoop.uri}/none")
    with pytest.raises(DataError, match=f"{path} doesn't contain a TorchEstimator"):
        TorchEstimator.load(path)
    with pytest.raises(DataError, match=r"nope://a/b: the session's Hadoop does not open it.*No FileSystem for scheme"):
        saved_model(3).save("nope://a/b")
    damaged = tmp_path / "weights.pt"
    damaged.write_bytes(b"nothing")
    hadoop.shell("-put", "-f", str(damaged), "/refused/model/weights.pt")
    with pytest.raises(DataError, match=rf"{path}/weights\.pt is damaged: its 7 bytes"):
        TorchModel.load(path)
    hadoop.shell("-chmod", "700", "/refused")
    for action, words in (("save", "PermissionError: .*is not saved"), ("load", "DataError: .*is not loaded")):
        result = run(
            action, "local[1]", "large", "/refused", folder=tmp_path, HADOOP_USER_NAME="alice", **hadoop.environ()
        )
        text = f"{words}, as user alice: AccessControlException: Permission denied: user=alice"
        assert re.match(text, str(result["/refused/large"])), result


def test_code_needs_trust(hadoop: Hadoop, spark: SparkSession) -> None:
    """The rules for files that could run code are those of local folders."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    path = f"{hadoop.uri}/trust/model"
    TorchModel(model=Doubled(), feature_columns=["x"], label_columns=["y"]).write().overwrite().save(path)
    with pytest.raises(DataError, match=f"{path}: its architecture uses classes other than torch.nn's own"):
        TorchModel.load(path)
    assert type(TorchModel.load(path, trust=True).getModel()).__name__ == "Doubled"
    with trust_files():
        assert type(TorchModel.read().load(path).getModel()).__name__ == "Doubled"
