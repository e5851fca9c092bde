"""An outcome's value is used only when it is what the rank has sent."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from spark_estimator.errors import ResultError
from spark_estimator.launch.job.outcome import Outcome

SENT = Outcome(3, "host", 10, 0, None, b"value", hashlib.sha256(b"value").hexdigest())


def test_a_whole_value_is_returned_and_does_not_show() -> None:
    assert SENT.pickled == b"value"
    assert "b'value'" not in repr(SENT), "it may be large, or secret"


@pytest.mark.parametrize(
    "outcome", [replace(SENT, value=None), replace(SENT, value=b"valuE"), replace(SENT, sha256="")]
)
def test_a_missing_or_damaged_value_is_an_error(outcome: Outcome) -> None:
    with pytest.raises(ResultError, match=r"the value of rank 3 \(host host\) is incomplete or damaged"):
        _ = outcome.pickled
