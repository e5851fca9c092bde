"""The exchange of a sparse gradient: every rank's rows and indices are gathered; rows of equal index are added up.

Only the rows that were used are sent, not the whole parameter: two allgathers, as one request.
"""

from __future__ import annotations

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.errors import MismatchError
from spark_estimator.torch.collectives.compressors import wire_dtype
from spark_estimator.torch.collectives.device import collect_rows
from spark_estimator.torch.collectives.memory import make_wire_tensor
from spark_estimator.torch.optimizer.bucket import Bucket, Options
from spark_estimator.torch.optimizer.slot import Slot


class SparseBucket(Bucket):
    """The gradient of one parameter that all ranks know to be sparse.

    A rank whose gradient is dense this time turns it into a sparse one; one that has none sends no rows.

    Args:
        name: of the request; the same on all ranks.
        slot: whose gradient.
        options: how it is exchanged. Of the compressors only the half-precision ones apply, to the values.
        sparse_dims: how many of the leading dimensions are sparse, on all ranks.
    """

    def __init__(self, name: str, slot: Slot, options: Options, sparse_dims: int) -> None:
        super().__init__(name, [slot], options)
        self._sparse_dims = sparse_dims
        self._sent: tuple[torch.Tensor, ...] = ()
        self._wire_type = wire_dtype(options.compression, slot.dtype) or slot.dtype

    def _submit(self) -> Handle:
        slot = self.slots[0]
        gradient = slot.gradient = slot.param.grad
        indices, rows = self._split_rows(gradient)
        flag = torch.tensor([gradient is not None], dtype=torch.uint8, device=self.location.device)
        sent = self._sent = (indices, rows, flag)
        self.bytes_given = sum(tensor.nbytes for tensor in sent)
        return collectives.submit(
            Op.ALLGATHER,
            self.name,
            [make_wire_tensor(tensor)._replace(output=0) for tensor in sent],
            process_set=self._options.process_set,
            keep=sent,
            gpu=self._gpu,
        )

    def _split_rows(self, gradient: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices, [rows, sparse dimensions], and the values, [rows, *dense dimensions]."""
        slot, device = self.slots[0], self.location.device
        if gradient is None:
            indices = torch.empty((0, self._sparse_dims), dtype=torch.int64, device=device)
            row_shape = slot.param.shape[self._sparse_dims :]
            return indices, torch.empty((0, *row_shape), dtype=self._wire_type, device=device)
        if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != self._sparse_dims:
            gradient = gradient.to_dense().to_sparse(self._sparse_dims)
        gradient = gradient.detach().coalesce()  # rows that were touched several times are sent once
        prescale = self._options.scale_op()[1]
        rows = gradient.values() if prescale == 1.0 else gradient.values() * prescale
        return gradient.indices().t().to(device).contiguous(), rows.to(device, self._wire_type).contiguous()

    def finish(self) -> list[Slot]:
        assert self._handle is not None
        slot = self.slots[0]
        row_shape = tuple(slot.param.shape[self._sparse_dims :])
        forms = [(torch.int64, (self._sparse_dims,)), (self._wire_type, row_shape), (torch.uint8, ())]
        try:
            received = collect_rows(self._handle, self.location, self._gpu, self._sent, "DistributedOptimizer", forms)
        except MismatchError as error:
            if "join()" not in str(error):
                raise
            raise MismatchError(
                f"The sparse gradient of parameter {slot.name!r} is sent by an allgather, which a rank that called "
                f"join() cannot take part in. Pass sparse_as_dense=True to DistributedOptimizer. ({error})"
            ) from error
        (indices, _), (rows, _), (flags, _) = received
        if not flags.any():
            return [slot]
        rows = rows.to(slot.param.dtype)
        op, _, postscale = self._options.scale_op()
        if op is ReduceOp.AVERAGE:
            postscale /= self._options.engine().size
        total = torch.sparse_coo_tensor(indices.t(), rows, tuple(slot.param.shape), check_invariants=False).coalesce()
        slot.param.grad = (total if postscale == 1.0 else total * postscale).to(slot.param.device).coalesce()
        return []
