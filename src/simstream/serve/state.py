"""The state of a service, computed from the log alone: a learner and counts. Snapshots save it.

The same events give the same state, bit for bit. Triplets are learnt one at a time (``block = 1``), where it
makes no difference how the stream is cut into calls, or in blocks that end at fixed positions of the log.
Nothing here depends on time, threads or chance.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.stats import binomtest

from .. import DivergedError, ModelFileError, load, read_header
from .events import (
    LEARNER_KINDS,
    Event,
    EventKind,
    can_start_from,
    decode_vector,
)
from .items import ItemStore
from .log import Log
from .settings import Learning

logger = logging.getLogger("simstream.serve")

#: The recent accuracy covers this many answers to random questions.
_RECENT = 200

#: Points of the loss curve; then neighbouring points are averaged.
_MOST_POINTS = 256

#: Items whose features are counted before the first sparse triplet is learnt.
_SAMPLE = 10_000

#: Events of the log that are read at a time.
_BATCH = 512


# -- counts -----------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts over the events so far.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add_random_answer(learnt_is_right=True, baseline_is_right=False)
    >>> tally.accuracy()["learnt"]["accuracy"], tally.accuracy()["baseline"]["accuracy"]
    (1.0, 0.0)
    """

    #: Triplets learnt, and triplets left out because learning would have diverged.
    triplets: int = 0
    diverged: int = 0
    #: Feedback events; questions shown, answered and skipped.
    feedback: int = 0
    questions: int = 0
    answers: int = 0
    skips: int = 0
    #: Triplets considered for active questions, and the number of these questions.
    considered: int = 0
    asked: int = 0
    #: Answers to random questions, and how many of them each similarity predicted.
    random: int = 0
    learnt_right: int = 0
    baseline_right: int = 0
    #: The most recent of these: 2 * learnt is right + baseline is right.
    recent: list[int] = field(default_factory=list)
    #: Mean loss of each run of `stride` triplets, each before it was learnt.
    stride: int = 8
    losses: list[float] = field(default_factory=list)
    loss_before: float = 0.0

    def add_random_answer(self, *, learnt_is_right: bool, baseline_is_right: bool) -> None:
        """Count an answer to a random question, predicted before it is learnt from."""
        self.random += 1
        self.learnt_right += learnt_is_right
        self.baseline_right += baseline_is_right
        self.recent = [*self.recent[-_RECENT + 1 :], 2 * learnt_is_right + baseline_is_right]

    def triplets_to_next_point(self) -> int:
        """Triplets still to be learnt before the next point of the loss curve."""
        return self.stride - self.triplets % self.stride

    def add_triplets(self, count: int, total_loss: float) -> None:
        """Count triplets; `total_loss` is the sum of the losses of all triplets so far."""
        self.triplets += count
        if not count or self.triplets % self.stride:  # a point only where something was learnt
            return
        self.losses.append((total_loss - self.loss_before) / self.stride)
        self.loss_before = total_loss
        if len(self.losses) == _MOST_POINTS:
            pairs = zip(self.losses[::2], self.losses[1::2], strict=True)
            self.losses = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2

    def accuracy(self) -> dict[str, Any]:
        """Share of answers to random questions that each similarity predicted, with 95 % intervals."""
        recent = len(self.recent)
        return {
            "random_answers": self.random,
            "learnt": _share(self.learnt_right, self.random),
            "baseline": _share(self.baseline_right, self.random),
            "recent_answers": recent,
            "recent_learnt": _share(sum(both >= 2 for both in self.recent), recent),
            "recent_baseline": _share(sum(both % 2 for both in self.recent), recent),
        }

    def query_ratio(self) -> float | None:
        """Share of the candidate questions that were asked."""
        return self.asked / self.considered if self.considered else None

    def copy(self) -> Tally:
        """An independent copy."""
        return replace(self, recent=self.recent.copy(), losses=self.losses.copy())


def _share(right: int, total: int) -> dict[str, float | None]:
    if not total:
        return {"accuracy": None, "low": None, "high": None}
    low, high = binomtest(right, total).proportion_ci(method="wilson")
    return {"accuracy": right / total, "low": float(low), "high": float(high)}


# -- learning ---------------------------------------------------------------------------------


class _Triplet(NamedTuple):
    """Positions of anchor, positive and negative; the anchor may be an encoded vector instead."""

    anchor: int | bytes
    positive: int
    negative: int
    task: Any
    #: Position of the event it comes from.
    said_at: int


class State:
    """A learner and counts, complete up to a position of the log.

    Parameters
    ----------
    learning : how to learn
    items : where vectors are looked up
    log : where events are read
    learner, tally, position : what to continue from; nothing learnt yet by default
    """

    def __init__(
        self,
        learning: Learning,
        items: ItemStore,
        log: Log,
        learner: Any = None,
        tally: Tally | None = None,
        position: int = 0,
    ) -> None:
        self._learning, self._items, self._log = learning, items, log
        #: None until something was learnt.
        self.learner = learner
        self.tally = tally or Tally()
        self.position = position
        #: Seconds of computing since this state was made or saved: what repeating it would take.
        self.seconds = 0.0
        self._pending: list[_Triplet] = []

    @property
    def is_whole(self) -> bool:
        """Whether nothing waits for the end of a block: only then can the state be saved."""
        return not self._pending

    def advance(self, events: Iterable[Event], until: int) -> None:
        """Apply the next events.

        Parameters
        ----------
        events : feedback, questions and answers after `position` that are not excluded, in order
        until : position up to which there are no more of them
        """
        block, started = self._learning.block, time.thread_time()
        for event in events:
            if block > 1 and (event.position - 1) // block > (self.position - 1) // block:
                self._learn()
            self.position = event.position
            self._apply(event)
        if block == 1 or until // block > (self.position - 1) // block:
            self._learn()
        self.position = until
        self.seconds += time.thread_time() - started

    def read_on(self, until: int) -> State:
        """Apply the events of the log that count after a position, up to there; return self."""
        events = self._log.read_counting(self.position, until, LEARNER_KINDS)
        while batch := list(islice(events, _BATCH)):
            self.advance(batch, batch[-1].position)
        self.advance([], until)
        return self

    def _apply(self, event: Event) -> None:
        body, tally = event.body, self.tally
        task = body.get("task")
        if event.kind == EventKind.FEEDBACK:
            tally.feedback += 1
            for anchor, positive, negative in body["triplets"]:
                start = event.vector if anchor == 0 and event.vector is not None else anchor
                self._pending.append(_Triplet(start, positive, negative, task, event.position))
        elif event.kind == EventKind.QUESTION:
            tally.questions += 1
            tally.considered += body["considered"]
            tally.asked += body["considered"] > 0
        elif event.kind == EventKind.ANSWER and body["winner"] is None:
            tally.skips += 1
        elif event.kind == EventKind.ANSWER:
            tally.answers += 1
            anchor, *candidates = body["items"]
            winner = body["winner"]
            triplet = _Triplet(
                anchor, candidates[winner], candidates[1 - winner], task, event.position
            )
            if body["random"]:
                self._predict(triplet)
            self._pending.append(triplet)

    def _predict(self, triplet: _Triplet) -> None:
        """Count whether each similarity predicts an answer, before it is learnt from."""
        if self._learning.block == 1:
            self._learn()
        rows = self._rows([triplet])
        anchor, positive, negative = (
            (rows[i].toarray()[0] if sp.issparse(rows) else rows[i]).astype(np.float64)
            for i in range(3)
        )
        learnt = baseline = float(anchor @ positive - anchor @ negative)
        if self.learner is not None:
            self.learner.preprocessor = rows
            tasks = ([triplet.task],) if self._learning.has_tasks else ()
            learnt = float(self.learner.triplet_margin(np.array([[0, 1, 2]]), *tasks)[0])
        self.tally.add_random_answer(learnt_is_right=learnt > 0, baseline_is_right=baseline > 0)

    def _rows(self, triplets: list[_Triplet]) -> Any:
        """Vectors of anchor, positive and negative of each triplet in turn."""
        if not any(isinstance(triplet.anchor, bytes) for triplet in triplets):
            return self._items.vectors(
                [position for triplet in triplets for position in triplet[:3]]  # type: ignore[misc]
            )
        parts = []
        for triplet in triplets:
            if isinstance(triplet.anchor, bytes):
                parts.append(self._items.rows_of([decode_vector(triplet.anchor)]))
                parts.append(self._items.vectors(triplet[1:3]))
            else:
                parts.append(self._items.vectors([triplet.anchor, *triplet[1:3]]))
        return sp.vstack(parts, "csr") if sp.issparse(parts[0]) else np.concatenate(parts)

    def _learn(self) -> None:
        """Learn the pending triplets, in pieces that end at the points of the loss curve."""
        if self._pending and self.learner is None:
            self.learner = self._new_learner(self._pending[0])
        begin = 0
        while begin < len(self._pending):
            count = min(self.tally.triplets_to_next_point(), len(self._pending) - begin)
            self._learn_piece(self._pending[begin : begin + count])
            begin += count
        self._pending = []

    def _learn_piece(self, triplets: list[_Triplet]) -> None:
        learner = self.learner
        while triplets:
            before = learner.n_rounds_
            learner.preprocessor = self._rows(triplets)
            index = np.arange(3 * len(triplets)).reshape(-1, 3)
            try:
                if self._learning.has_tasks:
                    learner.partial_fit(index, tasks=[triplet.task for triplet in triplets])
                else:
                    learner.partial_fit(index)
                done = len(triplets)
            except DivergedError:  # the matrix is as it was before that triplet
                done = learner.n_rounds_ - before
                self.tally.diverged += 1
            self.tally.add_triplets(done, learner.average_loss_ * learner.n_rounds_)
            triplets = triplets[done + 1 :]
        learner.preprocessor = None

    def _new_learner(self, first: _Triplet) -> Any:
        """A learner whose storage is laid out by the items added before the first triplet.

        Never by all items read so far: their number depends on when the log was read.
        """
        learner = self._learning.new_learner()
        rows = self._rows([first])
        if sp.issparse(rows):
            events = self._log.read(0, first.said_at, kinds=("item",), limit=_SAMPLE)
            vectors = [decode_vector(event.vector) for event in events if event.vector]
            rows = self._items.rows_of(vectors)
        learner.preprocessor = rows
        learner.prepare()
        return learner


# -- snapshots --------------------------------------------------------------------------------

_NAME = re.compile(r"model-(\d{12})\.safetensors")


class Snapshots:
    """Saved states, so that a restart need not read the whole log.

    The log alone is enough: a file that is damaged or was made with other settings is refused, and an older
    one or the log is used.

    Parameters
    ----------
    folder : created if it does not exist
    learning : the settings that snapshots must have been made with
    """

    def __init__(self, folder: Path, learning: Learning) -> None:
        self._folder, self._learning = folder, learning
        settings = json.dumps(learning.as_json(), sort_keys=True)
        self._digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        #: Files refused so far.
        self.n_refused = 0

    def path(self, position: int) -> Path:
        """The file of a position."""
        return self._folder / f"model-{position:012d}.safetensors"

    def positions(self) -> list[int]:
        """Positions that have a file, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def save(self, position: int, learner: Any, tally: Tally) -> None:
        """Write a snapshot atomically."""
        extra = {"position": position, "learning": self._digest, "tally": asdict(tally)}
        learner.save(self.path(position), extra=extra)

    def load(self, position: int) -> tuple[Any, Tally] | None:
        """Learner and counts of a position; a file that cannot be trusted is renamed and gives None."""
        path = self.path(position)
        try:
            learner = load(path)  # verifies the checksum of header and arrays
            extra = read_header(path)["extra"]
            if extra["position"] != position or extra["learning"] != self._digest:
                raise ModelFileError(f"{path}: made at another position or with other settings")
            return learner, Tally(**extra["tally"])
        except (OSError, ModelFileError, KeyError, TypeError) as error:
            self.n_refused += 1
            logger.warning("snapshot at position %d refused: %s", position, error)
            if path.exists():
                path.replace(path.with_suffix(".bad"))
            return None

    def resume(self, items: ItemStore, log: Log, position: int) -> State | None:
        """The state after a position, continued from the newest usable snapshot; None without one."""
        controls = log.controls(position)
        for start in reversed(self.positions()):
            if can_start_from(controls, start, position):
                saved = self.load(start)
                if saved is not None:
                    return State(self._learning, items, log, *saved, start).read_on(position)
        return None

    def thin_out(self, keep: set[int]) -> None:
        """Delete files so that their number grows with the logarithm of the log's length.

        Parameters
        ----------
        keep : positions to keep in any case
        """
        positions = self.positions()
        wanted = to_keep(positions) | keep
        for position in positions:
            if position not in wanted:
                self.path(position).unlink(missing_ok=True)


def to_keep(positions: list[int]) -> set[int]:
    """The newest three positions, and the fewer of the older ones the older they are.

    Examples
    --------
    >>> sorted(to_keep(list(range(0, 10_000, 1000))))
    [0, 3000, 6000, 7000, 8000, 9000]
    """
    kept = set(positions[-3:])
    newest = positions[-1] if positions else 0
    last_age = None
    for position in reversed(positions[:-3]):
        age = newest - position
        if last_age is None or age >= 2 * last_age:
            kept.add(position)
            last_age = age
    return kept | set(positions[:1])
