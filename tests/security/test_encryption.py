"""Key agreement: both ends get the same secrets, no other does, and a missing library is an error that names it."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator._native import Cipher
from spark_estimator.errors import AuthenticationError, EncryptionUnavailableError
from spark_estimator.security import encryption
from spark_estimator.security.encryption import KeyPair, derive, find_libcrypto


def test_two_pairs_share_a_secret() -> None:
    here, there, elsewhere = KeyPair(), KeyPair(), KeyPair()
    secret = here.derive_shared_secret(there.share)
    assert secret == there.derive_shared_secret(here.share) != elsewhere.derive_shared_secret(here.share)
    assert len({pair.share for pair in (here, there, elsewhere)}) == 3


@pytest.mark.parametrize("share", [bytes(32), b"\x01" + bytes(31), b"short", bytes(33)], ids=len)
def test_an_unusable_share_is_refused(share: bytes) -> None:
    with pytest.raises(AuthenticationError, match="public key that can't be used"):
        KeyPair().derive_shared_secret(share)


def test_secrets_depend_on_all_that_was_agreed_on() -> None:
    base = (b"k" * 32, b"s" * 32, b"transcript")
    session = derive(*base, Cipher.AES_128_GCM, connector=True)
    other_end = derive(*base, Cipher.AES_128_GCM, connector=False)
    assert (session.send, session.receive) == (other_end.receive, other_end.send)
    extracted = hmac.digest(hashlib.sha256(base[2]).digest(), base[0] + base[1], "sha256")
    assert session.send == hmac.digest(extracted, b"spark_estimator connector to acceptor\x01", "sha256")
    for changed in ((b"x" * 32, *base[1:]), (base[0], b"x" * 32, base[2]), (*base[:2], b"other")):
        assert derive(*changed, Cipher.AES_128_GCM, connector=True).send != session.send


def test_the_library_is_that_of_pythons_ssl_module() -> None:
    import ssl

    assert os.path.isabs(find_libcrypto())
    assert ctypes.CDLL(find_libcrypto()).OpenSSL_version_num() == ssl.OPENSSL_VERSION_NUMBER
    with open("/proc/self/maps") as maps:
        assert find_libcrypto() in maps.read()


# OpenSSL's function in a library of another name, which is loaded before OpenSSL or after it.
# Its size has the kernel map it at a lower address.
DECOY = "unsigned long OpenSSL_version_num(void) { return 1; } char ballast[64 << 20];"


@pytest.mark.parametrize("name", ["libcryptopp.so.8", "libcrypto-of-another.so.3"])
@pytest.mark.parametrize("first", [True, False])
def test_a_library_of_a_similar_name_is_not_taken(tmp_path: Path, name: str, first: bool) -> None:
    if (compiler := shutil.which("gcc") or shutil.which("g++")) is None:
        pytest.skip("there is no C compiler here")
    decoy = tmp_path / name
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(decoy), "-"]
    subprocess.run(command, input=DECOY, text=True, check=True)
    program = (
        f"import _ssl, ctypes; ctypes.CDLL({str(decoy)!r})\n"
        "from spark_estimator.security.encryption import KeyPair, find_libcrypto\n"
        "print(find_libcrypto(), len(KeyPair().share))\n"
        f"assert {name!r} in open('/proc/self/maps').read()"
    )
    environment = {**os.environ, **({"LD_PRELOAD": str(decoy)} if first else {})}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (result.stdout, result.returncode) == (f"{find_libcrypto()} 32\n", 0), result.stderr


def test_a_library_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    wrong = os.path.join(tmp_path, "libcrypto.so.3")
    with open(wrong, "w") as file:
        file.write("not a library")
    monkeypatch.setattr(encryption, "find_libcrypto", lambda: wrong)
    encryption._load_libcrypto.cache_clear()
    with pytest.raises(EncryptionUnavailableError, match=f"{wrong} is not OpenSSL"):
        KeyPair()
    with pytest.raises(EncryptionUnavailableError, match="Install OpenSSL's library"):
        encryption.check_encryption()
    encryption._load_libcrypto.cache_clear()


CONSTRUCTOR = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { open(getenv("LOADED"), O_CREAT, 0600); }
"""


def test_no_library_is_looked_for_in_the_paths_of_the_environment(tmp_path: Path) -> None:
    """Where Python brings none: a library of this name would run its constructor, and get the keys."""
    if (compiler := shutil.which("gcc") or shutil.which("g++")) is None:
        pytest.skip("there is no C compiler here")
    source, loaded = tmp_path / "loaded.c", tmp_path / "loaded"
    source.write_text(CONSTRUCTOR)
    for name in ("libcrypto.so", "libcrypto.so.3", "libcrypto.so.1.1"):
        command = [compiler, "-x", "c", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(tmp_path / name)]
        subprocess.run([*command, str(source)], check=True)
    program = """
import sys
sys.modules["_ssl"] = sys.modules["_hashlib"] = None  # as of a Python that is built without OpenSSL
from spark_estimator.errors import EncryptionUnavailableError
from spark_estimator.security import encryption
try:
    encryption.KeyPair()
    print(encryption.find_libcrypto())
except EncryptionUnavailableError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "LOADED": str(loaded)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert not loaded.exists()
    assert done.stdout.startswith((*encryption._PLACES, "connections can't be encrypted on host")), done.stdout
