"""A rank's rows as Lightning data loaders: batches are dicts from the columns' names to tensors, as in Horovod."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from spark_estimator.data.fields import Field
from spark_estimator.data.rank.epoch_rows import EpochRows
from spark_estimator.estimators.torch.losses import Tensors
from spark_estimator.estimators.torch.trainer import to_tensor
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.observe.step_times import time_input

Named = dict[str, torch.Tensor]


def name_batch(
    inputs: Sequence[Field],
    labels: Sequence[Field],
    weight: Field | None,
    tensors: Tensors,
    label_shapes: Sequence[Sequence[int]] | None = None,
) -> Named:
    """Return a batch by the names of its columns; of a column that is feature and label, what the feature is.

    Args:
        tensors: [inputs + labels + weight] as `estimators.torch.trainer.to_tensor` makes them. Columns that are
            joined in one input are separate here, [rows, values] each.
    """
    result: Named = {}
    for field, tensor in zip(inputs, tensors, strict=False):
        if len(field.names) == 1:
            result[field.names[0]] = tensor
        else:
            flat = tensor.reshape(len(tensor), -1)
            result.update(zip(field.names, flat.split(list(field.widths), dim=1), strict=True))
    for number, field in enumerate(labels):
        tensor = tensors[len(inputs) + number]
        shaped = tensor if label_shapes is None else tensor.reshape(len(tensor), *label_shapes[number][1:])
        result.setdefault(field.names[0], shaped)
    if weight is not None:
        result.setdefault(weight.names[0], tensors[-1].reshape(-1))
    return result


def get_inputs(inputs: Sequence[Field], batch: Named) -> Tensors:
    """Return the model's inputs of a batch: columns of one input are joined again."""
    return [
        batch[field.names[0]]
        if len(field.names) == 1
        else torch.cat([batch[name] for name in field.names], dim=1).reshape(-1, *field.shape)
        for field in inputs
    ]


class RowLoader:
    """The batches of one epoch: equally many on all ranks. Its state is how many of them are done.

    Args:
        rows: of this rank.
        spec: what they are.
        seed: of the epochs' orders; None: in the order in which they are stored.
        batch_size, most_steps: as of `EpochRows.read_batches`.
        label_shapes: as of `name_batch`.
        between: (batches done) called between two batches, and before the first one of an epoch that continues.
    """

    def __init__(
        self,
        rows: EpochRows,
        spec: TrainSpec,
        seed: int | None,
        batch_size: int,
        most_steps: int | None,
        label_shapes: Sequence[Sequence[int]] | None,
        between: Callable[[int], None] | None = None,
    ) -> None:
        self._rows = rows
        self._spec = spec
        self._seed = seed
        self._cut = (batch_size, most_steps)
        self._label_shapes = label_shapes
        self._between = between
        self._plan = rows.make_plan(batch_size, most_steps)
        self._epoch = self._done = 0
        self._continues = False

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the batches of it that are done; part of Lightning's checkpoint."""
        return {"epoch": self._epoch, "done": self._done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue the epoch, in the next iteration, where `state_dict` was called."""
        self._epoch, self._done, self._continues = int(state["epoch"]), int(state["done"]), True

    def enter(self, epoch: int) -> None:
        """Begin an epoch."""
        if not self._continues or epoch != self._epoch:
            self._epoch, self._done, self._continues = epoch, 0, False

    def count_rows_done(self, steps: int) -> int:
        """Return how many rows all ranks together have in the first `steps` batches."""
        return self._plan.count_done(steps)

    def __len__(self) -> int:
        return self._plan.steps

    def __iter__(self) -> Iterator[Named]:
        # Lightning asks for iterators that it throws away: all that costs is done when the first batch is asked for.
        spec, first = self._spec, self._done if self._continues else 0
        order = None if self._seed is None else (self._seed, self._epoch)
        self._continues = False
        batches = time_input(self._rows.read_batches(*self._cut, order, first))
        for number in range(first, len(self)):
            self._done = number
            if number and self._between is not None:
                self._between(number)
            batch = next(batches)
            tensors = [to_tensor(matrix, field) for matrix, field in zip(batch.matrices, spec.fields, strict=True)]
            yield name_batch(spec.inputs, spec.labels, spec.weight, tensors, self._label_shapes)

    def count_rows(self, step: int) -> int:
        """Return how many rows of a batch count: 0 if the rank has run out of rows, and has one that does not."""
        return self._plan.count_rows(self._rows.rank, step)

    def compute_factor(self, step: int) -> float:
        """Return the factor of this rank's mean over a batch, with which the ranks' average is that over all rows."""
        return self.count_rows(step) * len(self._rows.counts) / self._plan.count_total(step)
