"""Whole objects between real processes."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks


def test_objects_travel() -> None:
    def travel(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import context, objects

        context.init()
        size = context.size()
        for root in range(size):
            obj = {"rank": rank, "array": numpy.full(3, rank), "function": lambda x: x + rank}
            got = objects.broadcast_object(obj, root)
            assert got["rank"] == root
            assert got["array"].tolist() == [root] * 3
            assert got["function"](10) == 10 + root
            assert (got is obj) is (rank == root)
        assert objects.broadcast_object(None) is None
        large = objects.broadcast_object(b"x" * 5_000_000 if rank == 0 else None, name="large")
        assert large == b"x" * 5_000_000
        gathered = objects.allgather_object([rank] * (rank * 1000))
        assert gathered == [[r] * (r * 1000) for r in range(size)]
        assert objects.allgather_object(None) == [None] * size

    run_ranks(3, travel)


def test_what_cannot_be_pickled_is_told_on_all_ranks() -> None:
    def fail(rank: int) -> list[str]:
        import threading

        from spark_estimator.collectives import context, objects
        from spark_estimator.errors import HorovodInternalError, remove_links

        context.init()
        messages = []
        for call in (
            lambda: objects.broadcast_object(threading.Lock(), root_rank=1, name="b"),
            lambda: objects.allgather_object(threading.Lock() if rank == 1 else 5, name="g"),
        ):
            try:
                call()
            except HorovodInternalError as error:
                assert (error.__cause__ is not None) is (rank == 1)
                messages.append(remove_links(str(error)))
        assert objects.allgather_object(rank) == [0, 1]
        return messages

    first, second = run_ranks(2, fail)
    assert first == [
        "broadcast_object 'b': the object of the root, rank 1, cannot be pickled.",
        "allgather_object 'g': the object of rank 1 cannot be pickled.",
    ]
    assert second[0].startswith(f"{first[0]} It has the type lock: ")
    assert second[1].startswith(f"{first[1]} This rank's object has the type lock: ")
    assert "pickle" in second[1].rsplit(": ", 1)[1]


def test_objects_need_a_job() -> None:
    from spark_estimator.collectives import objects
    from spark_estimator.errors import NotInitializedError

    with pytest.raises(NotInitializedError):
        objects.broadcast_object(1)
    with pytest.raises(NotInitializedError):
        objects.allgather_object(1)
