"""A notice in a file is read only if no other user can have written it."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from spark_estimator.collectives.other_launchers.files import FileBoard, host_folder, key_in
from spark_estimator.errors import ForeignLauncherError

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


def test_files_that_nobody_removed_for_a_day_are_removed(tmp_path: Path) -> None:
    FileBoard(str(tmp_path), "old", None).publish(PLACES)
    os.utime(own(tmp_path) / "old.json", (1, 1))
    FileBoard(str(tmp_path), "job", None).publish(PLACES)
    assert [path.name for path in own(tmp_path).iterdir()] == ["job.json"]


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


@pytest.mark.parametrize("kind", ["open", "link", "file", "foreign"])
def test_a_folder_that_is_not_private_is_refused(tmp_path: Path, kind: str) -> None:
    folder, expected = own(tmp_path), "is not a folder"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir(0o700)
        if kind == "open":
            folder.chmod(0o755)
            expected = "is open to other users (mode 755)"
        elif os.getuid() != 0:
            pytest.skip("only root can give a folder to another user")
        else:
            os.chown(folder, 65534, 65534)
            expected = "belongs to user 65534"
    with pytest.raises(ForeignLauncherError) as caught:
        FileBoard(str(tmp_path), "job", None)
    assert expected in str(caught.value) and str(folder) in str(caught.value)


def test_a_parent_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignLauncherError, match="must be an existing folder"):
        FileBoard(str(tmp_path / "absent"), "job", None)


def test_the_host_folder_is_the_users_runtime_folder_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert host_folder() == str(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert host_folder() != str(tmp_path / "absent")


def test_a_users_key_is_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "job_key"
    with pytest.raises(ForeignLauncherError, match=r"job_key, which holds the key .* can't be read: No such file"):
        key_in(str(path))
    path.touch(0o600)
    path.write_text(f"{KEY.hex()}\n")
    assert key_in(str(path)) == KEY.hex()
    path.chmod(0o640)
    with pytest.raises(ForeignLauncherError, match=r"other users can read or write .* mode 640\. Make another key"):
        key_in(str(path))
