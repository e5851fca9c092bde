"""Petastorm's pickled schema: fields without petastorm, and pickles that name other code."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.schema import METADATA, SchemaField, parse_fields, read_pickled_schema
from spark_estimator.store import FilesystemStore

WRITTEN = Path(__file__).parent / "petastorm_written"


class Runs:
    """A pickle that calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_hostile_schema_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "it_ran"
    for hostile in (Runs(eval, f"open({str(trace)!r}, 'w')"), Runs(numpy.load, str(trace)), Runs(getattr, 1, "real")):
        with pytest.raises(DataError, match=r"folder: petastorm's schema .* it names .* which no schema of petastorm"):
            parse_fields(pickle.dumps(OrderedDict(a=hostile), protocol), "folder")
    for invalid in (b"", b"no pickle", pickle.dumps(OrderedDict(), protocol), pickle.dumps(print, protocol)):
        with pytest.raises(DataError, match="folder: petastorm's schema is not one that can be opened"):
            parse_fields(invalid, "folder")
    assert not trace.exists()


def test_fields_of_a_schema_that_petastorm_wrote() -> None:
    pickled = read_pickled_schema(FilesystemStore(str(WRITTEN)), str(WRITTEN))
    assert pickled is not None
    fields = parse_fields(pickled, "folder")
    assert fields["matrix"] == SchemaField("matrix", "float32", (2, 3), "npy")
    assert fields["id"].codec == "scalar" and fields["packed"].codec == "npz" and fields["image"].codec == "image"


def test_a_folder_without_a_schema(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path))
    assert read_pickled_schema(store, str(tmp_path)) is None
    pyarrow.parquet.write_metadata(pyarrow.schema([("n", pyarrow.int64())]), tmp_path / METADATA)
    assert read_pickled_schema(store, f"{tmp_path}/") is None, "Spark and others write this file, too"
    (tmp_path / METADATA).write_bytes(b"PAR1")
    with pytest.raises(DataError, match=f"{METADATA} cannot be read"):
        read_pickled_schema(store, str(tmp_path))
