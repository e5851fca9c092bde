"""Classifies images by their paths: random flips row by row, and a plain forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from horovod.spark.lightning import TorchEstimator, TorchModel
from lightning.pytorch import LightningModule
from pyspark.ml.param import Param, Params
from torch import nn

from tests.compat.client.backend import backend_for
from tests.compat.client.columns import VisionParams
from tests.compat.client.keywords import recorded


def opened(path: str) -> torch.Tensor:
    """[1, 4, 4] the image in a file."""
    return torch.from_numpy(numpy.load(Path(path)).astype(numpy.float32)).reshape(1, 4, 4)


class LitVision(LightningModule):  # type: ignore[misc]  # without types here
    def __init__(self, num_classes: int, image_col: str, label_col: str) -> None:
        super().__init__()
        self.image_col, self.label_col = image_col, label_col
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x.float())
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        output = self(x=batch[self.image_col].reshape(-1, 1, 4, 4))
        return nn.functional.cross_entropy(output, batch[self.label_col].long())


class VisionModel(TorchModel, VisionParams):  # type: ignore[misc]  # the aliases have no types
    transform_fn = Param(Params._dummy(), "transform_fn", "of an image")

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
        transform_fn: Any = None,
        label_col: str = "label",
        image_col: str = "image",
        prediction_col: str = "prediction",
    ) -> None:
        super().__init__()
        self._setDefault(
            optimizer=None,
            loss=None,
            loss_constructors=None,
            input_shapes=None,
            transform_fn=None,
            outputCols=["output"],
        )
        self._set(**self._keywords)
        # Fails where the constructor is called without arguments, as a reader of saved models might.
        self.size = self.getInputShapes()[0][-1]
        self.setFeatureColumns([self.getImageCol()])
        self.setLabelColoumns([self.getLabelCol()])

    def get_prediction_fn(self) -> Callable[[Any, Any], Any]:
        image_col, shape = self.getImageCol(), self.getInputShapes()[0]

        def predict(model: Any, row: Any) -> Any:
            with torch.no_grad():
                return model(opened(row[image_col]).reshape(shape))

        return predict


class VisionClassifier(TorchEstimator, VisionParams):  # type: ignore[misc]  # the aliases have no types
    @recorded
    def __init__(self, num_classes: int = 2, **keywords: Any) -> None:
        super().__init__()
        self._keywords.pop("num_classes", None)
        self._set(**self._keywords)
        self.setFeatureCols([self.getImageCol()])
        self.setLabelCols([self.getLabelCol()])
        self.setInputShapes([[-1, 1, 4, 4]])
        image_col, label_col = self.getImageCol(), self.getLabelCol()

        def read(row: Any) -> dict[str, Any]:
            image = opened(row[image_col])
            image = image.flip(-1) if numpy.random.random() < 0.5 else image
            return {image_col: image.numpy(), label_col: row[label_col]}

        self.setTransformationFn(read)
        self.setTransformationEditFields([(image_col, numpy.float32, (1, 4, 4), False)])
        torch.manual_seed(1)
        self._set(model=LitVision(num_classes, image_col, label_col))

    def _get_or_create_backend(self) -> Any:
        return backend_for(self.getBackend(), self.getNumProc(), self.getVerbose())

    def get_model_class(self) -> Any:
        return VisionModel

    def _get_model_kwargs(self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any) -> dict[str, Any]:
        keywords = super()._get_model_kwargs(model, history, optimizer, run_id, metadata)
        names = ("history", "model", "optimizer", "input_shapes", "run_id", "_metadata", "loss", "loss_constructors")
        return {name: keywords[name] for name in names}
