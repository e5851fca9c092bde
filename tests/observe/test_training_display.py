"""How the reports of all ranks become a line of text and a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from spark_estimator.observe.progress import Progress
from spark_estimator.observe.status_line import format_status
from spark_estimator.observe.training_display import (
    TrainingDisplay,
    draw_loss_curve,
    format_clock,
    format_training,
    merge_reports,
)
from spark_estimator.observe.training_meter import TRAIN, VALIDATION, TrainingReport


def report(at: float, step: int, rows: int, **values: Any) -> Progress:
    fields = {"epoch": 2, "epochs": 4, "part": TRAIN, "steps": 10, "loss": 0.5, "loss_rows": rows, **values}
    return Progress(at, 0, 0, training=TrainingReport(step=step, rows=rows, **fields))


def test_all_ranks_together() -> None:
    ended: dict[str, Any] = {"averages": {"loss": 0.75, "val_loss": 1.0}, "points": ((1, 0.75, 1.0),)}
    reports = {
        0: [report(10, 0, 0, **ended), report(20, 5, 1000, **ended)],
        1: [report(105, 1, 100, loss=9.0), report(115, 6, 3100, loss=1.5, loss_rows=3000)],
    }
    state = merge_reports(reports, {rank: history[0] for rank, history in reports.items()})
    assert state is not None
    assert state.loss == pytest.approx((0.5 * 1000 + 1.5 * 3000) / 4000)
    assert state.rows_per_second == pytest.approx(100 + 300)
    # Rank 0 has done half an epoch in 10 s; two and a half are left.
    assert state.seconds_left == pytest.approx(50)
    assert format_training(state) == (
        "epoch 2/4 [###.......], step 5/10, 400 rows/s, ETA 0:50, loss 1.25",
        "epoch 1: loss 0.75, val_loss 1",
    )
    waits = {rank: [Progress(1, 0, 0, 2.0, "allreduce 'x'")] for rank in (1, 2)}
    assert format_status(3, {0, 1}, waits, {1: 0, 2: 0}, state) == (
        "2 of 3 ranks up; epoch 2/4 [###.......], step 5/10, 400 rows/s, ETA 0:50, loss 1.25; "
        "2 ranks wait for rank 0 since 2 s in allreduce 'x'; epoch 1: loss 0.75, val_loss 1"
    )


def test_what_is_unknown_is_left_out() -> None:
    assert merge_reports({0: [Progress(1, 0, 0)]}, {}) is None
    first = report(10, 0, 0, loss=None, loss_rows=0, epochs=0, steps=0)
    state = merge_reports({0: [Progress(1, 0, 0), first]}, {0: first})
    assert state is not None and format_training(state) == ("epoch 2, step 0", "")
    in_validation = report(11, 3, 5, part=VALIDATION)
    state = merge_reports({0: [in_validation], 1: [report(9, 0, 1, epoch=3)]}, {0: in_validation})
    assert state is not None
    assert format_training(state)[0] == "epoch 2/4 [#####.....], validation step 3/10, val_loss 0.5"


def test_a_rank_that_trains_no_more_is_not_waited_for() -> None:
    first, ended = report(10, 3, 30), Progress(12, 0, 0)
    state = merge_reports({0: [first, ended], 1: [report(11, 4, 40)]}, {0: first})
    assert state is not None and state.report.step == 4
    assert merge_reports({0: [first, ended]}, {0: first}) is None


def test_text_of_ranks_cannot_steer_the_screen() -> None:
    reports = {0: [report(10, 0, 0, averages={"\x1b[2J<script>": 1.0})]}
    display = TrainingDisplay()
    state = display.update_state(reports)
    assert state is not None
    text = format_status(1, {0}, reports, {0: 0.0}, state)
    assert "\x1b" not in text
    assert "<script>" not in display.to_html(state, text)


def test_seconds_as_a_clock() -> None:
    assert [format_clock(seconds) for seconds in (0.4, 65, 3599.7, 36061)] == ["0:00", "1:05", "1:00:00", "10:01:01"]


def test_the_curve_is_of_epochs_that_have_ended_and_of_the_current_one() -> None:
    display = TrainingDisplay()
    points = ((1, 1.0, 2.0), (2, 0.5, 1.0))
    for step, epoch in ((9, 2), (1, 3), (1, 3), (5, 3)):
        history = [report(step, step, step, epoch=epoch, points=points, loss=float(step))]
        state = display.update_state({0: history})
    assert state is not None
    html = display.to_html(state, "a < b")
    assert "a &lt; b" in html and 'max="4" value="2.5000"' in html and "from 0.5 to 5, over 4 epochs" in html
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + len("</svg>")])
    lines = [line.attrib["points"].split() for line in svg.iter("polyline")]
    assert [len(line) for line in lines] == [2, 2, 2], "training, validation, and two samples of epoch 3"
    places = [tuple(map(float, place.split(","))) for line in lines for place in line]
    assert all(0 <= x <= 420 and 0 <= y <= 90 for x, y in places)
    assert lines[2][1].endswith(",1.0"), "the highest loss is at the top"


@pytest.mark.parametrize("points", [(), ((1, 0.5, None),), ((1, float("nan"), None), (2, 0.5, float("inf")))])
def test_no_curve_of_one_number(points: Any) -> None:
    assert draw_loss_curve(points, (), 5) == ""


def test_equal_losses_make_a_curve() -> None:
    assert "<svg" in draw_loss_curve(((1, 0.5, None), (2, 0.5, None)), (), 0)
