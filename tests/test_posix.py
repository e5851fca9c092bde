"""What a driver imports and writes where the modules of POSIX systems are missing; no other test needs no Linux."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator import _native, posix
from spark_estimator.errors import NativeLibraryError
from spark_estimator.launch import local
from tests.support.foreign_system import POSIX_MODULES
from tests.test_layers import PACKAGE, ROOT, imports

#: What a client imports; all that these import must be importable, too.
CLIENT = [
    "spark_estimator",
    "runner",
    "torch_distributor",
    "frame_share",
    "spark",
    "store",
    "doctor",
    "demo",
    "explain",
    "__main__",
    "compat",
    "torch",
    "keras",
    "launch.spark.stage_job",
    "launch.spark.elastic.replacing",
    "launch.local",
    "launch.cli.main",
    "launch.cli.on_spark",
    "estimators.torch.estimator",
    "estimators.torch.model",
    "estimators.tracking.flavour",
    "estimators.tracking.run",
    "estimators.keras.estimator",
    "estimators.keras.model",
    "lightning",
    "estimators.lightning.estimator",
    "extensions.transformers.estimator",
    "extensions.transformers.model",
]


def run_on_windows(program: str, paths: str = "None", real: str = "") -> str:
    """The output of a program whose imports of the package see Windows; `real`: what was imported before."""
    text = (
        f"import ntpath{real}\nfrom tests.support.foreign_system import imitate\nimitate('windows', {paths})\n{program}"
    )
    answer = subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return answer.stdout


# A busy machine takes a minute to import PyTorch and Spark.
pytestmark = pytest.mark.timeout(300)


def test_one_module_imports_what_only_posix_systems_have() -> None:
    importing = {
        str(path.relative_to(PACKAGE)): name
        for path in PACKAGE.rglob("*.py")
        for _, name in imports(path.read_text(), "spark_estimator", False)
        if name.split(".")[0] in POSIX_MODULES
    }
    assert set(importing) == {"posix.py"}, importing


def test_a_client_on_windows_imports_all_that_it_needs() -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("keras")
    pytest.importorskip("transformers")
    names = [f"spark_estimator.{name}".removesuffix(".spark_estimator") for name in CLIENT]
    program = (
        f"import importlib, sys, os\nfor name in {names}: importlib.import_module(name)\n"
        "assert sys.modules['spark_estimator.posix'].IS_WINDOWS\n"
        "print(len([name for name in sys.modules if name.startswith('spark_estimator.')]))"
    )
    assert int(run_on_windows(program, real=", torch, pandas, pyarrow, pyspark.sql.connect.session").split()[-1]) > 250


def test_files_and_folders_are_replaced_on_windows(tmp_path: Path) -> None:
    """No locks, no handles of folders, and no file is renamed or removed while it is open."""
    program = f"""
import os
from pathlib import Path
from spark_estimator.store import Store
from spark_estimator.store.replacement import replace_folder
folder = {str(tmp_path)!r}
store = Store.create(folder)
for content in (b"one\\n", b"two\\n"):
    store.write(f"{{folder}}/runs/file", content)
    assert store.read(f"{{folder}}/runs/file") == content
for content in ("first", "second"):
    with replace_folder(Path(folder, "model"), overwrite=True) as new:
        (new / "below").mkdir()
        (new / "below" / "weights").write_text(content)
    assert Path(folder, "model", "below", "weights").read_text() == content
try:
    with replace_folder(Path(folder, "model"), overwrite=False) as new:
        (new / "weights").write_text("third")
except FileExistsError:
    print("kept", sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")))
"""
    left = ["model", "model/below", "model/below/weights", "runs", "runs/file"]
    assert run_on_windows(program) == f"kept {left}\n"


def test_paths_of_windows_are_no_urls() -> None:
    program = r"""
import json, pickle
from spark_estimator.estimators.persistence.folders import is_local
from spark_estimator.errors import PreflightError
from spark_estimator.store import FilesystemStore
get = FilesystemStore.get_full_path
texts = ["C:\\data", "C:/data", "file:///C:/data", "file:C:/data", r"\\host\share\data", "s3://bucket/data"]
results = {"full": [get(None, text) for text in texts], "local": [is_local(text) for text in texts]}
try:
    pickle.dumps(FilesystemStore("C:\\data"))
except PreflightError as error:
    results["refused"] = str(error)
print(json.dumps(results))
"""
    results = json.loads(run_on_windows(program, "ntpath"))
    assert results["full"] == [*4 * ["C:\\data"], r"\\host\share\data", "s3://bucket/data"]
    assert results["local"] == [True, True, True, True, True, False]
    assert results["refused"].startswith("No rank has C:\\data, of this Windows machine")


def test_signals_have_their_names_on_every_system() -> None:
    assert {number: signal.Signals(number).name for number in range(1, 32)} == posix.SIGNALS
    assert posix.SIGKILL == signal.SIGKILL


def test_without_the_engine_no_rank_starts_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "library_path", lambda: tmp_path / "missing.so")
    with pytest.raises(NativeLibraryError, match=r"No rank can run on .*missing\.so does not exist.*py3-none-any"):
        local.run_local(print, 2)
