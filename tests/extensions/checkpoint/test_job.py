"""What a slot has beside the tensors: other values, and the writer's instructions."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy
import pytest
import torch

from spark_estimator.checkpoint.slot_memory import SlotMemory, create_descriptor
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.image import save_to_bytes
from spark_estimator.extensions.checkpoint.job import Objects, write_job
from spark_estimator.extensions.checkpoint.layout import Layout
from spark_estimator.extensions.checkpoint.state import StateEntry


def entries(**values: Any) -> list[StateEntry]:
    return [StateEntry(name, ("m", name), value) for name, value in values.items()]


def test_rank_0_has_all_values_and_each_rank_its_own() -> None:
    state = entries(w=torch.zeros(2), n=3, rates=[0.1, 0.2])
    first = Objects().pack(state, {"random": 1}, 0)
    assert [(key, path) for key, path, _ in first] == [
        *(("n", ("m", "n")), ("rates", ("m", "rates")), ("ranks.0", ("ranks", "0")))
    ]
    assert [content for _, _, content in first] == [
        save_to_bytes(3),
        save_to_bytes([0.1, 0.2]),
        save_to_bytes({"random": 1}),
    ]
    assert Objects().pack(state, {"random": 2}, 3) == [("ranks.3", ("ranks", "3"), save_to_bytes({"random": 2}))]


def test_values_are_those_of_this_moment() -> None:
    objects, rates = Objects(), [0.1]
    for n in (1, 1, 2, 2.0, True, "1", None):
        rates.append(n)  # type: ignore[arg-type]
        contents = [content for _, _, content in objects.pack(entries(n=n, rates=rates), {}, 0)]
        assert contents == [save_to_bytes(n), save_to_bytes(rates), save_to_bytes({})], n


class Other:
    """No plain value, and not equal to anything without an error."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_what_cannot_be_read_without_running_code_is_refused_each_time() -> None:
    objects = Objects()
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"the state's o is a Other that cannot be read back without running code \("
        ):
            objects.pack(entries(o=Other()), {}, 0)
    assert len(objects.pack(entries(o=Other()), {}, 1)) == 1, "rank 0 writes it"
    with pytest.raises(DataError, match=r"the state's ranks\.1 is a dict"):
        Objects().pack([], {"local": Other()}, 1)


def test_a_value_that_becomes_one_of_another_type_is_checked_again() -> None:
    objects = Objects()
    objects.pack(entries(best=None), {}, 0)
    objects.pack(entries(best=0.5), {}, 0)
    with pytest.raises(DataError, match=r"the state's best is a float64 that cannot be read back"):
        objects.pack(entries(best=numpy.float64(0.25)), {}, 0)


@pytest.fixture
def slot() -> Iterator[SlotMemory]:
    result = SlotMemory(create_descriptor("test", 0))
    yield result
    result.close()


@pytest.mark.parametrize("every", [None, timedelta(minutes=2)])
def test_the_writer_finds_everything_by_the_description(slot: SlotMemory, every: timedelta | None) -> None:
    layout = Layout((), "digest", end=100, table=b'{"holes": []}')
    contents = [b"first", b"", b"third" * 1000]
    objects = [(f"k{number}", ("m", number), content) for number, content in enumerate(contents)]
    first, size = write_job(slot, layout, objects, "folder/step", 1, 4, (3, every))
    with mmap.mmap(slot.descriptor, 0, access=mmap.ACCESS_READ) as memory:
        job = json.loads(memory[first : first + size])
        held = [memory[offset : offset + length] for _, _, offset, length in job["objects"]]
    assert held == contents
    assert [(key, path) for key, path, _, _ in job["objects"]] == [(f"k{number}", ["m", number]) for number in range(3)]
    assert min(offset for _, _, offset, _ in job["objects"]) >= 100 + len(layout.table)
    assert (job["path"], job["rank"], job["size"], job["end"]) == ("folder/step", 1, 4, 100)
    assert job["table"] == [100, len(layout.table)] and job["keep"] == 3
    assert job["keep_every"] == (None if every is None else 120.0)


def test_a_part_without_values(slot: SlotMemory) -> None:
    first, size = write_job(slot, Layout((), ""), [], "p", 0, 1, (1, None))
    assert json.loads(os.pread(slot.descriptor, size, first))["objects"] == []
