"""The classes of wrapped optimizers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import nn

from spark_estimator.torch.optimizer.classes import make_wrapped_class, reduce_to_user_class, unwrap_class


class Methods(torch.optim.Optimizer):
    """What wrapping adds, as far as these tests need it."""

    def step(self, closure: Any = None) -> Any:
        self.wrapped_steps = getattr(self, "wrapped_steps", 0) + 1
        return super().step(closure)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduce_to_user_class(self, {"wrapped_steps"})


class Other(Methods):
    """Another kind of wrapping."""


def wrapped() -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)
    optimizer.__class__ = make_wrapped_class(Methods, torch.optim.SGD)
    return optimizer


def stepped(optimizer: Any) -> list[float]:
    (param,) = optimizer.param_groups[0]["params"]
    param.grad = torch.ones(2)
    optimizer.step()
    return [round(value, 6) for value in param.tolist()]


def test_it_is_the_user_s_class_with_more_methods() -> None:
    kind = make_wrapped_class(Methods, torch.optim.SGD)
    assert issubclass(kind, torch.optim.SGD) and issubclass(kind, Methods)
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    assert [getattr(kind, name) for name in names] == [getattr(torch.optim.SGD, name) for name in names]
    assert kind is make_wrapped_class(Methods, torch.optim.SGD)
    assert len({kind, make_wrapped_class(Methods, torch.optim.Adam), make_wrapped_class(Other, torch.optim.SGD)}) == 3


def test_both_methods_run_and_the_user_s_class_is_known() -> None:
    optimizer = wrapped()
    assert unwrap_class(optimizer) is torch.optim.SGD
    assert stepped(optimizer) == [0.5, 0.5] and optimizer.wrapped_steps == 1
    assert isinstance(optimizer, torch.optim.SGD)


def test_copies_and_pickles_are_of_the_user_s_own_class() -> None:
    optimizer = wrapped()
    stepped(optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other) is torch.optim.SGD and not hasattr(other, "wrapped_steps")
        assert other.param_groups[0]["momentum"] == 0.9
        assert stepped(other) == [-0.45, -0.45], "with the momentum so far"
    assert type(optimizer) is not torch.optim.SGD and stepped(optimizer) == [-0.45, -0.45]


def test_a_pickle_does_not_name_this_package() -> None:
    text = pickle.dumps(wrapped())
    assert b"spark_estimator" not in text and Methods.__module__.encode() not in text
