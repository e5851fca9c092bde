"""Engines in this process: of a job of one rank, and of two ranks that are connected with each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_estimator.collectives.connections.connection import RankGroup
from spark_estimator.collectives.connections.connector import Connector
from spark_estimator.collectives.connections.segments import create_segment
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.membership import EngineStarter
from spark_estimator.collectives.rendezvous import make_local_rendezvous
from spark_estimator.env import Settings

SETTINGS = Settings(start_timeout_seconds=30)


@pytest.fixture
def single_engine() -> Iterator[Engine]:
    """The engine of a job of one rank."""
    engine = EngineStarter(None, SETTINGS, contextlib.nullcontext()).start(RankGroup.job(1))
    yield engine
    engine.shutdown()


@pytest.fixture
def two_engines() -> Iterator[list[Engine]]:
    """[rank] the engines of a job of two ranks, both in this process."""
    boards = []
    for rendezvous, endpoint in make_local_rendezvous(2):
        endpoint.tcp.detach()
        assert endpoint.local is not None
        endpoint.local.detach()
        boards.append(Connector(rendezvous, create_segment))
    with ThreadPoolExecutor(2) as pool:
        starters = [EngineStarter(board, SETTINGS, contextlib.nullcontext()) for board in boards]
        engines = list(pool.map(lambda starter: starter.start(RankGroup.job(2)), starters))
        yield engines
        list(pool.map(lambda engine: engine.shutdown(), engines))
    for board in boards:
        board.close()
