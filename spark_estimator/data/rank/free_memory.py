"""How much memory this process can still get: of its host's, and within the limits of its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# A group without a limit has this one in version 1, rounded down to pages.
_UNLIMITED = 1 << 62


def get_free_memory() -> int:
    """Return bytes; files that the kernel caches count as free, since it drops them when a program needs room."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return min([int(lines["MemAvailable"].split()[0]) * 1024, *_get_group_remainders()])


def _get_group_remainders() -> Iterator[int]:
    """Yield what each control group that this process is in leaves, for those that have a limit."""
    for folder, limit_name, used_name in _find_groups():
        with suppress(OSError, ValueError):  # "max" for no limit ends in the ValueError
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            if limit < _UNLIMITED:
                used = int((folder / used_name).read_text(encoding="ascii"))
                yield max(0, limit - used + _count_file_bytes(folder))


def _find_groups() -> Iterator[tuple[Path, str, str]]:
    """Yield the folders of this process's groups, innermost first. A container sees its own group as the root."""
    version_2 = "memory.max", "memory.current"
    version_1 = "memory.limit_in_bytes", "memory.usage_in_bytes"
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            path = Path(name.lstrip("/"))
            if not controllers:
                yield from ((_ROOT / each, *version_2) for each in (path, *path.parents))
            elif "memory" in controllers.split(","):
                yield from ((_ROOT / "memory" / each, *version_1) for each in (path, *path.parents))


def _count_file_bytes(folder: Path) -> int:
    """Return the bytes of files on disk that a group has in memory. Files without a disk, such as shared memory,
    don't count.
    """
    with suppress(OSError, ValueError, KeyError):
        numbers = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        prefix = "total_" if "total_inactive_file" in numbers else ""
        return int(numbers[f"{prefix}inactive_file"]) + int(numbers[f"{prefix}active_file"])
    return 0
