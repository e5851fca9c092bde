"""Keeps ranks at the same batch: loaders of different lengths, and a rank that wants to stop, end it for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

import spark_estimator.torch as hvd
from spark_estimator import log
from spark_estimator.collectives import context

_log = log.get_logger(__name__)


class Lengths(NamedTuple):
    """How many batches the ranks' loaders have.

    Attributes:
        of_ranks: in rank order; None where a loader has no length.
        are_estimates: whether some rank's may be wrong, as PyTorch has it for every `IterableDataset`.
    """

    of_ranks: list[int | None]
    are_estimates: bool


def gather_lengths(loader: object) -> Lengths:
    """Return the lengths that the ranks' loaders report; the same on all ranks. A collective."""
    estimated = any(isinstance(source, IterableDataset) for source in (loader, getattr(loader, "dataset", None)))
    # One rank must not ask the others before each batch while they do not: what any of them has counts for all.
    of_ranks: list[tuple[int | None, bool]] = hvd.allgather_object((_find_length(loader), estimated))
    return Lengths([length for length, _ in of_ranks], any(source for _, source in of_ranks))


def even_out(loader: Any, lengths: Lengths) -> Any:
    """Return a training loader with the same number of batches on all ranks; the original one if they are equal.

    Args:
        loader: this rank's.
        lengths: of all ranks; where one has none, or only an estimate, the ranks agree before each batch.
    """
    of_ranks = [length for length in lengths.of_ranks if length is not None]
    if len(of_ranks) < len(lengths.of_ranks):
        return AsLongAsAllHave(loader)
    least = min(of_ranks)
    if lengths.are_estimates:
        return AsLongAsAllHaveOf(loader, least)
    if len(set(of_ranks)) == 1:
        return loader
    if context.rank() == 0:
        _log.warning(
            "Ranks have different numbers of batches to train on (%s): every rank trains on %d, so that no rank "
            "waits forever.",
            ", ".join(f"rank {rank}: {length}" for rank, length in enumerate(of_ranks)),
            least,
        )
    return Cut(loader, least)


def _find_length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class _Around:
    """A loader that replaces another one, and has its attributes (sampler, data set)."""

    def __init__(self, loader: Any) -> None:
        self.__dict__["_loader"] = loader
        # Python 3.12 looks for a protocol's methods without asking __getattr__: Lightning would keep no state of it.
        for name in ("state_dict", "load_state_dict"):
            if hasattr(loader, name):
                self.__dict__[name] = getattr(loader, name)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)


class Cut(_Around):
    """The first batches of a loader."""

    def __init__(self, loader: Any, length: int) -> None:
        super().__init__(loader)
        self.__dict__["_length"] = length

    def __len__(self) -> int:
        return int(self._length)

    def __iter__(self) -> Iterator[Any]:
        # zip looks at the range first, so that no batch is made without use.
        return (batch for _, batch in zip(range(self._length), self._loader, strict=False))


class AsLongAsAllHave(_Around):
    """The batches of a loader without a length, until some rank has none left. Iterating is collective."""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        nothing = object()
        more = torch.zeros(1, dtype=torch.int32)
        while True:
            batch = next(batches, nothing)
            more[0] = batch is not nothing
            if context.size() > 1:
                hvd.allreduce_(more, op=hvd.Min, name="lightning.more_batches")
            if not more.item():
                return
            yield batch


class AsLongAsAllHaveOf(AsLongAsAllHave):
    """The same of a loader whose length is an estimate, which Lightning plans with: the least of the ranks'."""

    def __init__(self, loader: Any, length: int) -> None:
        super().__init__(loader)
        self.__dict__["_length"] = length
        self.__dict__["_warned"] = False

    def __len__(self) -> int:
        return int(self._length)

    def __iter__(self) -> Iterator[Any]:
        batches = 0
        for batch in super().__iter__():
            batches += 1
            yield batch
        if batches < self._length and not self._warned:
            self.__dict__["_warned"] = True
            if context.rank() == 0:
                _log.warning(
                    "A rank's data ended after %d batches, but __len__ reports at least %d. All ranks end the epoch "
                    "here. Lightning relies on __len__ and may skip this epoch's validation: fix the "
                    "IterableDataset's __len__, or remove it.",
                    batches,
                    self._length,
                )


class LightningLockstep:
    """Has the ranks agree, after each batch and each epoch, whether one of them wants to stop.

    ``trainer.should_stop`` is a plain attribute that loops read: it is made the same on all ranks right before. That
    costs an allreduce of four bytes a batch, when the ranks have just averaged gradients and none is far behind.

    Args:
        trainer: whose loops; they are as before after `release`.
        module: its LightningModule.
    """

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._validated = False  # since the last batch
        self._replaced: list[tuple[Any, str]] = []
        fit_loop = trainer.fit_loop
        self._wrap(fit_loop.epoch_loop, "on_advance_end", self._agree_after_batch)
        self._wrap(fit_loop.epoch_loop.val_loop, "run", self._note)
        self._wrap(fit_loop, "on_advance_end", self._agree_after_epoch)
        if getattr(trainer, "_val_check_time_interval", None) is not None:
            self._wrap(fit_loop.epoch_loop, "_should_check_val_fx", self._follow_rank_0)
        hook = getattr(type(module), "on_train_batch_start", None)
        if hook is not None and not str(hook.__module__).endswith(".core.hooks"):
            self._wrap(module, "on_train_batch_start", self._skip_alike)

    def release(self) -> None:
        """Take everything back."""
        for owner, name in self._replaced:
            owner.__dict__.pop(name, None)
        self._replaced.clear()

    def _wrap(self, owner: Any, name: str, act: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def call_act(*args: Any, **kwargs: Any) -> Any:
            return act(original, *args, **kwargs)

        owner.__dict__[name] = call_act
        self._replaced.append((owner, name))

    def _is_true_on_a_rank(self, own_value: bool, name: str) -> bool:
        self._flag[0] = own_value
        hvd.allreduce_(self._flag, op=hvd.Max, name=f"lightning.{name}")
        return bool(self._flag.item())

    def _agree_to_stop(self) -> None:
        self._trainer.should_stop = self._is_true_on_a_rank(bool(self._trainer.should_stop), "should_stop")

    def _agree_after_batch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._validated = False
        self._agree_to_stop()
        original(*args, **kwargs)
        if self._validated:
            self._agree_to_stop()  # hooks of the validation may have decided it

    def _note(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._validated = True
        return original(*args, **kwargs)

    def _agree_after_epoch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        self._agree_to_stop()

    def _follow_rank_0(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        return bool(hvd.broadcast_object(bool(original(*args, **kwargs)), root_rank=0))

    def _skip_alike(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        response = original(*args, **kwargs)
        return -1 if self._is_true_on_a_rank(response == -1, "skip_epoch") else response
