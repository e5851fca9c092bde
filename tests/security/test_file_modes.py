"""The permissions of all that the package writes, with any umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_estimator.collectives.engine import Engine
from spark_estimator.launch.log_relay.log_files import LogWriter
from spark_estimator.observe import timeline
from spark_estimator.security import file_modes
from spark_estimator.store import FilesystemStore
from spark_estimator.store.replacement import replace_folder
from tests.collectives.conftest import single_engine

__all__ = ["single_engine"]


@pytest.fixture(params=[0, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """The permissions of all below a folder."""
    return {str(path.relative_to(root)): oct(stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}


def write_all(root: Path) -> None:
    """A store's files and a model's folder."""
    store = FilesystemStore(str(root / "store"))
    store.write(store.get_checkpoint_path("run") or "", b"x")
    with store.open(str(root / "store" / "data" / "part"), "wb") as file:
        file.write(b"x")
    for _ in range(2):
        with replace_folder(root / "model", overwrite=True) as folder:
            (folder / "metadata").mkdir()
            (folder / "metadata" / "part-00000").write_text("x")


def test_files_and_folders_are_the_users_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    write_all(tmp_path)
    folders = ("store", "store/runs", "store/runs/run", "store/data", "model", "model/metadata")
    files = ("store/runs/run/checkpoint", "store/data/part", "model/metadata/part-00000")
    assert modes(tmp_path) == {**dict.fromkeys(folders, "0o700"), **dict.fromkeys(files, "0o600")}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777, "a folder that exists is not changed"


@pytest.mark.parametrize(
    ("team", "folder_mode", "file_mode"), [(0o2770, "0o2770", "0o660"), (0o2755, "0o2750", "0o640")]
)
def test_in_a_teams_folder_they_are_also_the_groups(
    tmp_path: Path, team: int, folder_mode: str, file_mode: str
) -> None:
    tmp_path.chmod(team)
    write_all(tmp_path)
    assert {mode for name, mode in modes(tmp_path).items() if (tmp_path / name).is_dir()} == {folder_mode}
    assert {mode for name, mode in modes(tmp_path).items() if (tmp_path / name).is_file()} == {file_mode}


def test_what_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "store" / "runs" / "run" / "checkpoint").chmod(0o644)
    (tmp_path / "store" / "data" / "part").chmod(0o640)
    (tmp_path / "model").chmod(0o755)
    write_all(tmp_path)
    result = modes(tmp_path)
    assert result["store/runs/run/checkpoint"] == "0o644"
    assert result["store/data/part"] == "0o640"
    assert (result["model"], result["model/metadata"], result["model/metadata/part-00000"]) == (
        "0o755", "0o755", "0o644",
    )  # fmt: skip


def test_timelines_and_logs(tmp_path: Path, single_engine: Engine) -> None:
    timeline.start(single_engine, tmp_path / "timeline", 0)
    timeline.stop(single_engine)
    written = LogWriter(tmp_path / "logs", 0)
    written.add_line("stdout", "text")
    written.close()
    assert set(modes(tmp_path).values()) == {"0o600", "0o700"} and len(modes(tmp_path)) == 3


def test_nothing_but_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        file_modes.make_folder(str(tmp_path / "file"))
    file_modes.make_folder(str(tmp_path))
