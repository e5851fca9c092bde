"""The declarations of the C ABI, against the library and against its header."""

from __future__ import annotations

import ctypes
import enum
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_estimator import _native
from spark_estimator._native import DType, Op, ReduceOp, Status
from spark_estimator.errors import (
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    NativeLibraryError,
    PeerLostError,
    ShutDownError,
)

HEADER = Path(__file__).parents[1] / "native" / "include" / "spark_estimator" / "engine.h"


@pytest.mark.parametrize(
    ("declared", "name"), [(Status, "status"), (Op, "op"), (ReduceOp, "reduce_op"), (DType, "dtype")]
)
def test_enums_are_those_of_the_header(declared: type[enum.IntEnum], name: str) -> None:
    body = re.search(rf"typedef enum se_{name} \{{(.*?)\}} se_{name};", HEADER.read_text(), re.DOTALL)
    assert body is not None
    values = {key: int(value) for key, value in re.findall(r"SE_(\w+) = (\d+)", body[1])}
    assert values == {member.name: member.value for member in declared}


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (_native.Peer, "peer"),
        (_native.Config, "config"),
        (_native.TensorStruct, "tensor"),
        (_native.Request, "request"),
        (_native.Result, "result"),
        (_native.TensorflowTensor, "tensorflow_tensor"),
        (_native.TensorflowCall, "tensorflow_call"),
    ],
)
def test_structs_are_those_of_the_header(declared: type[ctypes.Structure], name: str) -> None:
    """Padding can hide a field that is missing from the size of the whole."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    body = re.search(rf"typedef struct se_{name} \{{(.*?)\}} se_{name};", text, re.DOTALL)
    assert body is not None
    fields = re.findall(r"(\w+)\s*(?:\[\w+\])?;", body[1])
    assert [field[0] for field in declared._fields_] == fields


def test_every_function_of_the_header_is_declared() -> None:
    assert set(re.findall(r"\b(se_\w+)\(", HEADER.read_text())) >= set(_native._SIGNATURES)
    exported = set(re.findall(r"^SE_API [^(]*?(se_\w+)\(", HEADER.read_text(), re.MULTILINE))
    assert exported == set(_native._SIGNATURES)


def test_the_versions_agree() -> None:
    assert f"SE_ABI_VERSION {_native.ABI_VERSION}" in HEADER.read_text()
    assert _native.library().se_abi_version() == _native.ABI_VERSION


@pytest.mark.parametrize("dtype", DType)
def test_element_sizes(dtype: DType) -> None:
    assert _native.library().se_dtype_bytes(dtype) == dtype.itemsize


def test_a_missing_library_gives_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NativeLibraryError, match=r"does not exist.*make build"):
        _native.load(tmp_path / _native.LIBRARY_NAME)


def test_a_file_that_is_no_library_gives_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / _native.LIBRARY_NAME
    path.write_bytes(b"not an ELF file")
    with pytest.raises(NativeLibraryError, match=r"cannot be used here.*make build"):
        _native.load(path)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_ARGUMENT, ValueError),
        (Status.DUPLICATE_NAME, DuplicateNameError),
        (Status.MISMATCH, MismatchError),
        (Status.PEER_LOST, PeerLostError),
        (Status.SHUT_DOWN, ShutDownError),
        (Status.TIMED_OUT, PeerLostError),
        (Status.NO_MEMORY, MemoryError),
        (Status.SYSTEM_ERROR, HorovodInternalError),
        (Status.INTERNAL, HorovodInternalError),
        (77, HorovodInternalError),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[Exception]) -> None:
    error = _native.make_error(status, "the sentence")
    assert type(error) is kind
    assert error.args == ("the sentence",)


def test_a_failed_call_raises_the_engines_sentence() -> None:
    with pytest.raises(Exception, match=r".+"):
        _native.check(_native.library().se_segment_create(-1, None))


def test_the_library_is_hardened() -> None:
    """Its relocations are read-only and bound at once, its stack is not executable, it shows its ABI only, it checks
    the sizes of buffers, and it needs no library but the system's.
    """
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf here (binutils)")
    library = Path(_native.__file__).with_name(_native.LIBRARY_NAME)

    def readelf(option: str) -> str:
        command = ["readelf", "-W", option, str(library)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    segments, dynamic, symbols = readelf("--segments"), readelf("--dynamic"), readelf("--dyn-syms")
    assert "GNU_RELRO" in segments and "BIND_NOW" in dynamic
    (stack,) = re.findall(r"GNU_STACK.*", segments)
    assert "RWE" not in stack
    shown = re.findall(r"(?:FUNC|OBJECT) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)", symbols)
    assert shown and all(name.startswith("se_") for name in shown), shown
    assert "__stack_chk_fail" in symbols and "__snprintf_chk" in symbols
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert needed and not [name for name in needed if not re.match(r"(lib(c|m|dl|pthread|rt)|ld-linux)\b", name)], (
        needed
    )
