"""``horovodrun --config-file``: Horovod's YAML file of settings, read as the flags of its keys.

Of YAML it needs groups, and in them lines ``key: value``, of which the values are numbers, words and truth values. This
subset is read here, without a library; anything else is refused, with its line number.
"""

from __future__ import annotations

import re
from pathlib import Path

# Group -> key -> flag; that of a truth value, which may be switched off, is the one without "no-".
_KEYS = {
    "": {"verbose": "--verbose", "controller": ""},
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": "--hierarchical-allreduce",
        "hierarchical_allgather": "--hierarchical-allgather",
        "torus_allreduce": "--torus-allreduce",
    },
    "autotune": {
        "enabled": "--autotune",
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {"filename": "--timeline-filename", "mark_cycles": "--timeline-mark-cycles"},
    "stall_check": {
        "enabled": "--stall-check",
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": "--mpi-threads-disable",
        "mpi_args": "--mpi-args",
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {
        "level": "--log-level",
        "with_timestamp": "--log-with-timestamp",
        "without_timestamp": "--log-without-timestamp",
        "hide_timestamp": "--log-hide-timestamp",
    },
}
_SWITCHES = {
    *("--hierarchical-allreduce", "--hierarchical-allgather", "--torus-allreduce", "--autotune", "--stall-check"),
    *("--timeline-mark-cycles", "--mpi-threads-disable", "--verbose"),
    *("--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp"),
}
_OFF = {
    "--verbose": "",
    "--log-with-timestamp": "--log-without-timestamp",
    "--log-without-timestamp": "--log-with-timestamp",
}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}
_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "2": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][\w-]*)\s*:(?:\s+(?P<value>.*))?")
_QUOTED = re.compile(r"""(?:'(?P<single>(?:[^']|'')*)'|"(?P<double>[^"\\]*)")\s*(?:#.*)?""")
_PLAIN = re.compile(r"(?P<plain>[^\s#'\"\[\]{}&*!|>%@`,?][^#]*?|)\s*(?:(?:^|\s)#.*)?")


def flags_of(path: str) -> list[str]:
    """The flags that a file's keys mean, as on a command line.

    Raises:
        ValueError: the file cannot be read, or something in it is not understood; the text names file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    flags, group = [], ""
    for number, line in enumerate(lines, 1):
        if not line.partition("#")[0].strip() or line.strip() in ("---", "..."):
            continue
        try:
            match = _LINE.fullmatch(line.rstrip())
            if match is None or "\t" in match["indent"]:
                raise ValueError(f"{line.strip()!r} must have the form key: value")
            key, value = match["key"].replace("-", "_"), _scalar(match["value"] or "")
            if not match["indent"]:
                group = ""
                if key in _KEYS and not value:
                    group = key
                    continue
            elif not group:
                raise ValueError(f"{line.strip()!r} doesn't belong to a group")
            if value:
                flags += _flags(group, key, value)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}.") from None
    return flags


def _scalar(text: str) -> str:
    """A value without its quotes and comment; '' for none."""
    quoted, plain = _QUOTED.fullmatch(text), _PLAIN.fullmatch(text)
    if quoted is not None:
        return quoted["double"] if quoted["single"] is None else quoted["single"].replace("''", "'")
    if plain is None:
        raise ValueError(f"{text!r} isn't supported here: use a number, a word, or text in quotes")
    return "" if plain["plain"].lower() in ("~", "null") else plain["plain"]


def _flags(group: str, key: str, value: str) -> list[str]:
    keys = _KEYS[group]
    if key not in keys:
        where = f"in the group {group!r}" if group else "outside of a group"
        raise ValueError(f"{key!r} isn't a key {where}; the keys are {', '.join([*keys] + [*_KEYS][1:] * (not group))}")
    if key == "controller":
        if value.lower() not in _CONTROLLERS:
            raise ValueError(f"controller must be gloo or mpi; got {value!r}")
        return [_CONTROLLERS[value.lower()]]
    flag = keys[key]
    if flag not in _SWITCHES:
        return [f"{flag}={value}"]
    if value.lower() not in _TRUTH:
        raise ValueError(f"{key} must be true or false; got {value!r}")
    if _TRUTH[value.lower()]:
        return [flag]
    return [off] if (off := _OFF.get(flag, "--no-" + flag.removeprefix("--"))) else []
