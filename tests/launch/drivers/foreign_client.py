"""`release/check_client.py`, which people run on macOS and Windows, where this Linux imitates one of them.

Arguments: "windows" or "mac"; those of that program. The package that is tried is the first in the path.
"""

import runpy
import sys
from pathlib import Path

import pandas  # noqa: F401  # all of these are to see the real system
import pyarrow  # noqa: F401
import pyspark.sql.connect.session  # noqa: F401
import torch  # noqa: F401

from tests.support.foreign_system import imitate

imitate(sys.argv.pop(1))
sys.argv[0] = str(Path(__file__).resolve().parents[3] / "release" / "check_client.py")
runpy.run_path(sys.argv[0], run_name="__main__")
