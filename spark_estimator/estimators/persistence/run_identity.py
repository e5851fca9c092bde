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


def of_rows_and_parameters(spec: TrainSpec, checksums: list[int]) -> Identity:
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
            *([] if spec.transform_validation else ["transform_validation=False"]),
        ],
        "categories": list(spec.categories),
    }


def without_values(identity: Identity) -> Identity:
    """Return an identity of any rows with the same columns."""
    return {what: [line for line in lines if not line.startswith("checksums ")] for what, lines in identity.items()}


def differences(theirs: Identity, ours: Identity) -> list[str]:
    """Return a line for each thing in which a checkpoint is another training's; none if it is the same one's."""
    result = []
    for what in {**ours, **theirs}:
        pairs = zip_longest(theirs.get(what, []), ours.get(what, []), fillvalue="nothing")
        other = next(((there, here) for there, here in pairs if there != here), None)
        if other is not None:
            there, here = map(_readable, other)
            if there == here:
                there, here = other
            result.append(f"{what}: {there} in the checkpoint, {here} now")
    return result


def _readable(line: str) -> str:
    """Return a line in the words of messages."""
    if line.startswith("checksums "):
        return f"values with the {line}"
    field = _FIELD.match(line)
    if field is None:
        return line
    names = ", ".join(re.findall(r"'([^']*)'", field["names"]))
    return f"column{'s' * (',' in names)} {names} as {field['dtype']} of shape {field['shape']}"


def name_of(value: Any) -> str:
    """Return the qualified name of a function, or of an object's class, without its module."""
    return str(getattr(value, "__qualname__", type(value).__qualname__)) if value is not None else "none"
