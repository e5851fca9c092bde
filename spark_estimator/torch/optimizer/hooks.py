"""Reports when a parameter's gradient is complete, and when the backward pass that computed it ended or raised."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch.autograd.function import BackwardCFunction


class Listener(Protocol):
    """Receives the reports. Called from inside autograd, in the thread that runs the pass."""

    def note_gradient_complete(self, key: int) -> None:
        """Note that this pass adds no more to a parameter's gradient; while counting, of the last of a set only."""
        ...

    def note_gradient_again(self, key: int) -> None:
        """Note, while ``ParameterHooks.counting``, that a gradient that was complete has got more."""
        ...

    def note_backward_ended(self) -> None:
        """Note that all gradients of the pass are complete. Not called when the pass raised."""
        ...

    def note_backward_raised(self) -> None:
        """Note that the pass died before its end."""
        ...


class ParameterHooks:
    """The hooks of one listener, which they do not keep alive.

    A parameter has one listener, the one that was made last: a notebook cell that is run again wraps a new optimizer
    around the same model while the old one lives on, and two requests must not work on one gradient's memory.

    Attributes:
        counting: one element: whether gradients are taken out of the sets that `count_in` has named.
        gave_away: whether a listener that was made later has had a parameter of this one's.
        shares: whether it gave one away, or `select_not_newer` has left one out: another call may give another result.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = weakref.ref(listener)
        self.counting = [False]
        self._number = next(_numbers)
        self.gave_away = self.shares = False
        # With the parameter, so that no other gets its id, and how its gradient is counted.
        self._handles: dict[int, tuple[torch.Tensor, Any, _Counted]] = {}
        self._on_params: dict[int, Any] = {}  # all hooks of the same parameters, also the user's

    def add(self, param: torch.Tensor) -> None:
        """Listen to a trainable parameter that `may_have` allows, in place of its earlier listener; once."""
        key = id(param)
        if key in self._handles:
            return
        before = _owner.get(key)
        if before is not None:
            before.remove(key)
            before.gave_away = before.shares = True
        _owner[key] = self
        counted: _Counted = [(set(), None)]
        hook = _make_hook(self._listener, key, self.counting, counted)
        self._handles[key] = (param, param.register_post_accumulate_grad_hook(hook), counted)
        self._on_params[key] = param._post_accumulate_grad_hooks

    def may_have(self, param: torch.Tensor) -> bool:
        """Return whether no listener that was made later listens to a parameter."""
        if id(param) in self._handles:
            return True
        owner = _owner.get(id(param))
        return owner is None or owner._number < self._number

    def select_not_newer(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters, of `params`, that `may_have` allows."""
        allowed = [param for param in params if self.may_have(param)]
        self.shares |= len(allowed) < len(params)
        return allowed

    def stand_last(self) -> bool:
        """Has our hooks called after those that the user has added since; asked as a pass begins.

        Such a hook changes the gradient (clips it, adds noise); this package's hook may send it at once.

        Returns:
            Whether some had to be moved: the parameter that this pass began with has its hooks called in the old order.
        """
        moved = False
        if max(map(len, self._on_params.values()), default=0) <= 1:  # the usual case, asked in every pass
            return moved
        for key, (param, handle, counted) in self._handles.items():
            hooks = self._on_params[key]
            if len(hooks) > 1 and next(reversed(hooks)) != handle.id:
                handle.remove()
                hook = _make_hook(self._listener, key, self.counting, counted)
                self._handles[key] = (param, param.register_post_accumulate_grad_hook(hook), counted)
                moved = True
        return moved

    def list_newer(self, params: Sequence[torch.Tensor]) -> list[Listener]:
        """Return the listeners that have taken some of `params` from this one: none unless it `gave_away` one."""
        owners = dict.fromkeys(_owner.get(id(param)) for param in params if not self.may_have(param))
        listeners = [owner._listener() for owner in owners if owner is not None]
        return [listener for listener in listeners if listener is not None]

    def find_running(self) -> int | None:
        """Return the id of this listener's parameter whose hooks autograd calls now in this thread, if any."""
        if not is_inside_backward():
            return None
        variable = getattr(torch._C._current_autograd_node(), "variable", None)  # of AccumulateGrad
        return id(variable) if id(variable) in self._handles else None

    def count_in(self, keys: Sequence[int], missing: set[int], note: Callable[[], None] | None = None) -> None:
        """Take a parameter's id, one of `keys`, out of `missing` when its gradient is complete, while `counting`.

        Before it `note` is called, in autograd's thread and with its stream.
        """
        counted = (missing, note)
        for key in keys:
            self._handles[key][2][0] = counted

    def remove(self, key: int) -> None:
        """Listen no more to the parameter with this id."""
        _, handle, _ = self._handles.pop(key)
        handle.remove()
        del self._on_params[key]
        if _owner.get(key) is self:
            del _owner[key]

    def keep_only(self, keys: set[int]) -> None:
        """Listen no more to parameters but those with these ids."""
        for key in self._handles.keys() - keys:
            self.remove(key)

    def __del__(self) -> None:
        for param, handle, _ in self._handles.values():
            # Not handle.remove(): where a cycle of objects is collected, the handle does not know its hooks any more.
            hooks = param._post_accumulate_grad_hooks
            if hooks is not None:
                hooks.pop(handle.id, None)


_numbers = itertools.count()

#: One element: the set in which a gradient counts as missing, and what is called when it is there.
_Counted = list[tuple[set[int], "Callable[[], None] | None"]]

#: Parameter id -> the hooks that it has.
_owner: weakref.WeakValueDictionary[int, ParameterHooks] = weakref.WeakValueDictionary()


def _make_hook(
    listener: weakref.ref[Listener], key: int, counting: list[bool], counted: _Counted
) -> Callable[[torch.Tensor], None]:
    # Called for every parameter in every backward pass: nothing is done here that can be done once. With 20,000
    # parameters an empty hook costs 1.1 us, this one 1.8 to 2.0, also if it is one function for all. It does not use
    # `param`: that can be another object after torch.utils.swap_tensors.
    def hook(param: torch.Tensor) -> None:
        again = False
        if counting[0]:
            missing, note = counted[0]
            if note is not None:
                note()
            try:
                missing.remove(key)
                if missing:
                    return
            except KeyError:
                again = True
        receiver = listener()
        if receiver is not None:
            if again:
                receiver.note_gradient_again(key)
            else:
                receiver.note_gradient_complete(key)

    return hook


class EndOfBackward:
    """A function that autograd calls at the end of the current pass; it is dropped uncalled if the pass raises."""

    def __init__(self, listener: Listener) -> None:
        self._listener = weakref.ref(listener)
        self._called = False
        torch.autograd.Variable._execution_engine.queue_callback(self)

    def __call__(self) -> None:
        self._called = True
        listener = self._listener()
        if listener is not None:
            listener.note_backward_ended()

    def __del__(self) -> None:
        listener = self._listener()
        if not self._called and listener is not None:
            listener.note_backward_raised()


class _AtTheEnd:
    """Functions that are called at the very end of one pass. If one raises, the others are still called."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], None]] = []

    def __call__(self) -> None:
        first: Exception | None = None
        for act in self.acts:
            try:
                act()
            except Exception as error:  # not exceptions that must end everything at once, such as Ctrl-C
                first = first or error
        if first is not None:
            raise first


#: Number of a pass -> what is called at its end; autograd holds it until then.
_at_the_end: weakref.WeakValueDictionary[int, _AtTheEnd] = weakref.WeakValueDictionary()


def call_at_the_end(act: Callable[[], None]) -> None:
    """Call `act` at the end of the current pass, after all callbacks that are already queued.

    If it raises, the other functions registered here for the pass are called before the error is raised again. Nothing
    of it is called when the pass raises.
    """
    number = find_current_pass()
    acts = _at_the_end.get(number)
    if acts is None:
        acts = _at_the_end[number] = _AtTheEnd()
        torch.autograd.Variable._execution_engine.queue_callback(acts)
    acts.acts.append(act)


def find_current_pass() -> int:
    """Return a number for this thread's current pass, greater than those of all earlier ones; -1: none."""
    return int(torch._C._current_graph_task_id())


def find_enclosing_node() -> Any | None:
    """Return, at the end of a pass, the node of another pass in which it ran, if any.

    It is an autograd function whose ``backward`` called the pass, as a checkpoint's does, or the node of such a hook.
    """
    return torch._C._current_autograd_node()


class InnerPass:
    """A backward inside another one, by its `find_enclosing_node`: decides whether a later pass belongs there, too."""

    def __init__(self, node: Any) -> None:
        self._number = find_current_pass()
        self._function = weakref.ref(node) if isinstance(node, BackwardCFunction) else None

    def is_in_this_pass(self) -> bool:
        """Return whether the current pass is the outer one, or inside it. Else the outer one has raised."""
        if find_current_pass() < self._number:
            return True
        function = None if self._function is None else self._function()
        frame: FrameType | None = sys._getframe(1)
        passes = 0
        while frame is not None:
            if frame.f_code is BackwardCFunction.apply.__code__ and frame.f_locals["self"] is function:
                return True
            passes += frame.f_code in _BACKWARD
            frame = frame.f_back
        # For a node with a hook, the stack only shows the passes, one in the other.
        return self._function is None and passes > 1


_BACKWARD = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)


def is_inside_backward() -> bool:
    """Return whether this thread is at work on a backward pass."""
    return find_current_pass() >= 0


def call_after(node: Any, act: Callable[[], None]) -> None:
    """Call `act`, once, when a node of the graph is done with, in the pass that it belongs to.

    Not called if that raises, nor from the hooks that run after the node. Then nothing is reported: what its graph
    holds may be dropped at any later time, also in the middle of another pass.
    """

    def hook(*_: object) -> None:
        handle.remove()
        act()

    handle = node.register_hook(hook)
