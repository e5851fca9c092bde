"""Kills ranks of an estimator's training at random moments, and times what that costs.

``python -m benchmarks.recovery [--framework torch] [--np 3] [--kills 20] [--step-ms 100] [--every SECONDS] [--seed N]``
trains a small model with dropout and batch normalization, whose steps wait as long as ``step-ms``, as they do for an
accelerator; of PyTorch, of Lightning, or of Keras with one of its backends.
Three trainings follow each other, by the same code of the estimator's ranks:

- *undisturbed*: no kills;
- *replaced*: each killed rank is replaced (``max_restarts`` of an estimator whose ranks read files); with Lightning
  and Keras all ranks continue from the last checkpoint, with ``--keep`` steps between two checkpoints;
- *restarted*: all ranks start again from the last checkpoint, as new processes (``max_restarts`` of the others). Only
  with ``--place local``.
- *warned*, on request (``--ways warned``): no rank is killed; each is warned that its machine is about to be taken
  back, and moves. Only with ``--place spark``: one host has no other to move to.

Ranks are processes of this machine (``--place local``), in executors of a local Spark cluster (``spark``), or on hosts
that are network namespaces (``hosts``; root only). Each kill is a SIGKILL of a random rank, of its executor, or of all
processes of its host, `every` seconds after the job was at full speed again, or after a random time of up to three
seconds. Printed for each way: the seconds from the kill until all ranks have made a step again (median and longest),
how many batches were computed twice for each kill, and the goodput: the time of the undisturbed training as a part of
this one's. Of a warning, the seconds are those in which the rank stood still. Histories and parameters are compared
with the undisturbed training's, bit for bit.

``--torchft PYTHON`` adds the same model under torchft 0.2, with and without kills, by an interpreter that has it. Its
replicas continue without a killed one, whose process is started again: the steps that are made in the meantime lack
the batches of the killed replica. The batches that were trained on are printed as a part of all, as "rows".
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from benchmarks.command_line import ended_by_signals, positive
from benchmarks.recovery import torchft_job
from benchmarks.recovery.places import Place, place_of
from benchmarks.recovery.training import ALL, BATCH, BATCHES, FRAMEWORKS, LAST, PID, counts, rank_main, write_rows
from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local


@dataclass
class Killer:
    """Kills ranks of one training, from a thread of the launcher.

    Attributes:
        folder: of the training's counts.
        place: kills.
        seconds: [kills] from each kill until all ranks had made a step again; of a warning, see above.
        warns: no rank is killed.
    """

    folder: str
    place: Place
    ranks: int
    kills: int
    every: float | None
    chance: random.Random
    warns: bool = False
    seconds: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Returns when all kills are made, or the training is over."""
        rows = counts(self.folder, self.ranks)
        while len(self.seconds) < self.kills and self._at_full_speed(rows):
            if self._over.wait(self.every if self.every is not None else self.chance.uniform(0, 3)):
                return
            row = rows[self.chance.randrange(self.ranks)]
            victim = int(row[PID])
            if self.warns:
                os.kill(victim, signal.SIGUSR1)
                while row[PID] == victim:
                    last = int(row[LAST])
                    if self._over.wait(0.001):
                        return
                if not self._at_full_speed(rows):
                    return
                self.seconds.append((int(row[LAST]) - last) / 1e9)
                continue
            rows[:, BATCHES] = 0
            began = time.monotonic()
            try:
                self.place.kill(victim)
            except ProcessLookupError:
                return
            while os.path.exists(f"/proc/{victim}"):  # it counts until it dies, after its executor
                if self._over.wait(0.001):
                    return
            rows[rows[:, PID] == victim, PID] = 0
            if not self._at_full_speed(rows):
                return
            self.seconds.append(time.monotonic() - began)

    def _at_full_speed(self, rows: Any) -> bool:
        """Waits until each rank has a process, and has begun its second batch. False: the training is over."""
        while not ((rows[:, PID] > 0) & (rows[:, BATCHES] > 1)).all():
            if self._over.wait(0.005):
                return False
        return True

    def end(self) -> None:
        """The training is over."""
        self._over.set()


def timed(
    way: str, place: Place, options: dict[str, Any], kills: int, every: float | None, seed: int
) -> dict[str, Any]:
    """One training. Returns its time, result, kills and counts."""
    size = options["np"]
    folder = f"{options['folder']}/{way}"
    os.makedirs(folder)
    rows = counts(folder, size)
    killer = Killer(folder, place, size, kills, every, random.Random(seed), way == "warned")
    pool = ThreadPoolExecutor(1)
    killing = pool.submit(killer.run)
    began = time.monotonic()
    try:
        if way == "restarted":
            limits = Limits(kills, timedelta(hours=2))
            results = run_local(rank_main, size, JobOptions(args=(options, way), limits=limits))
        else:
            terms = Terms(size, size, replace=True, reset_limit=kills, standby=options["standby"])
            results = place.run(rank_main, terms, JobOptions(args=(options, way)))
    finally:
        killer.end()
        pool.shutdown()
    killing.result()
    seconds = time.monotonic() - began
    return {"seconds": seconds, "result": results[0], "kills": killer.seconds, "batches": rows[:, ALL].tolist()}


def print_torchft(place: Place, arguments: argparse.Namespace, folder: str) -> None:
    """The trainings under torchft."""
    size, steps = arguments.np, arguments.steps * arguments.epochs
    seconds, again = [], [0.0]
    for kills in (0, arguments.kills):
        within = f"{folder}/torchft-{kills}"
        os.makedirs(within)
        killer = Killer(within, place, size, kills, arguments.every, random.Random(arguments.seed))
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(killer.run)
            try:
                batches, duration = torchft_job.run(arguments.torchft, within, size, steps, arguments.step_ms)
            finally:
                killer.end()
        killing.result()
        seconds.append(duration)
        again = killer.seconds or again
    print(
        f"torchft: {len(killer.seconds)} kills in {seconds[1]:.1f} s ({seconds[0]:.1f} without); all replicas are "
        f"there again after {statistics.median(again):.2f} s (longest {max(again):.2f}); "
        f"goodput {seconds[0] / seconds[1]:.3f} of steps, {batches / steps / size:.3f} of their rows",
        flush=True,
    )


def main() -> int:
    """Returns 0 when the numbers of all trainings are those of the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="torch", choices=FRAMEWORKS, help="whose estimator trains (torch)")
    parser.add_argument("--np", type=positive, default=3, help="ranks (3)")
    parser.add_argument("--kills", type=positive, default=20, help="the most kills of each way (20)")
    parser.add_argument("--step-ms", type=float, default=100, help="each step waits so long (100)")
    parser.add_argument("--steps", type=positive, default=200, help="of an epoch (200)")
    parser.add_argument("--epochs", type=positive, default=3, help="(3)")
    parser.add_argument("--keep", type=positive, default=50, help="steps between two checkpoints (50)")
    parser.add_argument("--every", type=float, help="seconds at full speed between two kills; default: random, up to 3")
    parser.add_argument("--standby", type=int, default=0, help="processes that wait for a loss, of 'replaced' (0)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (1)")
    parser.add_argument("--place", default="local", choices=("local", "spark", "hosts"), help="of the ranks (local)")
    parser.add_argument("--gpu", action="store_true", help="ranks train on their GPUs, which they may share")
    parser.add_argument("--torchft", metavar="PYTHON", help="an interpreter that has torchft")
    parser.add_argument("--ways", help="replaced,restarted (the default with --place local), warned, or one of them")
    arguments = parser.parse_args()
    ways = (arguments.ways or ("replaced,restarted" if arguments.place == "local" else "replaced")).split(",")
    if "restarted" in ways and arguments.place != "local":
        parser.error("the way 'restarted' needs --place local")
    if "warned" in ways:
        if arguments.place != "spark":
            parser.error("the way 'warned' needs --place spark")
        os.environ["SPARK_ESTIMATOR_PREEMPTION_SIGNAL"] = "USR1"
    if arguments.torchft and arguments.place != "local":
        parser.error("--torchft needs --place local")
    wrong = 0
    processes = arguments.np + arguments.standby
    with (
        tempfile.TemporaryDirectory(prefix="recovery-") as folder,
        ended_by_signals(),
        place_of(arguments.place, processes, folder) as place,
    ):
        options = {**vars(arguments), "folder": folder}
        write_rows(folder, arguments.np * BATCH * arguments.steps)
        plain = timed("undisturbed", place, options, 0, None, 0)
        steps = arguments.steps * arguments.epochs
        print(f"undisturbed: {steps} steps of {arguments.np} ranks in {plain['seconds']:.1f} s", flush=True)
        for way in ways:
            outcome = timed(way, place, options, arguments.kills, arguments.every, arguments.seed)
            kills = outcome["kills"]
            same = outcome["result"] == plain["result"]
            wrong += not same
            more, what = max(outcome["batches"]) - steps, "warnings" if way == "warned" else "kills"
            print(
                f"{way}: {len(kills)} {what} in {outcome['seconds']:.1f} s; at full speed "
                f"again after {statistics.median(kills or [0]):.2f} s (longest {max(kills or [0]):.2f}); "
                f"{more / max(len(kills), 1):.2f} batches computed twice for each; goodput "
                f"{plain['seconds'] / outcome['seconds']:.3f}; numbers {'the same' if same else 'DIFFER'}",
                flush=True,
            )
        if arguments.torchft:
            print_torchft(place, arguments, folder)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
