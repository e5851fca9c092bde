"""The result rows of a Spark job: a manifest for each rank, and values in chunks; and their verification.

If the driver's Java runs out of memory while it collects rows, Spark may return none of them without an error. So every
rank's manifest, every chunk, and the size and the hash of the value are checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_estimator.errors import ResultError
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.peer_json import parse_object

SCHEMA = "partition int, rank int, kind string, seq int, data binary"
CHUNK_BYTES = 1 << 20
_MANIFEST, _CHUNK = "manifest", "result"


class ResultRow(NamedTuple):
    """One row, with the columns of `SCHEMA`."""

    partition: int
    rank: int
    kind: str
    seq: int
    data: bytes


@dataclass(frozen=True)
class RankManifest:
    """The report of one rank's supervisor at its end.

    Attributes:
        bytes, sha256: of the value that this rank sent; 0 and '' for none.
        lines: its last lines, if no other way to the driver was available: "stdout", "stderr" or "" for a message,
            text.
        left_out: how many lines came before those.
        logged: how many are in its log file.
        log_problem: why the log file could not be written; '': it could.
    """

    rank: int
    host: str
    pid: int
    exit_code: int
    bytes: int
    sha256: str
    failure: FailureReport | None
    lines: list[tuple[str, str]] = field(default_factory=list)
    left_out: int = 0
    logged: int = 0
    log_problem: str = ""


def make_rows(outcome: Outcome, partition: int, unsent: Mapping[str, Any] | None = None) -> Iterator[ResultRow]:
    """Yield the rows in which a task returns how its worker ended.

    Args:
        unsent: the fields of `RankManifest` on lines that did not reach the driver.
    """
    value = outcome.value or b""
    manifest: dict[str, Any] = {
        "rank": outcome.rank,
        "host": outcome.host,
        "pid": outcome.pid,
        "exit_code": outcome.exit_code,
        "bytes": len(value),
        "sha256": outcome.sha256,
        "failure": None if outcome.failure is None else outcome.failure.to_dict(),
        **(unsent or {}),
    }
    yield ResultRow(partition, outcome.rank, _MANIFEST, 0, json.dumps(manifest).encode())
    for seq, start in enumerate(range(0, len(value), CHUNK_BYTES)):
        yield ResultRow(partition, outcome.rank, _CHUNK, seq, value[start : start + CHUNK_BYTES])


def read_manifests(rows: Iterable[ResultRow]) -> list[RankManifest]:
    """Return the manifests among `rows`, in rank order. Raises ResultError: one of them is malformed."""
    manifests = []
    for row in rows:
        if row.kind != _MANIFEST:
            continue
        try:
            fields = parse_object(bytes(row.data))
            if fields["failure"] is not None:
                fields["failure"] = FailureReport.from_dict(fields["failure"])
            fields["lines"] = [(str(stream), str(text)) for stream, text in fields.get("lines", ())]
            manifests.append(RankManifest(**fields))
        except (ValueError, TypeError, KeyError) as error:
            raise ResultError(f"the manifest of partition {row.partition} cannot be read: {error!r}") from error
    return sorted(manifests, key=lambda manifest: manifest.rank)


def verify_values(rows: Sequence[ResultRow], size: int, result_ranks: Collection[int]) -> list[bytes]:
    """Return the pickled values of some ranks, once everything that `size` ranks must have sent is here and whole.

    Args:
        result_ranks: the ranks whose values must be here.

    Returns:
        [result_ranks] values, in rank order.

    Raises:
        ResultError: something is missing; the text names it and the likely reason.
    """
    if not rows:
        raise ResultError(
            "Spark reported success but returned no rows: the driver's JVM most likely ran out of memory while it "
            "collected them. Raise spark.driver.memory, or return a smaller value."
        )
    manifests = read_manifests(rows)
    ranks = [manifest.rank for manifest in manifests]
    if ranks != list(range(size)):
        raise ResultError(
            f"Spark returned the manifests of ranks {ranks}; those of ranks 0 to {size - 1} were expected."
        )
    chunks: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in ranks}
    for row in rows:
        if row.kind == _CHUNK:
            chunks[row.rank].append((row.seq, row.data))
    return [_join_chunks(manifests[rank], sorted(chunks[rank])) for rank in sorted(result_ranks)]


def verify_value(rows: Sequence[ResultRow]) -> bytes:
    """Return the pickled value of one rank, to which all these rows belong.

    Raises:
        ResultError: it is not here, or not whole.
    """
    manifests = read_manifests(rows)
    if len(manifests) != 1:
        raise ResultError(f"Spark returned {len(manifests)} manifests of that rank, and not 1.")
    return _join_chunks(manifests[0], sorted((row.seq, row.data) for row in rows if row.kind == _CHUNK))


def _join_chunks(manifest: RankManifest, chunks: Sequence[tuple[int, bytes]]) -> bytes:
    """Join the value of one rank, and check it by that rank's manifest; no pickle is empty, so neither is a value."""
    value = b"".join(bytes(data) for _, data in chunks)
    if not value or len(value) != manifest.bytes or hashlib.sha256(value).hexdigest() != manifest.sha256:
        raise ResultError(
            f"rank {manifest.rank}'s value is incomplete or damaged: {len(value)} of {manifest.bytes} bytes in "
            f"{len(chunks)} chunks, or altered. If the driver's JVM is short of memory, raise spark.driver.memory."
        )
    return value
