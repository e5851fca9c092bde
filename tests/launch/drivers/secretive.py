"""A user's driver program that keeps, while its jobs run, what Spark and the system show of them.

Arguments: a folder for what it has seen, a folder that Spark writes to; "barrier" or "elastic", the kind of its jobs;
the master or remote address, then name=value settings of the session. Its jobs hold still until it has looked.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.entry import run_in_session
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.spark import run_elastic

# The logs of PySpark and py4j are written to standard error, as for debugging.
logging.basicConfig(level=logging.DEBUG)
seen, scratch = Path(sys.argv[1]), Path(sys.argv[2])
REST = ("environment", "jobs", "stages?details=true&withSummaries=true", "executors", "allexecutors", "storage/rdd")
REST += ("sql?details=true&planDescription=true", "executors/driver/threads")
PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "storage/", "connect/")


def work(flags, ballast):
    """Looks for its own key where every process can look; holds still until the driver has looked, too."""
    import os
    import time
    from pathlib import Path

    from spark_estimator.collectives.rendezvous import find_current

    rendezvous = find_current()
    forms = (rendezvous.key, rendezvous.key.hex().encode())
    places = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                content = Path("/proc", pid, name).read_bytes()
            except OSError:
                continue
            places += [f"{pid}/{name}" for form in forms if form in content]
    Path(flags, f"works {rendezvous.rank}").touch()
    deadline = time.monotonic() + 60
    while not Path(flags, "looked").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the driver has not looked")
        time.sleep(0.05)
    # Reversed, so that it is this value's own trace that is not found in the logs.
    return places, rendezvous.key.hex()[::-1]


def look(kind, address):
    """Keeps web pages, REST answers, files in Spark's folders, and /proc of the processes that belong to this test."""
    into = seen / kind
    into.mkdir()
    for page in PAGES if address else ():
        try:
            keep(into / page.replace("/", " "), read(f"{address}/{page}"))
        except urllib.error.HTTPError as error:
            assert error.code == 404 and page == "connect/", page
    for application in json.loads(read(f"{address}/api/v1/applications")) if address else ():
        for path in REST:
            whole = f"{address}/api/v1/applications/{application['id']}/{path}"
            keep(into / f"rest {path.partition('?')[0].replace('/', ' ')}", read(whole))
    for folder in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                content = Path("/proc", folder, name).read_bytes()
                ours = name == "cmdline" or b"NOTED=" in content
            except OSError:
                continue
            if ours:
                keep(into / f"proc {folder} {name}", content)
    shutil.copytree(scratch, into / "scratch", ignore_dangling_symlinks=True, ignore=sockets)


def sockets(folder, names):
    return [name for name in names if not Path(folder, name).is_file() and not Path(folder, name).is_dir()]


def read(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def keep(path, content):
    path.write_bytes(content)


class Feed:
    """Takes rows; as large as one with a vocabulary, or with a function that has much in its closure."""

    def __init__(self, size):
        self.ballast = bytes(size)

    def take(self, batches, worker, environment, ended):
        for _ in batches:
            pass


def run_and_look(kind, address, ballast, feed):
    """Both ranks' job, and what there was to see of it."""
    flags = tempfile.mkdtemp(dir=".")
    failed = []

    def wait_and_look():
        deadline = time.monotonic() + 90
        try:
            while len(list(Path(flags).glob("works *"))) < 2:
                if time.monotonic() > deadline:
                    raise TimeoutError("the ranks do not work")
                time.sleep(0.05)
            look(kind, address)
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            Path(flags, "looked").touch()

    thread = threading.Thread(target=wait_and_look)
    thread.start()
    arguments = {"flags": str(Path(flags).absolute()), "ballast": ballast}
    if elastic:
        places, yek = run_elastic(work, kwargs=arguments, num_proc=2)[0]
    elif feed is not None:
        rows = Rows(session.range(4), feed)
        places, yek = run_in_session(work, 2, JobOptions(kwargs=arguments), caller="a fit", rows=rows)[0]
    else:
        places, yek = HorovodRunner(np=2).run(work, **arguments)
    thread.join()
    assert not failed, failed
    return {"places": places, "yek": yek}


elastic = sys.argv[3] == "elastic"
where, *settings = sys.argv[4:]
builder = SparkSession.builder
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
if where.startswith("sc://"):
    session, address = builder.remote(where).getOrCreate(), os.environ.get("UI", "")
else:
    session = builder.master(where).getOrCreate()
    address = session.sparkContext.uiWebUrl
# A large task is sent to Spark in another way than a small one.
jobs = {"small": (1, None), "large": (1200 << 10, None)} | ({} if elastic else {"fed": (1, Feed(1200 << 10))})
results = {kind: run_and_look(kind, address, bytes(size), feed) for kind, (size, feed) in jobs.items()}
session.stop()
print("RESULT " + json.dumps(results), flush=True)
