"""A checkpoint's state is given to objects: who reads what, and objects that the checkpoint does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.index import Extent, Saved
from spark_estimator.extensions.checkpoint.reading import open_store
from spark_estimator.extensions.checkpoint.restoring import divide_extents, restore

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def extents(*lengths: int) -> list[tuple[Saved, Extent]]:
    result, offset = [], 0
    for number, length in enumerate(lengths):
        extent = Extent("__0_0.distcp", offset, length)
        result.append((Saved(f"v{number}", (f"v{number}",), None, (), (extent,)), extent))
        offset += length
    return result


@pytest.mark.parametrize("ranks", [1, 2, 3, 10])
@pytest.mark.parametrize("lengths", [(), (5,), (0,), (10, 10, 10, 10), (100, 1, 1, 1), (1, 1, 1, 100), (7,) * 30])
def test_ranks_read_as_many_bytes_to_an_extent(lengths: tuple[int, ...], ranks: int) -> None:
    items = extents(*lengths)
    shares = divide_extents(list(reversed(items)), ranks)
    assert len(shares) == ranks
    assert [item for share in shares for item in share] == items, "each once, in the order of the file"
    sizes = [sum(extent.length for _, extent in share) for share in shares]
    assert max(sizes) <= sum(lengths) / ranks + max(lengths, default=0)


def test_the_order_of_files_does_not_depend_on_the_index() -> None:
    first, second = (Saved(name, (name,), None, (), ()) for name in "ab")
    items = [(first, Extent("__1_0.distcp", 0, 5)), (second, Extent("__0_0.distcp", 9, 5))]
    assert divide_extents(items, 2) == [[items[1]], [items[0]]]


class Counter:
    """An object with a state, as a schedule is one."""

    def __init__(self, **state: Any) -> None:
        self.state = state
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)
        self.loaded += 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Step 12 of a model [2, 3] and a counter."""
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, 7)
    torch.nn.init.constant_(model.bias, 8)
    state = {"model": model.state_dict(), "counter": {"n": 3}, "step": 12}
    dcp.save(state, checkpoint_id=tmp_path / Folder(1, 12, "00000000", 1_700_000_000).name, no_dist=True)
    return tmp_path


def restored(root: Path, step: int | None = None, **objects: Any) -> int:
    return restore(open_store(str(root)), str(root), step, objects, {}, 0, 1)


def test_objects_get_their_state(root: Path) -> None:
    model, counter = torch.nn.Linear(3, 2), Counter(n=0)
    before = model.weight
    assert restored(root, model=model, counter=counter) == 12
    assert model.weight is before and (model.weight == 7).all() and (model.bias == 8).all()
    assert (counter.state, counter.loaded) == ({"n": 3}, 1)
    other = torch.nn.Linear(3, 2)
    assert restored(root, 12, model=other) == 12, "the checkpoint may have more"
    assert (other.bias == 8).all()


def test_without_a_checkpoint_nothing_changes(tmp_path: Path) -> None:
    counter = Counter(n=0)
    assert restored(tmp_path, counter=counter) == 0 and not counter.loaded
    with pytest.raises(DataError, match="no complete checkpoint of step 3"):
        restored(tmp_path, 3, counter=counter)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("model", torch.nn.Linear(3, 5), r"model\.bias has the shape \[2\] there and \[5\] in the model"),
        ("model", torch.nn.Linear(3, 2, bias=False), r"model\.bias has the shape \[2\] there and none in the model"),
        ("model", torch.nn.BatchNorm1d(2), r"model\.bias|model\.num_batches_tracked has the shape none there"),
        ("net", torch.nn.Linear(3, 2), r"has no net; it has counter, model\."),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_changes(
    root: Path, name: str, model: torch.nn.Module, message: str
) -> None:
    counter = Counter(n=0)
    with pytest.raises(DataError, match=message):
        restored(root, counter=counter, **{name: model})
    assert not counter.loaded


def test_an_object_without_a_state_may_be_new(root: Path) -> None:
    counter, new = Counter(n=0), Counter()
    assert restored(root, counter=counter, loss=torch.nn.MSELoss(), new=new) == 12
    assert (counter.state, new.loaded) == ({"n": 3}, 0)
