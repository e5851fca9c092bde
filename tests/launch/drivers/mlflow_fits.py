"""A user's driver program: trains on one to four ranks with `mlflow=True`, and predicts with what MLflow loads.

Arguments: the master or remote address; the tracking server's address. It prints what it has found out on a line
``RESULT {...}``.
"""

import json
import sys

import mlflow
import numpy
import torch
from sessions import session
from torch import nn

from spark_estimator import TorchEstimator

where, server = sys.argv[1:]


def main():
    spark = session(where)
    mlflow.set_tracking_uri(server)
    mlflow.set_experiment("ranks")
    features = numpy.random.default_rng(5).standard_normal((200, 2))
    rows = [(float(a), float(b), float(2 * a - b)) for a, b in features]
    frame = spark.createDataFrame(rows, "a float, b float, y float")
    fits = []
    for ranks in (1, 2, 3, 4):
        torch.manual_seed(3)
        net = nn.Linear(2, 1)
        model = TorchEstimator(
            num_proc=ranks,
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
            loss=nn.MSELoss(),
            feature_cols=["a", "b"],
            label_cols=["y"],
            batch_size=16,
            epochs=2,
            verbose=0,
            mlflow={"run_name": f"{ranks} ranks"},
        ).fit(frame)
        transformed = model.transform(frame).toPandas()
        uri = f"runs:/{model.mlflow_run_id}/model"
        loaded = mlflow.pyfunc.load_model(uri).predict(transformed[["a", "b"]])
        predict = mlflow.pyfunc.spark_udf(spark, uri, result_type="double", env_manager="local")
        of_spark = frame.select(predict("a", "b").alias("p")).toPandas()["p"]
        expected = transformed["y__output"].tolist()
        fits.append(
            {
                "run": model.mlflow_run_id,
                "pyfunc": loaded["y__output"].tolist() == expected,
                "udf": of_spark.tolist() == expected,
                "losses": [row["train_loss"] for row in model.getHistory().to_rows()],
            }
        )
    print("RESULT " + json.dumps({"fits": fits}), flush=True)
    spark.stop()


main()
