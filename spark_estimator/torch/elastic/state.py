"""`TorchState`: saves and restores model, optimizer and other values of a training, and copies them to new ranks."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.elastic.resumption import choose_resumption
from spark_estimator.elastic.state import ObjectState
from spark_estimator.errors import HostsUpdatedInterrupt
from spark_estimator.torch.elastic.sampler import ElasticSampler
from spark_estimator.torch.elastic.steps import HeritableContent, RankContent, StepKeeper
from spark_estimator.torch.optimizer.separate_steps import SeparateSteps
from spark_estimator.torch.starting_state import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """How values of one type are saved, restored and copied from rank 0. Derive one for your own type.

    Attributes:
        value: the handled object.
        root: the rank whose value `sync` copies. Rank 0, but for ``hvd.elastic.run(mode="step")``.
    """

    root = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep a copy in host memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the root's value as it is now. Collective. It is saved when all of the state is here."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another value from now on."""
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """For what has ``state_dict()`` and ``load_state_dict()``, small enough to be sent as an object."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        self._saved = host_copy(self.value.state_dict())

    def restore(self) -> None:
        # Another copy: load_state_dict may keep its argument, and training would then change the commit.
        self.value.load_state_dict(host_copy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), self.root))


class ModelStateHandler(StateDictHandler):
    """For modules: parameters and buffers."""

    value: torch.nn.Module

    def restore(self) -> None:
        """Restores the copy; gradients of the step that failed are dropped."""
        super().restore()
        for parameter in self.value.parameters():
            parameter.grad = None

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=self.root)


class OptimizerStateHandler(StateDictHandler):
    """For optimizers, wrapped or not."""

    value: torch.optim.Optimizer

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=self.root)


class LocalStepsHandler(OptimizerStateHandler):
    """For optimizers of `DiLoCo` and `LocalSGD`, whose ranks continue with what each of them has done."""

    value: SeparateSteps

    def restore(self) -> None:
        """Forgets the exchange that has failed; the next one has what it would have brought."""
        self.value.drop_exchange()

    def sync(self) -> None:
        """Give a rank that has just joined rank 0's state; others keep theirs, except learning rates."""
        state_here, keeps = self.value.state, self.value.has_begun and context.rank() != 0
        if keeps:
            self.value.state = defaultdict(dict)
        try:
            super().sync()
        finally:
            if keeps:
                self.value.state = state_here


class ExchangedStateHandler(OptimizerStateHandler):
    """For optimizers of `DiLoCo` and `LocalSGD` whose ranks return to the last exchange when one is lost."""

    sync = StateDictHandler.sync  # with what they exchange


class SamplerStateHandler(StateDictHandler):
    """For `ElasticSampler`. Its position in the epoch is rank 0's, as is the model that was trained up to it."""

    value: ElasticSampler


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (SeparateSteps, LocalStepsHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the list of (type, handler class); the first type that fits counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Set which handler each type has, for states that are made from now on."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """The state of a training in PyTorch.

    Modules, optimizers, learning-rate schedulers and `ElasticSampler` are saved in their own way (see
    `get_handler_registry`), all else as plain objects. Each is an attribute of the state.

    With an optimizer of `DiLoCo` or `LocalSGD` no rank returns to a commit when one is lost: the others continue with
    the parameters and the attributes that they have. A rank that has just joined copies rank 0's attributes, and the
    parameters that all had after the last exchange.

    Args:
        model, optimizer: optional; more of them may be passed by other names.
        kwargs: other values to keep, for example ``epoch=0``.

    Raises:
        ValueError: a name is one that the state uses itself.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: handler for name, value in values.items() if (handler := _make_handler(value)) is not None}
        self._handlers: dict[str, StateHandler] = {}
        self._keeper: StepKeeper | None = None
        self._groups: list[dict[str, Any]] = []
        self._full: tuple[dict[str, StateHandler], dict[str, Any]] | None = None
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(broadcast_object, context.rank, **plain)
        for name, handler in handlers.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"a state cannot have an attribute {name!r}: it is a name of {type(self).__name__}.")
            setattr(self, name, handler.value)
        self._handlers = handlers

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)

    def keep_steps(self) -> None:
        """Have a loss cost only the step in progress (see `steps`), for ``hvd.elastic.run(mode="step")``.

        Raises:
            ValueError: the state has no optimizer, several, or one of `DiLoCo` or `LocalSGD`.
        """
        if self._keeper is not None:
            return
        content = self.rank_content()
        if self._find_local_steps() and content is None:
            raise ValueError('mode="step" does not apply to DiLoCo and LocalSGD, whose ranks step alone.')
        optimizer = self._require_one_optimizer()
        models = [each.value for each in self._handlers.values() if isinstance(each, ModelStateHandler)]
        self._keeper = StepKeeper(models, content)
        if isinstance(optimizer, SeparateSteps):
            optimizer.agree_before_exchange(self._keeper.agree)
            local = {name: each for name, each in self._handlers.items() if isinstance(each, LocalStepsHandler)}
            self._handlers |= {name: ExchangedStateHandler(each.value) for name, each in local.items()}
        else:
            optimizer.register_step_pre_hook(self._keeper.agree)

    def check_host_updates(self) -> None:
        """See `State`; where steps are kept, all ranks have agreed on this in the last step."""
        if self._keeper is None:
            super().check_host_updates()
        elif self._keeper.announced:
            self._keeper.hand_over()
            raise HostsUpdatedInterrupt

    def rank_content(self) -> RankContent | HeritableContent | None:
        """Return what each rank alone has beside generators and buffers; None: nothing. For subclasses."""
        return None

    def _require_one_optimizer(self) -> torch.optim.Optimizer:
        optimizers = [each.value for each in self._handlers.values() if isinstance(each, OptimizerStateHandler)]
        if len(optimizers) != 1:
            raise ValueError(
                f'mode="step" needs a state with one optimizer, whose step() ends each step; this one has '
                f"{len(optimizers)}."
            )
        result: torch.optim.Optimizer = optimizers[0]
        return result

    def save(self) -> None:
        """Copy everything into host memory; where steps are kept, what the last step has not left in place."""
        if self._keeper is not None:
            self._note(full=self._keeper.note_commit())
            return
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Restores the last saved state; with local steps it discards only the exchange that has failed."""
        if self._keeper is not None:
            self._discard_step(self._keeper)
            return
        if local := self._find_local_steps():
            for optimizer in local:
                optimizer.restore()
            return
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def _note(self, *, full: bool) -> None:
        """Keep what a step does not leave in place, and where `full` is true everything."""
        for handler in self._handlers.values():
            if not isinstance(handler, (ModelStateHandler, OptimizerStateHandler)):
                handler.save()
        groups = self._require_one_optimizer().param_groups
        self._groups = [
            copy.deepcopy({key: value for key, value in group.items() if key != "params"}) for group in groups
        ]
        super().save()
        if full:
            copies = {name: type(handler)(handler.value) for name, handler in self._handlers.items()}
            for each in copies.values():
                each.save()
            self._full = copies, copy.deepcopy(self._saved_state)

    def _discard_step(self, keeper: StepKeeper) -> None:
        optimizer = self._require_one_optimizer()
        # Before its state is loaded: it then forgets what it has exchanged.
        exchanged = not isinstance(optimizer, SeparateSteps) or optimizer.rewind()
        if keeper.note_loss(exchanged=exchanged):
            for handler in self._handlers.values():
                if not isinstance(handler, (ModelStateHandler, OptimizerStateHandler)):
                    handler.restore()
            for group, options in zip(optimizer.param_groups, copy.deepcopy(self._groups), strict=True):
                group.update(options)
            super().restore()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _sync_steps(self, keeper: StepKeeper) -> None:
        """Take over the state of a rank that has the last step, where a rank lacks it. Collective."""
        facts = allgather_object(keeper.facts(), name="elastic.step.facts")
        at = choose_resumption(facts)
        if at.from_full and context.rank() == at.root:
            assert self._full is not None
            handlers, plain = self._full
            for each in handlers.values():
                each.restore()
            for name, value in copy.deepcopy(plain).items():
                setattr(self, name, value)
        if at.spread:
            keeper.note_receiving(at)
            for handler in self._handlers.values():
                handler.root = at.root
                handler.sync()
            received = broadcast_object({name: getattr(self, name) for name in self._names}, at.root)
            for name, value in received.items():
                setattr(self, name, value)
        keeper.resume(facts, at)
        self._note(full=True)

    def sync(self) -> None:
        """Take over all of rank 0's values, then save them: a failure half way leaves the last commit whole."""
        if self._keeper is not None:
            self._sync_steps(self._keeper)
            return
        keeps = any(handler.value.has_begun for handler in self._find_local_steps()) and context.rank() != 0
        for handler in self._handlers.values():
            is_kept = keeps and isinstance(handler, ModelStateHandler)
            parameters = host_copy(handler.value.state_dict()) if is_kept else None
            handler.sync()
            if parameters is not None:
                handler.value.load_state_dict(parameters)
        super().sync()

    def _find_local_steps(self) -> list[LocalStepsHandler]:
        return [handler for handler in self._handlers.values() if isinstance(handler, LocalStepsHandler)]

    def checkpoint_parts(self) -> dict[str, Any]:
        """Return the state's objects by name: ``Checkpointer(folder, **state.checkpoint_parts())`` writes them.

        Plain attributes, such as the epoch, are the object ``state`` there.

        Raises:
            ValueError: a model, an optimizer or a sampler has the name ``state``.
        """
        if "state" in self._handlers:
            raise ValueError("checkpoint_parts(): the name 'state' is that of the plain attributes; use another name.")
        return {
            **{name: handler.value for name, handler in self._handlers.items()},
            "state": _Attributes(self, self._names),
        }

    def committed_steps(self) -> int | None:
        """Return, with ``mode="step"``, the commits so far, alike on all ranks after `sync`; else None."""
        return None if self._keeper is None else self._keeper.step

    def reset(self) -> None:
        """Distributes the rest of the epoch over the new ranks."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()


class _Attributes:
    """The plain attributes of a state, by the protocol of what has a ``state_dict()``."""

    def __init__(self, state: TorchState, names: Sequence[str]) -> None:
        self._state = state
        self._names = names
        self.committed_steps = state.committed_steps  # for a `Checkpointer`

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._state, name) for name in self._names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self._state, name, value)


def host_copy(value: Any) -> Any:
    """Return a deep copy, with tensors in host memory. Dicts, lists and tuples may hold any copyable values."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # an OrderedDict keeps its class, and a state_dict its metadata
        for key, item in value.items():
            copied[key] = host_copy(item)
        return copied
    if type(value) in (list, tuple):
        return type(value)(host_copy(item) for item in value)
    return copy.deepcopy(value)


def _make_handler(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
