"""`TorchModel`: a trained PyTorch model that predicts on DataFrames, arrays and pandas frames."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field
from spark_estimator.estimators import model
from spark_estimator.estimators.params import with_params
from spark_estimator.estimators.torch import files as torch_files
from spark_estimator.estimators.torch.keywords import TorchModelKeywords
from spark_estimator.estimators.torch.params import MODEL
from spark_estimator.estimators.torch.predictor import TorchPredictor

_Self = TypeVar("_Self", bound="TorchModel")


@with_params(MODEL)
class TorchModel(TorchModelKeywords, model.TableModel):
    """What `TorchEstimator.fit` returns: see `model.TableModel`. Its model is a `torch.nn.Module`."""

    _public_path = "spark_estimator.TorchModel"
    _model: nn.Module

    def getModel(self) -> nn.Module:  # Horovod's name
        """The trained module, on the CPU, in eval mode. It is this model's own: changes to it change predictions."""
        return self._model

    def setModel(self, value: nn.Module) -> TorchModel:
        """Takes another module with the same inputs and outputs. Returns self."""
        if not isinstance(value, nn.Module):
            raise TypeError(f"model is a torch.nn.Module; it was {value!r}.")
        self._model = value.eval()
        return self

    def module(self) -> nn.Module:
        """A copy of the trained module, for use without Spark."""
        return copy.deepcopy(self._model)

    @classmethod
    def load(
        cls: type[_Self],
        path: str,
        *,
        model: nn.Module | None = None,
        decoders: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> _Self:
        """Loads what `save` has written, and runs no code from it unless it is trusted.

        Args:
            path: a folder that this process sees.
            model: a module of the same architecture, which then gets the trained numbers; None: it is read too.
            decoders: as it was trained with, if it was; None: they are read too, which needs trust.
            trust: runs code from the folder where loading needs it; only for folders from a source that you trust.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading its architecture would run code
                from it.
        """
        return torch_files.load(cls, path, model, decoders, trust=trust)

    def _predictor(self, inputs: Sequence[Field], decoders: Mapping[str, Decoder] | None = None) -> TorchPredictor:
        return TorchPredictor.of(self._model, inputs, self._outputs, self._value("batch_size"), decoders)

    def _write_files(self, folder: Path) -> None:
        torch_files.write(self, self._model, folder)
