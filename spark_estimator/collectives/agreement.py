"""How the ranks of a job agree on a process set or group before it is made: all of them, or none."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.requests import fetch_bytes, submit_bytes
from spark_estimator.errors import HorovodInternalError, MismatchError
from spark_estimator.peer_json import parse_object

_EXCHANGE = "spark_estimator.process_sets"
# How many different calls of ranks an error shows.
_SHOWN_CALLS = 8


class Agreement:
    """Exchanges what the ranks of a job want to do with its sets; all call the same methods in the same order.

    Args:
        job: the engine of all ranks.
    """

    def __init__(self, job: Engine) -> None:
        self._job = job
        #: An exchange that this rank has begun: what it stated, and the request. It continues if its wait is abandoned.
        self._unanswered: tuple[Mapping[str, Any], Handle] | None = None

    def reach(
        self,
        wish: Mapping[str, Any],
        problem: str = "",
        lacking: str = "",
        timeout: timedelta | None = None,
        **alike: Any,
    ) -> None:
        """Compare what the ranks wish for. Raise on all of them, or on none.

        Args:
            wish: the action, and the ranks that it concerns.
            problem: why it cannot be done at all; '' for nothing.
            lacking: what this process lacks for it; '' for nothing.
            timeout: for the comparison; None: none.
            alike: more values that must be equal on all ranks.
        """
        stated = self.exchange({"wish": wish, "problem": problem, "lacking": lacking, **alike}, timeout)
        problems = {rank: statement["problem"] for rank, statement in stated.items() if statement["problem"]}
        if problems:
            rank, text = next(iter(problems.items()))
            raise ValueError(f"{_name_call(stated[rank])} on {_describe_ranks(problems, len(stated))}: {text}")
        lacks = {rank: statement["lacking"] for rank, statement in stated.items() if statement["lacking"]}
        if lacks:
            rank, text = next(iter(lacks.items()))
            raise HorovodInternalError(f"{_name_call(stated[rank])} on {_describe_ranks(lacks, len(stated))}: {text}")
        calls: dict[str, list[int]] = {}
        for rank, statement in stated.items():
            calls.setdefault(_describe_statement(statement), []).append(rank)
        if len(calls) > 1:
            quoted = [f"{_describe_ranks(ranks, len(stated))} called {call}" for call, ranks in calls.items()]
            more = f"; and {len(quoted) - _SHOWN_CALLS} more" if len(quoted) > _SHOWN_CALLS else ""
            raise MismatchError(
                f"The ranks disagree about process sets or groups: {', '.join(quoted[:_SHOWN_CALLS])}{more}. All "
                "ranks of the job must make the same call, including those that are not in the set or group."
            )

    def exchange(self, stated: Mapping[str, Any], timeout: timedelta | None = None) -> dict[int, dict[str, Any]]:
        """Return every rank's statement, by rank. If an exchange was given up, the same call resumes it."""
        if self._unanswered is None:
            self._unanswered = stated, submit_bytes(self._job, _EXCHANGE, json.dumps(stated).encode())
        before, handle = self._unanswered
        if before.get("wish") != stated.get("wish"):
            raise HorovodInternalError(
                f"{_describe_statement(stated)} on rank {self._job.global_rank}: an earlier call of this rank, "
                f"{_describe_statement(before)}, ended (by its timeout or an interrupt) before all ranks had made it, "
                "and is still pending. Repeat that call first: it then continues waiting."
            )
        try:
            handle.wait(timeout)
        finally:
            if handle.done():
                self._unanswered = None
        gathered = fetch_bytes(handle)
        return {rank: parse_object(bytes(text)) for rank, text in zip(self._job.ranks, gathered, strict=True)}


def _name_call(stated: Mapping[str, Any]) -> str:
    calls = {"init": "init(process_sets=...)", "add": "add_process_set", "remove": "remove_process_set"}
    return calls.get(next(iter(stated["wish"]))) or str(stated["what"])


def _describe_statement(stated: Mapping[str, Any]) -> str:
    wish = stated.get("wish")
    if wish is None:
        return "the connecting of a new set"
    value = next(iter(wish.values()))
    if "init" in wish:
        return f"init(process_sets={value}) with HOROVOD_DYNAMIC_PROCESS_SETS={int(stated['dynamic'])}"
    if "remove" in wish:
        return f"remove_process_set of the set with id {value}" if value else "remove_process_set of no registered set"
    return f"{_name_call(stated)}({value})"


def _describe_ranks(ranks: Collection[int], size: int) -> str:
    if len(ranks) == size:
        return "every rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
