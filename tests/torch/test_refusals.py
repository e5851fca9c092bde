"""What the collectives refuse, each on the rank that asks for it and before anything is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.errors import DuplicateNameError, MismatchError, NotInitializedError
from tests.torch.rank_pool import RankPool

Call = Callable[..., Any]

# Every collective on a tensor, as it is called with one tensor and options.
OPS: dict[str, Call] = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allreduce_async": hvd.allreduce_async,
    "allreduce_async_": hvd.allreduce_async_,
    "grouped_allreduce": lambda tensor, **options: hvd.grouped_allreduce([tensor], **options),
    "grouped_allreduce_": lambda tensor, **options: hvd.grouped_allreduce_([tensor], **options),
    "grouped_allreduce_async": lambda tensor, **options: hvd.grouped_allreduce_async([tensor], **options),
    "grouped_allreduce_async_": lambda tensor, **options: hvd.grouped_allreduce_async_([tensor], **options),
    "allgather": hvd.allgather,
    "allgather_async": hvd.allgather_async,
    "grouped_allgather": lambda tensor, **options: hvd.grouped_allgather([tensor], **options),
    "grouped_allgather_async": lambda tensor, **options: hvd.grouped_allgather_async([tensor], **options),
    "broadcast": lambda tensor, **options: hvd.broadcast(tensor, 0, **options),
    "broadcast_": lambda tensor, **options: hvd.broadcast_(tensor, 0, **options),
    "broadcast_async": lambda tensor, **options: hvd.broadcast_async(tensor, 0, **options),
    "broadcast_async_": lambda tensor, **options: hvd.broadcast_async_(tensor, 0, **options),
    "alltoall": hvd.alltoall,
    "alltoall_async": hvd.alltoall_async,
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": hvd.reducescatter_async,
    "grouped_reducescatter": lambda tensor, **options: hvd.grouped_reducescatter([tensor], **options),
    "grouped_reducescatter_async": lambda tensor, **options: hvd.grouped_reducescatter_async([tensor], **options),
}
SPARSE: dict[str, Call] = {
    "sparse_allreduce_async": lambda tensor, name=None, **options: hvd.sparse_allreduce_async(
        tensor.to_sparse() if isinstance(tensor, torch.Tensor) else tensor, name, hvd.Sum, **options
    )
}
every_op = pytest.mark.parametrize("op", OPS | SPARSE)
REDUCING = [name for name in OPS if "reduce" in name]


@every_op
def test_what_is_no_tensor(job_of_one: None, op: str) -> None:
    kind = op if op in SPARSE else op.removesuffix("_").removesuffix("_async")
    for thing in (None, [1.0, 2.0], numpy.ones(2), 3.0, "text", torch.float32):
        with pytest.raises(ValueError, match=rf"^{kind} on rank 0: a torch\.Tensor is needed, not"):
            (OPS | SPARSE)[op](thing)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, about its own features
@pytest.mark.parametrize("op", OPS)
def test_tensors_that_cannot_be_sent(job_of_one: None, op: str) -> None:
    for tensor, why in [
        (torch.ones(2, dtype=torch.complex64), r"on rank 0: Tensors of type torch\.complex64 cannot be sent"),
        (torch.ones(2, 2).to_sparse(), r"layout torch\.sparse_coo; use"),
        (torch.eye(2).to_sparse_csr(), r"layout torch\.sparse_csr; use"),
        (torch.ones(2, device="meta"), r"\(2,\) on device 'meta' has no values"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "layout nested"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), r"torch\.qint8"),
    ]:
        with pytest.raises(ValueError, match=why):
            OPS[op](tensor)


@pytest.mark.parametrize("op", [name for name in OPS if "grouped" in name])
def test_groups(job_of_one: None, op: str) -> None:
    function = getattr(hvd, op)
    with pytest.raises(ValueError, match="at least one tensor is needed, and the list is empty"):
        function([])
    for thing in (torch.ones(2, 2), None, {"a": torch.ones(2)}, iter([torch.ones(2)])):
        with pytest.raises(ValueError, match="on rank 0: a list of tensors is needed, not "):
            function(thing)
    with pytest.raises(ValueError, match=r"a torch\.Tensor is needed, not NoneType"):
        function([torch.ones(2), None])


@every_op
def test_before_init_and_after_shutdown(op: str) -> None:
    for _ in range(2):
        with pytest.raises(NotInitializedError, match=r"use hvd\.init\(\)"):
            (OPS | SPARSE)[op](torch.ones(2, 2))
        hvd.init()
        hvd.shutdown()


def test_what_is_no_path_no_set_and_no_batch(job_of_one: None) -> None:
    with pytest.raises(TypeError, match="file_path must be the path of a file, not None"):
        hvd.start_timeline(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes the ProcessSet that add_process_set returned, not \[0\]"):
        hvd.remove_process_set([0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"SyncBatchNorm on rank 0: a torch\.Tensor is needed, not NoneType"):
        hvd.SyncBatchNorm(2)(None)
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"init\(process_sets=5\): pass a list of process sets, or 'dynamic'"):
        hvd.init(process_sets=5)  # type: ignore[arg-type]


def test_questions_before_init() -> None:
    for question in (hvd.join, hvd.barrier, lambda: hvd.add_process_set([0]), lambda: hvd.broadcast_object(1)):
        with pytest.raises(NotInitializedError, match=r"use hvd\.init\(\)"):
            question()


@every_op
def test_names(job_of_one: None, op: str) -> None:
    with pytest.raises(TypeError, match="name must be a string, not 5"):
        (OPS | SPARSE)[op](torch.ones(2, 2), name=5)
    with pytest.raises(ValueError, match="NUL"):
        (OPS | SPARSE)[op](torch.ones(2, 2), name="a\0b")
    with pytest.raises(ValueError, match=r"UTF-8 can encode; .*a\\udc80' has '\\udc80' at position"):
        (OPS | SPARSE)[op](torch.ones(2, 2), name="a\udc80")
    with pytest.raises(ValueError, match="1 to 4095 bytes, not 50"):
        (OPS | SPARSE)[op](torch.ones(2, 2), name="a" * 5000)


@pytest.mark.parametrize("op", [hvd.broadcast_object, hvd.allgather_object])
def test_names_of_objects(job_of_one: None, op: Call) -> None:
    with pytest.raises(TypeError, match="object: name must be a string, not 5"):
        op(1, name=5)
    with pytest.raises(ValueError, match="UTF-8 can encode"):
        op(1, name="\udc80")


@pytest.mark.parametrize(
    "op", [hvd.allreduce, hvd.reducescatter, OPS["grouped_allreduce"], OPS["grouped_reducescatter"]]
)
def test_compressions(job_of_one: None, op: Call) -> None:
    for wrong in (7, None, "fp16"):
        with pytest.raises(ValueError, match=rf"reduce.* on rank 0: compression={wrong!r} must be one of"):
            op(torch.ones(2), compression=wrong)
    with pytest.raises(ValueError, match=r"works only with hvd\.DistributedOptimizer"):
        op(torch.ones(2), compression=hvd.Compression.int8)


@pytest.mark.parametrize("op", REDUCING)
def test_reductions(job_of_one: None, op: str) -> None:
    with pytest.raises(ValueError, match=r"on rank 0: .*average of bool"):
        OPS[op](torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="bool tensors cannot be scaled"):
        OPS[op](torch.ones(2, dtype=torch.bool), op=hvd.Sum, prescale_factor=2.0)
    for wrong in (9, "Sum", torch.ones):
        with pytest.raises(ValueError, match=r"must be hvd\.Average, hvd\.Sum"):
            OPS[op](torch.ones(2), op=wrong)
    for wrong in ("half", torch.ones(2)):
        with pytest.raises(TypeError, match=re.escape(f"prescale_factor must be a number, not {wrong!r}")):
            OPS[op](torch.ones(2), prescale_factor=wrong)
    if "scatter" in op:
        for unknown in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            with pytest.raises(hvd.HorovodInternalError, match=rf"op=hvd\.{unknown.name.title()} is not supported"):
                OPS[op](torch.ones(2), op=unknown)
    else:
        with pytest.raises(ValueError, match="not both"):
            OPS[op](torch.ones(2), average=True, op=hvd.Sum)
        for wrong in (hvd.Sum, "a name", 5):  # as positional arguments, they would count as True
            with pytest.raises(ValueError, match=rf"^average={wrong!r} must be True or False"):
                OPS[op](torch.ones(2), average=wrong)


@pytest.mark.parametrize("op", [name for name in OPS if "gather" in name or "scatter" in name or "alltoall" in name])
def test_tensors_without_rows(job_of_one: None, op: str) -> None:
    with pytest.raises(
        IndexError if "gather" in op else ValueError, match="0-dimensional tensor has no rows: unsqueeze"
    ):
        OPS[op](torch.tensor(1.0))


@pytest.mark.parametrize("op", [name for name in OPS if name.endswith("_")])
def test_in_place_into_shared_elements(job_of_one: None, op: str) -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\) and strides \(0,\)"):
        OPS[op](torch.ones(1).expand(4))


def test_tensors_of_a_group_that_share_memory(job_of_one: None) -> None:
    tensor = torch.ones(10)
    for group, which in (([tensor, tensor], "0 and 1"), ([tensor[:6], torch.ones(2), tensor[4:]], "0 and 2")):
        with pytest.raises(ValueError, match=rf"tensors {which} of the group share memory.*clone one of them"):
            hvd.grouped_allreduce_(group)
        assert len(hvd.grouped_allreduce(group)) == len(group)
    # Adjacent ones, and empty ones anywhere, are valid.
    hvd.grouped_allreduce_([tensor[:5], tensor[5:], tensor[3:3], tensor[3:3]])


def test_sparse_tensors_of_different_shapes(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(MismatchError, match=r"rank 0 has a tensor of shape \[3, 3\], rank 1 one of shape \[4, 4\]"):
            hvd.sparse_allreduce_async(torch.eye(3 + rank).to_sparse(), "x", hvd.Sum)()
        hvd.barrier()
        with pytest.raises(ValueError, match=r"floating-point input, not one of torch\.int64"):
            hvd.SyncBatchNorm(1)(torch.tensor([[1], [5]]))

    two_ranks.run(check)


def test_sparse_tensors(job_of_one: None) -> None:
    with pytest.raises(ValueError, match=r"COO tensor is needed, not one of layout torch\.strided"):
        hvd.sparse_allreduce_async(torch.ones(2), "a", hvd.Sum)
    with pytest.raises(ValueError, match=r"neither hvd\.Average nor hvd\.Sum"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "a", hvd.Max)
    with pytest.raises(ValueError, match="average of bool"):
        hvd.sparse_allreduce_async(torch.eye(2).bool().to_sparse(), "a", hvd.Average)


@pytest.mark.parametrize("op", [hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_])
def test_roots(two_ranks: RankPool, op: Call) -> None:
    def check(rank: int) -> None:
        for root in (2, -1, None, "0", 1.5, torch.tensor([0, 1])):
            text = re.escape(f"root_rank={root!r} must be one of the ranks 0 to 1")
            with pytest.raises(ValueError, match=text):
                op(torch.ones(1), root)
            with pytest.raises(ValueError, match=text):
                hvd.broadcast_object(1, root)
        for broadcast in (hvd.broadcast_parameters, hvd.broadcast_object):
            with pytest.raises(ValueError, match="root_rank=None"):
                broadcast([torch.ones(1)], None)
        hvd.shutdown()
        alone = hvd.ProcessSet([1])
        hvd.init(process_sets=[alone])
        if rank == 1:
            with pytest.raises(ValueError, match=r"root_rank=0 must be one of the ranks \[1\] of the set"):
                op(torch.ones(1), 0, process_set=alone)

    two_ranks.run(check)


@pytest.mark.parametrize("op", [hvd.alltoall, hvd.alltoall_async])
def test_splits(two_ranks: RankPool, op: Call) -> None:
    def check(rank: int) -> None:
        for splits in ([3, 1], [4], [1, 1, 1], [4, -1], [1.5, 1.5], "12", 3, torch.tensor([1, 3]), torch.tensor(3)):
            with pytest.raises(
                ValueError,
                match=rf"alltoall on rank {rank}: splits=.* must be 2 non-negative integers.* to at most the 3 rows",
            ):
                op(torch.ones(3), splits)
        with pytest.raises(ValueError, match=f"alltoall on rank {rank}: 3 rows can't be divided equally among 2 ranks"):
            op(torch.ones(3))

    two_ranks.run(check)


def test_process_sets(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        first = hvd.ProcessSet([0])
        hvd.init(process_sets=[first])
        for call in (OPS | SPARSE).values():
            with pytest.raises(ValueError, match="is not registered"):
                call(torch.ones(2, 2), process_set=hvd.ProcessSet([0, 1]))
            with pytest.raises(TypeError, match="must be a registered ProcessSet"):
                call(torch.ones(2, 2), process_set=[0, 1])
            if rank == 1:
                with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
                    call(torch.ones(2, 2), process_set=first)
        for call in (hvd.barrier, lambda process_set: hvd.broadcast_object(1, process_set=process_set)):
            with pytest.raises(ValueError, match="is not registered"):
                call(process_set=hvd.ProcessSet([0, 1]))

    two_ranks.run(check)


def test_names_in_flight(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        asynchronous = {name: call for name, call in OPS.items() if "_async" in name}
        for call in asynchronous.values():
            hvd.barrier()
            if rank == 0:
                handle = call(torch.ones(2), name="twice")
                with pytest.raises(DuplicateNameError, match="twice"):
                    call(torch.ones(2), name="twice")
                hvd.barrier()
            else:
                hvd.barrier()
                handle = call(torch.ones(2), name="twice")
            hvd.synchronize(handle)
            assert hvd.synchronize(handle) is None
            with pytest.raises(ValueError, match="no operation has this handle"):
                hvd.poll(handle)

    two_ranks.run(check)


def test_forked_children(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for name, call in (OPS | SPARSE).items():
            reader, tell = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    call(torch.ones(2, 2))
                    answer = "it worked"
                except BaseException as error:
                    answer = f"{type(error).__name__}: {error}"
                os.write(tell, answer.encode())
                os._exit(0)
            os.close(tell)
            with os.fdopen(reader) as answers:
                text = answers.read()
            os.waitpid(child, 0)
            assert text.startswith("HorovodInternalError: This process (pid"), (name, text)
            assert "'spawn' or 'forkserver' method" in text
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2

    two_ranks.run(check)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, about its own features
def test_parameters_that_cannot_be_sent(job_of_one: None) -> None:
    for tensor, why in [
        (torch.ones(2, dtype=torch.complex64), r"is of type torch\.complex64, .*view_as_real"),
        (torch.ones(2, dtype=torch.float8_e5m2), r"is of type torch\.float8_e5m2, .*convert it to one of uint8"),
        (torch.ones(2, 3, device="meta"), r"of shape \(2, 3\) is on device 'meta' .*to_empty\(device='cpu'\)"),
        (torch.eye(2).to_sparse(), r"is of layout torch\.sparse_coo"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is of layout nested"),
        (torch.nn.UninitializedParameter(), "has no shape yet, as its module is lazy"),
    ]:
        with pytest.raises(ValueError, match=f"^broadcast_parameters on rank 0: 'layer.weight' {why}"):
            hvd.broadcast_parameters({"bias": torch.ones(1), "layer.weight": tensor}, 0)
    with pytest.raises(ValueError, match=r"elements of 'a' share memory \(shape \(4,\), strides \(0,\)\)"):
        hvd.broadcast_parameters({"a": torch.ones(1).expand(4)}, 0)
    for entry in ("weight", ["weight", torch.ones(1)], ("weight", torch.ones(1), 3)):
        with pytest.raises(ValueError, match=r"list of tensors, or of tuples .*; entry 1 is neither: .*weight"):
            hvd.broadcast_parameters([torch.ones(1), entry], 0)
    hvd.broadcast_parameters({"a": torch.ones(1), 1: torch.ones(1), "\udc80\0": torch.ones(1), "long" * 5000: None}, 0)


def test_nothing_was_sent(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for name, call in OPS.items():
            if rank == 0:
                for wrong in (None, torch.ones(2, device="meta"), torch.ones(2) > 0):
                    if name not in REDUCING and isinstance(wrong, torch.Tensor) and wrong.is_cpu:
                        continue
                    with pytest.raises(ValueError, match=r"is needed|has no values|average of bool"):
                        call(wrong)
            result = call(torch.ones(2))
            if isinstance(result, int):
                hvd.synchronize(result)
        # The calls without a name have been counted alike.
        leaf = torch.ones(2, requires_grad=True)
        hvd.allreduce(leaf, op=hvd.Sum).sum().backward()

    two_ranks.run(check)
