"""A user's driver program: saves or loads one object of each kind in each of some folders.

Arguments: "save" or "load"; the master or remote address; the kinds; the folders. It prints a line ``RESULT {...}``:
for each folder and object what it is, or the error.
"""

import json
import sys

import torch
from sessions import session

from spark_estimator import KerasEstimator, KerasModel, TorchEstimator, TorchModel, TransformersModel

action, where, kinds, *folders = sys.argv[1:]


def linear(rows=1):
    net = torch.nn.Linear(3, rows)
    torch.nn.init.constant_(net.weight, 2.0)
    return net


def one_model():
    return {"model": TorchModel(model=linear(), feature_columns=["x"], label_columns=["y"])}


def of_torch():
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.classification import OneVsRestModel
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.tuning import CrossValidatorModel, ParamGridBuilder, TrainValidationSplitModel

    estimator = TorchEstimator(
        model=linear(), loss=torch.nn.MSELoss(), feature_cols=["x"], label_cols=["y"], num_proc=1, epochs=5
    )
    model = TorchModel(model=linear(), feature_columns=["x"], label_columns=["y"])
    assembler = VectorAssembler(inputCols=["a"], outputCol="x")
    pipeline, fitted = Pipeline(stages=[assembler, estimator]), PipelineModel([assembler, model])
    grid = ParamGridBuilder().addGrid(estimator.epochs, [1, 2]).build()
    tuned = {"estimator": pipeline, "estimatorParamMaps": grid, "evaluator": RegressionEvaluator()}
    return {
        "estimator": estimator,
        "model": model,
        "pipeline": pipeline,
        "pipeline_model": fitted,
        "folds": CrossValidatorModel(fitted, avgMetrics=[0.5, 0.6])._set(**tuned, numFolds=2),
        "split": TrainValidationSplitModel(fitted, validationMetrics=[0.5, 0.6])._set(**tuned),
        "one_vs_rest": OneVsRestModel([model, model.copy()])._set(classifier=estimator),
    }


def large():
    return {"large": TorchModel(model=linear(8_000_000), feature_columns=["x"], label_columns=["y"])}


def of_keras():
    import keras

    net = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(model=net, optimizer="sgd", loss="mse", feature_cols=["x"], label_cols=["y"])
    return {
        "keras_estimator": estimator,
        "keras_model": KerasModel(model=net, feature_columns=["x"], label_columns=["y"]),
    }


def of_lightning():
    from spark_estimator.lightning import TorchEstimator as LightningEstimator

    return {"lightning_estimator": LightningEstimator(model=linear(), loss=torch.nn.functional.mse_loss)}


def of_transformers():
    import tokenizers
    import transformers

    words = tokenizers.models.WordLevel({"[UNK]": 0, "[PAD]": 1, "calm": 2}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="[UNK]", pad_token="[PAD]"
    )
    config = transformers.BertConfig(
        vocab_size=3, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, num_labels=2
    )
    net = transformers.BertForSequenceClassification(config)
    model = TransformersModel(
        model=net,
        tokenizer=tokenizer,
        task="classification",
        labels=["a", "b"],
        feature_columns=["text"],
        label_columns=["y"],
    )
    return {"transformers_model": model}


MAKERS = {
    "torch": of_torch,
    "one": one_model,
    "large": large,
    "keras": of_keras,
    "lightning": of_lightning,
    "transformers": of_transformers,
}


def told(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def kinds_below(loaded):
    """The class of an object, and those of the objects in it; of a model its number."""
    lists = (getattr(loaded, name, None) for name in ("stages", "models"))  # of an unfitted Pipeline a Param
    inside = [item for value in lists if isinstance(value, list) for item in value]
    inside += [loaded.bestModel] if hasattr(loaded, "bestModel") else []
    inside += loaded.getStages() if hasattr(loaded, "getStages") else []
    number = f"={float(loaded.getModel().weight[0, 0])}" if type(loaded) is TorchModel else ""
    return type(loaded).__name__ + number + "".join(f" {kinds_below(item)}" for item in inside)


def main():
    spark = session(where)
    objects = {name: value for kind in kinds.split(",") for name, value in MAKERS[kind]().items()}
    result = {}
    for folder in folders:
        for name, value in objects.items():
            path = f"{folder}/{name}"
            if action == "save":
                result[path] = told(lambda value=value, path=path: value.write().overwrite().save(path))
                result[path] = result[path] or told(lambda value=value, path=path: value.write().overwrite().save(path))
            else:
                result[path] = told(lambda value=value, path=path: kinds_below(type(value).load(path)))
    print("RESULT " + json.dumps(result), flush=True)
    spark.stop()


main()
