"""Checkpoints that training does not wait for: copied between two steps, written by another process, in torch's layout.

::

    with Checkpointer("/data/run", model=model, optimizer=optimizer, sampler=sampler, every_steps=100) as checkpointer:
        first = checkpointer.restore()             # 0: there is no checkpoint
        for step in range(first, steps):
            ...                                    # one step
            checkpointer.step()                    # all ranks; every 100th call makes a checkpoint

A *checkpoint* is a folder of the layout of ``torch.distributed.checkpoint``, which reads it without this package. Each
rank writes one file of it, its *part*. The parameters and the optimizer's state, which all ranks have alike, are
written once: their pieces are shared out among the ranks. What a rank has for itself (random number generators, small
buffers such as those of batch normalization, `local` state) is in its part. `.metadata` is written last; a folder
without it is no checkpoint.

**Order of events**

1. ``save()`` on every rank. A message of some bytes informs the ranks which of their writers are busy, so that all make
   the same decision. Then the state is copied into memory that the rank shares with its *writer*, a process without
   PyTorch. There is room for two states: one that is written and one that waits.
2. *All writers are free*: they begin. *One is busy*: the copy waits, and replaces one that has waited before. It is
   written when ``wait()`` or ``close()`` asks for it, or when the rank has died. A later ``save()`` that finds all
   writers free writes its own, newer state instead. ``step()`` leaves such copies out when they have taken more than
   1 % of the time since the writers began; ``close()`` then copies the state that it finds.
3. Each writer writes its part, then a note beside it. Rank 0's writer waits for the notes of all, writes
   ``.metadata`` in one step, removes the notes, and then the checkpoints that are not to be kept.
4. ``close()`` returns when the last copy is complete or has failed. All ranks call it.

**Failures**

- *The store is slow or unavailable*: writers try again for some time. Training continues; checkpoints come later, or
  fewer.
- *A writer fails or is killed*: the rank logs rank, host and path at its next call. The other ranks learn of it at the
  next ``save()`` and give up that checkpoint; the one before stays. A writer that was killed is started again. With
  ``stop_on_error=True`` all ranks raise `DataError` there instead.
- *A rank dies*: its writer completes the copy that it writes and the copy that waits, and ends. If another rank's part
  is missing, it gives up after a minute, or twice the time that its own part took.
- *The ranks have states of different structure*: `DataError` on all ranks, with the first difference, before a copy.
- *Values that cannot be read back without running code* are refused at the first ``save()`` (`DataError`).

Restoring: rank 0 reads ``.metadata``, in which only torch's own classes are accepted. Each rank then reads a share of
what all need, and its own part, and the ranks exchange the shares. Every piece has a checksum. With another number of
ranks each takes rank 0's buffers and keeps its generators as they are, which is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

if TYPE_CHECKING:
    from spark_estimator.extensions.checkpoint.checkpointer import Checkpointer
    from spark_estimator.extensions.checkpoint.reading import complete_steps, load

__all__ = ["Checkpointer", "complete_steps", "load"]

_HOME = {
    "Checkpointer": "spark_estimator.extensions.checkpoint.checkpointer",
    "complete_steps": "spark_estimator.extensions.checkpoint.reading",
    "load": "spark_estimator.extensions.checkpoint.reading",
}
__getattr__, __dir__ = bind_names(__name__, _HOME)
