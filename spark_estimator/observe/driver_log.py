"""Messages from a rank to the person at the driver: `log_to_driver`, and how foreign text is made safe to print."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TextIO

MAX_MESSAGE_CHARACTERS = 4000

#: Called with (rank, "stdout" or "stderr", text) for each line that a rank prints.
ShowLine = Callable[[int, str, str], None]

_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]|[\ud800-\udfff]")
# Colour, weight and other attributes (SGR) of the following text: the only escape codes without other effects.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_PLAIN = "\x1b[0m"
_sink: Callable[[str], bool] | None = None
_lossy_streams: weakref.WeakSet[TextIO] = weakref.WeakSet()


def log_to_driver(message: object) -> None:
    """Print `message` at the driver, at any verbosity of the job; outside a job it is printed here.

    Args:
        message: its text is cut at `MAX_MESSAGE_CHARACTERS` characters, with a note that it was cut.
    """
    text = str(message)
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = f"{text[:MAX_MESSAGE_CHARACTERS]} [cut: the first {MAX_MESSAGE_CHARACTERS} of {len(text)} characters]"
    if _sink is None or not _sink(text):
        print(text, flush=True)


def set_sink(sink: Callable[[str], bool] | None) -> None:
    """Set the receiver of this process's messages, which returns whether it took one; None: they are printed."""
    global _sink
    _sink = sink


def printable(text: str) -> str:
    r"""Return `text` with control characters, but tab and newline, as ``\xNN``, and half surrogates as ``\udNNN``.

    Text from a network must not be able to control the terminal that prints it.
    """
    return "\n".join(_UNSAFE.sub(_escape, line) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def coloured(text: str) -> str:
    """Escape text as `printable` does, but keep codes for colours: for lines that end at `shown_on`."""
    parts = _COLOUR.split(text)  # every second one is such a code
    return "".join(part if index % 2 else printable(part) for index, part in enumerate(parts))


def shown_on(stream: object, text: str) -> str:
    """Return a rank's line as written to a stream: a screen keeps its colours, which end with the line."""
    if "\x1b" not in text:
        return text
    with contextlib.suppress(AttributeError, ValueError):  # it has no isatty(), or is closed
        if type(stream).__module__.startswith("ipykernel.") or stream.isatty():  # type: ignore[attr-defined]
            return text + _PLAIN
    return _COLOUR.sub(lambda match: printable(match[0]), text)


def print_line(rank: int, stream: str, text: str) -> None:
    """Print one line of a rank's output as Horovod does, ``[rank]<stream>:text``, on the stream of that name.

    Nothing is flushed: a caller that prints many lines flushes when there is a pause.
    """
    file = sys.stderr if stream == "stderr" else sys.stdout
    print_text(f"[{rank}]<{stream}>:{shown_on(file, text)}", file)


def announce(text: str, program: str = "spark_estimator") -> None:
    """Print a line about the job itself, on stderr, or on stdout if stderr takes none. Raises BrokenPipeError."""
    for stream in (sys.stderr, sys.stdout):
        try:
            print(f"{program}: {text}", file=stream, flush=True)
            return
        except BrokenPipeError:
            raise
        except OSError:  # its disk is full, for one, which must not end a job
            continue


def report_loss(where: str, error: OSError) -> None:
    """Report that lines of a job are lost, as they can't be written. Called once for each target."""
    announce(f"{where} can't be written: {error.strerror or error}. Lines are lost from now on; the job continues.")


def print_message(rank: int, text: str) -> None:
    """Print what a rank gave to `log_to_driver`, as `printable` makes it; not flushed."""
    print_text(f"[{rank}] {printable(text)}", sys.stdout)


def flush() -> None:
    """Flush what was printed; a program may have closed its stdout, or have none."""
    if sys.stdout is not None and not sys.stdout.closed:
        with _report_losses(sys.stdout):
            sys.stdout.flush()


def print_text(text: str, stream: TextIO | None) -> None:
    """Write a line on a standard stream, not flushed, with other characters escaped. Raises BrokenPipeError.

    A line that can't be written otherwise is lost, which is reported once.
    """
    if stream is None:  # as in a program without a terminal
        return
    line = text + "\n"  # in one piece: to write to a notebook is dear
    with _report_losses(stream):
        try:
            stream.write(line)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(line.encode(encoding, "backslashreplace").decode(encoding))


@contextlib.contextmanager
def _report_losses(stream: TextIO) -> Iterator[None]:
    """Report once that a stream takes no lines."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if stream not in _lossy_streams:
            _lossy_streams.add(stream)
            report_loss(_describe_stream(stream), error)


def _describe_stream(stream: TextIO) -> str:
    """Return the name of a standard stream for messages, with the file that it is."""
    name = "stderr" if stream is sys.stderr else "stdout"
    with contextlib.suppress(OSError, ValueError):
        return f"{name} ({os.readlink(f'/proc/self/fd/{stream.fileno()}')})"
    return name
