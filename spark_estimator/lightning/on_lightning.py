"""The strategy for the package ``lightning``; importing this imports ``lightning.pytorch``."""

from __future__ import annotations

from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from spark_estimator.lightning.strategy import HorovodMethods


class HorovodStrategy(HorovodMethods, ParallelStrategy):
    __doc__ = HorovodMethods.__doc__

    flavour = "lightning.pytorch"
    rank_zero_only = staticmethod(rank_zero_only)


class AddOnStrategy(HorovodStrategy):
    """The one of the package ``lightning_horovod``, which multiplies learning rates by the number of ranks."""

    scales_if_unset = True
