"""Has `SparkFiles` work on a rank as in other tasks of Spark, from whose process a rank's is a separate one."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from spark_estimator.compat.awaited_imports import call_when_imported
from spark_estimator.env import SPARK_FILES_VARIABLE

# Where the class is: in Spark 4, and before.
_MODULES = ("pyspark.core.files", "pyspark.files")


def find_spark_files(environ: Mapping[str, str]) -> None:
    """Give `SparkFiles` the folder of this rank's task once pyspark is imported; do nothing outside of Spark."""
    folder = environ.get(SPARK_FILES_VARIABLE)
    if not folder:
        return

    def set_folder(module: str) -> None:
        files = sys.modules[module].SparkFiles
        files._root_directory = folder
        files._is_running_on_worker = True

    for module in _MODULES:
        call_when_imported(module, set_folder)
