"""When a supervisor that sends nothing is reported, and when it is lost."""

from __future__ import annotations

from spark_estimator.env import Settings
from spark_estimator.observe.silence import Hearing, Silence, choose_loss_seconds


def states(silence: Silence, looks: int, seconds: float = 1.0) -> list[tuple[int, Hearing]]:
    """(check, state) at each change of the state."""
    return [(number, silence.state) for number in range(1, looks + 1) if silence.note_silence(seconds)]


def test_a_silent_supervisor_is_reported_and_then_lost() -> None:
    silence = Silence(60.0)
    assert states(silence, 100) == [(10, Hearing.SILENT), (60, Hearing.LOST)]
    assert not silence.note_data() and silence.state is Hearing.LOST, "it was given up"


def test_a_short_silence_is_no_news() -> None:
    silence = Silence(60.0)
    for _ in range(100):
        assert states(silence, 9) == [] and not silence.note_data()


def test_a_supervisor_that_sends_again_is_heard() -> None:
    silence = Silence(60.0)
    assert states(silence, 59) == [(10, Hearing.SILENT)]
    assert silence.note_data() and silence.state is Hearing.HEARD
    assert states(silence, 59) == [(10, Hearing.SILENT)]


def test_a_driver_that_was_stopped_itself_judges_nobody() -> None:
    silence = Silence(60.0)
    assert states(silence, 4, seconds=3600.0) == []
    assert states(Silence(4.0), 3, seconds=3600.0) == []


def test_a_short_limit_leaves_time_to_report_first() -> None:
    assert states(Silence(6.0), 20, seconds=0.5) == [(6, Hearing.SILENT), (12, Hearing.LOST)]


def test_the_limit_follows_the_settings_of_heartbeats() -> None:
    assert choose_loss_seconds(Settings()) == 60.0
    assert choose_loss_seconds(Settings(silence_seconds=30.0)) == 300.0
    assert choose_loss_seconds(Settings(silence_seconds=0.1)) == 20.0, "supervisors send each second, whatever ranks do"
    assert choose_loss_seconds(Settings(heartbeat_seconds=0.0)) == 0.0


def test_without_heartbeats_nobody_is_judged() -> None:
    assert states(Silence(0.0), 1000) == []
