"""Each notebook runs in a kernel, shows what its text promises, and holds the outputs of its present code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.clusters import ROOT, connect_server
from tests.notebooks.execute import NOTEBOOKS, code_cells, environment, executed, kinds, mark, text_of

ids = [path.stem for path in NOTEBOOKS]
LARGEST_BYTES = 200_000
_PRIVATE = re.compile(rf"{re.escape(str(ROOT))}|/(?:root|home)/|/tmp/(?!notebook)|pid (?!10\d\d\b)\d|Warning:|\bWARN\b")


def number(pattern: str, text: str) -> float:
    """The number in the first group of a pattern."""
    match = re.search(pattern, text)
    assert match, f"{pattern!r} is missing in:\n{text}"
    return float(match[1])


def a_curve_per_rank(text: str) -> None:
    assert re.search(r"^\[1\]<stdout>:epoch 9: loss of this rank 0\.\d+, accuracy of all 0\.9\d+$", text, re.MULTILINE)
    assert number(r"accuracy on 360 new images: ([\d.]+)", text) > 0.9
    assert "ranks: 1" in text


def a_pipeline_of_a_table(text: str) -> None:
    assert re.search(r"^\[0\] epoch 12/12, train loss ", text, re.MULTILINE)
    assert number(r"accuracy on 143 new rows: ([\d.]+)", text) > 0.9
    slow, fast = (number(rf"learning rate {rate}: accuracy ([\d.]+)", text) for rate in ("0.0001", "0.01"))
    assert fast > 0.9 > slow
    assert number(r"the better one on new rows: ([\d.]+)", text) > 0.9
    assert "same predictions: True" in text


def images_with_labels(text: str) -> None:
    assert "(1, 8, 8)" in text
    assert number(r"accuracy on 360 new images: ([\d.]+)", text) > 0.95


def old_code_with_the_same_numbers(text: str) -> None:
    assert number(r"R2 on 111 new rows: ([\d.]+)", text) > 0.3
    assert "the same class: True" in text and "the same losses: True" in text
    keras, ours = re.findall(r"^(?:Keras|here): +(\[.*\])$", text, re.MULTILINE)
    assert keras == ours


def the_same_accuracy_on_both_ranks(text: str) -> None:
    accuracies = re.findall(r"rank \d of 2: accuracy ([\d.]+)", text)
    assert len(accuracies) == 2 and len(set(accuracies)) == 1 and float(accuracies[0]) > 0.85
    assert number(r"accuracy of the estimator's model: ([\d.]+)", text) > 0.85


def each_failure_with_its_culprit(text: str) -> None:
    for pattern in (
        r"rank 1 \(host \S+, pid \d+\) raised ValueError: part-00001 is not a Parquet file",
        r"  rank 0 \(.*ShutDownError: barrier",
        r"kind: raised",
        r'  File "cell\.py", line 7, in read_files',
        r"rank 1 \(.*\) was killed by signal 9 \(SIGKILL\)",
        r"spark_estimator: attempt 1 of 2 failed: rank 1 .*; restarting all ranks",
        r"sum over the ranks: 2\.0",
        r"99 ranks need 99 slots at the same time, but this session has 2",
        r"\[0\]<stderr>:.* allreduce 'allreduce\.loss of batch 2' has waited \d s for rank 1, which did not submit it",
        r"\[0\]<stderr>:.*current stack of rank 1",
        r"\[0\]<stderr>:.*, in evaluate$",
        r"rank 0 \(.*has waited \d s for rank 1, which did not submit it; given up",
        r"Mismatched ALLREDUCE tensor shapes: rank 0 has \[3\]; rank 1 has \[4\]",
        r"a later allreduce returns 2\.0",
    ):
        assert re.search(f"^{pattern}", text, re.MULTILINE), f"{pattern!r} is missing in:\n{text}"


def right_numbers_before_times(text: str) -> None:
    assert "no communication: other parameters" in text
    for library in ("DistributedOptimizer", "DDP over gloo"):
        assert f"{library}: the parameters of one process" in text
        assert number(rf"{library}: ([\d.]+) ms a step", text) > 0
    assert len(re.findall(r"bytes: +\d+ us, gloo +\d+ us", text)) == 8


CHECKS: dict[str, Callable[[str], None]] = {
    "01_horovod_runner": a_curve_per_rank,
    "02_torch_estimator": a_pipeline_of_a_table,
    "03_images": images_with_labels,
    "04_keras_estimator": old_code_with_the_same_numbers,
    "05_lightning": the_same_accuracy_on_both_ranks,
    "06_when_things_go_wrong": each_failure_with_its_culprit,
    "07_speed": right_numbers_before_times,
}


@pytest.fixture(autouse=True)
def kernel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nbclient", "ipykernel", "matplotlib", "pyspark", "torch", "sklearn", "keras", "lightning"):
        pytest.importorskip(module)
    from spark_estimator.launch.spark.java_environment import choose_java_environment

    for variable, value in {**choose_java_environment(), **environment()}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def stored(notebook: Path) -> Any:
    import nbformat

    return nbformat.read(notebook, as_version=4)


def test_every_notebook_has_a_check() -> None:
    assert sorted(CHECKS) == ids


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=ids)
def test_a_notebook_runs_and_its_outputs_are_those_of_its_code(notebook: Path, tmp_path: Path) -> None:
    kept = stored(notebook)
    fresh = executed(notebook, tmp_path)
    assert kinds(kept) == kinds(fresh), "its outputs are out of date: run `make notebooks`"
    CHECKS[notebook.stem](text_of(fresh))
    CHECKS[notebook.stem](text_of(kept))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=ids)
def test_stored_outputs_are_those_of_the_present_code(notebook: Path) -> None:
    kept = stored(notebook)
    assert kept.metadata.get("code_of_outputs") == mark(kept), "its code has changed: run `make notebooks`"
    assert [cell.execution_count for cell in code_cells(kept)] == list(range(1, len(code_cells(kept)) + 1))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=ids)
def test_what_is_stored_is_small_and_nothing_of_a_machine(notebook: Path) -> None:
    assert notebook.stat().st_size < LARGEST_BYTES
    kept = stored(notebook)
    assert not _PRIVATE.findall(text_of(kept))
    assert all(not cell.metadata for cell in code_cells(kept)), "times of execution are not stored"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_of_them_run_over_spark_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same first cell: it reads SPARK_REMOTE."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("grpc")
    is_connect = nbformat.v4.new_code_cell("assert type(spark).__module__.startswith('pyspark.sql.connect')")
    with connect_server(tmp_path) as address:
        monkeypatch.setenv("SPARK_REMOTE", address)
        for notebook in NOTEBOOKS:
            kept = stored(notebook)
            book = stored(notebook)
            book.cells.insert(book.cells.index(code_cells(book)[0]) + 1, is_connect)
            folder = tmp_path / notebook.stem
            folder.mkdir()
            nbformat.write(book, folder / notebook.name)
            fresh = executed(folder / notebook.name, folder)
            CHECKS[notebook.stem](text_of(fresh))
            first, _, *others = kinds(fresh)
            assert [first, *others] == kinds(kept), notebook.stem
