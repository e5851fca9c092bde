"""Horovod's names for TensorFlow: what they lead to exists and is what is offered, with its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tensorflow.rank_pool import RankPool

SURFACE = (Path(__file__).parents[1] / "compat" / "tensorflow_surface.txt").read_text()


def test_modules_exist(two_ranks: RankPool) -> None:
    def differences(rank: int) -> list[str]:
        import importlib

        from spark_estimator import compat
        from spark_estimator.compat.aliases import MODULES

        compat.install()
        try:
            led = {old: new for old, new in MODULES.items() if old.startswith("horovod.tensorflow")}
            assert len(led) > 4
            wrong = [old for old, new in led.items() if importlib.import_module(old).__name__ != new]
        finally:
            compat.uninstall()
        return wrong

    assert two_ranks.run(differences) == [[], []]


def test_the_surface(two_ranks: RankPool) -> None:
    def differences(rank: int, surface: str) -> list[str]:
        import functools
        import inspect

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        class Owner:
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
            tape = hvd.DistributedGradientTape(tf.GradientTape())

        actual: list[str] = []
        lines = [line for line in surface.splitlines() if line and not line.startswith("#")]
        for line in lines:
            name, _, arguments = line.partition("(")
            root: Any = Owner if name.startswith(("optimizer.", "tape.")) else hvd
            try:
                served = functools.reduce(getattr, name.split("."), root)
            except AttributeError as error:
                actual.append(f"{name}: {error}")
                continue
            if not arguments:
                continue
            names = [part.strip() for part in arguments.rstrip(")").split(",") if part.strip()]
            parameters = list(inspect.signature(served).parameters.values())
            for number, part in enumerate(names):
                argument, _, default = part.partition("=")
                parameter = parameters[number] if number < len(parameters) else None
                if parameter is None or parameter.name != argument:
                    actual.append(f"{name}: argument {number} is {parameter}, not {part}")
                elif parameter.default != (eval(default, vars(hvd).copy()) if default else inspect.Parameter.empty):
                    actual.append(f"{name}: {parameter} is not {part}")
        assert len(lines) > 60
        missing = [name for name in hvd.__all__ if not hasattr(hvd, name)]
        return [*actual, *missing]

    assert two_ranks.run(differences, SURFACE) == [[], []]
