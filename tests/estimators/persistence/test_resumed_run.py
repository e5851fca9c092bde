"""What a user learns of a run that resumes from its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Cursor
from spark_estimator.estimators.persistence.resumed_run import describe_ignored, describe_return
from tests.estimators.specs import spec_of

ENTRY = {"epoch": 0, "train": {"loss": 1.0, "all_metrics": []}}
#: Two epochs by two ranks.
KEPT = Checkpoint({}, 5, {}, [ENTRY, ENTRY], None, [{}, {}], initial="first", owner="earlier fit")


def test_the_line_of_the_log() -> None:
    kept = Checkpoint({}, 1, {}, [ENTRY], None)
    assert describe_return("r", kept, 1, again=False).startswith("run 'r' has already finished 1 epochs")
    assert describe_return("r", kept, 2, again=False) == "run 'r' resumes from its checkpoint after epoch 1"
    within = replace(kept, cursor=Cursor(4, 64, [7]))
    assert describe_return("r", within, 2, again=False).endswith("after epoch 1 and 4 steps (64 rows) of the next")
    assert "restarts: its rows are distributed differently" in describe_return("r", within, 2, again=True)


@pytest.mark.parametrize(
    ("changed", "ranks", "words"),
    [
        ({}, 2, "after 2 epochs: nothing was trained, and the model of its checkpoint is returned. To train on, raise"),
        ({"epochs": 3}, 2, "after 2 epochs (it ended early): nothing was trained"),
        ({"epochs": 3}, 2, "is returned. To train on, raise early_stopping_patience; on other rows"),
        ({}, 3, "Without effect: num_proc=3 (the run had 2)."),
        ({"seed": 9, "has_given_seed": True}, 2, "Without effect: random_seed=9 (the run has 5)."),
        ({"seed": 9}, 2, "is returned. To train on"),
        ({"initial": "others"}, 2, "Without effect: the model's weights (the run began with others)."),
        ({"epochs": 1, "restore_best": True}, 2, "epochs=1, restore_best=True (the run kept no best epoch)."),
        (
            {"seed": 9, "has_given_seed": True, "initial": "others"},
            1,
            "Without effect: random_seed=9 (the run has 5), num_proc=1 (the run had 2), the model's weights (the run "
            "began with others). To train on, raise epochs; on other rows, set resume_on_other_rows=True, too.",
        ),
    ],
)
def test_a_finished_run_trains_nothing_and_names_what_has_no_effect(
    changed: dict[str, Any], ranks: int, words: str
) -> None:
    spec = spec_of(**{"owner": "this fit", "initial": "first", **changed})
    text = describe_ignored(spec, KEPT, 2, ranks)
    assert text.startswith("run_id='run' has finished before, after 2 epochs") and words in text


def test_a_run_that_trains_on_warns_of_its_seed_alone() -> None:
    spec = spec_of(epochs=4, owner="this fit", initial="others", seed=9)
    assert not describe_ignored(spec, KEPT, 4, 3)
    text = describe_ignored(replace(spec, has_given_seed=True), KEPT, 4, 3)
    assert text == "run_id='run' has resumed, and random_seed=9 (the run has 5) has had no effect."


def test_a_restart_within_a_fit_is_no_surprise() -> None:
    assert not describe_ignored(spec_of(owner=KEPT.owner, seed=9, has_given_seed=True), KEPT, 2, 3)
