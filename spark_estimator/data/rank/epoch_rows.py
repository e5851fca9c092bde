"""The interface of a rank's rows, on disk or in files: equal shares, and the batches of each epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.data.fields import Array
from spark_estimator.data.rank import shares


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        matrices: [fields] each [rows, width], to be written to as one likes.
        factor: what this rank's mean over the rows is multiplied with, so that the ranks' average is the mean over
            all rows of the step. 0 where the rank has none left: it then has one row that does not count.
        rows: how many of the rows count.
    """

    matrices: tuple[Array, ...]
    factor: float
    rows: int


class EpochRows(ABC):
    """The rows of one rank.

    Attributes:
        counts: [ranks] how many each rank has.
        rank: whose they are.
    """

    counts: tuple[int, ...]
    rank: int

    @property
    def total(self) -> int:
        """Return the rows of all ranks."""
        return sum(self.counts)

    def make_plan(self, batch_size: int, most_steps: int | None = None) -> shares.Batches:
        """Return how one epoch is cut: arguments as of `read_batches`."""
        return shares.Batches(self.counts, batch_size, most_steps)

    @abstractmethod
    def read_batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        """Yield the batches of one epoch: as many on every rank.

        Args:
            batch_size: the most rows of a batch.
            most_steps: the epoch ends after this number of steps.
            order: seed and epoch, which determine the order in which rows are read; None: as they are stored.
            first: the number of steps to skip at the beginning: they were done before.
        """

    def take_sample(self) -> Batch:
        """Return a batch to build a model with, which the epochs have, too."""
        return next(self.read_batches(1, 1))

    def split(self, share: float, seed: int, read: Sequence[int] = ()) -> tuple[EpochRows, EpochRows]:
        """Leave out a share of the rows, drawn by chance: all ranks' rows together, to the row.

        Args:
            read: [ranks] rows that each rank had read when the rows were drawn, in a training whose ranks have changed
                since: the same rows are left out. Empty: they are drawn now.

        Returns:
            The others, and those left out.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be split")

    def compute_checksums(self) -> list[int]:
        """Return numbers that are the same for the same rows, on any number of ranks. A collective."""
        raise NotImplementedError(f"{type(self).__name__} has no checksum")

    def compute_spread(self) -> list[int]:
        """Return [ranks] a number for the rows that each rank has, and their order. A collective."""
        raise NotImplementedError(f"{type(self).__name__} has no checksum")

    def read_blocks(self, fields: Sequence[int]) -> Iterator[tuple[Array, ...]]:
        """Yield all rows that belong here, some thousands at a time.

        Args:
            fields: their numbers in a batch.
        """
        raise NotImplementedError(f"{type(self).__name__} gives its rows in batches alone")

    def make_leg(self, batch_size: int, steps: int) -> dict[str, Any]:
        """Return `steps` steps of an epoch on the present ranks, as plain values; see `find_remaining`."""
        raise NotImplementedError(f"{type(self).__name__} has no position")

    def find_remaining(self, legs: Sequence[Mapping[str, Any]], order: tuple[int, int] | None) -> EpochRows:
        """Return the rows of an epoch that other ranks have not read.

        Args:
            legs: parts of the epoch, one after the other, each a result of `make_leg`.
            order: as of `read_batches`.

        Raises:
            ValueError: they are of rows that are stored in another way.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position")
