"""The adaptive sum of a step's changes: each rank steps by its own gradients, then the changes are combined.

The changes of two ranks are added after each has lost half of its projection on the other: orthogonal ones are summed,
parallel ones averaged (Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation"). Each parameter has
its own coefficients.

All ranks must step equally often. A GradScaler decides by this rank's own gradients, so it is asked to leave that to
the optimizer, as to PyTorch's fused ones: a rank whose gradients are not finite steps without any, and takes part with
a change of nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import MismatchError
from spark_estimator.torch.collectives.device import find_common_location
from spark_estimator.torch.collectives.memory import make_wire_tensor, to_wire_form
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.order import find_first_rank_order

#: The attribute by which a GradScaler knows an optimizer that it need not skip; PyTorch's fused ones have it.
TAKES_SCALE = "_step_supports_amp_scaling"


class AdasumStep:
    """The work of ``DistributedOptimizer(op=Adasum)`` around a step. Collective in `after_step` only.

    Gradients of any number of backward passes add up where autograd puts them; ranks need not make equally many.

    Args:
        optimizer: whose parameters; also those that are added or made trainable later.
        names: parameter id -> name, for messages.
        options: how changes are exchanged; of the compressors those that work on one tensor at a time.
    """

    in_backward = False  # nothing is in flight while autograd is at work

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str], options: Options) -> None:
        self.accumulating = False  # passes add up in any case
        self._optimizer = weakref.ref(optimizer)
        self._names = names
        self._options = options
        self.bytes_given = 0  # to the engine in the last step
        self._engine: Engine | None = None
        self._agreed: list[str] = []  # the lines of all ranks, in this rank's order of parameters
        self._order: list[int] = []  # of the positions of this rank's parameters, the same on all ranks
        self._depth = 0  # a step may call its base class's step, and the hooks see both
        self._evaluating = False
        self._start: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters, and their values before the step
        self._withheld: list[tuple[torch.Tensor, torch.Tensor]] = []  # gradients of this step that are not finite
        self._takes_scale = not getattr(optimizer, TAKES_SCALE, False)
        if self._takes_scale:
            setattr(optimizer, TAKES_SCALE, True)

    def synchronize(self) -> None:
        """Do nothing: gradients stay this rank's own."""

    def forget_passes(self) -> None:
        """Forget a step that raised, if there was one."""
        if not self._evaluating:
            self._depth = 0
            self._start = []

    begin_step = forget_passes

    def set_passes_per_step(self, passes: int | None) -> None:
        """Begins the next step: passes add up in any case."""
        self.begin_step()

    def close(self) -> None:
        """Leave the optimizer as it was."""
        optimizer = self._optimizer()
        if self._takes_scale and optimizer is not None:
            delattr(optimizer, TAKES_SCALE)

    def evaluate(self, closure: Callable[[], Any], *, synchronize: bool) -> Any:
        """Return the result of a step's closure; its gradients stay this rank's own."""
        self._evaluating = True  # it will call zero_grad
        try:
            return closure()
        except BaseException:
            self._depth = 0
            raise
        finally:
            self._evaluating = False

    def before_step(self) -> None:
        """Note where the parameters are."""
        self._depth += 1
        if self._depth == 1:
            self._start = [(param, param.detach().clone()) for param in self._list_trainable()]
            if self._takes_scale:
                self._unscale()

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the parameters by the adaptive sum of all ranks' changes. Collective.

        Raises MismatchError: the ranks' parameters differ; HorovodInternalError: a rank is lost, and nothing was moved.
        """
        self._depth -= 1
        if self._depth > 0:
            return
        start, self._start = self._start, []
        for param, gradient in self._withheld:
            param.grad = gradient
        self._withheld = []
        try:
            self._agree([param for param, _ in start])
            self._combine([start[position] for position in self._order])
        except BaseException:
            for param, before in start:
                param.copy_(before)
            raise

    @torch.no_grad()
    def _unscale(self) -> None:
        """Unscales the gradients, which a GradScaler leaves to the optimizer whose step it calls."""
        optimizer: Any = self._optimizer()
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None:  # no GradScaler
            return
        scale = optimizer.grad_scale  # None: the user has called unscale_()
        optimizer.grad_scale = optimizer.found_inf = None  # seen to here, and nothing for the optimizer's own step
        gradients = [(param, param.grad) for param, _ in self._start if param.grad is not None]
        if found_inf:
            self._withheld = gradients
            for param, _ in gradients:
                param.grad = None
        elif scale is not None:
            for _, gradient in gradients:
                gradient.mul_(scale.double().reciprocal().to(gradient.device, torch.float32))

    def _combine(self, start: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        compression, kind = self._options.compression, "Adasum of what a step has changed"
        location = find_common_location([param for param, _ in start], self._options.process_set)
        gpu = location.make_gpu(kind)
        wires, contexts = [], []
        for param, before in start:
            wire, compressed = compression.compress(param.sub_(before).detach())
            wires.append(to_wire_form(wire, kind, location.device))
            contexts.append(compressed)
        self.bytes_given = sum(wire.nbytes for wire in wires)
        collectives.run(
            Op.ALLREDUCE,
            f"{self._prefix}.changes",
            [make_wire_tensor(wire) for wire in wires],
            reduce_op=ReduceOp.ADASUM,
            process_set=self._options.process_set,
            keep=wires,
            gpu=gpu,
        )
        for (param, before), wire, compressed in zip(start, wires, contexts, strict=True):
            change = compression.decompress(wire, compressed)
            torch.add(before, change.to(param.device, param.dtype), out=param.detach())

    def _agree(self, params: list[torch.Tensor]) -> None:
        engine = self._options.engine()
        if engine is not self._engine:  # after another init() all ranks number their optimizers again
            self._engine = engine
            self._prefix = self._options.make_name()
            self._agreed = []
        lines = [f"{len(params)} parameters, adasum"] + [
            f"parameter {self._names.get(id(param), position)}: shape {tuple(param.shape)}, {param.dtype}"
            for position, param in enumerate(params)
        ]
        if lines == self._agreed:
            return
        try:
            self._compare(lines)
            self._order = list(range(len(params)))
        except MismatchError as error:
            names = [self._names.get(id(param), position) for position, param in enumerate(params)]
            name, process_set = f"{self._prefix}.order", self._options.process_set
            is_disagreement = str(error).startswith("The ranks disagree")  # then all ranks have this error
            order = find_first_rank_order(names, name=name, process_set=process_set) if is_disagreement else None
            if order is None:
                raise
            self._compare([lines[0], *(lines[1 + position] for position in order)])
            self._order = order
        self._agreed = lines

    def _compare(self, lines: list[str]) -> None:
        name, subject = f"{self._prefix}.changes", "the parameters of DistributedOptimizer"
        check_identical(lines, name=name, subject=subject, process_set=self._options.process_set)

    def _list_trainable(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        assert optimizer is not None
        return [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
