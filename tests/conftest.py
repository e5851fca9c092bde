"""What all tests share: one Spark session, time-outs that name the test, and which tests run in which process."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import fake_gpus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler.loadscope import LoadScopeScheduling

# pytest-timeout interrupts the main thread, which does not help when that thread is inside native code that waits: this
# number of seconds later the whole run is ended, after printing every thread's stack.
GRACE_SECONDS = 20
_terminal = pytest.StashKey[int]()

# Java that lives for a minute spends a third of its time on code that it would need for hours.
for _variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_variable, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


# A shell's background job, such as `make test &`, inherits SIGINT and SIGQUIT ignored, and nohup's job SIGHUP: programs
# that tests interrupt would never end. A handler here is the default in a program that is started.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    # While a test runs, descriptor 2 is pytest's capture file: keep the real one.
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_terminal] = os.dup(sys.__stderr__.fileno())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        help="run the K-th of N parts of the selected tests, 1 to N; the tests of a file stay together",
    )
    parser.addoption(
        "--begin-until",
        type=float,
        metavar="TIME",
        help="skip the tests that have not begun by then, in seconds since 1970; with --dist loadfile, files that the "
        "last day's commits have changed come first, and the order of the others is another one each day",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("begin_until")
    if until is not None and time.time() > until:
        pytest.skip("left out: no time was left in this run")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """With `--dist loadfile`: the tests of a package that shares ranks run in one process; ranks are slow to start."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import PackageScheduling

    return PackageScheduling(config, log)


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        from tests.scheduling import files_of_part

        files = files_of_part(part, [item.path for item in items])
        config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
        items[:] = [item for item in items if item.path in files]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:  # another test runs beside each: it may take twice as long
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0] if marker and marker.args else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(2 * seconds), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[_terminal])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder in which each user can make files, and remove their own: as /tmp is."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for ranks that are to find a CUDA and an NCCL without a GPU; see ``tests.fake_gpus``."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    base = tmp_path_factory.getbasetemp()
    # Under xdist the processes of a run share one build.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fakes"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fake_gpus.build_fakes(folder)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one ``local[2]`` session of the test run, its workers on this interpreter. Do not stop it."""
    from pyspark.sql import SparkSession

    from spark_estimator.launch.spark.java_environment import choose_java_environment

    os.environ.update(choose_java_environment(), PYSPARK_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark_estimator tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A job with too many ranks is refused within a second, not after ten minutes.
        .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
        .config("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "3")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test module's functions are sent whole, as those of a notebook do.

    Those of a user's own modules are sent by reference, as the workers can import them; the test run's import mode
    forbids that.
    """
    import cloudpickle

    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
