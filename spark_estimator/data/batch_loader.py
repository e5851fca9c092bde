"""``horovod.data``: base classes for a program's own loaders of batches, one of which reads ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from spark_estimator.observe.step_times import counts_input

_END = object()


class BaseDataLoader:
    """Batches from `_iterate`, each passed through `_process_batch`. A subclass defines `_iterate` and ``__len__``."""

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__().")

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one pass."""
        raise NotImplementedError(f"{type(self).__name__} has no _iterate().")

    def _process_batch(self, batch: Any) -> Any:
        """Return the batch to give out. Called for each batch in the thread that uses it."""
        return batch

    @counts_input
    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads ahead in a thread: ``class Loader(AsyncDataLoaderMixin, MyLoader)``.

    Unlike Horovod's, each pass has a separate thread, which ends with the pass, and an error of `_iterate` is raised
    where the batch was expected.

    Args:
        async_loader_queue_size: the number of batches to read ahead; 0: none.
        debug_data_loader: no effect.
        args, kwargs: of the next class.
    """

    _iterate: Any
    _process_batch: Any

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._stop = threading.Event()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the current pass."""
        self._stop.set()

    @counts_input
    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        self._stop = stop = threading.Event()
        batches: queue.Queue[Any] = queue.Queue(self.async_loader_queue_size)
        thread = threading.Thread(target=self._read, args=(batches, stop), name="batch loader", daemon=True)
        thread.start()
        try:
            while (batch := _get_next(batches, stop)) is not _END:
                if isinstance(batch, BaseException):
                    raise batch
                yield self._process_batch(batch)
        finally:
            stop.set()
            thread.join()

    def _read(self, batches: queue.Queue[Any], stop: threading.Event) -> None:
        try:
            for batch in self._iterate():
                if not _put(batches, batch, stop):
                    return
            _put(batches, _END, stop)
        except BaseException as error:
            _put(batches, error, stop)


def _put(batches: queue.Queue[Any], batch: Any, stop: threading.Event) -> bool:
    """Hand a batch over. Return False if the pass has ended meanwhile."""
    while not stop.is_set():
        try:
            batches.put(batch, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def _get_next(batches: queue.Queue[Any], stop: threading.Event) -> Any:
    """Return the next batch; `_END` if the pass has ended."""
    while not stop.is_set():
        try:
            return batches.get(timeout=0.1)
        except queue.Empty:
            continue
    return _END
