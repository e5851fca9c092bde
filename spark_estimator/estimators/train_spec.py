"""What the driver sends to the ranks of a training, and what they return: plain values that are pickled."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.store import Store

if TYPE_CHECKING:
    from spark_estimator.estimators.tracking.rank_tracking import RankTracking

#: Fields of `TrainSpec` that are parameters of the estimator, and the parameters' names.
_PARAMETERS = {
    **{name: name for name in ("batch_size", "epochs", "shuffle", "verbose", "backward_passes_per_step", "use_gpu")},
    **{name: name for name in ("restore_best", "monitor", "mode", "store", "resume_on_other_rows")},
    "train_steps": "train_steps_per_epoch",
    "validation_steps": "validation_steps_per_epoch",
    "patience": "early_stopping_patience",
    "checkpoint_steps": "checkpoint_every_steps",
    "checkpoint_seconds": "checkpoint_every_seconds",
}


@dataclass(frozen=True)
class TrainSpec:
    """One training.

    Attributes:
        inputs, labels: [inputs], [labels] the fields of a batch.
        weight: the field of the rows' weights; None without.
        held_share: the share of the rows that is for validation.
        seed: of the epochs' orders, and of the model's random numbers.
        patience: training ends when the watched number has not improved for this number of validations; None: never.
        monitor: the number by which validations are compared, such as "validation.auc"; None: the loss.
        mode: "max", or "min" or "auto": the highest or the lowest is the best.
        restore_best: the numbers of the best epoch are brought back, not those of the last.
        store: keeps a checkpoint of each epoch; None: none is kept.
        checkpoint_steps: batches between checkpoints within an epoch; None: only after each epoch.
        checkpoint_seconds: seconds between checkpoints within an epoch; None: time does not matter.
        run_id: names the training in the store.
        large: a model of more bytes is returned through the store, if there is one.
        source: files that the ranks read without Spark; None: each gets its rows from its supervisor.
        held_source: the same, if rows for validation are in separate files; None: they are not.
        framework: the model and its losses, metrics and optimizer, in the framework's own class.
        owner: names this fit, for those that may write the run's files (see `persistence.run_lease`).
        kept: rows are kept as Spark sent them, and a function makes each batch from them; None: rows are kept as
            fields.
        limits: of disk and memory, for rows that ranks read from files; None: all rows are kept on disk.
        repeatable: the same rows shall give the same numbers again.
        tracking: what the ranks do for the training's MLflow run; None: there is none.
        categories: [columns] the summaries of the encoders of categories.
        has_given_seed: the user has set `seed`.
        heeds_warnings: a checkpoint is made when a rank's machine is about to be taken back.
        initial: a digest of the weights that the training begins with; empty: it is not compared.
        The others are the estimator's parameters.
    """

    inputs: tuple[Field, ...]
    labels: tuple[Field, ...]
    weight: Field | None
    held_share: float
    seed: int
    batch_size: int
    val_batch_size: int
    epochs: int
    shuffle: bool
    verbose: int
    backward_passes_per_step: int
    use_gpu: bool
    train_steps: int | None
    validation_steps: int | None
    patience: int | None
    restore_best: bool
    store: Store | None
    checkpoint_steps: int | None
    run_id: str
    large: int
    source: FileRows | None
    held_source: FileRows | None
    framework: Any = field(repr=False)
    repeatable: bool = False
    owner: str = ""
    checkpoint_seconds: float | None = None
    kept: KeptRows | None = None
    limits: RowLimits | None = None
    tracking: RankTracking | None = None
    categories: tuple[str, ...] = ()
    has_given_seed: bool = False
    initial: str = ""
    heeds_warnings: bool = False
    resume_on_other_rows: bool = False
    transform_validation: bool = True
    monitor: str | None = None
    mode: str = "auto"

    @classmethod
    def from_parameters(cls, value: Callable[[str], Any], **others: Any) -> TrainSpec:
        """Return the training that an estimator's parameters describe.

        Args:
            value: returns a parameter by its name.
            others: fields that no parameter sets.
        """
        seed = value("random_seed")
        return cls(
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            has_given_seed=seed is not None,
            repeatable=seed is not None or value("store") is not None,
            val_batch_size=value("val_batch_size") or value("batch_size"),
            limits=RowLimits.from_parameters(value("cache_bytes"), value("buffer_bytes")),
            **{name: value(parameter) for name, parameter in _PARAMETERS.items()},
            **others,
        )

    @property
    def by_value(self) -> bool:
        """Return whether ranks have to order their rows, because Spark delivers them in no fixed order."""
        return self.repeatable and self.source is None

    @property
    def has_stored_rows(self) -> bool:
        """Return whether the rank has the rows of an epoch and can read them again; no function makes them."""
        return self.kept is None

    @property
    def checkpoint_path(self) -> str | None:
        """Return the file of the last checkpoint; None without."""
        return None if self.store is None else self.store.get_checkpoint_path(self.run_id)

    @property
    def checkpoints_within(self) -> bool:
        """Return whether there are checkpoints within an epoch."""
        return self.checkpoint_steps is not None or self.checkpoint_seconds is not None or self.heeds_warnings

    @property
    def spooled(self) -> tuple[Field, ...]:
        """Return the fields of the spool."""
        return self.fields if self.kept is None else self.kept.fields

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return all fields of a batch, in their order."""
        return (*self.inputs, *self.labels, *((self.weight,) if self.weight else ()))


@dataclass(frozen=True)
class TrainResult:
    """Rank 0's result.

    Attributes:
        state: the trained model's state, in the framework's own form; empty where it is in a file.
        history: one entry for each epoch.
        rows: rows that were trained on, and those of validation, of all ranks together.
        file: where the store has the state, and its SHA-256.
        warning: what the user may not expect of a run that resumed; empty: nothing.
    """

    state: bytes = field(repr=False)
    history: list[dict[str, Any]]
    rows: tuple[int, int]
    file: tuple[str, str] | None = None
    warning: str = ""
