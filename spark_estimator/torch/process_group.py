"""A ``torch.distributed`` backend on the engine: DDP, FSDP, object collectives and what uses them, in one job.

::

    import spark_estimator.torch.process_group            # makes the backend known

    torch.distributed.init_process_group("spark_estimator")

That is all, in a function that ``HorovodRunner`` runs or a script that ``horovodrun`` starts: rank and number of
ranks are those of the job, which it joins if ``hvd.init()`` has not done so, and no ``MASTER_ADDR``, ``RANK`` or
``WORLD_SIZE`` is needed. In a process without a launcher, call ``hvd.init()`` before: it is a job of one then. What
a library gives (a ``store``, an ``init_method``, rank and world size, another MASTER_ADDR) is used; a rank
or size that contradicts the job is a ValueError. Horovod's API keeps working beside it.

**What it promises.**

- Tensors in the host's memory. Contiguous ones are read, and reduced, in their memory; others are copied and copied
  back.
- Every collective of ``torch.distributed`` but those below; sums, averages, minima, maxima, products, ``PREMUL_SUM``
  with one factor for all elements, and for ``all_reduce`` and ``reduce`` the bitwise ones (which gather all ranks'
  elements). Reductions take the engine's ten element types, and complex ones as pairs where torch allows that; what
  only moves elements takes any type but quantized ones. ``all_gather`` and ``all_to_all`` take parts of different
  sizes.
- All ranks get the same bits from a reduction.
- ``new_group`` of some ranks starts an engine for them; all ranks of the job call it, as torch demands. It does not
  need HOROVOD_DYNAMIC_PROCESS_SETS. ``destroy_process_group(group)`` ends it, on each of its ranks separately: a rank
  that still waits for one that has called it gets a ShutDownError. Its memory and sockets are released with the last
  reference to the group. (Horovod's process sets are others; all ranks remove those.)
- ``send`` and ``recv`` use a separate connection, TCP also on one host: fine for some megabytes, slower than
  collectives. The element type and shape are sent with the message.
- Every connection is authenticated with the job's key, the one to torch's store as well (see ``store``).
- ``torch.compile`` of a model, of DDP around it or of a function that calls collectives gives what there is without it:
  blocking collectives stay in the graph, as torch has it, and the others break it.

**In what order things happen.** A group's n-th operation on one rank matches the n-th on every other, of any kind,
whether it blocks or not; messages are matched by sender and tag. A blocking call runs in the calling thread. With
``async_op=True`` the engine's thread works, and the ``Work``'s ``wait`` helps. Results are in their tensors when
``wait`` returns, ``is_completed`` returns True or the future is done, not before; the tensors must not be used until
then. Futures are fulfilled in a separate thread (see ``work``), and their callbacks run there, or at once in the thread
that adds them to a future that is done. They may call collectives, as PowerSGD's hook does, and wait for them: these
are matched by the operation, the callback and the call in it, not by time (see ``callbacks``), so that ranks must add
the same callbacks in the same order. In callbacks of what ``collect_all`` gives, or of a message's future, a collective
is refused where it can be seen: wait for the future, and call it then.

**What fails, and how.** All are RuntimeErrors but the last.

- The ranks' n-th operations differ in kind, size, type, reduction or root: MismatchError on all of them; the group
  stays usable. (Different *shapes* of as many elements are no difference, as in torch.)
- A rank dies or leaves: PeerLostError or ShutDownError, with its rank and host, from every call that waits for it; out
  of DDP's backward as a RuntimeError with that text. The group is of no more use: ``hvd.shutdown()``, and begin again.
- A wait longer than its time-out, or the group's: ``DistBackendError`` with rank and operation. The operation
  continues.
- Ranks give ``new_group`` different ranks: MismatchError on all of them, with what each gave. One does not call it:
  ``DistBackendError`` on the others at the time-out; they may call it again to keep waiting.
- A ``recv`` without a ``send``, or from a process that is frozen, is reported on stderr after
  HOROVOD_STALL_CHECK_TIME_SECONDS (10): which rank waits for which, for which tag, and what has arrived instead. So is
  a ``send`` that its receiver's connection does not take, and a collective. A ``recv`` from any rank fails when all
  others are lost.
- A ``recv`` whose tensor has another element type or number of elements than was sent: ValueError there, with both.
- What cannot be, such as sizes that do not fit, sparse tensors, or a type that the engine cannot add: ValueError,
  before anything is sent. Only what a rank cannot know beforehand, another's uneven part, fails after.

**What is not available.** Torch itself refuses these without Gloo, a GPU or NCCL: ``monitored_barrier`` (where a
``barrier`` hangs, the stall warning names the ranks that are missing), ``split_group``, ``SyncBatchNorm`` on CPU
tensors, DDP's bf16 and quantization hooks. Its ``batched_powerSGD_hook`` fails one of its own assertions, on every
backend. Refused here: ``new_group`` with another ``backend``, or with ``use_local_synchronization=True`` on a part of
the ranks; bitwise ``reduce_scatter``. ``"cpu:spark_estimator,cuda:nccl"`` uses this one for everything: torch allows no
other backend beside one that is written in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

if TYPE_CHECKING:
    from spark_estimator.extensions.process_group import BACKEND_NAME, EngineGroup

__all__ = ["BACKEND_NAME", "EngineGroup"]

_HOME = {
    "BACKEND_NAME": "spark_estimator.extensions.process_group",
    "EngineGroup": "spark_estimator.extensions.process_group",
}
__getattr__, __dir__ = bind_names(__name__, _HOME)

# This module is imported for its effect: the extension makes the backend known to torch.
__getattr__("BACKEND_NAME")
