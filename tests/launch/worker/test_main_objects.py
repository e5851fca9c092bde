"""Classes and functions of a notebook in processes that a rank starts, by each start method."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local

# As of a notebook's cell: sent by value to the ranks, whose own `__main__` is another module.
CELL = """
import enum, functools
from typing import NamedTuple
import torch

class Sample(NamedTuple):
    square: torch.Tensor
    kind: object

class Kind(enum.Enum):
    EVEN = 0
    ODD = 1

@functools.lru_cache
def square(number):
    return number * number

class Squares(torch.utils.data.Dataset):
    made = 0
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return Sample(torch.tensor(square(index)), Kind(index % 2))

def together(samples):
    return Sample(torch.stack([sample.square for sample in samples]), [sample.kind for sample in samples])

def loaded(method):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=1, multiprocessing_context=method, collate_fn=together,
        worker_init_fn=lambda number: setattr(Squares, "made", 1),
    )
    batches = list(loader)
    assert all(type(batch) is Sample for batch in batches), batches
    assert batches[0].kind[1] is Kind.ODD and Squares.made == 0
    return [number for batch in batches for number in batch.square.tolist()]

def failed(method):
    class Odd(Exception):
        pass
    def fails(number):
        raise Odd(number)
    import concurrent.futures, multiprocessing
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        try:
            pool.submit(fails, 3).result()
        except Odd as error:
            return error.args
"""


@pytest.fixture(scope="module", params=["__main__", None])
def cell(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Livy's cells have no name."""
    namespace: dict[str, Any] = {} if request.param is None else {"__name__": request.param}
    exec(CELL, namespace)
    return namespace


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_data_loader_s_workers_have_the_classes_of_a_notebook(cell: dict[str, Any], method: str) -> None:
    [squares] = run_local(cell["loaded"], 1, JobOptions(args=(method,)))
    assert squares == [number * number for number in range(8)]


def test_an_exception_of_a_notebook_comes_back_from_a_process(cell: dict[str, Any]) -> None:
    assert run_local(cell["failed"], 1, JobOptions(args=("spawn",)))[0] == (3,)
