"""A rank's rows as Lightning data loaders: batches are dicts from the columns' names to tensors, as in Horovod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from spark_estimator.data.fields import Field
from spark_estimator.data.rank.epoch_rows import EpochRows
from spark_estimator.estimators.epoch_division import rest_of_epoch
from spark_estimator.estimators.torch.losses import Tensors
from spark_estimator.estimators.torch.trainer import tensor_of
from spark_estimator.estimators.train_spec import TrainSpec

Named = dict[str, torch.Tensor]


def named(
    inputs: Sequence[Field],
    labels: Sequence[Field],
    weight: Field | None,
    tensors: Tensors,
    label_shapes: Sequence[Sequence[int]] | None = None,
) -> Named:
    """A batch by the names of its columns; of a column that is feature and label, what the feature is.

    Args:
        tensors: [inputs + labels + weight] as `estimators.torch.trainer.tensor_of` makes them. Columns that are joined
            in one input are separate here, [rows, values] each.
    """
    result: Named = {}
    for field, tensor in zip(inputs, tensors, strict=False):
        if len(field.names) == 1:
            result[field.names[0]] = tensor
        else:
            flat = tensor.reshape(len(tensor), -1)
            result.update(zip(field.names, flat.split(list(field.widths), dim=1), strict=True))
    for place, field in enumerate(labels):
        tensor = tensors[len(inputs) + place]
        shaped = tensor if label_shapes is None else tensor.reshape(len(tensor), *label_shapes[place][1:])
        result.setdefault(field.names[0], shaped)
    if weight is not None:
        result.setdefault(weight.names[0], tensors[-1].reshape(-1))
    return result


def inputs_of(inputs: Sequence[Field], batch: Named) -> Tensors:
    """The model's inputs of a batch: columns of one input are joined again."""
    return [
        batch[field.names[0]]
        if len(field.names) == 1
        else torch.cat([batch[name] for name in field.names], dim=1).reshape(-1, *field.shape)
        for field in inputs
    ]


class RowLoader:
    """The batches of one epoch: equally many on all ranks. Batches that other ranks have done count among them.

    Args:
        rows: of this rank.
        spec: what they are.
        seed: of the epochs' orders; None: in the order in which they are stored.
        batch_size, most_steps: as of `EpochRows.batches`.
        label_shapes: as of `named`.
    """

    def __init__(
        self,
        rows: EpochRows,
        spec: TrainSpec,
        seed: int | None,
        batch_size: int,
        most_steps: int | None,
        label_shapes: Sequence[Sequence[int]] | None,
    ) -> None:
        self._epoch = 0
        self._first = 0
        self._legs: Sequence[Mapping[str, Any]] = ()
        self._spec = spec
        self._seed = seed
        self._cut = (batch_size, most_steps)
        self._label_shapes = label_shapes
        self.take(rows)

    def take(self, rows: EpochRows) -> None:
        """Reads these rows from the next iteration on."""
        self._rows = rows
        self._divide()

    def enter(self, epoch: int, first: int) -> None:
        """An epoch begins, or continues with the batch `first`: those before it are done."""
        self._first = first
        if epoch != self._epoch:
            self.take_legs(epoch, ())

    def take_legs(self, epoch: int, legs: Sequence[Mapping[str, Any]]) -> None:
        """Other ranks have done parts of an epoch, which come first: `Division.earlier`."""
        self._epoch, self._legs = epoch, legs
        self._divide()

    def leg(self) -> dict[str, Any]:
        """`Division.present`."""
        return self._rows.leg(self._cut[0], 0)

    def _divide(self) -> None:
        batch_size, most_steps = self._cut
        self._present, self._most_steps = rest_of_epoch(self._rows, self._legs, self._order(), most_steps)
        self._plan = self._present.plan(batch_size, self._most_steps)
        self._done_by_others: int = sum(leg["steps"] for leg in self._legs)

    def _order(self) -> tuple[int, int] | None:
        return None if self._seed is None else (self._seed, self._epoch)

    def __len__(self) -> int:
        return self._done_by_others + self._plan.steps

    def __iter__(self) -> Iterator[Named]:
        # Lightning asks for iterators that it throws away: all that costs is done when the first batch is asked for.
        spec, first = self._spec, max(self._first - self._done_by_others, 0)
        for batch in self._present.batches(self._cut[0], self._most_steps, self._order(), first):
            tensors = [tensor_of(matrix, field) for matrix, field in zip(batch.matrices, spec.fields, strict=True)]
            yield named(spec.inputs, spec.labels, spec.weight, tensors, self._label_shapes)

    def counted(self, step: int) -> int:
        """How many rows of a batch count: 0 where the rank has run out of rows, and has one that does not."""
        return self._plan.size(self._present.rank, step - self._done_by_others)

    def factor(self, step: int) -> float:
        """The factor of this rank's mean over a batch, with which the ranks' average is that over all rows."""
        return self.counted(step) * len(self._present.counts) / self._plan.total(step - self._done_by_others)
