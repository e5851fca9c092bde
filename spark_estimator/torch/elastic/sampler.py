"""`ElasticSampler`: distributes the rest of an epoch, also if the ranks have changed since it began."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from spark_estimator.collectives import context


class ElasticSampler(Sampler[int]):
    """Indices of a data set, each of them once an epoch on one of the ranks, but for some that fill up the last round.

    All ranks have the same permutation, by seed and epoch. The rest of it is dealt out one by one, so that the first n
    batches of all ranks together are its first n * batch size * ranks samples: one number is the progress.

    Args:
        dataset: anything with a length.
        shuffle: False keeps the order of the data set.
        seed: the same on all ranks.

    Attributes:
        epoch: number of the epoch.
        processed_num: samples of this epoch that all ranks together have done, from the permutation's beginning.
        num_replicas, rank: among whom it is shared out, and who this is; as of the last `reset`.
        remaining_indices: what was left of the epoch at the last `reset`.
        num_samples: how many of these each rank gets.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(f"ElasticSampler needs a data set with a length, not {dataset!r:.100}.")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; what was processed is forgotten. Call it at the end of the one before, not at the start:

        an epoch that is taken up in the middle would begin again.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch of every rank as done. All ranks call it for their same batches.

        Args:
            batch_idx: of no consequence here.
            batch_size: of the batch on each rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return which epoch it is, and how much of it is done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the epoch where another sampler with the same data set and seed left it."""
        self.epoch = int(state_dict["epoch"])
        self.processed_num = int(state_dict["processed_num"])
        self.reset()

    def reset(self) -> None:
        """Distributes the rest of the epoch over the present ranks. An iterator that is in use keeps its share."""
        self.num_replicas = context.size()
        self.rank = context.rank()
        self.remaining_indices = self._make_permutation()[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _make_permutation(self) -> list[int]:
        length = len(self.dataset)
        if not self.shuffle:
            return list(range(length))
        indices = list(range(length))
        random.Random(self.seed + self.epoch).shuffle(indices)  # Horovod's order, sample for sample
        return indices

    def __iter__(self) -> Iterator[int]:
        # Filled up from the front, so that all ranks have as many batches: a collective more on one would hang.
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(padded, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
