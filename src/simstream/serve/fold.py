"""The model as a fold over events: the same events give the same model, bit for bit.

Triplets are learnt one at a time (``block = 1``), where it does not matter how a stream is cut into calls, or
in blocks that end at fixed positions of the log. Nothing here depends on time, on threads or on luck.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .. import DivergedError
from .events import ANSWER, FEEDBACK, LEARNER_KINDS, QUESTION, Event, decode_vector
from .exclusions import excluded_ranges, is_excluded
from .items import ItemStore
from .log import Log
from .settings import Learning
from .tally import Tally

#: Items whose features are counted before the first sparse triplet is learnt from.
_SAMPLE = 10_000

#: Events of the log that are folded at a time.
_BATCH = 512


class _Triplet(NamedTuple):
    """Positions of anchor, positive and negative; the anchor may be a vector instead."""

    anchor: int | bytes
    positive: int
    negative: int
    task: Any
    #: Position of the event that says so.
    said_at: int


class Fold:
    """A learner, what was counted, and the position up to which both are complete.

    Parameters
    ----------
    learning : how to learn
    items : where vectors are
    log : where the items of the beginning are looked up
    learner, tally, position : to go on from; a new learner if None
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
        self._learning, self.items, self._log = learning, items, log
        #: None until something was learnt.
        self.learner = learner
        self.tally = tally or Tally()
        self.position = position
        #: Seconds of computing since the state was made or saved: what a restart from there would take.
        self.seconds = 0.0
        self._pending: list[_Triplet] = []

    @property
    def is_whole(self) -> bool:
        """Whether nothing waits for the end of a block: such a state can be saved."""
        return not self._pending

    def advance(self, events: Iterable[Event], until: int) -> None:
        """Take the events that count, in order, up to a position.

        Parameters
        ----------
        events : feedback, questions and answers after `position` that are not excluded
        until : position up to which there are no more of them
        """
        block, started = self._learning.block, time.thread_time()
        for event in events:
            if block > 1 and (event.position - 1) // block > (self.position - 1) // block:
                self._learn()
            self.position = event.position
            self._take(event)
        if block == 1 or until // block > (self.position - 1) // block:
            self._learn()
        self.position = until
        self.seconds += time.thread_time() - started

    def read_on(self, controls: Iterable[Event], until: int) -> Fold:
        """Take what counts of the log, from here up to a position, some of it at a time; return itself.

        Parameters
        ----------
        controls : retractions and rollbacks so far, in order
        until : position
        """
        ranges = excluded_ranges(controls, until)
        events = self._log.read(self.position, until, kinds=LEARNER_KINDS)
        counting = (event for event in events if not is_excluded(ranges, event.position))
        while batch := list(islice(counting, _BATCH)):
            self.advance(batch, batch[-1].position)
        self.advance([], until)
        return self

    def _take(self, event: Event) -> None:
        body, tally = event.body, self.tally
        task = body.get("task")
        if event.kind == FEEDBACK:
            tally.feedback += 1
            for anchor, positive, negative in body["triplets"]:
                start = event.vector if anchor == 0 and event.vector is not None else anchor
                self._pending.append(_Triplet(start, positive, negative, task, event.position))
        elif event.kind == QUESTION:
            tally.questions += 1
            tally.considered += body["considered"]
            tally.asked += body["considered"] > 0
        elif event.kind == ANSWER and body["winner"] is None:
            tally.skips += 1
        elif event.kind == ANSWER:
            tally.answers += 1
            anchor, *candidates = body["items"]
            winner = body["winner"]
            triplet = _Triplet(
                anchor, candidates[winner], candidates[1 - winner], task, event.position
            )
            if body["random"]:
                self._score(triplet)
            self._pending.append(triplet)

    def _score(self, triplet: _Triplet) -> None:
        """Judge an answer before it is learnt from."""
        if self._learning.block == 1:
            self._learn()
        rows = self._rows([triplet])
        anchor, positive, negative = (
            (rows[i].toarray()[0] if sp.issparse(rows) else rows[i]).astype(np.float64)
            for i in range(3)
        )
        baseline = anchor @ positive - anchor @ negative
        learnt = baseline if self.learner is None else self._margin(rows, triplet.task)
        self.tally.add_random_answer(
            learnt_is_right=bool(learnt > 0), baseline_is_right=bool(baseline > 0)
        )

    def _margin(self, rows: Any, task: Any) -> float:
        self.learner.preprocessor = rows
        extra = ([task],) if self._learning.has_tasks else ()
        return float(self.learner.triplet_margin(np.array([[0, 1, 2]]), *extra)[0])

    def _rows(self, triplets: list[_Triplet]) -> Any:
        """Anchor, positive, negative of each triplet, one after the other."""
        if not any(isinstance(triplet.anchor, bytes) for triplet in triplets):
            return self.items.vectors(
                [position for triplet in triplets for position in triplet[:3]]  # type: ignore[misc]
            )
        parts = []
        for triplet in triplets:
            if isinstance(triplet.anchor, bytes):
                parts.append(self.items.rows_of([decode_vector(triplet.anchor)]))
                parts.append(self.items.vectors(triplet[1:3]))
            else:
                parts.append(self.items.vectors([triplet.anchor, *triplet[1:3]]))
        return sp.vstack(parts, "csr") if sp.issparse(parts[0]) else np.concatenate(parts)

    def _learn(self) -> None:
        """Learn from what waits, in pieces that end where the curve of losses gets a point."""
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
        """A learner whose storage is laid out by the items before the first triplet.

        Never by those up to where the log was read: that depends on when it was read.
        """
        learner = self._learning.new_learner()
        rows = self._rows([first])
        if sp.issparse(rows):
            events = self._log.read(0, first.said_at, kinds=("item",), limit=_SAMPLE)
            vectors = [decode_vector(event.vector) for event in events if event.vector]
            rows = self.items.rows_of(vectors)
        learner.preprocessor = rows
        learner.prepare()
        return learner
