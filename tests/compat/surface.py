"""Regenerates the table of Horovod's 413 public items: ``python -m tests.compat.surface`` writes it, and prints counts.

``horovod_items.tsv`` has the items: the section of the list, how common it is, and the item. The names in an item are
looked up where the section's names are, on the aliases; flags, arguments and variables in the package's own tables of
those without effect. An item without names is behaviour: the tests cover it, and `BEHAVIOUR` names them for launchers
and the engine. `DIFFERENCES` has names that work in another way, with the reason; `docs/reference/horovod.md` explains
them.
"""

from __future__ import annotations

import dataclasses
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

from spark_estimator import compat, env
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
    NO_EFFECT = "no effect"
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


_NO_DATA_MODULE = "a ValueError names HorovodRunner.run(function, data=df)"
#: (section, item) -> why it is not Horovod's. Sentences for users are in docs/reference/horovod.md.
DIFFERENCES: dict[tuple[int, str], str] = {
    (2, "`start_timeline`"): "works without HOROVOD_TIMELINE=DYNAMIC",
    (3, "`allreduce`"): "more types; no gradient of Min, Max and Product",
    (3, "`sparse_allreduce_async`"): "averages of integers are integers",
    (3, "`allgather_async`"): "a 0-dimensional tensor is an error at the call",
    (4, "`DistributedOptimizer`"): "returns the same object, with its state",
    (4, "`backward_passes_per_step`"): "counts calls of backward(), and not how often each parameter is reached",
    (4, "`groups`"): "parameters that are added later are exchanged, each alone",
    (4, "`.synchronize()`"): "a second call exchanges nothing",
    (4, "`broadcast_optimizer_state`"): "makes no step",
    (4, "`SyncBatchNorm`"): "also on CPU tensors",
    (5, "`horovod.common.elastic.ObjectState`"): "keeps copies of the attributes",
    (5, "`State.save()`, `restore()`, `sync()`"): "sync() takes the present attributes",
    (7, "`elastic.UpdateEpochStateCallback`"): "also right with fit(initial_epoch=state.epoch)",
    (8, "`spark.run`"): "barrier mode; starts a session where there is none",
    (9, "`train_steps_per_epoch`, `validation_steps_per_epoch`"): "at most one pass over the rows",
    (9, "`validation`"): "a share is exact; a column holds 0 and 1, or booleans",
    (9, "model `setOutputCols(list)`, `getOutputCols()`"): "the name of a column that is there is an error",
    (10, "metric form"): "also plain lists and dicts",
    (11, "`TorchModel`"): "the history has an entry for each epoch",
    (14, "`-v`, `--version`"): "prints this package's version",
    (14, "`--gloo-timeout-seconds`"): "as --start-timeout, which wins",
    (14, "`--stall-check-warning-time-seconds`"): "10 by default",
    (14, "elastic driver rules"): "a host is left out after its third failure, and not after the first",
    (15, "tensor fusion"): "no cycle: what is ready while the engine works goes together",
    (15, "stall inspector"): "after 10 s",
    (15, "timeline"): "rows by rank; no MEMCPY phases",
    (15, "autotune"): f"missing: {env.WITHOUT_EFFECT['HOROVOD_AUTOTUNE']}",
    (15, "hierarchical and torus allreduce"): "hierarchical by size, where no variable is set; no torus",
    (15, "averaging"): "16-bit values are added in float32 and rounded once, except by NCCL",
    (15, "NVTX ranges"): f"missing: {env.WITHOUT_EFFECT['HOROVOD_DISABLE_NVTX_RANGES']}",
    (16, "`HOROVOD_CONTROLLER`, `HOROVOD_CPU_OPERATIONS`"): "set to gloo for scripts; not read",
    (16, "`HOROVOD_STALL_CHECK_TIME_SECONDS`"): "10 by default",
    (16, "`HOROVOD_GLOO_TIMEOUT_SECONDS`"): "as HOROVOD_START_TIMEOUT, which wins",
    (16, "`HOROVOD_SPARK_START_TIMEOUT`"): "a job on a DataFrame's rows waits without limit where it is not set",
    (16, "`NCCL_*`, `GLOO_*`"): "NCCL_... are passed on; GLOO_... are not: there is no Gloo",
    (
        16,
        "build: `HOROVOD_WITH_*`, `HOROVOD_WITHOUT_*`, `HOROVOD_GPU_OPERATIONS`, `HOROVOD_GPU_<OP>`, "
        "`HOROVOD_NCCL_HOME`, `HOROVOD_CUDA_HOME`, `HOROVOD_BUILD_ARCH_FLAGS`, `HOROVOD_CMAKE`, `HOROVOD_DEBUG` and "
        "15 more",
    ): "no effect: options of a build; but HOROVOD_GPU_OPERATIONS is read at run time: how GPU tensors travel",
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
    (10, "`data_module`"): _NO_DATA_MODULE,
    (10, "`input_shapes`"): "optional",
    (10, "`getOptimizer()`"): "of an estimator: the optimizer as it was set",
    (10, "`datamodule.PetastormDataModule`, `NVTabularDataModule`"): "a call says what to use",
    (11, "version window"): "Lightning 2",
    (11, "`data_module`"): _NO_DATA_MODULE,
    (11, "`loader_num_epochs`"): "no effect",
    (11, "`debug_data_loader`"): "no effect",
    (11, "`train_async_data_loader_queue_size`, `val_async_data_loader_queue_size`"): "no effect",
    (12, "`data_module`"): _NO_DATA_MODULE,
    (
        13,
        "`get_filesystem()`, `fs`, `get_localized_path`, `get_full_path`, `get_full_path_fn`, "
        "`get_data_metadata_path`, `read_serialized_keras_model`, `copy`",
    ): "read_serialized_keras_model is missing; the others are real",
    (13, "`spark.common.util.prepare_data`"): "a call says what to use",
    (
        13,
        "`util.clear_training_cache()`, `util.get_dataset_properties(idx)`, `util.get_simple_meta_from_parquet(...)`, "
        "`util.check_validation`",
    ): "a call says what to use",
    (13, "`spark.common.datamodule.DataModule`"): "a call says what to use",
    (13, "`spark.data_loaders.pytorch_data_loaders`"): "its classes: a call says what to use",
    (19, "`horovod.mxnet`"): "an import error: MXNet is retired",
    (19, "`horovod.ray`"): "an import error: use Ray's own trainers",
}


#: (section, item without names) -> the test of it.
BEHAVIOUR: dict[tuple[int, str], str] = {
    (14, "`--blacklist-cooldown-range MIN MAX`"): (
        "tests/launch/elastic/test_placement.py::test_a_host_comes_back_after_a_cool_down_that_grows"
    ),
    (14, "negative values"): "tests/launch/cli/test_main.py::test_what_cannot_be_done_is_said_in_a_line",
    (15, "response cache"): "tests/scenarios/collectives/test_insight.py::test_counters_and_descriptions",
    (15, "negotiation by name"): (
        "tests/collectives/test_ops.py::test_a_thousand_random_allreduces_in_different_orders"
    ),
    (15, "stall shutdown"): (
        "tests/scenarios/collectives/test_disagreements.py::test_different_names_are_told_and_fail_in_the_end_if_asked"
    ),
    (15, "CPU collectives"): (
        "tests/collectives/test_ops.py::test_all_ranks_get_the_same_bits_and_both_channels_the_same_numbers"
    ),
    (15, "GPU collectives"): "tests/torch/test_gpu.py::test_every_form_of_every_op",
    (15, "error propagation"): (
        "tests/scenarios/collectives/test_faults.py::test_every_op_that_waits_for_a_killed_rank_names_it"
    ),
}
#: Variables that the launcher sets and that are in no table of ``env``: Python's and CUDA's.
_SET_BY_LAUNCHER = frozenset({"PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"})


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
    if reason_of(section, name):
        return Status.NO_EFFECT
    if section == 14 or name.startswith("-"):
        arguments = _parameters(importlib.import_module("spark_estimator.runner").run)
        return Status.REAL if name in _flags() | arguments else Status.MISSING
    if section == 16:
        variables = {field.metadata["variable"] for field in dataclasses.fields(env.Settings)}
        return Status.REAL if name in variables | env.SET_FOR_SCRIPTS.keys() | _SET_BY_LAUNCHER else Status.MISSING
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


def reason_of(section: int, name: str) -> str:
    """Why a flag, an argument or a variable has no effect; "" for what has one."""
    if section == 14:
        values = _flags_without_effect().get(name)
        return "" if values is None else values[1] or "it is so in any case"
    if section == 16:
        return env.WITHOUT_EFFECT.get(f"HOROVOD_AUTOTUNE{name}" if name.startswith("_") else name, "")
    reasons: dict[str, str] = importlib.import_module("spark_estimator.launch.cli.obsolete").REASONS
    return reasons.get(name, "") if section == 8 else ""


def _flags_without_effect() -> dict[str, tuple[int, str]]:
    reasons: dict[str, tuple[int, str]] = importlib.import_module("spark_estimator.launch.cli.flags")._WITHOUT_EFFECT
    return reasons


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
    parser = importlib.import_module("spark_estimator.launch.cli.flags").make_parser()
    return frozenset(option for action in parser._actions for option in action.option_strings)


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def status_of(item: Item) -> Status:
    """By the worst of its names; an item that is there may differ."""
    statuses = [lookup(item.section, name) for name in names_of(item.text)]
    if (item.section, item.text) in DIFFERENCES:
        return Status.DIFFERS
    if not statuses and item.section in (14, 15, 16) and (item.section, item.text) not in BEHAVIOUR:
        return Status.MISSING
    worst = (Status.MISSING, Status.SENTENCE, Status.NO_EFFECT)
    return next((status for status in worst if status in statuses), Status.REAL)


def table(entries: Sequence[tuple[Item, Status]]) -> list[str]:
    """Markdown."""
    lines = ["| Section | Item | How common | Here |", "|---|---|---|---|"]
    for item, status in entries:
        words = DIFFERENCES.get((item.section, item.text)) or status.value
        if status is Status.MISSING:
            absent = [name for name in names_of(item.text) if lookup(item.section, name) is Status.MISSING]
            words = f"missing: {', '.join(absent)}"
        elif status is Status.NO_EFFECT:
            words = _effects(item)
        lines.append(f"| {item.section} | {item.text} | {item.rarity} | {words} |")
    return lines


def _effects(item: Item) -> str:
    """Which names of an item have no effect, and why."""
    names_for: dict[str, list[str]] = {}
    for name in names_of(item.text):
        names_for.setdefault(reason_of(item.section, name), []).append(name)
    words = {reason: f"no effect: {reason}" if reason else Status.REAL.value for reason in names_for}
    if len(names_for) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{', '.join(f'`{name}`' for name in names)}: {words[why]}" for why, names in names_for.items())


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
