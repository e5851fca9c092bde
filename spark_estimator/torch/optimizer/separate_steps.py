"""`SeparateSteps`: what the core asks of an optimizer whose ranks step alone, and exchange parameters at intervals."""

from __future__ import annotations

from collections.abc import Callable

import torch


class SeparateSteps(torch.optim.Optimizer):
    """The base of such optimizers, which an extension makes: elastic states and Lightning's strategy know it."""

    @property
    def has_begun(self) -> bool:
        """Return whether it has made a step."""
        raise NotImplementedError

    @property
    def is_common(self) -> bool:
        """Return whether all ranks have the same parameters: it has made no step since the last exchange."""
        raise NotImplementedError

    def agree_before_exchange(self, agree: Callable[[], None]) -> None:
        """Have a collective called before each exchange. Raise ValueError: exchanges are not of all parameters."""
        raise NotImplementedError

    def rewind(self) -> bool:
        """Take the parameters of the last exchange, the state stays. Return whether there was no step since then."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Return when all ranks have the same parameters. Collective. Raise HorovodInternalError: a rank is lost."""
        raise NotImplementedError

    def drop_exchange(self) -> None:
        """Discards requests in flight, after the job has failed: the next exchange covers all changes."""
        raise NotImplementedError

    def unwrap(self) -> None:
        """Becomes the user's optimizer again, which exchanges nothing."""
        raise NotImplementedError
