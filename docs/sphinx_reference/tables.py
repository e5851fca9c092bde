"""The generated parts of the reference, as MyST Markdown: each function reads one table of the code."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix import cells
from spark_estimator import env
from spark_estimator.__main__ import COMMANDS
from spark_estimator.errors import get_code
from spark_estimator.launch.job.spark_settings import SETTINGS
from sphinx_reference import api

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def described(kind: str, name: str, text: str, **options: str) -> str:
    """One entry of a page: a Sphinx directive such as `envvar`, which makes an anchor and an entry of the index."""
    lines = [f":::{{{kind}}} {name}", *(f":{option}: {value}" for option, value in options.items())]
    return "\n".join([*lines, "", text, ":::", ""])


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop, and values as code: "keep: no change" begins with `keep`."""
    text = re.sub(r"(^|[;:] )(?!(?:default|empty):)('?[\w-]+'?): ", r"\1`\2`: ", text.strip())
    # A name of code keeps its first letter.
    first = text if re.match(r"[a-z]\w*[_.(=-]", text) else text[:1].upper() + text[1:]
    return first if first.endswith((".", "?", "!")) else first + "."


def code(text: object) -> str:
    """The text as code of Markdown."""
    return f"`{text}`" if str(text) else "empty"


def cell(text: str) -> str:
    """The text as it is written in a cell of a table."""
    return text.replace("|", r"\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


def environment_variables() -> str:
    """The variables that the package reads: the fields of `env.Settings`."""
    entries = []
    for field in dataclasses.fields(env.Settings):
        default = "not set" if field.default in (None, "") else code(printed(field.default))
        text = f"{sentence(field.metadata['effect'])}\n\nUnit: {field.metadata['unit']}. Default: {default}."
        entries.append(described("envvar", field.metadata["variable"], text))
    return "\n".join(entries)


def printed(value: object) -> str:
    """A default as a user writes it."""
    return str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _variables(meanings: Mapping[str, str]) -> str:
    read = {field.metadata["variable"] for field in dataclasses.fields(env.Settings)}
    return "\n".join(
        described("envvar", name, sentence(meaning)) for name, meaning in meanings.items() if name not in read
    )


def environment_for_scripts() -> str:
    """The variables that launchers set for scripts."""
    return _variables(env.SET_FOR_SCRIPTS)


def environment_for_workers() -> str:
    """The variables that launchers set for their own workers."""
    return _variables(env.SET_FOR_WORKERS)


def environment_without_effect() -> str:
    """Horovod's variables that are not read, with the reason."""
    return _variables(env.WITHOUT_EFFECT)


def spark_settings() -> str:
    """The settings of a Spark session that are this package's own."""
    return "\n".join(
        described("confval", name, sentence(setting.effect), default=setting.default)
        for name, setting in SETTINGS.items()
    )


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by the name under which a user starts it."""
    from spark_estimator.__main__ import make_env_parser
    from spark_estimator.launch.cli import flags

    commands = {"horovodrun": flags.make_parser(), "python -m spark_estimator env": make_env_parser()}
    for command, module in COMMANDS.items():
        if command != "run":  # the same as horovodrun
            commands[f"python -m spark_estimator {command}"] = importlib.import_module(module).make_parser()
    return {name: parser for parent in commands.items() for name, parser in _with_subcommands(*parent)}


def _with_subcommands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from _with_subcommands(f"{name} {word}", child)


def command_line() -> str:
    """The flags and arguments of each command."""
    return "\n".join(f"## {name}\n\n{_command(name, parser)}" for name, parser in parsers().items())


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    ignored: list[Sequence[str]] = []
    parts = [sentence(parser.description or ""), f"```text\n{usage}\n```", f":::{{program}} {name}\n:::"]
    for group in parser._action_groups:
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            if action.help is argparse.SUPPRESS:
                reason = action.const or "accepted for Horovod's command lines"
                ignored.append([", ".join(map(code, action.option_strings)), sentence(str(reason))])
            else:
                parts.append(described("option", _spelling(parser, action), _help(parser, action)))
    if ignored:
        parts += ["Horovod's flags that are accepted and have no effect:", table(["flag", "reason"], ignored)]
    return "\n\n".join(parts) + "\n"


def _spelling(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = (
        parser._get_formatter()._format_args(action, (action.metavar or action.dest).upper())
        if (action.nargs != 0 and not isinstance(action.metavar, tuple))
        else " ".join(action.metavar or ())
        if action.nargs != 0
        else ""
    )
    if not action.option_strings:
        return str(action.metavar or action.dest)
    return ", ".join(f"{flag} {values}".strip() for flag in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = sentence(parser._get_formatter()._expand_help(action)) if action.help else ""
    if action.choices is not None:
        text += " One of " + ", ".join(map(code, action.choices)) + "."
    return text.strip()


def parameters() -> str:
    """The parameters of the estimators: those of all, and of each."""
    from spark_estimator.estimators import params
    from spark_estimator.estimators.keras import params as keras
    from spark_estimator.estimators.lightning import params as lightning
    from spark_estimator.estimators.torch import params as torch
    from spark_estimator.extensions.transformers import params as transformers

    common = (*params.SHARED, *params.PREDICTING)
    sections = [("Of every estimator", "estimator", common)]
    for title, key, module in (
        ("Of TorchEstimator", "torch", torch),
        ("Of KerasEstimator", "keras", keras),
        ("Of Lightning's TorchEstimator", "lightning", lightning),
        ("Of TransformersEstimator", "transformers", transformers),
    ):
        inherited = {(row.name, row.doc) for row in common}
        sections.append((title, key, tuple(row for row in module.ESTIMATOR if (row.name, row.doc) not in inherited)))
    sections.append(("Of trained models", "model", (params.HISTORY, *params.MODEL)))
    of_models = {row.name for row in params.MODEL}
    of_torch = tuple(row for row in torch.MODEL if row.name not in {*of_models, "history"})
    sections.append(("Of TorchModel", "model", of_torch))
    sections.append(("Of KerasModel", "keras-model", tuple(row for row in keras.MODEL if row.name not in of_models)))
    of_texts = tuple(row for row in transformers.MODEL if row not in (params.HISTORY, *params.MODEL))
    sections.append(("Of TransformersModel", "transformers-model", of_texts))
    texts = [f"## {title}\n\n" + "\n".join(_parameter(key, row) for row in rows) for title, key, rows in sections]
    ignored = {
        **params.WITHOUT_EFFECT,
        **keras.WITHOUT_EFFECT,
        **{name: f"{reason} (Lightning)" for name, reason in lightning.WITHOUT_EFFECT.items()},
    }
    rows = [[code(name), sentence(reason)] for name, reason in ignored.items()]
    texts.append("## Horovod's parameters without effect\n\n" + table(["parameter", "reason"], rows))
    return "\n".join(texts)


def _parameter(key: str, row: object) -> str:
    default = repr(row.default) if not dataclasses.is_dataclass(row.default) else "empty"
    if type(row.default).__name__ in ("History", "KerasHistory"):
        default = "empty"
    accessors = f"`set{row.camel}`, `get{row.camel}`"
    return (
        f"[`{row.name}`]{{#{key}-{row.name.replace('_', '-')}}}\n"
        f": {sentence(row.doc)}\n\n  Type: {code(row.type)}. Default: {code(default)}. Methods: {accessors}.\n"
    )


def errors() -> str:
    """The error types, with the code and the first sentence of each."""
    from spark_estimator import errors as module

    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    return "\n".join(_error(kind) for kind in kinds if issubclass(kind, BaseException))


def _error(kind: type[BaseException]) -> str:
    link = f"[`{kind.__name__}`](../errors.md#{kind.__name__.lower()})"
    return f"{link} (`{get_code(kind)}`), a `{kind.__bases__[0].__name__}`\n: {_summary(kind)}\n"


def _summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].replace("``", "`").split())


def compatibility() -> str:
    """What pyproject.toml accepts and constraints.txt pins, for each dependency but petastorm's."""
    pins = pinned_versions()
    rows = []
    for extra, requirements in accepted_versions().items():
        if extra in ("dev", "docs", "petastorm"):
            continue
        for name, accepted in requirements:
            pinned = pins.get(name.lower()) or pins.get(f"{name}-cpu", [])  # the same library, built without GPUs
            tested = [f"{version}{f' ({when})' if when else ''}" for version, when in pinned]
            rows.append([name, extra, accepted or "any", ", ".join(tested) or "not by `make test`"])
    python = f"Python: `{_project()['requires-python']}` (`requires-python` in `pyproject.toml`).\n\n"
    return python + table(["package", "extra", "accepted", "tested"], rows)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def accepted_versions() -> dict[str, list[tuple[str, str]]]:
    """Extra ("always": none is needed) -> (package, accepted versions) of each requirement in pyproject.toml."""
    project = _project()
    groups = {"always": project["dependencies"], **project["optional-dependencies"]}
    requirements = {
        extra: [re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?(.*)", line) for line in lines]
        for extra, lines in groups.items()
    }
    return {
        extra: [(match[1], match[2]) for match in matches if match and match[1] != "spark-estimator"]
        for extra, matches in requirements.items()
    }


def pinned_versions() -> dict[str, list[tuple[str, str]]]:
    """Package -> (version, for which Python) of each line of constraints.txt."""
    pins: dict[str, list[tuple[str, str]]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = re.match(r"([\w.-]+)==(\S+)(?: ; python_version (<|>=) \"([\d.]+)\")?", line)
        if match:
            name, version, side, python = match.groups()
            when = f"Python {python} and later" if side == ">=" else f"Python before {python}" if side else ""
            pins.setdefault(name.lower(), []).append((version, when))
    return pins


def matrix_results() -> str:
    """What `make matrix` has stored for each cell."""
    path = ROOT / "matrix" / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    packages = ("python", "pyspark", "torch", "numpy", "pandas", "pyarrow")
    rows = []
    for name in cells.CELLS:
        outcome = results.get(name, {"versions": {}, "checks": {}, "date": ""})
        failed = [f"{check}: {text.splitlines()[0]}" for check, text in outcome["checks"].items() if text != "ok"]
        passed = len(outcome["checks"]) - len(failed)
        result = [f"{passed} checks passed" if passed else "not run"] if passed or not failed else []
        versions = [outcome["versions"].get(package, "") for package in packages]
        rows.append([name, *versions, "; ".join([*result, *failed]), outcome["date"]])
    return table(["cell", *packages, "result", "date"], rows)


def petastorm_environment() -> str:
    """What the extra `petastorm` accepts, and with what `make test-petastorm` runs."""
    lines = (ROOT / "tests/extensions/petastorm/requirements.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    rows = [[name, accepted, tested[name]] for name, accepted in accepted_versions()["petastorm"]]
    return table(["package", "accepted", "tested"], rows)


def examples() -> str:
    """The programs of examples/, with the command that starts each, and the notebooks."""
    rows = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        summary, _, rest = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")
        command = re.search(rf"``([^`]*examples\.{path.stem}\b[^`]*)``", rest)
        if command and path.stem != "__init__":
            rows.append([code(f"examples/{path.name}"), summary, code(command[1])])
    notebooks = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        title, _, text = "".join(json.loads(path.read_text())["cells"][0]["source"]).partition("\n")
        notebooks.append([code(f"notebooks/{path.name}"), title.lstrip("# "), text.strip().partition("\n")[0]])
    return table(["program", "what it does", "start it"], rows) + "\n" + table(["notebook", "", ""], notebooks)


#: The name of each part, as the directive `reference` takes it.
PARTS: dict[str, Callable[[], str]] = {
    "environment": environment_variables,
    "environment-for-scripts": environment_for_scripts,
    "environment-for-workers": environment_for_workers,
    "environment-without-effect": environment_without_effect,
    "spark-settings": spark_settings,
    "command-line": command_line,
    "parameters": parameters,
    "errors": errors,
    "compatibility": compatibility,
    "matrix": matrix_results,
    "petastorm": petastorm_environment,
    "examples": examples,
    "horovod-names": api.horovod_names,
}
