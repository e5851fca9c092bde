"""Judges how long a supervisor has sent the driver nothing, not even a heartbeat. Pure."""

from __future__ import annotations

import enum

from spark_estimator.env import Settings

# After this number of seconds the driver logs a silent supervisor.
SAY_AFTER = 10.0
# A supervisor is lost after this multiple of `SPARK_ESTIMATOR_SILENCE_SECONDS`: it only reports, and no rank waits for
# it.
_TIMES = 10
# If more than this part of `SAY_AFTER` is between two looks, the driver itself was stopped or busy: what was sent
# meanwhile may not be read yet.
_LONGEST_LOOK = 0.25


class Hearing(enum.Enum):
    """HEARD -> SILENT -> LOST; from SILENT back to HEARD."""

    #: It sends.
    HEARD = enum.auto()
    #: It has sent nothing for some seconds, which was reported.
    SILENT = enum.auto()
    #: It has sent nothing for too long, and is given up.
    LOST = enum.auto()


def choose_loss_seconds(settings: Settings) -> float:
    """Return the seconds of silence after which a supervisor is lost; zero: never, as heartbeats are turned off."""
    return max(_TIMES * settings.silence_seconds, 2 * SAY_AFTER) if settings.heartbeat_seconds else 0.0


class Silence:
    """What the driver receives from a supervisor, which is lost after this silence, in seconds (zero: never)."""

    def __init__(self, lost_after: float) -> None:
        self.state = Hearing.HEARD
        self.seconds = 0.0
        self._lost_after = lost_after
        self._say_after = min(SAY_AFTER, lost_after / 2)

    def note_data(self) -> bool:
        """Note that data has arrived. Return whether that ends a reported silence."""
        before = self.state
        self.seconds = 0.0
        if before is Hearing.SILENT:
            self.state = Hearing.HEARD
        return before is not self.state

    def note_silence(self, seconds: float) -> bool:
        """Note that nothing has arrived for another `seconds`. Return whether the state has changed."""
        before = self.state
        if seconds <= _LONGEST_LOOK * self._say_after:
            self.seconds += seconds
        if self._lost_after and self.seconds >= self._lost_after:
            self.state = Hearing.LOST
        elif self._lost_after and self.seconds >= self._say_after:
            self.state = Hearing.SILENT
        return before is not self.state
