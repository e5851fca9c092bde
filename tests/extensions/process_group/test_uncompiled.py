"""Classes whose methods torch.compile does not trace."""

from __future__ import annotations

import torch

from spark_estimator.extensions.process_group.uncompiled import disable_compile


def test_public_methods_run_as_they_are_in_a_compiled_program() -> None:
    compiling: list[bool] = []

    @disable_compile
    class Adds:
        def add(self, tensor: torch.Tensor) -> torch.Tensor:
            compiling.append(torch.compiler.is_compiling())
            return tensor + 1

        plus = add

        def _private(self) -> None: ...

    assert Adds.add is Adds.plus, "a second name is the same function"
    assert "_disable_dynamo" not in repr(Adds._private) and Adds._private.__qualname__.endswith("Adds._private")
    adds = Adds()

    def program(tensor: torch.Tensor) -> torch.Tensor:
        return adds.add(tensor * 2) * 3

    compiled = torch.compile(program, backend="eager")
    assert compiled(torch.ones(1)).item() == 9
    assert compiling == [False]
