"""The loop that learns piece by piece, keeps people informed, and saves checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..data import FormatError
from .algorithms import is_distance
from .sources import Source

#: Work between two moments at which a request to stop is heard.
_SECONDS_PER_PIECE = 0.2
_FIRST_PIECE = 32
_LARGEST_PIECE = 1_000_000

#: Reading the matrix to count its zeros may take this share of the time, at most this often, and not
#: from a matrix that would take gigabytes to read.
_SHARE_OF_READING = 0.05
_SECONDS_BETWEEN_READINGS = 1.0
_LARGEST_READING = 250_000_000


class Snapshot(NamedTuple):
    """How far learning has come."""

    #: Triplets or pairs learnt in this run.
    n_learnt: int
    #: The same per second, waiting for input not counted.
    rate: float
    average_loss: float
    mistake_rate: float
    #: Share of zeros of the matrix when it was last read, or None.
    sparsity: float | None
    n_bad: int


class Outcome(NamedTuple):
    """What a run has done."""

    n_learnt: int
    #: Time spent learning, waiting for input not counted.
    seconds: float
    #: Tuples per second, without the first piece where there are more: it may have been compiling.
    rate: float


class Pace:
    """How many tuples make a piece of about `_SECONDS_PER_PIECE`, and how fast learning is."""

    def __init__(self) -> None:
        # Tuples and seconds: of the first piece, and of all others.
        self._pieces = [(0, 0.0), (0, 0.0)]
        self._target = _FIRST_PIECE

    def wish(self) -> int:
        """Length of the next piece."""
        return self._target

    def note(self, n: int, seconds: float) -> None:
        """Take notice of a piece that was learnt."""
        which = 0 if self._pieces[0] == (0, 0.0) else 1
        before = self._pieces[which]
        self._pieces[which] = (before[0] + n, before[1] + seconds)
        fitting = int(_SECONDS_PER_PIECE * n / max(seconds, 1e-9))
        # Slowly up, since a short piece says little; down at once.
        self._target = max(1, min(fitting, 4 * self._target, _LARGEST_PIECE))

    def outcome(self) -> Outcome:
        """What was learnt so far."""
        first, others = self._pieces
        n, seconds = others if others[0] else first
        return Outcome(first[0] + others[0], first[1] + others[1], n / seconds if seconds else 0.0)


class SparsityGauge:
    """Reads the sparsity now and then: often enough to watch, seldom enough not to cost.

    That of a distance is not read: it takes all eigenvectors, and there are hardly ever zeros to see.
    """

    def __init__(self, model: Any) -> None:
        self.value: float | None = None
        rows, columns = model.shape_
        self._is_affordable = rows * columns <= _LARGEST_READING and not is_distance(model)
        self._next = time.perf_counter() + _SECONDS_BETWEEN_READINGS

    def read(self, model: Any, at_once: bool = False) -> float | None:
        """The sparsity, or what it was a while ago."""
        now = time.perf_counter()
        if self._is_affordable and (at_once or now >= self._next):
            self.value = model.sparsity_
            cost = time.perf_counter() - now
            self._next = now + max(_SECONDS_BETWEEN_READINGS, cost / _SHARE_OF_READING)
        return self.value


def learn(
    model: Any,
    source: Source,
    *,
    feed: Callable[..., Any],
    report: Callable[[Snapshot], None] | None,
    save: Callable[[], None],
    checkpoint_every: int | None = None,
) -> Outcome:
    """Learn all pieces of a source.

    Parameters
    ----------
    model : learner with its items
    source : Source
    feed : function of the parts of a piece
        Lets the model learn it.
    report : function of a Snapshot, or None
        Called after every piece.
    save : function without arguments
        Writes a checkpoint: called every `checkpoint_every` tuples, and before an error of the input
        is passed on, so that what was learnt until then is not lost.
    checkpoint_every : int, optional

    Returns
    -------
    Outcome
    """
    pace = Pace()
    gauge = SparsityGauge(model)
    n_unsaved = 0

    def wish() -> int:
        left = checkpoint_every - n_unsaved if checkpoint_every else _LARGEST_PIECE
        return max(1, min(pace.wish(), left))

    def snapshot(is_last: bool) -> Snapshot:
        so_far = pace.outcome()
        sparsity = gauge.read(model, at_once=is_last)
        losses = model.average_loss_, model.mistake_rate_
        return Snapshot(so_far.n_learnt, so_far.rate, *losses, sparsity, source.n_bad)

    try:
        for piece in source.pieces(wish):
            started = time.perf_counter()
            feed(*piece)
            pace.note(len(piece[0]), time.perf_counter() - started)
            n_unsaved += len(piece[0])
            if checkpoint_every and n_unsaved >= checkpoint_every:
                save()
                n_unsaved = 0
            if report is not None:
                report(snapshot(is_last=False))
    except FormatError:
        if n_unsaved:
            save()
        raise
    if report is not None and pace.outcome().n_learnt:
        report(snapshot(is_last=True))
    return pace.outcome()
