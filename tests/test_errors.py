"""The error classes: their tree as documented, their attributes, and that they can be pickled."""

from __future__ import annotations

import pickle
import re
import signal
import traceback

import pytest

from spark_estimator import errors


def tree() -> list[tuple[int, str]]:
    """(depth, name) of each class in the drawing of the module's docstring."""
    lines = re.findall(r"^ {4}([ │├└─]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    return [(len(branch) // 4, name) for branch, name in lines]


def test_the_drawing_is_the_class_tree() -> None:
    path: list[type] = []
    for depth, name in tree():
        kind = getattr(errors, name, None) or vars(__import__("builtins"))[name]
        del path[depth:]
        if path:
            assert kind.__bases__[0] is path[-1] or name == "ValueError", name
        path.append(kind)


def test_every_error_is_in_the_drawing() -> None:
    public = {
        name for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }  # fmt: skip
    assert public - {name for _, name in tree()} == {"RemoteTraceback"}, "the cause of a WorkerFailedError"


def test_horovods_programs_catch_a_missing_init() -> None:
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)\. In the driver program .* there is no rank: call it"):
        raise errors.NotInitializedError


@pytest.mark.parametrize(("exitcode", "number"), [(-9, signal.SIGKILL), (1, None), (0, None), (None, None)])
def test_the_signal_of_a_failed_rank(exitcode: int | None, number: int | None) -> None:
    assert errors.WorkerFailedError("x", exitcode=exitcode).signal == number


def test_a_failed_job_has_its_earlier_attempts() -> None:
    first = errors.WorkerFailedError("first", kind="killed", rank=2, host="h", exitcode=-9, log_tail="bye")
    last = errors.JobFailedError("last", earlier=(first,))
    assert (last.rank, last.kind, last.host, last.traceback) == (-1, "", "", "")
    copy = pickle.loads(pickle.dumps(last))
    assert copy.args == ("last",) and copy.earlier[0].rank == 2 and copy.earlier[0].log_tail == "bye"


def test_a_remote_traceback_is_printed_as_it_was() -> None:
    try:
        raise errors.WorkerFailedError("rank 1 raised") from errors.RemoteTraceback("Traceback of rank 1\nKeyError: 3")
    except errors.WorkerFailedError as error:
        text = "".join(traceback.format_exception(error))
    assert "Traceback of rank 1\nKeyError: 3\n" in text


def test_an_interrupt_tells_whether_a_synchronization_is_needed() -> None:
    assert not errors.HostsUpdatedInterrupt().skip_sync
    assert errors.HostsUpdatedInterrupt(skip_sync=True).skip_sync


def test_a_message_ends_with_the_command_that_explains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = errors.NotEnoughSlotsError("4 ranks need 4 slots")
    assert str(error) == "4 ranks need 4 slots\nmore: python -m spark_estimator explain NOT_ENOUGH_SLOTS"
    assert str(errors.NotInitializedError()).endswith("\nmore: python -m spark_estimator explain NOT_INITIALIZED")
    assert error.args == ("4 ranks need 4 slots",) and str(pickle.loads(pickle.dumps(error))) == str(error)
    monkeypatch.setattr(errors, "DOCUMENTATION_URL", "https://docs.example")
    assert str(error) == "4 ranks need 4 slots\nmore: https://docs.example/errors.html#notenoughslotserror"


@pytest.mark.parametrize("url", ["", "https://docs.example"])
def test_a_message_inside_another_one_has_no_such_line(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(errors, "DOCUMENTATION_URL", url)
    inner = errors.DataError("column 'x' is empty")
    outer = errors.WorkerFailedError(f"rank 1 raised DataError: {inner}. Other ranks: none")
    assert str(outer).splitlines()[0] == "rank 1 raised DataError: column 'x' is empty. Other ranks: none"
    assert str(outer).count("more: ") == 1
    assert errors.remove_links(f"{inner}; restarting") == "column 'x' is empty; restarting"
    last_line = str(inner).splitlines()[-1]
    assert errors.remove_links(last_line) == ""


def test_a_class_of_another_module_has_the_code_of_its_base() -> None:
    class Refused(errors.DataError):
        pass

    assert errors.get_code(Refused) == "DATA" and str(Refused("x")).endswith("explain DATA")
