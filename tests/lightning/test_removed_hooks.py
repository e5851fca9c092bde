"""The warnings about hooks of Lightning 1."""

from __future__ import annotations

import re
import warnings

import pytest

from spark_estimator.lightning.removed_hooks import warn_about_callbacks, warn_about_module
from tests.lightning.training import module_of, package


def test_each_hook_is_named_with_what_replaces_it() -> None:
    class Old(package().Callback):  # type: ignore[misc,name-defined]
        def on_init_start(self) -> None: ...
        def on_keyboard_interrupt(self) -> None: ...

    with pytest.warns(UserWarning) as messages:
        warn_about_callbacks([Old()])
    pattern = r"(\S+)\(\): no effect, as Lightning 2 does not call it; use (\w+)"
    matches = [re.match(pattern, str(message.message)) for message in messages]
    named = {match[1]: match[2] for match in matches if match}
    assert named == {"Old.on_init_start": "setup", "Old.on_keyboard_interrupt": "on_exception"}
    module = module_of(training_step_end=lambda self, output: output)
    with pytest.warns(UserWarning, match=r"Module.training_step_end\(\).*use training_step\."):
        warn_about_module(module)


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_objects_of_today_have_none(flavour: str) -> None:
    module, callbacks = module_of(flavour), package(flavour).callbacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_module(module)
        warn_about_callbacks([callbacks.ModelCheckpoint(), callbacks.RichProgressBar(), callbacks.Timer()])
