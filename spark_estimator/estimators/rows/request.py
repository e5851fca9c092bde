"""The columns that an estimator's parameters select, and what is done with them. Reads no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.data.columns import Readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError


@dataclass(frozen=True)
class RowRequest:
    """The columns of a training, by name, and how their values are prepared.

    Attributes:
        features: None: all columns that have no other role.
        labels: as the estimator's parameter has them.
        weight: the column of sample weights; None: there is none.
        marker: the column that marks rows for validation; None: there is none.
        nulls: "error", "drop", or the number that replaces nulls.
        ragged: what is done with arrays of different lengths.
        decoders: by the column's name.
        transformation: None: there is none.
        by_name: a batch has what a transformation that takes rows returns, by name; other columns have no role.
    """

    features: tuple[str, ...] | None
    labels: tuple[str, ...]
    weight: str | None
    marker: str | None
    nulls: str | float
    ragged: Ragged
    decoders: Mapping[str, Decoder]
    transformation: Transformation | None
    by_name: bool = False

    @classmethod
    def of(cls, value: Callable[[str], Any], marker: str | None) -> RowRequest:
        """The request that an estimator's parameters make.

        Args:
            value: returns a parameter by its name.
            marker: as the attribute.

        Raises:
            ValueError: two parameters contradict each other.
        """
        features = value("feature_cols")
        function = value("transformation_fn")
        removed = tuple(value("transformation_removed_fields") or ())
        edited = tuple((*edit[:2], tuple(edit[2]), edit[3]) for edit in value("transformation_edit_fields") or ())
        if function is None and (removed or edited):
            raise ValueError(
                "transformation_edit_fields and transformation_removed_fields need transformation_fn, which is None."
            )
        return cls(
            None if features is None else tuple(features),
            tuple(value("label_cols")),
            value("sample_weight_col"),
            marker,
            value("nulls"),
            Ragged(value("padding"), value("input_shapes"), value("label_shapes")),
            {name: Decoder(name, decoder) for name, decoder in (value("decoders") or {}).items()},
            None if function is None else Transformation(function, edited, removed),
        )

    def check_replacement(self, columns: Sequence[Readable]) -> None:
        """Refuses a replacement for nulls that an integer column cannot hold.

        Args:
            columns: those that become tensors.

        Raises:
            DataError: the text names the column.
        """
        if isinstance(self.nulls, str) or (float(self.nulls).is_integer() and abs(self.nulls) < 1 << 63):
            return
        for column in columns:
            if column.dtype == "int64" and not column.is_array:
                raise DataError(
                    f"nulls={self.nulls!r} isn't valid for integer column {column.name!r} ({column.kind}). Use a whole "
                    "number of at most 64 bits, or cast the column to double."
                )
