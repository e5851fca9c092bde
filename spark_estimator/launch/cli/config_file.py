"""``horovodrun --config-file``: Horovod's YAML file of settings, read as the flags of its keys.

It has groups, and in them lines ``key: value``, of which the values are numbers, words and truth values. Anything else
is refused, with its line number. Needs PyYAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yaml import Node

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


def read_flags(path: str) -> list[str]:
    """Return the flags that a file's keys mean, as on a command line.

    Raises:
        ValueError: the file cannot be read, or something in it is not understood (the text names file and line); or
            PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise ValueError("--config-file needs PyYAML, which isn't installed here: pip install PyYAML.") from None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        return [] if document is None or _is_empty(document) else list(_convert(document))
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ValueError(f"{path}{line}: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} can't be read: {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def _convert(document: Node) -> Iterator[str]:
    """Yield the flags of a document; a ValueError begins with the line."""
    for key, value in _split_entries(document):
        group = key.value.replace("-", "_")
        if group in _KEYS and value.id != "scalar":
            for inner, setting in _split_entries(value):
                yield from _convert_entry(group, inner, setting)
        else:
            yield from _convert_entry("", key, value)


def _split_entries(node: Node) -> Iterator[tuple[Node, Node]]:
    if node.id != "mapping":
        raise _make_error(node, "entries must have the form key: value")
    for key, value in node.value:
        if key.id != "scalar":
            raise _make_error(key, "a key must be a word")
        yield key, value


def _convert_entry(group: str, key: Node, setting: Node) -> list[str]:
    if _is_empty(setting):
        return []
    keys, name = _KEYS[group], key.value.replace("-", "_")
    if name not in keys:
        position = f"in the group {group!r}" if group else "outside of a group"
        groups = [*_KEYS][1:] * (not group)
        raise _make_error(key, f"{key.value!r} isn't a key {position}; the keys are {', '.join([*keys, *groups])}")
    if setting.id != "scalar":
        raise _make_error(setting, f"{name} must be a number, a word, or text in quotes")
    flag, value = keys[name], str(setting.value)
    if name == "controller":
        if value.lower() not in _CONTROLLERS:
            raise _make_error(setting, f"controller must be gloo or mpi; got {value!r}")
        return [_CONTROLLERS[value.lower()]]
    if flag not in _SWITCHES:
        return [f"{flag}={value}"]
    if value.lower() not in _TRUTH:
        raise _make_error(setting, f"{name} must be true or false; got {value!r}")
    if _TRUTH[value.lower()]:
        return [flag]
    return [off] if (off := _OFF.get(flag, "--no-" + flag.removeprefix("--"))) else []


def _is_empty(node: Node) -> bool:
    return node.id == "scalar" and (node.tag == "tag:yaml.org,2002:null" or not node.value)


def _make_error(node: Node, text: str) -> ValueError:
    return ValueError(f"line {node.start_mark.line + 1}: {text}.")
