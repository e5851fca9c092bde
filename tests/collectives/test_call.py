"""Calls whose arguments are refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.requests import run, submit


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"name": 5}, TypeError, "the name of a collective must be a string, not 5"),
        ({"name": ["a"]}, TypeError, r"must be a string, not \['a'\]"),
        ({"name": "a\x00b"}, ValueError, "must not contain a NUL character"),
        ({"name": "a\ud800"}, ValueError, "at position 1, an unpaired surrogate"),
        ({"name": ""}, ValueError, "."),
        ({"name": "x" * 4096}, ValueError, "4095"),
        ({"reduce_op": "sum"}, TypeError, r"allreduce on rank 0 \(name 'x'\): op must be one of ReduceOp\.AVERAGE"),
        ({"prescale": "2x"}, TypeError, "prescale_factor must be a number, not '2x'"),
        ({"postscale": None}, TypeError, "postscale_factor must be a number, not None"),
        ({"op": Op.ALLTOALL, "splits": (1.5,)}, TypeError, r"splits must be whole numbers, .*\(1\.5,\)"),
        ({"op": Op.ALLTOALL, "splits": (1, 1)}, ValueError, "2 splits, but its group has 1 ranks"),
        ({"op": Op.BROADCAST, "root_rank": 7}, ValueError, "7"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    single_engine: Engine, change: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = single_engine.read_counter("requests")
    call = Call(**{"op": Op.ALLREDUCE, "name": "x", "reduce_op": ReduceOp.SUM, **change})
    memory = (ctypes.c_float * 1)(1)
    address = ctypes.addressof(memory)
    for use in (submit, run):
        with pytest.raises(kind, match=text):
            use(single_engine, call, [Tensor(address, address, DType.FLOAT32, (1,))], memory)
    assert single_engine.read_counter("requests") == before
