"""Builds the environments of cells, runs the smoke test in each, and stores the results in ``results.json``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from matrix import environment
from matrix.cells import CELLS, Cell

RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    """Returns 0 when all checks of all cells passed."""
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    parser.add_argument("--cell", action="append", default=[], choices=[*CELLS, "all", "rotating"])
    parser.add_argument("--store", action="store_true", help=f"write the outcome into {RESULTS.name}")
    parser.add_argument("--remove", action="store_true", help="remove each environment afterwards (up to 7 GB)")
    parser.add_argument("--minutes", type=float, default=15, help="for all checks of a cell (15)")
    options = parser.parse_args()
    if not options.cell:
        for cell in CELLS.values():
            print(f"{cell.name}: Python {cell.python}, " + ", ".join(" ".join(pin) for pin in cell.pins.items()))
        print("make matrix CELL=NAME runs one of them, CELL=rotating today's, CELL=all all")
        return 0
    failed = 0
    for name in chosen(options.cell, datetime.date.today()):
        outcome = run(CELLS[name], datetime.timedelta(minutes=options.minutes))
        bad = [f"{check}: {text}" for check, text in outcome["checks"].items() if text != "ok"]
        failed += bool(bad)
        print(f"matrix: {name}: {'; '.join(bad) or 'ok'}, {outcome['seconds']} s", flush=True)
        if options.store:
            stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps({**stored, name: outcome}, indent=2, sort_keys=True) + "\n")
        if options.remove:
            shutil.rmtree(environment.FOLDER / name, ignore_errors=True)
    return int(failed > 0)


def chosen(words: list[str], today: datetime.date) -> list[str]:
    """The names of the cells that the words mean; ``rotating`` is another one each day."""
    names = list(CELLS)
    meanings = {"all": names, "rotating": [names[today.toordinal() % len(names)]]}
    return [name for word in words for name in meanings.get(word, [word])]


def run(cell: Cell, longest: datetime.timedelta) -> dict[str, Any]:
    """The result of one cell: the date, the versions, and each check's ``ok`` or what was wrong.

    Args:
        cell: to try.
        longest: for all of its checks; checks that have not ended by then are stopped.
    """
    outcome: dict[str, Any] = {"date": datetime.date.today().isoformat(), "versions": {}, "checks": {}, "seconds": 0}
    try:
        python = environment.build(cell)
    except environment.NoPython as error:
        outcome["checks"]["environment"] = str(error)
        return outcome
    except subprocess.SubprocessError as error:
        outcome["checks"]["environment"] = f"pip could not install it: {error}"[:500]
        return outcome
    started = time.monotonic()
    log = environment.FOLDER / f"{cell.name}.log"
    with log.open("w") as errors:
        for kind in ("classic", "connect") if cell.connect else ("classic",):
            left = longest.total_seconds() - (time.monotonic() - started)
            for line in _smoke(python, kind, errors, left):
                outcome["versions"] |= line.get("versions", {})
                if "check" in line:
                    print(f"matrix: {cell.name}: {line}", flush=True)
                    outcome["checks"][line["check"]] = line["outcome"]
    outcome["seconds"] = round(time.monotonic() - started)
    return outcome


def _smoke(python: Path, kind: str, errors: Any, seconds: float) -> list[dict[str, Any]]:
    command = [str(python), str(Path(__file__).with_name("smoke.py")), kind]
    environ = {**os.environ, "PYTHONPATH": str(environment.ROOT)}
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, timeout=seconds, check=False
        )
        text, end = answer.stdout, f"exit status {answer.returncode}"
    except subprocess.TimeoutExpired as error:
        text, end = (error.stdout or b"").decode(errors="replace"), f"stopped after {seconds:.0f} s"
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if end != "exit status 0":
        lines.append(
            {"check": f"{kind}: the end", "outcome": f"{end}; see {Path(errors.name).relative_to(environment.ROOT)}"}
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
