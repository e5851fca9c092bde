"""The estimators' parameter `mlflow`: True, or a dict of these options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_estimator.data.columns import did_you_mean
from spark_estimator.estimators import checks

#: MLflow's tag for the run that another one is nested in.
PARENT_TAG = "mlflow.parentRunId"


def _check_seconds(name: str, value: Any) -> bool | float:
    """Return True or False, or a number of seconds."""
    if isinstance(value, bool) or value is None:
        return bool(value)
    return checks.check_positive(name, value) or False


def _check_tags(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a dict with string keys; got {value!r}.")
    return {key: str(entry) for key, entry in value.items()}


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "experiment_name": checks.check_str,
    "run_name": checks.check_str,
    "parent_run_id": checks.check_str,
    "tags": _check_tags,
    "log_every_n_steps": checks.check_int(1),
    "log_system_metrics": _check_seconds,
    "log_model": checks.check_bool,
    "registered_model_name": checks.check_str,
    "input_example": checks.check_bool,
    "pip_requirements": checks.check_names,
    "code_paths": checks.check_names,
}


@dataclass(frozen=True)
class MlflowOptions:
    """What to log, and the place of it.

    Attributes:
        experiment_name: of the run, which is created if it is not there; None: the parent run's experiment, or the one
            that ``mlflow.set_experiment`` has set.
        run_name: as MLflow shows it; None: the name of the training, the estimator's `run_id`.
        parent_run_id: the run that the training's run is nested in; None: the active one, if there is one.
        tags: of the run, further ones.
        log_every_n_steps: log the training loss after this many batches, too; None: after each epoch only.
        log_system_metrics: log CPU, memory, disk, network and GPUs of each rank, as MLflow's monitors measure them:
            True, or the number of seconds between two samples. The ranks send them to the driver.
        log_model: log the trained model, as a pyfunc flavour with signature and input example.
        registered_model_name: register the model under this name; None: it is not registered.
        input_example: log a few rows of the features with the model.
        pip_requirements: of the model's environment; None: the versions of the driver.
        code_paths: files and folders of Python modules that the model needs where it is loaded.
    """

    experiment_name: str | None = None
    run_name: str | None = None
    parent_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    log_every_n_steps: int | None = None
    log_system_metrics: bool | float = False
    log_model: bool = True
    registered_model_name: str | None = None
    input_example: bool = True
    pip_requirements: list[str] | None = None
    code_paths: list[str] | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(f"mlflow[{name!r}]", getattr(self, name)))
        if PARENT_TAG in self.tags:
            raise ValueError(f"mlflow: the tag {PARENT_TAG!r} is set by parent_run_id={self.tags[PARENT_TAG]!r}.")
        if set(self.registered_model_name or "") & set("/:"):
            raise ValueError(
                f"mlflow: registered_model_name={self.registered_model_name!r}: the names of models in MLflow contain "
                "neither '/' nor ':'."
            )
        if self.registered_model_name and not self.log_model:
            raise ValueError("mlflow: registered_model_name needs the model to be logged: leave log_model=False out.")

    @classmethod
    def from_parameter(cls, value: bool | Mapping[str, Any]) -> MlflowOptions | None:
        """Return the options that a parameter's value sets; None: nothing is logged."""
        if isinstance(value, Mapping):
            return cls(**value)
        return cls() if value else None


def check_mlflow(name: str, value: Any) -> bool | dict[str, Any]:
    """Return True or False, or a dict of `MlflowOptions`."""
    if not isinstance(value, Mapping):
        try:
            return checks.check_bool(name, value)
        except TypeError:
            raise TypeError(f"{name} must be True, False or a dict of options; got {value!r}.") from None
    for option in value:
        if option not in _CHECKS:
            near, options = did_you_mean(str(option), _CHECKS), ", ".join(_CHECKS)
            raise TypeError(f"{name} has no option {option!r}.{near} Its options: {options}.")
    MlflowOptions(**value)
    return dict(value)
