"""The files of Keras' checkpoints, which are read without running code."""

from __future__ import annotations

import io
import pickle

import numpy
import pytest

pytest.importorskip("keras")


from spark_estimator.estimators.keras.checkpoint import KerasForm


def test_arrays_and_plain_values_come_back() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    content = {
        "weights": [numpy.arange(6, dtype=numpy.float32).reshape(2, 3), numpy.zeros(0)],
        "half": numpy.ones(2, ml_dtypes.bfloat16),
        "epoch": numpy.int64(3),
        "best": None,
        "deep": {"loss": [0.5, {"flag": True}], "text": "a"},
    }
    again = KerasForm().unpack(KerasForm().to_stream(content).getvalue())
    assert again["weights"][0].tolist() == [[0, 1, 2], [3, 4, 5]] and again["weights"][1].shape == (0,)
    assert again["half"].dtype == ml_dtypes.bfloat16 and again["half"].tolist() == [1, 1]
    assert (again["epoch"], again["best"], again["deep"]) == (3, None, content["deep"])
    again["weights"][0][0, 0] = 9  # they can be written to


def test_a_file_of_pickles_is_refused() -> None:
    stream = io.BytesIO()
    numpy.savez(stream, told=numpy.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        KerasForm().unpack(stream.getvalue())
    with pytest.raises(ValueError, match="allow_pickle"):
        KerasForm().unpack(pickle.dumps([1]))


def test_an_error_is_one_line() -> None:
    assert KerasForm().describe_error(ValueError("\n first\nsecond")) == "ValueError: first"
    assert KerasForm().describe_error(ValueError()) == "ValueError"
