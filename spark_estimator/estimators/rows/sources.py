"""Where the first rows of a training are looked at: a DataFrame, Parquet files, what a transformation makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow

from spark_estimator.data.columns import Readable, check_decoded, raw, readable, selected
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.first_rows import decoded
from spark_estimator.data.numbers import readable_in
from spark_estimator.data.parquet import DataFiles, FileRows
from spark_estimator.data.preparation import Preparation
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# As many as show whether arrays are of one length, and whether whole numbers are whole.
SAMPLE_ROWS = 100

Looked = tuple[pyarrow.RecordBatch, Preparation, list[Readable]]


class Source:
    """Rows to look at.

    Attributes:
        names: of all columns.
        given: what a transformation is given; empty without one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.given: Sequence[Readable] = ()

    def read(self, name: str) -> Readable:
        """How a column is read.

        Raises:
            DataError: there is none, or its type cannot be trained on.
        """
        raise NotImplementedError

    def raw(self, name: str) -> Readable:
        """A column as it is, for a transformation."""
        raise NotImplementedError

    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """At most a hundred rows, with the columns' own names."""
        raise NotImplementedError

    def first_rows(self, fed: Sequence[Readable], preparation: Preparation) -> Looked:
        """At most a hundred rows, as ``c0``, ``c1`` and so on.

        Returns:
            They, and what they have shown of the user's functions: the preparation with it, and the columns.
        """
        raise NotImplementedError

    def longest(self, fed: Sequence[Readable], places: Sequence[int], nulls: str | float) -> list[int]:
        """The most values that a row has in each of some columns, over all rows."""
        raise NotImplementedError


class FrameSource(Source):
    """A DataFrame: each look is a Spark job."""

    def __init__(self, frame: DataFrame, decoders: Mapping[str, Decoder]) -> None:
        self._frame = frame
        self._schema = frame.schema
        self._decoders = decoders
        super().__init__(self._schema.names)

    def read(self, name: str) -> Readable:
        """As `Source.read`."""
        return readable(self._schema, name, name in self._decoders)

    def raw(self, name: str) -> Readable:
        """As `Source.raw`."""
        return raw(self._schema, name)

    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """As `Source.raw_rows`."""
        return _first(self._frame.select(*(one.stored for one in columns)))

    def first_rows(self, fed: Sequence[Readable], preparation: Preparation) -> Looked:
        """As `Source.first_rows`."""
        # Floating columns as doubles: whether their numbers are whole shall be seen.
        dtypes = ["float64" if one.dtype == "float32" and not one.is_array else one.dtype for one in fed]
        rows = _first(selected(self._frame, fed, dtypes, preparation.nulls))
        return decoded(rows, fed, preparation, [f"c{number}" for number in range(len(fed))])

    def longest(self, fed: Sequence[Readable], places: Sequence[int], nulls: str | float) -> list[int]:
        """As `Source.longest`."""
        from pyspark.sql import functions

        # Of rows that are dropped nothing counts, so that there all columns have to be read.
        read = list(range(len(fed))) if nulls == "drop" else list(places)
        frame = selected(self._frame, [fed[n] for n in read], [fed[n].dtype for n in read], nulls)
        sizes = [functions.max(functions.size(f"c{read.index(place)}")) for place in places]
        return [max(0, int(one or 0)) for one in frame.agg(*sizes).collect()[0]]


class FileSource(Source):
    """Parquet files, which this process reads."""

    def __init__(self, files: DataFiles, decoders: Mapping[str, Decoder]) -> None:
        self._files = files
        self._decoders = decoders
        super().__init__(list(files.kinds))

    def read(self, name: str) -> Readable:
        """As `Source.read`."""
        return readable_in(self._files.kinds, name, name in self._decoders)

    def raw(self, name: str) -> Readable:
        """As `Source.raw`."""
        if name not in self._files.kinds:
            raise DataError(f"there is no column {name!r}: the files have {', '.join(map(repr, self.names))}.")
        return Readable(name, False, "", None, self._files.kinds[name])

    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """As `Source.raw_rows`."""
        names = [one.name for one in columns]
        self._files.check(names)
        for batch in self._files.batches(names, 0, 1, SAMPLE_ROWS):
            if batch.num_rows:
                return batch
        return pyarrow.RecordBatch.from_pydict({name: [] for name in names})

    def first_rows(self, fed: Sequence[Readable], preparation: Preparation) -> Looked:
        """As `Source.first_rows`."""
        self._files.check([one.name for one in fed])
        rows = FileRows(self._files, replace(preparation, marker=None, decoders={}))
        first = rows.first_rows([one.dtype for one in fed], SAMPLE_ROWS)
        return decoded(first, fed, preparation, [f"c{number}" for number in range(len(fed))])

    def longest(self, fed: Sequence[Readable], places: Sequence[int], nulls: str | float) -> list[int]:
        """As `Source.longest`."""
        read = list(range(len(fed))) if nulls == "drop" else list(places)
        rows = FileRows(self._files, Preparation(tuple(fed[n].name for n in read), nulls=nulls))
        return rows.longest([fed[n].dtype for n in read], [f"c{read.index(place)}" for place in places])


class TransformedSource(Source):
    """What a transformation makes of another source's first rows. It is called once, when this is made."""

    def __init__(self, inner: Source, preparation: Preparation) -> None:
        transformation = preparation.transformation
        assert transformation is not None
        made = {one[0] for one in transformation.edited} - set(inner.names)
        names = [name for name in dict.fromkeys([*preparation.read, *transformation.removed]) if name not in made]
        self.given = [inner.raw(name) for name in names]
        for name, one in zip(names, self.given, strict=True):
            if name in preparation.decoders:
                check_decoded(name, one.kind)
        rows = inner.raw_rows(self.given)
        if not rows.num_rows:
            raise DataError("the DataFrame has no rows.")
        self._preparation, self._columns = replace(preparation, given=tuple(names)).passed(rows)
        assert self._preparation.transformation is not None
        self._shown = self._preparation.transformation.shown
        self.names = list(self._columns)

    def read(self, name: str) -> Readable:
        """As `Source.read`."""
        found = readable_in({one: shown.words for one, shown in self._shown.items()}, name)
        shown = self._shown[name]
        return replace(
            found,
            dtype="float32" if shown.is_bytes else found.dtype,
            shape=shown.shape,
            kept="uint8" if shown.is_bytes else "",
        )

    def first_rows(self, fed: Sequence[Readable], preparation: Preparation) -> Looked:
        """As `Source.first_rows`."""
        plain = replace(preparation, marker=None, decoders={}, transformation=None)
        rows = pyarrow.RecordBatch.from_arrays(list(self._columns.values()), names=list(self._columns))
        return plain.batch(rows, [one.dtype for one in fed]), self._preparation, list(fed)

    def longest(self, fed: Sequence[Readable], places: Sequence[int], nulls: str | float) -> list[int]:
        """As `Source.longest`; to find it out would need one more call of the function for each row."""
        raise DataError(
            f"padding of {fed[places[0]].name!r}, which transformation_fn makes: say its width in input_shapes (or in "
            "label_shapes)."
        )


def _first(frame: DataFrame) -> pyarrow.RecordBatch:
    limited = frame.limit(SAMPLE_ROWS)
    if hasattr(limited, "toArrow"):
        table = limited.toArrow()
    else:  # Spark 3.5
        table = pyarrow.Table.from_pandas(limited.toPandas(), preserve_index=False)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pyarrow.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0]
