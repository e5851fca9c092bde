"""Names of ``horovod.torch.functions``: the same objects as those of the binding."""

from __future__ import annotations

import pytest

import spark_estimator.torch as hvd
from spark_estimator.torch import functions


@pytest.mark.parametrize("name", functions.__all__)
def test_each_name_is_the_binding_s_own(name: str) -> None:
    assert getattr(functions, name) is getattr(hvd, name)


def test_scripts_find_what_horovod_has_there() -> None:
    assert {"allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"} <= set(
        functions.__all__
    )
