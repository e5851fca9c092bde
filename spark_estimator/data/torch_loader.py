"""`make_torch_dataloader`: a rank's equal share of Parquet files as batches of tensors, in another order each epoch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.collectives.other_launchers.launchers import warn_about_all_rows
from spark_estimator.data.columns import Readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field, find_widths
from spark_estimator.data.first_rows import fit_decoders
from spark_estimator.data.materialize import MANIFEST, find_data_set
from spark_estimator.data.numbers import make_file_readable
from spark_estimator.data.parquet import DataFiles, FileRows, find_files
from spark_estimator.data.parquet_file import open_store, to_local_form
from spark_estimator.data.rank.epoch_rows import EpochRows
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.rank_rows import RankRows, balance
from spark_estimator.data.rank.shares import Batches
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.data.stream.rows import stream_rows
from spark_estimator.data.tables.delta import Version
from spark_estimator.errors import DataError
from spark_estimator.observe.step_times import time_input

_SAMPLE_ROWS = 100


def make_torch_dataloader(
    data: str | Sequence[str] | DataFiles,
    batch_size: int,
    *,
    columns: Sequence[str] | None = None,
    feature_cols: Sequence[str] | None = None,
    label_cols: Sequence[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    nulls: str | float = "error",
    padding: float | Mapping[str, float] | None = None,
    decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    version: Version = None,
    cache_bytes: int | None = None,
    buffer_bytes: int | None = None,
) -> TorchLoader:
    """Read this rank's equal share of Parquet files, once, into its host's spool, and make batches of it.

    With `cache_bytes`, and more rows than that, it reads the files in each epoch: the rows may be more than disk
    and memory hold. They are then mixed by blocks (see `spark_estimator.data.stream.order`).

    On ranks it is a collective: after ``init()``, every rank calls it, with the same arguments. In a process that
    is no rank it reads all rows.

    Args:
        data: a folder, a Delta table's folder, files, or what `files_of` has made of a DataFrame on the driver.
        batch_size: the most rows of a batch; batches of an epoch differ by one row.
        columns: batches are dicts with these, a tensor each; None, with `feature_cols` as well: all columns.
        feature_cols: batches are tuples (features, label, ...): the features side by side in one matrix, ...
        label_cols: ... and a tensor for each of these.
        shuffle: the rows of the share are read in another order in each epoch.
        seed: names the orders.
        nulls: "error" refuses them, "drop" drops their rows, a number replaces them; both treat NaN as null.
        padding: fills up arrays that are shorter than the longest one of their column, at the end; a number for
            all columns, or one for each by name. It costs rank 0 a look at all rows. None: they are refused.
        decoders: by the name of a column of bytes, a function from these to an array, the same shape in all rows.
        storage_options: for fsspec.
        version: of a Delta table: its number, or a moment, in ISO 8601 if it is a text. None: the last one; a job
            that starts again may then find another.
        cache_bytes: the most bytes of rows that a host's disk keeps, for all of its ranks; 0: none. None: all rows.
        buffer_bytes: the most bytes of rows that each rank keeps in memory, where not all are on disk; None: 256 MiB.

    Returns:
        What gives one epoch each time that it is iterated; ``len()`` is the number of its batches.

    Raises:
        DataError: files or columns that cannot be read; the text names them.
        ValueError: both `columns` and `feature_cols` are set, `batch_size` is less than 1, or a limit is negative.
    """
    check_request(batch_size, columns, feature_cols, label_cols)
    limits = RowLimits.from_parameters(cache_bytes, buffer_bytes)
    files = _agree_files(data, storage_options, version)
    as_dict = feature_cols is None
    names = (
        list(files.kinds) if as_dict and columns is None else [*(columns or feature_cols or []), *(label_cols or [])]
    )
    files.check(names)
    decoders_by_name = {name: Decoder(name, function) for name, function in (decoders or {}).items()}
    unknown = next((name for name in decoders_by_name if name not in names), None)
    if unknown is not None:
        raise DataError(f"decoders refers to {unknown!r}, which isn't a column that is read: {', '.join(names)}.")
    rows, columns_of = _inspect(files, names, RowEncoder(tuple(names), nulls=nulls, decoders=decoders_by_name), padding)
    joined = 0 if as_dict else len(feature_cols or ())
    fields = [_make_field(columns_of[number : number + 1], number) for number in range(joined, len(names))]
    if joined:
        fields.insert(0, _make_field(columns_of[:joined], 0))
    is_rank = context.is_initialized()
    if not is_rank:
        warn_about_all_rows("make_torch_dataloader()")
    rank, size = (context.rank(), context.size()) if is_rank else (0, 1)
    stored = Joined.from_fields(fields)
    rows = replace(rows, encoder=rows.encoder.with_fields(stored.stored))
    within = None if limits is None else stream_rows(rows, None, limits, "a loader")
    if within is not None:
        rank_rows: EpochRows = within[0]
    else:
        spool, _ = rows.read(rank, size)
        rank_rows = balance(spool, "a loader") if is_rank else _make_all_rows(spool.matrices, spool.rows)
    return TorchLoader(rank_rows, stored, names if as_dict else None, batch_size, seed if shuffle else None)


def check_request(
    batch_size: int, columns: Sequence[str] | None, feature_cols: Sequence[str] | None, label_cols: Sequence[str] | None
) -> None:
    """Raise ValueError for arguments of `make_torch_dataloader` that contradict each other.

    Raises:
        ValueError: they do.
    """
    if columns is not None and (feature_cols is not None or label_cols is not None):
        raise ValueError("columns makes dicts, feature_cols and label_cols tuples: give the one or the others.")
    if label_cols is not None and feature_cols is None:
        raise ValueError("label_cols was given without feature_cols.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")


class _Reading(enum.Enum):
    """Whether batches of the present epoch, since it was begun or resumed here, were already returned."""

    BEFORE = enum.auto()
    WITHIN = enum.auto()


class TorchLoader:
    """One epoch of batches each time that it is iterated. Made by `make_torch_dataloader`.

    All ranks get as many batches; one that has run out of rows (there are fewer than batches) gets a row again.
    Tensors are copies: write to them as you like.

    ``state_dict()`` returns its position, by the protocol of torchdata's StatefulDataLoader. It is the same on all
    ranks, and another number of ranks may resume from it: the rest of the epoch is read, each row once.
    """

    def __init__(
        self, rows: EpochRows, joined: Joined, names: Sequence[str] | None, batch_size: int, seed: int | None
    ) -> None:
        self._rows = rows
        self._joined = joined
        self._names = names
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0
        # Of the epoch that is being read, or taken up: what other ranks have read of it, and steps after that.
        self._earlier: tuple[dict[str, Any], ...] = ()
        self._steps = 0
        self._state = _Reading.BEFORE

    @property
    def total_rows(self) -> int:
        """Return the rows of all ranks together."""
        return self._rows.total

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch, counted from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin, in the next iteration, that epoch, from its beginning, counted from 0."""
        self._epoch, self._earlier, self._steps, self._state = epoch, (), 0, _Reading.BEFORE

    def state_dict(self) -> dict[str, Any]:
        """Return the position: returned batches count as done. After the last one the next epoch begins."""
        leg = self._rows.make_leg(self._batch_size, self._steps)
        return {"epoch": self._epoch, "seed": self._seed, "rows": self._rows.total, "legs": [*self._earlier, leg]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue, in the next iteration, where another loader of the same rows was, with as many ranks or others.

        On as many ranks, with the same `batch_size`, it gives the batches that would have followed.

        Raises:
            ValueError: that loader had other rows, another order, or stored its rows in another way.
        """
        for name, value in (("seed", self._seed), ("rows", self._rows.total)):
            if state_dict[name] != value:
                raise ValueError(
                    f"the state is of a loader with {name}={state_dict[name]}, and this one has {name}={value}"
                    f"{' (None: shuffle=False)' if name == 'seed' else ''}."
                )
        *earlier, last = [dict(leg) for leg in state_dict["legs"]]
        steps = int(last["steps"])
        if last == self._rows.make_leg(self._batch_size, steps):
            legs = tuple(earlier)
        else:
            legs, steps = (*earlier, last) if steps else tuple(earlier), 0
        if legs:
            self._rows.find_remaining(
                legs, self._make_order(int(state_dict["epoch"]))
            )  # raises where it is of another kind
        self.set_epoch(int(state_dict["epoch"]))
        self._earlier, self._steps = legs, steps

    def _make_order(self, epoch: int) -> tuple[int, int] | None:
        return None if self._seed is None else (self._seed, epoch)

    def __len__(self) -> int:
        return Batches(self._rows.counts, self._batch_size).steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]:
        if self._state is _Reading.WITHIN:  # the iteration before this one was abandoned
            self.set_epoch(self._epoch + 1)
        epoch = self._epoch
        order = self._make_order(epoch)
        rows = self._rows.find_remaining(self._earlier, order) if self._earlier else self._rows
        steps = rows.make_plan(self._batch_size).steps
        self._state = _Reading.WITHIN
        for batch in time_input(rows.read_batches(self._batch_size, None, order, self._steps)):
            tensors = [torch.from_numpy(array) for array in self._joined.split(batch.matrices)]
            self._steps += 1
            if self._steps == steps:
                self.set_epoch(epoch + 1)
            yield tuple(tensors) if self._names is None else dict(zip(self._names, tensors, strict=True))


class _Selection(TorchLoader):
    """Of rows that hold more columns."""

    def __init__(self, *arguments: Any, selected: Sequence[str], features: bool, labels: Sequence[str]) -> None:
        super().__init__(*arguments)
        self._selected = selected
        self._features = features
        self._labels = labels

    def __iter__(self) -> Iterator[dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]:
        for batch in super().__iter__():
            assert isinstance(batch, dict)
            if not self._features:
                yield {name: batch[name] for name in self._selected}
                continue
            columns = [batch[name] for name in self._selected]
            if len(columns) > 1:
                dtype = torch.float64 if any(column.dtype == torch.float64 for column in columns) else torch.float32
                columns = [torch.cat([column.reshape(len(column), -1).to(dtype) for column in columns], 1)]
            elif columns[0].dim() == 1:
                columns = [columns[0].reshape(-1, 1)]
            yield (*columns, *(batch[name] for name in self._labels))


def make_loader(
    rows: EpochRows,
    joined: Joined,
    names: Sequence[str],
    selected: Sequence[str],
    labels: Sequence[str] | None,
    batch_size: int,
    seed: int | None,
    feature_cols: Sequence[str] | None,
) -> TorchLoader:
    """Return the loader of rows that this rank has already, `selected` and `labels` of their columns `names`."""
    return _Selection(
        rows, joined, names, batch_size, seed, selected=selected, features=feature_cols is not None, labels=labels or ()
    )


def _agree_files(data: Any, storage_options: Mapping[str, Any] | None, version: Version) -> DataFiles:
    """Return the files as rank 0 finds them: listings at different moments may differ. A collective."""
    if isinstance(data, DataFiles):
        return data
    if hasattr(data, "sparkSession"):
        raise DataError(
            "a DataFrame stays on the driver: call spark_estimator.data.files_of(df) there, and give what it returns "
            "to the function that the ranks run."
        )
    result: DataFiles | str = ""
    if not context.is_initialized():
        return _list_files(data, storage_options, version)
    if context.rank() == 0:
        try:
            result = _list_files(data, storage_options, version)
        except Exception as error:
            result = f"{type(error).__name__}: {error}" if not isinstance(error, DataError) else str(error)
    result = broadcast_object(result, 0, "files of a loader")
    if isinstance(result, str):
        raise DataError(result)
    return result


def _list_files(data: str | Sequence[str], storage_options: Mapping[str, Any] | None, version: Version) -> DataFiles:
    if isinstance(data, str):
        store = open_store(to_local_form(data), storage_options)
        folder = store.get_full_path(to_local_form(data))
        if store.exists(f"{folder}/{MANIFEST}"):
            return find_data_set(store, folder)
    return find_files(data, storage_options=storage_options, version=version)


@dataclass(frozen=True)
class _Column:
    """One column.

    Attributes:
        read: how it is read.
        width: values a row.
        padding: what shorter arrays are filled up with; None: there are none.
    """

    read: Readable
    width: int
    padding: float | None


def _inspect(
    files: DataFiles, names: Sequence[str], request: RowEncoder, padding: float | Mapping[str, float] | None
) -> tuple[FileRows, list[_Column]]:
    """Return the shapes that the first rows show; for arrays that are padded, all rows. A collective if `padding` is
    set.
    """
    result = [make_file_readable(files.kinds, name, name in request.decoders) for name in names]
    bare = FileRows(files, replace(request, decoders={}))
    dtypes = [column.dtype for column in result]
    first = bare.read_first_rows(dtypes, _SAMPLE_ROWS)
    if not first.num_rows:
        raise DataError("there are no rows" + (" without nulls." if request.nulls == "drop" else "."))
    in_arrow = [f"c{number}" for number in range(len(names))]
    first, encoder, result = fit_decoders(first, result, request)
    ragged = Ragged(padding)
    fillings = ragged.find_paddings(result)

    def find_longest(positions: Sequence[int]) -> list[int]:
        lengths: list[int] | DataError = []
        if not context.is_initialized() or context.rank() == 0:
            try:
                # Of rows that are dropped nothing counts, so that there all columns have to be read.
                read = list(range(len(names))) if request.nulls == "drop" else list(positions)
                chosen = FileRows(files, RowEncoder(tuple(names[position] for position in read), nulls=request.nulls))
                lengths = chosen.find_longest(
                    [dtypes[position] for position in read], [in_arrow[read.index(index)] for index in positions]
                )
            except DataError as error:
                lengths = error
        if context.is_initialized():
            lengths = broadcast_object(lengths, 0, "lengths of a loader's arrays")
        if isinstance(lengths, DataError):
            raise lengths
        return lengths

    widths = ragged.find_widths(find_widths(first, in_arrow), result, fillings, len(result), find_longest)
    columns = [_Column(*each) for each in zip(result, widths, fillings, strict=True)]
    return FileRows(files, encoder), columns


def _make_field(columns: Sequence[_Column], index: int) -> Field:
    alone = len(columns) == 1
    first = columns[0].read
    dtype = (first.kept or first.dtype) if alone else "float32"
    if any(column.read.dtype == "float64" for column in columns):
        dtype = "float64"  # seconds since 1970: in float32 they would be rounded to minutes
    shape: tuple[int, ...] = (sum(column.width for column in columns),)
    if alone and (first.shape is not None or not first.is_array):
        shape = first.shape or ()
    fillings = tuple(column.padding for column in columns)
    return Field(
        names=tuple(column.read.name for column in columns),
        columns=tuple(f"c{number}" for number in range(index, index + len(columns))),
        widths=tuple(column.width for column in columns),
        dtype=dtype,
        shape=shape,
        padding=fillings if any(filling is not None for filling in fillings) else (),
    )


def _make_all_rows(matrices: Sequence[Any], rows: int) -> RankRows:
    return RankRows(tuple([matrix] for matrix in matrices), numpy.arange(rows), (rows,), 0, (rows,))
