"""The columns that an estimator's parameters select, and what is done with them. Reads no data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_estimator.data.categories import CategoryEncoder, Shared, is_text, make_encoders
from spark_estimator.data.columns import Readable, did_you_mean
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.nulls import STATISTICS, Nulls, get_policy, has_statistics
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError

_NUMBERS = re.compile(r"(tiny|small|big)?int|float|double|decimal\(.*\)")


@dataclass(frozen=True)
class RowRequest:
    """The columns of a training, by name, and how their values are prepared.

    Attributes:
        features: None: all columns that have no other role.
        labels: as the estimator's parameter has them.
        weight: the column of sample weights; None: there is none.
        marker: the column that marks rows for validation; None: there is none.
        nulls: "error", "drop", or the number that replaces nulls; for all columns, or by the column's name.
        ragged: what is done with arrays of different lengths.
        decoders: by the column's name.
        transformation: None: there is none.
        by_name: a batch has what a transformation that takes rows returns, by name; other columns have no role.
        encoders: of features with categories, by the column's name.
        transform_validation: rows for validation are transformed, too.
        held_share: of the rows, which is for validation; 0: none is, or a column or separate files decide.
    """

    features: tuple[str, ...] | None
    labels: tuple[str, ...]
    weight: str | None
    marker: str | None
    nulls: Nulls
    ragged: Ragged
    decoders: Mapping[str, Decoder]
    transformation: Transformation | None
    by_name: bool = False
    encoders: Mapping[str, CategoryEncoder] = field(default_factory=dict)
    transform_validation: bool = True
    held_share: float = 0.0

    @classmethod
    def from_parameters(
        cls, value: Callable[[str], Any], validation: float | str | None, *, separate: bool = False
    ) -> RowRequest:
        """Return the request that an estimator's parameters make.

        Args:
            value: returns a parameter by its name.
            validation: the estimator's parameter; None where rows for validation are in separate files.
            separate: they are.

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
            validation if isinstance(validation, str) else None,
            value("nulls"),
            Ragged(value("padding"), value("input_shapes"), value("label_shapes")),
            {name: Decoder(name, decoder) for name, decoder in (value("decoders") or {}).items()},
            None if function is None else Transformation(function, edited, removed),
            encoders=make_encoders(value("categories")),
            transform_validation=value("transform_validation") or not (validation or separate),
            held_share=validation if isinstance(validation, float) else 0.0,
        )

    def check_categories(self, features: Sequence[str]) -> None:
        """Raise DataError for categories of columns that are not features.

        Raises:
            DataError: the text names the column.
        """
        others = {*self.labels, *filter(None, (self.weight, self.marker))}
        for name in self.encoders:
            if name in others:
                raise DataError(
                    f"categories refers to {name!r}, which is a label, the sample weight or the validation column: "
                    "categories are for features. pyspark.ml.feature.StringIndexer numbers the classes of a label."
                )
            if name not in features:
                raise DataError(
                    f"categories refers to {name!r}, which isn't a feature: {', '.join(features)}."
                    + did_you_mean(name, features)
                )

    def check_shared(self, columns: Sequence[Readable]) -> None:
        """Raise DataError for columns of texts and of numbers that share their ids.

        Args:
            columns: that become tensors.

        Raises:
            DataError: the text names the columns.
        """
        kinds = {column.name: column.kind for column in columns}
        for name, encoder in self.encoders.items():
            if isinstance(encoder, Shared):
                kind, other = kinds[name], kinds[encoder.of.name]
                if is_text(kind.removeprefix("array<")) != is_text(other.removeprefix("array<")):
                    raise DataError(
                        f"categories[{name!r}] is {encoder.of.name!r}, but {name!r} has the type {kind} and "
                        f"{encoder.of.name!r} {other}: texts and numbers share no ids. Cast one of the columns."
                    )

    def check_nulls(self, columns: Sequence[Readable]) -> None:
        """Raise DataError for a policy of a column that is not read, and a replacement that an integer column cannot
        hold.

        Args:
            columns: those that become tensors.

        Raises:
            DataError: the text names the column.
        """
        if has_statistics(self.nulls) and self.transformation is not None:
            raise DataError(
                "nulls='mean' and 'median' can't be combined with transformation_fn: replace nulls in the function, or "
                "before fit()."
            )
        names = [column.name for column in columns]
        for name in self.nulls if isinstance(self.nulls, Mapping) else ():
            if name not in names:
                raise DataError(
                    f"nulls refers to {name!r}, which isn't a feature, a label or the sample weight: "
                    f"{', '.join(names)}.{did_you_mean(name, names)}"
                )
        for column in columns:
            policy = get_policy(self.nulls, column.name)
            if isinstance(self.nulls, Mapping) and policy in STATISTICS:
                self._check_statistic(column, str(policy))
            if isinstance(policy, str) or (float(policy).is_integer() and abs(policy) < 1 << 63):
                continue
            if column.dtype == "int64" and not (column.is_array or column.ids):
                raise DataError(
                    f"nulls={policy!r} isn't valid for integer column {column.name!r} ({column.kind}). Use a whole "
                    "number of at most 64 bits, or cast the column to double."
                )

    def find_statistics(self, features: Sequence[Readable]) -> dict[str, str]:
        """Return 'mean' or 'median', by the features whose nulls it replaces: for all columns, those that hold
        numbers.
        """
        named = [column.name for column in features if _holds_numbers(column) and column.name not in self.encoders]
        policies = {name: get_policy(self.nulls, name) for name in named}
        return {name: str(policy) for name, policy in policies.items() if policy in STATISTICS}

    def _check_statistic(self, column: Readable, statistic: str) -> None:
        if column.name in (*self.labels, self.weight):
            raise DataError(
                f"nulls={statistic!r} isn't valid for {column.name!r}, which is no feature: 'drop' leaves its rows out."
            )
        if not _holds_numbers(column) or column.name in self.encoders:
            raise DataError(
                f"nulls={statistic!r} isn't valid for column {column.name!r} ({column.kind}): it is for columns of "
                "numbers."
            )


def _holds_numbers(column: Readable) -> bool:
    return not column.is_array and not column.ids and _NUMBERS.fullmatch(column.kind) is not None
