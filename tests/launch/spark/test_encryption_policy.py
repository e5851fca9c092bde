"""Which sessions' jobs encrypt: those whose Spark encrypts, or may, unless a setting decides."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator import env
from spark_estimator.errors import EncryptionUnavailableError, PreflightError
from spark_estimator.launch.job.spark_settings import ALLOW_UNENCRYPTED, ENCRYPTION
from spark_estimator.launch.spark import encryption_policy
from spark_estimator.launch.spark.encryption_policy import choose_spool_variables, decide_encryption
from spark_estimator.security.encryption import Policy

CRYPTO = "spark.network.crypto.enabled"


class Session:
    """A session's settings: some may be forbidden, as without Java; SQL shows them, or not."""

    def __init__(self, settings: dict[str, str], *, forbids: str = "?", answers_sql: bool = True) -> None:
        self.settings = settings
        self.forbids = forbids
        self.answers_sql = answers_sql
        self.conf = self

    def get(self, name: str, default: str | None = None) -> str | None:
        if name.startswith(self.forbids):
            raise RuntimeError(f"[CONFIG_NOT_AVAILABLE] {name} is not available.\nat org.apache.spark...")
        return self.settings.get(name, default)

    def sql(self, text: str) -> Any:
        name = text.removeprefix("SET ")
        if not self.answers_sql:
            raise RuntimeError(f"[CONFIG_NOT_AVAILABLE] {name} is not available.")
        return type("Rows", (), {"collect": lambda _: [(name, self.settings.get(name, "<undefined>"))]})()


def session(master: str = "spark://x", **settings: str) -> Any:
    return Session({"spark.master": master, **settings})


@pytest.mark.parametrize(
    "name", [CRYPTO, "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled", "spark.ssl.rpc.enabled"]
)
def test_ranks_encrypt_where_spark_does(name: str) -> None:
    assert decide_encryption(session(**{name: "true"})) == (True, f"{name} is true")
    assert decide_encryption(session(**{name: "false"}))[0] is False
    assert decide_encryption(session("local[2]", **{name: "true"})) == (False, "all ranks are on the driver's host")


@pytest.mark.parametrize(("value", "encrypted"), [("require", True), ("OFF", False)])
@pytest.mark.parametrize("master", ["spark://x", "local[2]"])
def test_a_setting_decides(value: str, encrypted: bool, master: str) -> None:
    decided = decide_encryption(session(master, **{ENCRYPTION: value, CRYPTO: "true"}))
    assert decided == (encrypted, f"{ENCRYPTION} is {value}")
    assert decide_encryption(session(**{ENCRYPTION: "auto", CRYPTO: "true"}))[0] is True


def test_the_older_setting_still_allows_clear_connections() -> None:
    assert decide_encryption(session(**{ALLOW_UNENCRYPTED: "true", CRYPTO: "true"}))[0] is False
    assert decide_encryption(session(**{ALLOW_UNENCRYPTED: "true", ENCRYPTION: "require"}))[0] is True


def test_the_variable_decides_where_the_session_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_ENCRYPTION", "require")
    assert decide_encryption(session()) == (True, "SPARK_ESTIMATOR_ENCRYPTION is require")
    assert decide_encryption(session(**{ENCRYPTION: "off"}))[0] is False
    assert decide_encryption(session(**{ENCRYPTION: " "})) == (True, "SPARK_ESTIMATOR_ENCRYPTION is require")
    assert tuple(policy.value for policy in Policy) == env.ENCRYPTIONS


def test_another_value_is_refused() -> None:
    with pytest.raises(PreflightError, match=rf"{ENCRYPTION}='yes': expected one of auto, require, off"):
        decide_encryption(session(**{ENCRYPTION: "yes"}))


def test_what_a_session_does_not_show_may_encrypt() -> None:
    silent: Any = Session({"spark.master": "spark://x"}, forbids="spark.network", answers_sql=False)
    assert decide_encryption(silent) == (
        True,
        f"this session doesn't show {CRYPTO} (RuntimeError), so Spark may encrypt its traffic",
    )
    talks: Any = Session({"spark.master": "spark://x"}, forbids="spark.network")
    assert decide_encryption(talks)[0] is False
    talks.settings[CRYPTO] = "true"
    assert decide_encryption(talks)[0] is True


def test_a_host_that_cannot_encrypt_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise EncryptionUnavailableError("no libcrypto")

    monkeypatch.setattr(encryption_policy, "check_encryption", missing)
    assert decide_encryption(session())[0] is False
    with pytest.raises(EncryptionUnavailableError):
        decide_encryption(session(**{CRYPTO: "true"}))


def test_rows_stay_in_memory_where_spark_encrypts_its_files() -> None:
    name = "spark.io.encryption.enabled"
    assert choose_spool_variables(session(**{name: "true"})) == {"SPARK_ESTIMATOR_SPOOL_FOLDER": "memory"}
    assert choose_spool_variables(session("local[2]", **{name: "true"})) != {}, "Spark encrypts files there, too"
    assert choose_spool_variables(session(**{name: "false"})) == choose_spool_variables(session()) == {}
    assert choose_spool_variables(Session({name: "true"}, forbids=name)) == {}
