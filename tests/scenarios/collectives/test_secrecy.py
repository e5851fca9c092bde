"""The key of a job is in memory and on the launcher's pipe, and in no place that other users read."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_estimator.collectives import rendezvous as module
from spark_estimator.collectives.connections.connector import Connector
from spark_estimator.collectives.rendezvous import Rendezvous, make_local_rendezvous
from spark_estimator.env import Settings
from tests.ranks import Ranks, RanksFailedError


def forms(key: bytes) -> list[str]:
    """How a key would look in a text."""
    return [key.hex(), key.hex()[:16], repr(key)[2:-1][:24], str(list(key))[1:30]]


def visible(text: str, key: bytes) -> bool:
    return any(form in text for form in forms(key))


def test_neither_repr_nor_str_shows_it() -> None:
    job = make_local_rendezvous(2)
    for rendezvous, endpoint in job:
        assert visible(rendezvous.to_json(), rendezvous.key), "the test itself must be able to see it"
        for text in (repr(rendezvous), str(rendezvous), f"{rendezvous}", f"{[rendezvous]!r}"):
            assert not visible(text, rendezvous.key)
        assert not any(visible(repr(peer) + str(peer), rendezvous.key) for peer in rendezvous.peers)
        endpoint.close()


def test_no_exception_shows_it() -> None:
    rendezvous, endpoint = make_local_rendezvous(1)[0]
    endpoint.close()
    text = rendezvous.to_json()
    broken: list[Callable[[], object]] = [
        lambda: Rendezvous.from_json(text[:-5]),
        lambda: Rendezvous.from_json(text + "}"),
        lambda: Rendezvous.from_json(text.replace('"rank": 0', '"rank": 5')),
        lambda: Rendezvous.from_json(text.replace('"job_id"', '"other"')),
        lambda: Rendezvous.from_json(text.replace(rendezvous.key.hex(), rendezvous.key.hex() + "zz")),
        lambda: Rendezvous.from_json(text.replace(rendezvous.key.hex(), rendezvous.key.hex() + "00")),
        lambda: dataclasses.replace(rendezvous, key=rendezvous.key + b"x"),
        lambda: Connector(dataclasses.replace(rendezvous, listen_fd=999_999)),
    ]
    for number, attempt in enumerate(broken):
        with pytest.raises((ValueError, RuntimeError)) as raised:
            attempt()
        story = "".join(traceback.format_exception(raised.value))
        assert not visible(story, rendezvous.key), number
        chained: BaseException | None = raised.value
        while chained is not None:
            assert not visible(repr(chained.args) + repr(vars(chained)), rendezvous.key), number
            chained = chained.__cause__ or chained.__context__


def test_a_command_is_given_it_in_a_file_that_has_no_name() -> None:
    rendezvous, endpoint = make_local_rendezvous(1)[0]
    fd, variables = module.offer_to_command(rendezvous)
    with open(fd, "rb"):
        assert not visible(str(variables), rendezvous.key)
        assert "memfd:" in str(Path(f"/proc/self/fd/{fd}").readlink())
    endpoint.close()


def look_around(rank: int) -> list[str]:
    """Works, fails in several ways, and returns every text that this process shows."""
    import pathlib
    import traceback

    import numpy

    from spark_estimator.collectives import arrays, context, ops, rendezvous
    from spark_estimator.errors import HorovodInternalError

    texts = []
    context.init()
    arrays.allreduce(numpy.ones(3))
    try:
        arrays.allreduce(numpy.ones(3 + rank), name="mismatch")
    except HorovodInternalError:
        texts.append(traceback.format_exc())
    received = rendezvous.find_current()
    assert received is not None
    texts += [
        repr(received),
        str(received),
        repr(context.topology()),
        repr(context.settings()),
        repr(vars(context.engine())),
    ]
    texts += [str(received.peers), repr(context._membership), repr(context._connector)]
    texts += [
        pathlib.Path("/proc/self", name).read_bytes().decode(errors="replace")
        for name in ("environ", "cmdline", "comm")
    ]
    ops.barrier()
    context.shutdown()
    return texts


def test_a_running_job_shows_it_nowhere() -> None:
    job = make_local_rendezvous(2)
    key = job[0][0].key
    with Ranks(look_around, job, environ={"HOROVOD_LOG_LEVEL": "trace"}) as ranks:
        outcomes = ranks.wait()
    for outcome in outcomes:
        assert outcome.returned, outcome
        assert not visible(outcome.output, key)
        assert len(outcome.value) == 12
        for text in outcome.value:
            assert not visible(text, key), text


def test_a_job_that_fails_to_start_shows_it_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def join(rank: int) -> None:
        from spark_estimator.collectives import context

        context.init()

    job = make_local_rendezvous(2)
    keys = [job[0][0].key, module.make_key()]
    changed = [
        (dataclasses.replace(rendezvous, key=key), end) for (rendezvous, end), key in zip(job, keys, strict=True)
    ]
    environ = {"HOROVOD_LOG_LEVEL": "trace", "HOROVOD_START_TIMEOUT": "2"}
    with Ranks(join, changed, environ=environ) as ranks:
        outcomes = ranks.wait()
    assert not any(outcome.returned for outcome in outcomes)
    story = str(RanksFailedError("", outcomes)) + caplog.text
    assert "AuthenticationError" in story
    assert "rank 1" in outcomes[0].trace
    assert "rank 0" in outcomes[1].trace
    assert not any(visible(story, key) for key in keys)


def test_settings_hold_no_secret() -> None:
    environ = {"SPARK_ESTIMATOR_JOB_KEY": "the-user's-own-key"}
    settings = Settings.read(environ)
    for text in (settings.describe(environ=environ), repr(settings)):
        assert environ["SPARK_ESTIMATOR_JOB_KEY"] not in text
    assert pickle.loads(pickle.dumps(Settings.read({}))) == Settings()
