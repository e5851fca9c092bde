"""Reduces a list of gradients over the ranks, for the tape and the optimizers."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.compression.casts import is_int8
from spark_estimator.collectives.compression.int8 import make_key
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Adasum, Average, Sum, describe_call, describe_op
from spark_estimator.tensorflow.compression import Compression, checked_compressor
from spark_estimator.tensorflow.nodes import check_tensor
from spark_estimator.tensorflow.questions import ask_size
from spark_estimator.tensorflow.reducing import TensorReduction, allreduce, run_allreduce


def identify(variable: Any) -> int:
    """Return the number by which a variable is known: Keras has its own around TensorFlow's."""
    return id(_unwrap(variable))


def _unwrap(variable: Any) -> Any:
    return variable if hasattr(variable, "read_value") else getattr(variable, "value", variable)


def make_residue_keys(variables: Iterable[Any]) -> str:
    """Return the keys of the rounding errors of the variables' gradients; see ``works.GraphCollective``."""
    return ",".join(make_key(_unwrap(variable)) for variable in variables)


@dataclass(frozen=True)
class GradientOptions:
    """How gradients are reduced: the arguments of `DistributedGradientTape`, checked by `make_options`.

    Attributes:
        kind: whose, for errors.
        compression: applied to each dense gradient.
        sparse_as_dense: slices are made dense first; else they are gathered as they are.
        op: Average, Sum or Adasum.
        predivide: an average is split: 1/f before the sum, f/size after it.
        groups: None; a number of nearly even groups; or lists of variables.
        process_set: over whose ranks.
        scale_local: gradients of local variables are divided by the number of ranks.
    """

    kind: str
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: ReduceOp = Average
    predivide: float = 1.0
    groups: int | tuple[tuple[int, ...], ...] | None = None
    process_set: ProcessSet = global_process_set
    scale_local: bool = True

    def is_alone(self) -> bool:
        """Return whether there is no rank to exchange with: one rank, not elastic, or this rank is not in the set."""
        if self.process_set.included() is False:
            return True
        return context.engine(self.process_set).size == 1 and not context.settings().elastic

    def reduce_gradients(self, gradients: Sequence[Any], variables: Sequence[Any], local: set[int]) -> list[Any]:
        """Return the gradients (tensors, slices or None), reduced over the ranks. Collective.

        Those of `local` variables, by `identify`, stay as they are, or are scaled.
        """
        results = list(gradients)
        if self.is_alone():
            return results
        dense: list[tuple[int, Any, Any]] = []
        as_int8 = is_int8(self.compression)  # by the engine
        for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if identify(variable) in local:
                results[number] = self._scale(gradient) if self.scale_local else gradient
            elif isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
                results[number] = allreduce(gradient, op=self.op, process_set=self.process_set)
            else:
                tensor = check_tensor(gradient, self.kind)
                dense.append((number, *((tensor, None) if as_int8 else self.compression.compress(tensor))))
        how = TensorReduction(self.op, 1.0 / self.predivide, self.predivide, self.process_set)
        for bucket in self._plan_buckets(dense, variables):
            if as_int8:
                how = how._replace(residues=make_residue_keys(variables[number] for number, _, _ in bucket))
            outputs = run_allreduce([tensor for _, tensor, _ in bucket], "gradients", None, how)
            for (number, _, ctx), output in zip(bucket, outputs, strict=True):
                results[number] = self.compression.decompress(output, ctx)
        return results

    def _scale(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / ask_size(self.process_set, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / ask_size(self.process_set, gradient.dtype)

    def _plan_buckets(
        self, dense: Sequence[tuple[int, Any, Any]], variables: Sequence[Any]
    ) -> Iterator[list[tuple[int, Any, Any]]]:
        """Yield gradients that are reduced as one, in an order that is the same on all ranks."""
        if isinstance(self.groups, int):
            least, more = divmod(len(dense), self.groups)
            ends = [(least + 1) * min(n, more) + least * max(0, n - more) for n in range(self.groups + 1)]
            yield from (list(dense[start:end]) for start, end in itertools.pairwise(ends) if end > start)
            return
        ungrouped = list(dense)
        for group in self.groups or ():
            members = [entry for entry in ungrouped if identify(variables[entry[0]]) in group]
            if members:
                yield members
                ungrouped = [entry for entry in ungrouped if identify(variables[entry[0]]) not in group]
        bucket: list[tuple[int, Any, Any]] = []
        limit = _choose_bucket_bytes()
        room = limit
        # From the end: backward has the last layers' gradients first.
        for entry in reversed(ungrouped):
            size = (entry[1].shape.num_elements() or 0) * entry[1].dtype.size
            if bucket and size > room:
                yield bucket
                bucket, room = [], limit
            bucket.append(entry)
            room -= size
        if bucket:
            yield bucket


def _choose_bucket_bytes() -> float:
    """Return how many bytes of gradients are reduced as one, the same on all ranks.

    On one host all of them: cores move the bytes, and TensorFlow computes with every core. Several buckets'
    threads would only slow down each other and the graph (measured: 1.6 times what one bucket exposes).
    """
    # An elastic job may get more hosts, and the ranks that were there before do not trace their graphs again.
    if context.cross_size() == 1 and not context.settings().elastic:
        return math.inf
    return context.settings().bucket_bytes


def make_options(
    kind: str,
    compression: Any,
    sparse_as_dense: bool,
    op: Any,
    gradient_predivide_factor: Any,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
) -> GradientOptions:
    """Make the settings of a reduction from the user's arguments. Raises ValueError for impossible ones."""
    try:
        operation = ReduceOp(op)
    except ValueError:
        operation = ReduceOp.MIN
    if isinstance(op, bool) or operation not in (Average, Sum, Adasum):
        raise ValueError(f"{describe_call(kind)}: op={describe_op(op)} must be hvd.Average, hvd.Sum or hvd.Adasum.")
    factor = gradient_predivide_factor
    if not isinstance(factor, numbers.Real) or not 0 < float(factor) < math.inf:
        raise ValueError(
            f"{describe_call(kind)}: gradient_predivide_factor={factor!r} must be a number greater than 0."
        )
    if factor != 1.0 and operation is not Average:
        raise ValueError(f"{describe_call(kind)}: gradient_predivide_factor={factor} requires op=hvd.Average.")
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"{describe_call(kind)}: process_set must be a ProcessSet, not {process_set!r}.")
    if num_groups:
        import warnings

        warnings.warn("num_groups= is deprecated; use groups=.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if is_int8(compression) and operation is Adasum:
        raise ValueError(
            f"{describe_call(kind)}: compression=hvd.Compression.int8 is not supported with op=hvd.Adasum. Use "
            "op=hvd.Average, or hvd.Compression.none, fp16 or bf16."
        )
    return GradientOptions(
        kind,
        checked_compressor(compression, kind),
        bool(sparse_as_dense),
        operation,
        float(factor),
        _check_groups(groups, kind),
        process_set,
        bool(scale_local_gradients),
    )


def _check_groups(groups: Any, kind: str) -> int | tuple[tuple[int, ...], ...] | None:
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(
            f"{describe_call(kind)}: groups={groups!r} must be an integer greater than 0, or lists of variables."
        )
    members = [identify(variable) for group in groups for variable in group]
    if len(set(members)) != len(members):
        raise ValueError(f"{describe_call(kind)}: groups has a variable twice; each may be in one group only.")
    return tuple(tuple(identify(variable) for variable in group) for group in groups)
