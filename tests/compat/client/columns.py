"""Parameters that estimators and models of the package have in common, as mixins with constructors."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters


class HasLabelCol(Params):
    label_col = Param(Params._dummy(), "label_col", "the column of labels", typeConverter=TypeConverters.toString)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(label_col="label")

    def setLabelCol(self, value: str) -> Any:
        return self._set(label_col=value)

    def getLabelCol(self) -> str:
        return self.getOrDefault(self.label_col)  # type: ignore[no-any-return]


class HasTextCol(Params):
    text_col = Param(Params._dummy(), "text_col", "the column of texts", typeConverter=TypeConverters.toString)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(text_col="text")

    def getTextCol(self) -> str:
        return self.getOrDefault(self.text_col)  # type: ignore[no-any-return]


class HasImageCol(Params):
    image_col = Param(Params._dummy(), "image_col", "the column of paths", typeConverter=TypeConverters.toString)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(image_col="image")

    def getImageCol(self) -> str:
        return self.getOrDefault(self.image_col)  # type: ignore[no-any-return]


class HasPredictionCol(Params):
    prediction_col = Param(
        Params._dummy(), "prediction_col", "the column of predicted classes", typeConverter=TypeConverters.toString
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(prediction_col="prediction")

    def getPredictionCol(self) -> str:
        return self.getOrDefault(self.prediction_col)  # type: ignore[no-any-return]


class TextParams(HasLabelCol, HasTextCol, HasPredictionCol):
    def __init__(self) -> None:
        super().__init__()


class VisionParams(HasLabelCol, HasImageCol, HasPredictionCol):
    def __init__(self) -> None:
        super().__init__()
