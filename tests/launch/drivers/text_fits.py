"""A user's driver program: fine-tunes a small language model on chats.

Arguments: the master or remote address; a folder that driver and executors share. It prints what it has found out on a
line ``RESULT {...}``.
"""

import json
import sys
import traceback

from sessions import session

from spark_estimator import TransformersEstimator
from tests.scenarios.huggingface import tiny

where, folder = sys.argv[1:]


def main():
    spark = session(where)
    tiny.causal().save_pretrained(f"{folder}/base")
    tiny.tokenizer().save_pretrained(f"{folder}/base")
    chats = [(row["messages"],) for row in tiny.chats(100)]
    frame = spark.createDataFrame(chats, "text array<struct<role:string,content:string>>")
    estimator = TransformersEstimator(
        model=f"{folder}/base", num_proc=2, epochs=8, learning_rate=1e-2, batch_size=4, max_length=32, random_seed=1
    )
    model = estimator.fit(frame)
    questions = [(row["messages"][:1], row["messages"][1]["content"]) for row in tiny.chats(30, seed=9)]
    asked = spark.createDataFrame(questions, "text array<struct<role:string,content:string>>, answer string")
    right = model.setMaxNewTokens(3).transform(asked).filter("answer = text__output").count()
    model.write().overwrite().save(f"{folder}/model")
    print("RESULT " + json.dumps({"history": model.getHistory(), "right": right}), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
