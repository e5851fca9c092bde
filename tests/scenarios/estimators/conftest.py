"""The fixtures of the estimators' tests serve these, too."""

from tests.estimators.conftest import estimator, line

__all__ = ["estimator", "line"]
