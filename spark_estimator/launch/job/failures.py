"""Finds the cause among the failures of a job: the first rank that failed on its own, not a later one.

A *report* is what one rank's supervisor has seen of its end. Reports are plain data, sent as JSON.
"""

from __future__ import annotations

import json
import linecache
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spark_estimator.errors import (
    JobFailedError,
    PythonEnvironmentError,
    RemoteTraceback,
    ResultError,
    WorkerFailedError,
    find_class,
)
from spark_estimator.observe.driver_log import printable
from spark_estimator.peer_json import parse_json

# Kinds of report.
RAISED = "raised"  # the function raised an exception
EXITED = "exited"  # the process ended before the function returned, or the command's status was not 0
KILLED = "killed"  # ... by a signal
NOT_LOADED = "not loaded"  # the function could not be unpickled
BAD_RESULT = "bad result"  # the value could not be pickled, or was too large
NOT_STARTED = "not started"  # the worker, or its supervisor, did not get as far as the function
ENVIRONMENT = "environment"  # it cannot run this job at all: versions differ
LOST = "lost"  # its supervisor has ended
STOPPED = "stopped"  # ended by the launcher; never a cause

MAX_TRACEBACK_CHARACTERS = 64_000
_MAX_TAIL_CHARACTERS = 16_000
_MAX_COMMAND_CHARACTERS = 300
_FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "rank": int,
    "host": str,
    "pid": int,
    "kind": str,
    "message": str,
    "traceback": str,
    "log_tail": str,
    "exit_code": (int, type(None)),
    "secondary": bool,
}
# A report is sent to the next process within this time; no rank can claim to have failed earlier than that.
MAX_AGE_SECONDS = 5.0
# How Python prints an error of spark_estimator: "raised spark_estimator.errors.DataError: ...".
_OWN_ERROR = re.compile(r"\bspark_estimator\.errors\.(\w+)")
# How the engine names a rank whose heartbeats do not arrive.
_SILENT_RANK = re.compile(r"\brank (\d+)\b[^:]{0,300} is lost: it has sent no heartbeat")
# A longer message that another rank has, too, is not printed again.
_REPEATED_CHARACTERS = 100
_FRAME = re.compile(r'(?P<indent>[ |]*)File "(?P<file>[^"\n]+)", line (?P<number>\d{1,9}), in .+')
_OF_HOROVOD = "The job was terminated, as one or more processes exited with non-zero status."
_OPENING, _CLOSING = "<<<spark_estimator failure ", " spark_estimator>>>"


@dataclass(frozen=True)
class FailureReport:
    """How one rank ended, when it did not end well.

    Attributes:
        rank: -1 when it had none yet.
        host, pid: where it ran; pid 0 when there was no process yet.
        kind: one of the constants above.
        message: one sentence or a few, without rank and host.
        traceback: its Python stack, as the rank printed it; '' when there is none.
        exit_code: its exit status; negative is the number of the signal; None when it raised.
        when: by `time.monotonic` of this host. Hosts send the report's age to each other, as their clocks differ.
        secondary: it failed because another rank had: a collective lost its peer.
        log_tail: the last lines that it printed; '' when there are none.
    """

    rank: int
    host: str
    pid: int
    kind: str
    message: str
    traceback: str = ""
    exit_code: int | None = None
    when: float = field(default=0.0, compare=False)
    secondary: bool = False
    log_tail: str = ""

    @property
    def where(self) -> str:
        """Return the rank in words."""
        process = f", pid {self.pid}" if self.pid else ""
        name = f"rank {self.rank}" if self.rank >= 0 else "a worker without a rank yet"
        return f"{name} (host {self.host}{process})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, to be sent at once; long texts lose their middle."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "when"},
            "age": time.monotonic() - self.when,
            "traceback": _shorten_for_frame(self.traceback, MAX_TRACEBACK_CHARACTERS),
            "message": _shorten_for_frame(self.message, MAX_TRACEBACK_CHARACTERS),
            "log_tail": _shorten_for_frame(self.log_tail, _MAX_TAIL_CHARACTERS),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> FailureReport:
        """Make a report of received fields, with texts safe to print. Raises TypeError, ValueError: it is none."""
        fields = dict(fields)
        age = fields.pop("age", None)
        if not isinstance(age, (int, float)):
            raise ValueError(f"field 'age' of a failure report is {age!r}")
        report = cls(**fields, when=time.monotonic() - min(max(0.0, age), MAX_AGE_SECONDS))
        for name, kinds in _FIELD_TYPES.items():
            if not isinstance(getattr(report, name), kinds):
                raise ValueError(f"field {name!r} of a failure report is {getattr(report, name)!r}")
        return replace(
            report,
            host=printable(report.host),
            message=printable(report.message),
            traceback=printable(report.traceback),
            log_tail=printable(report.log_tail),
        )


def shorten(text: str, limit: int = MAX_TRACEBACK_CHARACTERS) -> str:
    """Return `text`, without its middle when it is longer than `limit` characters."""
    half = limit // 2
    note = f"\n... {len(text) - 2 * half} characters left out ...\n"
    if len(text) <= limit + len(note):  # it would be no shorter
        return text
    return text[:half] + note + text[-half:]


def _shorten_for_frame(text: str, limit: int) -> str:
    """Shorten `text`, so that a frame of the driver channel holds it and the other texts of a report.

    JSON writes most characters in at most six bytes, but some (emoji) in twelve: of those there may be half as many.
    """
    short = shorten(text, limit)
    return short if len(json.dumps(short)) <= 6 * limit else shorten(text, limit // 2)


def find_first_failure(reports: Sequence[FailureReport]) -> FailureReport | None:
    """Return the cause: the earliest rank that failed on its own, else the earliest that lost a peer.

    If that peer was silent, and was found frozen as the job ended, the peer is the cause. Reports of ranks that
    the launcher stopped are no causes. None if there are no others.
    """
    causes = [report for report in reports if report.kind != STOPPED]
    cause = min(causes, key=lambda report: (report.secondary, report.when), default=None)
    silent = None if cause is None or not cause.secondary else _SILENT_RANK.search(cause.message)
    if silent is None:
        return cause
    frozen = (report for report in causes if report.kind == KILLED and report.rank == int(silent[1]))
    return next(frozen, cause)


def make_job_error(
    cause: FailureReport, reports: Sequence[FailureReport], size: int, function: str
) -> JobFailedError | PythonEnvironmentError:
    """Make the exception with all failures of a failed job; its ``__cause__`` is the cause's own traceback.

    Ranks of `size` without a report are listed as ended without error, or not ended.
    """
    others = [report for report in sorted(reports, key=lambda report: report.rank) if report is not cause]
    lines = [f"{cause.where} {cause.message}"]
    if others:
        lines.append(f"The other ranks of {shorten(function, _MAX_COMMAND_CHARACTERS)}:")
        lines += [f"  {other.where} {_describe_other_failure(other, cause)}" for other in others]
    silent = size - len({report.rank for report in reports if report.rank >= 0})
    if silent > 0 and others:
        lines.append(f"  {silent} more without a failure")
    if not others and cause.kind != RAISED and function not in cause.message:
        lines.append(f"It ran {shorten(function, _MAX_COMMAND_CHARACTERS)}")
    return make_error(cause, "\n".join(lines))


def make_error(cause: FailureReport, text: str) -> JobFailedError | PythonEnvironmentError:
    """Make the exception for a job that failed because of `cause`, with the fields that programs read."""
    error: JobFailedError | PythonEnvironmentError
    text, traceback = with_source(text), with_source(cause.traceback)
    if cause.kind == ENVIRONMENT:
        error = PythonEnvironmentError(text)
    else:
        error = (ResultError if cause.kind == BAD_RESULT else WorkerFailedError)(
            text,
            kind=cause.kind,
            rank=cause.rank,
            host=cause.host,
            exitcode=cause.exit_code,
            traceback=traceback,
            log_tail=cause.log_tail,
            cause_class=_find_class_name(cause.message),
        )
    if traceback:
        error.__cause__ = RemoteTraceback(traceback)
    elif cause.log_tail:
        error.__cause__ = RemoteTraceback(f"Its last output lines:\n{cause.log_tail}")
    return error


def add_horovods_sentence(error: WorkerFailedError) -> WorkerFailedError:
    """Add to the error of `horovod.run` and ``horovodrun`` Horovod's sentence, which people search logs for."""
    text = error.args[0]
    if _OF_HOROVOD not in text:
        error.args = (f"{text}\n{_OF_HOROVOD}",)
    return error


def _describe_other_failure(other: FailureReport, cause: FailureReport) -> str:
    """Return the first line of another rank's message, without what it has in common with the cause's."""
    if other.message == cause.message and len(other.message) > _REPEATED_CHARACTERS:
        return "failed with the same message"
    return _get_first_line(other.message)


def _find_class_name(message: str) -> str:
    """Return the name of the class of `spark_estimator.errors` that a message names first; '' if it names none."""
    match = _OWN_ERROR.search(_get_first_line(message))
    return match[1] if match and find_class(match[1]) else ""


def _get_first_line(message: str) -> str:
    return shorten(message.split("\n", 1)[0], 600)


def to_marked_text(report: FailureReport) -> str:
    """Return a report as part of an exception's text, for a job that can't send it to the driver otherwise."""
    return f"{report.where} {report.message}\n{_OPENING}{json.dumps(report.to_dict())}{_CLOSING}"


def find_marked(text: str) -> list[FailureReport]:
    """Return the reports that `to_marked_text` put somewhere into `text`; malformed or cut ones are left out."""
    reports = []
    for part in text.split(_OPENING)[1:]:
        written, closing, _ = part.partition(_CLOSING)
        if not closing:
            continue
        try:
            report = FailureReport.from_dict(parse_json(written))
        except (ValueError, TypeError):
            continue
        if report not in reports:
            reports.append(report)
    return reports


def with_source(traceback: str) -> str:
    """Return a rank's `traceback`, with the source of frames that only this process has: a notebook's.

    No file is read: the rank names the file, and must not choose which file's lines are shown.
    """
    lines = traceback.split("\n")
    annotated = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        annotated.append(line)
        frame = _FRAME.fullmatch(line)
        if frame and not after.startswith(f"{frame['indent']}  "):
            source = _line(frame["file"], int(frame["number"]))
            annotated += [f"{frame['indent']}  {source}"] if source else []
    return "\n".join(annotated)


def _line(file: str, number: int) -> str:
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or not 0 < number <= len(entry[2]):  # shorter ones are not loaded
        return ""
    return printable(entry[2][number - 1].strip())
