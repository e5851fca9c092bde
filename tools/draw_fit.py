"""Draws the picture of the front page: runs its program in a terminal, and writes what is left on the screen as SVG.

``python -m tools.draw_fit`` writes ``docs/_static/fit.svg``.
"""

from __future__ import annotations

import html
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "_static" / "fit.svg"
_PROMPT = "$ python train.py"
_WIDTH, _LINE, _COLUMNS = 8.4, 20, 72  # of a character and a line, in units of the drawing; characters of a line


def run_in_terminal(program: str) -> str:
    """Return all that a program writes to a terminal."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        written.extend(data)
        return data

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(program)
        status = pty.spawn(
            ["env", f"PYTHONPATH={ROOT}", f"PYSPARK_PYTHON={sys.executable}", sys.executable, str(path)], read
        )
    if status:
        raise SystemExit(f"the program of docs/index.md ended with status {status}")
    return written.decode()


def find_shown_lines(text: str) -> list[str]:
    """Return the lines that stay on the screen, from the first epoch on; a line is what was last written in it."""
    written = [re.split(r"\r|\x1b\[2K", line) for line in text.splitlines()]
    lines = [next((part.rstrip() for part in reversed(parts) if part.strip()), "") for parts in written]
    first = next(number for number, line in enumerate(lines) if line.startswith("[0] epoch"))
    return [line for line in lines[first:] if re.match(r"\[0\]|[+|]|only", line)]


def draw(lines: list[str]) -> str:
    """Return the lines as a terminal's window."""
    width, height = round(_COLUMNS * _WIDTH) + 32, _LINE * len(lines) + 52
    text = "\n".join(
        f'<text x="16" y="{40 + _LINE * number}" xml:space="preserve">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#16202c"/>\n'
        '<g fill="#d8e3ee" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        f"{text}\n</g>\n</svg>\n"
    )


def main() -> None:
    """Run the first block of Python of docs/index.md, and write the picture."""
    page = (ROOT / "docs" / "index.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    PICTURE.write_text(draw([_PROMPT, *find_shown_lines(run_in_terminal(program))]))


if __name__ == "__main__":
    main()
