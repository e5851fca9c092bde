"""`TorchModel`: a trained PyTorch model that predicts on DataFrames, arrays and pandas frames."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators import model
from spark_estimator.estimators.inference.prediction_columns import OutputKind, get_output_kind
from spark_estimator.estimators.params import MODEL_PARTS, add_params
from spark_estimator.estimators.persistence.horovod_files import HorovodFile
from spark_estimator.estimators.persistence.remote_folders import open_folder
from spark_estimator.estimators.torch import files as torch_files
from spark_estimator.estimators.torch.check import get_floating_type
from spark_estimator.estimators.torch.keywords import TorchModelKeywords
from spark_estimator.estimators.torch.params import MODEL
from spark_estimator.estimators.torch.predictor import TorchPredictor
from spark_estimator.estimators.torch.reading import load_module

_Self = TypeVar("_Self", bound="TorchModel")


@add_params(MODEL, MODEL_PARTS)
class TorchModel(TorchModelKeywords, model.TableModel):
    """What `TorchEstimator.fit` returns: see `model.TableModel`. Its model is a `torch.nn.Module`."""

    _public_path = "spark_estimator.TorchModel"

    def getModel(self) -> nn.Module:  # Horovod's name
        """Return the trained module, on the CPU, in eval mode. It is this model's own: changes to it change
        predictions.
        """
        module: nn.Module = self._model
        return module

    def setModel(self, value: nn.Module) -> TorchModel:
        """Set another module with the same inputs and outputs. Return self."""
        if not isinstance(value, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module; got {value!r}.")
        return self._set(model=value.eval())

    def module(self) -> nn.Module:
        """Return a copy of the trained module, for use without Spark."""
        module: nn.Module = copy.deepcopy(self._model)
        return module

    @classmethod
    def load(
        cls: type[_Self],
        path: str,
        *,
        model: nn.Module | None = None,
        decoders: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> _Self:
        """Load what `save` has written, and run no code from it unless it is trusted.

        With trust, also what Horovod's ``save`` has written: ``horovod.spark.torch`` and ``horovod.spark.lightning``.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system.
            model: a module of the same architecture, which then gets the trained numbers; None: it is read too.
            decoders: as it was trained with, if it was; None: they are read too, which needs trust.
            trust: runs code from the folder where loading needs it; only for folders from a source that you trust.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading its architecture would run
                code from it.
        """
        with open_folder(path) as folder:
            saved = HorovodFile.read(folder)
            if saved is not None:
                return cls._from_horovod(saved, model, trust=trust)
            return torch_files.load(cls, folder, model, decoders, trust=trust)

    @classmethod
    def _from_horovod(cls: type[_Self], saved: HorovodFile, model: nn.Module | None, *, trust: bool) -> _Self:
        values = saved.load_values("TorchModel", trust=trust)
        if "outputCols" in values:
            values["output_cols"] = values.pop("outputCols")
        if isinstance(values.get("history"), Mapping):  # Lightning's: what was logged last
            values["history"] = [{"logged": dict(values["history"])}]
        module = load_module(values["model"])
        if model is not None:
            filled = copy.deepcopy(model)
            filled.load_state_dict(module.state_dict())
            module = filled
        values["model"] = module.eval()
        names = {row.name for row in cls._rows}
        loaded = cls(**{name: value for name, value in values.items() if name in names})
        loaded._resetUid(saved.uid)
        return loaded

    def get_prediction_fn(self) -> Callable[[nn.Module, Any], Any]:  # Horovod's name
        """Return a function of (module, row): the module's outputs for one row, a Row or a mapping with the feature
        columns.

        It returns an array of a row's values, or a list of such arrays where the module has several outputs. For many
        rows at a time there are `transform` and `predict`. A subclass that overrides it has `transform` call its
        function for each row, with all columns of the DataFrame.
        """
        encoder, widths, zone = self._make_encoder(self._inputs), self._outputs, self._known.zone

        def predict(module: nn.Module, row: Any) -> Any:
            predictor = TorchPredictor(b"", encoder, widths, 1, zone=zone)
            outputs = [output.reshape(-1) for output in predictor.call_on_row(module.eval(), row)]
            predictor.finish(module)
            return outputs[0] if len(outputs) == 1 else outputs

        return predict

    @property
    def _floating(self) -> str:
        return get_floating_type(self._model)

    def _find_output_kinds(self) -> Sequence[OutputKind] | None:
        losses = self._value("loss") or []
        losses = list(losses) if isinstance(losses, (list, tuple)) else [losses]
        labels = self._value("label_columns") or []
        return [get_output_kind(loss) for loss in (losses * len(labels) if len(losses) == 1 else losses)] or None

    def _make_predictor(self, encoder: RowEncoder) -> TorchPredictor:
        value = self._value
        options = {"device": value("inference_device"), "precision": value("inference_precision")}
        return TorchPredictor.of(self._model, encoder, self._widths, value("batch_size"), **options)

    def _write_files(self, folder: Path) -> None:
        torch_files.write(self, self._model, folder)
