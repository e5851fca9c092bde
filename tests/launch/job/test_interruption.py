"""An interruption whose exception was lost is raised again; a handler that raises nothing interrupts nothing."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_estimator.launch.job.interruption import raise_lost_interruption, remember_interruption


class Thing: ...


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_in_a_library_that_catches_it() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        interrupt()


@contextlib.contextmanager
def handled_by(handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler, "the handler is put back"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lost_interruption_is_raised_once() -> None:
    with remember_interruption():
        raise_lost_interruption()
        interrupt_in_a_library_that_catches_it()
        with remember_interruption(), pytest.raises(KeyboardInterrupt):
            raise_lost_interruption()
        raise_lost_interruption()


def test_the_garbage_collector_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    thing = Thing()
    with remember_interruption():
        reference = weakref.ref(thing, lambda _: interrupt())
        del thing
        assert reference() is None and len(dropped) == 1
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interruption()


def test_nothing_is_kept_after_the_block() -> None:
    with remember_interruption():
        interrupt_in_a_library_that_catches_it()
    raise_lost_interruption()
    with remember_interruption():
        raise_lost_interruption()


def test_a_handler_that_raises_nothing_has_not_interrupted() -> None:
    numbers = []
    with handled_by(lambda number, _frame: numbers.append(number)), remember_interruption():
        interrupt()
        raise_lost_interruption()
    assert numbers == [signal.SIGINT]


def test_other_exceptions_of_handlers_are_raised_as_they_are() -> None:
    error = OSError("stop")

    def handler(*_: Any) -> None:
        raise error

    with handled_by(handler), remember_interruption():
        with contextlib.suppress(OSError):
            interrupt()
        with pytest.raises(OSError, match="stop") as caught:
            raise_lost_interruption()
        assert caught.value is error


def test_what_py4j_makes_of_it_is_an_interruption() -> None:
    def handler(*_: Any) -> None:
        try:
            raise RuntimeError("reentrant call inside <_io.BufferedReader name=5>")
        except RuntimeError as error:
            raise ConnectionError("Error while sending or receiving") from error

    with handled_by(handler), remember_interruption():
        with contextlib.suppress(ConnectionError):
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interruption()


def test_a_handler_that_the_block_sets_stays() -> None:
    def new(*_: Any) -> None: ...

    before = signal.getsignal(signal.SIGINT)
    try:
        with remember_interruption():
            signal.signal(signal.SIGINT, new)
        assert signal.getsignal(signal.SIGINT) is new
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_that_are_not_python_s_are_left_alone(handler: signal.Handlers) -> None:
    with handled_by(handler), remember_interruption():
        assert signal.getsignal(signal.SIGINT) is handler


def test_the_interruption_belongs_to_the_main_thread() -> None:
    errors = []

    def other() -> None:
        try:
            with remember_interruption():
                raise_lost_interruption()
        except KeyboardInterrupt as error:
            errors.append(error)

    with remember_interruption():
        interrupt_in_a_library_that_catches_it()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert not errors
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interruption()
