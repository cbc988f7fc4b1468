"""The state of a service, computed from the log alone: items, a learner and counts.

The same events give the same state, bit for bit. Triplets are learnt one at a time (``block = 1``), where it
makes no difference how the stream is cut into calls, or in blocks that end at fixed positions of the log.
Nothing here depends on time, threads or chance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.stats import binomtest

from .. import DivergedError, catalogue
from .._engines import FEWEST_ITEMS
from ..persistence import upgraded_params
from ..search import ExactIndex, ExactView
from ..similarity.base import all_products
from ..similarity.bilinear import Bilinear
from ..validation import stacked
from .events import (
    LEARNER_KINDS,
    Event,
    EventKind,
    SparseVector,
    Vector,
    decode_vector,
    query_of,
    triplets_of,
)
from .evidence import Evidence
from .log import ItemChange, Log

if TYPE_CHECKING:
    from .saved_items import SavedItems

#: The recent accuracy covers this many answers to random questions.
_RECENT = 200

#: Points of the loss curve; then neighbouring points are averaged.
_MOST_POINTS = 256

#: Items whose features are counted before the first sparse triplet is learnt.
_SAMPLE = 10_000

#: Events of the log that are read at a time.
_BATCH = 512

#: Item events read at a time: few enough for their vectors to stay in the CPU cache.
_ITEM_BATCH = 256


# -- items ------------------------------------------------------------------------------------


def stack(vectors: Sequence[Vector], n_features: int) -> Any:
    """Stack vectors as rows: an array, or a CSR matrix if they are sparse.

    Examples
    --------
    >>> stack([SparseVector(np.array([1]), np.array([2.0]))], 3).toarray()
    array([[0., 2., 0.]], dtype=float32)
    """
    sparse = [vector for vector in vectors if isinstance(vector, SparseVector)]
    if not sparse:
        return np.array(vectors, np.float32)
    indptr = np.concatenate([[0], np.cumsum([len(vector.indices) for vector in sparse])])
    indices = np.concatenate([vector.indices for vector in sparse])
    values = np.concatenate([vector.values for vector in sparse]).astype(np.float32)
    return sp.csr_matrix((values, indices, indptr), (len(sparse), n_features))


def stack_encoded(vectors: Sequence[bytes], n_features: int) -> Any:
    """Stack encoded vectors as rows, all at once.

    Examples
    --------
    >>> from simstream.serve.events import encode_vector
    >>> stack_encoded([encode_vector(row) for row in np.eye(2)], 2)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if vectors[0][:1] != b"D":
        return stack([decode_vector(data) for data in vectors], n_features)
    table = np.frombuffer(b"".join(vectors), np.uint8).reshape(len(vectors), -1)
    return np.ascontiguousarray(table[:, 1:]).view("<f4").astype(np.float32, copy=False)


class ItemStore:
    """The current items in an index, and the vectors of all items there ever were.

    One thread applies events; any number of threads read `view` and the dictionaries. Vectors of deleted
    and replaced items are looked up in the log. Sparse vectors need `n_features`, dense ones do not.
    """

    def __init__(self, log: Log, n_features: int | None = None) -> None:
        self._log = log
        self.is_sparse = n_features is not None
        self.n_features = n_features
        self._index = ExactIndex()
        #: Id -> position of the event that added the item, for current items.
        self.positions: dict[str, int] = {}
        #: Position -> id, for all items there ever were.
        self.names: dict[int, str] = {}
        #: Position of a replacement -> position of the item it replaced.
        self._replaced: dict[int, int] = {}
        #: Position of the saved items that the index rests on, their number, and changes since then.
        self.saved_at = self.n_saved = self.n_since = 0

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def view(self) -> ExactView:
        """The searchable items now."""
        return self._index.view()

    def position_in(self, view: ExactView, name: str) -> int | None:
        """Position of an item in a view, which may be older than `positions`; None if not in the view."""
        position = self.positions.get(name)
        while position is not None and position not in view:
            position = self._replaced.get(position)
        return position

    def catch_up(self, until: int, saved: SavedItems | None = None) -> None:
        """Read all items of the log up to a position; nothing must have been applied before.

        Those that were saved are taken from there.
        """
        after = 0
        if saved is not None:
            after, current = saved.position, saved.is_current
            self._index = ExactIndex.over(saved.positions[current].tolist(), saved.rows)
            self.names = dict(zip(saved.positions.tolist(), saved.names, strict=True))
            self.positions = {
                self.names[position]: position for position in saved.positions[current].tolist()
            }
            self._replaced = dict(saved.replaced.tolist())
            self.n_features = saved.rows.shape[1]
            self._note_saved(saved)
        n_items = self._log.count_items(until, after)
        for number, changes in enumerate(self._log.read_items(until, _ITEM_BATCH, after)):
            self._change(changes)
            if number == 0 and saved is None:
                with contextlib.suppress(MemoryError):  # most may have been replaced since
                    self._index.reserve(n_items)

    # -- saving -------------------------------------------------------------------------------

    def content(self) -> tuple[ExactView, dict[str, np.ndarray], list[str]]:
        """All that is saved of the items now: vectors by a view, arrays, ids; see `ItemFiles.save`."""
        positions = np.array(list(self.names), np.int64)
        arrays = {
            "positions": positions,
            "is_current": np.isin(positions, self.view.ids, assume_unique=True),
            "replaced": np.array(list(self._replaced.items()), np.int64).reshape(-1, 2),
        }
        return self.view, arrays, list(self.names.values())

    def rest_on(self, saved: SavedItems) -> None:
        """Keep vectors where they were saved; the items stay the same. What is saved is not newer."""
        before = self.view
        there = saved.positions[saved.is_current]
        here = np.array(before.ids, np.int64)
        index = ExactIndex.over(there.tolist(), saved.rows)
        index.remove(np.setdiff1d(there, here, assume_unique=True).tolist())
        new = here[here > saved.position].tolist()
        if new:
            index.add(new, before.vectors(new))
        self._index = index
        self._note_saved(saved)
        self.n_since = len(new) + len(there) - (len(here) - len(new))

    def _note_saved(self, saved: SavedItems) -> None:
        self.saved_at, self.n_saved = saved.position, int(saved.is_current.sum())
        self.n_since = 0

    def apply(self, events: Iterable[Event]) -> None:
        """Add, replace and delete items."""
        changes = [(e.position, e.kind, e.subject or "", e.vector) for e in events]
        if changes:
            self._change(changes)

    def _change(self, changes: list[ItemChange]) -> None:
        new: dict[int, bytes] = {}
        gone: list[int] = []
        for position, kind, name, vector in changes:
            before = self.positions.pop(name, None)
            if before is not None and new.pop(before, None) is None:
                gone.append(before)
            if kind == EventKind.ITEM and vector is not None:
                new[position] = vector
                self.names[position] = name
                if before is not None:
                    self._replaced[position] = before
                self.positions[name] = position
        if new:
            vectors = list(new.values())
            if self.n_features is None:
                self.n_features = len(decode_vector(vectors[0]))
            self._index.add(list(new), stack_encoded(vectors, self.n_features))
        if gone:
            self._index.remove(gone)
        self.n_since += len(new) + len(gone)

    def vectors(self, positions: Sequence[int]) -> Any:
        """Rows of items by position, in the given order; also of deleted and replaced items."""
        with contextlib.suppress(KeyError):  # one of them was deleted or replaced
            return self.view.vectors(positions)
        found = self._log.vectors(set(positions))
        return stack_encoded([found[position] for position in positions], self.n_features or 0)

    def rows_of(self, vectors: Sequence[Vector]) -> Any:
        """Vectors as rows of the same kind as the items."""
        return stack(vectors, self.n_features or 0)


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


def can_serve(known: catalogue.Algorithm) -> bool:
    """Whether a service can learn by this algorithm: from one event after the other, for an inner product."""
    return not known.is_batch and known.learns == catalogue.BILINEAR


@dataclass(frozen=True)
class Learning:
    """How events become a model. Stored in the log, because other settings would give another model.

    Parameters
    ----------
    algorithm : name of an online learner of a bilinear similarity; case does not matter
    params : its parameters
    block : int
        Triplets are learnt together whenever the log position reaches a multiple of `block`. 1 learns every
        event as soon as it is read.

    Examples
    --------
    >>> Learning("oasis", {"C": 0.1}).new_learner().C
    0.1
    >>> Learning("LMNN").new_learner()
    Traceback (most recent call last):
    ...
    ValueError: algorithm: expected an online learner of a bilinear similarity, got LMNN
    """

    algorithm: str = "oasis"
    params: dict[str, Any] = field(default_factory=dict)
    block: int = 1

    def new_learner(self) -> Any:
        """A learner that has seen nothing yet."""
        known = catalogue.find(self.algorithm)
        if not can_serve(known):
            raise ValueError(
                f"algorithm: expected an online learner of a bilinear similarity, got {known.name}"
            )
        names = {parameter.name for parameter in known.parameters()}
        given = {"dtype": "float32", **self.params}
        if "block_size" in names:
            given["block_size"] = self.block
        if "random_state" in names:
            given.setdefault("random_state", 0)
        # A log may have been started by an earlier version: its parameters stay as they are stored, because
        # snapshots are bound to them. Rules without a blocked form learn a block one triplet at a time.
        given, is_exact = upgraded_params(known.name, given)
        learner = known.cls()(**given)
        learner.check_parameters()
        if isinstance(getattr(learner, "init", None), str) and learner.init == "lda":
            raise ValueError(
                "init: expected 'identity' or 'zeros' in a service, which begins without triplets, got 'lda'"
            )
        if learner.normalise and self.has_tasks:
            raise ValueError(
                f"normalise: expected False for {known.name}, got True: in a service it would take numbers "
                "for every item and task"
            )
        if not is_exact:
            learner._exact_gradient = False
        return learner

    @property
    def has_tasks(self) -> bool:
        """Whether every task has a similarity of its own."""
        return hasattr(catalogue.find(self.algorithm).cls(), "for_task")

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"algorithm": catalogue.find(self.algorithm).name.lower()}


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
    evidence : Evidence, optional
        Where events are measured before they are learnt from; None measures none, and trusts the learner.
    reference : similarity, optional
        What events are measured by.
    """

    def __init__(
        self,
        learning: Learning,
        items: ItemStore,
        log: Log,
        learner: Any = None,
        tally: Tally | None = None,
        position: int = 0,
        evidence: Evidence | None = None,
        reference: Any = None,
    ) -> None:
        self._learning, self._items, self._log = learning, items, log
        #: None until something was learnt.
        self.learner = learner
        self.tally = tally or Tally()
        self.position = position
        self.evidence = evidence
        #: What was learnt when the evidence last asked for it; events are measured by this.
        self.reference = reference
        #: Seconds of computing since this state was made or saved: what repeating it would take.
        self.seconds = 0.0
        self._pending: list[_Triplet] = []

    @property
    def is_whole(self) -> bool:
        """Whether nothing waits for the end of a block: only then can the state be saved."""
        return not self._pending

    @property
    def trust(self) -> float:
        """How far what was learnt may be served: 0 is the inner product, 1 all of it."""
        return 1.0 if self.evidence is None else self.evidence.trust

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
        if event.kind == EventKind.QUESTION:
            tally.questions += 1
            tally.considered += body["considered"]
            tally.asked += body["considered"] > 0
            return
        if event.kind == EventKind.FEEDBACK:
            tally.feedback += 1
        elif body["winner"] is None:
            tally.skips += 1
        else:
            tally.answers += 1
        if self.evidence is not None and "randomised" in body:
            self.evidence.clicks.add(body["randomised"], body["clicked"])
        triplets, compared = (
            [
                _Triplet(
                    event.vector if anchor == 0 and event.vector is not None else anchor,
                    positive,
                    negative,
                    body.get("task"),
                    event.position,
                )
                for anchor, positive, negative in found
            ]
            for found in (triplets_of(event), body.get("compared", ()))
        )
        if triplets or compared:
            self._predict(event, compared or triplets)
        self._pending += triplets

    def _predict(self, event: Event, triplets: list[_Triplet]) -> None:
        """Count how well each similarity predicts an event, before it is learnt from."""
        if event.kind == EventKind.ANSWER and event.body["random"]:
            self._predict_random(triplets[0])
        evidence, body = self.evidence, event.body
        if evidence is None:
            return
        ranks = body.get("ranks")
        offered = evidence.offer(query_of(event))
        if offered.is_due:
            self._read_reference(evidence)
        if offered.is_measured and self.reference is not None:
            weights = np.ones(len(triplets)) if ranks is None else evidence.clicks.weights(ranks)
            evidence.add(*self._margins(triplets), weights, is_new=offered.is_new)

    def _read_reference(self, evidence: Evidence) -> None:
        """Read what was learnt so far: the next events are measured by it."""
        if self._learning.block == 1:
            self._learn()
        if self.learner is not None:
            self.reference = _frozen(self.learner, self._learning.has_tasks)
            evidence.was_read(is_costly=self._items.is_sparse)

    def _margins(self, triplets: list[_Triplet]) -> tuple[np.ndarray, np.ndarray]:
        """Margins of the triplets of one anchor, by the inner product and by the reference."""
        rows = self._rows(triplets)
        task = (triplets[0].task,) if self._learning.has_tasks else ()
        anchor, differences = rows[:1], rows[1::3] - rows[2::3]
        with np.errstate(over="ignore", invalid="ignore"):  # of a learner that diverges
            learnt = self.reference.transform_query(anchor, *task)
            baseline, learnt = (
                all_products(differences, query)[:, 0] for query in (anchor, learnt)
            )
        return baseline, learnt

    def _predict_random(self, triplet: _Triplet) -> None:
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
        return stacked(parts)

    def _learn(self) -> None:
        """Learn the pending triplets, in pieces that end at the points of the loss curve."""
        if self._pending and self.learner is None:
            self.learner = self._new_learner(self._pending[0])
        begin = 0
        while begin < len(self._pending):
            end = begin + self.tally.stride - self.tally.triplets % self.tally.stride
            self._learn_piece(self._pending[begin:end])
            begin = end
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
        """A learner whose storage and geometry are laid out by the items added before the first triplet.

        Never by all items read so far: their number depends on when the log was read.
        """
        learner = self._learning.new_learner()
        rows = self._rows([first])
        if sp.issparse(rows) or learner.looks_at_items:
            events = self._log.read(0, first.said_at, kinds=("item",), limit=_SAMPLE)
            vectors = [decode_vector(event.vector) for event in events if event.vector]
            # However few there are: the judgement is in the log already, and must be learnt from.
            rows = self._items.rows_of(vectors * -(-FEWEST_ITEMS // len(vectors)))
        learner.preprocessor = rows
        learner.prepare()
        return learner


def _frozen(learner: Any, has_tasks: bool) -> Any:
    """What was learnt so far, with a `transform_query` to the space of the items; it never changes."""
    if has_tasks:
        return learner.freeze()
    similarity = learner.similarity_
    if type(similarity) is Bilinear:
        return similarity
    return Bilinear(learner.get_bilinear_matrix())  # of low rank: it has a space of its own
