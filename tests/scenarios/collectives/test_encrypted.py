"""Jobs whose connections are encrypted: the same numbers as in clear, and nothing readable between two hosts."""

from __future__ import annotations

import re
import socket
import threading

import pytest

from benchmarks.namespaces import Network, UnavailableError
from spark_estimator.errors import remove_links
from tests.ranks import Ranks, run_ranks

pytestmark = pytest.mark.timeout(150)
CANARY = b"canary in the tensors"


def numbers(rank: int) -> list[float]:
    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.collectives.arrays import ReduceOp
    from tests.scenarios.collectives.programs import sums_and_rows

    results = []
    for _ in range(2):
        context.init(process_sets="dynamic")
        results += sums_and_rows()
        if context.size() > 2:
            pair = context.add_process_set([0, 2])
            if rank != 1:
                total = arrays.allreduce(numpy.ones(1), ReduceOp.SUM, "set", process_set=pair)
                results.append(float(total[0]))
        context.shutdown()
    return results


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared", "tcp"])
def test_the_numbers_are_the_same(size: int, shared: str) -> None:
    environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": shared}
    encrypted = run_ranks(size, numbers, environ=environ, encrypted=True)
    assert encrypted == run_ranks(size, numbers, environ=environ)
    assert encrypted[0][0] == size * (size + 1) / 2


def test_a_host_that_cannot_encrypt_is_named() -> None:
    def join(rank: int) -> str:
        from spark_estimator.collectives import context
        from spark_estimator.collectives.connections import connector
        from spark_estimator.errors import AuthenticationError, EncryptionUnavailableError, PeerLostError

        def missing() -> str:
            raise EncryptionUnavailableError("connections can't be encrypted on host h")

        if rank == 1:
            connector.check_encryption = missing
        try:
            context.init()
        except (AuthenticationError, EncryptionUnavailableError, PeerLostError) as error:
            return f"{type(error).__name__}: {error}"
        return "joined"

    environ = {"SPARK_ESTIMATOR_SHARED_MEMORY": "0", "HOROVOD_START_TIMEOUT": "5"}
    first, second = run_ranks(2, join, environ=environ, encrypted=True)
    assert remove_links(second) == "EncryptionUnavailableError: connections can't be encrypted on host h"
    # Which of the two, and in which words, depends on how far rank 1 has connected.
    assert first.startswith(("AuthenticationError", "PeerLostError")) and re.search(r"rank 1 (\(|on )", first)


def send_canaries(rank: int) -> bytes:
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    text = numpy.frombuffer(b"canary in the tensors" * 5000, numpy.uint8)
    for step in range(3):
        rows = arrays.allgather(text, f"rows {step}")
    context.shutdown()
    return rows.tobytes()[:21]


def capture(network: Network, host: int, sniffed: bytearray, stop: threading.Event) -> threading.Thread:
    """Notes every packet that passes a host's interfaces until `stop`."""
    with network.hosts[host].entered():
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    sniffer.settimeout(0.2)

    def read() -> None:
        with sniffer:
            while not stop.is_set():
                try:
                    sniffed.extend(sniffer.recv(1 << 16))
                except TimeoutError:
                    continue

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "in clear"])
def test_a_capture_between_hosts_shows_no_tensor(encrypted: bool) -> None:
    sniffed, stop = bytearray(), threading.Event()
    try:
        network = Network.open(2)
    except UnavailableError as error:
        pytest.skip(str(error))
    with network:
        thread = capture(network, 0, sniffed, stop)
        job = network.rendezvous(1, encrypted=encrypted)
        with Ranks(send_canaries, job, place=lambda rank: network.hosts[rank].entered()) as ranks:
            outcomes = ranks.wait(100)
        stop.set()
        thread.join()
    assert [outcome.value for outcome in outcomes] == [CANARY] * 2
    assert len(sniffed) > len(CANARY) * 5000, "the capture has the packets"
    assert (CANARY in bytes(sniffed)) is not encrypted
