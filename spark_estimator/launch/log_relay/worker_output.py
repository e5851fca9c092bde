"""Reads what a worker prints, passes its lines on, and keeps the last ones for the report of a failure."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from spark_estimator.errors import remove_links
from spark_estimator.launch.job.outcome import Relay
from spark_estimator.launch.log_relay.lines import LastLines, LineSplitter, StartUpLines
from spark_estimator.observe.driver_log import printable

STREAMS = ("stdout", "stderr")
_TAIL_LINES = 40
_READ_BYTES = 1 << 16
_TWO_LLVMS = re.compile(r"CommandLine Error: Option '[^']*' registered more than once")
# More than a pipe holds, so that a worker that prints without end is not read for ever.
_CATCH_UP_BYTES = 1 << 20


@dataclass
class WorkerIdentity:
    """The names under which a worker's lines and reports are sent. The rank of an elastic worker changes between
    rounds.

    Attributes:
        rank: -1 before it has one.
        host: the job's name for its host.
        pid: of the process that runs the user's code.
    """

    rank: int
    host: str
    pid: int = 0


class WorkerOutput:
    """The stdout and stderr of one worker.

    Args:
        stdout, stderr: this end of its pipes, not blocking.
        identity: whose lines they are.
        relay: takes the lines.
        environ: the worker's environment, as far as it is set before it starts.

    Attributes:
        has_two_llvms: LLVM has refused to be loaded a second time into the worker. Stacks of the end follow that line.
    """

    def __init__(
        self, stdout: IO[bytes], stderr: IO[bytes], identity: WorkerIdentity, relay: Relay, environ: Mapping[str, str]
    ) -> None:
        self._streams = dict(zip(STREAMS, (stdout, stderr), strict=True))
        self._identity = identity
        self._relay = relay
        self._splitters = {name: LineSplitter() for name in STREAMS}
        self._tail = LastLines(_TAIL_LINES)
        self._stderr_tail = LastLines(_TAIL_LINES)
        self._start_up = None if environ.get("TF_CPP_MIN_LOG_LEVEL") == "0" else StartUpLines()
        self.has_two_llvms = False

    def read(self, name: str) -> int:
        """Read what there is; return the number of bytes, 0 at the end. Raises BlockingIOError: nothing for now."""
        received = os.read(self._streams[name].fileno(), _READ_BYTES)
        self._pass_on(name, self._splitters[name].feed(received))
        return len(received)

    def catch_up(self) -> None:
        """Read the lines that the worker printed before it sent what is now acted on, on another pipe."""
        for name in STREAMS:
            remaining = _CATCH_UP_BYTES
            with contextlib.suppress(BlockingIOError):
                while remaining > 0 and (count := self.read(name)):
                    remaining -= count

    def flush(self) -> None:
        """Pass on what was printed without a line end."""
        for name, splitter in self._splitters.items():
            self._pass_on(name, splitter.flush())
        if self._start_up and (left_out := self._start_up.flush()):
            self._relay.pass_lines(self._identity.rank, "stderr", left_out)

    @property
    def tail(self) -> str:
        """Return the last lines of both streams, safe to print."""
        return printable("\n".join(self._tail))

    @property
    def python_stack(self) -> str:
        """Return the traceback, or faulthandler's stacks, at the end of stderr; '' if there is none."""
        lines = list(self._stderr_tail)
        heads = ("Traceback (most recent call last):", "Fatal Python error:")
        first = next((number for number, line in enumerate(lines) if line.startswith(heads)), len(lines))
        return printable("\n".join(lines[first:]))

    @property
    def python_error(self) -> str:
        """Return the last line of the traceback with which stderr ends, safe to print; '' if there is none."""
        lines = [line for line in self._stderr_tail if remove_links(line).strip()]
        above, last = ["", "", *lines][-2:]
        return printable(last) if above.startswith("  ") and re.match(r"[\w.]+(:|$)", last) else ""

    @property
    def lost_a_peer(self) -> bool:
        """Return whether stderr ends with the traceback of a collective that failed because another rank ended."""
        return re.match(r"(\w+\.)*(PeerLostError|ShutDownError)\b", self.python_error) is not None

    def _pass_on(self, stream: str, lines: list[str]) -> None:
        for line in lines:
            self._tail.add(stream, line)
            if stream == "stderr":
                self._stderr_tail.add(stream, line)
                self.has_two_llvms |= _TWO_LLVMS.search(line) is not None
        if stream == "stderr" and self._start_up:
            lines = self._start_up.without(lines)
        if lines:
            self._relay.pass_lines(self._identity.rank, stream, lines)
