"""A user's driver program: `KerasEstimator` with a user's class, a rank that is killed, folders and bad input.

Arguments: the backend; the master or remote address; a folder that driver and executors share. It prints what it has
found out on a line ``RESULT {...}``.
"""

import json
import os
import signal
import subprocess
import sys
import traceback

backend, where, folder = sys.argv[1:]
os.environ["KERAS_BACKEND"] = backend

import keras  # noqa: E402  # it reads KERAS_BACKEND
import numpy  # noqa: E402  # it reads KERAS_BACKEND
from sessions import session  # noqa: E402  # beside this program

from spark_estimator.keras import KerasEstimator, KerasModel  # noqa: E402  # it reads KERAS_BACKEND
from spark_estimator.store import Store  # noqa: E402  # it reads KERAS_BACKEND

ROWS = 121


class Doubling(keras.layers.Layer):
    """A class that is in no module the ranks could import."""

    def call(self, inputs):
        return inputs * 2


class Mortal(keras.callbacks.Callback):
    """Kills its process once on rank 1, in the second epoch. `marker`: a file, which shows that it did."""

    def __init__(self, marker):
        super().__init__()
        self.marker = marker

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and os.environ["HOROVOD_RANK"] == "1" and not os.path.exists(self.marker):
            open(self.marker, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)


def network():
    """Two inputs, of which one is a matrix in an array; two outputs."""
    inputs = [keras.Input((2, 2), name="square"), keras.Input((1,), name="one")]
    flat = keras.layers.Flatten()(inputs[0])
    both = Doubling()(keras.layers.Concatenate()([flat, inputs[1]]))

    def kernel(seed):
        return keras.initializers.GlorotUniform(seed=seed)

    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(8, activation="tanh", kernel_initializer=kernel(1))(both))
    number = keras.layers.Dense(1, name="number", kernel_initializer=kernel(2))(hidden)
    kind = keras.layers.Dense(3, activation="softmax", name="kind", kernel_initializer=kernel(3))(hidden)
    model = keras.Model(inputs, [number, kind])
    model.compile("adam", ["mse", "sparse_categorical_crossentropy"], metrics=[["mae"], ["accuracy"]])
    return model


def estimator(**changed):
    params = {
        "num_proc": 2,
        "model": None,
        "feature_cols": ["square", "one"],
        "label_cols": ["y", "k"],
        "batch_size": 16,
        "epochs": 3,
        "random_seed": 7,
        "validation": 0.2,
        "verbose": 1,
    }
    params |= changed
    return KerasEstimator(**{**params, "model": params["model"] or network()})


def description_of(model):
    weights = [numpy.asarray(weight).tobytes().hex() for weight in model.getModel().get_weights()]
    history = {name: values for name, values in model.getHistory().items() if not name.startswith("time_")}
    return {"history": history, "weights": weights}


def refusals(frame):
    """What bad input gets; nothing of it starts a rank."""
    dense = keras.layers.Dense
    narrow = keras.Sequential([keras.layers.Input((3,)), dense(3, activation="softmax")])
    two = keras.Sequential([keras.layers.Input((4,)), dense(2, activation="softmax")])
    of_two = {"feature_cols": ["square"], "label_cols": ["k"], "optimizer": "sgd"}
    refusals_by_name = {}
    for name, params in {
        "shape": {**of_two, "model": narrow, "loss": "sparse_categorical_crossentropy"},
        "classes": {**of_two, "model": two, "loss": "sparse_categorical_crossentropy"},
        "outputs": {"label_cols": ["y"], "loss": "mse"},
        "inputs": {"feature_cols": ["square", "one", "y"]},
        "optimizer": {**of_two, "model": two, "loss": "mse", "optimizer": None},
        "loss": {**of_two, "model": two},
        "callbacks": {"callbacks": [print]},
        "model": {"model": keras.layers.Dense},
    }.items():
        try:
            estimator(**params).fit(frame)
            refusals_by_name[name] = "nothing was refused"
        except Exception as error:
            refusals_by_name[name] = f"{type(error).__name__}: {error}"
    return refusals_by_name


def main():
    spark = session(where)
    square = ", ".join(f"cast(sin(id * {factor}) as float)" for factor in (1, 2, 3, 5))
    frame = spark.range(0, ROWS, 1, 2).selectExpr("id", f"array({square}) AS square", "cos(id) AS one")
    frame = frame.selectExpr("*", "square[0] - one AS y", "cast(id % 3 as int) AS k")
    frame.write.parquet(f"{folder}/rows")  # which the ranks read in the same order each time
    frame = spark.read.parquet(f"{folder}/rows")
    untrained = network()
    before = [weight.tobytes() for weight in untrained.get_weights()]
    store = Store.create(f"{folder}/store")
    files = {"store": store, "materialize": True}
    kept = {"max_restarts": 1, "store": store}
    replaced, restarted = ({**kept, "run_id": way, "callbacks": [Mortal(f"{folder}/{way}")]} for way in ("a", "b"))
    trained = estimator(**replaced, materialize=True, model=untrained, output_type="array").fit(frame)
    results = {
        "killed": description_of(trained),
        "undisturbed": description_of(estimator(**files).fit(frame)),
        "restarted": description_of(estimator(**restarted, read_files=False).fit(frame)),
        "by Spark": description_of(estimator(read_files=False).fit(frame)),
    }
    results["untouched"] = [weight.tobytes() for weight in untrained.get_weights()] == before
    rows = trained.transform(frame).orderBy("id").collect()
    features = [numpy.array([row.square for row in rows]), numpy.array([row.one for row in rows])]
    number, kind = trained.predict(features)
    results["predictions"] = [
        float(abs(number.ravel() - [row.y__output[0] for row in rows]).max()),
        float(abs(kind - [list(row.k__output) for row in rows]).max()),
    ]
    trained.save(f"{folder}/model")
    try:
        KerasModel.load(f"{folder}/model")
    except Exception as error:
        results["untrusted"] = str(error)
    again = [
        KerasModel.load(f"{folder}/model", custom_objects={"Doubling": Doubling}),
        KerasModel.load(f"{folder}/model", trust=True),
    ]
    results["again"] = [
        description_of(loaded) == results["killed"] and (loaded.predict(features)[1] == kind).all() for loaded in again
    ]
    results["again"] = [bool(same) for same in results["again"]]
    estimator(callbacks=[], learning_rate=0.5).save(f"{folder}/estimator")
    results["estimator"] = KerasEstimator.load(f"{folder}/estimator", trust=True).getLearningRate()
    results["shapes"] = estimator().getModelShapes()
    # Elsewhere, where nothing of this program can be imported: with the optimizer's state.
    code = (
        "import sys\n"
        "sys.modules['spark_estimator'] = None\n"
        "import keras\n"
        "class Doubling(keras.layers.Layer):\n    def call(self, inputs):\n        return inputs * 2\n"
        f"model = keras.saving.load_model({folder + '/model/model.keras'!r}, custom_objects={{'Doubling': Doubling}})\n"
        "print(type(model.optimizer).__name__, int(model.optimizer.iterations))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
    results["elsewhere"] = answer.stdout.strip() or answer.stderr[-2000:]
    results["refusals"] = refusals(frame)
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
