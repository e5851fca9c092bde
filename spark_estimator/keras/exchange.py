"""One optimizer's exchange of gradients: its settings, what the ranks agree on first, and the one grouped allreduce.

The gradients come in one list, and go in one request (or in as many as there are groups), so that there is one place in
a step where ranks wait for one another, whatever order a compiled graph runs its operations in.
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
from spark_estimator.collectives.consistency import agree
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.keras.importing import backend
from spark_estimator.keras.variables import lines_of

#: What a collective inside of a compiled step raised: JAX wraps it into an error of its own.
failures: list[BaseException] = []


@dataclass
class KerasExchange:
    """How the gradients of one optimizer are exchanged.

    Attributes:
        label: the optimizer's name, for requests and errors.
        op: Average or Sum.
        compression: turns each gradient into what travels, and back.
        predivide: f: an average is taken as 1/f before and f/size after the sum.
        groups: which gradients travel together: None: all; a number of groups; or lists of variables.
        sparse_as_dense: gradients of some rows travel as whole ones; without it their rows are gathered.
        process_set: over whose ranks; a rank outside it steps by its own gradients.
        scale_local: gradients of local variables are divided by the number of ranks.
        local: ids of the variables whose gradients stay on their rank.
        accumulates: passes whose gradients are collected before they are exchanged.
        sums_passes: the passes' gradients are added up, where Keras would take their mean.
        weighs: a step's gradients are multiplied with `factor` first; not the same for all ranks.
        factor: read when the step runs, also in a compiled one. The mean over all rows of a step whose ranks have
            unequal numbers of them takes rows / (all ranks' rows / ranks).
        follower: a variable of a compiled step that is assigned `factor` whenever that is set; None: there is none.
    """

    label: str
    op: ReduceOp
    compression: Any
    predivide: float
    groups: int | list[list[Any]] | None
    sparse_as_dense: bool
    process_set: ProcessSet | None
    scale_local: bool = True
    local: set[int] = field(default_factory=set)
    accumulates: int = 1
    sums_passes: bool = False
    weighs: bool = False
    factor: float = 1.0
    follower: Any = None
    _agreed: weakref.ref[Engine] | None = None
    _name: str = ""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "factor" and getattr(self, "follower", None) is not None:
            self.follower.assign(value)

    def off(self) -> bool:
        """Whether there is nobody to exchange with, now and later."""
        if self.process_set is not None and not self.process_set.included():
            return True
        return context.engine(self.process_set).size == 1 and launcher_link.link() is None

    def agree(self, variables: Sequence[Any], wanted: Sequence[Any]) -> None:
        """Compares with the other ranks what is about to be exchanged; once in each membership.

        Args:
            variables: all that the optimizer trains.
            wanted: those of them whose gradients travel.
        """
        engine = context.engine(self.process_set)
        if self._agreed is not None and self._agreed() is engine:
            return
        lines, subject = self.statement(variables, wanted)
        agree(lines, name="keras.DistributedOptimizer.agreement", subject=subject, process_set=self.process_set)
        self._name = f"DistributedOptimizer.{self.digest(variables, wanted)}"
        self._agreed = weakref.ref(engine)

    def statement(self, variables: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[str], str]:
        """What `agree` compares, and what that is about."""
        return self._lines(variables, wanted), f"the variables of optimizer {self.label!r}"

    def digest(self, variables: Sequence[Any], wanted: Sequence[Any]) -> str:
        """Of what `agree` compares; equal on ranks that agree."""
        return hashlib.sha256("\n".join(self._lines(variables, wanted)).encode()).hexdigest()[:12]

    def _lines(self, variables: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
        travels = {id(variable) for variable in wanted}
        lines = [f"op={self.op.name}, gradient_predivide_factor={self.predivide}, {self.accumulates} passes"]
        lines += [
            line + ("" if id(variable) in travels else ", without a gradient to exchange")
            for variable, line in zip(variables, lines_of(variables), strict=True)
        ]
        return lines

    def parts(self, variables: Sequence[Any]) -> list[list[int]]:
        """Which of the gradients, by their places, travel in one request each."""
        count = len(variables)
        if self.groups is None or count == 0:
            return [list(range(count))] if count else []
        if isinstance(self.groups, int):
            number = min(self.groups, count)
            return [list(range(count * k // number, count * (k + 1) // number)) for k in range(number)]
        places = {id(variable): place for place, variable in enumerate(variables)}
        parts = [[places[id(v)] for v in group if id(v) in places] for group in self.groups]
        grouped = {place for part in parts for place in part}
        parts.append([place for place in range(count) if place not in grouped])
        return [part for part in parts if part]

    def names(self, parts: Sequence[object]) -> list[str]:
        """Of the requests; known when the ranks have agreed."""
        return self.numbered(self._name, parts)

    def numbered(self, name: str, parts: Sequence[object]) -> list[str]:
        """The names of so many requests of one exchange."""
        return [name if len(parts) == 1 else f"{name}.{number}" for number in range(len(parts))]

    @contextlib.contextmanager
    def keeping_failures(self) -> Iterator[None]:
        """What is raised in it is kept in `failures`, too: JAX hands it on as an error of its own."""
        try:
            yield
        except BaseException as error:
            failures.append(error)
            raise

    def factors(self) -> tuple[ReduceOp, float, float]:
        """The reduction, and the factors before and after it."""
        return self.op, 1.0 / self.predivide, self.predivide

    def on_host(
        self, gradients: Sequence[numpy.ndarray[Any, Any]], variables: Sequence[Any], everything: Sequence[Any]
    ) -> list[numpy.ndarray[Any, Any]]:
        """Reduces arrays over the ranks into new ones. Collective.

        Args:
            gradients: [n]
            variables, everything: as those of `reduced`.
        """
        with self.keeping_failures():
            self.agree(everything, variables)
            op, prescale, postscale = self.factors()
            parts = self.parts(variables)
            reduced: list[Any] = [None] * len(gradients)
            for name, part in zip(self.names(parts), parts, strict=True):
                sent = [self._weighed(numpy.asarray(gradients[place])) for place in part]
                received = arrays.grouped_allreduce(
                    sent, op, name, prescale=prescale, postscale=postscale, process_set=self.process_set
                )
                for place, array in zip(part, received, strict=True):
                    reduced[place] = array
        return reduced

    def _weighed(self, gradient: Any) -> Any:
        """A gradient, multiplied where that is this rank's part; with several passes each pass has done that before."""
        if not self.weighs or self.factor == 1.0 or self.accumulates > 1:
            return gradient
        return (gradient * self.factor).astype(gradient.dtype)

    def all_true(self, flag: Any) -> bool:
        """Whether a truth value holds on every rank. Collective."""
        with self.keeping_failures():
            sent = numpy.asarray(flag, numpy.uint8).reshape(())
            name = "keras.DistributedOptimizer.finite"
            return bool(arrays.allreduce(sent, ReduceOp.MIN, name, process_set=self.process_set))

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks in the place of this rank's. Collective, in the graph that is being made, if any.

        Args:
            gradients: tensors of the backend; None where a variable has none.
            variables: whose they are.
            everything: all variables that the optimizer trains.
        """
        if self.off():
            return list(gradients)
        result = list(gradients)
        places = [
            place
            for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            if gradient is not None and id(variable) not in self.local
        ]
        if places:
            reduced = _reducer()(self, [gradients[p] for p in places], [variables[p] for p in places], everything)
            for place, gradient in zip(places, reduced, strict=True):
                result[place] = gradient
        if self.scale_local and self.op is ReduceOp.AVERAGE:
            size = context.engine(self.process_set).size
            for place, variable in enumerate(variables):
                if id(variable) in self.local and result[place] is not None:
                    result[place] = result[place] / size
        return result

    def compressed(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What travels, and what it takes to turn it back."""
        pairs = [self.compression.compress(gradient) for gradient in gradients]
        return [sent for sent, _ in pairs], [ctx for _, ctx in pairs]

    def decompressed(self, received: Sequence[Any], contexts: Sequence[Any]) -> list[Any]:
        """What came back, in the gradients' own types."""
        return [self.compression.decompress(tensor, ctx) for tensor, ctx in zip(received, contexts, strict=True)]


def _reducer() -> Any:
    """The backend's way to carry gradients to the engine and back."""
    if backend() == "torch":
        from spark_estimator.keras.on_torch import reduced
    elif backend() == "tensorflow":
        from spark_estimator.keras.on_tensorflow import reduced
    else:
        from spark_estimator.keras.on_jax import reduced
    return reduced
