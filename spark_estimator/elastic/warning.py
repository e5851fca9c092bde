"""Has all ranks learn, at the same step, that the machine of one of them is about to be taken back."""

from __future__ import annotations

import numpy

from spark_estimator.collectives import arrays, context, launcher_link, preemption


def find_new_warning() -> bool:
    """Return whether some rank has a warning (`preemption`) that it has told no other. A collective: a byte each."""
    link, watch = launcher_link.link(), preemption.watch()
    if link is not None:
        link.exchange_warnings()
    is_new = bool(watch.reason) and not watch.is_told
    result = is_new
    if context.size() > 1:
        result = bool(arrays.allgather(numpy.array([is_new], numpy.uint8), "elastic.warning").any())
    watch.is_told |= is_new
    return result
