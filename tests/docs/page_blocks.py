"""Finds the fenced code blocks of README.md and of the documentation, and why some of them are not run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Languages of blocks that a reader runs. Others, such as ``text``, show an output.
LANGUAGES = ("python", "sh")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"^<!-- not run: (.+) -->\n\Z", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    Attributes:
        page: its file, relative to the repository.
        language: the word after the fence.
        index: its number among the page's blocks of this language, from 0.
        line: the line of its fence in the file, from 1.
        text: the code.
        not_run: the reason in the marker before the fence, the HTML comment ``<!-- not run: ... -->``, for which no
            test runs the block; empty: there is no marker.
    """

    page: str
    language: str
    index: int
    line: int
    text: str
    not_run: str


def pages() -> list[str]:
    """README.md and the pages below docs/, relative to the repository."""
    return ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


def blocks_of(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page in their order; of one language, if it is set."""
    text = (ROOT / page).read_text()
    counts: dict[str, int] = {}
    blocks = []
    for match in _FENCE.finditer(text):
        name = match[1]
        reason = _REASON.search(text[: match.start()])
        counts[name] = index = counts.get(name, -1) + 1
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(page, name, index, line, match[2], reason[1] if reason else ""))
    return [block for block in blocks if language in (None, block.language)]
