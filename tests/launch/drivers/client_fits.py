"""A user's driver program: the client package of `tests/compat/client` on Spark.

Arguments: the master or remote address; a folder that driver and executors share. It prints what it has found out on a
line ``RESULT {...}``.
"""

import importlib
import json
import sys
import traceback

import cloudpickle
from sessions import session

from spark_estimator import compat

compat.install()

where, folder = sys.argv[1:]
# Executors have neither the package nor Horovod's names installed: its classes are sent whole.
for name in ("", ".backend", ".columns", ".keywords", ".text"):
    cloudpickle.register_pickle_by_value(importlib.import_module(f"tests.compat.client{name}"))
text = importlib.import_module("tests.compat.client.text")


def main():
    spark = session(where)
    rows = [
        (f"a {word} film", label) for label, words in enumerate(["bad poor", "good fine"]) for word in words.split()
    ]
    frame = spark.createDataFrame(rows * 12, "text string, label int").repartition(2)
    classifier = text.TextClassifier(
        num_classes=2,
        tokenizer=text.Tokenizer(),
        num_proc=2,
        store=f"{folder}/store",
        epochs=4,
        batch_size=8,
        learning_rate=0.1,
        verbose=0,
    )
    model = classifier.fit(frame)
    model.write().overwrite().save(f"{folder}/model")
    again = text.TextModel.load(f"{folder}/model", trust=True)
    right = again.transform(frame).filter("prediction = label").count()
    print("RESULT " + json.dumps({"history": model.getHistory(), "right": right, "rows": len(rows) * 12}), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
