"""Times without a time zone, as pandas has them of Spark's: they are in the time zone of the session.

``DataFrame.toPandas``, pandas UDFs and MLflow give and take such times. `transform` reads the instants themselves.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.errors import DataError

_MICROS, _INSTANTS, _OFFSETS = pyarrow.timestamp("us"), pyarrow.timestamp("us", "UTC"), pyarrow.duration("us")
_EARLY, _LATE, _CYCLE = numpy.array(["1000", "2100", "2370"], "M8[us]").astype(numpy.int64)  # _CYCLE: 400 years
_SETTING = "spark.sql.session.timeZone"


def get_zone(trained: str) -> str:
    """Return the time zone of times that have none.

    Args:
        trained: the zone of the session that the model was trained in, which is used where there is no session.
    """
    from spark_estimator.launch.spark.session import find_session  # Spark's workers do without it

    session = find_session()
    return trained if session is None else str(session.conf.get(_SETTING))


def to_instants(times: pyarrow.Array, zone: str, kind: str) -> pyarrow.Array:
    """Return [rows] in UTC, of times without a zone; null stays.

    As in Spark, a time that was there twice, when clocks were set back, is the first one; and one that was not
    there, when clocks were set forward, is as much later.

    Args:
        kind: ``timestamp_ntz``: by Spark's rules; others: by those of pandas, of which ``toPandas`` made the times.

    Raises:
        DataError: pandas does not know the zone.
    """
    if kind == "timestamp_ntz" and (rules := _find_rules(zone)):
        offsets = pyarrow.array([rules.utcoffset(time) for time in _list_equivalent(times)], _OFFSETS)
        return pyarrow.compute.subtract(times.cast(_MICROS, safe=False), offsets).cast(_INSTANTS)
    index = _to_index(times, zone)
    localized = index.tz_localize(zone, ambiguous=numpy.ones(len(index), bool), nonexistent="shift_backward")
    missing = index - localized.tz_localize(None)
    return pyarrow.array(localized.tz_convert("UTC").tz_localize(None) + missing, _MICROS).cast(_INSTANTS)


def to_times(instants: pyarrow.Array, zone: str, kind: str) -> pyarrow.Array:
    """Return [rows] the opposite: times without a zone, of microseconds since 1970-01-01T00:00:00Z.

    Args:
        kind: as of `to_instants`.

    Raises:
        DataError: pandas does not know the zone.
    """
    if kind == "timestamp_ntz" and (rules := _find_rules(zone)):
        local = [rules.fromutc(time.replace(tzinfo=rules)) for time in _list_equivalent(instants)]
        offsets = pyarrow.array([time.utcoffset() for time in local], _OFFSETS)
        return pyarrow.compute.add(instants.cast(_MICROS), offsets)
    return pyarrow.array(_to_index(instants, zone).tz_localize("UTC").tz_convert(zone).tz_localize(None), _MICROS)


def _find_rules(zone: str) -> ZoneInfo | None:
    """Return the offsets of all years, of which pandas has those of 1893 to 2037; None: it is no name of a zone."""
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError):
        return None


def _list_equivalent(micros: pyarrow.Array) -> list[datetime]:
    """Return [rows] times that have the same offsets and are far from the first and the last that Python has."""
    values = micros.cast(_MICROS, safe=False).cast(pyarrow.int64()).fill_null(0).to_numpy()
    # Python has no years above 9999. Rules repeat after 400 years, which are full weeks, and begin later than in 1000.
    values = numpy.where(values < _LATE, numpy.maximum(values, _EARLY), _LATE + (values - _LATE) % _CYCLE)
    times: list[datetime] = values.astype("M8[us]").tolist()
    return times


def _to_index(array: pyarrow.Array, zone: str) -> Any:
    """Return them for pandas, which has to know the zone."""
    import pandas

    try:
        pandas.Timestamp(0, tz=zone)
    except (KeyError, ValueError) as error:  # those of pytz and zoneinfo are KeyErrors
        raise DataError(
            f"times without a zone are in the time zone of the session, {zone!r}, which pandas cannot use ({error}): "
            f"give them a zone, or set {_SETTING} to a name such as 'Europe/Berlin'."
        ) from error
    return pandas.DatetimeIndex(array.cast(_MICROS, safe=False).to_numpy(zero_copy_only=False))
