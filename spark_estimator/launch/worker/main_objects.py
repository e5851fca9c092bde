"""Sends functions and classes of the driver's ``__main__`` by value to the processes that a rank starts.

Processes of ``multiprocessing`` that do not begin as copies of the rank, such as those of a DataLoader by ``spawn`` or
``forkserver`` (the default since Python 3.14), get pickles that name functions and classes by their modules. What a
rank has got from a notebook or script is in none of its modules.
"""

from __future__ import annotations

import operator
import pickle
import secrets
import sys
import types
import weakref
from typing import Any

from spark_estimator.launch.job.pickling import CachedFunction, dump_value

# The modules that they name: Python's for a cell of Livy, whose namespace has no name, is none or builtins.
_MODULES = (None, "__main__", "builtins")
_PICKLED_BY_NAME: Any = (type, types.FunctionType, CachedFunction)
# The same class has one identity in the rank and its processes, so that `isinstance` holds for what they send.
_class_of: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_identity_of: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def send_by_value() -> None:
    """Have multiprocessing's pickles contain them; a second call changes nothing."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]


def _reduce(pickler: object, thing: Any) -> Any:
    """Reduce a function or class of ``__main__``; return NotImplemented for all others: as Python does."""
    if not isinstance(thing, _PICKLED_BY_NAME) or thing.__module__ not in _MODULES or _is_importable(thing):
        return NotImplemented
    pickled = dump_value(f"{thing.__qualname__} of __main__", thing)
    if not isinstance(thing, type):
        return _load_function, (pickled,)
    identity = _identity_of.setdefault(thing, secrets.token_hex(8))
    _class_of[identity] = thing
    return _load_class, (identity, pickled)


def _is_importable(thing: Any) -> bool:
    """Return whether another process finds it by its name: builtins, and what a script run as ``__main__`` has."""
    try:
        return operator.attrgetter(thing.__qualname__)(sys.modules[thing.__module__]) is thing
    except (AttributeError, KeyError):
        return False


def _load_function(pickled: bytes) -> Any:
    send_by_value()
    return pickle.loads(pickled)  # noqa: S301  # from the rank, or from a process that it started


def _load_class(identity: str, pickled: bytes) -> type:
    """Return a class; not unpickled again where it is known, which would set its attributes to those of the sender."""
    kind = _class_of.get(identity)
    if kind is None:
        kind = _load_function(pickled)
        _class_of[identity] = kind
        _identity_of.setdefault(kind, identity)
    return kind
