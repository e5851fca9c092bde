"""Jobs in sessions whose Spark encrypts: neither a capture of the network nor a disk shows anything of them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

CANARY = "canary-of-the-ranks"
AUTHENTICATE = ("spark.authenticate=true", "spark.authenticate.secret=known to both")


@contextmanager
def captured() -> Iterator[bytearray]:
    """Every packet that passes the loopback interface during the block."""
    try:
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    except PermissionError:
        pytest.skip("capturing packets needs root")
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
    sniffer.settimeout(0.2)
    packets, stop = bytearray(), threading.Event()

    def read() -> None:
        with sniffer:
            while not stop.is_set():
                try:
                    packet = sniffer.recv(1 << 17)
                except TimeoutError:
                    continue
                # What is large is kept in part: it repeats itself.
                packets.extend(packet[:4096])

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield packets
    finally:
        stop.set()
        thread.join()


def tls_settings(folder: Path) -> tuple[str, ...]:
    """Settings with which Spark encrypts its RPC by TLS, with a key made here."""
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("TLS in Spark needs a key store, and the JDK's keytool is not installed here")
    store = folder / "keys.p12"
    options = f"-alias spark -keyalg RSA -storetype PKCS12 -keystore {store} -storepass password -keypass password"
    command = [keytool, "-genkeypair", *options.split(), "-dname", "CN=localhost", "-validity", "10"]
    subprocess.run(command, check=True, capture_output=True)
    values = {
        "enabled": "true",
        "keyStore": store,
        "keyStorePassword": "password",
        "keyPassword": "password",
        "trustStore": store,
        "trustStorePassword": "password",
    }
    return tuple(f"spark.ssl.rpc.{name}={value}" for name, value in values.items())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("settings", "encrypted"),
    [
        ((*AUTHENTICATE, "spark.network.crypto.enabled=true"), True),
        ((*AUTHENTICATE, "spark.authenticate.enableSaslEncryption=true"), True),
        (("tls",), True),
        (("spark.spark_estimator.encryption=require",), True),
        ((*AUTHENTICATE, "spark.network.crypto.enabled=true", "spark.spark_estimator.encryption=off"), False),
    ],
    ids=["network.crypto", "sasl", "ssl.rpc", "require", "off"],
)
def test_jobs_run_encrypted_and_a_capture_shows_nothing(
    settings: tuple[str, ...], encrypted: bool, tmp_path: Path
) -> None:
    if settings == ("tls",):
        settings = tls_settings(tmp_path)
    env = {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"}  # ranks of one host use TCP, as if there were two
    arguments = ("local-cluster[2,1,1024]", CANARY, *settings)
    with captured() as packets, clusters.driver("encrypted.py", *arguments, folder=tmp_path, env=env) as driver:
        results = driver.wait(350)
        assert f"{CANARY}: a line of rank 1" in driver.output()
    assert results["encrypted"] is encrypted
    losses = results["losses"]
    assert isinstance(losses, list) and losses[-1] < losses[0]
    assert results["predictions"] == 200
    assert results["elastic"] == [len(CANARY) * 2000] * 2
    assert (CANARY * 3).encode() not in packets if encrypted else (CANARY * 3).encode() in packets
    # The driver's own command line and the pickled function have the word as well; a rank's line has more.
    assert (f"{CANARY}: a line of rank".encode() in packets) is not encrypted


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("encrypts", [True, False])
def test_rows_touch_no_disk_where_spark_encrypts_its_files(encrypts: bool, tmp_path: Path) -> None:
    settings = (f"spark.io.encryption.enabled={str(encrypts).lower()}", *AUTHENTICATE)
    arguments = ("local-cluster[2,1,1024]", str(tmp_path), *settings)
    with clusters.driver("encrypted_files.py", *arguments, folder=tmp_path) as driver:
        results = driver.wait(350)
    assert list(results) == ["run, tasks", "fit, tasks", "run, files", "fit, files"]
    for kind, ranks in results.items():
        assert isinstance(ranks, list) and [rows for rows, _ in ranks] == [100, 100]
        for _, paths in ranks:
            in_memory = [path for path in paths if path.startswith("/memfd:spark_estimator rows")]
            on_disk = [path for path in paths if not path.startswith(("/memfd:", "/dev/zero", "/SYSV"))]
            assert (bool(in_memory), bool(on_disk)) == (encrypts, not encrypts), f"{kind}: {paths}"
