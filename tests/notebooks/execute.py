"""Runs the notebooks in a kernel, and stores their outputs in them: `make notebooks`."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: Longest time of a cell.
CELL_SECONDS = 120
#: What this package writes to stderr: the ranks' lines, and lines about the job. The others are Spark's and Java's.
#: Lines of TensorFlow's start are left out, too: Keras imports it where it is installed.
_TENSORFLOW = r"WARNING: All log messages before absl|[IW]\d{4} \d\d:\d\d:|To enable the following instructions"
_OUR_LINE = re.compile(rf"\[\d+\]<stderr>:(?!{_TENSORFLOW})|spark_estimator: ")


def environment() -> dict[str, str]:
    """Variables for the kernel: it uses this checkout, and shows nothing that disappears from an output."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_ESTIMATOR_STATUS_LINE": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def executed(notebook: Path, folder: Path) -> Any:
    """Runs a notebook in a separate kernel, which has this process's environment.

    Args:
        notebook: the file; it is not changed.
        folder: the working directory of the kernel.

    Returns:
        The notebook with the outputs of this run, as they are stored.
    """
    import nbclient
    import nbformat

    book = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(book, timeout=CELL_SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return stored(book)


def stored(book: Any) -> Any:
    """Removes from a notebook what differs from run to run without meaning. Adds the mark of its code."""
    scrub = _Scrubber()
    for cell in code_cells(book):
        cell.metadata = {}
        cell.outputs = [output for output in map(scrub.output, _joined(cell.outputs)) if output is not None]
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "code_of_outputs": mark(book),
    }
    return book


def code_cells(book: Any) -> list[Any]:
    """The cells with code, in order."""
    return [cell for cell in book.cells if cell.cell_type == "code"]


def mark(book: Any) -> str:
    """A checksum of the code: stored outputs have that of the code that made them."""
    sources = "\n# cell\n".join(cell.source for cell in code_cells(book))
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def kinds(book: Any) -> list[list[str]]:
    """[code cells][outputs] what each output is: stdout, or its MIME types. Whether a rank logs varies: no stderr."""
    names = [
        [output.get("name") or " ".join(sorted(output.data)) for output in cell.outputs] for cell in code_cells(book)
    ]
    return [[name for name in outputs if name != "stderr"] for outputs in names]


def text_of(book: Any) -> str:
    """All text that the outputs show."""
    outputs = [output for cell in code_cells(book) for output in cell.outputs]
    return "\n".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "") for output in outputs
    )


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs without Spark's log lines, and with one output for each stream of a cell, at the place of its first."""
    joined: list[Any] = []
    streams: dict[str, Any] = {}
    for output in outputs:
        if output.output_type != "stream":
            joined.append(output)
            continue
        text = output.text
        if output["name"] == "stderr":
            text = "".join(line for line in text.splitlines(keepends=True) if _OUR_LINE.match(line))
        if not text:
            continue
        if output["name"] in streams:
            streams[output["name"]].text += text
        else:
            output.text = text
            streams[output["name"]] = output
            joined.append(output)
    return joined


class _Scrubber:
    """Replaces what belongs to the machine: its name, its folders, and the numbers of processes."""

    def __init__(self) -> None:
        self._pids: dict[str, str] = {}
        temporary = re.escape(tempfile.gettempdir())
        self._patterns = (
            (re.compile(rf"{re.escape(str(ROOT))}/"), ""),
            (re.compile(rf"{temporary}/ipykernel_\d+/\d+\.py"), "cell.py"),
            (re.compile(rf"{temporary}/[\w.-]+"), "/tmp/notebook"),
            (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"), "2026-01-01 12:00:00,000"),
        )

    def output(self, output: Any) -> Any:
        """One output without what belongs to the machine."""
        if output.output_type == "stream":
            output.text = self._text(output.text)
        else:
            for kind, text in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = self._text(text)
        return output

    def _text(self, text: str) -> str:
        for name in {socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1"} - {""}:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", "vm", text)
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return re.sub(r"\bpid (\d+)", self._pid, text)

    def _pid(self, match: re.Match[str]) -> str:
        return "pid " + self._pids.setdefault(match[1], str(1001 + len(self._pids)))


def main() -> None:
    """Runs the notebooks whose names contain one of the arguments; without any, all of them."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    os.environ.update(environment())
    for notebook in NOTEBOOKS:
        if names and not any(name in notebook.stem for name in names):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            book = executed(notebook, Path(folder))
        text = nbformat.writes(book, indent=1)
        notebook.write_text(text.rstrip("\n") + "\n")
        print(f"{notebook.name}: {time.monotonic() - began:.0f} s, {len(text) // 1024} KiB", flush=True)


if __name__ == "__main__":
    main()
