"""The pages of the API, as MyST Markdown with directives of autodoc: one section for each public module.

Public is what ``tests/public_names.txt`` lists. An object that several modules offer is described where `MODULES` has
it first; the others link there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]

#: The public modules of this package: an object is described in the first one that offers it.
MODULES = (
    "spark_estimator.errors",
    "spark_estimator",
    "spark_estimator.runner",
    "spark_estimator.observe.driver_log",
    "spark_estimator.spark",
    "spark_estimator.spark.runner",
    "spark_estimator.spark.backend",
    "spark_estimator.elastic",
    "spark_estimator.torch",
    "spark_estimator.torch.mpi_ops",
    "spark_estimator.torch.optimizer",
    "spark_estimator.torch.compression",
    "spark_estimator.torch.sync_batch_norm",
    "spark_estimator.torch.elastic",
    "spark_estimator.torch.process_group",
    "spark_estimator.estimators.torch.callbacks",
    "spark_estimator.tensorflow",
    "spark_estimator.tensorflow.mpi_ops",
    "spark_estimator.tensorflow.compression",
    "spark_estimator.tensorflow.elastic",
    "spark_estimator.keras",
    "spark_estimator.keras.callbacks",
    "spark_estimator.keras.elastic",
    "spark_estimator.tensorflow.keras",
    "spark_estimator.jax",
    "spark_estimator.lightning",
    "spark_estimator.checkpoint",
    "spark_estimator.store",
    "spark_estimator.data",
    "spark_estimator.data.petastorm",
    "spark_estimator.compat",
    "spark_estimator.doctor",
)

#: The values among the public names: what each is.
VALUES = {
    "_basics": "This package's module, for code that reads Horovod's object of this name.",
    "__version__": "The version of the package, as text.",
    "BACKEND_NAME": "The name of the backend for `torch.distributed.init_process_group`.",
    "global_process_set": "The process set of all ranks.",
    "Adasum": "Reduce op: Horovod's adaptive sum of gradients.",
    "Average": "Reduce op: the sum divided by the number of ranks.",
    "Max": "Reduce op: the largest value, element by element.",
    "Min": "Reduce op: the smallest value, element by element.",
    "Product": "Reduce op: the product, element by element.",
    "Sum": "Reduce op: the sum, element by element.",
}


@functools.cache
def public_names() -> dict[str, tuple[str, ...]]:
    """Module -> its public names, of this package's modules and Horovod's."""
    names: dict[str, list[str]] = {}
    for line in (ROOT / "tests" / "public_names.txt").read_text().splitlines():
        module, name = line.split()
        names.setdefault(module, []).append(name)
    return {module: tuple(listed) for module, listed in names.items()}


@functools.cache
def homes() -> dict[int, str]:
    """The id of each public object -> the dotted name under which it is described."""
    places: dict[int, str] = {}
    aliases: dict[int, str] = {}  # of those in `places`: the module
    for module in MODULES:
        for name in public_names()[module]:
            value = getattr(importlib.import_module(module), name)
            # Rather under its own name than under that of an alias.
            if name not in VALUES and (id(value) not in places or aliases.get(id(value)) == module):
                if name == getattr(value, "__name__", name):
                    aliases.pop(id(value), None)
                    places[id(value)] = f"{module}.{name}"
                else:
                    aliases[id(value)] = module
                    places.setdefault(id(value), f"{module}.{name}")
    return places


def module_page(module: str) -> str:
    """The section of a module: what it is for, its objects, and links to those that are described elsewhere."""
    described, linked = [], []
    imported = importlib.import_module(module)
    for name in public_names()[module]:
        dotted, value = f"{module}.{name}", getattr(imported, name)
        if name in VALUES:
            described.append(f".. py:data:: {dotted}\n\n   {VALUES[name]}\n")
        elif homes()[id(value)] == dotted:
            described.append(_entry(dotted, value))
        else:
            linked.append(f"{{py:obj}}`{name} <{homes()[id(value)]}>`")
    parts = [f"```{{eval-rst}}\n.. automodule:: {module}\n   :no-members:\n```\n"]
    if described:
        parts.append("```{eval-rst}\n" + "\n".join(described) + "\n```\n")
    if linked:
        parts.append("Also here, and described on the page of their first module: " + ", ".join(linked) + ".\n")
    return "\n".join(parts)


def _entry(dotted: str, value: object) -> str:
    if isinstance(value, ModuleType):
        members = ", ".join(name for name, member in vars(value).items() if _is_of(value, name, member))
        return f".. automodule:: {value.__name__}\n   :members: {members}\n"
    if not isinstance(value, type):
        return f".. autofunction:: {dotted}\n"
    kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    # Their parameters have a page.
    takes_parameters = any(parent.__name__ == "TableParams" for parent in value.__mro__)
    signature = "(**parameters)" if takes_parameters else ""
    members = [
        f"   .. auto{'property' if isinstance(getattr(value, name), property) else 'method'}:: {dotted}.{name}\n"
        for name in members_of(value)
    ]
    return "\n".join([f".. {kind}:: {dotted}{signature}\n", *members])


def members_of(kind: type) -> list[str]:
    """The documented methods and properties that this package gives a class, but for generated setters and getters."""
    names: dict[str, None] = {}
    for parent in kind.__mro__:
        if parent.__module__.startswith("spark_estimator") and not parent.__module__.endswith(".keywords"):
            for name, member in vars(parent).items():
                is_member = inspect.isroutine(getattr(member, "__func__", member)) or isinstance(member, property)
                if is_member and not name.startswith("_") and inspect.getdoc(getattr(kind, name)):
                    names.setdefault(name)
    return list(names)


def _is_of(module: ModuleType, name: str, member: object) -> bool:
    return not name.startswith("_") and inspect.isroutine(member) and member.__module__ == module.__name__


def horovod_names() -> str:
    """Horovod's and sparkdl's modules, and the module of this package that each stands for."""
    from spark_estimator.compat.aliases import MODULES as aliases

    rows = []
    for module, names in public_names().items():
        if module.startswith("spark_estimator"):
            continue
        rows.append(f"`{module}`\n: {_target(aliases.get(module))}{', '.join(f'`{name}`' for name in names)}\n")
    return "\n".join(rows)


def _target(module: str | None) -> str:
    return f"Another name of `{module}`: " if module else ""
