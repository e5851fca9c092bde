"""Every environment variable that the package reads, in one frozen dataclass: read once, by ``init()``."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spark_estimator.log import LEVELS

MIB = 1 << 20
RENDEZVOUS_FD_VARIABLE = "SPARK_ESTIMATOR_RENDEZVOUS_FD"


class _Ranks(Protocol):
    """The six numbers of a topology; ``collectives.rendezvous.Topology`` has them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("1 or 0")
    return words[text.lower()]


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("a whole number, 0 or more") from None
    if not 0 <= value < 1 << 62:
        raise ValueError("a whole number, 0 or more")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("seconds, 0 or more") from None
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("seconds, 0 or more")
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError("seconds, more than 0")
    return value


def _level(text: str) -> str:
    level = {"warn": "warning", "critical": "fatal"}.get(text.lower(), text.lower())
    if level not in LEVELS:
        raise ValueError("one of " + ", ".join(LEVELS))
    return level


def _variable(name: str, default: Any, parse: Callable[[str], Any], *, unit: str, effect: str) -> Any:
    metadata = {"variable": name, "parse": parse, "unit": unit, "effect": effect}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process. Each field's metadata holds its variable, unit and effect; see `describe`."""

    fusion_threshold_bytes: int = _variable(
        "HOROVOD_FUSION_THRESHOLD", 128 * MIB, _count, unit="bytes",
        effect="small allreduces run as one up to this size; 0: never; rank 0's value holds for all",
    )  # fmt: skip
    bucket_bytes: int = _variable(
        "SPARK_ESTIMATOR_BUCKET_BYTES", 25 * MIB, _count, unit="bytes",
        effect="DistributedOptimizer hands gradients over in buckets of about this size",
    )  # fmt: skip
    stall_warning_seconds: float = _variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0, _seconds, unit="seconds",
        effect="an op that some ranks have not submitted for so long is told on stderr; 0: never",
    )  # fmt: skip
    stall_check_disabled: bool = _variable(
        "HOROVOD_STALL_CHECK_DISABLE", False, _boolean, unit="1 or 0",
        effect="1: as HOROVOD_STALL_CHECK_TIME_SECONDS=0",
    )  # fmt: skip
    stall_shutdown_seconds: float = _variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0, _seconds, unit="seconds",
        effect="an op that some ranks have not submitted for so long fails on all; 0: never",
    )  # fmt: skip
    start_timeout_seconds: float = _variable(
        "HOROVOD_START_TIMEOUT", 30.0, _positive_seconds, unit="seconds",
        effect="how long init() waits for the other ranks",
    )  # fmt: skip
    log_level: str = _variable(
        "HOROVOD_LOG_LEVEL", "warning", _level, unit="level",
        effect="what the package itself says on stderr: " + ", ".join(LEVELS),
    )  # fmt: skip
    shared_memory: bool = _variable(
        "SPARK_ESTIMATOR_SHARED_MEMORY", True, _boolean, unit="1 or 0",
        effect="0: ranks of one host talk by TCP as well",
    )  # fmt: skip
    spin_microseconds: int | None = _variable(
        "SPARK_ESTIMATOR_SPIN_MICROSECONDS", None, _count, unit="microseconds",
        effect="busy waiting before sleeping in shared memory; unset: decided from cores and local ranks",
    )  # fmt: skip
    driver_channel: bool = _variable(
        "SPARK_ESTIMATOR_DRIVER_CHANNEL", True, _boolean, unit="1 or 0",
        effect="0: workers open no connection to the driver; their lines come when the job ends",
    )  # fmt: skip
    rendezvous_fd: int | None = _variable(
        RENDEZVOUS_FD_VARIABLE, None, _count, unit="descriptor",
        effect="set by the launcher for a command: where its rank and its peers are written",
    )  # fmt: skip
    launched_size: int | None = _variable(
        "HOROVOD_SIZE", None, _count, unit="ranks",
        effect="set by launchers for scripts; init() warns when it is not the size of the job that it joins",
    )  # fmt: skip

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings that `environ` (default: the process's environment) asks for. An empty value counts as unset.

        Raises:
            ValueError: a value cannot be used; the text names the variable, the value and what is expected.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(field.metadata["variable"], "").strip()
            if not text:
                continue
            try:
                values[field.name] = field.metadata["parse"](text)
            except ValueError as error:
                raise ValueError(f"{field.metadata['variable']}={text!r}: expected {error}.") from None
        if values.get("stall_check_disabled"):
            values["stall_warning_seconds"] = 0.0
        return cls(**values)

    def describe(self) -> str:
        """A table of all variables, one a line: name, value here, default, unit, effect."""
        rows = [("variable", "value", "default", "unit", "effect")]
        for field in dataclasses.fields(self):
            value, default = _printed(getattr(self, field.name)), _printed(field.default)
            rows.append((field.metadata["variable"], value, default, field.metadata["unit"], field.metadata["effect"]))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = []
        for *cells, effect in rows:
            lines.append("  ".join([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] + [effect]))
        return "\n".join(lines)


def _printed(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def horovod_variables(topology: _Ranks, hostname: str) -> dict[str, str]:
    """What Horovod's launcher would have set for a rank, for the scripts that read it.

    Args:
        topology: the rank's place in the job.
        hostname: the name of the rank's host.
    """
    return {
        "HOROVOD_RANK": str(topology.rank),
        "HOROVOD_SIZE": str(topology.size),
        "HOROVOD_LOCAL_RANK": str(topology.local_rank),
        "HOROVOD_LOCAL_SIZE": str(topology.local_size),
        "HOROVOD_CROSS_RANK": str(topology.cross_rank),
        "HOROVOD_CROSS_SIZE": str(topology.cross_size),
        "HOROVOD_HOSTNAME": hostname,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
