"""torchmetrics' objects count all rows of all ranks: against their values on all rows at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import sklearn.metrics
import torch
from torch import nn

from spark_estimator.estimators.torch.checkpoint import TorchForm, pack
from spark_estimator.estimators.torch.epoch_means import CountedMetrics, EpochMeans
from spark_estimator.estimators.torch.losses import JointLoss, TorchParts
from spark_estimator.estimators.torch.recovery import SumsOfRank
from tests.torch.rank_pool import RankPool

torchmetrics: Any = pytest.importorskip("torchmetrics")

NAMES = ["auc", "f1", "confusion", "rmse", "error"]
ROWS = 60


@pytest.fixture(scope="module", params=[1, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    created = RankPool(request.param)
    yield created
    created.close()


def make_parts() -> TorchParts:
    classes = torchmetrics.classification
    # A user's switch by which ranks would have other values.
    objects = [classes.BinaryAUROC(sync_on_compute=False), classes.BinaryF1Score(), classes.BinaryConfusionMatrix()]
    metrics = [[*objects, torchmetrics.MeanSquaredError(squared=False), nn.L1Loss()]]
    net = nn.Linear(1, 1)
    return TorchParts(
        net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], metrics, labels=["y"], metric_names=[NAMES]
    )


def make_rows() -> tuple[torch.Tensor, torch.Tensor]:
    random = numpy.random.default_rng(1)
    label = random.integers(0, 2, (ROWS, 1)).astype(numpy.float32)
    return torch.from_numpy((label + random.normal(0, 1, (ROWS, 1))).astype(numpy.float32)).sigmoid(), torch.from_numpy(
        label
    )


def add(means: EpochMeans, rows: slice) -> None:
    output, label = (each[rows] for each in make_rows())
    means.add(JointLoss(torch.tensor(1.0)), [output], [label], len(output))


def check(results: dict[str, Any]) -> None:
    output, label = (each.reshape(-1).numpy() for each in make_rows())
    values = results["metrics"]
    assert values["auc"] == pytest.approx(sklearn.metrics.roc_auc_score(label, output))
    assert values["f1"] == pytest.approx(sklearn.metrics.f1_score(label, output > 0.5))
    assert values["confusion"] == sklearn.metrics.confusion_matrix(label, output > 0.5).tolist()
    assert values["rmse"] == pytest.approx(float(numpy.sqrt(((output - label) ** 2).mean())))
    assert values["error"] == pytest.approx(float(abs(output - label).mean()))
    assert results["all_metrics"][0] == {"group_0_y": values["auc"]}


def test_values_are_those_of_all_rows(ranks: RankPool) -> None:
    """The batches are of unequal sizes, the last rank has none; and the states pass through a checkpoint."""

    def run(rank: int) -> Any:
        import spark_estimator.torch as hvd

        means = EpochMeans(make_parts())
        for _ in range(2):  # epochs
            means.clear()
            ends = [0, 7, 20, 23, ROWS]
            batches = [slice(*each) for each in itertools.pairwise(ends)]
            with_rows = max(1, hvd.size() - 1)
            for number, batch in enumerate(batches):
                if number % with_rows == rank:
                    add(means, batch)
                state, means = TorchForm().unpack(pack(means.get_state())), EpochMeans(make_parts())
                means.restore(state)
            results = means.compute_averages()
        return results

    results = ranks.run(run)
    assert all(other == results[0] for other in results)
    check(results[0])


def test_a_rank_s_rows_are_inherited() -> None:
    import spark_estimator.torch as hvd

    hvd.init()
    try:
        mine, lost, next_one = (EpochMeans(make_parts()) for _ in range(3))
        add(mine, slice(0, 25))
        add(lost, slice(25, ROWS))
        content = SumsOfRank(mine).pack_result()
        add(mine, slice(0, 5))
        SumsOfRank(mine).take(content)
        SumsOfRank(mine).inherit(SumsOfRank(lost).pack_result())
        check(mine.compute_averages())
        SumsOfRank(next_one).take(SumsOfRank(lost).pack_result())
        SumsOfRank(next_one).inherit(content)
        check(next_one.compute_averages())
    finally:
        hvd.shutdown()


def test_the_user_s_objects_stay_as_they_are_and_functions_cost_nothing() -> None:
    parts = make_parts()
    counted = CountedMetrics(parts.metrics, parts.losses)
    output, label = make_rows()
    counted.add([output], [label])
    assert counted and not parts.metrics[0][0].preds  # type: ignore[attr-defined]
    assert not CountedMetrics([[nn.L1Loss()]], [nn.MSELoss()])
    fractions = CountedMetrics([[torchmetrics.classification.BinaryF1Score()]], [nn.MSELoss()])
    with pytest.raises(RuntimeError, match="Detected the following values"):
        fractions.add([output], [label + 0.5])


def test_logits_are_never_taken_for_probabilities() -> None:
    """torchmetrics decides that by batch: whether one value is outside of 0 to 1."""
    random = numpy.random.default_rng(2)
    label = random.integers(0, 2, ROWS)
    logits = torch.from_numpy(random.normal(0.3 + 0.2 * label, 0.2).astype(numpy.float32))
    classes = torch.stack([torch.zeros(ROWS), logits - 0.4], 1)
    auc, accuracy = torchmetrics.classification.BinaryAUROC(), torchmetrics.classification.MulticlassAUROC(2)
    counted = CountedMetrics(
        [[auc], [accuracy]], [nn.functional.binary_cross_entropy_with_logits, nn.CrossEntropyLoss()]
    )
    for start in range(0, ROWS, 4):
        batch = slice(start, start + 4)
        labels = torch.from_numpy(label[batch])
        counted.add([logits[batch, None], classes[batch]], [labels[:, None].float(), labels])
    values: list[list[Any]] = [[None], [None]]
    counted.fill_values(values)
    assert values == [[pytest.approx(sklearn.metrics.roc_auc_score(label, logits))]] * 2
