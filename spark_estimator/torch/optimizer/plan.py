"""The plan of one optimizer's exchange: its parameters in buckets, on which the ranks agree before any is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.errors import MismatchError
from spark_estimator.observe import spans
from spark_estimator.torch.collectives.compressors import BucketCompression, wire_dtype
from spark_estimator.torch.collectives.device import find_common_location
from spark_estimator.torch.collectives.memory import find_element_type, make_wire_tensor
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.bucket_sizes import Gradient, describe_plan, plan
from spark_estimator.torch.optimizer.order import find_first_rank_order
from spark_estimator.torch.optimizer.slot import Slot
from spark_estimator.torch.optimizer.sparse_bucket import SparseBucket


class GradientPlan:
    """The buckets of some parameters' gradients.

    Attributes:
        slots: of the parameters, in the optimizer's order; where the ranks have other orders, in the first rank's.
        buckets: in the order in which they are expected to be complete.
        bucket_of: parameter id -> its bucket.
        repeats: a pass adds to some gradient more than once, so that none is complete before the end of the pass.
        remainder: the plan of a further exchange that was made last, of those parameters that had no gradient.

    Args:
        name: of the exchange, alike on all ranks.
        slots: see above.
        options: how to exchange.
        passes: backward passes per step.
    """

    def __init__(self, name: str, slots: Sequence[Slot], options: Options, passes: int) -> None:
        self.slots = list(slots)
        self.repeats = False
        self.remainder: GradientPlan | None = None
        self._agreed = False
        self._name = name
        self._options = options
        self._passes = passes
        self._make({})

    @property
    def in_flight(self) -> bool:
        """Return whether a bucket has been submitted, and its exchange is not over."""
        return any(bucket.submitted for bucket in self.buckets)

    @property
    def agreed(self) -> bool:
        """Return whether the ranks have compared their plans."""
        return self._agreed

    def must_agree(self) -> None:
        """Has the ranks compare their plans before the next bucket is sent."""
        self._agreed = False

    def submit(self) -> None:
        """Submit all buckets that have not been submitted in this exchange. Do not block."""
        for bucket in self.buckets:
            bucket.submit()

    def exchange(self, buckets_changed: Callable[[], None]) -> list[Slot]:
        """Submit what is left, wait, and make the averages the parameters' gradients. Collective.

        Return the slots for which no rank had a gradient. If gradients turn out to be sparse, call `buckets_changed`.

        Raises MismatchError: the ranks disagree, and compare their plans again; HorovodInternalError: a rank is lost.
        """
        try:
            with spans.span(spans.EXCHANGE):
                if not self._agreed and self._agree():
                    buckets_changed()
                self.submit()
                return [slot for bucket in self.buckets for slot in bucket.finish()]
        except MismatchError:
            self._agreed = False
            raise

    @property
    def interrupted_by(self) -> str:
        """Return the exception that interrupted the submission of a bucket, which the engine may have; "" if none."""
        return next((bucket.torn for bucket in self.buckets if bucket.torn), "")

    def detach_submitted(self) -> None:
        """Detaches the parameters from memory of submitted buckets; `exchange` attaches them again."""
        for bucket in self.buckets:
            if bucket.submitted:
                bucket.detach_gradients()

    def forget_unsubmitted(self) -> None:
        """Make the buckets that have not been submitted ready for another pass."""
        for bucket in self.buckets:
            if not bucket.submitted:
                bucket.forget()

    def forget(self) -> None:
        """Make all buckets ready for the next exchange."""
        for bucket in self.buckets:
            bucket.forget()

    def _agree(self) -> bool:
        """Compare plans with the other ranks, before the first bucket is sent. Collective.

        Return whether the buckets are others now: by another order of parameters, or sparse gradients of some rank.

        Raises MismatchError: they differ, or another rank still exchanges by the plan before this one.
        """
        is_reordered = False
        try:
            self._compare()
        except MismatchError as error:
            if not str(error).startswith("The ranks disagree"):  # else all ranks have this error
                raise MismatchError(
                    f"Rank {context.rank()} and another rank exchange gradients of different parameters. Create the "
                    "same optimizers on all ranks, and call add_param_group or requires_grad_, or change a parameter's "
                    f"type, on all ranks between the same two steps. ({error})"
                ) from error
            if not self._reorder():
                raise
            self._compare()
            is_reordered = True
        self._agreed = True
        has_sparse = not self._options.sparse_as_dense and self._find_sparse()
        return is_reordered or has_sparse

    def _compare(self) -> None:
        # Under the first bucket's own name: a rank that holds to the old plan submits that, and all get an error.
        check_identical(
            self._description,
            name=f"{self._name}.bucket.0",
            subject="the parameters of DistributedOptimizer",
            detail_name=f"{self._name}.plan",
            process_set=self._options.process_set,
        )

    def _reorder(self) -> bool:
        """Put the parameters into the first rank's order, by their names. Return whether that was possible."""
        names = [slot.name for slot in self.slots]
        name = f"{self._name}.order"
        order = find_first_rank_order(names, name=name, process_set=self._options.process_set)
        if order is not None:
            self.slots = [self.slots[position] for position in order]
            self._make({})
        return order is not None

    def _make(self, sparse_dims: dict[int, int]) -> None:
        """Make the buckets; `sparse_dims`: position of a parameter -> how many of its dimensions are sparse."""
        params = [slot.param for slot in self.slots]
        gradients = [self._plan_gradient(slot) for slot in self.slots]
        dense = [position for position in range(len(params)) if position not in sparse_dims]
        groups = self._group_positions([params[position] for position in dense])
        planned = [
            [dense[number] for number in numbers]
            for numbers in plan([gradients[position] for position in dense], context.settings().bucket_bytes, groups)
        ]
        self.buckets = [
            self._options.bucket(f"{self._name}.bucket.{number}", [self.slots[position] for position in positions])
            for number, positions in enumerate(planned)
        ]
        for position, dims in sparse_dims.items():
            name = f"{self._name}.sparse.{position}"
            self.buckets.append(SparseBucket(name, self.slots[position], self._options, dims))
        self.bucket_of = {id(slot.param): bucket for bucket in self.buckets for slot in bucket.slots}
        op, prescale, postscale = self._options.scale_op()
        header = (
            f"{len(params)} parameters, {op.name.lower()}, scales {prescale} and {postscale}, "
            f"sparse gradients {'as dense ones' if self._options.sparse_as_dense else 'by their rows'}"
        )
        if self._passes > 1:
            header += f", {self._passes} backward passes a step"
        if isinstance(self._options.compression, BucketCompression):
            header += f", {self._options.compression!r}"
        self._description = describe_plan(gradients, [*planned, *([position] for position in sparse_dims)], header)

    def _plan_gradient(self, slot: Slot) -> Gradient:
        find_element_type(slot.dtype)
        wire_type = wire_dtype(self._options.compression, slot.dtype)
        return Gradient(
            name=slot.name,
            shape=tuple(slot.param.shape),
            order=slot.order,
            dtype=str(slot.dtype).removeprefix("torch."),
            wire_dtype="" if wire_type is None else str(wire_type).removeprefix("torch."),
            wire_bytes=slot.param.numel() * (slot.dtype if wire_type is None else wire_type).itemsize,
            on_gpu=find_common_location([slot.param], self._options.process_set).on_gpu,
        )

    def _group_positions(self, params: Sequence[torch.Tensor]) -> int | list[list[int]] | None:
        groups = self._options.groups
        if groups is None or isinstance(groups, int):
            return groups
        position = {id(param): number for number, param in enumerate(params)}
        positions = [[position[id(param)] for param in group if id(param) in position] for group in groups]
        return [group for group in positions if group]

    def _find_sparse(self) -> bool:
        """Plans sparse buckets for parameters whose gradient is sparse on some rank, now that all have a gradient."""
        # Sums, in which a rank that has joined takes part with zeros: of ranks with a sparse one, of its dimensions.
        seen = torch.zeros((2, len(self.slots)), dtype=torch.int64)
        for position, slot in enumerate(self.slots):
            gradient = slot.param.grad
            if gradient is not None and gradient.layout is torch.sparse_coo:
                seen[:, position] = torch.tensor([1, gradient.sparse_dim()])
        name, process_set = f"{self._name}.sparse", self._options.process_set
        collectives.run(
            Op.ALLREDUCE,
            name,
            [make_wire_tensor(seen)],
            reduce_op=ReduceOp.SUM,
            process_set=process_set,
            keep=seen,
            repeats=False,
        )
        ranks, dims = seen.tolist()
        sparse_dims = {at: of // count for at, (count, of) in enumerate(zip(ranks, dims, strict=True)) if count}
        if sparse_dims:
            self._make(sparse_dims)
        return bool(sparse_dims)
