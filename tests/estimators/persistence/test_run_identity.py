"""What distinguishes one training from another."""

from __future__ import annotations

import functools
from dataclasses import replace

from spark_estimator.data.fields import Field
from spark_estimator.estimators.persistence.run_identity import find_differences, get_name, make_base_identity
from tests.estimators.specs import spec_of


def test_parameters_that_a_run_may_be_resumed_with_are_not_in_it() -> None:
    spec = spec_of()
    identity = make_base_identity(spec, [1, 2])
    assert identity == make_base_identity(replace(spec, epochs=99, patience=3, seed=8, verbose=2), [1, 2])
    for other in ({"batch_size": 9}, {"shuffle": False}, {"held_share": 0.5}, {"train_steps": 4}):
        assert identity != make_base_identity(replace(spec, **other), [1, 2]), other
    assert identity != make_base_identity(spec, [1, 3])


def test_each_difference_has_a_line_with_both_values() -> None:
    theirs = {"loss": ["mse", "same"], "model": ["a", "b"], "steps": ["x"]}
    ours = {"loss": ["mae", "same"], "model": ["a"], "steps": ["x"], "rows": ["r"]}
    assert sorted(find_differences(theirs, ours)) == [
        "loss: mse in the checkpoint, mae now",
        "model: b in the checkpoint, nothing now",
        "rows: nothing in the checkpoint, r now",
    ]
    assert find_differences(ours, ours) == []


def test_rows_are_described_by_their_columns() -> None:
    def lines(*fields: Field, checksum: int = 1) -> dict[str, list[str]]:
        return {"rows": make_base_identity(spec_of(inputs=fields, labels=()), [checksum])["rows"]}

    scalar = Field(("size",), ("c0",), (1,), "float32")
    both = Field(("size", "weight"), ("c0", "c1"), (1, 1), "float32", (2,))
    [text] = find_differences(lines(scalar), lines(both))
    assert text == (
        "rows: column size as float32 of shape () in the checkpoint, columns size, weight as float32 of shape (2,) now"
    )
    [text] = find_differences(lines(scalar), lines(scalar, checksum=2))
    assert text == "rows: values with the checksums [1] in the checkpoint, values with the checksums [2] now"
    padded = replace(both, padding=(0.0, 0.0))
    [text] = find_differences(lines(both), lines(padded))
    assert "padding=()" in text, "what differs is shown"


def test_names_are_without_modules() -> None:
    assert get_name(None) == "none"
    assert get_name(get_name) == "get_name"
    assert get_name(spec_of()) == "TrainSpec"
    assert get_name(functools.partial(get_name)) == "partial"
