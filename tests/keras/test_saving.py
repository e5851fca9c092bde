"""A saved model: loaded with its optimizer wrapped again, and without this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_a_saved_model_needs_us_neither_here_nor_elsewhere(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int, path: str) -> list[Any]:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        trained = model()
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        trained.fit(rows, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
        if rank == 0:
            trained.save(path)
        hvd.barrier()
        loaded = hvd.load_model(path)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(loaded.optimizer)
        state = [numpy.array(keras.ops.convert_to_numpy(v)) for v in trained.optimizer.variables]
        assert close(state, [keras.ops.convert_to_numpy(v) for v in loaded.optimizer.variables])
        for each in (trained, loaded):
            each.fit(rows, targets, batch_size=4, shuffle=False, verbose=0)
        assert close(weights(trained), weights(loaded))
        assert all(close(weights(loaded), theirs) for theirs in hvd.allgather_object(weights(loaded)))
        return [float(keras.ops.convert_to_numpy(state[0])), float(numpy.abs(state[2]).sum())]

    path = str(tmp_path / "model.keras")
    iterations, gathered = two_ranks.run(check, path)[0]
    program = f"""
import sys
sys.modules["spark_estimator"] = None
import keras
model = keras.saving.load_model({path!r})
assert type(model.optimizer) is type(keras.optimizers.Adam()), type(model.optimizer)
numbers = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
print(float(numbers[0]), float(abs(numbers[2]).sum()))
"""
    environ = {"KERAS_BACKEND": two_ranks.backend, "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": "/tmp"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    numbers = [float(number) for number in ended.stdout.split()]
    assert numbers == pytest.approx([iterations, gathered], rel=1e-5)
