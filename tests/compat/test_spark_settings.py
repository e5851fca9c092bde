"""Horovod's names for settings of a session."""

from __future__ import annotations

from spark_estimator.compat import spark_settings


def test_settings_are_pairs_under_todays_keys() -> None:
    pairs = [
        value
        for name, value in vars(spark_settings).items()
        if name.startswith("SPARK_CONF_") and isinstance(value, tuple)
    ]
    assert len(pairs) == 17
    assert {key for key, _ in pairs} == spark_settings.SPARK_CONF_DEFAULT_VALUES.keys()
    assert not any("blacklist" in key for key, _ in pairs)
