"""A mutation: one change that breaks what a row of the two tables promises, and tests of that row that must fail."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

PAGES = ("docs/explanation/fault-matrix.md", "docs/explanation/security.md")
_LINE = re.compile(r"^\| (S?\d+) \|.*$", re.MULTILINE)
_TEST = re.compile(r"`((?:tests|native)/[^`]*?)::(\w+)`")


@dataclass(frozen=True)
class Mutation:
    """One change to the code, and the tests that must fail after it.

    Attributes:
        row: of the tables: a number of a fault, or S and the number of a demand.
        breaks: what no longer holds after the change, in a few words.
        file: that is changed.
        before: the text that is replaced; it occurs once in the file.
        after: what replaces it.
        also: a second text of the file and what replaces it, where two guards protect from one fault.
        tests: each is one that the row names, ``path::name``; a Python test may have its parameters, ``[a-b]``, too.
        hangs: whether a test may fail by its own time-out, as the change makes it wait for ever.
        seconds: the longest time for the tests of one run.
    """

    row: str
    breaks: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    hangs: bool = False
    seconds: float = 300
    also: tuple[str, str] | None = None

    @property
    def is_native(self) -> bool:
        """Whether the engine or a C++ test must be compiled."""
        return self.file.startswith("native/") or any(test.startswith("native/") for test in self.tests)

    @property
    def is_quick(self) -> bool:
        """Whether it needs neither a compiler nor a long time."""
        return not self.is_native and self.seconds <= 300

    def applied(self, text: str) -> str:
        """Return the file's text after the change.

        Raises:
            ValueError: the text to replace does not occur exactly once.
        """
        for before, after in ((self.before, self.after), *([self.also] if self.also else [])):
            if (times := text.count(before)) != 1:
                raise ValueError(f"row {self.row}: {before!r} occurs {times} times in {self.file}: expected once.")
            text = text.replace(before, after)
        return text


def rows(page: str) -> dict[str, list[str]]:
    """Return the tests that each row of a page's table names, as ``path::name``."""
    return {match[1]: ["::".join(parts) for parts in _TEST.findall(match[0])] for match in _LINE.finditer(page)}


def function_of(test: str) -> str:
    """Return a test without its parameters."""
    return test.partition("[")[0]


def exists(root: Path, test: str) -> bool:
    """Return whether the file defines that test, and where it is C++ also calls it."""
    path, _, name = function_of(test).partition("::")
    file = root / path
    if not file.exists():
        return False
    if file.suffix == ".py":
        names = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
        return name.startswith("test_") and name in names
    return len(re.findall(rf"\b{name}\b", file.read_text())) > 1
