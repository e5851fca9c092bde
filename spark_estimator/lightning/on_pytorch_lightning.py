"""The strategy for the package ``pytorch_lightning``; importing this imports ``pytorch_lightning``."""

from __future__ import annotations

from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from spark_estimator.lightning.strategy import HorovodMethods


class HorovodStrategy(HorovodMethods, ParallelStrategy):
    __doc__ = HorovodMethods.__doc__

    flavour = "pytorch_lightning"
    rank_zero_only = staticmethod(rank_zero_only)


class AddOnStrategy(HorovodStrategy):
    """The one of the package ``lightning_horovod``, which multiplies learning rates by the number of ranks."""

    scales_if_unset = True
