"""Keeps names, texts, docstrings and comments in plain technical English: no banned names, no banned idioms."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("spark_estimator", "benchmarks", "chaos", "examples", "matrix", "docker", "release")

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
# Also banned in comments and docstrings, the stricter half.
BANNED_IN_COMMENTS = {
    r"\bone another\b": "each other",
    r"\bof (its|their) own\b(?=[^\w\s]|$)": "a separate, its own",
    r"\b(on|under) (its|their) way\b|\bunder way\b": "in flight, running",
    r"\b(comes?|came) back\b": "returns",
    r"\bso many\b": "this number of",
    r"\btravel(s|led)?\b": "is sent, is pickled",
}


def _pattern(idioms: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{idiom})" for idiom in idioms), re.IGNORECASE)


_IN_TEXTS, _IN_COMMENTS = _pattern(BANNED_IDIOMS), _pattern([*BANNED_IDIOMS, *BANNED_IN_COMMENTS])


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def native_files(*, tests: bool = False) -> list[Path]:
    """The C++ sources; without `tests` those of the engine and its benchmarks only."""
    paths = [path for path in sorted((ROOT / "native").rglob("*.[ch]*")) if path.suffix in (".cc", ".h")]
    return [path for path in paths if tests or not {"tests", "fuzz"} & set(path.relative_to(ROOT).parts)]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of each variable, parameter and attribute that the code binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each string: what a user can see, and all docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each docstring, also of private names."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each comment; comments on consecutive lines are one."""
    first, last, texts = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield first, " ".join(texts)
                first, texts = token.start[0], []
            last = token.start[0]
            texts.append(token.string.lstrip("#: "))
    yield first, " ".join(texts)


# A string of C++, or (as the group) a comment; ``//`` on consecutive lines is one comment.
_NATIVE = re.compile(r'"(?:[^"\\\n]|\\.)*"|(/\*.*?\*/|//[^\n]*(?:\n\s*//[^\n]*)*)', re.DOTALL)


def native_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each comment of C++."""
    for match in _NATIVE.finditer(source):
        if match[1]:
            yield source.count("\n", 0, match.start()) + 1, re.sub(r"/\*|\*/|//+|\n\s*\*", " ", match[1])


def native_code(source: str) -> str:
    """C++ without strings and comments, with as many lines."""
    return _NATIVE.sub(lambda match: "\n" * match[0].count("\n"), source)


def idioms_of(text: str, pattern: re.Pattern[str] = _IN_TEXTS) -> list[str]:
    return [match[0] for match in pattern.finditer(" ".join(text.split()))]


def _offences(texts: list[tuple[Path, int, str]], pattern: re.Pattern[str] = _IN_TEXTS) -> str:
    """A line for each text with banned idioms; this file is excepted."""
    return "\n".join(
        f"{path.relative_to(ROOT)}:{line}: {', '.join(idioms)}"
        for path, line, text in texts
        if path != Path(__file__) and (idioms := idioms_of(text, pattern))
    )


def test_variables_have_names_that_say_what_they_are() -> None:
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files(*PRODUCT, "tests")
        for line, name in bound_names(tree_of(path))
        if name.strip("_") in BANNED_NAMES
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_variables_of_the_engine_have_names_that_say_what_they_are() -> None:
    name = re.compile(rf"\b({'|'.join(sorted(BANNED_NAMES))})_?\b")
    offences = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in native_files()
        for number, line in enumerate(native_code(path.read_text()).splitlines(), 1)
        for match in name.finditer(line)
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_texts_have_no_banned_idioms() -> None:
    texts = [(path, *text) for path in python_files(*PRODUCT) for text in strings(tree_of(path))]
    assert not (offences := _offences(texts)), offences


def test_comments_and_docstrings_have_no_banned_idioms() -> None:
    texts = [
        (path, *text)
        for path in python_files(*PRODUCT, "tests")
        for text in (*docstrings(tree_of(path)), *comments(path.read_text()))
    ]
    assert not (offences := _offences(texts, _IN_COMMENTS)), offences


def test_native_texts_have_no_banned_idioms() -> None:
    """String literals of the engine, which reach users in errors and log lines, and all comments."""
    literals = [
        (path, number, literal)
        for path in native_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line.split("//")[0])
    ]
    texts = [(path, *comment) for path in native_files(tests=True) for comment in native_comments(path.read_text())]
    assert not (offences := _offences(literals) + _offences(texts, _IN_COMMENTS)), offences


def test_pages_have_no_banned_idioms() -> None:
    """What users and contributors read first."""
    folders = ("docs/tutorials", "docs/how-to", "docs/explanation", "spark_estimator", "native", "docker")
    pages = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.md"))]
    texts = [
        (path, number, line)
        for path in [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *pages]
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]
    assert not (offences := _offences(texts)), offences


@pytest.mark.parametrize(
    ("source", "idioms"),
    [
        ('raise ValueError("the driver is told of it")', ["is told"]),
        ('def run():\n    """Goes on\n    from there."""', ["Goes on"]),
        ('def _run():\n    """Goes on from there."""', ["Goes on"]),
        ("x = 1  # nobody\n# waits, and\n# the rank goes\n# on", ["nobody", "goes on"]),
        ('raise ValueError("rank 1 reports the error")  # rank 0 waits', []),
    ],
)
def test_the_rule_for_texts(source: str, idioms: list[str]) -> None:
    texts = [*strings(ast.parse(source)), *comments(source)]
    assert [idiom for _, text in texts for idiom in idioms_of(text)] == idioms


def test_the_rule_for_native_comments() -> None:
    source = 'f("a // b", 1);  // whoever\n/* goes\n * on */\n// the peer lies\n// goes\n// on\n'
    assert [(line, idioms_of(text)) for line, text in native_comments(source)] == [
        (1, ["whoever"]),
        (2, ["goes on"]),
        (4, ["lies", "goes on"]),
    ]
    assert native_code('f("one"); // own\nint one; /* a\nb */') == "f(); \nint one; \n"


def test_the_rule_for_names() -> None:
    names = [name for _, name in bound_names(ast.parse("for one in rows: self.told = one\ndef f(own): found = 1"))]
    assert sorted(names) == ["found", "one", "own", "told"]
