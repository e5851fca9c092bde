"""When a parameter's gradient is reported, and how a pass's end or error is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator.torch.optimizer import hooks
from spark_estimator.torch.optimizer.hooks import EndOfBackward, ParameterHooks, call_at_the_end


class Listener:
    """Keeps what was reported, by the parameters' letters."""

    def __init__(self, **params: nn.Parameter) -> None:
        self.letters = {id(param): letter for letter, param in params.items()}
        self.reports: list[str] = []
        self.hooks = ParameterHooks(self)
        self.listens = False

    def note_gradient_complete(self, key: int) -> None:
        if not self.listens:
            EndOfBackward(self)
            self.listens = True
        self.reports.append(self.letters[key])

    def note_gradient_again(self, key: int) -> None:
        self.reports.append(f"{self.letters[key]} again")

    def note_backward_ended(self) -> None:
        self.listens = False
        self.reports.append("end")

    def note_backward_raised(self) -> None:
        self.listens = False
        self.reports.append("raised")


def param() -> nn.Parameter:
    return nn.Parameter(torch.ones(2))


def test_gradients_and_the_end_of_a_pass() -> None:
    a, b = param(), param()
    listener = Listener(a=a, b=b)
    for one_of_them in (a, b, a):  # twice added, once reported
        listener.hooks.add(one_of_them)
    (a.sum() + b.sum()).backward()
    assert sorted(listener.reports[:2]) == ["a", "b"]
    assert listener.reports[2:] == ["end"]
    listener.hooks.remove(id(a))
    listener.reports.clear()
    (a.sum() + b.sum()).backward()
    assert listener.reports == ["b", "end"]


def test_a_pass_that_raises() -> None:
    a = param()
    listener = Listener(a=a)
    listener.hooks.add(a)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    handle = a.register_post_accumulate_grad_hook(fail)
    with pytest.raises(ZeroDivisionError):
        a.sum().backward()
    assert listener.reports == ["a", "raised"]
    handle.remove()
    a.sum().backward()
    assert listener.reports[2:] == ["a", "end"]


def test_counted_gradients_are_reported_when_the_last_one_is_complete() -> None:
    a, b = param(), param()
    listener = Listener(a=a, b=b)
    missing = {id(a), id(b)}
    notes: list[int] = []
    for each in (a, b):
        listener.hooks.add(each)
    listener.hooks.count_in([id(a), id(b)], missing, lambda: notes.append(len(missing)))
    listener.hooks.counting[0] = True
    listener.listens = True
    a.sum().backward()
    assert (listener.reports, missing) == ([], {id(b)})
    a.sum().backward()
    assert listener.reports == ["a again"]
    b.sum().backward()
    assert listener.reports == ["a again", "b"] and not missing
    assert notes == [2, 1, 1]


def test_the_listener_that_was_made_last_has_the_parameter() -> None:
    a, b = param(), param()
    older = Listener(a=a, b=b)
    older.hooks.add(a)
    older.hooks.add(b)
    newer = Listener(a=a)
    assert older.hooks.list_newer([a, b]) == []
    newer.hooks.add(a)
    assert older.hooks.list_newer([a, b]) == [newer]
    assert not older.hooks.may_have(a) and newer.hooks.may_have(a)
    assert older.hooks.select_not_newer([a, b]) == [b]
    a.sum().backward()
    assert (older.reports, newer.reports) == ([], ["a", "end"])


def test_a_hook_that_is_taken_away_while_autograd_calls_the_parameter_s_hooks() -> None:
    a = param()
    older, newer = Listener(a=a), Listener(a=a)
    a.register_post_accumulate_grad_hook(lambda _: newer.hooks.add(a))
    older.hooks.add(a)
    missing = {id(a)}
    older.hooks.count_in([id(a)], missing)
    older.hooks.counting[0] = True
    a.sum().backward()  # autograd has a list of both hooks already
    assert not missing
    assert older.reports[0] == "a"


def test_hooks_of_the_user_come_before() -> None:
    a = param()
    listener = Listener(a=a)
    listener.hooks.add(a)
    a.register_post_accumulate_grad_hook(lambda _: listener.reports.append("user"))
    assert listener.hooks.stand_last()
    assert not listener.hooks.stand_last()
    a.sum().backward()
    assert listener.reports == ["user", "a", "end"]


def test_which_parameter_s_hooks_are_called_now() -> None:
    a, stranger = param(), param()
    listener = Listener(a=a)
    listener.hooks.add(a)
    running: list[int | None] = []
    for each in (a, stranger):
        each.register_post_accumulate_grad_hook(lambda _: running.append(listener.hooks.find_running()))
    a.sum().backward()
    stranger.sum().backward()
    assert running == [id(a), None]
    assert listener.hooks.find_running() is None


def test_what_is_called_at_the_end_of_a_pass() -> None:
    a = param()
    calls: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    def hook(_: object) -> None:
        call_at_the_end(lambda: calls.append("first"))
        call_at_the_end(fail)
        call_at_the_end(lambda: calls.append("last"))
        assert hooks.is_inside_backward() and not calls

    a.register_post_accumulate_grad_hook(hook)
    with pytest.raises(ZeroDivisionError):
        a.sum().backward()
    assert calls == ["first", "last"]
    assert not hooks.is_inside_backward() and hooks.find_current_pass() == -1


def test_a_backward_inside_another_one_knows_its_node() -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                a.sum().backward()
            return gradient

    a, nodes = param(), []
    a.register_post_accumulate_grad_hook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(
            lambda: nodes.append(hooks.find_enclosing_node())
        )
    )
    a.sum().backward()
    Inner.apply(param()).sum().backward()  # type: ignore[no-untyped-call]
    assert nodes[0] is None
    assert "Inner" in type(nodes[1]).__name__
