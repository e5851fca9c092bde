"""How much memory is left, of the host's and of control groups of both versions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.data.rank import free_memory as module
from spark_estimator.data.rank.free_memory import get_free_memory


def test_the_host_s_memory_is_the_most() -> None:
    total = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) * 1024
    assert 0 < get_free_memory() <= total


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "stat"),
    [
        ("0::/pod/job\n", "pod", "memory.max", "memory.current", ""),
        ("4:cpu,memory:/pod/job\n", "memory/pod", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ],
)
def test_the_tightest_group_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, limit: str, used: str, stat: str
) -> None:
    """The outer group's limit counts, the inner one has none; files on disk that it holds in memory count as free."""
    text_of = Path.read_text

    def read_text(path: Path, *arguments: Any, **options: Any) -> str:
        return line if str(path) == "/proc/self/cgroup" else text_of(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setattr(module, "open", lambda *_, **__: io.StringIO("MemAvailable: 9 kB\n"), raising=False)
    inner = tmp_path / folder / "job"
    inner.mkdir(parents=True)
    (inner / limit).write_text("max\n" if not stat else f"{(1 << 63) - 4096}\n")
    (inner / used).write_text("700\n")
    assert get_free_memory() == 9 * 1024
    outer = inner.parent
    (outer / limit).write_text("1000\n")
    (outer / used).write_text("950\n")
    assert get_free_memory() == 50
    (outer / "memory.stat").write_text(f"cache 300\n{stat}inactive_file 20\n{stat}active_file 3\nshmem 200\n")
    assert get_free_memory() == 73
