"""``jax.distributed.initialize()`` without arguments, by every launcher, on one host and two; and lost ranks."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("jax")

import spark_estimator
from benchmarks.namespaces import Network, UnavailableError
from spark_estimator import HorovodRunner
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.errors import EncryptionUnavailableError, WorkerFailedError
from tests.extensions.jax import programs
from tests.launch import clusters
from tests.ranks import Ranks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# JAX itself notices a lost process after 100 seconds.
pytestmark = pytest.mark.timeout(95)


def horovodrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", *words]
    return subprocess.run(command, env=clusters.environment(), capture_output=True, text=True, timeout=80)


def check(results: list[dict[str, Any]]) -> None:
    assert [each["process"] for each in results] == [(rank, len(results)) for rank in range(len(results))]
    assert [each["devices"] for each in results] == [(1, len(results))] * len(results)
    for each in results:
        assert each["weights"] == pytest.approx(programs.train_alone(), rel=1e-5)


def test_in_a_function_two_jobs_at_once_and_the_gpus_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    jobs: list[list[dict[str, Any]]] = []

    def start() -> None:
        jobs.append(spark_estimator.run(programs.train, num_proc=2))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs) == 2
    for results in jobs:
        check(results)
        assert [each["gpus"] for each in results] == ["0,2", "1,3"], "as CUDA counts those that the rank sees"
        assert [each["bound"] for each in results] == [results[0]["coordinator"], None]
        assert results[0]["coordinator"].startswith("127.0.0.1:")
    assert jobs[0][0]["coordinator"] != jobs[1][0]["coordinator"]


def test_in_a_script_that_imports_only_jax(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import jax\njax.distributed.initialize()\n"
        "from jax.experimental.multihost_utils import process_allgather\n"
        "print('gathered', process_allgather(jax.numpy.ones(2) * jax.process_index()).tolist())\n"
    )
    done = horovodrun(sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gathered [[0.0, 0.0], [1.0, 1.0]]") == 2


@pytest.mark.timeout(240)
def test_in_spark_and_in_an_elastic_job(spark: SparkSession) -> None:
    import spark_estimator.spark as on_spark

    assert HorovodRunner(np=2).run(programs.train)["process"] == (0, 2)
    check(on_spark.run(programs.train, num_proc=2))
    check(on_spark.run_elastic(programs.train, num_proc=2))


@pytest.mark.parametrize("dies", [0, 1])
def test_a_lost_rank_ends_the_others_with_its_name(dies: int) -> None:
    with pytest.raises(WorkerFailedError, match=rf"^rank {dies} \(host .*\) was killed by signal 9") as caught:
        spark_estimator.run(programs.train, (1_000_000, dies), num_proc=2)
    assert caught.value.rank == dies


def test_a_lost_rank_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from tests.extensions.jax.programs import train\ntrain(1_000_000, 0)\n")
    done = horovodrun(sys.executable, str(script))
    assert re.search(r"^horovodrun: rank 0 \(host .*\) was killed by signal 9", done.stderr, re.M), done.stderr


def on_two_hosts(function: Callable[..., Any], **options: Any) -> list[Any]:
    try:
        with Network.open(2) as network:
            hosts, rendezvous = network.hosts, network.rendezvous(2, **options)
            with Ranks(function, rendezvous, place=lambda rank: hosts[rank // 2].entered()) as ranks:
                outcomes = ranks.wait(80)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert not [outcome for outcome in outcomes if not outcome.returned]
    return [outcome.value for outcome in outcomes]


def test_on_two_hosts_of_two_ranks_each() -> None:
    def run(rank: int) -> Any:
        import spark_estimator.jax as hvd
        from tests.extensions.jax.programs import train

        hvd.init()  # these ranks are not of a launcher of this package: JAX finds the job from here on

        return train()

    results = on_two_hosts(run)
    check(results)
    assert not results[0]["coordinator"].startswith("127.")


def test_an_encrypted_job_of_two_hosts_refuses() -> None:
    def run(rank: int) -> str:
        import spark_estimator.jax as hvd
        from tests.extensions.jax.programs import train

        hvd.init()  # these ranks are not of a launcher of this package: JAX finds the job from here on

        with suppress(EncryptionUnavailableError):
            train()
            return "trained"
        return "refused"

    assert on_two_hosts(run, encrypted=True) == ["refused"] * 4


def test_between_hosts_rank_0_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from spark_estimator.extensions.jax import cluster

    peers = tuple(PeerFacts(rank, host, host, "127.0.0.1", 1000 + rank) for rank, host in enumerate("ab"))
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        cluster._check_encryption(Rendezvous("job", b"k" * 32, 1, peers, -1))
        assert not caplog.records
        cluster._check_encryption(Rendezvous("job", b"k" * 32, 0, peers, -1))
    assert "neither authenticate nor encrypt" in caplog.records[0].message


@pytest.mark.parametrize(
    ("gpus", "rank", "ranks", "numbers"),
    [(0, 1, 2, None), (1, 1, 2, 0), (2, 1, 2, 1), (4, 1, 2, "1,3"), (2, 2, 4, 0), (3, 0, 2, "0,2")],
)
def test_gpus_of_a_rank(gpus: int, rank: int, ranks: int, numbers: int | str | None) -> None:
    from spark_estimator.extensions.jax.cluster import choose_gpus

    assert choose_gpus(gpus, rank, ranks) == numbers


def test_a_process_outside_of_a_job_is_none_of_its_cluster() -> None:
    from spark_estimator.extensions.jax.cluster import JobCluster

    assert not JobCluster.is_env_present()
