"""Recognising places along a route: labels of frames in their order, one route left out at a time.

The data set is cut into routes, blocks of consecutive rows; the seed says which one is tested. Each of its
frames gets the class of its nearest neighbours among the frames of the others. Predictions are measured as
they are, and smoothed along the route (`simstream.smooth_labels`).

The method without a learner is `NaiveBayesFilter`, which smooths by its own filter.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp

from simstream import datasets, metrics, smooth_labels

from ..clock import working_seconds
from ..records import Cell
from .common import (
    TUNING_SHARE,
    LabelledItems,
    ProtocolSettings,
    add_point,
    choose,
    dataset,
    dense,
    digest,
    make,
    model_measures,
    record,
    split_per_class,
    teach,
    triplet_stream,
)


class PlaceSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `places`."""

    #: Length of the stream, and its length while parameters are chosen (default: the same).
    n_triplets: int
    tuning_triplets: int | None = None
    #: Number of routes that the rows are cut into.
    n_routes: int = 6
    #: Number of nearest neighbours that vote.
    neighbors: int = 1
    #: Width of the window of the smoothing, and what it takes of its labels.
    width: int = 5
    smoothing: Literal["majority", "median"] = "majority"
    #: Where along the stream the accuracy is recorded as a curve.
    stops: tuple[int, ...] = ()


# -- the stand-in for IROS --------------------------------------------------------------------------------


class NaiveBayesFilter:
    """Naive Bayes on quantised features, then forward filtering along a sequence.

    A stand-in for the place recognition system called IROS, not that system: what is known of it is that it
    classifies single frames and filters the result over time.

    Parameters
    ----------
    n_bins : int
        Number of states of a feature; their bounds are quantiles of the training items.
    stay : float
        Probability that the next frame is of the same class; all other classes share the rest.

    Examples
    --------
    >>> items = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = NaiveBayesFilter(n_bins=2).fit(items, np.array([0, 0, 1, 1]))
    >>> model.predict(np.array([[0.5], [2.5], [0.2]])).tolist()
    [0, 1, 0]
    >>> model.predict_sequence(np.array([[0.5], [0.1], [2.5], [0.2], [0.2]])).tolist()
    [0, 0, 0, 0, 0]
    """

    def __init__(self, n_bins: int = 5, stay: float = 0.9) -> None:
        self.n_bins, self.stay = n_bins, stay

    def fit(self, items: np.ndarray, labels: np.ndarray) -> NaiveBayesFilter:
        """Estimate the frequencies of states in every class, each counted once more than seen."""
        shares = np.linspace(0, 1, self.n_bins + 1)[1:-1]
        self._bounds = np.quantile(items, shares, axis=0)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        states = self._states(items)
        counts = np.ones((len(self.classes_), items.shape[1], self.n_bins))
        for code in range(len(self.classes_)):
            for state in range(self.n_bins):
                counts[code, :, state] += (states[codes == code] == state).sum(axis=0)
        self._log_shares = np.log(counts / counts.sum(axis=2, keepdims=True))
        self._log_prior = np.log(np.bincount(codes) / len(codes))
        return self

    def _states(self, items: np.ndarray) -> np.ndarray:
        """Number of the state of every entry."""
        return (items[:, :, None] > self._bounds.T).sum(axis=2)

    def log_likelihood(self, items: np.ndarray) -> np.ndarray:
        """log p(item | class), one column per class."""
        states = self._states(items)
        return np.stack(
            [
                np.take_along_axis(of_class, states.T, axis=1).sum(axis=0)
                for of_class in self._log_shares
            ],
            axis=1,
        )

    def predict(self, items: np.ndarray) -> np.ndarray:
        """The most probable class of every item by itself."""
        return self.classes_[np.argmax(self.log_likelihood(items) + self._log_prior, axis=1)]

    def predict_sequence(self, items: np.ndarray) -> np.ndarray:
        """The most probable class of every item, given it and those before it."""
        n_classes = len(self.classes_)
        transition = np.full((n_classes, n_classes), (1 - self.stay) / max(1, n_classes - 1))
        np.fill_diagonal(transition, self.stay)
        chosen = np.empty(len(items), np.int64)
        belief = self._log_prior
        for t, row in enumerate(self.log_likelihood(items)):
            if t > 0:
                belief = logsumexp(belief[:, None] + np.log(transition), axis=0)
            belief = belief + row
            belief = belief - logsumexp(belief)
            chosen[t] = np.argmax(belief)
        return self.classes_[chosen]


# -- the protocol -----------------------------------------------------------------------------------------


def routes(n_rows: int, n_routes: int) -> np.ndarray:
    """Number of the route of every row: blocks of consecutive rows.

    Examples
    --------
    >>> routes(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    parts = np.array_split(np.arange(n_rows), n_routes)
    return np.repeat(np.arange(n_routes), [len(one) for one in parts])


def _parts(cell: Cell, settings: PlaceSettings, seed: int) -> tuple[LabelledItems, LabelledItems]:
    data = dataset(cell.data)
    number = routes(len(data.labels), settings.n_routes)
    is_test = number == seed % settings.n_routes
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    items = datasets.prepare(dense(data.items), cell.preprocessing, fit_rows=train).items
    whole = LabelledItems(items, np.asarray(data.labels))
    return whole.rows(train), whole.rows(test)


def run(cell: Cell, settings: PlaceSettings) -> dict[str, Any]:
    """Learn from all routes but one, recognise the places along that one."""
    train, test = _parts(cell, settings, cell.seed)
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    curves: dict[str, Any] = {}
    if not cell.learner:
        begin = working_seconds()
        system = NaiveBayesFilter().fit(train.items, train.labels)
        seconds = working_seconds() - begin
        found = system.predict(test.items)
        filtered = system.predict_sequence(test.items)
        measures = {
            "accuracy": _accuracy(found, test),
            "accuracy, smoothed": _accuracy(filtered, test),
        }
    else:
        model, k = make(cell), settings.neighbors

        def at_stop(step: int, learner: Any) -> None:
            add_point(curves, "accuracy", step, _accuracy(_nearest(learner, train, test, k), test))

        stops = settings.stops
        seconds = teach(model, train, triplets, stops=stops, at_stop=at_stop if stops else None)
        found = _nearest(model, train, test, k)
        smooth = smooth_labels(found, settings.width, settings.smoothing)
        measures = {
            "accuracy": _accuracy(found, test),
            "accuracy, smoothed": _accuracy(smooth, test),
        }
        measures |= model_measures(model)
    measures["seconds"] = seconds
    more = {"n_train": len(train.labels), "n_test": len(test.labels), "stream": digest(triplets)}
    return record(cell, measures, curves, seconds, **more)


def tune(cell: Cell, settings: PlaceSettings) -> dict[str, Any]:
    """Choose parameters by the accuracy on 20 % of every class of the training routes of the first run."""
    whole, _ = _parts(cell, settings, cell.data_seed)
    rng = np.random.default_rng(10_000)
    rows, held_out = split_per_class(whole.labels, rng, share=TUNING_SHARE)
    train, test = whole.rows(rows), whole.rows(held_out)
    triplets = triplet_stream(train.labels, settings.tuning_triplets or settings.n_triplets, 10_000)

    def evaluate(candidate: Cell) -> float:
        model = make(candidate)
        teach(model, train, triplets)
        return _accuracy(_nearest(model, train, test, 1), test)

    return choose(cell, evaluate)


def _nearest(model: Any, train: LabelledItems, test: LabelledItems, k: int) -> np.ndarray:
    return np.asarray(metrics.knn_predict(model, test.items, train.items, train.labels, k))


def _accuracy(found: np.ndarray, test: LabelledItems) -> float:
    return float(np.mean(found == test.labels))
