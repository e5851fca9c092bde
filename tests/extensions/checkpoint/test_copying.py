"""Copies of tensors into a slot, at once and in a thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from spark_estimator.extensions.checkpoint.copying import Copying, Pair


def copied(now: Sequence[Pair], later: Sequence[Pair]) -> bool:
    copying, results = Copying(), []
    copying.run(now, later, results.append)
    copying.wait()
    (whole,) = results
    return whole


def pair_of(source: torch.Tensor) -> Pair:
    return torch.empty(source.shape, dtype=source.dtype), source


SOURCES = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3, dtype=torch.int64),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]),
    torch.arange(3, dtype=torch.bfloat16),
    torch.arange(6.0).reshape(2, 3).T,
    torch.arange(10)[::2],
    torch.ones(3, requires_grad=True),
    torch.ones(1, 3).expand(2, 3),
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("later", [False, True])
def test_tensors_of_any_layout(source: torch.Tensor, later: bool) -> None:
    pair = pair_of(source)
    with torch.no_grad():
        assert copied([] if later else [pair], [pair] if later else [])
    assert torch.equal(pair[0], source)


def test_nothing_to_copy() -> None:
    assert copied([], [])
    Copying().wait()


@pytest.mark.parametrize("later", [False, True])
def test_done_is_called_once_where_the_copy_was_made(later: bool) -> None:
    threads: list[threading.Thread] = []
    pair = pair_of(torch.ones(2))
    copying = Copying()
    copying.run([pair], [pair] if later else [], lambda whole: threads.append(threading.current_thread()))
    copying.wait()
    copying.wait()
    assert [thread is threading.current_thread() for thread in threads] == [not later]


def test_a_source_that_changes_meanwhile_makes_no_whole_copy() -> None:
    class Changing(torch.Tensor):
        """Changes another tensor when it is read, as a training step at this moment would."""

        @property
        def device(self) -> torch.device:
            other.add_(1)
            return torch.device("cpu")

    other = torch.zeros(2)
    changing = torch.zeros(2).as_subclass(Changing)
    assert not copied([], [pair_of(other), (torch.zeros(2), changing)])
    assert copied([], [pair_of(other)])


def test_a_copy_that_fails_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
    assert not copied([], [(torch.zeros(3), torch.zeros(2))])
    assert [type(error) for error in errors] == [ValueError]


def test_the_next_copy_waits_for_the_one_before() -> None:
    order: list[str] = []
    released = threading.Event()
    first, second = pair_of(torch.ones(2)), pair_of(torch.zeros(2))
    copying = Copying()

    def done(whole: bool) -> None:
        released.wait(30)
        order.append("first")

    copying.run([], [first], done)
    threading.Timer(0.01, released.set).start()
    copying.run([second], [], lambda whole: order.append("second"))
    assert order == ["first", "second"]
