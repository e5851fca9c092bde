"""The epochs of a Keras training, in Keras' form: a dict from each metric's name to its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_estimator.estimators.history import Epochs, flatten_time, shorten, to_numbers


class KerasHistory(Epochs, dict[str, list[Any]]):
    """``{"loss": [0.5, 0.2], "accuracy": [...], "val_loss": [...]}``: means over the rows of all ranks.

    ``time_input``, ``time_compute``, ``time_peers`` and ``time_network`` have the seconds that the training of an epoch
    took, on average over the ranks.
    """

    losses = ("loss", "val_loss")

    def to_rows(self) -> list[dict[str, float]]:
        """Return [epochs] flat dicts: epoch, loss, accuracy, val_loss, ..."""
        epochs = max(map(len, self.values()), default=0)
        return [
            {"epoch": at, **{name: each[at] for name, each in self.items() if at < len(each) and each[at] is not None}}
            for at in range(epochs)
        ]


def to_history(name: str, value: Any) -> KerasHistory:
    """Return the history that a model gets: Keras' dict, a dict of numbers, a list of losses, or entries, one for
    each epoch.

    Raises:
        TypeError: it is none of these.
    """
    if value is None:
        return KerasHistory()
    if isinstance(value, Mapping):
        return KerasHistory({str(key): to_numbers(f"{name}[{key!r}]", item) for key, item in value.items()})
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a dict from each metric's name to its values; got {value!r}.")
    if not all(isinstance(item, Mapping) for item in value):
        return KerasHistory(loss=to_numbers(name, value))
    flat = [{**flatten_entry(entry), **flatten_time(entry)} for entry in value]
    names = dict.fromkeys(key for entry in flat for key in entry)
    return KerasHistory({key: [entry.get(key) for entry in flat] for key in names})


def flatten_entry(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return an epoch's entry in Keras' words: loss, val_loss."""
    validation = entry.get("validation") or {}
    return {**entry["train"], **{f"val_{name}": value for name, value in validation.items()}, **entry.get("more", {})}


def to_averages(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an epoch's entry as the progress display takes it: `flatten_entry`, the two losses first."""
    flat = flatten_entry(entry)
    return {**{name: flat[name] for name in KerasHistory.losses if name in flat}, **flat}


def describe_epoch(entry: Mapping[str, Any], epochs: int) -> str:
    """Return an epoch in one line."""
    metrics = [f"{name} {shorten(value)}" for name, value in flatten_entry(entry).items()]
    return ", ".join([f"epoch {entry['epoch'] + 1}/{epochs}", *metrics])
