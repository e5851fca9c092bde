"""Pickles a function and its arguments, and names the variable that cannot be pickled."""

from __future__ import annotations

import functools
import inspect
import io
import operator
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cloudpickle

from spark_estimator.errors import PicklingError, ResultError

_MAX_DEPTH = 24
_MOST_QUOTED = 100
#: The type of what `functools.lru_cache` and `functools.cache` return.
CachedFunction: type = functools._lru_cache_wrapper
_Step = tuple[str, Any]  # how a thing hangs on the one before it, and the thing
_ADVICE = (
    ("_thread.", "create it inside {function}"),
    ("threading.", "create it inside {function}"),
    ("_io.", "open the file inside {function}, by its path"),
    ("socket.", "connect inside {function}"),
    ("generator", "pass a list, or make the generator inside {function}"),
    ("pyspark.accumulators.", "return the number from {function}, or add up the ranks' numbers by hvd.allreduce"),
    (
        "pyspark.",
        "Spark sessions and DataFrames exist on the driver only: write the data to storage and read it in {function}",
    ),
    (
        "py4j.",
        "Spark sessions and DataFrames exist on the driver only: write the data to storage and read it in {function}",
    ),
    ("sqlite3.", "connect inside {function}"),
)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, but with its file's name for tracebacks, which cloudpickle 3.1.3 leaves out."""
    make, args = _reduced(code)
    return make, tuple(code.co_filename if value == "<dynamic-code>" else value for value in args)


_reduced = cloudpickle.Pickler.dispatch_table[types.CodeType]


def _reduce_cached_function(function: Any) -> Any:
    """Reduce what `functools.lru_cache` returns: by its name, as Python does, if another process can import that.

    Otherwise the receiver gets the function with an empty cache.
    """
    if _is_importable(function):
        return function.__reduce__()
    parameters = function.cache_parameters()
    return _restore_cache, (function.__wrapped__, parameters["maxsize"], parameters["typed"])


def _restore_cache(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _is_importable(function: Any) -> bool:
    """Return whether a module has the function under its name, and its functions are not sent by value."""
    module = sys.modules.get(function.__module__ or "__main__")
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if module is None or any(f"{module.__name__}.".startswith(f"{name}.") for name in by_value):
        return False
    try:
        return operator.attrgetter(function.__qualname__)(module) is function
    except AttributeError:
        return False


class _Pickler(cloudpickle.Pickler):
    """Keeps each function's file and line for tracebacks, and takes more by value than cloudpickle does."""

    dispatch_table = ChainMap(
        {types.CodeType: _reduce_code, CachedFunction: _reduce_cached_function}, cloudpickle.Pickler.dispatch_table
    )

    #: What is pickled stays in Spark's tasks, where accumulators count.
    is_for_tasks = False

    def reducer_override(self, thing: Any) -> Any:
        """Refuse accumulators, and take functions without a module by value.

        Livy runs cells in a namespace without ``__name__``. For the module of such a function cloudpickle asks each
        imported module for the function's name, and a lazy module may import a framework for it.
        """
        if isinstance(thing, types.FunctionType) and not thing.__module__:
            return self._dynamic_function_reduce(thing)
        is_accumulator = type(thing).__name__ == "Accumulator" and type(thing).__module__ == "pyspark.accumulators"
        if is_accumulator and not self.is_for_tasks:
            raise TypeError("a rank is a separate process, from which nothing is added to an accumulator")
        return super().reducer_override(thing)


def describe_function(function: Callable[..., Any]) -> str:
    """Return how messages call a function: ``train()``."""
    inner = function.func if isinstance(function, functools.partial) else function
    return f"{getattr(inner, '__name__', type(inner).__name__)}()"


def dump_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle (function, args, kwargs); what is defined in a notebook or script is sent by value.

    Raises:
        TypeError: as `check_call`.
        PicklingError: something cannot be pickled; the text names the variable, its type and what to do.
    """
    check_call(function, args, kwargs)
    try:
        return _dump((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise PicklingError(explain(function, args, kwargs, error)) from error


def dump_value(name: str, value: object, *, for_tasks: bool = False) -> bytes:
    """Pickle a value as `dump_function` does.

    Args:
        name: of the value, for messages: ``the rows``.
        for_tasks: it stays in Spark's tasks, where accumulators count.

    Raises:
        PicklingError: something in it cannot be pickled; the text names it, its type and what to do.
    """
    try:
        return _dump(value, for_tasks=for_tasks)
    except Exception as error:
        path = _find_culprit(_list_parts(value), set(), 0)
        what = f"{name} {_describe_path(path)}".replace(" ,", ",") if path else f"{name} cannot be pickled"
        raise PicklingError(f"{what} ({type(error).__name__}: {error}).") from error


def _dump(value: object, *, for_tasks: bool = False) -> bytes:
    pickled = io.BytesIO()
    pickler = _Pickler(pickled)
    pickler.is_for_tasks = for_tasks
    pickler.dump(value)
    return pickled.getvalue()


def check_call(function: Callable[..., Any], args: object, kwargs: object) -> None:
    """Refuse what cannot be called as ``function(*args, **kwargs)``, or would do nothing when it is.

    Raises:
        TypeError: the text quotes it, and what to pass instead.
    """
    if not callable(function):
        raise TypeError(
            f"run() needs the function to run on every rank, not {function!r} of type {type(function).__name__}."
        )
    name = describe_function(function)
    if _is_kind(function, inspect.iscoroutinefunction):
        raise TypeError(
            f"{name} is defined with `async def`: a call only makes a coroutine, which is never awaited. Pass a "
            f"function that runs it: def main(): return asyncio.run({name})."
        )
    if _is_kind(function, inspect.isgeneratorfunction) or _is_kind(function, inspect.isasyncgenfunction):
        raise TypeError(
            f"{name} is a generator function (it has a `yield`): a call only makes a generator, which can't be "
            "returned from a rank. Pass a function that returns a value, such as a list."
        )
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes, bytearray)):
        raise TypeError(
            f"args must be a tuple or list, the positional arguments of {name}; got {_quote(args)}. For a single "
            "argument write args=(value,), with a comma."
        )
    if kwargs is None:
        return
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, the keyword arguments of {name}; got {_quote(kwargs)}.")
    for key in kwargs:
        if not isinstance(key, str):
            raise TypeError(f"kwargs must be a dict whose keys are parameter names of {name}; got the key {key!r}.")


def _is_kind(function: Callable[..., Any], kind: Callable[[Any], bool]) -> bool:
    """Return whether a function, what a partial calls, or an object's ``__call__``, is of a kind."""
    while isinstance(function, functools.partial):
        function = function.func
    return kind(function) or (not isinstance(function, type) and kind(type(function).__call__))


def _quote(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."
    return f"{text} of type {type(value).__name__}"


def load_values(pickled: Sequence[bytes], function: str) -> list[Any]:
    """Unpickle the return values of ranks 0, 1, ... Raises ResultError: one of them cannot be unpickled here."""
    return [_load_value(value, function, rank) for rank, value in enumerate(pickled)]


def _load_value(pickled: bytes, function: str, rank: int) -> Any:
    try:
        # Pickled by the function that the caller himself has just had run.
        return pickle.loads(pickled)  # noqa: S301
    except Exception as error:
        raise ResultError(
            f"all ranks succeeded, but the value that {function} returned on rank {rank} cannot be loaded on the "
            f"driver: {type(error).__name__}: {error}. Return plain data, or objects whose modules and devices the "
            "driver has (a CUDA tensor needs .cpu() first)."
        ) from error


def explain(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException) -> str:
    """Explain in a sentence or two what keeps the function, or its arguments, from being pickled."""
    name = describe_function(function)
    roots = [(f"receives the argument {key!r}", value) for key, value in kwargs.items()]
    roots += [(f"receives the positional argument {index}", value) for index, value in enumerate(args)]
    path = _find_culprit(iter([*roots, *_list_parts(function)]), set(), 0)
    if not path:
        return f"{name} cannot be pickled: {type(error).__name__}: {error}"
    culprit = path[-1][1]
    reason = _find_reason(culprit)
    return f"{name} {_describe_path(path)} ({type(reason).__name__}: {reason}). {_advise(path, name)}"


def _find_culprit(parts: Iterator[_Step], seen: set[int], depth: int) -> list[_Step]:
    """Return the steps to the innermost thing that can't be pickled, of the first part that can't; [] if all can."""
    for label, part in parts:
        if id(part) in seen or _find_reason(part) is None:
            continue
        seen.add(id(part))
        deeper = _find_culprit(_list_parts(part), seen, depth + 1) if depth < _MAX_DEPTH else []
        return [(label, part), *deeper]
    return []


def _describe_path(path: list[_Step]) -> str:
    """Return ``uses the global 'state' (type dict), whose ['log'].file (type ...) cannot be pickled``."""
    text, access = "", ""
    for label, part in path:
        if label.startswith((".", "[")):
            access += label
            continue
        if access:
            text, access = f"{text}, whose {access}", ""
        text += f"{', which ' if text else ''}{label} (type {_get_type_name(part)})"
    if access:
        return f"{text}, whose {access} (type {_get_type_name(path[-1][1])}) cannot be pickled"
    return f"{text}, which cannot be pickled"


def _list_parts(whole: Any) -> Iterator[_Step]:
    """Yield what pickling `whole` includes, each value with its relation: a verb phrase, ``.name`` or ``[key]``."""
    if isinstance(whole, types.FunctionType):
        yield from _list_function_parts(whole)
    elif isinstance(whole, CachedFunction):
        yield f"calls {describe_function(whole.__wrapped__)}", whole.__wrapped__  # type: ignore[attr-defined]
    elif isinstance(whole, types.MethodType):
        yield f"is a method of a {_get_type_name(whole.__self__)}", whole.__self__
        yield "calls its function", whole.__func__
    elif isinstance(whole, functools.partial):
        yield from ((f"receives the argument {key!r}", value) for key, value in whole.keywords.items())
        yield from ((f"receives the positional argument {index}", value) for index, value in enumerate(whole.args))
        yield f"calls {describe_function(whole.func)}", whole.func
    elif isinstance(whole, type):
        yield from (
            (f"has the class attribute {key!r}", value) for key, value in vars(whole).items() if key != "__dict__"
        )
    elif isinstance(whole, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in whole.items())
        yield from ((f"[key {key!r}]", key) for key in whole)
    elif isinstance(whole, (list, tuple)):
        yield from ((f"[{index}]", value) for index, value in enumerate(whole))
    elif isinstance(whole, (set, frozenset)):
        yield from (("[an element]", value) for value in whole)
    else:
        yield from ((f".{key}", value) for key, value in (getattr(whole, "__dict__", None) or {}).items())
        for kind in type(whole).__mro__:
            slots = vars(kind).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(whole, slot):
                    yield f".{slot}", getattr(whole, slot)
        yield f"is of the class {type(whole).__name__}", type(whole)


def _list_function_parts(function: types.FunctionType) -> Iterator[_Step]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that is still empty
            yield f"uses the variable {variable!r} of the function around it", cell.cell_contents
    for variable in _list_global_names(function.__code__):
        if variable in function.__globals__:
            yield f"uses the global {variable!r}", function.__globals__[variable]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for variable, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"has a default for {variable!r}", value
    for variable, value in (function.__kwdefaults__ or {}).items():
        yield f"has a default for {variable!r}", value
    yield from ((f"has the attribute {key!r}", value) for key, value in vars(function).items())


def _list_global_names(code: types.CodeType) -> Iterator[str]:
    """Yield names that the code, or a function in it, looks up; some are attributes, which does no harm."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_global_names(constant)


class _Nowhere(io.RawIOBase):
    """A file that forgets: what is tried may be large."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return memoryview(content).nbytes


def _find_reason(candidate: Any) -> BaseException | None:
    """Return why a thing cannot be pickled; None when it can."""
    try:
        _Pickler(_Nowhere()).dump(candidate)
    except Exception as error:
        return error
    return None


def _get_type_name(thing: Any) -> str:
    kind = type(thing)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _advise(path: list[_Step], function: str) -> str:
    # Of the outermost thing that there is advice for: a session's fault is not the lock inside it.
    names = [_get_type_name(part) for _, part in path]
    advice = next(
        (text for name in names for prefix, text in _ADVICE if name.startswith(prefix)),
        "create it inside {function}, or do not use it there",
    )
    return f"To fix it: {advice.format(function=function)}."
