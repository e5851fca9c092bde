"""The exchanges of one optimizer, step by step: which fragments are sent, and when their results are used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.engine import Engine
from spark_estimator.extensions.local_steps.fragment import Fragment, FragmentState, OuterStep
from spark_estimator.extensions.local_steps.meeting import agree_anchors, check_settings
from spark_estimator.extensions.local_steps.schedule import ExchangeSchedule, divide_parameters
from spark_estimator.torch import ProcessSet


class Rounds:
    """The exchanges of one optimizer, and their times.

    Args:
        optimizer: whose parameters.
        names: of its parameters, by id, for messages.
        schedule: when fragments are sent.
        outer: how they are sent, and how their results are used.

    Attributes:
        schedule, outer: see above.
        fragments: made when the first step begins: all ranks have their parameters by then.
        steps: of the schedule.
        agree: is called before each exchange; a collective.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: Mapping[int, str], schedule: ExchangeSchedule, outer: OuterStep
    ) -> None:
        self.schedule = schedule
        self.outer = outer
        self.fragments: list[Fragment] = []
        self.steps = 0
        self.agree: Callable[[], None] = lambda: None
        self._inner: list[int] = []  # steps of each fragment that no outer step has seen
        self._optimizer = weakref.ref(optimizer)
        self._names = dict(names)
        self._engine: weakref.ref[Engine] | None = None
        self._loaded: dict[str, Any] | None = None
        self._name = ""
        self._named_in: weakref.ref[Engine] | None = None
        self._take_name(context.engine(outer.process_set))
        _in_order.append(weakref.ref(self))

    @property
    def bytes_given(self) -> int:
        """Return the bytes of the last exchange of all fragments, in the form in which they are sent between hosts."""
        return sum(fragment.bytes_given for fragment in self.fragments)

    def before_step(self) -> None:
        """Make the fragments before the optimizer's first step."""
        if not self.fragments:
            self._make()

    def after_step(self) -> None:
        """Exchange what the schedule has for this step, which the optimizer has made. Collective if there is any.

        Raises:
            MismatchError: in the first step of a job: the ranks' parameters or settings differ.
            HorovodInternalError: a rank is lost. The parameters are what the steps have made of them.
        """
        self._agree_if_new()
        self.steps += 1
        self._inner = [count + 1 for count in self._inner]
        numbers = range(len(self.fragments))
        for number in self.schedule.find_taken(self.steps):
            if number in numbers and self.fragments[number].state is FragmentState.IN_FLIGHT:
                self._take(number, late=True)
        sent = [number for number in self.schedule.find_sent(self.steps) if number in numbers]
        if sent:
            self.agree()
        for number in sent:
            self.fragments[number].send()
            if not self.schedule.delay:
                self._take(number, late=False)

    def synchronize(self) -> None:
        """Exchange everything that the ranks have done since their last outer steps. Collective.

        Raises:
            HorovodInternalError: a rank is lost.
        """
        if not self.fragments:
            return
        self._agree_if_new()
        for number, fragment in enumerate(self.fragments):
            if fragment.state is FragmentState.IN_FLIGHT:
                self._take(number, late=True)
        waiting = [number for number, count in enumerate(self._inner) if count]
        if waiting:
            self.agree()
        for number in waiting:
            self.fragments[number].send()
        for number in waiting:
            self._take(number, late=False)
        self.steps = 0

    @property
    def is_common(self) -> bool:
        """Return whether there was no step since the last exchange."""
        return not self.fragments or not any(self._inner)

    @torch.no_grad()
    def rewind(self) -> None:
        """Undo the steps since the last exchange, of which nothing is in flight any more."""
        self.drop()
        self.steps -= max(self._inner, default=0)
        self._inner = [0] * len(self.fragments)
        for fragment in self.fragments:
            for param, anchor in zip(fragment.params, fragment.anchors, strict=True):
                param.copy_(anchor)

    def drop(self) -> None:
        """Discard requests in flight, after the job has failed: the next exchange covers all changes."""
        for fragment in self.fragments:
            fragment.drop()

    def close(self) -> None:
        """Discard requests in flight, and leave the order of optimizers of every later job."""
        self.drop()
        _in_order[:] = [other for other in _in_order if other() not in (self, None)]

    def forget(self) -> None:
        """Begin again, before the next step, at the parameters as they are then."""
        self.drop()
        self.fragments = []
        self.steps = 0
        self._engine = None

    def get_state(self) -> dict[str, Any] | None:
        """Return the state for `load`: anchors and momenta by parameter, and outer steps; None before the first
        step.
        """
        if not self.fragments:
            return self._loaded
        return {
            "anchors": [anchor for fragment in self.fragments for anchor in fragment.anchors],
            "momenta": [momentum for fragment in self.fragments for momentum in fragment.momenta],
            "version": max(fragment.version for fragment in self.fragments),
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from the result of `get_state`, at the next step; None: from the parameters as they are then."""
        self.forget()
        self._loaded = state

    def _make(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
        parts = divide_parameters([param.numel() for param in params], self.schedule.fragments)
        self.fragments = [
            Fragment(self._make_name(number), [params[position] for position in part], self.outer)
            for number, part in enumerate(parts)
        ]
        self._inner = [0] * len(parts)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._restore(loaded)

    @torch.no_grad()
    def _restore(self, state: Mapping[str, Any]) -> None:
        for name in ("anchors", "momenta"):
            tensors = [tensor for fragment in self.fragments for tensor in getattr(fragment, name)]
            saved = state[name]
            if name == "momenta" and not (tensors and saved):
                continue  # with and without momentum
            if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in saved]:
                raise ValueError("the outer state of a DiLoCo optimizer is that of other parameters.")
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.copy_(value)
        for fragment in self.fragments:
            fragment.version = state["version"]

    def _take(self, number: int, *, late: bool) -> None:
        self.fragments[number].take(late=late)
        self._inner[number] = self.schedule.delay if late else 0

    def _agree_if_new(self) -> None:
        """Agree with all ranks on the same anchors, if the membership is new to this optimizer."""
        process_set = self.outer.process_set
        engine = context.engine(process_set)
        if self._engine is not None and self._engine() is engine:
            return
        self.drop()
        _name_optimizers(engine, process_set)
        check_settings(self._describe_settings(), self._name, process_set)
        self.steps = agree_anchors(self.fragments, self.steps, self._name, process_set)
        self._engine = weakref.ref(engine)

    def _take_name(self, engine: Engine) -> None:
        self._name = f"DiLoCo.{context.take_number(f'DiLoCo {engine.process_set}')}"
        self._named_in = weakref.ref(engine)
        for number, fragment in enumerate(self.fragments):
            fragment.name = self._make_name(number)

    def _make_name(self, number: int) -> str:
        return f"{self._name}.fragment.{number}"

    def _describe_settings(self) -> list[str]:
        params = [param for fragment in self.fragments for param in fragment.params]
        return [
            f"{self.schedule}, outer step {self.outer.learning_rate} with momentum {self.outer.momentum}, "
            f"mixing {self.outer.mixing}, {'int8' if self.outer.as_int8 else 'float32'}",
            *(f"{self._names.get(id(param), '')}: shape {tuple(param.shape)}, {param.dtype}" for param in params),
        ]


#: All that there are, in the order in which they were made, which is the same on all ranks.
_in_order: list[weakref.ref[Rounds]] = []


def _name_optimizers(engine: Engine, process_set: ProcessSet | None) -> None:
    """Give optimizers that were made in an earlier job their numbers in this one, which may have new ranks."""
    gc.collect()  # an optimizer that is no longer used gets no number, as on a rank that has never had it
    for rounds in [rounds for reference in _in_order if (rounds := reference()) is not None]:
        if rounds.outer.process_set is process_set and (rounds._named_in is None or rounds._named_in() is not engine):
            rounds._take_name(engine)
