"""``python -m spark_estimator explain CODE``: the cause and the remedy of an error, from the page on errors.

The page is ``errors.md`` beside this file. The documentation shows the same file.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from pathlib import Path

from spark_estimator import errors

_PAGE = Path(__file__).with_name("errors.md")


def read_sections() -> dict[str, str]:
    """Return code -> the section on it, as Markdown with its heading, in the order of the page."""
    parts = re.split(r"^(?=#{2,3} )", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    codes = [re.search(r"^\*\*Code\.\*\* `(\w+)`$", part, re.MULTILINE) for part in parts]
    return {code[1]: part for code, part in zip(codes, parts, strict=True) if code}


def to_terminal_text(section: str) -> str:
    """Return the section without Markdown's marks for labels, links and emphasis; programs' output is indented."""
    text = re.sub(r"^\([\w-]+\)=\n|^#+ ", "", section, flags=re.MULTILINE)
    text = re.sub(r"```text\n(.*?)\n```", lambda block: textwrap.indent(block[1], "    "), text, flags=re.DOTALL)
    text = re.sub(r"\{\w+\}`([^`]+)`", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", _to_reference, text).replace("**", "")
    # Emphasis marks quoted output; in indented output a * is itself.
    return re.sub(r"^(?! {4}).*(?:\n(?! {4}).*)*", _add_quotes, text, flags=re.MULTILINE).strip()


def _add_quotes(lines: re.Match[str]) -> str:
    return re.sub(r"(?<![*\w])\*(?=\S)([^*]+)\*(?![*\w])", r'"\1"', lines[0])


def _to_reference(link: re.Match[str]) -> str:
    """Return a link as text: sections of this page by their name, other pages by their path or address."""
    text, target = link.groups()
    if target.startswith("#"):
        code = next((code for code, part in read_sections().items() if _make_anchor(part) == target[1:]), "")
        return f"{text} (explain {code})" if code else text
    path = target.removeprefix("../")
    if errors.DOCUMENTATION_URL:
        path = f"{errors.DOCUMENTATION_URL}/{path.removeprefix('docs/').replace('.md', '.html')}"
    return f"{text} ({path})" if text else path


def _make_anchor(section: str) -> str:
    heading = re.search(r"^#+ (.+)$", section, re.MULTILINE)
    return "" if heading is None else heading[1].lower().replace(" ", "-")


def _find_similar(word: str, known: dict[str, str]) -> list[str]:
    """Return codes that contain the word, or whose section has a kind that contains it; without one, similar codes."""
    name = word.upper().replace(" ", "_")
    result = [code for code in known if name in code]
    for code, section in known.items():
        kinds = re.findall(r'^#### Kind "([^"]+)"', section, re.MULTILINE)
        result += [f'{code} (kind "{kind}")' for kind in kinds if word.lower() in kind]
    return result or difflib.get_close_matches(name, known, n=3)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``explain``."""
    result = argparse.ArgumentParser(
        prog="python -m spark_estimator explain",
        description="Print the cause of an error, what it looks like, and what to do about it.",
    )
    result.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="the code at the end of the message, such as WORKER_FAILED, or the name of the error's class; STALL "
        "explains the reports of a stalled job; without it, the command lists all codes",
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Print one section, or the list of codes; return the exit status, 2 for an unknown code."""
    known = read_sections()
    code = make_parser().parse_args(arguments).code
    if code is None:
        width = max(map(len, known))
        for name, section in known.items():
            print(f"{name:<{width}}  {section.splitlines()[0].lstrip('# ')}")
        return 0
    kind = getattr(errors, code, None)
    name = errors.get_code(kind) if isinstance(kind, type) else code.upper()
    if name not in known:
        similar = _find_similar(code, known)
        hint = f"Did you mean {' or '.join(similar)}?" if similar else f"Codes are {', '.join(known)}."
        print(f"{code!r} is not the code of an error. {hint}", file=sys.stderr)
        return 2
    print(to_terminal_text(known[name]))
    return 0
