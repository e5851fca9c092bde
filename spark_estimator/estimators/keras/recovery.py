"""Recovery of a `KerasEstimator`'s training within a step, in a job that replaces lost ranks (`launch...replacing`).

Promises
--------
- The loss of a rank costs the step in progress, or the validation in progress. A new process takes the lost rank; it
  reads that rank's rows from the files, and gets all else from its peers, not from a checkpoint.
- The history and the model are those of a training without a loss, bit for bit, unless something draws from
  TensorFlow's own generators, whose state cannot be read. (What a lossy compression has left out of gradients is not
  among what peers keep.)
- After a loss, callbacks get ``on_train_begin`` again on all ranks. Then their plain attributes (numbers, strings,
  arrays, and collections of these) are those of the last step; those of a new process come from another rank. So
  `EarlyStopping` and `ReduceLROnPlateau` continue to count. Other attributes are lost with a rank.
- An epoch's validation and ``on_epoch_end`` are repeated if the loss came before all ranks had returned from it.
- If no process replaces the lost rank in time, the others continue without it, as in `estimators.torch.recovery`: they
  divide the rest of the epoch, the learning rate is multiplied by the new number of ranks and divided by the old one,
  and the epoch's losses and metrics count the rows of the lost rank. The new rank 0 calls ``checkpoint_callback``. When
  a process joins later, the rest of the epoch is divided again.

Unlike `torch.elastic.steps`, which lets a rank pass into the change of parameters only when all can do so, this keeps a
copy of the variables: a compiled step exchanges gradients and applies them without a stop in between. The copy is on
the variables' device.

Order of events in a step
-------------------------
1. Keras' step, in which gradients are averaged and applied.
2. Each rank copies its variables, sends what it alone has to the next host's rank, and waits for the agreement
   (`elastic.peer_copies`). A rank that has passed it has committed the step.

What fails how
--------------
- A rank is lost before any other has passed the agreement: all return to their copies, and repeat the step.
- Some have passed the agreement: the others take weights and optimizer from one of these, and what they alone have
  from their own step.
- The rank with the copy of a lost one is lost with it: the new process has newly seeded generators, and the epoch's
  losses and metrics lack the rows of that rank before the loss. A warning reports it.
- Statistics of more than 16 MiB are not sent: a new process gets those of another rank.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.elastic import rejoin, run_fn
from spark_estimator.elastic.peer_copies import PeerCopies
from spark_estimator.elastic.resumption import Facts, RecoveryState, Resumption, resumption
from spark_estimator.elastic.state import State
from spark_estimator.estimators.epoch_division import Division
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.loop import Loop
from spark_estimator.estimators.persistence.checkpoint import TrainingProgress
from spark_estimator.estimators.rank_run import KnownRun, RankRun, ReadRows
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.keras.device_copies import DeviceCopies
from spark_estimator.keras.elastic import with_engine_errors

_MOST_STATISTICS_BYTES = 16 << 20


class RecoverableKerasTraining(Protocol):
    """The training that recovers: `training.KerasTraining`."""

    progress: TrainingProgress
    loop: Loop
    callbacks: KerasCallbacks

    def begin(self, known: KnownRun | None, read: ReadRows) -> RankRun:
        """Its input. A collective."""

    def build(self, beginning: RankRun) -> None:
        """Makes the model and the callbacks of this process."""

    def take(self, beginning: RankRun) -> int:
        """Takes over the checkpoint. A collective."""

    def run(
        self, beginning: RankRun, steps: int, commits: KerasCommits | None, legs: tuple[Mapping[str, Any], ...]
    ) -> TrainResult | None:
        """Trains to the end. A collective."""


@dataclass(frozen=True)
class Position:
    """Where a training is, the same on all ranks.

    Attributes:
        run: its identity and seed.
        size: its ranks at the beginning.
        division: of the present epoch.
        history, best: of the epochs that have ended, as in `TrainingProgress`.
        steps: of the present ranks in the present epoch that are done.
        has_begun_epoch: the callbacks had ``on_epoch_begin`` of the present epoch.
        ended: a callback has ended the training.
        saved: what `checkpoint_callback` of rank 0 has kept.
        rate_factor: the number of ranks, by which the learning rate is multiplied.
    """

    run: KnownRun
    size: int
    division: Division
    history: tuple[dict[str, Any], ...] = ()
    best: Any = field(default=None, repr=False)
    steps: int = 0
    has_begun_epoch: bool = False
    ended: bool = False
    saved: dict[str, Any] = field(default_factory=dict, repr=False)
    rate_factor: int = 1

    @property
    def is_within_epoch(self) -> bool:
        """Whether steps of the present epoch are done."""
        return self.steps > 0 or bool(self.division.earlier)


@dataclass(frozen=True)
class _Commit:
    """What one rank has kept of a step.

    Attributes:
        step: its number.
        position: of the training.
        values: copies of the variables, by `DeviceCopies`.
        rank_state: what this rank alone has, packed.
        attributes: of the callbacks.
    """

    step: int
    position: Position
    values: list[Any] = field(repr=False)
    rank_state: bytes = field(repr=False)
    attributes: list[dict[str, Any]] = field(repr=False)


class KerasCommits(State):
    """The commits of a training, of which all ranks continue at the last one; see the module.

    Attributes:
        position: where the training is; None: it has not begun on any rank.
        attributes: of the callbacks at that place, by `KerasCallbacks.attributes`; None as above.
    """

    def __init__(self) -> None:
        super().__init__(broadcast_object, context.rank)
        self._state = RecoveryState.FRESH
        self._last: _Commit | None = None
        self._next: _Commit | None = None  # which waits for the agreement, or has not got it
        self._peers = PeerCopies()
        self._facts: list[Facts] = []
        self._at = Resumption(0, 0, from_full=False, spread=True)
        self.position: Position | None = None
        self.attributes: list[dict[str, Any]] | None = None
        self._loop: Loop
        self._callbacks: KerasCallbacks
        self._copies: DeviceCopies | None = None

    @property
    def has_begun_epoch(self) -> bool:
        """Whether the callbacks had ``on_epoch_begin`` of the present epoch."""
        return self._position.has_begun_epoch

    @property
    def has_ended(self) -> bool:
        """Whether a callback has ended the training."""
        return self._position.ended

    @property
    def _position(self) -> Position:
        assert self.position is not None
        return self.position

    def step(self, done: int) -> None:
        """`done` batches of the epoch are done. A collective.

        Raises:
            HostsUpdatedInterrupt: a rank joins in the place of a lost one, before the next batch.
        """
        self.position = replace(self._position, steps=done, has_begun_epoch=True)
        self.commit()
        if context.size() < self._position.size:
            super().check_host_updates()

    def divide(self, present: Mapping[str, Any]) -> Position:
        """Divides the rest of the epoch among the ranks of a new round, which get their rate. Returns the place. A
        collective.

        Args:
            present: `Division.present`.
        """
        before = self._position
        division, size = before.division.next(before.steps, present), context.size()
        self._loop.take_size(before.rate_factor)
        self._callbacks.take_size(before.rate_factor)
        if division != before.division or size != before.rate_factor:
            steps = before.steps if division == before.division else 0
            self.position = replace(before, division=division, steps=steps, rate_factor=size)
            self.commit()
        return self._position

    def epoch(self, progress: TrainingProgress, *, ended: bool) -> None:
        """An epoch is over. A collective."""
        self.position = replace(
            self._position,
            division=Division((), self._position.division.present),
            history=tuple(progress.history),
            best=progress.best,
            steps=0,
            has_begun_epoch=False,
            ended=ended,
            saved=saved_by(self._callbacks),
        )
        self.commit()

    def save(self) -> None:
        """KerasCommits the step that was done. A collective.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        assert self._last is not None
        self._next = self._made(self._last.step + 1)
        self._peers.agree(self._next.rank_state, self._last.step)
        self._last = self._next

    def restore(self) -> None:
        """A rank was lost. The variables return in `resume`."""
        if self._last is not None:
            self._state = RecoveryState.LOST

    def keep_steps(self) -> None:
        """Each of its commits is of a step."""

    def check_host_updates(self) -> None:
        """Ranks join at no other commit than `step`."""

    def sync(self) -> None:
        """Agrees on the commit at which to continue: sets `position` and `attributes`. A collective."""
        step = -1 if self._last is None else self._last.step
        mine = Facts(self._state, step, self._peers.rank, self._peers.size)
        self._facts = allgather_object(mine, name="elastic.step.facts")
        self._at = resumption(self._facts)
        commit = self._commit_of(self._at.step)
        sent = None if commit is None else (commit.position, commit.attributes)
        if self._at.spread:
            sent = broadcast_object(sent, self._at.root)
        self.position, self.attributes = sent or (None, None)
        if commit is not None:
            self.attributes = commit.attributes

    def resume(self, loop: Loop, callbacks: KerasCallbacks) -> None:
        """Restores variables and callbacks as of the commit on which `sync` has agreed. A collective.

        Before the first commit it gives all ranks the variables of rank 0, and commits what they have.
        """
        self._loop, self._callbacks = loop, callbacks
        if self._copies is None:
            self._copies = DeviceCopies(loop.stepped, loop.model)
        commit = self._commit_of(self._at.step)
        if commit is not None:
            self._copies.restore(commit.values)
        if self._at.spread:
            loop.broadcast(self._at.root)
            if commit is not None:
                self._copies.restore(commit.values)  # statistics differ between the ranks
        content = self._peers.recovered(self._facts, self._at)
        of_lost_ranks = self._peers.inherited(self._facts, self._at)
        if content is None and commit is not None:
            content = commit.rank_state
        if self.attributes is not None:
            callbacks.take_attributes(self.attributes)
            callbacks.take(self._position.saved)
            state = None if content is None else _unpacked(content)
            loop.resume(state, within=self._position.is_within_epoch, inherited=list(map(_unpacked, of_lost_ranks)))
        self._last, self._next = self._made(self._at.step), None
        self._state = RecoveryState.COMMITTED
        self._peers.begin(self._last.rank_state, self._at.step)

    def _commit_of(self, step: int) -> _Commit | None:
        return next((commit for commit in (self._last, self._next) if commit is not None and commit.step == step), None)

    def _made(self, step: int) -> _Commit:
        assert self._copies is not None
        rank_state = pickle.dumps(self._loop.rank_state(_MOST_STATISTICS_BYTES), protocol=pickle.HIGHEST_PROTOCOL)
        return _Commit(step, self._position, self._copies.take(), rank_state, self._callbacks.attributes())


def _unpacked(rank_state: bytes) -> dict[str, Any]:
    state: dict[str, Any] = pickle.loads(rank_state)  # noqa: S301  # from a rank of this job
    return state


def saved_by(callbacks: KerasCallbacks) -> dict[str, Any]:
    """What rank 0's `checkpoint_callback` has kept, on all ranks. A collective, if there is such a callback."""
    return dict(broadcast_object(callbacks.state(), 0)) if callbacks.saves_best else {}


def recovered(training: RecoverableKerasTraining, spec: TrainSpec) -> TrainResult | None:
    """Trains in an elastic job. Returns the result on rank 0."""
    process = RecoveringProcess(spec)
    is_built = False

    @with_engine_errors
    def rounds(commits: KerasCommits) -> TrainResult | None:
        nonlocal is_built
        position = commits.position
        process.joins([] if position is None else position.history, first=position is None)
        beginning = training.begin(None if position is None else position.run, process.read)
        present = beginning.rows.leg(spec.batch_size, 0)
        if not is_built:
            training.build(beginning)
            is_built = True
        training.callbacks.take_rank()
        if position is None:
            steps = training.take(beginning)
            progress = training.progress
            saved = saved_by(training.callbacks)
            commits.position = Position(
                beginning.known,
                process.most_ranks(),
                Division((), present),
                tuple(progress.history),
                progress.best,
                steps,
                saved=saved,
                rate_factor=context.size(),
            )
        else:
            training.progress.history, training.progress.best = list(position.history), position.best
            assert commits.attributes is not None
            training.callbacks.take_attributes(commits.attributes)
        training.callbacks.on_train_begin()
        commits.resume(training.loop, training.callbacks)
        position = commits.divide(present)
        return training.run(beginning, position.steps, commits, position.division.earlier)

    return run_fn(rounds, rejoin, "step")(KerasCommits())
