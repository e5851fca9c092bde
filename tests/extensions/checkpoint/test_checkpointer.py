"""Checkpoints of one process: what is written when, and what becomes of failures. The writers are real."""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from spark_estimator.checkpoint import Checkpointer, complete_steps, load
from spark_estimator.errors import DataError
from spark_estimator.log import ROOT
from tests.extensions.checkpoint.slow_store import GatedStore
from tests.ranks import start_ranks


class Training:
    """A network, its optimizer and a schedule."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.Dropout(0.5), nn.Linear(300, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def numbers(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger(ROOT)
    propagates, log.propagate = log.propagate, False
    log.addHandler(caplog.handler)
    with caplog.at_level(logging.DEBUG, ROOT):
        yield caplog
    log.removeHandler(caplog.handler)
    log.propagate = propagates


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_training_that_goes_on_ends_with_the_same_bits(tmp_path: Path, overlap: bool) -> None:
    training = Training()
    with Checkpointer(str(tmp_path / "run"), **training.state, every_steps=3, overlap=overlap, keep=9) as checkpointer:
        assert checkpointer.restore() == 0
        made = []
        for _ in range(7):
            training.step()
            made.append(checkpointer.step())
        assert checkpointer.close() == 6
    assert made == [False, False, True, False, False, True, False]
    assert complete_steps(str(tmp_path / "run"))[-1] == 6
    again = Training(seed=5)
    with Checkpointer(str(tmp_path / "run"), **again.state) as checkpointer:
        assert checkpointer.restore() == 6
        again.step()
        assert checkpointer.steps == 6
    assert equal(again.numbers(), training.numbers())
    assert again.scheduler.state_dict() == training.scheduler.state_dict()


def test_torch_reads_it_without_us(tmp_path: Path) -> None:
    training = Training()
    training.step()
    with Checkpointer(str(tmp_path), **training.state) as checkpointer:
        checkpointer.step()
        checkpointer.save()
    other = Training(seed=5)
    other.step()
    state = {"model": other.model.state_dict(), "optimizer": other.optimizer.state_dict(), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=next(tmp_path.glob("step-*")))
    assert state["step"] == 1
    assert equal(state["model"], training.numbers())
    assert torch.equal(
        state["optimizer"]["state"][0]["exp_avg"], training.optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_load_gives_what_is_asked_for(tmp_path: Path) -> None:
    training = Training()
    with Checkpointer(str(tmp_path), **training.state) as checkpointer:
        for _ in range(2):
            training.step()
            checkpointer.step()
            checkpointer.save()
            checkpointer.wait()
    assert load(str(tmp_path), 1, names=("step",)) == {"step": 1}
    state = load(str(tmp_path))
    assert state.keys() == {"model", "optimizer", "scheduler", "step"}
    assert equal(state["model"], training.numbers())
    training.model.load_state_dict(state["model"])
    with pytest.raises(DataError, match=r"no complete checkpoint of step 7; of other steps: 1, 2"):
        load(str(tmp_path), 7)
    with pytest.raises(DataError, match="no complete checkpoint"):
        load(str(tmp_path / "nothing"))


def test_a_copy_waits_for_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a thread makes: the kernel takes its time for new memory."""
    cut = os.ftruncate

    def slow(descriptor: int, size: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)
        cut(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", slow)
    with Checkpointer(str(tmp_path), model=nn.Linear(300, 300)) as checkpointer:
        checkpointer.save()
        assert checkpointer.wait() == 0


def test_files_are_the_users_own(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path / "run"), model=nn.Linear(1, 1)) as checkpointer:
        checkpointer.save()
    for path in (tmp_path / "run").rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_slow_store_delays_checkpoints_and_no_steps(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    (tmp_path / "closed").touch()
    training = Training()
    checkpointer = Checkpointer(GatedStore(str(tmp_path / "run")), **training.state, every_steps=1, keep=9)
    kept = {}
    for step in range(1, 6):
        training.step()
        checkpointer.step()  # returns although nothing is written
        kept[step] = training.numbers()
    (tmp_path / "closed").unlink()
    assert checkpointer.close() == 5
    # The first was being written, and of the later ones only the last is written.
    assert complete_steps(str(tmp_path / "run")) == [1, 5]
    for step in (1, 5):
        assert equal(load(str(tmp_path / "run"), step)["model"], kept[step])
    replaced = [record for record in lines.records if "is not written" in record.message]
    # Copies that only wait may take a hundredth of the time: which are left out depends on how long they take.
    assert [record.levelname for record in replaced] == ["WARNING", *["DEBUG"] * (len(replaced) - 1)]
    assert 3 <= len(replaced) <= 4


def test_a_store_that_fails_is_tried_again(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken").touch()
    training = Training()
    checkpointer = Checkpointer(GatedStore(str(tmp_path / "run")), **training.state)
    checkpointer.step()
    checkpointer.save()
    while not any("is tried again" in record.message for record in lines.records):
        training.step()
        checkpointer.step()
        checkpointer._copies.read(timedelta(seconds=1))
    (tmp_path / "broken").unlink()
    assert checkpointer.close() == 1
    assert "No space left" in lines.text


def test_an_error_is_told_with_rank_host_and_path(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with Checkpointer(str(tmp_path / "run"), model=nn.Linear(1, 1)) as checkpointer:
        checkpointer._open().give_up(0)  # no more tries than one
        checkpointer.save()
        assert checkpointer.wait() is None
    line = next(record.message for record in lines.records if record.levelname == "ERROR")
    assert line.startswith(f"the checkpoint of step 0 was not written: {tmp_path}/run/step-")
    assert f"on rank 0 (host {os.uname().nodename})" in line


def test_an_error_ends_training_if_that_is_asked_for(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path / "run"), model=nn.Linear(1, 1), stop_on_error=True) as checkpointer:
        checkpointer.save()
        os.kill(checkpointer.writer_pid, signal.SIGKILL)
        with pytest.raises(DataError, match=r"step 0 was not written.*signal 9"):
            while True:
                checkpointer._copies.read(timedelta(seconds=5))
                checkpointer.step()
                checkpointer.save()


def test_a_writer_that_was_killed_is_started_again(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    (tmp_path / "closed").touch()
    training = Training()
    checkpointer = Checkpointer(GatedStore(str(tmp_path / "run")), **training.state)
    checkpointer.step()
    checkpointer.save()
    first = checkpointer.writer_pid
    os.kill(first, signal.SIGKILL)
    (tmp_path / "closed").unlink()
    while checkpointer.writer_pid == first:
        checkpointer._copies.read(timedelta(seconds=5))
    training.step()
    checkpointer.step()
    checkpointer.save()
    assert checkpointer.close() == 2
    assert complete_steps(str(tmp_path / "run")) == [2]
    assert "ended with signal 9; another one was started" in lines.text


def stuck(rank: int, folder: Path) -> None:
    training = Training()
    checkpointer = Checkpointer(GatedStore(str(folder / "run")), **training.state, every_steps=1)
    for _ in range(3):
        training.step()
        checkpointer.step()
    print("copied", flush=True)
    time.sleep(100)


@pytest.mark.timeout(60)
def test_the_writer_completes_what_a_dead_rank_has_copied(tmp_path: Path) -> None:
    (tmp_path / "closed").touch()
    with start_ranks(1, stuck, args=(tmp_path,)) as ranks:
        ranks.await_output(0, "copied")
        ranks.kill(0)
        ranks.await_end(0)
    assert complete_steps(str(tmp_path / "run")) == []
    (tmp_path / "closed").unlink()
    # What was being written, and then what waited: the second state, or the third if it was copied.
    while complete_steps(str(tmp_path / "run"))[-1:] not in ([2], [3]):
        time.sleep(0.02)
    training = Training()
    for _ in range(complete_steps(str(tmp_path / "run"))[-1]):
        training.step()
    assert equal(load(str(tmp_path / "run"))["model"], training.numbers())


def test_a_change_while_parameters_are_copied_costs_the_checkpoint(
    tmp_path: Path, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_estimator.extensions.checkpoint import copying

    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters())
    copy = copying._copy

    def changing(target: torch.Tensor, source: torch.Tensor) -> None:
        copy(target, source)
        if source.data_ptr() == model.bias.data_ptr():
            model.weight.clamp_(0)  # as a training does beside the copy

    monkeypatch.setattr(copying, "_copy", changing)
    with Checkpointer(str(tmp_path), model=model, optimizer=optimizer, overlap=True) as checkpointer:
        checkpointer.save()
        assert checkpointer.wait() is None
    assert "parameters were changed while they were copied" in lines.text


def test_an_optimizers_step_waits_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_estimator.extensions.checkpoint import copying

    training = Training()
    training.step()
    before, order = training.numbers(), []
    copy = copying._copy
    changed = training.optimizer.register_step_post_hook(lambda *_: order.append("step"))

    def slow(target: torch.Tensor, source: torch.Tensor) -> None:
        order.append("copy")
        copy(target, source)

    monkeypatch.setattr(copying, "_copy", slow)
    with Checkpointer(str(tmp_path), **training.state, overlap=True) as checkpointer:
        checkpointer.save()
        training.step()
    changed.remove()
    assert order[-1] == "step"
    assert equal(load(str(tmp_path))["model"], before)


class Foreign:
    def state_dict(self) -> dict[str, Any]:
        return {"module": nn.Linear(1, 1)}

    def load_state_dict(self, state: Any) -> None: ...


def test_what_could_not_be_read_back_is_refused_at_once(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path), thing=Foreign()) as checkpointer, pytest.raises(DataError, match=r"thing\.module"):
        checkpointer.save()


def test_arguments_are_checked_before_a_writer_starts(tmp_path: Path) -> None:
    for name in ("every_steps", "every_seconds", "keep"):
        with pytest.raises(ValueError, match=f"{name} must be more than 0; got 0"):
            Checkpointer(str(tmp_path), model=nn.Linear(1, 1), **{name: 0})
    with pytest.raises(TypeError, match="'epoch'"):
        Checkpointer(str(tmp_path), epoch=3)
    with pytest.raises(TypeError, match="FilesystemStore"):
        Checkpointer(3, model=nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no writer can write"):
        Checkpointer("memory://x", model=nn.Linear(1, 1))


def saved(folder: Path, **state: Any) -> Path:
    with Checkpointer(str(folder), **state) as checkpointer:
        checkpointer.save()
    return next(folder.glob("step-*"))


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, model=nn.Linear(2, 3))
    other = nn.Linear(2, 4)
    before = other.weight.clone()
    with Checkpointer(str(tmp_path), model=other) as checkpointer:
        with pytest.raises(DataError, match=r"model\.bias has the shape \[3\] there and \[4\] in the model"):
            checkpointer.restore()
        with pytest.raises(DataError, match="no complete checkpoint of step 9"):
            checkpointer.restore(9)
    assert torch.equal(other.weight, before)
    with Checkpointer(str(tmp_path), network=nn.Linear(2, 3)) as checkpointer:
        with pytest.raises(DataError, match="has no network; it has model"):
            checkpointer.restore()


@pytest.mark.parametrize("at", [0.3, 0.999])
def test_damage_is_found(tmp_path: Path, at: float) -> None:
    part = saved(tmp_path, model=nn.Linear(200, 3)) / "__0_0.distcp"
    content = bytearray(part.read_bytes())
    content[750 if at < 0.5 else int(len(content) * at)] ^= 4
    part.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged|cannot be read"):
        Checkpointer(str(tmp_path), model=nn.Linear(200, 3)).restore()


def test_a_part_that_was_cut_is_found(tmp_path: Path) -> None:
    part = saved(tmp_path, model=nn.Linear(200, 3)) / "__0_0.distcp"
    os.truncate(part, 1000)
    with pytest.raises(DataError, match=r"__0_0\.distcp.* is damaged: of \d+ bytes there are"):
        load(str(tmp_path))


def test_a_folder_without_index_is_no_checkpoint(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    with Checkpointer(str(tmp_path), model=model, keep=5) as checkpointer:
        for _ in range(2):
            checkpointer.step()
            checkpointer.save()
            checkpointer.wait()
    newest = max(tmp_path.glob("step-*"))
    (newest / ".metadata").unlink()
    assert complete_steps(str(tmp_path)) == [1]
    with Checkpointer(str(tmp_path), model=model) as checkpointer:
        assert checkpointer.restore() == 1


def test_it_writes_to_any_store_of_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    model = nn.Linear(2, 3)
    url = f"local://{tmp_path}/run"  # fsspec's own file system for this machine: one that writes in place
    with Checkpointer(url, model=model, keep=1) as checkpointer:
        for _ in range(2):
            checkpointer.step()
            checkpointer.save()
            checkpointer.wait()
    assert complete_steps(url) == [2]
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert torch.equal(load(url)["model"]["weight"], model.weight)
    other = nn.Linear(2, 3)
    with Checkpointer(url, model=other) as checkpointer:
        assert checkpointer.restore() == 2
    assert torch.equal(other.weight, model.weight)


def test_a_state_that_grows_gets_new_room(tmp_path: Path) -> None:
    class Growing:
        value = torch.arange(3)

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    growing = Growing()
    with Checkpointer(str(tmp_path), growing=growing) as checkpointer:
        for size in (3, 30000, 5):
            growing.value = torch.arange(size)
            checkpointer.step()
            checkpointer.save()
            checkpointer.wait()
            assert torch.equal(load(str(tmp_path))["growing"]["value"], growing.value)
