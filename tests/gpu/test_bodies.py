"""What ``check.py`` tries and measures on GPUs runs here on pretended ones: its own logic is then known to be right."""

from __future__ import annotations

import functools
import os

import pytest

pytest.importorskip("torch")

from tests.estimators.torch.stand_in_cuda import stand_in
from tests.gpu import building, check, checks, endings, figures, jobs, predictions, random_ops, trainings
from tests.gpu.in_rank import Task
from tests.gpu.ways import MACHINES, ONE, OWN, REFUSED, SHARED, Way, refused_way, ways

pytestmark = pytest.mark.timeout(300)
SECONDS = 250.0


def pretended(name: str, fakes: dict[str, str]) -> Way:
    """A backend on pretended GPUs; ranks that see one see no more than one."""
    way = {way.name: way for way in [*ways(1), *ways(2), refused_way()]}[name]
    return way._replace(environ={**way.environ, **fakes, **({} if way.own_gpus else {"FAKE_CUDA_DEVICES": "1"})})


def begin(rank: int, own_gpus: bool, machines: bool = False) -> None:
    import torch

    if machines:
        os.environ["NCCL_HOSTID"] = f"machine-{rank}"

    from tests.gpu.pretended_cuda import pretend

    torch.set_num_threads(1)
    pretend(rank if own_gpus else 0)


def begin_small(rank: int, own_gpus: bool) -> None:
    """Figures of little; and where NCCL would be called directly, Gloo is."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from tests.gpu import figures

    begin(rank, own_gpus)
    vars(figures).update(_ELEMENTS=100_000, _ROUNDS=2, _STEPS=2, _SMALL=20)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    vars(figures)["transformer"] = lambda: nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    randn, make_group = torch.randn, dist.init_process_group
    vars(torch)["randn"] = lambda *shape, **options: (
        randn(2, 3, 16) if shape == (16, 256, 1024) else randn(*shape, **options)
    )
    vars(dist)["is_nccl_available"] = lambda: True
    vars(dist)["init_process_group"] = lambda _, **options: make_group("gloo", **options)
    dist.ReduceOp.AVG = dist.ReduceOp.SUM


@pytest.mark.parametrize("name", predictions.PREDICTIONS)
def test_predictions(name: str) -> None:
    with stand_in(2):
        predictions.PREDICTIONS[name]()


def problems(results: list[jobs.Result]) -> list[jobs.Result]:
    return [result for result in results if result.state is not jobs.State.OK]


@pytest.mark.parametrize(
    "name", [ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in [SHARED, OWN, MACHINES])]
)
def test_checks(fakes: dict[str, str], name: str) -> None:
    way = pretended(name, fakes)
    tasks: dict[str, Task] = {
        **checks.CHECKS,
        "random": functools.partial(random_ops.two_hundred_ops_on_two_streams, 5),
        **endings.ENDINGS,
        **trainings.TRAININGS,
    }
    start = functools.partial(begin, own_gpus=way.own_gpus, machines=way.machines)
    results, description = jobs.run_in_way(way, tasks, start, jobs.Budget(SECONDS))
    assert not problems(results)
    assert len(results) == len(tasks) and way.described in description


@pytest.mark.slow
@pytest.mark.parametrize("name", [ONE, SHARED, pytest.param(OWN, marks=pytest.mark.slow)])
def test_figures(fakes: dict[str, str], name: str) -> None:
    way = pretended(name, fakes)
    start = functools.partial(begin_small, own_gpus=way.own_gpus)
    results, _ = jobs.run_in_way(way, figures.figures(name, ""), start, jobs.Budget(SECONDS))
    assert not problems(results)
    lines = [line for result in results for line in result.lines]
    assert sum(line.reached is not None for line in lines) == 2, lines
    assert not any("not measured" in line.text for line in lines), lines


@pytest.mark.slow
def test_nccl_is_refused(fakes: dict[str, str]) -> None:
    start = functools.partial(begin, own_gpus=False)
    tasks = {"refused": endings.nccl_is_refused}
    [result], _ = jobs.run_in_way(pretended(REFUSED, fakes), tasks, start, jobs.Budget(SECONDS))
    assert result.state is jobs.State.OK, result
    # And the check sees it where they are not: they have a GPU each here.
    way = pretended(OWN, fakes)
    [result], _ = jobs.run_in_way(way, tasks, functools.partial(begin, own_gpus=True), jobs.Budget(SECONDS))
    assert result.state is jobs.State.FAILED and "went by NCCL" in result.text


@pytest.mark.parametrize("name", [pytest.param(SHARED, marks=pytest.mark.slow), OWN, MACHINES])
def test_a_killed_rank(fakes: dict[str, str], name: str) -> None:
    """As two machines, with one fake GPU: the engine is then shown a GPU of each, and takes NCCL."""
    assert name != MACHINES or not building.build_two_machines()
    way = pretended(name, fakes)
    start = functools.partial(begin, own_gpus=way.own_gpus, machines=way.machines)
    result = check.lose_a_peer(way, start, jobs.Budget(SECONDS))
    assert result.state is jobs.State.OK, result


def test_wrong_results_are_seen(fakes: dict[str, str]) -> None:
    """The engine's results are spoilt: no check that looks at them may be content."""

    def begin_to_spoil(rank: int) -> None:
        import spark_estimator.torch as hvd

        begin(rank, False)
        synchronize = hvd.synchronize

        def spoil(handle: int) -> object:
            got = synchronize(handle)
            for tensor in got if isinstance(got, list) else [got]:
                tensor.view(-1)[-1:] += 1
            return got

        vars(hvd)["synchronize"] = spoil

    tasks: dict[str, Task] = {
        "random": functools.partial(random_ops.two_hundred_ops_on_two_streams, 6),
        "memory": checks.memory_that_is_given_back_early,
    }
    way = pretended(ONE, fakes)
    results, _ = jobs.run_in_way(way, tasks, begin_to_spoil, jobs.Budget(SECONDS))
    assert [result.name for result in problems(results)] == list(tasks)
    assert "--seed 6" in results[0].text
