"""Regenerates the table of Horovod's 413 public items: ``python -m tests.compat.surface`` writes it, and prints counts.

``horovod_items.tsv`` has the items: the section of the list, how common it is, and the item. The names in an item are
looked up where the section's names are, on the aliases. An item without names is behaviour; the tests cover it.
`DIFFERENCES` has names that work in another way, with the reason; `docs/reference/horovod.md` explains them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from spark_estimator import compat
from spark_estimator.compat.unavailable import UNAVAILABLE

ITEMS = Path(__file__).parent / "horovod_items.tsv"
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "horovod.md"
MARK = "## All items"
_NAME = re.compile(r"`([^`]+)`")


#: What is quoted in items and is no name to look up: Spark's, Lightning's, and values.
_NO_NAMES = frozenset({"...", "None", "True", "False", "dynamic", "Pipeline", "Trainer", "distributed_backend"})
#: Methods of an item are of this package's classes of other names.
_RENAMED = {
    "HorovodModel.transform": "TorchModel.transform",
    "Optimizer": "getOptimizer",
    "InputShapes": "getInputShapes",
    "Loss": "getLoss",
    "LossConstructors": "getLossConstructors",
}


class Status(Enum):
    """What an item is in this package."""

    REAL = "real"
    DIFFERS = "differs, documented"
    SENTENCE = "a sentence"
    MISSING = "missing"


@dataclass(frozen=True)
class Item:
    """A line of the list.

    Attributes:
        section: its number; several sections have items of one name.
        rarity: core, common, rare or obsolete.
        text: the item.
    """

    section: int
    rarity: str
    text: str


#: (section, item) -> why it is not Horovod's. Sentences for users are in docs/reference/horovod.md.
DIFFERENCES: dict[tuple[int, str], str] = {
    (2, "`start_timeline`"): "works without HOROVOD_TIMELINE=DYNAMIC",
    (3, "`allreduce`"): "more types; no gradient of Min, Max and Product",
    (3, "`sparse_allreduce_async`"): "averages of integers are integers",
    (3, "`allgather_async`"): "a 0-dimensional tensor is an error at the call",
    (4, "`DistributedOptimizer`"): "returns the same object, with its state",
    (4, "`broadcast_optimizer_state`"): "makes no step",
    (4, "`SyncBatchNorm`"): "also on CPU tensors",
    (5, "`State.save()`, `restore()`, `sync()`"): "sync() takes the present attributes",
    (8, "`spark.run`"): "barrier mode; starts a session where there is none",
    (9, "`train_steps_per_epoch`, `validation_steps_per_epoch`"): "at most one pass over the rows",
    (9, "`validation`"): "a share is exact",
    (10, "metric form"): "also plain lists and dicts",
    (11, "`TorchModel`"): "the history has an entry for each epoch",
    (15, "stall inspector"): "after 10 s",
    (15, "timeline"): "rows by rank; no MEMCPY phases",
    (16, "`HOROVOD_STALL_CHECK_TIME_SECONDS`"): "10 by default",
    (
        2,
        "`init(comm=[ranks])`",
    ): "under another launcher, a job of these ranks; in a job of horovodrun or Spark only all ranks: use process sets",
    (2, "`init(comm=MPI.Comm)`"): "under another launcher, a job of the communicator's processes; MPI carries no data",
    (2, "`mpi_threads_supported`"): "MPI is not used",
    (4, "Adasum optimizer"): "works without MPI",
    (4, "`.skip_synchronize()`"): "not needed; the gradients are averages when backward() returns",
    (4, "`.zero_grad()`"): "allowed between backward() and step()",
    (6, "`LocalGradientAggregationHelper`"): "an internal class of Horovod's; missing",
    (6, "XLA custom ops"): "not built",
    (6, "`data.compute_service`"): "a call names dataset.shard",
    (8, "`spark.conf` constants"): "under the keys of today's Spark",
    (8, "`spark.tensorflow.compute_worker`"): "a call names dataset.shard",
    (9, "`store`"): "optional; rows are not written to it by default",
    (9, "data cache"): "only with materialize=True",
    (9, "`continuous_cols`, `categorical_cols`"): "no effect",
    (9, "`compress_sparse_cols`"): "no effect",
    (9, "`shuffle_buffer_size`"): "no effect",
    (9, "`partitions_per_process`"): "no effect",
    (9, "`train_reader_num_workers`, `val_reader_num_workers`"): "no effect",
    (9, "`reader_pool_type`"): "no effect",
    (9, "`inmemory_cache_all`"): "no effect",
    (9, "`mp_start_method`"): "no effect",
    (9, "`tensorflow_dataset_prefetch_buffer_size`"): "no effect",
    (9, "`transformation_fn`"): "also takes pandas frames",
    (10, "`data_module`"): "classes derived from DataModule",
    (10, "`input_shapes`"): "optional",
    (10, "`getOptimizer()`"): "of an estimator: the optimizer as it was set",
    (10, "`datamodule.PetastormDataModule`, `NVTabularDataModule`"): "NVTabularDataModule: a call says what to use",
    (11, "version window"): "Lightning 2",
    (11, "`loader_num_epochs`"): "no effect",
    (11, "`debug_data_loader`"): "no effect",
    (11, "`train_async_data_loader_queue_size`, `val_async_data_loader_queue_size`"): "no effect",
    (12, "`data_module`"): "classes derived from DataModule",
    (
        13,
        "`get_filesystem()`, `fs`, `get_localized_path`, `get_full_path`, `get_full_path_fn`, "
        "`get_data_metadata_path`, `read_serialized_keras_model`, `copy`",
    ): "read_serialized_keras_model is missing; the others are real",
    (19, "`horovod.mxnet`"): "an import error: MXNet is retired",
    (19, "`horovod.ray`"): "an import error: use Ray's own trainers",
}


def items() -> list[Item]:
    """All items, in the order of the list."""
    lines = ITEMS.read_text(encoding="utf-8").splitlines()[1:]
    return [Item(int(section), rarity, text) for section, rarity, text in (line.split("\t") for line in lines)]


def names_of(text: str) -> Iterator[str]:
    """The names in an item: without arguments, and without values."""
    for quoted in _NAME.findall(text):
        name = re.sub(r"\(.*$", "", quoted).strip().strip(".")
        name = name.split("=")[0] if not name.startswith("-") else name
        if (
            re.fullmatch(r"-{1,2}[\w-]+|[A-Za-z_][\w.]*", name)
            and name not in _NO_NAMES
            and not name.endswith(("-", "get"))
        ):
            yield name


@cache
def owners(section: int) -> tuple[Any, ...]:
    """Where the names of a section are looked up."""
    load = importlib.import_module
    torch, tensorflow, keras = load("horovod.torch"), load("horovod.tensorflow"), load("horovod.tensorflow.keras")
    spark, store = load("horovod.spark"), load("horovod.spark.common.store")
    estimators = [load(f"horovod.spark.{name}") for name in ("torch", "lightning", "keras")]
    kinds = [value for module in estimators for name, value in _members(module) if name[0].isupper()]
    optimizer = load("spark_estimator.torch.optimizer.optimizer").DistributedMethods
    of_section: dict[int, tuple[Any, ...]] = {
        1: (load("horovod"),),
        2: (torch, torch.ProcessSet, load("horovod.torch.mpi_ops")),
        3: (torch, torch.mpi_ops, torch.allreduce),
        4: (torch, optimizer, torch.DistributedOptimizer),
        5: (
            torch,
            torch.elastic,
            torch.elastic.TorchState,
            torch.elastic.ElasticSampler,
            load("horovod.common.elastic"),
        ),
        6: (
            tensorflow,
            tensorflow.mpi_ops,
            tensorflow.DistributedOptimizer,
            tensorflow.elastic,
            load("horovod.tensorflow.data"),
            load("spark_estimator.tensorflow.tape")._DistributedMethods,
            load("spark_estimator.tensorflow.optimizer")._DistributedOptimizer,
        ),
        7: (keras, load("horovod.keras")),
        8: (spark, spark.run, load("horovod.spark.task"), load("horovod.spark.tensorflow")),
        9: (*kinds, *estimators),
        10: (estimators[0], *kinds, load("horovod.spark.torch.datamodule")),
        11: (estimators[1], *kinds, load("horovod.spark.lightning.legacy")),
        12: (estimators[2], *kinds),
        13: (store, store.FilesystemStore, load("horovod.spark.common.backend"), load("horovod.spark.common")),
        17: (load("horovod.common.util"),),
        18: (load("sparkdl"), load("sparkdl").HorovodRunner),
    }
    return (*of_section.get(section, ()), load("horovod"), spark, load("horovod.spark.data_loaders"))


def _members(module: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(module, name)) for name in dir(module) if not name.startswith("_")]


def lookup(section: int, name: str) -> Status:
    """Whether a name is there, and more than a sentence."""
    if section == 14 or name.startswith("-"):
        return Status.REAL if name in _flags() | _parameters(importlib.import_module("horovod").run) else Status.MISSING
    if section in (15, 16):
        return Status.REAL
    name = _RENAMED.get(name, name)
    if name.startswith(("horovod.", "sparkdl.", "lightning_horovod.")):
        return _imported(name)
    for owner in owners(section):
        value = owner
        for part in name.split("."):
            missing = object()
            named = getattr(value, part, missing)
            if named is missing and inspect.ismodule(value):
                named = _submodule(value, part, missing)
            if named is missing:
                named = getattr(importlib.import_module("horovod"), part, missing) if value is owner else missing
            if named is missing and part in _parameters(value):
                named = part
            value = named
            if value is missing:
                break
        else:
            return Status.SENTENCE if _is_placeholder(value) else Status.REAL
    return Status.MISSING


def _imported(name: str) -> Status:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            value = getattr(value, part, None)
        return Status.MISSING if value is None else Status.SENTENCE if _is_placeholder(value) else Status.REAL
    return Status.MISSING


def _submodule(module: Any, name: str, missing: object) -> Any:
    try:
        return importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return missing


def _is_placeholder(value: Any) -> bool:
    return inspect.isclass(value) and value.__name__ in UNAVAILABLE.get(value.__module__, {})


@cache
def _flags() -> frozenset[str]:
    parser = importlib.import_module("spark_estimator.launch.cli.flags").parser()
    return frozenset(option for action in parser._actions for option in action.option_strings)


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def status_of(item: Item) -> Status:
    """By the worst of its names; an item that is there may differ."""
    statuses = [lookup(item.section, name) for name in names_of(item.text)]
    differs = (item.section, item.text) in DIFFERENCES
    if Status.MISSING in statuses and not differs:
        return Status.MISSING
    if differs:
        return Status.DIFFERS
    return Status.SENTENCE if Status.SENTENCE in statuses else Status.REAL


def table(entries: Sequence[tuple[Item, Status]]) -> list[str]:
    """Markdown."""
    lines = ["| Section | Item | How common | Here |", "|---|---|---|---|"]
    for item, status in entries:
        reason = DIFFERENCES.get((item.section, item.text))
        absent = [name for name in names_of(item.text) if lookup(item.section, name) is Status.MISSING]
        words = reason or (f"missing: {', '.join(absent)}" if status is Status.MISSING else status.value)
        lines.append(f"| {item.section} | {item.text} | {item.rarity} | {words} |")
    return lines


def page_with(text: str, lines: Sequence[str]) -> str:
    """The page with another table at its end."""
    return text[: text.index(MARK)] + MARK + "\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Writes the table into the page, and prints the counts."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    compat.install()
    entries = [(item, status_of(item)) for item in items()]
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), table(entries)), encoding="utf-8")
    print(PAGE)
    counts = Counter((item.rarity, status.value) for item, status in entries)
    for (rarity, status), count in sorted(counts.items()):
        print(f"{rarity}: {count} {status}")


if __name__ == "__main__":
    main()
