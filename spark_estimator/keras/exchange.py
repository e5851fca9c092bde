"""One optimizer's exchange of gradients: its settings, what the ranks agree on first, and the one grouped allreduce.

All gradients of a step are sent in one request (or one for each group), so that the ranks wait for each other at one
point of a step, independent of the order in which a compiled graph runs its operations.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context, launcher_link
from spark_estimator.collectives.compression.casts import is_int8
from spark_estimator.collectives.compression.int8 import make_key
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.keras.variables import describe_variables

#: The errors of collectives inside of compiled steps: JAX wraps them into its own error.
failures: list[BaseException] = []


@dataclass
class StepWeight:
    """A number with which this rank's gradients of a step are multiplied first. Ranks have different ones."""

    is_used: bool = False
    value: float = 1.0  # rows / (all ranks' rows / ranks): then the mean is that over all rows of the step
    follower: Any = None  # a variable of a compiled step, which is assigned `value` whenever that is set

    def set(self, value: float) -> None:
        """Set the number; it is read when the step runs, also in a compiled one."""
        self.value = value
        if self.follower is not None:
            self.follower.assign(value)


@dataclass
class KerasExchange:
    """How the gradients of one optimizer are exchanged."""

    label: str  # the optimizer's name, for requests and errors
    op: ReduceOp  # Average or Sum
    compression: Any  # turns each gradient into what is sent, and back
    predivide: float  # f: an average is taken as 1/f before and f/size after the sum
    groups: int | list[list[Any]] | None  # sent together: None: all; a number of groups; or lists of variables
    sparse_as_dense: bool  # gradients of some rows are sent as whole ones; without it their rows are gathered
    process_set: ProcessSet | None  # over whose ranks; a rank outside it steps by its own gradients
    scale_local: bool = True  # gradients of local variables are divided by the number of ranks
    local: set[int] = field(default_factory=set)  # ids of the variables whose gradients stay on their rank
    accumulates: int = 1  # passes whose gradients are collected before they are exchanged
    sums_passes: bool = False  # the passes' gradients are added up, where Keras would take their mean
    backend: str | None = None  # of the optimizer's Keras; None: that of the process
    weight: StepWeight = field(default_factory=StepWeight)  # of this rank's gradients
    _agreed: weakref.ref[Engine] | None = None
    _name: str = ""

    def is_off(self) -> bool:
        """Return whether this rank has no other rank to exchange with, now and later."""
        if self.process_set is not None and not self.process_set.included():
            return True
        return context.engine(self.process_set).size == 1 and launcher_link.link() is None

    def check_variables(self, variables: Sequence[Any], exchanged: Sequence[Any]) -> None:
        """Compare with the other ranks which of these variables' gradients are sent; once in each membership."""
        engine = context.engine(self.process_set)
        if self._agreed is not None and self._agreed() is engine:
            return
        lines, subject = self.make_statement(variables, exchanged)
        name = "keras.DistributedOptimizer.agreement"
        check_identical(lines, name=name, subject=subject, process_set=self.process_set)
        self._name = f"DistributedOptimizer.{self.digest(variables, exchanged)}"
        self._agreed = weakref.ref(engine)

    def make_statement(self, variables: Sequence[Any], exchanged: Sequence[Any]) -> tuple[list[str], str]:
        """Return the lines that `check_identical` compares, and the name of what they describe."""
        return self._list_lines(variables, exchanged), f"the variables of optimizer {self.label!r}"

    def digest(self, variables: Sequence[Any], exchanged: Sequence[Any]) -> str:
        """Return the digest of what `check_identical` compares; equal on ranks that agree."""
        return hashlib.sha256("\n".join(self._list_lines(variables, exchanged)).encode()).hexdigest()[:12]

    def _list_lines(self, variables: Sequence[Any], exchanged: Sequence[Any]) -> list[str]:
        exchanged_ids = {id(variable) for variable in exchanged}
        lines = [f"op={self.op.name}, gradient_predivide_factor={self.predivide}, {self.accumulates} passes"]
        lines += [
            line + ("" if id(variable) in exchanged_ids else ", without a gradient to exchange")
            for variable, line in zip(variables, describe_variables(variables), strict=True)
        ]
        return lines

    def split_parts(self, variables: Sequence[Any]) -> list[list[int]]:
        """Return which of the gradients, by their positions, are sent in one request each."""
        count = len(variables)
        if self.groups is None or count == 0:
            return [list(range(count))] if count else []
        if isinstance(self.groups, int):
            number = min(self.groups, count)
            return [list(range(count * k // number, count * (k + 1) // number)) for k in range(number)]
        indices = {id(variable): index for index, variable in enumerate(variables)}
        parts = [[indices[id(v)] for v in group if id(v) in indices] for group in self.groups]
        grouped = {index for part in parts for index in part}
        parts.append([index for index in range(count) if index not in grouped])
        return [part for part in parts if part]

    def names(self, parts: Sequence[object]) -> list[str]:
        """Return the names of the requests; known when the ranks have agreed."""
        return self.number_names(self._name, parts)

    def number_names(self, name: str, parts: Sequence[object]) -> list[str]:
        """Return the names of the requests of one exchange, one for each of `parts`."""
        return [name if len(parts) == 1 else f"{name}.{number}" for number in range(len(parts))]

    @contextlib.contextmanager
    def keep_failures(self) -> Iterator[None]:
        """Keep its errors also in `failures`: JAX converts them to its own error."""
        try:
            yield
        except BaseException as error:
            failures.append(error)
            raise

    def scale_op(self) -> tuple[ReduceOp, float, float]:
        """Return the reduction, and the factors before and after it."""
        return self.op, 1.0 / self.predivide, self.predivide

    def reduce_on_host(
        self, gradients: Sequence[numpy.ndarray[Any, Any]], variables: Sequence[Any], everything: Sequence[Any]
    ) -> list[numpy.ndarray[Any, Any]]:
        """Reduce arrays over the ranks into new ones, as ``backends.reduce_gradients``. Collective."""
        with self.keep_failures():
            self.check_variables(everything, variables)
            op, prescale, postscale = self.scale_op()
            parts = self.split_parts(variables)
            reduced: list[Any] = [None] * len(gradients)
            for name, part in zip(self.names(parts), parts, strict=True):
                sent = [self._weigh(numpy.asarray(gradients[index])) for index in part]
                received = arrays.grouped_allreduce(
                    sent,
                    op,
                    name,
                    prescale=prescale,
                    postscale=postscale,
                    process_set=self.process_set,
                    residues=self.make_residue_keys([variables[index] for index in part]),
                )
                for index, array in zip(part, received, strict=True):
                    reduced[index] = array
        return reduced

    def _weigh(self, gradient: Any) -> Any:
        """Return a gradient, multiplied where that is this rank's part; with several passes each has done it before."""
        if not self.weight.is_used or self.weight.value == 1.0 or self.accumulates > 1:
            return gradient
        return (gradient * self.weight.value).astype(gradient.dtype)

    def are_all_true(self, flag: Any) -> bool:
        """Return whether a truth value holds on every rank. Collective."""
        with self.keep_failures():
            sent = numpy.asarray(flag, numpy.uint8).reshape(())
            name = "keras.DistributedOptimizer.finite"
            return bool(arrays.allreduce(sent, ReduceOp.MIN, name, process_set=self.process_set))

    def make_residue_keys(self, variables: Sequence[Any]) -> list[str]:
        """Return the keys of the rounding errors of the variables' gradients; none where they are not rounded."""
        return [make_key(variable) for variable in variables] if is_int8(self.compression) else []

    def compress(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return what to send for gradients, and what it takes to turn it back."""
        if is_int8(self.compression):  # which the engine does
            return list(gradients), [None] * len(gradients)
        pairs = [self.compression.compress(gradient) for gradient in gradients]
        return [sent for sent, _ in pairs], [ctx for _, ctx in pairs]

    def decompress(self, received: Sequence[Any], contexts: Sequence[Any]) -> list[Any]:
        """Return the results, in the gradients' types."""
        return [self.compression.decompress(tensor, ctx) for tensor, ctx in zip(received, contexts, strict=True)]
