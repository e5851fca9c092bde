"""The oracle: what is wrong with how a run ended. Pure, so that a test can show it every bad ending."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaos.faults import UNMISSED_SECONDS
from chaos.plan import BY_PROGRAM, HARMLESS, LINKS, SILENT, Fault, Kind, Launcher, Run

#: From the last fault to the end of the job: the ranks' silence, the launcher's waits, and room for a busy machine.
BOUND_SECONDS = 25.0
#: The same for a process that replaces a lost one: it imports PyTorch, or does not come.
NEW_PROCESS_SECONDS = 35.0

_NAMED = re.compile(r"\brank (\d+)\b")
_PROCESS = re.compile(r"\bpid (\d+)\b|\bprocess (\d+)\b")


@dataclass(frozen=True)
class Struck:
    """A fault that has happened.

    Attributes:
        fault: which.
        rank: of the process in which it happened.
        pid: that process; 0: a link.
    """

    fault: Fault
    rank: int
    pid: int


@dataclass(frozen=True)
class Ending:
    """How a run has ended.

    Attributes:
        value: the result of rank 0; None when there is none.
        error: the job's error, as its user sees it; '' when there is none.
        seconds: from the last fault, or the start, to the end; None: it did not end.
        struck: the faults that have happened.
        left: what is left behind, as text.
        checkpoint_problem: what is wrong with the checkpoints; '' for nothing.
        next_job: the result of the job after it; '' when it was right.
        unmissed: a stuck rank of an elastic job that nothing ended until it ended itself; None: there was none.
        reported: what an elastic job printed about itself.
    """

    value: int | None
    error: str
    seconds: float | None
    struck: tuple[Struck, ...] = ()
    left: tuple[str, ...] = ()
    checkpoint_problem: str = ""
    next_job: str = ""
    unmissed: int | None = None
    reported: str = ""


def violations(run: Run, right: int, ending: Ending) -> list[str]:
    """What must not be.

    Args:
        right: what one process computes.
    """
    wrong = [f"left behind: {thing}" for thing in ending.left]
    if ending.checkpoint_problem:
        wrong.append(f"checkpoints: {ending.checkpoint_problem}")
    if ending.next_job:
        wrong.append(f"the next job: {ending.next_job}")
    if ending.unmissed is not None and f"waits for rank {ending.unmissed} (" not in ending.reported:
        wrong.append(f"rank {ending.unmissed} was stuck, and was neither ended nor reported")
    if ending.seconds is None:
        return ["the job did not end", *wrong]
    bound = BOUND_SECONDS if ending.unmissed is None else BOUND_SECONDS + UNMISSED_SECONDS
    if run.launcher is Launcher.RECOVERY:
        bound += NEW_PROCESS_SECONDS
    if ending.struck and ending.seconds > bound:  # a busy machine may take any time for a job without faults
        wrong.append(f"the job ended {ending.seconds:.1f} s after the last fault; at most {bound:g} s are allowed")
    if ending.error:
        return [*_of_error(run, ending), *wrong]
    return [*_of_success(run, right, ending), *wrong]


def _of_success(run: Run, right: int, ending: Ending) -> list[str]:
    if ending.value != right and not _has_no_result(run, ending):
        return [f"wrong numbers: {ending.value} instead of {right}"]
    if run.launcher.is_elastic:
        return []
    certain = [struck.fault for struck in ending.struck if _ends_the_job(run, struck.fault)]
    return [f"success in spite of {fault.kind.value} on rank {fault.rank}" for fault in certain if run.size > 1]


def _has_no_result(run: Run, ending: Ending) -> bool:
    """Whether rank 0 has ended well and early: a function that returned, or a command whose status is 0."""
    kinds = {struck.fault.kind for struck in ending.struck if struck.rank == 0}
    if run.launcher is Launcher.COMMAND and ending.value is None:
        return bool(kinds & {Kind.SYS_EXIT, Kind.OS_EXIT})
    return ending.value == -1 and Kind.RETURN in kinds


def _ends_the_job(run: Run, fault: Fault) -> bool:
    """Whether no job can succeed after this fault. A timer's fault may happen after the rank's last step."""
    if run.launcher is Launcher.COMMAND and fault.kind is Kind.SYS_EXIT and fault.step == run.steps:
        return False  # the command ends well, after its last collective
    return fault.kind in BY_PROGRAM - HARMLESS - SILENT


def _of_error(run: Run, ending: Ending) -> list[str]:
    if "WrongNumbersError" in ending.error:
        return [f"wrong numbers: {_excerpt(ending.error)}"]
    guilty = [struck for struck in ending.struck if struck.fault.kind not in HARMLESS]
    if not guilty:
        return [f"an error without a fault: {_excerpt(ending.error)}"]
    first = _first_sentence(ending.error)
    ranks = {int(number) for number in _NAMED.findall(first)}
    pids = {int(a or b) for a, b in _PROCESS.findall(first)}
    culprits = set[int]()
    for struck in guilty:
        # A link has two ends: the rank before which the proxy is, and those of lower rank, which connect to it.
        culprits |= set(range(struck.rank + 1)) if struck.fault.kind in LINKS else {struck.rank}
    if not ranks & culprits and not pids & {struck.pid for struck in guilty}:
        return [
            f"the error names {sorted(ranks) or 'no rank'} and not one of {sorted(culprits)}: {_excerpt(ending.error)}"
        ]
    return []


def _first_sentence(error: str) -> str:
    """The part of the error that names the failed rank: without the list of the other ranks."""
    return re.split(r"^The other ranks of ", error, maxsplit=1, flags=re.MULTILINE)[0]


def _excerpt(error: str) -> str:
    return error if len(error) < 1500 else f"{error[:1000]} ... {error[-500:]}"
