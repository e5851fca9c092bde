"""Times without a time zone, as pandas has them of Spark's: they are in the time zone of the session.

``DataFrame.toPandas``, pandas UDFs and MLflow give and take such times. `transform` reads the instants themselves.
"""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow

from spark_estimator.errors import DataError

_MICROS = pyarrow.timestamp("us")
_SETTING = "spark.sql.session.timeZone"


def get_zone(trained: str) -> str:
    """Return the time zone of times that have none.

    Args:
        trained: the zone of the session that the model was trained in, which is used where there is no session.
    """
    from spark_estimator.launch.spark.session import find_existing_session  # Spark's workers do without it

    session = find_existing_session()
    return trained if session is None else str(session.conf.get(_SETTING))


def to_instants(times: pyarrow.Array, zone: str) -> pyarrow.Array:
    """Return [rows] in UTC, of times without a zone; null stays.

    As in Spark, a time that was there twice, when clocks were set back, is the first one; and one that was not
    there, when clocks were set forward, is as much later.

    Raises:
        DataError: pandas does not know the zone.
    """
    index = _to_index(times)
    try:
        localized = index.tz_localize(zone, ambiguous=numpy.ones(len(index), bool), nonexistent="shift_backward")
    except (KeyError, ValueError) as error:  # those of pytz and zoneinfo are KeyErrors
        raise _make_zone_error(zone, error) from error
    missing = index - localized.tz_localize(None)
    return _to_array(localized.tz_convert("UTC").tz_localize(None) + missing).cast(pyarrow.timestamp("us", "UTC"))


def to_times(instants: pyarrow.Array, zone: str) -> pyarrow.Array:
    """Return [rows] the opposite: times without a zone, of microseconds since 1970-01-01T00:00:00Z.

    Raises:
        DataError: pandas does not know the zone.
    """
    try:
        return _to_array(_to_index(instants).tz_localize("UTC").tz_convert(zone).tz_localize(None))
    except (KeyError, ValueError) as error:
        raise _make_zone_error(zone, error) from error


def _to_index(array: pyarrow.Array) -> Any:
    import pandas

    return pandas.DatetimeIndex(array.cast(_MICROS, safe=False).to_numpy(zero_copy_only=False))


def _to_array(index: Any) -> pyarrow.Array:
    return pyarrow.array(index.to_numpy(), _MICROS, from_pandas=True)


def _make_zone_error(zone: str, error: Exception) -> DataError:
    return DataError(
        f"times without a zone are in the time zone of the session, {zone!r}, which pandas cannot use ({error}): give "
        f"them a zone, or set {_SETTING} to a name such as 'Europe/Berlin'."
    )
