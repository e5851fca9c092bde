"""The division of gradients into buckets, without any rank."""

from __future__ import annotations

from spark_estimator.torch.optimizer.bucket_sizes import Gradient, describe_plan, plan


def gradient(name: str, size: int, wire: str = "float32") -> Gradient:
    return Gradient(name, (size,), (1,), "float32", wire, size)


def test_filled_from_the_last_parameter_to_the_first() -> None:
    gradients = [gradient(str(number), 10) for number in range(5)]
    assert plan(gradients, 25) == [[4, 3], [2, 1], [0]]
    assert plan(gradients, 1000) == [[4, 3, 2, 1, 0]]
    assert plan(gradients, 1) == [[4], [3], [2], [1], [0]]
    assert plan([], 25) == []


def test_a_large_gradient_has_a_bucket_of_its_own_size() -> None:
    assert plan([gradient("a", 5), gradient("b", 100), gradient("c", 5)], 25) == [[2], [1], [0]]


def test_types_do_not_mix_and_do_not_close_one_another() -> None:
    gradients = [gradient("a", 10), gradient("b", 10, "float64"), gradient("c", 10), gradient("d", 10, "float64")]
    assert plan(gradients, 25) == [[3, 1], [2, 0]]


def test_what_a_custom_compressor_sends_is_alone() -> None:
    assert plan([gradient("a", 1, ""), gradient("b", 1, ""), gradient("c", 1)], 25) == [[2], [1], [0]]
    assert sorted(plan([gradient("a", 1, ""), gradient("b", 1, "")], 25, [[0, 1]])) == [[0], [1]]


def test_groups_by_number() -> None:
    gradients = [gradient(str(number), 10) for number in range(5)]
    assert plan(gradients, 1, 2) == [[2, 3, 4], [0, 1]]
    assert plan(gradients, 1, 99) == [[4], [3], [2], [1], [0]]
    assert plan([], 1, 3) == []


def test_groups_by_list() -> None:
    gradients = [gradient(str(number), 10, "float64" if number == 1 else "float32") for number in range(5)]
    assert plan(gradients, 1, [[0, 4], [1, 2]]) == [[0, 4], [3], [2], [1]]


def test_every_gradient_is_in_exactly_one_bucket() -> None:
    gradients = [gradient(str(number), number * 7 % 23, "float32" if number % 3 else "float16") for number in range(40)]
    for groups in (None, 1, 7, [[3, 5], [9, 1, 2]]):
        assert sorted(position for bucket in plan(gradients, 30, groups) for position in bucket) == list(range(40))


def test_description_has_what_must_be_alike() -> None:
    lines = describe_plan([gradient("weight", 3)], [[0]], "header")
    assert lines == ["header", "parameter weight: shape (3,), strides (1,), float32, sent as float32 in bucket 0"]
