"""What distinguishes one training from another, as text that can be compared: which training wrote this checkpoint?"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any

from spark_estimator.estimators.train_spec import TrainSpec

#: What a training is made of -> lines that are the same for the same training.
Identity = dict[str, list[str]]

#: The line of a `Field`.
_FIELD = re.compile(r"Field\(names=(?P<names>\(.*?\)), .*dtype='(?P<dtype>\w+)', shape=(?P<shape>\(.*?\))")


def make_base_identity(spec: TrainSpec, checksums: list[int]) -> Identity:
    """Return the parameters that do not depend on the framework.

    Those that may change in a resumed run are not among them: more epochs, patience, another number of ranks. The
    seed is not, either: a run resumes with the seed of its checkpoint.

    Args:
        checksums: [fields] of all ranks' rows.
    """
    return {
        "rows": [*(repr(field) for field in spec.fields), f"checksums {checksums}"],
        "parameters": [
            f"validation={spec.held_share}",
            f"batch_size={spec.batch_size}",
            f"shuffle={spec.shuffle}",
            f"backward_passes_per_step={spec.backward_passes_per_step}",
            f"train_steps_per_epoch={spec.train_steps}",
            *([f"monitor={spec.monitor}, mode={spec.mode}"] if spec.monitor and spec.restore_best else []),
            *([] if spec.transform_validation else ["transform_validation=False"]),
        ],
        "categories": list(spec.categories),
    }


def drop_values(identity: Identity) -> Identity:
    """Return an identity of any rows with the same columns."""
    return {name: [line for line in lines if not line.startswith("checksums ")] for name, lines in identity.items()}


def find_differences(theirs: Identity, ours: Identity) -> list[str]:
    """Return a line for each thing in which a checkpoint is another training's; none if it is the same one's."""
    result = []
    for name in {**ours, **theirs}:
        pairs = zip_longest(theirs.get(name, []), ours.get(name, []), fillvalue="nothing")
        other = next(((saved_line, here) for saved_line, here in pairs if saved_line != here), None)
        if other is not None:
            saved_line, here = map(_describe_line, other)
            if saved_line == here:
                saved_line, here = other
            result.append(f"{name}: {saved_line} in the checkpoint, {here} now")
    return result


def _describe_line(line: str) -> str:
    """Return a line in the words of messages."""
    if line.startswith("checksums "):
        return f"values with the {line}"
    field = _FIELD.match(line)
    if field is None:
        return line
    names = ", ".join(re.findall(r"'([^']*)'", field["names"]))
    return f"column{'s' * (',' in names)} {names} as {field['dtype']} of shape {field['shape']}"


def get_name(value: Any) -> str:
    """Return the qualified name of a function, or of an object's class, without its module."""
    return str(getattr(value, "__qualname__", type(value).__qualname__)) if value is not None else "none"
