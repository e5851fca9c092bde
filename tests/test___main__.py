"""The command line's verbs, and what an import of the package loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator import __main__ as verbs

ROOT = Path(spark_estimator.__file__).resolve().parents[1]


def test_verbs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert verbs.main(["--help"]) == 0
    assert "compat" in capsys.readouterr().out
    assert verbs.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == spark_estimator.__version__
    assert verbs.main(["doktor"]) == 2
    assert "unknown command: 'doktor'" in capsys.readouterr().err
    assert verbs.main(["env"]) == 0
    assert "HOROVOD_FUSION_THRESHOLD" in capsys.readouterr().out
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "much")
    assert verbs.main(["env"]) == 1
    assert "HOROVOD_FUSION_THRESHOLD='much'" in capsys.readouterr().err


def test_the_package_is_light() -> None:
    program = (
        "import sys, spark_estimator, spark_estimator.__main__\n"
        "heavy = {'torch', 'numpy', 'pyspark', 'pyarrow', 'pandas', 'cloudpickle'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(spark_estimator.__all__) <= set(dir(spark_estimator))\n"
        "for name in spark_estimator.__all__: getattr(spark_estimator, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=150, check=True)
    with pytest.raises(AttributeError, match="no attribute 'HorovodRuner'"):
        spark_estimator.HorovodRuner  # noqa: B018
