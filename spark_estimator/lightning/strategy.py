"""The strategy itself: this process's rank and devices, and the averaging of gradients."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import lightning_utilities.core.rank_zero as utilities_rank_zero
import torch

import spark_estimator.torch as hvd
from spark_estimator import log
from spark_estimator.collectives import context
from spark_estimator.lightning import rates, removed_hooks
from spark_estimator.lightning.epoch_outputs import EpochOutputs
from spark_estimator.lightning.lockstep import LightningLockstep, even_out, gather_lengths
from spark_estimator.lightning.metrics import SyncedMetrics
from spark_estimator.lightning.strategy_collectives import HorovodCollectives
from spark_estimator.torch.collectives.compressors import UNCHOSEN
from spark_estimator.torch.optimizer.optimizer import DistributedMethods, unwrap
from spark_estimator.torch.optimizer.separate_steps import SeparateSteps

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

_log = log.get_logger(__name__)

#: The function of `hvd` that makes an optimizer exchange what `sync` names.
_WRAPPERS = {"allreduce": "DistributedOptimizer", "local_sgd": "LocalSGD", "diloco": "DiLoCo"}


class HorovodMethods(HorovodCollectives, _Base):
    """Trains one model on all ranks of the job: each sees its share of the data, and steps with averaged gradients.

    Gradients are averages when a backward returns: clipping, unscaling and logging are right without more ado. With
    ``accumulate_grad_batches`` they are sent in the last batch of each step only. With several optimizers and manual
    optimization, every ``manual_backward`` ends in averages, but for those under ``toggle_model(sync_grad=False)``.

    Parameters and buffers of rank 0 are every rank's start. Metrics of torchmetrics in the module are synced over the
    ranks, ``Trainer(sync_batchnorm=True)`` makes ``hvd.SyncBatchNorm``. If one rank sets ``trainer.should_stop``, or
    skips the rest of its epoch, all do. Ranks with different numbers of training batches take as many as the one with
    fewest, also where an `IterableDataset` has another length; loaders for evaluation are not cut, and what would have
    some rank wait in a step is refused there. Lightning 1's ``training_epoch_end``, ``validation_epoch_end`` and
    ``test_epoch_end`` are called with what the steps of this rank returned.

    The learning rate stays as ``configure_optimizers`` gives it, unless `scale_lr` is set, and so does the batch size;
    ``trainer.world_size`` is the number of ranks.

    With `scale_lr`, each ``fit`` multiplies the learning rates by the number of ranks, once, before it restores a
    checkpoint, and rank 0 logs the factor and the rates. Those that PyTorch's schedules keep (``base_lrs``, the
    ``max_lr`` of OneCycleLR, ``eta_min``, also inside of a SequentialLR) are multiplied, too, so that each step has the
    rate of one process times the number of ranks; of these Horovod multiplied ``base_lrs`` alone. A checkpoint holds
    the multiplied rates and, for this class, their factor. ``fit(ckpt_path=...)`` continues with the rates of the
    checkpoint, also on another number of ranks, as with Horovod; rank 0 logs a warning where the factors differ.
    ``Tuner.lr_find`` tries rates as they are: divide what it suggests by ``trainer.world_size``.

    Args:
        scale_lr: whether learning rates are multiplied by the number of ranks. None: no, unless the Trainer is made
            with an old spelling (`old_spellings`), or the class is that of ``lightning_horovod``.
        compression: what gradients are sent as; `hvd.Compression`.
        gradient_predivide_factor, groups, sparse_as_dense: as for `hvd.DistributedOptimizer`.
        sync: "allreduce": gradients are averaged in each step; "local_sgd" or "diloco": each rank steps alone, see
            `hvd.LocalSGD` and `hvd.DiLoCo`. Ranks have the same parameters when a validation begins, a checkpoint is
            made, and training ends. Learning rates are not multiplied.
        sync_options: for these two, such as ``{"inner_steps": 32}``.
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin: as for Lightning's own
            strategies; usually the Trainer sets them.
    """

    #: The package whose Trainer takes it.
    flavour: ClassVar[str]
    #: That package's own, which knows the rank.
    rank_zero_only: ClassVar[Any]

    strategy_name = "horovod"
    #: Whether learning rates are multiplied where `scale_lr` is None.
    scales_if_unset = False
    #: Whether rank 0 warns about hooks that only Lightning 1 calls: the script was written for it (`old_spellings`).
    warns_of_old_hooks = False

    if TYPE_CHECKING:
        optimizers: list[Any]
        lr_scheduler_configs: list[Any]

    def __init__(
        self,
        *,
        scale_lr: bool | None = None,
        compression: Any = UNCHOSEN,
        gradient_predivide_factor: float = 1.0,
        groups: int | None = None,
        sparse_as_dense: bool = False,
        sync: str = "allreduce",
        sync_options: dict[str, Any] | None = None,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        if scale_lr not in (None, True, False):
            raise TypeError(f"scale_lr={scale_lr!r} must be True, False or None.")
        if sync not in _WRAPPERS:
            raise ValueError(f"sync={sync!r} must be one of {', '.join(map(repr, _WRAPPERS))}.")
        self._steps_locally = sync != "allreduce"
        if sync_options and not self._steps_locally:
            raise ValueError(f"sync_options={sync_options!r} are for sync='local_sgd' and sync='diloco'.")
        if self._steps_locally and scale_lr:
            raise ValueError(f"scale_lr=True and sync={sync!r}: each rank steps with the learning rate of one process.")
        if scale_lr is None and self.scales_if_unset and not self._steps_locally:
            scale_lr = True
        self.scale_lr = scale_lr
        self._wrap: Callable[..., Any] = getattr(hvd, _WRAPPERS[sync])
        self._optimizer_options = {
            "compression": compression,
            "gradient_predivide_factor": gradient_predivide_factor,
            "groups": groups,
            "sparse_as_dense": sparse_as_dense,
        }
        if self._steps_locally:
            self._optimizer_options = dict(sync_options or {})
        self._metrics = SyncedMetrics()
        self._lockstep: LightningLockstep | None = None
        self.epoch_outputs: EpochOutputs | None = None
        self._made_distributed: list[torch.optim.Optimizer] = []
        self._num_nodes = 1

    def __repr__(self) -> str:
        # Appears in the error of a Trainer of the other package, whose strategies are of other classes.
        return (
            f"<HorovodStrategy for {self.flavour}; for a Trainer of another package: strategy='horovod', or "
            "spark_estimator.lightning.strategy_class>"
        )

    # --- which rank this is ---

    def set_world_ranks(self) -> None:
        """Join the job, as the Trainer is made; all ranks make theirs. Raise ValueError for several devices."""
        hvd.init()
        self._check_devices()
        self.rank_zero_only.rank = utilities_rank_zero.rank_zero_only.rank = context.rank()

    @property
    def is_distributed(self) -> bool:
        """Return whether there are several ranks: Lightning gives them samplers for their own shares, then, and refuses
        what cannot work with several, as to try batch sizes until one does not fit into memory.
        """
        return self.world_size > 1

    @property
    def global_rank(self) -> int:
        """Return ``hvd.rank()``; 0 before the job is joined."""
        return context.rank() if context.is_initialized() else 0

    @property
    def local_rank(self) -> int:
        """Return ``hvd.local_rank()``."""
        return context.local_rank() if context.is_initialized() else 0

    @property
    def node_rank(self) -> int:
        """Return ``hvd.cross_rank()``."""
        return context.cross_rank() if context.is_initialized() else 0

    @property
    def world_size(self) -> int:
        """Return ``hvd.size()``."""
        return context.size() if context.is_initialized() else 1

    @property
    def is_global_zero(self) -> bool:
        """Return whether this is rank 0."""
        return self.global_rank == 0

    @property
    def num_nodes(self) -> int:
        """Return how many hosts there are."""
        return context.cross_size() if context.is_initialized() else self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        hvd.init()
        if num_nodes not in (1, context.cross_size()):
            raise ValueError(
                f"Trainer(num_nodes={num_nodes}): the ranks of this job are on {context.cross_size()} host(s), as "
                "started by horovodrun or HorovodRunner. Remove num_nodes."
            )

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return which share of the data this rank reads."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def root_device(self) -> torch.device:
        """Return the rank's one device: on a GPU the one of its local rank, of those that it sees."""
        devices: list[torch.device] = self.parallel_devices or [torch.device("cpu")]
        if devices[0].type != "cuda" or self.world_size == 1:
            return devices[0]
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def _check_devices(self) -> None:
        devices: list[torch.device] = self.parallel_devices or []
        # devices="auto" also passes all GPUs: there the rank takes its own.
        all_visible = devices and devices[0].type == "cuda" and len(devices) == torch.cuda.device_count()
        if len(devices) > 1 and not all_visible:
            raise ValueError(
                f"Trainer(devices={len(devices)}): with strategy='horovod', each rank is a process with one device. "
                f"Remove devices, and start {len(devices)} ranks: horovodrun -np {len(devices)}, or "
                f"HorovodRunner(np={len(devices)})."
            )

    # --- before a run, and after it ---

    def connect(self, model: Any) -> None:
        """Take the module of a run, which may have hooks of Lightning 1 (`epoch_outputs`)."""
        super().connect(model)
        self.epoch_outputs = EpochOutputs(model)
        self.epoch_outputs.hide()  # the Trainer checks the module between this and `setup`

    def setup(self, trainer: Any) -> None:
        """Make the model that of rank 0 on all ranks, and its optimizers distributed ones. Collective."""
        self.uneven_lengths = ()
        if self.epoch_outputs is not None:
            self.epoch_outputs.attach(trainer, self.flavour)
        if self.warns_of_old_hooks and self.is_global_zero:
            removed_hooks.warn_about_module(self.lightning_module)
            removed_hooks.warn_about_callbacks(trainer.callbacks)
        super().setup(trainer)
        if self.world_size > 1 and getattr(trainer.state.fn, "value", trainer.state.fn) == "fit":
            self._release()
            self._lockstep = LightningLockstep(trainer, self.lightning_module)
        self._metrics.adopt(self.lightning_module)

    def model_to_device(self) -> None:
        """Move the model to `root_device`."""
        self.model.to(self.root_device)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        if self._layer_sync is not None:
            if type(self._layer_sync).__name__ == "TorchSyncBatchNorm":  # which needs torch.distributed
                model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
            else:
                model = self._layer_sync.apply(model)
        if not self.is_alone:
            named = itertools.chain(model.named_parameters(), model.named_buffers())
            hvd.broadcast_parameters([(name, tensor.detach()) for name, tensor in named], root_rank=0)
        return model

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the module's optimizers distributed, but those that it has made so itself."""
        rates.make_plain(self.lightning_module)
        super().setup_optimizers(trainer)
        if self.scale_lr and self.world_size > 1:
            self.log_rates(rates.scale(self.optimizers, self._list_schedules(), self.world_size))
        names = {id(param): name for name, param in self.lightning_module.named_parameters()}
        for optimizer in self.optimizers:
            if not isinstance(optimizer, (DistributedMethods, SeparateSteps)):
                params = [param for group in optimizer.param_groups for param in group["params"]]
                named = (
                    [(names[id(param)], param) for param in params] if names.keys() >= set(map(id, params)) else None
                )
                self._wrap(optimizer, named, **self._optimizer_options)
                self._made_distributed.append(optimizer)
                if isinstance(optimizer, DistributedMethods):
                    optimizer.set_backward_passes_per_step(None)
        self.optimizers = (
            self.optimizers
        )  # Lightning's own wrappers are made again: the optimizers' classes have changed

    def on_train_start(self) -> None:
        """Sync metrics that hooks have made, too."""
        self._metrics.adopt(self.lightning_module)

    on_test_start = on_predict_start = on_train_start

    def on_validation_start(self) -> None:
        """Sync such metrics; ranks that step alone exchange their parameters."""
        self._metrics.adopt(self.lightning_module)
        self.synchronize_parameters()

    def on_train_end(self) -> None:
        """Exchange the parameters of ranks that step alone."""
        self.synchronize_parameters()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return Lightning's, for a checkpoint of all ranks; ranks that step alone exchange their parameters first."""
        self.synchronize_parameters()
        return dict(super().lightning_module_state_dict())

    def synchronize_parameters(self) -> None:
        """Give ranks that step alone the same parameters. Collective; no effect with sync='allreduce'."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, SeparateSteps):
                optimizer.synchronize()

    def teardown(self) -> None:
        """Leaves trainer, module and optimizers as they were; the rank stays in the job. Not collective.

        A backward after it is this rank's own.
        """
        self._release()
        if self.epoch_outputs is not None:
            self.epoch_outputs.release()
        for optimizer in self._made_distributed:
            if isinstance(optimizer, SeparateSteps):
                optimizer.unwrap()
            else:
                unwrap(optimizer)
        self._made_distributed.clear()
        self._metrics.release()
        super().teardown()

    def _release(self) -> None:
        if self._lockstep is not None:
            self._lockstep.release()
            self._lockstep = None

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return a training loader with the same number of batches on all ranks; other loaders unchanged. Collective.

        Raises:
            ValueError: on all ranks, when some of them have no batch at all, and the module does not allow that.
        """
        if self.is_alone:
            return dataloader
        trainer, module = self.lightning_module.trainer, self.lightning_module
        ranks = gather_lengths(dataloader)
        lengths = ranks.of_ranks
        allowed = any(
            getattr(owner, "allow_zero_length_dataloader_with_multiple_devices", False)
            for owner in (module, trainer.datamodule)
        )
        if 0 in lengths and any(lengths) and not (allowed and not trainer.training):
            empty = ", ".join(str(rank) for rank, length in enumerate(lengths) if length == 0)
            raise ValueError(
                f"Rank(s) {empty} have no batch, but others have ({', '.join(map(str, lengths))} in rank order). Give "
                "every rank at least one: let Lightning add the sampler, or use smaller batches."
            )
        if trainer.training:
            return even_out(dataloader, ranks)
        known_lengths = tuple(length for length in lengths if length is not None)
        if len(known_lengths) == len(lengths) and len(set(known_lengths)) > 1:
            self.uneven_lengths = known_lengths
        return dataloader

    # --- steps ---

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run Lightning's step.

        Raises:
            RuntimeError: when it gives no loss, which skips the step on one process: the other ranks would wait for
                this one's gradients.
        """
        output = super().training_step(*args, **kwargs)
        module = self.lightning_module
        if output is None and self.world_size > 1 and module.automatic_optimization:
            raise RuntimeError(
                f"{type(module).__name__}.training_step on rank {self.global_rank} has returned None for batch "
                f"{module.trainer.fit_loop.batch_idx} of epoch {module.trainer.current_epoch}. This skips the step on "
                "one rank only, and the other ranks would wait for its gradients. Return loss * 0 to ignore a batch, "
                "and remove rows with a non-finite loss from the data."
            )
        return output

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run Lightning's step; see `_check_may_talk`."""
        with self._enter_evaluation_step():
            return super().validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run Lightning's step; see `_check_may_talk`."""
        with self._enter_evaluation_step():
            return super().test_step(*args, **kwargs)

    @contextlib.contextmanager
    def _enter_evaluation_step(self) -> Iterator[None]:
        self.in_evaluation_step = True
        try:
            yield
        finally:
            self.in_evaluation_step = False

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let gradients add up on this rank; Lightning enters it for all batches of a step but the last."""
        with contextlib.ExitStack() as stack:
            for optimizer in self.optimizers:
                if not isinstance(optimizer, SeparateSteps):
                    stack.enter_context(optimizer.accumulating())
            yield

    # --- checkpoints ---

    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Write it on rank 0, with the factor of its learning rates."""
        rates.note_factor(checkpoint, self.optimizers)
        super().save_checkpoint(checkpoint, *args, **kwargs)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Give the optimizers the state in a checkpoint, its learning rates included."""
        super().load_optimizer_state_dict(checkpoint)
        self.restored_rates(checkpoint)

    def restored_rates(self, checkpoint: Mapping[str, Any]) -> None:
        """Log a checkpoint's factor of the learning rate that is not this job's."""
        self.log_rates(rates.adopt_factor(checkpoint, self.optimizers, self._list_schedules()))

    def log_rates(self, line: str) -> None:
        """Log a line about learning rates on rank 0; an empty one is none."""
        if line and self.is_global_zero:
            _log.warning("%s", line)

    def follow_ranks(self, checkpoint: Mapping[str, Any]) -> None:
        """Give restored learning rates the factor of this job, where `scale_lr` is set."""
        if self.scale_lr:
            factor = checkpoint.get(rates.CHECKPOINT_KEY, 1)
            rates.rescale(self.optimizers, self._list_schedules(), factor, self.world_size)

    def _list_schedules(self) -> list[Any]:
        return [config.scheduler for config in self.lr_scheduler_configs]

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the content of the file, on all ranks; those that do not see it get it from rank 0. Collective."""
        load: Callable[..., dict[str, Any]] = super().load_checkpoint
        if self.is_alone:
            return load(checkpoint_path, *args, **kwargs)
        seen = "://" in str(checkpoint_path) or os.path.exists(checkpoint_path)
        if self.reduce_boolean_decision(seen):
            checkpoint = load(checkpoint_path, *args, **kwargs)
            self.barrier()  # who removes it next must not do so before all have read it
            return checkpoint
        return dict(self.broadcast(load(checkpoint_path, *args, **kwargs) if self.is_global_zero else None))
