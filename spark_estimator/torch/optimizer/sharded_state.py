"""Optimizer state divided among the ranks: each updates a share of the parameters' elements and sends it to the others.

This is stage 1 of ZeRO (Rajbhandari et al. 2020): what Adam remembers, two numbers a parameter, is held once in the job
and not once a rank. Gradients are averaged as ever, so that clipping, scaling and logging see what they always see;
then, in ``step()``:

1. The ranks compare for which parameters they have gradients. Where one differs, or a rank has joined, all raise, and
   nothing has been changed.
2. The optimizer's parameter groups hold *pieces* for a moment: views of this rank's elements of the parameters, and of
   their gradients. The optimizer's own step works on those and remembers what it remembers for them alone.
3. All ranks' pieces are gathered, and the groups hold the parameters again.

It is right only for optimizers that treat each element separately.

A checkpoint holds the state as a whole: `consolidate` on all ranks, then ``state_dict()`` on one. ``load_state_dict``
takes such a whole, also one of another number of ranks or of an optimizer that was not sharded; on all ranks, or on one
followed by ``broadcast_optimizer_state``. The next step keeps this rank's share of it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator._native import Op
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.errors import MismatchError
from spark_estimator.torch.collectives.device import gathered, location_of_all
from spark_estimator.torch.collectives.memory import described

_KIND = "step of an optimizer with shard_state=True"

#: Optimizers of PyTorch whose step treats each element of a parameter separately.
ELEMENTWISE = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)


def check_can_shard(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError when a step on a share of a parameter's elements would not be the same share of the step."""
    if not isinstance(optimizer, ELEMENTWISE):
        names = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise ValueError(
            f"shard_state=True needs an optimizer with an element-wise update rule ({names}, or a subclass of one); "
            f"{type(optimizer).__name__} is not one of them."
        )
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not _is_dense(param):
                raise ValueError(
                    f"shard_state=True needs parameters that are dense in memory; one has shape {tuple(param.shape)} "
                    f"and strides {param.stride()}."
                )


@dataclass
class _Piece:
    """This rank's elements of one parameter.

    Attributes:
        param: the parameter.
        view: [stop - start] its elements from `start` to `stop`, in the order of memory; a
            parameter that is a single number stays one; none when this rank has none of it.
        start, stop: elements of the parameter.
    """

    param: torch.Tensor
    view: torch.nn.Parameter | None
    start: int
    stop: int


class ShardedState:
    """The work of a sharded optimizer around its own step. Collective in `enter`, `leave` and `consolidate`.

    Args:
        optimizer: whose groups and state.
        process_set: among whose ranks; None: all.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, process_set: ProcessSet | None) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._process_set = process_set
        self._named_by: weakref.ref[Engine] | None = None  # the engine for whose job `_name` was made
        self._name = ""
        self._rank_and_size = (0, 0)  # this rank's, and the number of ranks, when the pieces were made
        self._groups: list[list[_Piece]] = []
        self._params: list[list[torch.Tensor]] = []
        self._entered: list[list[torch.Tensor]] | None = None  # while the groups contain pieces
        self._full_state: dict[torch.Tensor, dict[str, Any]] | None = None  # until the next step
        self._request_name()

    @property
    def holds_state(self) -> bool:
        """Whether a step has left state that is divided."""
        state = self._require_optimizer().state
        return any(piece.view is not None and piece.view in state for group in self._groups for piece in group)

    def enter(self) -> None:
        """Puts this rank's pieces into the optimizer's groups, with views of the gradients that there are. Collective.

        Raises:
            MismatchError: on all ranks: one has a gradient where another has none, or has joined. Nothing was changed.
            HorovodInternalError: a rank is lost.
        """
        if self._entered is not None:
            return
        optimizer = self._require_optimizer()
        self._divide()
        self._compare_gradients()
        self._full_state = None
        for pieces in self._groups:
            for piece in pieces:
                self._take_state(piece)
                if piece.view is not None:
                    piece.view.data = _share(piece.param.data, piece.start, piece.stop)
                    piece.view.grad = _gradient(piece)
        self._entered = [group["params"] for group in optimizer.param_groups]
        for group, pieces in zip(optimizer.param_groups, self._groups, strict=True):
            group["params"] = [piece.view for piece in pieces if piece.view is not None]

    def restore(self) -> None:
        """The groups hold the parameters again; for after a step that raised, too."""
        if self._entered is None:
            return
        for group, params in zip(self._require_optimizer().param_groups, self._entered, strict=True):
            group["params"] = params
        self._entered = None
        for pieces in self._groups:
            for piece in pieces:
                if piece.view is not None:
                    piece.view.grad = None

    @torch.no_grad()
    def leave(self) -> None:
        """Gathers what all ranks have stepped, and restores the groups. Collective.

        Raises:
            HorovodInternalError: a rank is lost.
        """
        if self._entered is None:
            return
        self.restore()
        engine = context.engine(self._process_set)
        pieces = [piece for group in self._groups for piece in group]
        dtypes = list(dict.fromkeys(piece.param.dtype for piece in pieces))
        location = location_of_all([piece.param for piece in pieces], self._process_set)
        # As in one process, what has no gradient was not stepped; on all ranks the same.
        sent = []
        for dtype in dtypes:
            moved = _moved(pieces, dtype)
            shares = [_flat(piece.param)[piece.start : piece.stop].to(location.device) for piece in moved]
            sent.append(torch.cat(shares) if shares else torch.empty(0, dtype=dtype, device=location.device))
        if not sent:
            return
        gpu = location.gpu(_KIND)
        handle = collectives.run(
            Op.ALLGATHER,
            f"{self._request_name()}.parameters",
            [described(tensor)._replace(output=0) for tensor in sent],
            process_set=self._process_set,
            keep=sent,
            gpu=gpu,
        )
        assert handle is not None
        received = gathered(handle, location, gpu, sent, _KIND)
        for dtype, (joined, _) in zip(dtypes, received, strict=True):
            offset = 0
            for rank in range(engine.size):
                for piece in _moved(pieces, dtype):
                    start, stop = self._range(piece.param, rank)
                    if rank != engine.rank:
                        _flat(piece.param)[start:stop].copy_(joined[offset : offset + stop - start])
                    offset += stop - start

    def _compare_gradients(self) -> None:
        """Raises MismatchError, on all ranks, when one would step other parameters than the rest, or none."""
        engine = context.engine(self._process_set)
        pieces = [piece for group in self._groups for piece in group]
        flags = torch.tensor([[piece.param.grad is not None for piece in pieces]], dtype=torch.uint8)
        tensors, name = [described(flags)._replace(output=0)], f"{self._request_name()}.gradients"
        try:
            handle = collectives.run(Op.ALLGATHER, name, tensors, process_set=self._process_set, keep=flags)
        except MismatchError as error:
            raise MismatchError(
                "No rank took this step with shard_state=True, and no parameters changed: each rank updates a share "
                f"of the parameters, so all ranks must step together, with the same parameters. {error}"
            ) from error
        assert handle is not None
        data, _ = handle.gathered()
        alike = bytes(flags.numpy()) * engine.size
        if bytes(data) == alike:
            return
        present = torch.frombuffer(data, dtype=torch.uint8).view(engine.size, -1)
        differing = [(rank, row != present[0]) for rank, row in zip(engine.ranks, present, strict=True)]
        rank, row = next((rank, row) for rank, row in differing if row.any())
        position = int(row.nonzero()[0])
        first = engine.ranks[0]
        who = (first, rank) if present[0, position] else (rank, first)
        raise MismatchError(
            f"No rank took this step with shard_state=True, and no parameters changed: rank {who[0]} has a gradient "
            f"for parameter {position} (of shape {tuple(pieces[position].param.shape)}) and rank {who[1]} has none. "
            "Do not clear gradients, or skip synchronizing, on some ranks."
        )

    def _request_name(self) -> str:
        """The name of this optimizer's requests: numbered when it is made, and at its first request in a later job."""
        engine = context.engine(self._process_set)
        if self._named_by is None or self._named_by() is not engine:
            self._named_by = weakref.ref(engine)
            self._name = f"ShardedState.{context.next_number(f'ShardedState {engine.process_set}')}"
        return self._name

    def consolidate(self, to: int) -> None:
        """Gathers the whole state on rank `to`, for ``state_dict()`` there. A collective.

        Args:
            to: a rank of the job; it needs memory for the whole state, the others for two shares.
        """
        engine = context.engine(self._process_set)
        if to not in engine.ranks:
            raise ValueError(f"consolidate_state_dict(to={to!r}): the ranks are {list(engine.ranks)}.")
        state = self._require_optimizer().state
        pieces = [piece for group in self._groups for piece in group]
        full_state: dict[torch.Tensor, dict[str, Any]] = {}
        for rank in engine.ranks:
            # In host memory: a CUDA tensor is unpickled on the device of the same number, on every rank.
            share = {
                number: _in_host_memory(state[piece.view])
                for number, piece in enumerate(pieces)
                if rank == engine.global_rank and piece.view is not None and piece.view in state
            }
            name = f"{self._request_name()}.consolidate.{rank}"
            theirs = broadcast_object(share, rank, name=name, process_set=self._process_set)
            if engine.global_rank != to:
                continue
            for number, values in theirs.items():
                piece = pieces[number]
                start, stop = self._range(piece.param, engine.ranks.index(rank))
                _join(full_state.setdefault(piece.param, {}), values, piece.param, start, stop)
        self._full_state = full_state if engine.global_rank == to else None

    def consolidated_state(self) -> dict[torch.Tensor, dict[str, Any]] | None:
        """The source of ``state_dict()``; None: the optimizer's own state, in which nothing is divided yet.

        Raises:
            RuntimeError: the state is divided, and has not been gathered on this rank since the last step.
        """
        if self._full_state is None and self.holds_state:
            raise RuntimeError(
                f"The state of this optimizer is divided among the ranks (shard_state=True), and rank "
                f"{context.rank()} has only its share. Call optimizer.consolidate_state_dict(to={context.rank()}) on "
                "all ranks first."
            )
        return self._full_state

    def forget(self) -> None:
        """Drops this rank's share: another state is about to be loaded."""
        self.restore()
        self._full_state = None
        state = self._require_optimizer().state
        for pieces in self._groups:
            for piece in pieces:
                if piece.view is not None:
                    state.pop(piece.view, None)

    def _require_optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer

    def _divide(self) -> None:
        """Makes pieces for groups that are new. Raises ValueError when an old one has other parameters than before."""
        engine = context.engine(self._process_set)
        rank, size = engine.rank, engine.size
        if (rank, size) != self._rank_and_size and self.holds_state:
            raise ValueError(
                f"This optimizer's state was divided among {self._rank_and_size[1]} ranks of a job that has ended, and "
                f"there are {size} now: consolidate_state_dict() before shutdown(), load_state_dict() after init()."
            )
        if (rank, size) != self._rank_and_size:
            self._rank_and_size, self._groups, self._params = (rank, size), [], []
        for number, group in enumerate(self._require_optimizer().param_groups):
            params = list(group["params"])
            if number < len(self._params):
                same = len(params) == len(self._params[number])
                if not same or any(a is not b for a, b in zip(params, self._params[number], strict=True)):
                    raise ValueError(
                        f"Parameter group {number} has other parameters than at the first step, and its state is "
                        "divided (shard_state=True): use add_param_group() for new ones."
                    )
                continue
            pieces = []
            for param in params:
                start, stop = self._range(param, engine.rank)
                view = (
                    torch.nn.Parameter(_share(param.data, start, stop), param.requires_grad) if stop > start else None
                )
                pieces.append(_Piece(param, view, start, stop))
            self._params.append(params)
            self._groups.append(pieces)

    def _range(self, param: torch.Tensor, rank: int) -> tuple[int, int]:
        """A rank's elements of a parameter. Every parameter is divided, so that all ranks have equally much to do."""
        size = context.engine(self._process_set).size
        count = param.numel()
        return count * rank // size, count * (rank + 1) // size

    def _take_state(self, piece: _Piece) -> None:
        """Keeps this rank's share of a state that was loaded as a whole."""
        state = self._require_optimizer().state
        if piece.param not in state:
            return
        loaded = state.pop(piece.param)
        if piece.view is not None:
            state[piece.view] = {
                key: _flat(value)[piece.start : piece.stop].clone() if _is_divided(value, piece.param) else value
                for key, value in loaded.items()
            }


def _join(full_state: dict[str, Any], values: dict[str, Any], param: torch.Tensor, start: int, stop: int) -> None:
    """Puts a share of one parameter's state where it belongs in the whole."""
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and value.shape == (stop - start,) and value.dim() == 1:
            if key not in full_state:
                full_state[key] = torch.zeros_like(param, dtype=value.dtype, requires_grad=False)
            _flat(full_state[key])[start:stop] = value.to(param.device)
        else:
            full_state[key] = value


def _in_host_memory(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in values.items()}


def _is_divided(value: object, param: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == param.shape and value.dim() > 0


def _is_dense(param: torch.Tensor) -> bool:
    return param.layout is torch.strided and param.stride() == torch.empty_like(param, device="meta").stride()


def _moved(pieces: list[_Piece], dtype: torch.dtype) -> list[_Piece]:
    return [piece for piece in pieces if piece.param.dtype is dtype and piece.param.grad is not None]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a dense tensor, in the order of memory, which it shares."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _share(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Some elements; a single number as it is: with another shape, its state would be mistaken for a count of steps."""
    return _flat(tensor)[start:stop] if tensor.dim() else tensor


def _gradient(piece: _Piece) -> torch.Tensor | None:
    gradient = piece.param.grad
    if gradient is None:
        return None
    if gradient.layout is not torch.strided:
        raise ValueError("shard_state=True does not support sparse gradients; create the embedding with sparse=False.")
    if gradient.stride() != piece.param.stride():
        gradient = torch.empty_like(piece.param, dtype=gradient.dtype, requires_grad=False).copy_(gradient)
    return _share(gradient, piece.start, piece.stop)
