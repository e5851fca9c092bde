"""Submits collective calls to the engine, once or repeatedly.

All functions here take one engine, that is, one group of ranks; ``ops`` finds the engine.

Tensors on a GPU are submitted with the stream that writes them. The engine reads them after all work that is enqueued
there so far, on a separate stream; ``handle`` documents when its outputs may be read.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int64, c_void_p
from datetime import timedelta

from spark_estimator import _native
from spark_estimator._native import DType, Op
from spark_estimator.collectives.call import Call, Form, Tensor, find_bad_argument, make_native_request
from spark_estimator.collectives.engine import WAIT_SLICE_SECONDS, Engine
from spark_estimator.collectives.handle import GATHERING, Handle
from spark_estimator.errors import DuplicateNameError, ShutDownError

# Requests that are remembered as plans. A job that repeats more of them than that gains nothing for the oldest.
_REMEMBERED = 4096

# A list: ctypes accepts nothing else for a whole array.
Addresses = list[ctypes.c_void_p | int | None]


def submit(
    engine: Engine, call: Call, tensors: Sequence[Tensor], keep: object, *, repeats: bool = True, stream: int = 0
) -> Handle:
    """Submit a collective and return at once. A named one takes less time from its third use on.

    Args:
        engine: of the group.
        call: what to do.
        tensors: one; or several that are done as one; none for a barrier and a join.
        keep: referenced until the collective is done, and on a GPU until a stream waits for it; put the owners of the
            tensors' memory here.
        repeats: whether one of this name may be repeated.
        stream: of the call's device, if it has one: where the tensors are written.

    Raises:
        DuplicateNameError: one of that name is still in progress on this rank.
        ValueError: an argument is malformed. Nothing was sent.
        HorovodInternalError: the engine has failed or ended before.
    """
    if call.unnamed or not repeats:
        return _submit_new(engine, call, tensors, keep, stream)
    forms = _list_forms(tensors)
    remembered = _recall(engine, call, call.name)
    if isinstance(remembered, Plan) and remembered.suits(call, forms):
        try:
            handle = remembered.submit(*_list_addresses(tensors), keep, stream=stream)
        except DuplicateNameError:  # the error of the request names the tensor, not the plan
            handle = _submit_new(engine, call, tensors, keep, stream)
    else:
        handle = _submit_new(engine, call, tensors, keep, stream)
    _remember(engine, call, forms, call.name, remembered)
    return handle


def _submit_new(engine: Engine, call: Call, tensors: Sequence[Tensor], keep: object, stream: int) -> Handle:
    request = make_native_request(engine, call, tensors, stream)
    of = None if call.device is None else stream
    return Handle(engine, engine.submit(request), call.name, call.op, len(tensors), keep, of)


def run(
    engine: Engine,
    call: Call,
    tensors: Sequence[Tensor],
    keep: object,
    *,
    repeats: bool = True,
    timeout: timedelta | None = None,
    stream: int = 0,
) -> Handle | None:
    """Submit a collective and wait for it. From its third use on, it uses the engine's fastest path.

    On a GPU the stream is made to wait as well, but for an op that makes its result itself: see ``Handle.collect``.

    Args:
        engine, call, tensors, keep, stream: as in `submit`.
        repeats: whether one of this name, or an equal one without a name, may be repeated.
        timeout: for the wait; None: none.

    Returns:
        For an op that makes its result itself (allgather, alltoall, join) the handle, done; else None.

    Raises:
        As `submit` and ``Handle.wait`` do.
    """
    forms = _list_forms(tensors)
    key = (call, *forms) if call.unnamed else call.name
    remembered = _recall(engine, call, key) if repeats else None
    if isinstance(remembered, Plan) and remembered.suits(call, forms):
        handle = remembered.run(*_list_addresses(tensors), keep, stream)
    else:
        request = make_native_request(engine, call, tensors, stream)
        number = c_int64()
        try:
            engine.run(request, number)
            handle = _make_handle(engine, number, call, tensors, keep, stream)
        except BaseException as error:
            _abandon(engine, number, call, keep, stream, error)
            raise
    if handle is not None:
        handle.wait(timeout)
        if call.device is not None and call.op not in GATHERING:
            handle.await_on(stream)
    elif call.device is not None:
        engine.gpu.log_path(engine)
    if repeats:
        _remember(engine, call, forms, key, remembered)
    return handle


def gather_bytes(
    engine: Engine, name: str, payload: bytes, *, unnamed: bool = False, timeout: timedelta | None = None
) -> list[memoryview]:
    """Return each rank's bytes, on every rank of the group. All call it. Raises as `run`; `unnamed`: see `Call`."""
    call = Call(Op.ALLGATHER, name, unnamed=unnamed)
    handle = run(engine, call, *_to_tensor(payload), repeats=False, timeout=timeout)
    assert handle is not None
    return fetch_bytes(handle)


def submit_bytes(engine: Engine, name: str, payload: bytes) -> Handle:
    """Submit what `gather_bytes` does, without waiting: `fetch_bytes` gives the result of the handle."""
    return submit(engine, Call(Op.ALLGATHER, name), *_to_tensor(payload), repeats=False)


def _to_tensor(payload: bytes) -> tuple[list[Tensor], object]:
    buffer = ctypes.create_string_buffer(payload, max(1, len(payload)))
    return [Tensor(ctypes.addressof(buffer), 0, DType.UINT8, (len(payload),))], buffer


def fetch_bytes(handle: Handle) -> list[memoryview]:
    """Return the bytes of each rank of the group; waits until the handle's allgather is done."""
    data, rows = handle.gathered()
    ends = list(itertools.accumulate(rows))
    return [data[end - length : end] for end, length in zip(ends, rows, strict=True)]


class Plan:
    """A collective that is checked and named once and submitted many times, each time with other memory.

    One submission may be in flight. It does not keep its engine.

    Attributes:
        call: what to do.
        forms: element type and shape of each tensor.

    Raises:
        ValueError: the call or a form is malformed.
        HorovodInternalError: the engine has failed or ended before.
    """

    __slots__ = (
        "_engine",
        "_inputs",
        "_keep",
        "_native",
        "_number",
        "_outputs",
        "_places",
        "_pointer",
        "_run",
        "call",
        "forms",
    )

    def __init__(self, engine: Engine, call: Call, forms: Sequence[Form], keep: object = None) -> None:
        self._pointer: int | None = None
        self._keep = keep  # the owner of the call's residues
        self._native = engine.native
        self._engine = weakref.ref(engine)
        self.call = call
        self.forms = list(forms)
        request = make_native_request(engine, call, [Tensor(0, 0, *form) for form in forms])
        made = c_void_p()
        library = self._native.library
        status = library.se_plan_create(self._native.require_pointer(), ctypes.byref(request), ctypes.byref(made))
        _native.check(status, engine.global_rank)
        self._pointer = made.value
        self._inputs = (c_void_p * len(forms))()
        self._outputs = (c_void_p * len(forms))()
        self._number = c_int64()
        self._places = [ctypes.addressof(memory) for memory in (self._inputs, self._outputs, self._number)]
        self._run = library.se_plan_run

    def suits(self, call: Call, forms: Sequence[Form]) -> bool:
        """Return whether a call on tensors of some forms is this one."""
        return self.call == call and self.forms == forms

    def submit(
        self, inputs: Addresses, outputs: Addresses, keep: object, *, defer: bool = False, stream: int = 0
    ) -> Handle:
        """Submit it and return at once. Raise as the function `submit` does.

        Args:
            inputs, outputs: addresses, in the order of the forms.
            keep, stream: as there.
            defer: no caller needs the result before this rank's next wait, so that the work may be left until then
                where cores are scarce.
        """
        engine = self._prepare(inputs, outputs)
        flags = _native.DEFER if defer else 0
        keep = (self, keep)
        try:
            inputs_at, outputs_at, number_at = self._places
            status = self._native.library.se_plan_submit(self._pointer, inputs_at, outputs_at, stream, flags, number_at)
            _native.check(status, engine.global_rank)
            of = None if self.call.device is None else stream
            return Handle(engine, self._number.value, self.call.name, self.call.op, len(self.forms), keep, of)
        except BaseException as error:
            _abandon(engine, self._number, self.call, keep, stream, error)
            raise

    def run(self, inputs: Addresses, outputs: Addresses, keep: object, stream: int = 0) -> Handle | None:
        """Submit it and wait for a moment; return a handle if it takes longer. Raise as the function `run` does."""
        engine = self._prepare(inputs, outputs)
        try:
            inputs_at, outputs_at, number_at = self._places
            status = self._run(self._pointer, inputs_at, outputs_at, stream, WAIT_SLICE_SECONDS, number_at)
            if status == 0 and not self._number.value:
                return None
            engine.check_run(status, self._number)
            return _make_handle(engine, self._number, self.call, self.forms, (self, keep), stream)
        except BaseException as error:
            _abandon(engine, self._number, self.call, (self, keep), stream, error)
            raise

    def _prepare(self, inputs: Addresses, outputs: Addresses) -> Engine:
        self._native.require_pointer()
        engine = self._engine()
        if engine is None:
            raise ShutDownError(f"{self.call.op.name.lower()} {self.call.name!r}: this rank has left the job.")
        self._inputs[:] = inputs
        self._outputs[:] = outputs
        self._number.value = 0
        return engine

    def __del__(self) -> None:
        # A compiler that traces through a call may make one without `__init__`.
        if getattr(self, "_pointer", None) is not None and self._native.pointer is not None:
            self._native.library.se_plan_destroy(self._pointer)


def _make_handle(
    engine: Engine, number: c_int64, call: Call, tensors: Sequence[object], keep: object, stream: int
) -> Handle | None:
    if not number.value:
        return None
    of = None if call.device is None else stream
    return Handle(engine, number.value, call.name, call.op, len(tensors), keep, of)


def _abandon(engine: Engine, number: c_int64, call: Call, keep: object, stream: int, error: BaseException) -> None:
    """Keep the memory of a failed call's request, which the engine or a GPU may still use."""
    if number.value:  # interrupted between two lines
        engine.detach(number.value, keep, None if call.device is None else stream)
    elif call.device is not None:
        engine.gpu.hold(keep, error)


def _list_addresses(tensors: Sequence[Tensor]) -> tuple[Addresses, Addresses]:
    return [tensor[0] for tensor in tensors], [tensor[1] for tensor in tensors]


def _list_forms(tensors: Sequence[Tensor]) -> list[Form]:
    return [(tensor[2], tensor[3]) for tensor in tensors]


def _recall(engine: Engine, call: Call, key: object) -> object:
    """Take out what `_remember` noted, while it is used: two threads must not write the addresses of one plan, and
    the most recently used plan is the last of the dict.

    Raises:
        TypeError: the call has something that cannot be hashed, such as a list for a name.
    """
    try:
        return engine.plans.pop(key, None)
    except TypeError as error:
        raise find_bad_argument(engine, call) or error from None


def _remember(engine: Engine, call: Call, forms: list[Form], key: object, remembered: object) -> None:
    """Note a call; at its second use with the same form in a row a plan is made of it. A plan stays when a call of its
    name has another form, as that of a last batch."""
    if not isinstance(remembered, Plan):
        remembered = Plan(engine, call, forms) if remembered == (call, forms) else (call, forms)
    if len(engine.plans) >= _REMEMBERED:
        # Another thread may remove one at the same time; if this fails, the dict has one more than the limit until the
        # next call.
        with suppress(RuntimeError, StopIteration):
            engine.plans.pop(next(iter(engine.plans)), None)
    engine.plans[key] = remembered
