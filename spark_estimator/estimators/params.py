"""The parameters that estimators share, from one table: names, defaults, types, checks and documentation.

Each is a Spark ML `Param`, so `copy`, `ParamMap`, `Pipeline` and `CrossValidator` know it. The constructors, setters
and getters are spelled out in modules named ``keywords``, which are generated from the tables.
"""

from __future__ import annotations

import difflib
import functools
import html
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pyspark.ml.param import Param, Params

from spark_estimator.estimators.checks import (
    accept,
    check_alternatives,
    check_autocast_type,
    check_backend,
    check_bool,
    check_categories,
    check_dict,
    check_edited_fields,
    check_function,
    check_functions,
    check_int,
    check_known_categories,
    check_list,
    check_names,
    check_null_policies,
    check_numbers_by_column,
    check_one_of,
    check_paddings,
    check_positive,
    check_shapes,
    check_share_or_column,
    check_store,
    check_str,
    check_weights,
    refuse_data_module,
)
from spark_estimator.estimators.history import History, make_table, to_history
from spark_estimator.estimators.inference.devices import DEVICES
from spark_estimator.estimators.mlflow_options import check_mlflow

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Row:
    """One parameter.

    Attributes:
        name: the constructor's keyword.
        default: the value of a parameter that is not set.
        check: (name, value) returns the value to store; raises TypeError or ValueError.
        doc: one sentence, for `explainParams`, setters and getters.
        type: the type that the setter takes, as Python source.
        returns: the type that the getter returns; empty: the same.
        saved: a model's folder has it as JSON; False: it does not.
    """

    name: str
    default: Any
    check: Callable[[str, Any], Any]
    doc: str
    type: str = "Any"
    returns: str = ""
    saved: bool = True

    @property
    def camel(self) -> str:
        """Return ``num_proc`` as ``NumProc``."""
        return "".join(part.capitalize() for part in self.name.split("_"))


_FUNCTION = "Callable[..., Any]"
_NAMES = ("Sequence[str] | None", "list[str] | None")
_SHAPES = ("Sequence[Sequence[int]] | None", "list[list[int]] | None")

DECODERS = Row(
    "decoders",
    None,
    check_functions,
    "a dict from the names of binary columns to functions that decode the bytes of one row into an array, of the same "
    "shape for all rows: {'image': decode}",
    "Mapping[str, Callable[[bytes], Any]] | None",
    "dict[str, Callable[[bytes], Any]] | None",
)

#: Of every estimator.
SHARED = (
    Row(
        "num_proc",
        None,
        check_int(1),
        "the number of training processes; None: as many as spark.default.parallelism and the task slots allow; "
        "required with dynamic allocation",
        "int | None",
    ),
    Row("model", None, accept, "the model to train; required"),
    Row(
        "backend",
        None,
        check_backend,
        "where to train: a SparkBackend with its own num_proc and options, or another Backend, whose ranks read their "
        "rows from the store; cannot be combined with num_proc",
        "Backend | None",
    ),
    Row(
        "store",
        None,
        check_store,
        "a Store, or its path, for checkpoints and prepared data; None: nothing is stored",
        "Store | str | None",
        "Store | None",
    ),
    Row("optimizer", None, accept, "the optimizer; required"),
    Row("loss", None, check_list, "one loss, or a list with one loss per label column", "Any", "list[Any]"),
    Row(
        "loss_weights",
        None,
        check_weights,
        "a weight per loss; None: equal weights that sum to 1",
        "Sequence[float] | None",
        "list[float] | None",
    ),
    Row(
        "metrics",
        [],
        check_list,
        "functions of (output, label); or Horovod's lists, each of one function, or of one per label column; or a dict "
        "per label column, whose keys are their names; batches' values are averaged by their rows, which is right "
        "for means over rows, and not for AUC, F1, R2, precision, recall or roots; TorchEstimator takes torchmetrics' "
        "objects, too, which count all rows",
        "Any",
        "list[Any]",
    ),
    Row(
        "feature_cols",
        None,
        check_names,
        "the input columns, in the order of the model's inputs; None: all columns except labels, sample weights and "
        "the validation column",
        *_NAMES,
    ),
    Row("label_cols", None, check_names, "the columns to predict, one per model output; required", *_NAMES),
    Row(
        "sample_weight_col",
        None,
        check_str,
        "a numeric column that multiplies each row's loss; the mean is still taken over the number of rows",
        "str | None",
    ),
    Row(
        "validation",
        None,
        check_share_or_column,
        "the fraction of rows to validate on, or a 0/1 column that marks them; None: no validation",
        "float | str | None",
    ),
    Row("batch_size", 32, check_int(1), "rows per batch on each process", "int"),
    Row(
        "val_batch_size",
        None,
        check_int(1),
        "rows per validation batch on each process; None: batch_size",
        "int | None",
    ),
    Row("epochs", 1, check_int(1), "the number of passes over all rows", "int"),
    Row(
        "train_steps_per_epoch",
        None,
        check_int(1),
        "the number of training batches per epoch; None: all rows",
        "int | None",
    ),
    Row(
        "validation_steps_per_epoch",
        None,
        check_int(1),
        "the number of validation batches per epoch; None: all rows",
        "int | None",
    ),
    Row(
        "verbose",
        1,
        check_int(0),
        "0: print nothing; 1: print one line per epoch, and meanwhile show progress: on a terminal, in a notebook, "
        "elsewhere a line of text each half minute",
        "int",
    ),
    Row("gradient_compression", None, accept, "a member of Compression: how gradients are sent; None: as they are"),
    Row(
        "max_restarts",
        0,
        check_int(0),
        "how many times to continue after a rank dies, exits, raises an error or loses its executor: within the step "
        "if ranks of PyTorch or Hugging Face read files, else from the last checkpoint; with a store, rows that come "
        "through Spark are copied there during the training",
        "int",
    ),
    Row(
        "random_seed",
        None,
        check_int(0),
        "a seed that makes results repeatable for a fixed number of processes; None: random",
        "int | None",
    ),
    Row("shuffle", True, check_bool, "whether to read the rows in a different order in each epoch", "bool"),
    Row(
        "run_id",
        None,
        check_str,
        "the name of this training; with a store, fitting again under the same name resumes from the last checkpoint, "
        "with its seed, and returns the model at once if all epochs are done; rows, model, optimizer, schedule, losses "
        "and batches must be unchanged; epochs and num_proc may change",
        "str | None",
    ),
    Row(
        "resume_on_other_rows",
        False,
        check_bool,
        "let the run of run_id continue on other rows with the same columns, with its optimizer, schedule and history: "
        "raise epochs by the number of passes over them; False: other rows are an error",
        "bool",
    ),
    Row(
        "checkpoint_every_steps",
        None,
        check_int(1),
        "write a checkpoint after this many batches within an epoch, too, between two steps of the optimizer; needs a "
        "store. A run that continues from it on another number of processes or on other rows begins that epoch again. "
        "None: only after each epoch",
        "int | None",
    ),
    Row(
        "checkpoint_every_seconds",
        None,
        check_positive,
        "as checkpoint_every_steps, after this many seconds; None: only after each epoch, and by "
        "checkpoint_every_steps",
        "float | None",
    ),
    Row(
        "early_stopping_patience",
        None,
        check_int(1),
        "stop when monitor has not improved for this many epochs, or validations; None: never",
        "int | None",
    ),
    Row(
        "restore_best",
        False,
        check_bool,
        "return the model of the epoch, or the validation, with the best monitor instead of the last one",
        "bool",
    ),
    Row(
        "monitor",
        None,
        check_str,
        "the number of the history by which restore_best and early_stopping_patience decide, such as 'validation.auc'; "
        "None: the validation loss, or without validation the training loss",
        "str | None",
    ),
    Row(
        "mode", "auto", check_one_of("auto", "min", "max"), "which monitor is the best; 'auto': the lowest loss", "str"
    ),
    Row("use_gpu", True, check_bool, "whether to use GPUs if there are any", "bool"),
    Row(
        "backward_passes_per_step",
        1,
        check_int(1),
        "the number of batches whose gradients are accumulated before each optimizer step",
        "int",
    ),
    Row(
        "mlflow",
        False,
        check_mlflow,
        "log the training in an MLflow run, below the active run if there is one: parameters, epochs, plots and the "
        "model; True, or a dict of options such as {'experiment_name': 'x', 'registered_model_name': 'y'}",
        "bool | Mapping[str, Any]",
        "bool | dict[str, Any]",
    ),
    Row(
        "input_shapes",
        None,
        check_shapes,
        "the shapes of the inputs, each starting with -1 for the batch; None: inferred from the columns",
        *_SHAPES,
    ),
    Row(
        "label_shapes",
        None,
        check_shapes,
        "the shapes of the labels, each starting with -1 for the batch; None: the shapes of the outputs, if they have "
        "as many values",
        *_SHAPES,
    ),
    Row(
        "materialize",
        False,
        check_bool,
        "write the rows to the store as Parquet once, and read them from there in each fit",
        "bool",
    ),
    Row(
        "read_files",
        True,
        check_bool,
        "let the processes read the Parquet files themselves if the DataFrame is nothing but Parquet files; False: "
        "always send rows through Spark",
        "bool",
    ),
    Row(
        "cache_bytes",
        None,
        check_int(0),
        "the most bytes of rows that a host's disk keeps, for all of its processes; rows beyond are read from their "
        "files in each epoch, and mixed by blocks; a DataFrame that is not just Parquet files is written to the store "
        "for it; 0: none; None: all rows are kept",
        "int | None",
    ),
    Row(
        "buffer_bytes",
        None,
        check_int(1),
        "with cache_bytes, the most bytes of rows that each process keeps in memory; None: 256 MiB",
        "int | None",
    ),
    Row(
        "nulls",
        "error",
        check_null_policies,
        "how to handle nulls: 'error', 'drop' (drops the row), a number that replaces them, or 'mean' or 'median' of "
        "the finite numbers in the rows to train on, in features that hold numbers; all but 'error' treat NaN as null; "
        "or a dict with one of these per column, where 'error' applies to the other columns",
        "str | float | Mapping[str, str | float]",
        "str | float | dict[str, str | float]",
    ),
    Row(
        "padding",
        None,
        check_paddings,
        "a number that pads shorter arrays at the end, up to the longest array or to input_shapes; or a dict with a "
        "number per column; None: arrays of different lengths are an error",
        "float | Mapping[str, float] | None",
        "float | dict[str, float] | None",
    ),
    DECODERS,
    Row(
        "categories",
        None,
        check_categories,
        "a dict from feature columns of strings, integers or booleans to what turns their values into ids: a number of "
        "ids, such as {'city': 1000}, for the most frequent values of the training's rows; a list of values, whose ids "
        "start at 1; {'hash': 100000}, for a hash; or another of these columns, such as {'history': 'item'}, whose ids "
        "it shares, with one vocabulary of the values of both; id 0 is null, and a value that is not in the vocabulary",
        "Mapping[str, int | str | Sequence[Any] | Mapping[str, int]] | None",
        "dict[str, Any] | None",
    ),
    Row(
        "transformation_fn",
        None,
        check_function,
        "a function from a pandas.DataFrame with the columns read to one with the model's columns, and any number of "
        "rows, called once per row while rows are loaded; or, as in Horovod, from a dict of one row to one, called for "
        "each row in each epoch (the driver calls it with first rows to see which); not called by transform; None: "
        "none",
        "Callable[[Any], Any] | None",
    ),
    Row(
        "transform_validation",
        True,
        check_bool,
        "whether transformation_fn is called for the rows of validation, too, as in Horovod; False: they stay as they "
        "are, so that augmentation changes neither the validation loss nor early stopping; their columns must then fit "
        "the model without the function",
        "bool",
    ),
    Row(
        "transformation_edit_fields",
        None,
        check_edited_fields,
        "the columns that transformation_fn changes or adds, as a list of (name, numpy type, shape, nullable); its "
        "result is checked against them; required for columns that only transformation_fn creates",
        "Sequence[Sequence[Any]] | None",
        "list[list[Any]] | None",
    ),
    Row(
        "transformation_removed_fields",
        None,
        check_names,
        "the columns that transformation_fn reads and does not return",
        *_NAMES,
    ),
)

#: Of the estimators whose optimizer has one.
LEARNING_RATE = Row(
    "learning_rate",
    None,
    check_positive,
    "the learning rate instead of the optimizer's (for ParamGridBuilder); None: the optimizer's; either is multiplied "
    "by the number of processes, except with sync='diloco' or 'local_sgd'",
    "float | None",
)

#: Columns that Spark ML's evaluators read, by its own names: ``setPredictionCol("prediction")``.
OF_EVALUATORS = (
    Row(
        "prediction_col",
        None,
        check_str,
        "a double column for evaluators: the predicted class number, or the predicted value; None: none",
        "str | None",
    ),
    Row(
        "raw_prediction_col",
        None,
        check_str,
        "a vector column for evaluators, with a score per class; None: none",
        "str | None",
    ),
    Row("probability_col", None, check_str, "a vector column with a probability per class; None: none", "str | None"),
)
#: Of estimators, which pass them on, and of the models that predict.
PREDICTING = (
    Row(
        "output_cols",
        None,
        check_names,
        "the prediction columns; None: each label's name followed by __output",
        *_NAMES,
    ),
    Row(
        "output_type",
        "label",
        check_one_of("label", "array", "vector"),
        "'label': predictions have the label's type, or are doubles where it would round what is no class; 'array' or "
        "'vector': all output values of a row",
        "str",
    ),
    *OF_EVALUATORS,
)
#: Of estimators and models of PyTorch.
INFERENCE = (
    Row(
        "inference_device",
        "auto",
        check_one_of(*DEVICES),
        "where transform computes: 'auto': on the GPU that Spark gives the task (spark.task.resource.gpu.amount), or, "
        "without one, on the CPU; 'cpu'; 'cuda': on a GPU, or it is an error",
        "str",
    ),
    Row(
        "inference_precision",
        None,
        check_autocast_type,
        "'bf16' or 'fp16': predict under torch.autocast with this type; None: in the model's own types",
        "str | None",
    ),
)

DATA_MODULE = Row(
    "data_module",
    None,
    refuse_data_module,
    "not supported: loaders of your own belong in a function that HorovodRunner.run(function, data=df) starts",
    "None",
    "Any",
)

HISTORY = Row(
    "history",
    History(),
    to_history,
    "one entry per epoch: epoch, train, validation; or a dict of numbers, or a list of losses",
    "Sequence[Mapping[str, Any]] | Mapping[str, Any] | Sequence[float] | None",
    "History",
)

#: Of every trained model, besides its history.
MODEL = (
    Row("model", None, accept, "the framework's trained model", saved=False),
    Row(
        "_metadata",
        None,
        accept,
        "types and shapes of the columns of the training; None: transform finds them",
        "Mapping[str, Any] | None",
        saved=False,
    ),
    Row("feature_columns", None, check_names, "the columns to predict from, in the order of fit()", *_NAMES),
    Row("label_columns", None, check_names, "the columns that the model was trained to predict", *_NAMES),
    Row("run_id", None, check_str, "the name of the training", "str | None"),
    Row("batch_size", 1024, check_int(1), "rows per call of the model", "int"),
    DECODERS,
    Row(
        "categories",
        None,
        check_known_categories,
        "a dict from feature columns to the values with ids 1, 2 and so on, to {'hash': the number of ids}, or to "
        "another of these columns, whose ids it shares",
        "Mapping[str, str | Sequence[Any] | Mapping[str, int]] | None",
        "dict[str, Any] | None",
    ),
    Row(
        "null_values",
        None,
        check_numbers_by_column,
        "a dict from feature columns, under their names in the training, to the number that replaces null and NaN",
        "Mapping[str, float] | None",
        "dict[str, float] | None",
    ),
    Row(
        "training_params",
        None,
        check_dict,
        "the estimator's parameters that were set, as far as they are numbers, names or lists of these",
        "Mapping[str, Any] | None",
        "dict[str, Any]",
    ),
    *PREDICTING,
)

#: A model's keywords that are no parameters, with their types.
MODEL_PARTS = {
    "inputs": "Sequence[Field] | None",
    "outputs": "Sequence[int] | None",
    "label_types": "Sequence[str] | None",
    "output_kinds": "Sequence[OutputKind] | None",
}

_NO_READERS = "rows are memory-mapped; there are no reader threads"
_NO_NVTABULAR = "rows are not read by NVTabular"
#: Horovod's parameters that are accepted and ignored, with the reason.
WITHOUT_EFFECT = {
    "partitions_per_process": "rows go to the processes directly, not through files",
    "shuffle_buffer_size": "all rows of a process are shuffled together",
    "train_reader_num_workers": _NO_READERS,
    "val_reader_num_workers": _NO_READERS,
    "reader_pool_type": _NO_READERS,
    "inmemory_cache_all": "rows are in the page cache after the first epoch",
    "compress_sparse_cols": "rows go to the processes directly, not through files",
    "mp_start_method": "processes are always started from scratch",
    "continuous_cols": _NO_NVTABULAR,
    "categorical_cols": _NO_NVTABULAR,
}

_T = TypeVar("_T")
_Params = TypeVar("_Params", bound="TableParams")


class TableParams(Params):
    """Params made from a table: a subclass is decorated with `add_params`.

    Attributes:
        _public_path: where users import the class from; saved pipelines name it.
        _reasons: parameters that are accepted and ignored, with the reason.
        _ineffective: those of them that can be set and read, with their defaults.
    """

    _rows: Sequence[Row] = ()
    _public_path: ClassVar[str]
    _reasons: ClassVar[Mapping[str, str]] = WITHOUT_EFFECT
    _ineffective: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Keep what a client's class mixes in under names that Horovod's classes lack.

        Spark ML's ``HasPredictionCol``, for one: this class comes before it in the order of the base classes.
        """
        super().__init_subclass__()
        if cls.__module__.startswith("spark_estimator."):
            return
        for name in _list_evaluator_names():
            others = (base for base in cls.__mro__ if not base.__module__.startswith("spark_estimator."))
            owner = next((base for base in others if name in vars(base)), None)
            if owner is not None and owner is not cls:
                setattr(cls, name, vars(owner)[name])

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        mixed_in = {param.name for param in self._defaultParamMap}  # by a subclass's other base classes
        defaults = {**{row.name: row.default for row in self._rows}, **self._ineffective}
        self._setDefault(**{name: value for name, value in defaults.items() if name not in mixed_in})
        self._take(keywords)

    def _take(self, keywords: Mapping[str, Any]) -> Self:
        """Set parameters by name. Return self.

        Raises:
            TypeError: an unknown name, or a value of the wrong type.
            ValueError: a wrong value.
        """
        rows = {row.name: row for row in self._rows}
        ignored = [f"{name} has no effect: {self._reasons[name]}" for name in keywords if name in self._reasons]
        if ignored:
            warn_caller(f"{'; '.join(ignored)}.")
        for name, value in keywords.items():
            if name in self._reasons and name not in self._ineffective:
                continue
            if name not in rows and name not in self._ineffective:
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r}{_suggest(name, rows)}. Its parameters: "
                    f"{', '.join(rows)}."
                )
            self._set(**{name: value})
        check_alternatives(lambda name: self._value(name) if name in rows else None)
        return self

    def _repr_html_(self) -> str:
        """Return the parameters that were set, for notebooks."""
        values = [(row.name, self._value(row.name)) for row in self._rows if self.isSet(row.name)]
        return f"<b>{html.escape(self.uid)}</b>{make_table(['parameter', 'value'], values)}"

    def getOrDefault(self, param: Any) -> Any:
        """Return the value of a parameter, or its default; a parameter that was set to None has its default, too."""
        value = super().getOrDefault(param)
        return self._defaultParamMap.get(self._resolveParam(param)) if value is None else value

    def _value(self, name: str) -> Any:
        return self.getOrDefault(self.getParam(name))

    def _has_own(self, name: str) -> bool:
        """Return whether a param is of the table, and not another one of the same name that a client's class has."""
        return isinstance(getattr(type(self), name).typeConverter, _Converter)

    def _get(self, param: Param[_T]) -> _T:
        """Return the value of a parameter."""
        value: _T = self._value(param.name)
        return value


def _list_evaluator_names() -> Iterator[str]:
    for row in OF_EVALUATORS:
        words = "".join(word.title() for word in row.name.split("_"))
        yield from (row.name, f"get{words}", f"set{words}")


def warn_caller(text: str) -> None:
    """Warn at the line outside of this package and of Spark that led here, through several functions of both."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("spark_estimator.", "pyspark.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


#: Names that transformers' Trainer, Lightning and Keras have for parameters.
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("max_grad_norm", "gradient_clip_val", "clipnorm", "global_clipnorm"), "gradient_clip_norm"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "backward_passes_per_step"),
    **dict.fromkeys(("fp16", "bf16", "precision", "amp"), "mixed_precision"),
    **dict.fromkeys(("eval_steps", "val_check_interval"), "validate_every_steps"),
    **dict.fromkeys(("metric_for_best_model",), "monitor"),
}


def _suggest(name: str, names: Iterable[str]) -> str:
    """Return a question with the parameter that was probably meant: a similar name, or one with these initials."""
    candidates = list(names)
    matches = [word for word in candidates if word == _NAMES_ELSEWHERE.get(name)]
    matches = matches or [word for word in candidates if "".join(part[:1] for part in word.split("_")) == name.lower()]
    matches = matches or difflib.get_close_matches(name, candidates, 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def add_params(rows: Sequence[Row], parts: Mapping[str, str] | None = None) -> Callable[[type[_Params]], type[_Params]]:
    """Add a class's Params, and show them in the signatures of its constructor and ``setParams``.

    Args:
        rows: its parameters.
        parts: types of the constructor's other keywords, by name, as Python source.
    """

    def decorate(cls: type[_Params]) -> type[_Params]:
        cls._rows = rows
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, _Converter(cls, row.name)))
        keywords = [_Keyword(row.name, row.default if row.name != "history" else None, row.type) for row in rows]
        others = [_Keyword(name, None, kind) for name, kind in (parts or {}).items()]
        for name, shown in (("__init__", [*others, *keywords]), ("setParams", keywords)):
            setattr(cls, name, _take_keywords_only(getattr(cls, name), shown))
        return cls

    return decorate


class _Keyword(NamedTuple):
    name: str
    default: Any
    kind: str


def _take_keywords_only(method: Callable[..., Any], accepted: Sequence[_Keyword]) -> Callable[..., Any]:
    """Return a method that refuses other arguments; `inspect`, ``help()`` and notebooks see its keywords."""

    @functools.wraps(method)
    def call(self: TableParams, *args: Any, **keywords: Any) -> Any:
        if args:
            kind = type(self).__name__
            raise TypeError(f"{kind} takes keyword arguments only, as in {kind}(model=...); got {args[0]!r:.100}.")
        return method(self, **keywords)

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in accepted
    ]
    returns = method.__annotations__.get("return", inspect.Signature.empty)
    vars(call)["__signature__"] = inspect.Signature([this, *shown], return_annotation=returns)
    return call


@dataclass(frozen=True)
class _Converter:
    """Checks values of a param. It can be pickled, as an estimator or model can: the row, with its functions, cannot.

    If it raises TypeError, Spark adds the param's name in front; a ValueError it passes on unchanged.
    """

    kind: type[TableParams]
    name: str

    def __call__(self, value: Any) -> Any:
        row = next(row for row in self.kind._rows if row.name == self.name)
        return row.check(row.name, value)
