from __future__ import annotations

import os
import sys
from itertools import pairwise, permutations

import pytest

from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, host_id, make_local_rendezvous
from spark_estimator.launch.job import spec
from spark_estimator.launch.job.gpus import TaskGpus
from spark_estimator.launch.job.pickling import dump_function
from spark_estimator.launch.job.spec import JobSpec, TaskFacts, WorkerSpec, assign_ranks


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        ([], []),
        (["a"], [0]),
        (["a", "a", "a"], [0, 1, 2]),
        (["a", "b", "a", "b"], [0, 2, 1, 3]),
        (["b", "a", "a", "b", "c"], [0, 2, 3, 1, 4]),
    ],
)
def test_ranks_of_a_host_are_neighbours_and_partition_0_is_rank_0(hosts: list[str], ranks: list[int]) -> None:
    assert assign_ranks(hosts) == ranks


def test_ranks_are_a_permutation_with_each_host_in_one_piece() -> None:
    for hosts in permutations("aabbc"):
        ranks = assign_ranks(hosts)
        assert sorted(ranks) == list(range(5)) and ranks[0] == 0
        by_rank = [host for _, host in sorted(zip(ranks, hosts, strict=True))]
        assert sum(left != right for left, right in pairwise(by_rank)) == 2


def facts(host: str, share: int, gpus: tuple[str, ...] = ()) -> TaskFacts:
    had = TaskGpus(gpus, ("",) * len(gpus))
    return TaskFacts(host, f"id of {host}", "127.0.0.1", 1000 + share, "", 7, had, bytes([share]) * 32)


def test_every_supervisor_comes_to_the_same_peers_and_key() -> None:
    everyone = [facts("a", 1, ("3",)), facts("b", 2), facts("a", 3, ("5",))]
    assert [TaskFacts.from_json(task.to_json()) for task in everyone] == everyone
    endpoint = Endpoint.open("127.0.0.1")
    job = JobSpec("job", 3, "train()", channel=spec.ChannelAddress("127.0.0.1", 1, b"t" * 32))
    made = [spec.make_rendezvous(everyone, partition, job, endpoint) for partition in range(3)]
    endpoint.close()
    assert [rendezvous.rank for rendezvous in made] == [0, 2, 1]
    assert len({rendezvous.peers for rendezvous in made}) == 1
    assert len({rendezvous.key for rendezvous in made}) == 1
    assert [peer.host for peer in made[0].peers] == ["a", "a", "b"]
    assert spec.pin_worker_gpus(everyone, 2, job).variables["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert spec.pin_worker_gpus(everyone, 1, job).variables == {}


def test_the_key_depends_on_every_share_on_the_token_and_on_the_job() -> None:
    shares = [b"a" * 32, b"b" * 32]
    keys = {
        spec.derive_job_key(shares, b"t", "x"),
        spec.derive_job_key(shares, b"", "x"),
        spec.derive_job_key(shares, b"t", "y"),
        spec.derive_job_key(shares[::-1], b"t", "x"),
    }
    assert len(keys) == 4 and {len(key) for key in keys} == {32}


def test_a_worker_is_told_everything_and_secrets_do_not_show() -> None:
    (rendezvous, endpoint), _ = make_local_rendezvous(2)
    job = JobSpec("job", 2, "train()", driver_host_id=host_id(), driver_sys_path=("/only/the/driver",))
    worker = spec.make_worker_spec(job, rendezvous, {"CUDA_VISIBLE_DEVICES": "1,0"})
    endpoint.close()
    again = WorkerSpec.from_json(worker.to_json())
    assert again == worker
    assert worker.environment["HOROVOD_RANK"] == "0" and worker.environment["HOROVOD_SIZE"] == "2"
    assert worker.environment["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert worker.sys_path == (*sys.path, "/only/the/driver")
    for shown in (repr(worker), str(worker), repr(job), repr(facts("a", 65))):
        assert rendezvous.key.hex() not in shown and str(rendezvous.key) not in shown and "A" * 32 not in shown


def test_the_driver_s_modules_are_not_looked_for_on_other_hosts() -> None:
    (rendezvous, endpoint), _ = make_local_rendezvous(2)
    endpoint.close()
    job = JobSpec("job", 2, "train()", driver_host_id="another", driver_sys_path=("/only/the/driver",))
    assert spec.make_worker_spec(job, rendezvous).sys_path == tuple(sys.path)
    assert "CUDA_VISIBLE_DEVICES" not in spec.make_worker_spec(job, rendezvous).environment


def test_what_the_driver_has_loaded_and_the_function_names_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in ("torch", "spark_estimator.torch", "spark_estimator.keras", "spark_estimator.tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def train() -> None:
        """Not for tensorflow or spark_estimator.torch."""
        import numpy  # noqa: F401

    def train_eagerly() -> None:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        import torch  # noqa: F401

    def train_there() -> None:
        import horovod.tensorflow as hvd
        import horovod.torch

        import spark_estimator.keras

        hvd.init()
        horovod.torch.init()
        spark_estimator.keras.init()

    assert spec.find_modules_to_preload(dump_function(train, (), {})) == ()
    assert spec.find_modules_to_preload(dump_function(train_there, (), {})) == ("tensorflow",)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert spec.find_modules_to_preload(dump_function(train_there, (), {})) == ("torch", "tensorflow"), (
        "torch is the first"
    )
    assert spec.find_modules_to_preload(dump_function(train_eagerly, (), {})) == (), "PyTorch reads it at its import"
    for name in ("spark_estimator.torch", "spark_estimator.keras"):
        monkeypatch.setitem(sys.modules, name, None)
    modules = spec.find_modules_to_preload(dump_function(train_there, (), {}))
    assert modules == ("torch", "tensorflow", "spark_estimator.torch"), "not Keras: its backend is chosen first"


def test_the_driver_s_path_names_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/a"])
    assert spec.list_sys_path() == (os.getcwd(), "/a")


def test_the_rendezvous_of_one_rank_can_be_told_apart() -> None:
    pairs = make_local_rendezvous(3)
    for _, endpoint in pairs:
        endpoint.close()
    ranks = [rendezvous.rank for rendezvous, _ in pairs]
    wants = [spec.make_worker_spec(JobSpec("j", 3, "f()"), rendezvous).wants_result for rendezvous, _ in pairs]
    assert ranks == [0, 1, 2] and wants == [True, False, False]
    assert isinstance(pairs[0][0], Rendezvous)
