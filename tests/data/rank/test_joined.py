"""Narrow fields side by side in the spool."""

from __future__ import annotations

import itertools

import numpy

from spark_estimator.data.fields import Field
from spark_estimator.data.rank.joined import Joined


def test_narrow_fields_are_stored_side_by_side_and_split_again() -> None:
    kinds = [((), "int64"), ((), "float32"), ((3,), "float32"), ((2, 2), "int64"), ((17,), "float32"), ((), "uint8")]
    fields = [
        Field((f"f{number}",), (f"c{number}",), (numpy.prod(shape, dtype=int).item(),), dtype, shape)
        for number, (shape, dtype) in enumerate(kinds)
    ]
    joined = Joined.from_fields(fields)
    assert [field.columns for field in joined.stored] == [("c0", "c3"), ("c1", "c2"), ("c4",), ("c5",)]
    expected = [
        (numpy.arange(5 * field.width).reshape(5, *field.shape) + 20 * number).astype(field.dtype)
        for number, field in enumerate(fields)
    ]
    by_column = {field.columns[0]: values.reshape(5, -1) for field, values in zip(fields, expected, strict=True)}
    arrays = joined.split([numpy.hstack([by_column[name] for name in field.columns]) for field in joined.stored])
    for array, values, field in zip(arrays, expected, fields, strict=True):
        assert array.dtype == field.dtype and array.shape == (5, *field.shape) and array.flags.c_contiguous
        assert numpy.array_equal(array, values)
    assert not any(numpy.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))
    many = Joined.from_fields([Field((f"x{n}",), (f"c{n}",), (1,), "float32") for n in range(300)])
    (matrix,) = [numpy.arange(1200, dtype=numpy.float32).reshape(4, 300)]
    assert len(many.stored) == 1 and [column.tolist() for column in many.split([matrix])] == matrix.T.tolist()


def test_rows_are_gathered_by_blocks() -> None:
    kinds = [((), "float32"), ((3,), "float32"), ((17,), "float32"), ((), "int64"), ((), "int64"), ((), "uint8")]
    fields = [
        Field((f"f{number}",), (f"c{number}",), (numpy.prod(shape, dtype=int).item(),), dtype, shape)
        for number, (shape, dtype) in enumerate(kinds)
    ]
    joined = Joined.from_fields(fields)
    chance = numpy.random.default_rng(1)
    matrices = [chance.integers(0, 100, (300, field.width)).astype(field.dtype) for field in joined.stored]
    for rows in (5, 1024, 2500):
        numbers = chance.integers(0, 300, rows)
        arrays = joined.gather(matrices, numbers)
        for array, expected in zip(arrays, joined.split([matrix[numbers] for matrix in matrices]), strict=True):
            assert array.dtype == expected.dtype and array.flags.c_contiguous and array.flags.writeable
            assert numpy.array_equal(array, expected)
        assert not any(numpy.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))
    together = Joined.from_fields([Field((f"x{n}",), (f"c{n}",), (1,), "float32") for n in range(3)])
    first, second, _ = together.gather([numpy.zeros((9, 3), numpy.float32)], numpy.zeros(2000, int))
    assert first.base is second.base and first.base.shape == (3, 2000), "rows of one matrix, for a frame's block"


def test_padding_is_kept_for_each_column() -> None:
    fields = [
        Field(("v",), ("c0",), (3,), "float32", (3,), (-1.0,)),
        Field(("x",), ("c1",), (1,), "float32"),
        Field(("w",), ("c2",), (2,), "float32", (2,)),
    ]
    (stored,) = Joined.from_fields(fields).stored
    assert (stored.names, stored.widths, stored.padding) == (("v", "x", "w"), (3, 1, 2), (-1.0, None, None))
    assert Joined.from_fields(fields[1:]).stored[0].padding == ()
    assert Joined.from_fields(fields).places == ((0, 0), (0, 3), (0, 4))


def test_no_more_than_a_cache_line_is_joined() -> None:
    fields = [Field((name,), (name,), (width,), "float32", (width,)) for name, width in (("a", 16), ("b", 17))]
    assert [field.names for field in Joined.from_fields([*fields, *fields]).stored] == [("a", "a"), ("b",), ("b",)]
