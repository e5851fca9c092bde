"""The check that all ranks are about to submit the same requests."""

from __future__ import annotations

import pytest

from spark_estimator.collectives import consistency, context
from tests.ranks import run_ranks


def test_differences_are_named_by_all_ranks() -> None:
    def check(rank: int) -> list[str]:
        from spark_estimator.collectives import consistency, context
        from spark_estimator.errors import MismatchError, remove_links

        context.init()
        consistency.check_identical(["a", "b"], name="equal", subject="the gradients")
        messages = []
        for lines in (["a", f"b{rank // 2}"], ["a", "b", "c"][: 3 - rank // 2]):
            try:
                consistency.check_identical(lines, name="different", subject="the gradients")
            except MismatchError as error:
                messages.append(remove_links(str(error)))
        return messages

    different, extra = (
        "Rank 0 has: b0. Rank 2 has: b1.",
        "Only rank 0 has: c. (In all, rank 0 has 3, and rank 2 has 2.)",
    )
    expected = [
        f"The ranks disagree about the gradients. {text} Make them alike on all ranks." for text in (different, extra)
    ]
    assert run_ranks(3, check) == [expected] * 3


def test_a_rank_alone_always_agrees() -> None:
    context.init()
    try:
        consistency.check_identical(["a"], name="alone", subject="the gradients")
    finally:
        context.shutdown()


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (["a", "b"], ["a", "c"], "Rank 4 has: b. Rank 7 has: c."),
        (["b"], ["a", "b"], "Only rank 7 has: a. (In all, rank 4 has 1, and rank 7 has 2.)"),
        (["b"], ["a", "c"], "Rank 4 has: b. Rank 7 has: a. (In all, rank 4 has 1, and rank 7 has 2.)"),
        (["a"], ["a", "c"], "Only rank 7 has: c. (In all, rank 4 has 1, and rank 7 has 2.)"),
        ([], ["c"], "Only rank 7 has: c. (In all, rank 4 has 0, and rank 7 has 1.)"),
    ],
)
def test_the_first_difference_is_shown(ours: list[str], theirs: list[str], text: str) -> None:
    assert consistency._describe_difference(ours, 4, theirs, 7) == text
