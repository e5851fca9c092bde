"""Classifies texts: a LightningModule whose forward takes keywords, and a tokenizer that is called row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from horovod.spark.lightning import TorchEstimator, TorchModel
from lightning.pytorch import LightningModule
from pyspark.ml.param import Param, Params
from pyspark.sql.functions import col, udf
from pyspark.sql.types import DoubleType
from torch import nn

from tests.compat.client.backend import backend_for
from tests.compat.client.columns import TextParams
from tests.compat.client.keywords import recorded


class Tokenizer:
    """Numbers words by their letters; all texts get as many numbers."""

    def __call__(self, text: str, max_length: int) -> dict[str, torch.Tensor]:
        if not isinstance(text, str):
            raise ValueError("the text must be a string")
        numbers = [sum(map(ord, word)) % 50 + 1 for word in text.split()][:max_length]
        ids = torch.tensor(numbers + [0] * (max_length - len(numbers)))
        return {"input_ids": ids[None], "attention_mask": (ids > 0).long()[None]}


class LitText(LightningModule):  # type: ignore[misc]  # without types here
    def __init__(self, num_classes: int, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(64, 8)
        self.classes = nn.Linear(8, num_classes)

    def forward(self, **inputs: torch.Tensor) -> Any:
        mask = inputs["attention_mask"].unsqueeze(-1)
        logits = self.classes((self.embedding(inputs["input_ids"]) * mask).sum(1) / mask.sum(1))
        loss = nn.functional.cross_entropy(logits, inputs["labels"]) if "labels" in inputs else None
        return {"logits": logits, "loss": loss}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        loss: torch.Tensor = self(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self(**batch)["loss"]
        self.log("val_loss", loss)
        return loss

    def validation_epoch_end(self, outputs: list[torch.Tensor]) -> None:
        self.log("avg_val_loss", torch.stack(outputs).mean() if outputs else float("inf"))


class TextModel(TorchModel, TextParams):  # type: ignore[misc]  # the aliases have no types
    tokenizer = Param(Params._dummy(), "tokenizer", "the tokenizer")
    max_token_len = Param(Params._dummy(), "max_token_len", "numbers per text")

    @recorded
    def __init__(
        self,
        history: Any = None,
        model: Any = None,
        input_shapes: Any = None,
        optimizer: Any = None,
        run_id: str | None = None,
        _metadata: Any = None,
        loss: Any = None,
        loss_constructors: Any = None,
        tokenizer: Any = None,
        max_token_len: int = 8,
        label_col: str = "label",
        text_col: str = "text",
        prediction_col: str = "prediction",
    ) -> None:
        super().__init__()
        self._setDefault(
            optimizer=None,
            loss=None,
            loss_constructors=None,
            input_shapes=None,
            tokenizer=None,
            max_token_len=8,
            feature_columns=["text"],
            label_columns=["label"],
            outputCols=["output"],
        )
        self._set(**self._keywords)
        self.setFeatureColumns([self.getTextCol()])
        self.setLabelColoumns([self.getLabelCol()])

    def getOptimizer(self) -> None:
        return None

    def get_prediction_fn(self) -> Callable[[Any, Any], Any]:
        text_col, length = self.getTextCol(), self.getOrDefault(self.max_token_len)
        tokenizer = self.getOrDefault(self.tokenizer)

        def predict(model: Any, row: Any) -> Any:
            with torch.no_grad():
                return model(**tokenizer(row[text_col], length))["logits"]

        return predict

    def _transform(self, df: Any) -> Any:
        largest = udf(lambda vector: float(numpy.argmax(vector)), returnType=DoubleType())
        return super()._transform(df).withColumn(self.getPredictionCol(), largest(col(self.getOutputCols()[0])))


class TextClassifier(TorchEstimator, TextParams):  # type: ignore[misc]  # the aliases have no types
    num_classes = Param(Params._dummy(), "num_classes", "how many classes")
    tokenizer = Param(Params._dummy(), "tokenizer", "the tokenizer")
    max_token_len = Param(Params._dummy(), "max_token_len", "numbers per text")
    learning_rate = Param(Params._dummy(), "learning_rate", "of the optimizer")

    @recorded
    def __init__(
        self,
        num_classes: int | None = None,
        tokenizer: Any = None,
        max_token_len: int = 8,
        learning_rate: float = 0.01,
        num_proc: int | None = None,
        backend: Any = None,
        store: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        verbose: int = 1,
        validation: Any = None,
        callbacks: Any = None,
        train_minibatch_fn: Any = None,
        partitions_per_process: int | None = None,
        loader_num_epochs: int | None = None,
        label_col: str = "label",
        text_col: str = "text",
        prediction_col: str = "prediction",
    ) -> None:
        super().__init__()
        self._setDefault(
            num_classes=None,
            tokenizer=None,
            max_token_len=8,
            learning_rate=0.01,
            feature_cols=["text"],
            label_cols=["label"],
        )
        self._set(**self._keywords)
        self.setFeatureCols([self.getTextCol()])
        self.setLabelCols([self.getLabelCol()])
        self._set_transformation()
        torch.manual_seed(1)
        self._set(model=LitText(self.getOrDefault(self.num_classes), self.getOrDefault(self.learning_rate)))

    def _set_transformation(self) -> None:
        text_col, label_col = self.getTextCol(), self.getLabelCol()
        length, tokenizer = self.getOrDefault(self.max_token_len), self.getOrDefault(self.tokenizer)

        def encoded(row: Any) -> dict[str, Any]:
            encoding = tokenizer(row[text_col], length)
            return {
                "input_ids": encoding["input_ids"].flatten().numpy(),
                "attention_mask": encoding["attention_mask"].flatten().numpy(),
                "labels": torch.tensor(row[label_col], dtype=int),  # type: ignore[call-overload]  # as clients do
            }

        self.setTransformationEditFields(
            [("input_ids", int, None, True), ("attention_mask", int, None, True), ("labels", int, None, False)]
        )
        self.setTransformationRemovedFields([text_col, label_col])
        self.setTransformationFn(encoded)

    def _fit(self, dataset: Any) -> Any:
        return super()._fit(dataset)

    def _get_or_create_backend(self) -> Any:
        return backend_for(self.getBackend(), self.getNumProc(), self.getVerbose())

    def get_model_class(self) -> Any:
        return TextModel

    def _get_model_kwargs(self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any) -> dict[str, Any]:
        return {
            "history": history,
            "model": model,
            "optimizer": optimizer,
            "input_shapes": self.getInputShapes(),
            "run_id": run_id,
            "_metadata": metadata,
            "loss": self.getLoss(),
            "loss_constructors": self.getLossConstructors(),
            "tokenizer": self.getOrDefault(self.tokenizer),
            "max_token_len": self.getOrDefault(self.max_token_len),
            "label_col": self.getLabelCol(),
            "text_col": self.getTextCol(),
            "prediction_col": self.getPredictionCol(),
        }
