"""Keeps names and user-visible texts in plain technical English: no banned variable names, no banned idioms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("spark_estimator", "benchmarks", "chaos", "matrix")

# Words that do not describe the value: use the noun of the field (`column`, `process`, `missing_ranks`).
BANNED_NAMES = frozenset({"found", "given", "one", "own", "said", "told"})

# Idioms (case does not matter) and what to write instead.
BANNED_IDIOMS = {
    r"\b(is|are|was|were|be|been|being) told\b": "gets, receives; or name who reports what",
    r"\btells? (of|all|who|what|which|whether|how)\b": "reports, returns, shows",
    r"\bsaid\b|\bsays\b": "reports, returns, contains",
    r"\bnobody\b|\bsomebody\b|\banybody\b": "no rank, a process, another user",
    r"\bwhoever\b|\bwhatever\b|\bwherever\b": "name the thing",
    r"\banew\b": "again",
    r"\bstands? (here|there|at|in|for|on|below|above)\b": "is, means",
    r"\bgo(es|ing)? on\b|\bwent on\b": "continues",
    r"\b(lie|lies|lay|lain)\b": "is, is stored",
    r"\b(can|could|cannot) be had\b|\bto be had\b": "is available, is unavailable",
    r"\bwhat is (given|said|told)\b": "the argument, the message",
    r"\bof (ours|theirs)\b": "of this package",
    r"\bfor so (long|many|much)\b": "for this time, for N",
    r"\blets? go of\b": "releases, closes",
    r"\btakes? the place of\b|\btook the place of\b": "replaces",
    r"\b(is|are) through\b": "is complete, has finished",
    r"\bsomething else than\b": "other than, not",
    r"\bin vain\b": "without success",
    r"\btaken for\b": "treated as",
    r"\bat hand\b": "available",
    r"\bno such\b": "name what is missing",
    r"\bof old\b|\bof late\b": "earlier, recently",
    r"\bcomes to (an end|nothing)\b": "ends, fails",
    r"\bstrange bytes\b": "invalid data",
    r"\bsign of life\b|\bsigns of life\b": "heartbeat",
    r"\bspark-estimator\[|\bpip install '?spark[-_]estimator(?![-\w])": "its wheel, or packages that are on PyPI",
}
_IDIOM = re.compile("|".join(f"(?:{idiom})" for idiom in BANNED_IDIOMS), re.IGNORECASE)


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of each variable, parameter and attribute that the code binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def visible_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each string that can reach a user, and of each docstring of a module or public name."""
    private: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if text is not None and node.name.startswith("_"):
                private.add(id(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in private:
            yield node.lineno, node.value


def idioms_of(text: str) -> list[str]:
    return [match[0] for match in _IDIOM.finditer(" ".join(text.split()))]


def test_variables_have_names_that_say_what_they_are() -> None:
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files(*PRODUCT, "tests")
        for line, name in bound_names(ast.parse(path.read_text()))
        if name.strip("_") in BANNED_NAMES
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_texts_have_no_banned_idioms() -> None:
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(idioms)}"
        for path in python_files(*PRODUCT)
        for line, text in visible_texts(ast.parse(path.read_text()))
        if (idioms := idioms_of(text))
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_native_texts_have_no_banned_idioms() -> None:
    """String literals of the engine, which reach users in errors and log lines."""
    offences = [
        f"{path.relative_to(ROOT)}:{number}: {', '.join(idioms)}"
        for path in sorted((ROOT / "native").rglob("*.[ch]*"))
        if path.suffix in (".cc", ".h") and not {"tests", "fuzz"} & set(path.relative_to(ROOT).parts)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line.split("//")[0])
        if (idioms := idioms_of(literal))
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_pages_have_no_banned_idioms() -> None:
    """What users and contributors read first."""
    folders = ("docs/tutorials", "docs/how-to", "docs/explanation", "spark_estimator", "native", "docker")
    pages = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.md"))]
    offences = [
        f"{path.relative_to(ROOT)}:{number}: {', '.join(idioms)}"
        for path in [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *pages]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (idioms := idioms_of(line))
    ]
    assert not offences, "\n" + "\n".join(offences)


@pytest.mark.parametrize(
    ("source", "idioms"),
    [
        ('raise ValueError("the driver is told of it")', ["is told"]),
        ('def run():\n    """Goes on\n    from there."""', ["Goes on"]),
        ('def _run():\n    """Goes on from there."""', []),
        ('raise ValueError("rank 1 reports the error")', []),
    ],
)
def test_the_rule_for_texts(source: str, idioms: list[str]) -> None:
    assert [idiom for _, text in visible_texts(ast.parse(source)) for idiom in idioms_of(text)] == idioms


def test_the_rule_for_names() -> None:
    names = [name for _, name in bound_names(ast.parse("for one in rows: self.told = one\ndef f(own): found = 1"))]
    assert sorted(names) == ["found", "one", "own", "told"]
