"""gloo in ranks that this package starts: no set-up, no port of torch's, and the warning or refusal between hosts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.errors import EncryptionUnavailableError, WorkerFailedError
from spark_estimator.extensions.process_group import other_backends
from spark_estimator.launch.cli.main import run_command

SCRIPT = """
import gc
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((8, 4), float(dist.get_rank()))).sum().backward()
assert model.module.weight.grad[0, 0].item() == 4.0
# It keeps gloo's threads, which can abort a process that ends (pytorch issue 190489), and is in a cycle.
del model
gc.collect()
dist.destroy_process_group()
open(sys.argv[1] + "/" + str(torch.distributed.is_initialized()), "w")
"""


def test_an_unchanged_script_with_ddp_on_gloo(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run_command([sys.executable, str(script), str(tmp_path)], 2, {}) == 0
    assert (tmp_path / "False").exists()


def test_every_backend_in_a_function_without_a_port_of_torchs() -> None:
    def train() -> list[Any]:
        import torch
        import torch.distributed as dist

        seen: list[Any] = [{os.environ[name] for name in ("RANK", "LOCAL_RANK", "HOROVOD_RANK")}]
        for backend in (None, "gloo", "spark_estimator"):
            dist.init_process_group(backend)
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            dist.destroy_process_group()
            seen.append(tensor.tolist())
        seen.append(os.environ["GLOO_SOCKET_IFNAME"])
        return seen

    assert HorovodRunner(np=-2).run(train) == [{"0"}, *[[2.0] * 3] * 3, "lo"]


def test_an_unchanged_accelerate_script() -> None:
    pytest.importorskip("accelerate")

    def train() -> list[Any]:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(torch.nn.Linear(4, 1))
        accelerator.backward(model(torch.full((8, 4), float(accelerator.process_index))).sum())
        return [accelerator.num_processes, model.module.weight.grad[0, 0].item()]

    assert HorovodRunner(np=-2).run(train) == [2, 4.0]


def test_a_process_that_a_rank_starts_is_refused() -> None:
    def train() -> str:
        program = "import torch.distributed as dist; dist.init_process_group('gloo')"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stderr

    text = HorovodRunner(np=-2).run(train)
    assert "ForeignLauncherError: init(): this process is number 0 of 2 processes started by" in text
    assert "a rank of a spark_estimator job" in text


def test_a_master_of_the_users_own_is_torchs_affair() -> None:
    def train() -> None:
        import torch.distributed as dist

        os.environ["MASTER_PORT"] = "not a port"
        dist.init_process_group("gloo")

    with pytest.raises(WorkerFailedError, match="not a port"):
        HorovodRunner(np=-1).run(train)


def between_hosts(encrypted: bool) -> Rendezvous:
    peers = tuple(PeerFacts(rank, host, host, "127.0.0.1", 1000 + rank) for rank, host in enumerate("ab"))
    return Rendezvous("job", b"k" * 32, 0, peers, -1, encrypted=encrypted)


def test_gloo_between_hosts_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous_module, "_current", between_hosts(encrypted=False))
    monkeypatch.setattr(other_backends, "_warned", False)
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        other_backends.check_encryption()
        other_backends.check_encryption()
    # A handler of the log and the root's may both be caplog's.
    assert len({id(record) for record in caplog.records if "neither authenticate" in record.getMessage()}) == 1


def test_gloo_between_hosts_of_an_encrypted_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_module, "_current", between_hosts(encrypted=True))
    with pytest.raises(EncryptionUnavailableError, match="torch's own backends"):
        other_backends.check_encryption()


def test_a_job_on_one_host_has_nothing_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    several = between_hosts(encrypted=True)
    alone = replace(several, peers=tuple(replace(peer, host_id="a") for peer in several.peers))
    monkeypatch.setattr(rendezvous_module, "_current", alone)
    other_backends.check_encryption()


def test_the_interface_is_the_jobs_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_module, "_current", between_hosts(encrypted=False))
    monkeypatch.setattr(other_backends, "_chosen", None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    other_backends.choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    other_backends.choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert other_backends.find_interface("192.0.2.1") is None
