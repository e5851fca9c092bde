"""Which differences between driver and executors are refused, which are reported, and with which text."""

from __future__ import annotations

import platform

from spark_estimator import __version__
from spark_estimator.launch.job.versions import describe_differences, explain_refusal, read_own_versions
from spark_estimator.launch.spark.errors import explain

OURS = read_own_versions()


def test_own_versions_are_known_without_an_import() -> None:
    assert OURS["python"] == platform.python_version() and OURS["spark_estimator"] == __version__
    assert OURS["numpy"] and set(OURS) >= {"torch", "cloudpickle", "pyarrow"}


def test_another_version_of_ours_and_another_minor_python_are_refused() -> None:
    assert explain_refusal(OURS, OURS) == ""
    assert explain_refusal(OURS, {**OURS, "torch": "1.0"}) == ""
    text = explain_refusal(OURS, {**OURS, "spark_estimator": "0.0.9"})
    assert text.startswith(f"runs spark_estimator 0.0.9, but the driver runs {__version__}")
    text = explain_refusal({**OURS, "python": "3.11.2"}, {**OURS, "python": "3.12.0"})
    assert text.startswith("runs Python 3.12.0, but the driver runs 3.11.2") and "PYSPARK_PYTHON" in text
    assert explain_refusal({**OURS, "python": "3.11.2"}, {**OURS, "python": "3.11.9"}) == ""


def test_other_differences_are_one_line() -> None:
    driver = {"python": "3.11.2", "torch": "2.13", "numpy": "2.1"}
    assert describe_differences(driver, [("a", driver), ("b", driver)]) == ""
    other = {**driver, "torch": "2.9", "numpy": ""}
    text = describe_differences(
        driver, [("a", other), ("b", driver), ("a", other), ("c", {**other, "python": "3.11.9"})]
    )
    assert text == (
        "driver and executors have different versions, which may cause errors: python 3.11.9 on c, 3.11.2 on the "
        "driver; torch 2.9 on a, c, "
        "2.13 on the driver; numpy is missing on a, c, 2.1 on the driver"
    )


def test_executors_whose_package_cannot_even_read_the_job_are_told_so() -> None:
    module = "<module 'spark_estimator.launch.spark.stage_task' from '/x'>"
    message = f"AttributeError: Can't get attribute 'BarrierTask' on {module}"
    error = explain(message)
    assert f"install spark_estimator {__version__} there" in str(error)
    assert explain("Can't get attribute 'Mine' on <module 'my_module' from '/x'>") is None
