"""A step's further exchanges: of parameters that no rank has reached so far, and that a later backward pass may reach.

``loss_a.backward()`` and ``loss_b.backward()`` over disjoint parts of a model, then one ``step()``, are two passes, of
which each needs an exchange, so that its gradients are averages when it returns. A rank may leave out the second pass.
So each further exchange begins with a sum: of 1 from a rank whose pass has ended, which sends its gradients at once,
and of 0 from one that is in ``step()``, which takes part if the sum is not 0. If it is 0, all ranks are in ``step()``,
and the step's exchanges are over. Only steps that leave some parameter without a gradient on all ranks have this small
message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch.collectives.memory import make_wire_tensor
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.plan import GradientPlan
from spark_estimator.torch.optimizer.slot import Slot


class RemainderPlan(GradientPlan):
    """The plan of a further exchange.

    Args:
        whole: the plan of the step's first exchange.
        name: of the exchange, alike on all ranks.
        slots: of the parameters that no rank has reached in the step.
        options: how to exchange.
        passes: backward passes per step.
    """

    def __init__(self, whole: GradientPlan, name: str, slots: Sequence[Slot], options: Options, passes: int) -> None:
        super().__init__(name, slots, options, passes)
        self.whole = whole
        self._agreed = True  # its parameters are a result of an exchange on which the ranks have agreed
        self._answer: tuple[torch.Tensor, Handle] | None = None

    @classmethod
    def of(cls, plan: GradientPlan, unused: Sequence[Slot]) -> RemainderPlan | None:
        """Return the plan, kept, of the exchange of `unused` that may follow one by `plan`; None: nothing is left."""
        if not unused:
            return None
        keys = {id(slot.param) for slot in unused}
        slots = [slot for slot in plan.slots if id(slot.param) in keys]
        made = plan.remainder
        if not isinstance(made, cls) or made.slots != slots:
            whole = plan.whole if isinstance(plan, cls) else plan
            plan.remainder = made = cls(whole, f"{plan._name}.further", slots, plan._options, plan._passes)
        return made

    def check_reached(self, key: int) -> None:
        """Note that a pass reached a parameter, by id. Raises AssertionError: its gradient is an average by now."""
        bucket = self.bucket_of.get(key)
        if bucket is None:
            raise AssertionError(
                f"backward() reached a parameter again after backward_passes_per_step={self._passes} passes, in which "
                "it has become an average. Before step(), a further pass may only reach parameters that no rank has "
                "reached: call step() or zero_grad() on the optimizer in between, or raise backward_passes_per_step."
            )
        bucket.note_stream()

    @property
    def in_flight(self) -> bool:
        return self._answer is not None or super().in_flight

    def submit(self) -> None:
        self._ask(True)
        super().submit()

    def exchange(self, buckets_changed: Callable[[], None]) -> list[Slot]:
        """Exchange as the base class does; do nothing if no rank has a gradient. Collective."""
        if self._answer is None:
            self._ask(any(slot.param.grad is not None for slot in self.slots))
        assert self._answer is not None
        ranks, handle = self._answer
        handle.wait()
        return super().exchange(buckets_changed) if ranks.item() else []

    def forget(self) -> None:
        super().forget()
        self._answer = None

    def _ask(self, has_gradients: bool) -> None:
        if self._answer is None:
            ranks = torch.tensor([has_gradients], dtype=torch.int64)
            name, process_set = f"{self._name}.ranks", self._options.process_set
            handle = collectives.submit(
                Op.ALLREDUCE,
                name,
                [make_wire_tensor(ranks)],
                reduce_op=ReduceOp.SUM,
                process_set=process_set,
                keep=ranks,
            )
            self._answer = ranks, handle
