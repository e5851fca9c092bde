"""One optimizer's part in the present job: the name that all ranks know it by, and the plan for its parameters.

Both are remade when necessary: the name after another ``init()``, the plan also after parameters were added, removed or
moved, or changed their type.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from operator import attrgetter, eq

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.collectives.memory import make_wire_tensor
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.hooks import ParameterHooks
from spark_estimator.torch.optimizer.plan import GradientPlan
from spark_estimator.torch.optimizer.slot import Slot


class _Planned:
    """The parameters of a plan, and what they were like: asked in every pass whether the plan is still right.

    For 20,000 parameters that takes milliseconds if it compares in C, and keeps no new objects meanwhile: these would
    set Python's garbage collector to work.
    """

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        self._ids = list(map(id, params))
        self._forms = list(map(_FORM, params))
        self._devices = list(map(torch.Tensor.get_device, params))

    def is_for(self, params: Sequence[torch.Tensor]) -> bool:
        """Return whether these are the same parameters, with the same element types, shapes and devices."""
        return (
            list(map(id, params)) == self._ids
            and all(map(eq, map(_FORM, params), self._forms))
            and list(map(torch.Tensor.get_device, params)) == self._devices
        )


_FORM = attrgetter("dtype", "shape")


class JobMembership:
    """Keeps the plan of one optimizer up to date, and the hooks on its parameters.

    Args:
        optimizer: whose parameters; also those that are added or made trainable later.
        names: parameter id -> name, for messages; parameters without one are named by group and position.
        options: how gradients are exchanged.
        hooks: of the optimizer's exchange.
        passes: backward passes per step.

    Attributes:
        name: under which all ranks know the optimizer in the present job: they number their optimizers as they make
            them.
        plan: the present plan.
        exchanges: how many there were in this job.
        exchanges_of_newer: name of an optimizer made later -> its exchanges before this optimizer's present step.
        interrupted_by: what ended an exchange on this rank that the other ranks may have completed; "" if nothing did.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[int, str],
        options: Options,
        hooks: ParameterHooks,
        passes: int,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._names = names
        self._options = options
        self._hooks = hooks
        self._engine: Engine
        self._joins: int  # that all ranks have left together, when the plans were last compared
        self._planned: _Planned | None
        self.name: str
        self.exchanges: int
        self.exchanges_of_newer: dict[str, int]
        self.interrupted_by: str
        self.plan = GradientPlan("", [], options, passes)
        self._join_job()
        _in_order.append(weakref.ref(self))
        for param in self.list_trainable():
            hooks.add(param)  # also if another optimizer has it, which is older

    def leave(self) -> None:
        """Take the optimizer off the list of those that number themselves in the next job, and its hooks away."""
        self._hooks.keep_only(set())
        _in_order[:] = [other for other in _in_order if other() is not self]

    @property
    def has_optimizer(self) -> bool:
        """Return whether the optimizer has not been collected."""
        return self._optimizer() is not None

    def list_trainable(self) -> list[torch.Tensor]:
        """Return the optimizer's parameters that have gradients; none when it has been collected."""
        return list(self.iterate_trainable())

    def iterate_trainable(self) -> Iterator[torch.Tensor]:
        """Yield the same parameters, one after the other."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return (param for group in groups for param in group["params"] if param.requires_grad)

    def list_others_trainable(self) -> list[torch.Tensor]:
        """Return the parameters of all other optimizers in this process."""
        members = [member for reference in _in_order if (member := reference()) is not None and member is not self]
        return [param for member in members for param in member.list_trainable()]

    def is_true_on_a_rank(self, name: str, value: bool) -> bool:
        """Return whether the value, of a unique name, is true on some rank that has not joined. Collective."""
        answer = torch.tensor([value], dtype=torch.int64)
        collectives.submit(
            Op.ALLREDUCE,
            f"{self.name}.{name}",
            [make_wire_tensor(answer)],
            reduce_op=ReduceOp.SUM,
            process_set=self._options.process_set,
            keep=answer,
        ).wait()
        return bool(answer.item())

    def refresh(self, passes: int) -> None:
        """Make a new plan where that is needed.

        Raises HorovodInternalError: an exchange was interrupted here; NotInitializedError: the job was left.
        """
        if self._options.engine() is not self._engine:
            if self._options.process_set is None:
                _join_in_order(self._options.engine())
            else:
                self._join_job()
        if self.interrupted_by:
            raise HorovodInternalError(
                f"The last exchange of gradients was interrupted on rank {context.rank()} by a {self.interrupted_by}. "
                "Other ranks may have stepped without it, so the models may differ. On all ranks call hvd.shutdown() "
                "and hvd.init(), then broadcast_parameters() and broadcast_optimizer_state(), before training "
                "continues."
            )
        if self._joins != self._engine.joins:
            # All ranks have left a join together. One may have had no batch yet, and have agreed to nothing.
            self._joins = self._engine.joins
            self.plan.must_agree()
        trainable = self.list_trainable()
        params = self._hooks.select_not_newer(trainable) if self._hooks.shares else trainable
        if (self._planned is not None and self._planned.is_for(params)) or self.plan.in_flight:
            return  # what has been submitted belongs to the old plan: a new one begins with the next step
        params = self._hooks.select_not_newer(trainable)
        slots = [Slot(param, self._find_name(param)) for param in params]
        self._planned = None
        for param in params:
            self._hooks.add(param)
        self.plan = GradientPlan(self.name, slots, self._options, passes)
        self.listen()
        self._planned = _Planned(params)  # last: a plan that Ctrl-C has left half made is made again

    def listen(self) -> None:
        """Has the hooks count the gradients that each bucket of the plan misses."""
        self._hooks.keep_only(set(self.plan.bucket_of))
        for bucket in self.plan.buckets:
            note = bucket.note_stream if bucket.location.on_gpu else None
            self._hooks.count_in([id(slot.param) for slot in bucket.slots], bucket.missing, note)

    def _join_job(self) -> None:
        """Take a name in the present job: after another `init()` all ranks number their optimizers again."""
        self._engine = self._options.engine()
        self.name = self._options.make_name()
        self.plan.must_agree()
        self._joins = self._engine.joins
        self.exchanges_of_newer = {}
        self.exchanges = 0
        self.interrupted_by = ""
        self.plan.forget()  # submitted to an engine that has ended
        self._planned = None

    def _find_name(self, param: torch.Tensor) -> str:
        name = self._names.get(id(param))
        optimizer = self._optimizer()
        if name is None and optimizer is not None:
            for group_number, group in enumerate(optimizer.param_groups):
                for number, other in enumerate(group["params"]):
                    if other is param:
                        return f"allreduce.noname.{group_number}.{number}"
        return name or "unnamed"


#: The memberships of all optimizers of this process, in the order in which they were made.
_in_order: list[weakref.ref[JobMembership]] = []


def _join_in_order(engine: Engine) -> None:
    """Has every optimizer of all ranks take its name in a new job, in the order in which they were made.

    A process that has just joined an elastic job numbers its optimizers as it makes them; processes that were there
    before must get the same numbers, whichever optimizer they use first.
    """
    gc.collect()  # an optimizer that is out of use must not be counted on one rank and not on another
    _in_order[:] = [reference for reference in _in_order if reference() is not None]
    for reference in _in_order:
        member = reference()
        if member is not None and member._options.process_set is None and member._engine is not engine:
            member._join_job()
