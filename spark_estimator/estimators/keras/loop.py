"""The steps of a Keras training on one rank: what ``model.fit`` does, with the same number of batches on each rank.

Ranks may have batches of unequal size. The exchange of gradients weights them (`StepWeight`), not Keras' sample
weights. So each rank's losses and metrics are those of its own rows, and their sums over the ranks are those of all
rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.estimators.keras.arrays import to_arrays, to_inputs, to_labels, to_tensors
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.compiled import compile_step
from spark_estimator.estimators.keras.objects import Recipe, assign, get_values, load_dumped, register, unpack
from spark_estimator.estimators.keras.rng_state import get_rng_state, set_rng_state
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.estimators.keras.sums import Sums, get_metrics_variables
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, make_schedule
from spark_estimator.estimators.rank_run import make_meter
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.keras.importing import is_keras_2, keras_of
from spark_estimator.keras.optimizer import DistributedOptimizer
from spark_estimator.keras.optimizers import find_innermost, read_iterations
from spark_estimator.keras.rates import list_variables_with_rate, rescale_rate
from spark_estimator.keras.starting_state import broadcast_variables
from spark_estimator.keras.wrapping import find_exchange
from spark_estimator.observe.progress import count_step
from spark_estimator.observe.step_times import time_input


class Loop:
    """The model of this rank and its steps.

    Attributes:
        model: compiled; all ranks have the same weights and optimizer after `broadcast`.
        meter: counts the steps, for the display at the driver.

    Args:
        seed: of all chance.
        rows: of this rank; the first one builds layers that are not built yet.
    """

    def __init__(self, spec: TrainSpec, seed: int, rows: EpochRows) -> None:
        self._spec = spec
        self._seed = seed
        self.meter = make_meter(spec)
        parts: KerasParts = spec.framework
        self._label_shapes = parts.label_shapes
        custom = unpack(parts.custom_objects)
        self.model = load_dumped(parts.model, custom)
        self._keras = keras_of(self.model)
        register(self._keras, custom)
        self._keras.utils.set_random_seed(seed % (1 << 32))
        batch = rows.take_sample()
        result = to_arrays(batch.matrices, spec.fields)[: len(spec.inputs)]
        inputs = to_inputs(self.model, result, spec.inputs)
        self._returned = self.model(inputs, training=False)
        recipe: Recipe = unpack(parts.recipe, custom)
        DistributedOptimizer(
            recipe.optimizer,
            compression=unpack(parts.compression),
            backward_passes_per_step=spec.backward_passes_per_step,
        )
        recipe.compile(self.model)
        recipe.restore(self.model)
        # The user's learning rate is that of one process; the joint batch is larger.
        self._size = context.size()
        rescale_rate(self.model.optimizer, 1, self._size)
        # Builds what the losses and metrics count with: a checkpoint holds it, and ranks have as much of it.
        inputs, labels, weights = self._make_arrays(batch)
        if is_keras_2(self.model):
            self.model.test_on_batch(inputs, labels, sample_weight=weights)
        else:
            batch_arguments = {"x": inputs, "y": labels, "y_pred": self._returned, "sample_weight": weights}
            self.model.compute_loss(**batch_arguments, training=False)
            self.model.compute_metrics(**batch_arguments)
        self.model.reset_metrics()
        compile_step(self.model)
        exchange = find_exchange(self.model.optimizer)
        assert exchange is not None
        exchange.weight.is_used = True
        self._exchange = exchange
        self._sums = Sums(self.model)
        self._within: dict[str, Any] | None = None
        self._marks: list[int] = []  # when the epoch began

    def broadcast(self) -> None:
        """Give all ranks the weights and the optimizer of rank 0. A collective."""
        broadcast_variables([*self.model.weights, *list_variables_with_rate(self.model.optimizer)])

    @property
    def is_gathering(self) -> bool:
        """Return whether passes wait for their step."""
        passes = self._exchange.accumulates
        return passes > 1 and read_iterations(self.model.optimizer) % passes != 0

    @property
    def _seeds(self) -> list[Any]:
        """Return the states of the layers' own random numbers."""
        others = {id(variable) for variable in [*self.model.weights, *get_metrics_variables(self.model)]}
        return [
            variable
            for variable in self.model.variables
            if id(variable) not in others
            and tuple(variable.shape) == (2,)
            and "seed_generator" in str(getattr(variable, "path", ""))
        ]

    @property
    def _gathered(self) -> list[Any]:
        """Return the optimizer's gradients of passes that wait for their step; each rank has different ones."""
        return list(getattr(find_innermost(self.model.optimizer), "_accumulated_gradients", None) or [])

    def get_state(self) -> dict[str, Any]:
        """Return the content of a checkpoint, equal on all ranks."""
        return {
            "weights": get_values(self.model.weights),
            "optimizer": get_values(list_variables_with_rate(self.model.optimizer)),
            "rate_factor": self._size,
        }

    def gather_states(self, *, within: bool) -> list[dict[str, Any]]:
        """Return [ranks] what each has for itself. A collective.

        Args:
            within: an epoch; False: between two of them.
        """
        state: dict[str, Any] = {"gathered": get_values(self._gathered) if self.is_gathering else []}
        if within:
            state |= {
                "weights": get_values(self.model.non_trainable_weights),
                "seeds": get_values(self._seeds),
                "sums": self._sums.get_state(),
                "chance": get_rng_state(),
                "marks": self._marks,
            }
        return list(allgather_object(state, name="estimator.checkpoint"))

    def _take_gathered(self, state: dict[str, Any]) -> None:
        if state["gathered"]:
            assign(self._gathered, state["gathered"])
        else:
            for variable in self._gathered:
                variable.assign(numpy.zeros(tuple(variable.shape)))

    def restore(self, checkpoint: Checkpoint, *, within: bool) -> None:
        """Restore a checkpoint.

        Args:
            within: training resumes within the epoch in which it was taken; False: at the beginning of the next.
        """
        assign(self.model.weights, checkpoint.state["weights"])
        factor = checkpoint.state["rate_factor"]
        rescale_rate(self.model.optimizer, self._size, factor)
        assign(list_variables_with_rate(self.model.optimizer), checkpoint.state["optimizer"])
        rescale_rate(self.model.optimizer, factor, self._size)
        if len(checkpoint.ranks) == context.size():
            state = checkpoint.ranks[context.rank()]
            self._take_gathered(state)
            self._within = state if within else None
        else:
            self._take_gathered({"gathered": []})

    def train(
        self,
        rows: EpochRows,
        epoch: int,
        first: int,
        callbacks: KerasCallbacks,
        save: Callable[[int, int], None],
        reach: Callable[[int], None],
    ) -> dict[str, float]:
        """Train for one epoch. Return losses and metrics over all rows.

        Args:
            first: batches that are done already, before the checkpoint that was taken.
            save: (batches done, rows of all ranks in them) writes a checkpoint, between two steps of the optimizer.
            reach: (batches done) is called after each batch.
        """
        spec = self._spec
        self._enter(epoch)
        order = (self._seed, epoch) if spec.shuffle else None
        plan = rows.make_plan(spec.batch_size, spec.train_steps)
        schedule, is_due = make_schedule(spec), False
        self.meter.begin_epoch(epoch, plan.steps, first, self._sums.rows)
        with self._sums.add_up():
            batches = time_input(rows.read_batches(spec.batch_size, spec.train_steps, order, first))
            for done, batch in enumerate(batches, first + 1):
                callbacks.on_batch_begin("train", done - 1)
                logs = self._step(batch)
                count_step()
                callbacks.on_batch_end("train", done - 1, logs)
                self.meter.end_step(batch.rows, logs.get("loss"))
                reach(done)
                is_due = is_due or (schedule is not None and schedule.is_due())
                if schedule is not None and is_due and not self.is_gathering and done < plan.steps:
                    save(done, plan.count_done(done))
                    schedule.restart()
                    is_due = False
        self._average_statistics()
        return self._sums.compute_averages()

    def evaluate(self, rows: EpochRows, callbacks: KerasCallbacks) -> dict[str, float]:
        """Return losses and metrics over all rows, with the model as it is."""
        callbacks.on_test_begin()
        self._sums.begin()
        size = self._spec.val_batch_size, self._spec.validation_steps
        self.meter.begin_validation(rows.make_plan(*size).steps)
        with self._sums.add_up():
            for number, batch in enumerate(rows.read_batches(*size)):
                if not batch.rows:  # no other rank waits for this one
                    continue
                callbacks.on_batch_begin("test", number)
                inputs, labels, weights = self._make_arrays(batch)
                logs = self.model.test_on_batch(inputs, labels, sample_weight=weights, return_dict=True)
                logs = self._sums.add(logs, batch.rows)
                callbacks.on_batch_end("test", number, logs)
                self.meter.end_step(batch.rows, logs.get("loss"))
        result = self._sums.compute_averages()
        callbacks.on_test_end(result)
        return result

    def _step(self, batch: Batch) -> dict[str, Any]:
        inputs, labels, weights = self._make_arrays(batch)
        self._exchange.weight.set(batch.factor)
        if batch.rows:
            logs = self.model.train_on_batch(inputs, labels, sample_weight=weights, return_dict=True)
            return self._sums.add(logs, batch.rows)
        with self._preserve_state():
            logs = self.model.train_on_batch(inputs, labels, sample_weight=weights, return_dict=True)
        return dict(logs)

    @contextmanager
    def _preserve_state(self) -> Iterator[None]:
        """Undo afterwards what a step with a row that does not count has changed, except for the weights, which all
        ranks change alike.
        """
        variables = self.model.non_trainable_weights
        values = get_values(variables)
        sums = self._sums.get_state()
        yield
        assign(variables, values)
        self._sums.restore(sums)

    def _make_arrays(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return inputs, labels and weights of a batch."""
        spec = self._spec
        result = to_arrays(batch.matrices, spec.fields)
        inputs, rest = result[: len(spec.inputs)], result[len(spec.inputs) :]
        labels = to_labels(self._returned, rest[: len(spec.labels)], self._label_shapes)
        weights = rest[len(spec.labels)].reshape(-1) if spec.weight is not None else None
        tensors: tuple[Any, Any, Any] = to_tensors(
            self.model, (to_inputs(self.model, inputs, spec.inputs), labels, weights)
        )
        return tensors

    def _enter(self, epoch: int) -> None:
        """Begin an epoch, or continue one."""
        self._draw(epoch)
        self._marks = self._compute_checksums()
        self._sums.begin()
        within, self._within = self._within, None
        if within is None:
            return
        assign(self._seeds, within["seeds"])
        assign(self.model.non_trainable_weights, within["weights"])
        self._sums.restore(within["sums"])
        set_rng_state(within["chance"])
        self._marks = within["marks"]

    def _draw(self, epoch: int) -> None:
        """Seed an epoch's random numbers from seed, epoch and rank alone; earlier draws have no effect."""
        source = numpy.random.SeedSequence([self._seed, epoch, context.rank()])
        self._keras.utils.set_random_seed(int(source.generate_state(1)[0]))
        for variable, drawn in zip(self._seeds, source.spawn(len(self._seeds)), strict=True):
            variable.assign(
                numpy.array([drawn.generate_state(1)[0] >> 1, 0], numpy.uint32).astype(_get_dtype(variable))
            )

    def _compute_checksums(self) -> list[int]:
        """Return [weights that are not trained] numbers that show whether an epoch has changed them."""
        return [zlib.crc32(value.tobytes()) for value in get_values(self.model.non_trainable_weights)]

    def _average_statistics(self) -> None:
        """Average, over the ranks, the weights that an epoch has changed without training: batch normalization's sums.

        Then validation, the checkpoint and the returned model use the same numbers. A collective.
        """
        if context.size() == 1 or not self._marks:
            return
        differs = [mark != other for mark, other in zip(self._compute_checksums(), self._marks, strict=True)]
        changed = arrays.allreduce(numpy.array(differs, numpy.uint8), ReduceOp.MAX, "estimator.changed")
        variables = [v for v, yes in zip(self.model.non_trainable_weights, changed, strict=True) if yes]
        floating = [variable for variable in variables if "float" in str(_get_dtype(variable))]
        if floating:
            sent = [numpy.asarray(value, numpy.float32) for value in get_values(floating)]
            assign(floating, arrays.grouped_allreduce(sent, ReduceOp.AVERAGE, "estimator.even_out"))
        broadcast_variables([variable for variable in variables if not any(variable is other for other in floating)])


def _get_dtype(variable: Any) -> Any:
    return str(getattr(variable.dtype, "name", variable.dtype)).rpartition(".")[2]
