"""The keys of encrypted connections, agreed on in each handshake by means of OpenSSL's libcrypto.

Each handshake of an encrypted job makes new keys (X25519, RFC 7748), so that the job's key does not decrypt what was
recorded (forward secrecy). `derive` turns the shared secret, the job's key and the handshake's messages into one secret
for each direction (HKDF, RFC 5869). The engine's record layer (``native/crypto/records.h``) encrypts with keys made of
these: AES-128-GCM where both processors have instructions for it, ChaCha20-Poly1305 elsewhere.

libcrypto is the one that Python's own ssl module links, else one at a fixed path of the system: a library that gets
keys is never searched for by ``LD_LIBRARY_PATH``, nor recognized by its name.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
import importlib
import os
import socket
import weakref
from contextlib import suppress
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from spark_estimator._native import Cipher, library_path
from spark_estimator.errors import AuthenticationError, EncryptionUnavailableError

SHARE_BYTES = 32
SECRET_BYTES = 32

_X25519 = 1034  # OpenSSL's NID, the same in all versions
_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib")
_NAMES = ("libcrypto.so.3", "libcrypto.so.1.1")


class Policy(Enum):
    """Whether the ranks of a job encrypt what they send between hosts."""

    AUTO = "auto"  # where Spark encrypts its own traffic
    REQUIRE = "require"  # always
    OFF = "off"  # never


@dataclass(frozen=True)
class Session:
    """The secrets of a handshake, from the view of one end.

    Attributes:
        cipher: of both directions.
        send, receive: the secrets of the directions, `SECRET_BYTES` bytes each. Not shown by repr.
    """

    cipher: Cipher
    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)


@functools.cache
def find_libcrypto() -> str:
    """Return the absolute path of OpenSSL's libcrypto. Raises EncryptionUnavailableError: there is none."""
    linked = _find_linked_libcrypto()
    if linked is not None:
        return linked
    for folder in _PLACES:
        for name in _NAMES:
            if Path(folder, name).exists():
                return str(Path(folder, name))
    raise EncryptionUnavailableError(
        f"connections can't be encrypted on host {socket.gethostname()}: OpenSSL's libcrypto (1.1.1 or later) is "
        f"neither linked by this Python's ssl module nor in {', '.join(_PLACES)}. Install OpenSSL's library (Debian, "
        "Ubuntu: libssl3; Red Hat: openssl-libs)."
    )


class _SymbolPlace(ctypes.Structure):
    """``Dl_info``: where an address is."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


def _find_linked_libcrypto() -> str | None:
    """Return the library in which Python's ssl module finds OpenSSL's functions; None: there is no file."""
    symbol = _SymbolPlace()
    with suppress(ImportError, OSError, AttributeError):
        module = importlib.import_module("_ssl")
        # By the module's handle only the module and what it links are searched.
        function = ctypes.CDLL(getattr(module, "__file__", None)).OpenSSL_version_num
        if ctypes.CDLL(None).dladdr(ctypes.cast(function, c_void_p), ctypes.byref(symbol)):
            path = os.fsdecode(symbol.file or b"")
            if os.path.isabs(path):
                ctypes.CDLL(path)  # OSError: it is the program itself, which has OpenSSL inside
                return os.path.realpath(path)
    return None


def check_encryption() -> None:
    """Raise EncryptionUnavailableError if this host can't encrypt connections: libcrypto is missing or unusable.

    Without the engine it has no connections to encrypt.
    """
    if library_path().exists():
        _load_libcrypto()


@functools.cache
def _load_libcrypto() -> ctypes.CDLL:
    path = find_libcrypto()
    try:
        library = ctypes.CDLL(path)
        pointer = ctypes.POINTER(c_void_p)
        sizes = ctypes.POINTER(c_size_t)
        for name, result, arguments in (
            ("EVP_PKEY_CTX_new_id", c_void_p, [c_int, c_void_p]),
            ("EVP_PKEY_CTX_new", c_void_p, [c_void_p, c_void_p]),
            ("EVP_PKEY_CTX_free", None, [c_void_p]),
            ("EVP_PKEY_keygen_init", c_int, [c_void_p]),
            ("EVP_PKEY_keygen", c_int, [c_void_p, pointer]),
            ("EVP_PKEY_free", None, [c_void_p]),
            ("EVP_PKEY_get_raw_public_key", c_int, [c_void_p, c_char_p, sizes]),
            ("EVP_PKEY_new_raw_public_key", c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
            ("EVP_PKEY_derive_init", c_int, [c_void_p]),
            ("EVP_PKEY_derive_set_peer", c_int, [c_void_p, c_void_p]),
            ("EVP_PKEY_derive", c_int, [c_void_p, c_char_p, sizes]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise EncryptionUnavailableError(
            f"connections can't be encrypted on host {socket.gethostname()}: {path} is not OpenSSL 1.1.1 or later "
            f"({str(error).rstrip('.')}). Install OpenSSL's library (Debian, Ubuntu: libssl3; Red Hat: openssl-libs)."
        ) from error
    return library


class KeyPair:
    """A fresh X25519 key pair, for one handshake; `share`: the public key. Raises EncryptionUnavailableError."""

    def __init__(self) -> None:
        library = _load_libcrypto()
        context = library.EVP_PKEY_CTX_new_id(_X25519, None)
        key = c_void_p()
        made = (
            context is not None
            and library.EVP_PKEY_keygen_init(context) == 1
            and library.EVP_PKEY_keygen(context, ctypes.byref(key)) == 1
        )
        library.EVP_PKEY_CTX_free(context)
        if not made:
            raise EncryptionUnavailableError(f"{find_libcrypto()} could not make an X25519 key.")
        self._key = key.value
        # Not at the end of the process, when a thread may be using it.
        weakref.finalize(self, library.EVP_PKEY_free, key.value).atexit = False
        buffer = ctypes.create_string_buffer(SHARE_BYTES)
        size = c_size_t(SHARE_BYTES)
        if library.EVP_PKEY_get_raw_public_key(self._key, buffer, ctypes.byref(size)) != 1:
            raise EncryptionUnavailableError(f"{find_libcrypto()} could not give an X25519 public key.")
        self.share = buffer.raw

    def derive_shared_secret(self, peer_share: bytes) -> bytes:
        """Derive the secret of this key and the other's share. Raises AuthenticationError: that is not usable."""
        library = _load_libcrypto()
        peer = library.EVP_PKEY_new_raw_public_key(_X25519, None, peer_share, len(peer_share))
        context = library.EVP_PKEY_CTX_new(self._key, None)
        secret = ctypes.create_string_buffer(SECRET_BYTES)
        size = c_size_t(SECRET_BYTES)
        derived = (
            peer is not None
            and context is not None
            and library.EVP_PKEY_derive_init(context) == 1
            and library.EVP_PKEY_derive_set_peer(context, peer) == 1
            and library.EVP_PKEY_derive(context, secret, ctypes.byref(size)) == 1
        )
        library.EVP_PKEY_CTX_free(context)
        library.EVP_PKEY_free(peer)
        if not derived:  # also for shares of low order (RFC 7748, 6.1)
            raise AuthenticationError("the other end sent a public key that can't be used")
        return secret.raw


@functools.cache
def has_fast_aes() -> bool:
    """Return whether this processor has instructions for AES."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return "aes" in words.split()
    return False


def derive(key: bytes, shared_secret: bytes, transcript: bytes, cipher: Cipher, *, connector: bool) -> Session:
    """Derive the secrets of a connection.

    Args:
        key: the job's.
        shared_secret: of the two key pairs.
        transcript: the handshake's messages so far, which hold both shares.
        cipher: of both directions.
        connector: whether this end has connected; the other end has accepted.
    """
    extracted = hmac.digest(hashlib.sha256(transcript).digest(), key + shared_secret, "sha256")
    outward = hmac.digest(extracted, b"spark_estimator connector to acceptor\x01", "sha256")
    inward = hmac.digest(extracted, b"spark_estimator acceptor to connector\x01", "sha256")
    return Session(cipher, outward, inward) if connector else Session(cipher, inward, outward)
