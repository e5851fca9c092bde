"""What another user puts into a shared folder redirects no output; the other user is a real one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import HorovodInternalError, PreflightError
from spark_estimator.launch.log_relay.display import OutputFiles
from spark_estimator.launch.log_relay.log_files import LogWriter
from spark_estimator.observe import timeline
from spark_estimator.security.shared_folders import refuse_foreign
from spark_estimator.store.filesystem import FilesystemStore
from spark_estimator.store.replacement import replace_file, replace_folder
from tests.collectives.conftest import single_engine
from tests.other_user import as_another_user

__all__ = ["single_engine"]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder with a file of this user's own, which other users want overwritten."""
    (tmp_path / "file").write_text("precious")
    return tmp_path


def untouched(precious: Path) -> bool:
    return (precious / "file").read_text() == "precious" and os.listdir(precious) == ["file"]


def test_a_link_of_another_user_is_refused_by_name(shared_folder: Path, precious: Path) -> None:
    as_another_user(lambda: (shared_folder / "out").symlink_to(precious))
    for path in (shared_folder / "out", shared_folder / "out" / "file", shared_folder / "x" / ".." / "out" / "new"):
        with pytest.raises(PermissionError, match=rf"{shared_folder}/out is a link of user 65534"):
            refuse_foreign(str(path))


def test_own_links_and_those_of_root_are_followed(shared_folder: Path, precious: Path) -> None:
    (shared_folder / "out").symlink_to(precious)
    refuse_foreign(str(shared_folder / "out" / "file"))
    (precious / "back").symlink_to(os.path.relpath(shared_folder / "theirs", precious))
    as_another_user(lambda: (shared_folder / "theirs").symlink_to("/etc"))
    with pytest.raises(PermissionError, match="theirs is a link of user 65534"):
        refuse_foreign(str(shared_folder / "out" / "back" / "file"))
    shared_folder.chmod(0o700)
    refuse_foreign(str(shared_folder / "theirs" / "file"))


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_link_in_a_folder_that_another_user_has_made_there_is_refused(
    mode: int, shared_folder: Path, precious: Path
) -> None:
    def occupy() -> None:
        (shared_folder / "out").mkdir()
        (shared_folder / "out" / "rank.0").symlink_to(precious)
        (shared_folder / "out").chmod(mode)

    as_another_user(occupy)
    with pytest.raises(PermissionError, match=r"out/rank.0 is a link of user 65534 in a folder of that user"):
        refuse_foreign(str(shared_folder / "out" / "rank.0" / "file"))
    with pytest.raises(PreflightError, match="is a link of user 65534"):
        OutputFiles(shared_folder / "out", 1)
    assert untouched(precious)
    refuse_foreign(str(shared_folder / "out" / "rank.1" / "file"))


def test_what_is_above_a_link_is_above_its_target(shared_folder: Path, precious: Path) -> None:
    as_another_user(lambda: (shared_folder / "out").symlink_to(precious))
    with pytest.raises(PermissionError, match="out is a link of user 65534"):
        refuse_foreign(f"{shared_folder}/out/../new")


def test_links_that_lead_nowhere_end(shared_folder: Path) -> None:
    (shared_folder / "round").symlink_to("round")
    refuse_foreign(str(shared_folder / "round"))


def test_a_file_of_another_user_or_with_a_second_name_is_refused(shared_folder: Path) -> None:
    as_another_user(lambda: (shared_folder / "theirs").touch(0o666))
    with pytest.raises(PermissionError, match="theirs is a file of user 65534"):
        refuse_foreign(str(shared_folder / "theirs"))
    (shared_folder / "own").touch()
    refuse_foreign(str(shared_folder / "own"))
    os.link(shared_folder / "own", shared_folder / "second")
    with pytest.raises(PermissionError, match="second has a second name"):
        refuse_foreign(str(shared_folder / "second"))
    shared_folder.chmod(0o1755)
    refuse_foreign(str(shared_folder / "theirs"))


def write_by_a_log(path: Path) -> None:
    writer = LogWriter(path, 0)
    writer.add_line("stdout", "text")
    writer.close()
    assert writer.error is None, writer.error


def write_a_folder(path: Path) -> None:
    with replace_folder(path, overwrite=True) as folder:
        (folder / "model").write_text("x")


OUTPUTS: dict[str, Callable[[Path], object]] = {
    "--output-filename": lambda path: OutputFiles(path, 1),
    "log folder": write_by_a_log,
    "store": lambda path: FilesystemStore(str(path.parent)).write(str(path / "file"), b"x"),
    "data of a store": lambda path: FilesystemStore(str(path.parent)).open(str(path / "file"), "wb"),
    "file": lambda path: replace_file(str(path / "file"), b"x"),
    "model": write_a_folder,
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_follows_a_link_of_another_user(output: str, shared_folder: Path, precious: Path) -> None:
    as_another_user(lambda: (shared_folder / "out").symlink_to(precious))
    with pytest.raises((PermissionError, PreflightError, AssertionError), match="is a link of user 65534"):
        OUTPUTS[output](shared_folder / "out")
    assert untouched(precious)


@pytest.mark.parametrize("target", ["file", "new"])
def test_a_timeline_follows_none(target: str, shared_folder: Path, precious: Path, single_engine: Engine) -> None:
    as_another_user(lambda: (shared_folder / "t.json").symlink_to(precious / target))
    with pytest.raises(HorovodInternalError, match="is a link of user 65534"):
        timeline.start(single_engine, shared_folder / "t.json", 0)
    assert untouched(precious)
    timeline.start(single_engine, shared_folder / "own.json", 0)
    timeline.stop(single_engine)
    assert (shared_folder / "own.json").stat().st_uid == os.getuid()
