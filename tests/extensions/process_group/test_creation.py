"""How a process group begins: rank, size and address from the job or from the caller."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.distributed as dist

import spark_estimator.torch as hvd
from spark_estimator.env import MASTER_VARIABLE
from spark_estimator.extensions.process_group import creation
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_an_address_rank_and_size_that_others_give(two_ranks: RankPool) -> None:
    def check(rank: int, path: str) -> None:
        import spark_estimator.torch.process_group  # noqa: F401

        for method in (f"file://{path}/a", "env"):
            if method == "env":
                port = hvd.broadcast_object(free_port())
                environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ.update(environment)
                dist.init_process_group("spark_estimator", rank=rank, world_size=2)
                for name in environment:
                    del os.environ[name]
            else:
                dist.init_process_group("spark_estimator", init_method=method, rank=rank, world_size=2)
            tensor = torch.full((3,), rank + 1.0)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [3, 3, 3]
            dist.barrier()
            dist.destroy_process_group()

    import tempfile

    with tempfile.TemporaryDirectory() as path:
        two_ranks.run(check, path)


def test_a_rank_or_size_that_contradicts_the_job_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import spark_estimator.torch.process_group  # noqa: F401

        with pytest.raises(ValueError, match=rf"given rank {1 - rank} of 2, but this process is rank {rank} of the 2"):
            dist.init_process_group("spark_estimator", rank=1 - rank, world_size=2)
        with pytest.raises(ValueError, match="rank 0 of 1, but"):
            dist.init_process_group("spark_estimator", rank=0, world_size=1, store=dist.HashStore())
        in_group(lambda _: dist.barrier())(rank)

    two_ranks.run(check)


def test_it_needs_no_name_that_the_oldest_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.distributed.distributed_c10d.GroupName", raising=False)  # 2.6 and 2.7 have none
    spec = importlib.util.spec_from_file_location("creation_with_torch_2_6", creation.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.create is not creation.create


def test_a_master_that_others_set_is_theirs() -> None:
    ours = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5", MASTER_VARIABLE: "10.0.0.1:5"}
    assert creation._has_launchers_master(ours)
    assert creation._has_launchers_master({})
    assert not creation._has_launchers_master({**ours, "MASTER_PORT": "29500"})
    assert not creation._has_launchers_master({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"})
