"""A notice in a file is read only if no other user can have written it."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from spark_estimator.collectives.other_launchers.files import FileBoard, find_host_folder, make_own_folder, read_key
from spark_estimator.errors import ForeignLauncherError
from tests.other_user import as_another_user

PLACES = [("127.0.0.1", 4711)]
KEY = bytes(range(32))


def own(parent: Path) -> Path:
    return parent / f"spark_estimator-{os.getuid()}"


def test_the_others_find_what_rank_0_published_until_it_is_removed(tmp_path: Path) -> None:
    server, other = FileBoard(str(tmp_path), "job", None), FileBoard(str(tmp_path), "job", None)
    assert other.find() is None
    key = server.publish(PLACES)
    notice = other.find()
    assert notice is not None and (notice.places, notice.key) == (tuple(PLACES), key)
    assert key.hex() not in repr(notice)
    other.close()  # not its own
    assert other.find() == notice
    server.close()
    assert other.find() is None and list(own(tmp_path).iterdir()) == []


def test_file_and_folder_are_the_users_own_whatever_the_umask(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        FileBoard(str(tmp_path), "job", None).publish(PLACES)
    finally:
        os.umask(former)
    assert stat.S_IMODE(own(tmp_path).stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in own(tmp_path).iterdir()] == [0o600]


def test_a_key_that_the_ranks_have_is_not_written(tmp_path: Path) -> None:
    assert FileBoard(str(tmp_path), "job", KEY).publish(PLACES) == KEY
    assert KEY.hex() not in (own(tmp_path) / "job.json").read_text()
    notice = FileBoard(str(tmp_path), "job", KEY).find()
    assert notice is not None and notice.key == KEY


def test_what_an_earlier_job_left_is_replaced(tmp_path: Path) -> None:
    former = FileBoard(str(tmp_path), "job", None).publish([("127.0.0.1", 1)])
    server = FileBoard(str(tmp_path), "job", None)
    assert server.publish(PLACES) != former
    notice = FileBoard(str(tmp_path), "job", None).find()
    assert notice is not None and notice.places == tuple(PLACES)


def test_rank_0_leaves_a_file_alone_that_a_later_job_put_there(tmp_path: Path) -> None:
    former, later = FileBoard(str(tmp_path), "job", None), FileBoard(str(tmp_path), "job", None)
    former.publish(PLACES)
    later.publish(PLACES)
    former.close()
    assert later.find() is not None


def test_files_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """At any age: the clock may be wrong."""
    living = FileBoard(str(tmp_path), "living", None)
    living.publish(PLACES)
    (own(tmp_path) / "ranks.lock").touch()
    for name in ("living.json", "ranks.lock"):
        os.utime(own(tmp_path) / name, (1, 1))
    child = os.fork()
    if child == 0:
        FileBoard(str(tmp_path), "dead", None).publish(PLACES)
        os._exit(0)
    os.waitpid(child, 0)
    assert (own(tmp_path) / "dead.json").exists()
    job = FileBoard(str(tmp_path), "job", None)
    job.publish(PLACES)
    assert {path.name for path in own(tmp_path).iterdir()} == {"job.json", "living.json", "ranks.lock"}
    for board in (living, job):
        board.close()
    assert [path.name for path in own(tmp_path).iterdir()] == ["ranks.lock"]


def plant(path: Path, kind: str) -> None:
    content = json.dumps({"places": PLACES, "key": KEY.hex()})
    elsewhere = path.with_name("elsewhere")
    if kind == "link":
        elsewhere.write_text(content)
        elsewhere.chmod(0o600)
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        path.write_text(content if kind != "cut" else content[:-9])
        path.chmod(0o644 if kind == "open" else 0o600)
        if kind == "foreign":
            if os.getuid() != 0:
                pytest.skip("only root can give a file to another user")
            os.chown(path, 65534, 65534)


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "open", "foreign", "cut"])
def test_a_planted_file_is_not_read_and_rank_0_replaces_it(tmp_path: Path, kind: str) -> None:
    board = FileBoard(str(tmp_path), "job", None)
    plant(own(tmp_path) / "job.json", kind)
    assert board.find() is None
    server = FileBoard(str(tmp_path), "job", None)
    key = server.publish(PLACES)
    notice = board.find()
    assert notice is not None and notice.key == key != KEY


def test_the_same_file_is_read_when_it_is_the_users_own(tmp_path: Path) -> None:
    board = FileBoard(str(tmp_path), "job", None)
    plant(own(tmp_path) / "job.json", "own")
    notice = board.find()
    assert notice is not None and notice.key == KEY


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_is_not_private_is_refused(tmp_path: Path, kind: str) -> None:
    folder, expected = own(tmp_path), "is not a folder"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir(0o700)
        folder.chmod(0o755)
        expected = "is open to other users (mode 755)"
    with pytest.raises(ForeignLauncherError) as caught:
        FileBoard(str(tmp_path), "job", None)
    assert expected in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_another_user_cannot_take_the_name_of_the_folder(shared_folder: Path, kind: str) -> None:
    """All processes agree on another name, also when that user gives some names free again."""
    first, second = own(shared_folder), shared_folder / f"{own(shared_folder).name}-1"

    def block() -> None:
        for path in (first, second):
            if kind == "folder":
                path.mkdir(0o777)
            elif kind == "file":
                path.touch(0o666)
            else:
                path.symlink_to("/etc")

    as_another_user(block)
    server, other = FileBoard(str(shared_folder), "job", None), FileBoard(str(shared_folder), "job", None)
    server.publish(PLACES)
    assert other.find() is not None and make_own_folder(str(shared_folder)) == f"{first}-2"
    as_another_user(lambda: first.rmdir() if kind == "folder" else first.unlink())
    late = FileBoard(str(shared_folder), "job", None)
    assert late.find() == other.find() and not first.exists()

    def remove() -> None:
        with pytest.raises(PermissionError):
            os.rename(f"{first}-2", f"{first}-3")

    as_another_user(remove)


def test_a_parent_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignLauncherError, match="must be an existing folder"):
        FileBoard(str(tmp_path / "absent"), "job", None)


def test_the_host_folder_is_the_users_runtime_folder_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert find_host_folder() == str(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert find_host_folder() != str(tmp_path / "absent")


def test_a_users_key_is_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "job_key"
    with pytest.raises(ForeignLauncherError, match=r"job_key, which holds the key .* can't be read: No such file"):
        read_key(str(path))
    path.touch(0o600)
    path.write_text(f"{KEY.hex()}\n")
    assert read_key(str(path)) == KEY.hex()
    path.chmod(0o640)
    with pytest.raises(ForeignLauncherError, match=r"other users can read or write .* mode 640\. Make another key"):
        read_key(str(path))
