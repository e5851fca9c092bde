"""The exchanges of one optimizer, step by step, on one rank."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from spark_estimator.collectives import context
from spark_estimator.extensions.local_steps.fragment import FragmentState, OuterStep
from spark_estimator.extensions.local_steps.rounds import Rounds
from spark_estimator.extensions.local_steps.schedule import ExchangeSchedule

HALF = OuterStep(0.5, 0.9, 0.0, as_int8=False, process_set=None)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    context.init()
    gc.collect()
    gc.freeze()  # each membership collects garbage, which takes long with all that the test run has imported
    yield
    gc.unfreeze()
    context.shutdown()


class Training:
    """Three parameters, each of which an inner step adds 1 to."""

    def __init__(self, schedule: ExchangeSchedule, outer: OuterStep = HALF) -> None:
        self.params = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.optimizer = torch.optim.SGD([*self.params, frozen], lr=1.0)
        names = {id(param): f"p{number}" for number, param in enumerate(self.params)}
        self.rounds = Rounds(self.optimizer, names, schedule, outer)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.rounds.before_step()
            with torch.no_grad():
                for param in self.params:
                    param.add_(1)
            self.rounds.after_step()

    @property
    def values(self) -> list[float]:
        return [param[0].item() for param in self.params]


def test_nothing_is_exchanged_before_its_step() -> None:
    training = Training(ExchangeSchedule(3))
    assert training.rounds.fragments == [] and training.rounds.bytes_given == 0
    training.rounds.synchronize()
    training.step(2)
    assert training.values == [2.0] * 3
    assert [fragment.version for fragment in training.rounds.fragments] == [0]
    training.step()
    assert training.values == [pytest.approx(0.5 * (3 + 0.9 * 3))] * 3
    assert (training.rounds.fragments[0].version, training.rounds.steps) == (1, 3)
    assert training.rounds.bytes_given == 3 * 2 * 4 + 4, "frozen parameters are not sent"


def test_fragments_take_turns() -> None:
    training = Training(ExchangeSchedule(3, fragments=3), OuterStep(0.0, 0.0, 0.0, as_int8=False, process_set=None))
    values = []
    for _ in range(4):
        training.step()
        values.append(training.values)
    assert values == [[0.0, 1.0, 1.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0], [0.0, 2.0, 1.0]]


def test_a_delayed_fragment_is_in_flight_meanwhile() -> None:
    training = Training(ExchangeSchedule(4, delay=2), OuterStep(0.0, 0.0, 0.0, as_int8=False, process_set=None))
    states, values = [], []
    for _ in range(6):
        training.step()
        states.append(training.rounds.fragments[0].state)
        values.append(training.values[0])
    flying = FragmentState.IN_FLIGHT
    assert [state is flying for state in states] == [False, False, False, True, True, False]
    assert values == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]


def test_synchronize_exchanges_what_is_left_and_nothing_twice() -> None:
    training = Training(ExchangeSchedule(4, delay=2), OuterStep(1.0, 0.0, 0.0, as_int8=False, process_set=None))
    training.step(5)
    training.rounds.synchronize()
    (fragment,) = training.rounds.fragments
    versions = fragment.version
    assert fragment.state is FragmentState.AT_REST and training.rounds.steps == 0
    assert fragment.anchors[0].tolist() == training.params[0].tolist()
    training.rounds.synchronize()
    assert fragment.version == versions


def test_a_state_continues_another_optimizer() -> None:
    first = Training(ExchangeSchedule(2, fragments=2))
    assert first.rounds.get_state() is None
    first.step(2)
    state = first.rounds.get_state()
    assert state is not None and state["version"] == 1
    assert (len(state["anchors"]), len(state["momenta"])) == (3, 3)
    second = Training(ExchangeSchedule(2))  # of another number of fragments
    second.rounds.load(state)
    assert second.rounds.get_state() is state, "until the next step"
    second.step()
    anchors = [anchor for fragment in second.rounds.fragments for anchor in fragment.anchors]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(anchors, state["anchors"], strict=True))
    assert second.rounds.fragments[0].version == 1


def test_a_state_without_momentum_and_one_of_other_parameters() -> None:
    plain = Training(ExchangeSchedule(2), OuterStep(0.5, 0.0, 0.0, as_int8=False, process_set=None))
    plain.step(2)
    state = plain.rounds.get_state()
    assert state is not None and state["momenta"] == []
    with_momentum = Training(ExchangeSchedule(2))
    with_momentum.rounds.load(state)
    with_momentum.step()
    assert not with_momentum.rounds.fragments[0].momenta[0].any()
    for anchors in (state["anchors"][:2], [torch.zeros(3)] * 3):
        other = Training(ExchangeSchedule(2))
        other.rounds.load({**state, "anchors": anchors})
        with pytest.raises(ValueError, match="the outer state of a DiLoCo optimizer is that of other parameters"):
            other.step()


def test_forgetting_begins_at_the_parameters_as_they_are() -> None:
    training = Training(ExchangeSchedule(4, delay=2))
    training.step(5)
    training.rounds.forget()
    assert training.rounds.fragments == [] and training.rounds.steps == 0
    training.step()
    assert training.rounds.fragments[0].anchors[0].tolist() == [5.0, 5.0]


def test_a_new_job_keeps_the_anchors_and_drops_what_was_in_flight() -> None:
    training = Training(ExchangeSchedule(4, delay=3), OuterStep(1.0, 0.0, 0.0, as_int8=False, process_set=None))
    training.step(4)
    context.shutdown()
    context.init()
    training.step()
    (fragment,) = training.rounds.fragments
    assert fragment.state is FragmentState.AT_REST and fragment.version == 0
    training.rounds.synchronize()
    assert training.values == [5.0] * 3 and fragment.version == 1


def test_optimizers_have_names_in_the_order_in_which_they_were_made() -> None:
    first, gone, last = (Training(ExchangeSchedule(1)) for _ in range(3))
    for each in (first, last):
        each.step()
    before = [each.rounds.fragments[0].name for each in (first, last)]
    assert len(set(before)) == 2
    gone.rounds.close()
    del gone
    gc.collect()
    context.shutdown()
    context.init()
    last.step()
    first.step()
    numbers = [int(each.rounds.fragments[0].name.split(".")[1]) for each in (first, last)]
    assert numbers[1] == numbers[0] + 1, "a closed one has no number in the new job"
