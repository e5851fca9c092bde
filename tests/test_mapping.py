"""Mapped files: no core dump has them, neither those of this module nor the engine's segments."""

from __future__ import annotations

import os
import re
import resource
import signal
from pathlib import Path

import numpy
import pytest

import spark_estimator
from spark_estimator.checkpoint.shared_control import BYTES, SharedControl
from spark_estimator.checkpoint.slot_memory import SlotMemory, create_descriptor
from spark_estimator.collectives import arrays, context
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.rank.spool import map_rows
from spark_estimator.data.stream.cache import DiskCache
from spark_estimator.env import IN_MEMORY
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.local import run_local
from spark_estimator.mapping import map_file
from tests.ranks import run_ranks

_MOST_CORE_BYTES = 512 << 20


def dumped(name: str) -> dict[str, bool]:
    """Each mapping whose line in /proc/self/smaps has `name`, and whether a core dump has it."""
    is_dumped: dict[str, bool] = {}
    line_of_mapping = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            line_of_mapping = line
        elif line.startswith("VmFlags:") and name in line_of_mapping:
            is_dumped[line_of_mapping] = "dd" not in line.split()
    return is_dumped


@pytest.mark.parametrize("writable", [False, True])
def test_a_mapped_file_is_shared_and_in_no_dump(tmp_path: Path, writable: bool) -> None:
    (tmp_path / "file").write_bytes(b"0123")
    with open(tmp_path / "file", "r+b") as file, map_file(file.fileno(), writable=writable) as content:
        assert list(dumped("/file").values()) == [False]
        file.write(b"abcd")
        file.flush()
        assert content[:] == b"abcd"
        if writable:
            content[0:1] = b"x"
            assert (tmp_path / "file").read_bytes() == b"xbcd"
        else:
            with pytest.raises(TypeError):
                content[0:1] = b"x"


def test_memory_of_checkpoints_is_in_no_dump() -> None:
    slot, control = SlotMemory(create_descriptor("slot", 0)), create_descriptor("control", BYTES)
    slot.make_room(1 << 20)
    page = SharedControl(control)
    assert list(dumped("spark_estimator checkpoint").values()) == [False, False]
    page.close()
    os.close(control)
    slot.close()


@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_of_spools_and_caches_are_in_no_dump(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = IN_MEMORY if in_memory else str(tmp_path)
    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", folder)
    field = Field(("v",), ("c0",), (1000,), "float64", (1000,))
    cache = DiskCache.from_ranges([Range(0, 0, 10)], [field], 1 << 20)
    rows = numpy.ones((10, 1000))
    list(cache.keep(0, iter([(rows,)])))
    again = map_rows(cache._files[0].fileno(), field, 10)
    assert numpy.array_equal(again, rows)
    assert list(dumped("memfd:spark_estimator rows" if in_memory else str(tmp_path)).values()) == [False, False]


def test_segments_of_a_job_are_in_no_dump() -> None:
    def mappings(rank: int) -> dict[str, bool]:
        context.init()
        array = arrays.shared_empty(1 << 20)
        array[:] = rank
        arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, name="array").wait()
        assert array[0] == 1
        return dumped("/memfd:")

    for of_rank in run_ranks(2, mappings):
        assert list(of_rank.values()) == [False, False], of_rank


def test_every_file_is_mapped_here() -> None:
    package = Path(spark_estimator.__file__).parent
    users = [file.name for file in package.rglob("*.py") if re.search(r"\bmmap\.mmap\(", file.read_text())]
    assert users == ["mapping.py"]


@pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core", reason="core dumps do not go to a file"
)
def test_a_rank_that_crashes_dumps_no_segment(tmp_path: Path, functions_travel_by_value: None) -> None:
    """It is named by its signal: to dump the segments would take the machine's memory."""

    def crash() -> None:
        context.init()
        arrays.allreduce(numpy.ones(1), arrays.ReduceOp.SUM)
        os.chdir(tmp_path)
        # The limit protects the machine if the dump is as large as the segments.
        resource.setrlimit(resource.RLIMIT_CORE, (_MOST_CORE_BYTES, _MOST_CORE_BYTES))
        if context.rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        arrays.allreduce(numpy.ones(1), arrays.ReduceOp.SUM)

    with pytest.raises(WorkerFailedError, match=r"rank 1 .* was killed by signal 11 \(SIGSEGV\)") as caught:
        run_local(crash, 2)
    assert "memory" not in str(caught.value)
    (core,) = tmp_path.glob("core*")
    assert 0 < core.stat().st_size < _MOST_CORE_BYTES
