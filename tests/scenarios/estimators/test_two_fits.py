"""Two fits at once in one session that has slots for one: they queue, with a sentence, and none waits for ever.

The program is ``tests/launch/drivers/two_fits.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SENTENCE = "It needs 3 free slots at the same time"
CLUSTER = "local-cluster[2,2,1024]"
FAIR = "spark.scheduler.mode=FAIR"
PLAIN = "spark.spark_estimator.barrier=false"
CASES = {
    "FIFO": (),
    "FAIR": (FAIR,),
    "FAIR, ranks that start one by one": (FAIR, PLAIN),
    "Connect, FAIR": (FAIR,),
    "FAIR, ranks that are replaced": (FAIR, "replaces"),
}
SENTENCES = {"FAIR, ranks that are replaced": "of 3 ranks after 2"}


@pytest.fixture(scope="module", params=CASES)
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, str]]:
    """What the driver program returned, what it printed, and the sentence about the second fit, which waits."""
    folder = tmp_path_factory.mktemp("fits")
    sentence = SENTENCES.get(request.param, SENTENCE)
    settings = CASES[request.param]

    def run(*arguments: str) -> tuple[Any, str, str]:
        with clusters.driver("two_fits.py", arguments[0], str(folder), *arguments[1:], folder=folder) as driver:
            driver.wait_for("QUEUED", 300)
            before, deadline = driver.output().count(sentence), time.monotonic() + 200
            while driver.output().count(sentence) == before:
                assert driver.process.poll() is None and time.monotonic() < deadline, driver.output()[-6000:]
                time.sleep(0.05)
            (folder / "go").touch()
            return driver.wait(300), driver.output(), sentence

    if not request.param.startswith("Connect"):
        yield run(CLUSTER, *settings)
        return
    of_server = {"spark.executor.memory": "1g", **dict(setting.split("=") for setting in settings)}
    with clusters.connect_server(folder, CLUSTER, of_server) as address:
        yield run(address)


def test_all_fits_end(ended: tuple[Any, str, str]) -> None:
    result = ended[0]
    fits = [*result["together"].values(), result["queued"]["first"], result["queued"]["second"]]
    assert len(fits) == 4 and all(len(losses) == 2 and losses[1] < losses[0] for losses in fits), fits


def test_the_second_waits_for_the_first_with_a_sentence(ended: tuple[Any, str, str]) -> None:
    result, output, sentence = ended
    assert result["queued"]["one after the other"]
    line = next(line for line in output[output.index("QUEUED") :].splitlines() if sentence in line)
    assert line.startswith("spark_estimator: Spark has") and (
        "of 3 ranks for 2" in line or "of 3 ranks after 2" in line
    )
