"""Breaks the code on purpose, and checks that the tests which the tables of faults and demands name then fail.

``python -m tests.mutations 1 S14`` tries the mutations of these rows, in a copy of the tree below ``build/mutations``.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutations import faults, security
from tests.mutations.mutation import Mutation
from tests.mutations.tree import Tree
from tests.mutations.verdicts import Verdict, verdict

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = (*faults.MUTATIONS, *security.MUTATIONS)
ROTATING = "rotating"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when each test failed after its mutation, or is skipped here."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    words = "rows, such as 1 or S14; rotating: quick ones of another row each day; by default all"
    parser.add_argument("rows", nargs="*", metavar="ROW", help=words)
    rows = parser.parse_args(arguments).rows
    if unknown := set(rows) - {ROTATING, *(mutation.row for mutation in MUTATIONS)}:
        parser.error(f"there is no row {', '.join(sorted(unknown))} in the tables.")
    chosen = mutations_of(rows, datetime.date.today())
    folder = ROOT / "build" / "mutations"
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs would change the same copy
        tree = Tree(ROOT, folder)
        tree.log.unlink(missing_ok=True)
        tree.update()
        for mutation in chosen:
            started = time.monotonic()
            result, why = verdict(tree, mutation)
            bad += result in (Verdict.SURVIVED, Verdict.UNKNOWN)
            seconds = time.monotonic() - started
            print(f"{mutation.row:>4}  {result.value:<9}  {seconds:4.0f} s  {mutation.breaks}", flush=True)
            if why:
                print(f"      {why}", flush=True)
    print(f"{len(chosen) - bad} passed, {bad} failed" + (f"; the output is in {tree.log}" if bad else ""))
    return int(bad > 0)


def mutations_of(rows: Sequence[str], today: datetime.date) -> list[Mutation]:
    """Return the mutations of rows; without a row all, and for `ROTATING` the quick ones of the day's row."""
    if ROTATING in rows:
        quick = [mutation for mutation in MUTATIONS if mutation.is_quick]
        days = list(dict.fromkeys(mutation.row for mutation in quick))
        return [mutation for mutation in quick if mutation.row == days[today.toordinal() % len(days)]]
    return [mutation for mutation in MUTATIONS if not rows or mutation.row in rows]


if __name__ == "__main__":
    sys.exit(main())
