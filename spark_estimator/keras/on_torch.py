"""Gradients on Keras' torch backend: the tensors' own memory, reduced in place by the torch binding's grouped calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_estimator.collectives.process_set import global_process_set
from spark_estimator.keras.exchange import KerasExchange
from spark_estimator.torch import synchronize
from spark_estimator.torch.collectives.collective import make_allreduce


def reduce_gradients(
    exchange: KerasExchange, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]
) -> list[Any]:
    """See ``backends.reduce_gradients``. It submits all groups before it waits for the first."""
    dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
    exchange.check_variables(everything, variables)
    if exchange.weight.is_used and exchange.weight.value != 1.0 and exchange.accumulates == 1:
        dense = [gradient * exchange.weight.value for gradient in dense]
    sent, contexts = exchange.compress(dense)
    op, prescale, postscale = exchange.scale_op()
    parts = exchange.split_parts(variables)
    names = exchange.names(parts)
    requests = [
        make_allreduce(
            [sent[index] for index in part],
            "grouped_allreduce",
            name,
            op,
            prescale,
            postscale,
            exchange.process_set or global_process_set,
            in_place=True,
            residues=exchange.make_residue_keys([variables[index] for index in part]),
        )
        for name, part in zip(names, parts, strict=True)
    ]
    if len(parts) == 1:  # nothing to overlap: the engine's fastest path
        return exchange.decompress(requests[0].run(), contexts)
    handles = [request.submit() for request in requests]
    received = list(sent)
    for handle, part in zip(handles, parts, strict=True):
        tensors: Any = synchronize(handle)
        for index, tensor in zip(part, tensors, strict=True):
            received[index] = tensor
    return exchange.decompress(received, contexts)


def are_all_true(exchange: KerasExchange, flag: Any) -> Any:
    """Return whether a truth value holds on every rank, as a tensor."""
    return flag.new_tensor(exchange.are_all_true(flag.item()))


def factor(exchange: KerasExchange) -> Any:
    """Return ``exchange.factor`` as it is when the step runs."""
    return exchange.weight.value


def only_when(condition: Any, run: Any, values: Sequence[Any]) -> list[Any]:
    """Return ``run()`` if the condition is true, else the values."""
    return list(run()) if bool(condition) else list(values)
