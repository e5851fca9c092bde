"""A user's driver program on another operating system: everything that a client does, by the wheel without the engine.

Arguments: "windows" or "mac"; the remote address; a folder that driver and executors share. The package is the first in
the path. It prints what it has found out on a line ``RESULT {...}``.
"""

import contextlib
import io
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import pandas
import pyarrow  # noqa: F401  # all of these are to see the real system
import torch
from sessions import session

from tests.support.foreign_system import POSIX_MODULES, imitate

system, where, folder = sys.argv[1:]
imitate(system)

from spark_estimator import HorovodRunner, TorchEstimator, TorchModel  # noqa: E402
from spark_estimator.doctor import cluster, examine  # noqa: E402
from spark_estimator.launch.cli.main import main as horovodrun  # noqa: E402
from spark_estimator.store import Store  # noqa: E402


def reduce(factor):
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    print("a line of rank", hvd.rank(), flush=True)
    return hvd.allreduce(torch.ones(2) * factor * (hvd.rank() + 1), op=hvd.Sum).tolist()


def die():
    import spark_estimator.torch as hvd

    hvd.init()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def estimator(**more):
    torch.manual_seed(1)
    net = torch.nn.Linear(2, 1)
    return TorchEstimator(
        num_proc=2,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.2),
        loss=torch.nn.MSELoss(),
        feature_cols=["a", "b"],
        label_cols=["y"],
        batch_size=25,
        epochs=3,
        verbose=0,
        **more,
    )


def told(call):
    """The value, or the error as text."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return call()
    except SystemExit as end:
        return f"SystemExit {end.code}: {output.getvalue()}"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def save_and_load(model, frame, path):
    for _ in range(2):  # the second replaces the first
        model.write().overwrite().save(path)
    again = TorchModel.load(path)
    number = again.predict(pandas.DataFrame({"a": [0.5], "b": [0.1]}))
    same = again.transform(frame).subtract(model.transform(frame)).count()
    return {"predicted": float(number[0][0]), "different": same}


def main():
    spark = session(where)
    numbers = spark.range(0, 400, 1, 2).selectExpr("id / 400 AS a", "id % 7 / 7 AS b")
    frame = numbers.selectExpr("*", "a * 2 - b AS y")
    model = estimator().fit(frame)
    weights = [value.flatten().tolist() for value in model.getModel().state_dict().values()]
    results = {
        "runner": told(lambda: HorovodRunner(np=2, driver_log_verbosity="all").run(reduce, 2.0)),
        "killed": told(lambda: HorovodRunner(np=2).run(die)),
        "by_hand": weights[0][0] * 0.5 + weights[0][1] * 0.1 + weights[1][0],
        "default_path": told(lambda: save_and_load(model, frame, f"{folder}/model")),
        "file_url": told(lambda: save_and_load(model, frame, f"file://{folder}/model2")),
        "cluster": told(lambda: [str(each) for each in cluster(spark)]),
        "doctor": told(lambda: [str(each) for each in examine()]),
        "local": told(lambda: HorovodRunner(np=-2).run(reduce, 2.0)),
        "horovodrun": told(lambda: horovodrun(["-np", "2", "python", "train.py"])),
        "store": told(lambda: estimator(store=Store.create(f"{folder}/store"), run_id="r").fit(frame).getHistory()),
        "posix": sorted(
            name
            for name, module in sys.modules.items()
            if name.startswith("spark_estimator")
            for each in POSIX_MODULES - {"posix"}
            if getattr(module, each, None) is not None
        ),
        "package": str(Path(sys.modules["spark_estimator"].__file__).parent),
    }
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
