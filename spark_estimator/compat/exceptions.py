"""``horovod.common.exceptions``: this package's errors, and one of Horovod's that is never raised here."""

from __future__ import annotations

from spark_estimator.errors import *  # noqa: F403  # under the module's old name


class HorovodVersionMismatchError(ImportError):
    """Horovod's: an installed framework has another version than the one of the build. This package never raises it."""
