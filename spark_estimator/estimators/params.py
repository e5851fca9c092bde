"""The parameters that estimators share, from one table: names, defaults, what is accepted, and their setters.

Each is a Spark ML `Param`, so `copy`, `ParamMap`, `Pipeline` and `CrossValidator` know it; ``setNumProc(2)`` and
``getNumProc()`` are made from ``num_proc``. Setters return self.
"""

from __future__ import annotations

import difflib
import html
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params

from spark_estimator.estimators.checks import (
    anything,
    edited_fields,
    function,
    functions,
    listed,
    names,
    null_policy,
    one_of,
    paddings,
    shapes,
    share_or_column,
    stored,
    text,
    truth,
    weights,
    whole,
)
from spark_estimator.estimators.history import table

REQUIRED = object()


@dataclass(frozen=True)
class Row:
    """One parameter.

    Attributes:
        name: as the constructor's keyword.
        default: REQUIRED: there is none, and fit() asks for it.
        check: takes what the user gives and returns it as it is kept; raises TypeError or ValueError.
        doc: one sentence.
    """

    name: str
    default: Any
    check: Callable[[str, Any], Any]
    doc: str

    @property
    def camel(self) -> str:
        """``num_proc`` as ``NumProc``."""
        return "".join(part.capitalize() for part in self.name.split("_"))


DECODERS = Row(
    "decoders",
    None,
    functions,
    "a dict from binary columns to functions, which make an array of a row's bytes, of one shape for all rows: "
    "{'image': decode}",
)

#: Of every estimator.
SHARED = (
    Row("num_proc", None, whole(1), "processes that train; None: as many as spark.default.parallelism and slots allow"),
    Row("model", None, anything, "the model; required"),
    Row(
        "backend",
        None,
        anything,
        "where to train: a SparkBackend, whose arguments all hold; or another Backend, whose run() is called, and "
        "whose ranks read rows from the store; together with num_proc it is refused",
    ),
    Row(
        "store",
        None,
        stored,
        "where a checkpoint of each epoch is kept, and prepared data: a Store, or its path; None: nothing is",
    ),
    Row("optimizer", None, anything, "the optimizer; required"),
    Row("loss", None, listed, "one loss, or a list with one for each label"),
    Row("loss_weights", None, weights, "a weight for each loss; None: equal ones that add up to 1"),
    Row("metrics", [], listed, "functions of (output, label), or a list of such lists, one for each label"),
    Row("feature_cols", None, names, "the model's inputs; None: all columns that are not labels, weights or marks"),
    Row("label_cols", None, names, "what the model shall predict, a column for each output; required"),
    Row(
        "sample_weight_col",
        None,
        text,
        "a column whose number multiplies its row's loss; the mean is over rows, whatever the numbers add up to",
    ),
    Row("validation", None, share_or_column, "a share of the rows, or a column of 0 and 1 that marks them; None: none"),
    Row("batch_size", 32, whole(1), "rows of a batch, on each process"),
    Row("val_batch_size", None, whole(1), "the same in validation; None: as batch_size"),
    Row("epochs", 1, whole(1), "how often all rows are read"),
    Row("train_steps_per_epoch", None, whole(1), "an epoch ends after so many batches; None: when all rows are read"),
    Row("validation_steps_per_epoch", None, whole(1), "the same in validation"),
    Row("verbose", 1, whole(0), "0: nothing is printed; 1: a line for each epoch"),
    Row("gradient_compression", None, anything, "a member of Compression: what gradients are sent as"),
    Row(
        "max_restarts",
        0,
        whole(0),
        "how often a training that lost a process is started anew, from its last checkpoint",
    ),
    Row("random_seed", None, whole(0), "makes the result repeatable for one number of processes; None: drawn"),
    Row("shuffle", True, truth, "rows are read in another order in each epoch"),
    Row(
        "run_id",
        None,
        text,
        "names this training: with a store, the same name again goes on from its last checkpoint, with its seed, "
        "and one that has had its epochs, or more of them, is returned; what else steers it has to be as it was",
    ),
    Row(
        "checkpoint_every_steps",
        None,
        whole(1),
        "with a store: a checkpoint also after so many batches within an epoch; None: after each epoch",
    ),
    Row(
        "early_stopping_patience", None, whole(1), "ends when the loss, of validation if any, is no better for n epochs"
    ),
    Row("restore_best", False, truth, "brings back the best epoch's model, not the last one's"),
    Row("use_gpu", True, truth, "False: no GPU is used, where there are any"),
    Row("backward_passes_per_step", 1, whole(1), "batches whose gradients are added up before a step"),
    Row("mlflow", False, truth, "True: a run of MLflow has the parameters, the epochs and the model"),
    Row(
        "input_shapes",
        None,
        shapes,
        "shapes of the inputs, each beginning with -1; None: found from the columns",
    ),
    Row("label_shapes", None, shapes, "shapes of the labels; None: as the outputs, where they hold as many values"),
    Row("materialize", False, truth, "rows are written to the store as Parquet, once, and read from there by each fit"),
    Row("read_files", True, truth, "a DataFrame that is just Parquet files is read by the processes; False: by Spark"),
    Row(
        "nulls",
        "error",
        null_policy,
        "what to do with nulls: 'error', 'drop' the row (NaN counts as null there), or a number in their place",
    ),
    Row(
        "padding",
        None,
        paddings,
        "a number that fills arrays up which are shorter than others, at their end, to the longest one's length or to "
        "what input_shapes says; or a dict with a number for each of some columns; None: they are refused",
    ),
    DECODERS,
    Row(
        "transformation_fn",
        None,
        function,
        "a function from a pandas.DataFrame of some rows, with the columns that are read, to one with the model's "
        "columns and as many rows as it likes; called once for each row, while rows are read, and not by transform "
        "(what shall be drawn anew in each epoch belongs into the model or train_minibatch_fn); None: none",
    ),
    Row(
        "transformation_edit_fields",
        None,
        edited_fields,
        "what transformation_fn changes or makes: a list of (name, numpy type, shape, whether null is allowed), to "
        "which its result is held; a column that only it makes has to be there",
    ),
    Row(
        "transformation_removed_fields",
        None,
        names,
        "columns that transformation_fn is given and does not return",
    ),
)

#: Columns that Spark ML's evaluators read, by its own names: ``setPredictionCol("prediction")``.
OF_EVALUATORS = (
    Row("prediction_col", None, text, "a double: the class's number, or the number itself, for evaluators; None: none"),
    Row("raw_prediction_col", None, text, "a vector with a number for each class, for evaluators; None: none"),
    Row("probability_col", None, text, "a vector with a probability for each class; None: none"),
)
#: Of estimators, which hand them on, and of the models that predict.
PREDICTING = (
    Row("output_cols", None, names, "the columns of predictions; None: each label's name and __output"),
    Row(
        "output_type",
        "label",
        one_of("label", "array", "vector"),
        "'label': as the label's type has it; 'array' or 'vector': all values of a row",
    ),
    *OF_EVALUATORS,
)

#: Taken so that code written for Horovod runs: what they were for is not needed here.
WITHOUT_EFFECT = {
    "partitions_per_process": "rows go to the processes directly, not through files in partitions",
    "shuffle_buffer_size": "all rows of a process are shuffled together",
    "train_reader_num_workers": "rows are mapped from disk; nothing decodes them",
    "val_reader_num_workers": "rows are mapped from disk; nothing decodes them",
    "reader_pool_type": "rows are mapped from disk; nothing decodes them",
    "inmemory_cache_all": "rows lie in the page cache after the first epoch",
    "compress_sparse_cols": "rows go to the processes directly, not through files",
    "mp_start_method": "processes are started afresh",
}

_Self = TypeVar("_Self", bound="TableParams")


class TableParams(Params):
    """Params made from a table.

    A subclass is decorated with `with_params`.
    """

    _rows: Sequence[Row] = ()

    def _take(self, given: dict[str, Any]) -> None:
        """Sets what a constructor or setParams was given.

        Raises:
            TypeError: an unknown name, or a value of a wrong type.
            ValueError: a wrong value.
        """
        known = {row.name: row for row in self._rows}
        without = {name: WITHOUT_EFFECT[name] for name in given if name in WITHOUT_EFFECT}
        if without:
            told = "; ".join(f"{name} has no effect: {why}" for name, why in without.items())
            warnings.warn(f"{told}.", stacklevel=4)
        for name, value in given.items():
            if name in WITHOUT_EFFECT:
                continue
            if name not in known:
                has = ", ".join(row.name for row in self._rows)
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{_near(name, known)}; it has {has}.")
            self._set(**{name: value})

    def setParams(self: _Self, **kwargs: Any) -> _Self:  # Spark ML's name
        """Sets any of the parameters; returns self."""
        self._take(kwargs)
        return self

    def _repr_html_(self) -> str:
        """The parameters that were set, for notebooks."""
        chosen = [(row.name, self._value(row.name)) for row in self._rows if self.isSet(row.name)]
        return f"<b>{html.escape(self.uid)}</b>{table(['parameter', 'value'], chosen)}"

    def _value(self, name: str) -> Any:
        return self.getOrDefault(self.getParam(name))


def _near(name: str, known: Iterable[str]) -> str:
    """A question after the parameter that was meant: one that is spelt nearly so, or whose words begin with these."""
    names = list(known)
    meant = [one for one in names if "".join(word[0] for word in one.split("_")) == name.lower()]
    meant = meant or difflib.get_close_matches(name, names, 1)
    return f" (did you mean {meant[0]!r}?)" if meant else ""


def with_params(rows: Sequence[Row]) -> Callable[[type[_Self]], type[_Self]]:
    """Gives a class its params, setters, getters and a constructor's signature."""

    def decorate(cls: type[_Self]) -> type[_Self]:
        cls._rows = rows
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, _converter(row)))
            setattr(cls, f"set{row.camel}", _setter(row))
            setattr(cls, f"get{row.camel}", _getter(row))
        keywords = [inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default) for row in rows]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return cls

    return decorate


def _converter(row: Row) -> Callable[[Any], Any]:
    # Spark names the param in front of what a converter raises as TypeError, and lets a ValueError through.
    return lambda value: row.check(row.name, value)


def _setter(row: Row) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        self._set(**{row.name: value})
        return self

    setter.__name__ = f"set{row.camel}"
    setter.__doc__ = f"Sets {row.name}: {row.doc}. Returns self."
    return setter


def _getter(row: Row) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self._value(row.name)

    getter.__name__ = f"get{row.camel}"
    getter.__doc__ = f"{row.name}: {row.doc}."
    return getter
