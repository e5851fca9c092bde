"""What a checkpoint holds of objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.state import (
    LARGEST_OWN_BUFFER,
    check_names,
    collect_entries,
    find_own_buffers,
    iterate_leaves,
    join_leaves,
    load_into,
)


class Holder:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


STATE = {"a": {0: torch.ones(2), "b": [1, 2]}, "c": [{"lr": 0.1}, torch.zeros(1)], "d": {}, "e": (1, 2), "f": None}


def test_names_are_those_of_torchs_layout() -> None:
    from torch.distributed.checkpoint import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner({"x": {name: value for name, value in STATE.items() if name != "d"}})
    ours = {".".join(map(str, path)): path for path, _ in iterate_leaves(("x",), STATE)}
    assert ours.pop("x.d") == ("x", "d")
    assert ours == planner.mappings


def test_a_state_comes_back_with_its_own_keys() -> None:
    holder = Holder({"a": {0: None}})
    load_into(holder, join_leaves([(path[1:], value) for path, value in iterate_leaves(("x",), STATE)]))
    assert list(holder.state["a"]) == [0, "b"]
    assert holder.state["c"][0] == {"lr": 0.1}
    assert (holder.state["d"], holder.state["e"], holder.state["f"]) == ({}, (1, 2), None)


def test_a_new_optimizer_takes_the_state_of_one_that_has_stepped() -> None:
    first, second = (torch.optim.Adam(nn.Linear(3, 2).parameters()) for _ in range(2))
    for parameter in first.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    first.step()
    load_into(second, join_leaves([(path[1:], value) for path, value in iterate_leaves(("o",), first.state_dict())]))
    assert torch.equal(second.state_dict()["state"][1]["exp_avg"], first.state_dict()["state"][1]["exp_avg"])


def test_small_buffers_are_each_ranks_own() -> None:
    module = nn.BatchNorm1d(3)
    module.register_buffer("large", torch.zeros(LARGEST_OWN_BUFFER // 4 + 1))
    module.register_buffer("passing", torch.zeros(1), persistent=False)
    assert find_own_buffers(module).keys() == {"running_mean", "running_var", "num_batches_tracked"}
    first = {entry.key for entry in collect_entries({"m": module}) if entry.of_first}
    assert first == {"m.running_mean", "m.running_var", "m.num_batches_tracked"}


@pytest.mark.parametrize("value", [torch.zeros(2, 2).to_sparse(), torch.zeros(2, dtype=torch.complex64).conj()])
def test_tensors_that_have_no_pieces_are_refused(value: torch.Tensor) -> None:
    with pytest.raises(DataError, match=r"m\.w"):
        collect_entries({"m": Holder({"w": value})})


def test_two_values_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match=r"'m\.a\.b'"):
        collect_entries({"m": Holder({"a.b": 1, "a": {"b": 2}})})


def test_names_and_objects_that_cannot_be_in_a_checkpoint() -> None:
    with pytest.raises(TypeError, match=r"'epoch' is a int without state_dict and load_state_dict"):
        check_names(["epoch"], [3], "state")
    for name in ("step", "ranks", "a.b"):
        with pytest.raises(ValueError, match=name):
            check_names([name], [Holder({})], "state")
