"""Smaller wire types for tensors, for all frameworks: sent in half precision, returned in their original type.

A framework's binding defines the cast in a subclass of `CastCompressor`; everything else is here.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, Protocol


class Compressor(Protocol):
    """The interface of values for ``compression=``: a class, or any object, with these two functions."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what to send instead of `tensor`, and what `decompress` will need."""
        ...

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the received `tensor` in the form that it had before `compress`."""
        ...


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: object) -> Any:
        """Return the tensor itself."""
        return tensor


class Int8Compressor:
    """Sends float32 gradients as int8 between hosts, with error feedback; for optimizers and tapes only.

    Each block of 256 values has a scale, a float32, so that an element takes 1 + 4/256 bytes. What rounding leaves out
    is added to the next gradient of the same variable. Inside a host gradients are sent as they are, as do those of
    other types, of fewer than 1024 elements, and buckets of at most 16 KiB for each rank. Results are the same bits on
    all ranks. Memory: a residue as large as the variable.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Raise ValueError: an optimizer or a tape knows which variable the residue belongs to."""
        raise ValueError(
            "compression=hvd.Compression.int8 keeps an error residual between steps, so it works only with "
            "hvd.DistributedOptimizer and hvd.DistributedGradientTape (op=hvd.Average or hvd.Sum). For a single "
            "collective, use hvd.Compression.none, fp16 or bf16."
        )

    @staticmethod
    def decompress(tensor: Any, ctx: object) -> Any:
        """Return the tensor itself: the engine has converted it."""
        return tensor


def is_int8(compression: Any) -> bool:
    """Return whether it is `Int8Compressor`, a subclass, or an object of either."""
    kind = compression if isinstance(compression, type) else type(compression)
    return issubclass(kind, Int8Compressor)


class CastCompressor(ABC):
    """Sends floating-point tensors in a type of two bytes; others as they are. Used as a class, not as an object.

    Attributes:
        wire_dtype: the type of two bytes, as `cast` takes it.
    """

    wire_dtype: Any

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Return the tensor in another type."""

    @staticmethod
    @abstractmethod
    def is_floating(dtype: Any) -> bool:
        """Return whether tensors of a type are cast."""

    @staticmethod
    def dtype_of(tensor: Any) -> Any:
        """Return a tensor's type, as `cast` takes it."""
        return tensor.dtype

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in the wire type, and its own type."""
        dtype = cls.dtype_of(tensor)
        return (cls.cast(tensor, cls.wire_dtype) if cls.is_floating(dtype) else tensor), dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in the type that it had, which is `ctx`."""
        return cls.cast(tensor, ctx)


def check_compressor(compression: Any, *, kind: str = "", choices: str = "none, fp16, bf16 and int8") -> Any:
    """Return ``compression=`` as passed. Raises ValueError: it has no usable ``compress`` and ``decompress``."""
    functions = [getattr(compression, name, None) for name in ("compress", "decompress")]
    if all(callable(function) for function in functions):
        if isinstance(compression, type) and not all(map(_takes, functions, (1, 2))):
            raise ValueError(
                f"{kind and f'{kind}: '}compression={compression.__name__} is a class whose compress or decompress "
                f"takes self: pass an object, compression={compression.__name__}()."
            )
        return compression
    hint = " Pass the object, not its name." if isinstance(compression, str) else ""
    raise ValueError(
        f"{kind and f'{kind}: '}compression={compression!r} must be one of hvd.Compression.{choices}, or have the "
        f"functions compress(tensor) and decompress(tensor, ctx).{hint}"
    )


def _takes(function: Any, arguments: int) -> bool:
    """Return whether a function can be called with this number of arguments; True if its signature isn't known."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
