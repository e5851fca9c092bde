"""The fixtures of the launchers' tests serve these, too."""

from tests.launch.conftest import functions_travel_by_value

__all__ = ["functions_travel_by_value"]
