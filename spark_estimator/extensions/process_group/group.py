"""A ``torch.distributed`` process group on the engine of a job, or of a process set of it."""

# torch's stubs have an overload for each form of a call; one method here takes them all.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spark_estimator._native import Op
from spark_estimator.collectives.handle import Handle
from spark_estimator.extensions.process_group.elements import (
    ElementReduction,
    check_one_each,
    check_same_type,
    convert_reduction,
    describe_input,
    distribute,
    flatten,
    flatten_all,
    flatten_writable,
    get_only,
    has_overlap,
    put,
    split_rows,
    to_list,
    to_lists,
    view_received,
)
from spark_estimator.extensions.process_group.issuing import Finish, IssuingGroup
from spark_estimator.extensions.process_group.transfer import MessageBytes, TensorSpec, view_memory
from spark_estimator.extensions.process_group.uncompiled import disable_compile
from spark_estimator.extensions.process_group.work import GroupWork
from spark_estimator.torch.collectives.memory import make_wire_tensor

Tensors = Sequence[torch.Tensor]


@disable_compile
class EngineGroup(IssuingGroup):
    """The ranks of a process group, and the collectives among them. Made by torch through `creation.create`.

    Its methods are those that torch's C++ and Python call, by torch's names and with torch's arguments: lists of one
    tensor for each device of a rank, of which there is one, and options with ``asyncOp``, ``timeout``, ``reduceOp`` and
    ``rootRank`` (a number in the group). Each returns a `GroupWork`, done already where the operation blocks.
    """

    # --- reductions --------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None, *_: Any) -> GroupWork:
        """Reduce each tensor over the ranks, in place; several are one operation."""
        return self._submit_reduce("all_reduce", to_list(tensors), opts, None)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> GroupWork:
        """Reduce several tensors as `allreduce` does."""
        return self._submit_reduce("all_reduce_coalesced", to_list(tensors), opts, None)

    def reduce(self, tensors: Tensors, opts: Any) -> GroupWork:
        """Reduce as `allreduce` does; only the root's tensors change."""
        return self._submit_reduce("reduce", to_list(tensors), opts, self._get_root("reduce", opts))

    def _submit_reduce(self, operation: str, tensors: Tensors, opts: Any, root: int | None) -> GroupWork:
        how = convert_reduction(torch.distributed.ReduceOp.SUM if opts is None else opts)
        if how.bitwise is not None:
            return self._submit_bitwise(operation, tensors, how, opts, root)
        receives = root in (None, self._engine.rank)
        wires = [flatten_writable(tensor, operation) if receives else flatten(tensor, operation) for tensor in tensors]
        if has_overlap(wires):  # else a change to one would change another; so each gets the same result
            wires = [wire.clone() for wire in wires]
        targets = wires if receives else [torch.empty_like(wire) for wire in wires]

        def finish(_: Handle | None) -> list[Any]:
            return [put(*pair) for pair in zip(wires, tensors, strict=True)] if receives else list(tensors)

        described_ = [make_wire_tensor(*pair) for pair in zip(wires, targets, strict=True)]
        return self._issue(operation, Op.ALLREDUCE, described_, (wires, targets), finish, opts, how)

    def _submit_bitwise(
        self, operation: str, tensors: Tensors, how: ElementReduction, opts: Any, root: int | None
    ) -> GroupWork:
        """Submit a reduction that the engine lacks: every rank gathers all elements and joins them itself."""
        assert how.bitwise is not None
        join = how.bitwise
        wires = [flatten_writable(tensor, operation) for tensor in tensors]
        for tensor in tensors:
            if tensor.is_floating_point() or tensor.is_complex():
                raise ValueError(
                    f"{operation}: BAND, BOR and BXOR join the bits of whole numbers and truth values, not of "
                    f"{tensor.dtype}; give tensor.view() of an integer type if those bits are meant."
                )

        def finish(handle: Handle | None) -> list[Any]:
            assert handle is not None
            for number, (wire, tensor) in enumerate(zip(wires, tensors, strict=True)):
                if root in (None, self._engine.rank):
                    gathered = view_received(handle.gathered(number).data, wire.dtype).view(self._engine.size, -1)
                    joined = gathered[0]
                    for row in gathered[1:]:
                        joined = join(joined, row)
                    put(joined, tensor)
            return list(tensors)

        return self._issue(operation, Op.ALLGATHER, [describe_input(wire) for wire in wires], wires, finish, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> GroupWork:
        """Reduce `size` tensors of one size over the ranks; rank i gets the i-th."""
        return self._submit_reduce_scatter("reduce_scatter", to_list(outputs), to_lists(inputs), opts)

    def reduce_scatter_single(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> GroupWork:
        """Reduce one tensor that is cut in `size` equal parts, as `reduce_scatter` does."""
        return self._submit_reduce_scatter("reduce_scatter_tensor", [output], [[input_]], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """Reduce several tensors in one operation, each as `reduce_scatter_single` does."""
        return self._submit_reduce_scatter("reduce_scatter_tensor", outputs, [[tensor] for tensor in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _submit_reduce_scatter(
        self, operation: str, outputs: Tensors, inputs: Sequence[Tensors], opts: Any
    ) -> GroupWork:
        how = convert_reduction(torch.distributed.ReduceOp.SUM if opts is None else opts)
        if how.bitwise is not None:
            raise ValueError(
                f"{operation} has no bitwise reduction here; use all_reduce, which has, and take this rank's part."
            )
        targets, sources = [], []
        for output, addends in zip(outputs, inputs, strict=True):
            check_same_type([output, *addends], operation)
            target, source = flatten_writable(output, operation), flatten_all(addends, operation)
            if source.numel() != target.numel() * self._engine.size or len({part.numel() for part in addends}) > 1:
                raise ValueError(
                    f"{operation}: the inputs have {[part.numel() for part in addends]} elements and the output "
                    f"{target.numel()}; they must be {self._engine.size} parts of the output's size, one for each rank."
                )
            targets.append(target)
            sources.append(source.view(self._engine.size, -1) if source.numel() else source)
        tensors = [make_wire_tensor(*pair) for pair in zip(sources, targets, strict=True)]

        def finish(_: Handle | None) -> list[Any]:
            return [put(*pair) for pair in zip(targets, outputs, strict=True)]

        return self._issue(operation, Op.REDUCESCATTER, tensors, (sources, targets), finish, opts, how)

    # --- what only moves elements ------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any) -> GroupWork:
        """Copy the root's tensors into every rank's."""
        tensors = to_list(tensors)
        root = self._get_root("broadcast", opts)
        wires = [flatten_writable(tensor, "broadcast", moved=True) for tensor in tensors]

        def make_finish(number: int) -> Finish:
            return lambda _: [put(wires[number], tensors[number])]

        works = [
            self._issue("broadcast", Op.BROADCAST, [make_wire_tensor(wire)], wire, make_finish(number), opts, root=root)
            for number, wire in enumerate(wires)
        ]
        return works[0] if len(works) == 1 else self._join_works("broadcast", works)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors | torch.Tensor, opts: Any = None) -> GroupWork:
        """Copy rank i's tensor into the i-th output of every rank. The ranks' tensors may differ in size."""
        checked = [check_one_each("all_gather", row, self._engine.size) for row in to_lists(outputs)]
        return self._submit_gather("all_gather", checked, to_list(inputs), opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """Gather several tensors as `allgather` does: outputs[i] are rank i's."""
        check_one_each("all_gather_coalesced", outputs, self._engine.size)
        return self._submit_gather("all_gather_coalesced", list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> GroupWork:
        """Copy all ranks' tensors into one, in rank order."""
        return self.all_gather_single_coalesced([output], [input_], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """Gather several tensors in one operation, each as `all_gather_single` does."""
        for output, input_ in zip(outputs, inputs, strict=True):
            if output.numel() != input_.numel() * self._engine.size:
                raise ValueError(
                    f"all_gather_into_tensor: the output has {output.numel()} elements, not the input's "
                    f"{input_.numel()} for each of {self._engine.size} ranks."
                )
        return self._submit_gather("all_gather_into_tensor", [[target] for target in outputs], inputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _submit_gather(self, operation: str, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> GroupWork:
        for row, tensor in zip(outputs, inputs, strict=True):
            check_same_type([*row, tensor], operation)
        wires = [flatten(tensor, operation, moved=True) for tensor in inputs]

        def finish(handle: Handle | None) -> list[Any]:
            assert handle is not None
            for number, (row, wire) in enumerate(zip(outputs, wires, strict=True)):
                data, rows = handle.gathered(number)
                distribute(operation, view_received(data, wire.dtype), rows, row)
            return [list(row) if len(row) > 1 else row[0] for row in outputs]

        return self._issue(operation, Op.ALLGATHER, [describe_input(wire) for wire in wires], wires, finish, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> GroupWork:
        """Copy rank i's tensor into the root's i-th output."""
        root, own_rank = self._get_root("gather", opts), self._engine.rank
        wire = flatten(inputs[0], "gather", moved=True)
        targets: Tensors = []
        if own_rank == root:
            targets = check_one_each("gather", to_lists(outputs)[0], self._engine.size)
            check_same_type([*targets, inputs[0]], "gather")
        splits = tuple(wire.numel() if rank == root else 0 for rank in range(self._engine.size))
        return self._submit_exchange("gather", wire, splits, targets, opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> GroupWork:
        """Copy the root's i-th input into rank i's tensor."""
        output = outputs[0]
        if self._engine.rank == self._get_root("scatter", opts):
            tensors = check_one_each("scatter", to_lists(inputs)[0], self._engine.size)
            check_same_type([*tensors, output], "scatter")
            wire = flatten_all(tensors, "scatter", moved=True)
            splits = tuple(flatten(tensor, "scatter", moved=True).numel() for tensor in tensors)
        else:
            wire, splits = flatten(output, "scatter", moved=True)[:0], (0,) * self._engine.size
        return self._submit_exchange("scatter", wire, splits, [output], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """Send the i-th input to rank i, whose tensors' sizes may differ, and get the i-th output from it."""
        for tensors in (outputs, inputs):
            check_one_each("all_to_all", tensors, self._engine.size)
        check_same_type([*outputs, *inputs], "all_to_all")
        wires = [flatten(tensor, "all_to_all", moved=True) for tensor in inputs]
        return self._submit_exchange(
            "all_to_all", torch.cat(wires), tuple(map(torch.Tensor.numel, wires)), list(outputs), opts
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input_: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> GroupWork:
        """Exchange tensors that are cut along their first dimension: equally, or by numbers of rows."""
        check_same_type([output, input_], "all_to_all_single")
        targets = split_rows(output, output_splits, self._engine.size, "output")
        splits = split_rows(input_, input_splits, self._engine.size, "input")
        wire = flatten(input_, "all_to_all_single", moved=True)
        width = wire.numel() // max(1, input_.numel())  # more than one if elements are sent as bytes
        return self._submit_exchange(
            "all_to_all_single", wire, tuple(part.numel() * width for part in splits), targets, opts
        )

    alltoall_base = all_to_all_single

    def _submit_exchange(
        self, operation: str, wire: torch.Tensor, splits: tuple[int, ...], targets: Tensors, opts: Any
    ) -> GroupWork:
        """Send `splits[i]` elements of `wire` to rank i, and write the received ones to `targets`, in rank order."""

        def finish(handle: Handle | None) -> list[Any]:
            assert handle is not None
            data, rows = handle.gathered()
            distribute(operation, view_received(data, wire.dtype), rows, targets)
            return list(targets)

        return self._issue(operation, Op.ALLTOALL, [describe_input(wire)], wire, finish, opts, splits=splits)

    def barrier(self, opts: Any = None) -> GroupWork:
        """Submit an operation that is done once every rank has called it."""
        return self._issue("barrier", Op.BARRIER, [], None, lambda _: [], opts)

    # --- messages of two ranks ---------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, rank: int, tag: int = 0) -> GroupWork:
        """Send a tensor to a rank of the group. It must not change until the work is done."""
        tensor = get_only(tensors, "send")
        wire = flatten(tensor, "send", moved=True)
        to = self._get_peer("send", rank)
        transfer = self._mailbox.send(self._number, to, tag, _view_memory(wire, tensor))
        return self._note_work(GroupWork(self._make_label("send"), transfer, None, self._timeout))

    def recv(self, tensors: Tensors, rank: int | None, tag: int = 0) -> GroupWork:
        """Receive a tensor from a rank of the group; None: from any."""
        tensor = get_only(tensors, "recv")
        wire = flatten_writable(tensor, "recv", moved=True)
        source = None if rank is None else self._get_peer("recv", rank)
        transfer = self._mailbox.receive(self._number, source, tag, _view_memory(wire, tensor), self._engine.ranks)

        def find_sender() -> int:
            return self._engine.ranks.index(transfer.source)

        return self._note_work(
            GroupWork(
                self._make_label("recv"), transfer, lambda: [put(wire, tensor)], self._timeout, source=find_sender
            )
        )

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> GroupWork:
        """Receive a tensor from any rank of the group; the work's ``_source_rank`` is its number."""
        return self.recv(tensors, None, tag)


def _view_memory(wire: torch.Tensor, tensor: torch.Tensor) -> MessageBytes:
    return MessageBytes(
        view_memory(wire.data_ptr(), wire.numel() * wire.element_size()), TensorSpec.from_tensor(tensor), wire
    )
