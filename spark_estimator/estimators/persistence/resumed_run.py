"""What the user learns of a run that resumes from its checkpoint: a log line, and a warning of what has no effect."""

from __future__ import annotations

from dataclasses import dataclass

from spark_estimator.estimators.persistence.checkpoint import Checkpoint
from spark_estimator.estimators.train_spec import TrainSpec


@dataclass(frozen=True)
class LostPlace:
    """Where a training was when it lost a rank."""

    epochs: int  # that had ended
    steps: int  # of the next epoch that were done

    def __str__(self) -> str:
        return f"a rank was lost in epoch {self.epochs + 1}, after step {self.steps}"


def describe_loss(run_id: str, lost: LostPlace) -> str:
    """Return the log line of a training that has lost a rank before it had a checkpoint."""
    return f"run {run_id!r} begins again, without a checkpoint: {lost}"


def describe_return(
    run_id: str, checkpoint: Checkpoint, epochs: int, *, again: bool, lost: LostPlace | None = None
) -> str:
    """Return the log line of a run that resumes.

    Args:
        epochs: it shall have.
        again: the epoch within which the checkpoint was taken restarts.
        lost: it resumes because a rank was lost in this job.
    """
    if lost is not None:
        step = "" if checkpoint.cursor is None else f", step {checkpoint.cursor.steps}"
        restarts = (
            f" of epoch {len(checkpoint.history) + 1}, which restarts on another number of ranks" if again else ""
        )
        return f"run {run_id!r} continues after epoch {len(checkpoint.history)}{step}{restarts}: {lost}"
    if len(checkpoint.history) >= epochs:
        epochs = len(checkpoint.history)
        return f"run {run_id!r} has already finished {epochs} epochs: returning the model of its checkpoint"
    line = f"run {run_id!r} resumes from its checkpoint after epoch {len(checkpoint.history)}"
    if checkpoint.cursor is None:
        return line
    if again:
        return (
            f"{line} and {checkpoint.cursor.steps} steps of the next, which restarts: its rows are distributed "
            "differently now (another number of ranks, other rows, or another order from Spark)"
        )
    return f"{line} and {checkpoint.cursor.steps} steps ({checkpoint.cursor.rows} rows) of the next"


def describe_ignored(spec: TrainSpec, checkpoint: Checkpoint, epochs: int, ranks: int) -> str:
    """Return the warning about a run that has resumed; empty if all is as the parameters ask for.

    Args:
        checkpoint: from which it has resumed.
        epochs: that the run has at its end.
        ranks: of this training.
    """
    if checkpoint.owner == spec.owner:  # a restart within this fit
        return ""
    ignored = []
    if spec.has_given_seed and checkpoint.seed != spec.seed:
        ignored.append(f"random_seed={spec.seed} (the run has {checkpoint.seed})")
    if epochs > len(checkpoint.history):
        return f"run_id={spec.run_id!r} has resumed, and {ignored[0]} has had no effect." if ignored else ""
    if checkpoint.ranks and len(checkpoint.ranks) != ranks:
        ignored.append(f"num_proc={ranks} (the run had {len(checkpoint.ranks)})")
    if checkpoint.initial and spec.initial and checkpoint.initial != spec.initial:
        ignored.append("the model's weights (the run began with others)")
    if spec.epochs < epochs:
        ignored.append(f"epochs={spec.epochs}")
    if spec.restore_best and checkpoint.best is None:
        ignored.append("restore_best=True (the run kept no best epoch)")
    early, raised = ("", "epochs") if epochs >= spec.epochs else (" (it ended early)", "early_stopping_patience")
    without_effect = f" Without effect: {', '.join(ignored)}." if ignored else ""
    return (
        f"run_id={spec.run_id!r} has finished before, after {epochs} epochs{early}: nothing was trained, and the model "
        f"of its checkpoint is returned.{without_effect} To train on, raise {raised}; on other rows, "
        "set resume_on_other_rows=True, too. To train from the beginning, use another run_id."
    )
