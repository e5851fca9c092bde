"""ElasticSampler: which rank gets which samples, also after ranks were lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spark_estimator.collectives import context
from spark_estimator.torch.elastic.sampler import ElasticSampler


def place(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setattr(context, "rank", lambda: rank)
    monkeypatch.setattr(context, "size", lambda: size)


def shares(monkeypatch: pytest.MonkeyPatch, size: int, length: int, progress: dict[str, Any] | None = None) -> Any:
    """The indices that each of `size` ranks gets, and a sampler that knows the last of them."""
    samples, sampler = [], None
    for rank in range(size):
        place(monkeypatch, rank, size)
        sampler = ElasticSampler(range(length), seed=5)
        if progress is not None:
            sampler.load_state_dict(progress)
        samples.append(list(sampler))
        assert len(sampler) == len(samples[-1])
    return samples, sampler


@pytest.mark.parametrize(("size", "length"), [(1, 10), (3, 9), (3, 10), (4, 2), (2, 0)])
def test_every_sample_is_seen_and_only_padding_twice(size: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, _ = shares(monkeypatch, size, length)
    assert len({len(share) for share in samples}) == 1, "as many on all ranks"
    seen = Counter(index for share in samples for index in share)
    assert set(seen) == set(range(length))
    assert seen.total() - len(seen) < size, "filled up to a multiple of the ranks and no more"


def test_the_permutation_is_of_seed_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, 0, 1)
    sampler = ElasticSampler(range(50), seed=5)
    first = list(sampler)
    assert first == list(ElasticSampler(range(50), seed=5)) != list(range(50))
    assert first != list(ElasticSampler(range(50), seed=6))
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(first) and list(sampler) != first
    assert list(ElasticSampler(range(50), shuffle=False)) == list(range(50))


def test_the_order_is_that_of_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, 0, 1)
    sampler = ElasticSampler(range(6), seed=3)
    sampler.set_epoch(4)
    assert list(sampler) == [4, 0, 5, 3, 1, 2], "of Python's random.Random(7).shuffle"


def test_after_a_loss_each_sample_of_the_epoch_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks do two batches of four, then two ranks do the rest."""
    length, batch = 101, 4
    before, sampler = shares(monkeypatch, 3, length)
    for number in range(2):
        sampler.record_batch(number, batch)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 2 * batch * 3}
    after, _ = shares(monkeypatch, 2, length, sampler.state_dict())
    seen = [index for share in before for index in share[: 2 * batch]] + [index for share in after for index in share]
    assert set(seen) == set(range(length))
    assert len(seen) - length < 2


def test_four_ranks_three_ranks_four_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is lost, and only the last round is filled up."""
    length, batch = 203, 5
    seen: list[int] = []
    progress: dict[str, Any] | None = None
    for size, batches in ((4, 3), (3, 4), (4, None)):
        samples, sampler = shares(monkeypatch, size, length, progress)
        done = len(sampler) if batches is None else batches * batch
        seen += [index for share in samples for index in share[:done]]
        for number in range(batches or 0):
            sampler.record_batch(number, batch)
        progress = sampler.state_dict()
        assert batches is None or len(seen) == len(set(seen)) == progress["processed_num"]
    assert set(seen) == set(range(length)) and len(seen) - length < 4


def test_an_epoch_that_is_done_has_nothing_left_and_the_next_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, 0, 2)
    sampler = ElasticSampler(range(10))
    for number in range(2):
        sampler.record_batch(number, 4)  # the last one was shorter
    sampler.reset()
    assert len(sampler) == 0 and list(sampler) == []
    sampler.set_epoch(1)
    assert len(sampler) == 5 and sampler.state_dict() == {"epoch": 1, "processed_num": 0}


def test_an_iterator_in_use_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, 1, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    iterator = iter(sampler)
    assert next(iterator) == 1
    sampler.record_batch(0, 1)
    assert list(iterator) == [3, 5, 7, 9]
