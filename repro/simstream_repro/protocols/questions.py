"""Accuracy on held-out answers against the number of questions asked.

A question is which of two candidates is more similar to an anchor. People answer it where the data set has
their triplets; elsewhere the labels do: the answer is the candidate of the anchor's class, or none if
both candidates or neither are of that class. Some answers are held out. A learner asks about other triplets,
one question at a time, chosen by the rule of the service (`simstream.asking`), and learns from each answer
before it asks again.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

import simstream
from simstream import datasets, metrics
from simstream.asking import Asking, choose_triplet, draw_triplets
from simstream.data.samplers import nearer_first

from ..clock import working_seconds
from ..records import Cell
from .common import Curves, ProtocolSettings, add_point, dataset, digest, make, record

#: Triplets drawn at a time: drawing them singly would take most of the run.
_AT_A_TIME = 8192

#: Triplets drawn for each held-out one: with ten classes, labels answer one in five or six.
_DRAWN_FOR_ONE = 16


class QuestionSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `questions`."""

    #: Numbers of questions at which the accuracy is measured.
    questions: tuple[int, ...]
    #: "triplet": no held-out triplet is asked about, but its items are. "item": items are held out, and only
    #: triplets of these are judged; no question is about any of them.
    split: Literal["triplet", "item"]
    #: At most so many held-out answers; for the split by item, share of the items that are held out.
    n_held_out: int
    held_out_share: float = 0.3
    #: What is asked about: triplets that have an answer, or any, as in the service; those without an answer
    #: count as questions, and teach nothing.
    candidates: Literal["answered", "any"] = "answered"
    #: Set aside what is held out, and divide the rest again in the same way: for choices that must not see
    #: what is held out otherwise.
    choosing: bool = False
    #: The rule's own, where they are not its defaults.
    delta: float | None = None
    random_share: float | None = None
    pool: int | None = None
    near: int | None = None

    def asking(self) -> Asking:
        """The rule that chooses questions."""
        given = {name: getattr(self, name) for name in ("delta", "random_share", "pool", "near")}
        return Asking(**{name: value for name, value in given.items() if value is not None})


class LabelJudge:
    """Answers by the labels.

    Examples
    --------
    >>> LabelJudge(np.array([0, 1, 0, 1])).answers(np.array([[0, 1, 2], [0, 2, 1], [0, 1, 3]])).tolist()
    [-1, 1, 0]
    """

    def __init__(self, labels: np.ndarray) -> None:
        self._labels = labels

    def answers(self, triplets: np.ndarray) -> np.ndarray:
        """+1 where the first candidate is nearer to the anchor, -1 where the second is, 0 if unknown."""
        anchor, first, second = self._labels[triplets].T
        return (first == anchor).astype(np.int64) - (second == anchor)


class PeopleJudge:
    """Answers that people gave: triplets anchor, near, far.

    Examples
    --------
    >>> PeopleJudge(np.array([[0, 3, 1]]), 4).answers(np.array([[0, 1, 3], [0, 3, 1], [0, 1, 2]])).tolist()
    [-1, 1, 0]
    """

    def __init__(self, triplets: np.ndarray, n_items: int) -> None:
        keys = question_keys(triplets, n_items)
        order = np.argsort(keys)
        self._n, self._keys, self._near = n_items, keys[order], triplets[order, 1]

    def answers(self, triplets: np.ndarray) -> np.ndarray:
        """+1 where the first candidate is nearer to the anchor, -1 where the second is, 0 if unknown."""
        place, known = _find(question_keys(triplets, self._n), self._keys)
        return np.where(known, np.where(self._near[place] == triplets[:, 1], 1, -1), 0)


def question_keys(triplets: np.ndarray, n_items: int) -> np.ndarray:
    """One number for each question, whichever candidate comes first.

    Examples
    --------
    >>> first, same, other = question_keys(np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2]]), 3)
    >>> bool(first == same), bool(first == other)
    (True, False)
    """
    anchor, first, second = triplets.T.astype(np.int64)
    low, high = np.minimum(first, second), np.maximum(first, second)
    return (anchor * n_items + low) * n_items + high


def _find(wanted: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of numbers in a sorted array, and whether they are in it."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return place, among[place] == wanted


Judge = LabelJudge | PeopleJudge


class World(NamedTuple):
    """Who answers, which items may be asked about, and what is held out."""

    items: Any
    judge: Judge
    #: Items that questions are about.
    rows: np.ndarray
    #: Triplets to judge a model by, the nearer candidate first.
    held_out: np.ndarray
    #: Questions that may not be asked, in order.
    forbidden: np.ndarray
    #: Whether only questions with an answer are asked.
    answered_only: bool


class Candidates:
    """Triplets that may be asked about, all equally likely, drawn many at a time.

    Parameters
    ----------
    world : World
    rng : numpy Generator
    """

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._world, self._rng = world, rng
        self._waiting = np.empty((0, 3), np.int64)

    def draw(self, size: int) -> np.ndarray:
        """The next ones."""
        while len(self._waiting) < size:
            self._waiting = np.concatenate([self._waiting, self._allowed(max(size, _AT_A_TIME))])
        drawn, self._waiting = self._waiting[:size], self._waiting[size:]
        return drawn

    def _allowed(self, n_drawn: int) -> np.ndarray:
        world = self._world
        drawn = world.rows[draw_triplets(len(world.rows), n_drawn, self._rng)]
        allowed = ~_find(question_keys(drawn, world.items.shape[0]), world.forbidden)[1]
        if world.answered_only:
            allowed &= world.judge.answers(drawn) != 0
        return drawn[allowed]


def world_of(cell: Cell, settings: QuestionSettings) -> World:
    """Divide the data of a cell."""
    data = dataset(cell.data)
    n = data.items.shape[0]
    judge: Judge = (
        LabelJudge(data.labels) if data.triplets is None else PeopleJudge(data.triplets, n)
    )
    rng = np.random.default_rng(cell.seed)
    rows, forbidden = np.arange(n), np.empty(0, np.int64)
    for _ in range(2 if settings.choosing else 1):
        judged = rows
        if settings.split == "item":
            shuffled = rng.permutation(rows)
            n_judged = round(settings.held_out_share * len(rows))
            judged, rows = np.sort(shuffled[:n_judged]), np.sort(shuffled[n_judged:])
        held_out = _answered(judge, judged, settings.n_held_out, forbidden, n, rng)
        forbidden = np.union1d(forbidden, question_keys(held_out, n))
    items = datasets.prepare(data.items, cell.preprocessing, fit_rows=rows).items
    return World(items, judge, rows, held_out, forbidden, settings.candidates == "answered")


def _answered(
    judge: Judge,
    rows: np.ndarray,
    n_wanted: int,
    forbidden: np.ndarray,
    n_items: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Distinct triplets with answers, the nearer candidate first; fewer than wanted if there are no more."""
    drawn = rows[draw_triplets(len(rows), _DRAWN_FOR_ONE * n_wanted, rng)]
    keys = question_keys(drawn, n_items)
    _, first = np.unique(keys, return_index=True)
    drawn = drawn[np.sort(first)]  # in the order drawn, so that any n of them are a fair sample
    drawn = drawn[~_find(question_keys(drawn, n_items), forbidden)[1]]
    answers = judge.answers(drawn)
    found = nearer_first(drawn, answers)[answers != 0][:n_wanted]
    if not len(found):
        raise ValueError("held_out_share: no question about the held-out items has an answer")
    return found


def run(cell: Cell, settings: QuestionSettings) -> dict[str, Any]:
    """Ask, learn, and measure on the way."""
    world = world_of(cell, settings)
    asking = settings.asking()
    learner = make(cell, preprocessor=world.items)
    learner.prepare()
    learns = not isinstance(learner, (simstream.Dot, simstream.Euclidean))
    rng = np.random.default_rng([cell.seed, 1])
    candidates = Candidates(world, rng)
    n_asked = n_answers = n_chosen = n_considered = 0
    seconds = 0.0
    curves: Curves = {}
    for stop in sorted(settings.questions):
        start = working_seconds()
        while learns and n_asked < stop:
            chosen = choose_triplet(candidates.draw, learner.triplet_margin, asking, rng)
            n_asked += 1
            n_considered += chosen.considered
            n_chosen += not chosen.is_random
            triplet = chosen.triplet[None]
            answer = world.judge.answers(triplet)
            if answer[0]:
                n_answers += 1
                learner.partial_fit(nearer_first(triplet, answer))
        seconds += working_seconds() - start
        add_point(curves, "accuracy", stop, metrics.triplet_accuracy(learner, world.held_out))
        add_point(curves, "answers", stop, n_answers)
    stops, accuracies = curves["accuracy"].values()
    measures = {f"accuracy@{stop}": value for stop, value in zip(stops, accuracies, strict=True)}
    measures |= {"accuracy": accuracies[-1], "mean accuracy": float(np.mean(accuracies))}
    if n_asked:
        measures["answered"] = n_answers / n_asked
    if n_chosen:
        measures["considered"] = n_considered / n_chosen
    more = {"n_train": len(world.rows), "n_test": len(world.held_out)}
    held_out = digest(world.held_out)
    return record(cell, measures | {"seconds": seconds}, curves, seconds, held_out=held_out, **more)
