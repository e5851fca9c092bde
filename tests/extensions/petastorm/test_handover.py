"""Reading by petastorm itself: the versions with which it works."""

from __future__ import annotations

import pytest

from spark_estimator.data.petastorm import make_spark_converter
from spark_estimator.errors import PythonEnvironmentError
from spark_estimator.extensions.petastorm import handover as petastorm_handover


def test_petastorm_itself_only_where_it_works(numbers: str) -> None:
    works = {"petastorm": "0.13.1", "pyarrow": "14.0.2", "numpy": "1.26.4", "pandas": "2.2.3"}
    assert petastorm_handover.describe_refusal(works.get, (3, 11)) is None
    newer = {**works, "pyarrow": "26.0.1"}
    text = petastorm_handover.describe_refusal(newer.get, (3, 12))
    assert text is not None and "does not work with Python, pyarrow as installed here (Python 3.12, " in text
    assert "pyarrow 26.0.1" in text and "it needs Python 3.10 or 3.11 with petastorm 0.13.1, pyarrow 14.0.2" in text
    if petastorm_handover.describe_refusal(petastorm_handover._find_version, (3, 11)) is not None:
        converter = make_spark_converter(numbers)
        with pytest.raises(PythonEnvironmentError, match=r"petastorm \(not installed\).*leave out reader='petastorm'"):
            converter.make_torch_dataloader(reader="petastorm", schema_fields=["n"])


@pytest.mark.parametrize(
    ("version", "works"),
    [("0.12.1", True), ("0.13.1rc1", True), ("0.12.0", False), ("0.14", False), ("0.9.8", False), (None, False)],
)
def test_the_range_of_versions(version: str | None, works: bool) -> None:
    versions = {"petastorm": version, "pyarrow": "14.0.2", "numpy": "1.26.4", "pandas": "2.2.3"}
    reason = petastorm_handover.describe_refusal(versions.get, (3, 10))
    assert (reason is None) == works
    if reason is not None:
        assert f"petastorm {version or '(not installed)'}, pyarrow 14.0.2" in reason
