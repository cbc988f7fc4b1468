"""A distance learnt from pairs of one half of the data, judged by k-NN on the other half.

With c classes, r = 40 c (c - 1) different pairs of the training half are drawn at random (all pairs, if there
are fewer) and shown in the same order again and again: max(2r, min(n (n - 2) / 40, 50r)) steps, n the size of
the whole data set. Learners that are not online get the r pairs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from simstream import PairSampler, datasets, metrics

from .. import reference
from ..clock import working_seconds
from ..records import Cell
from .common import (
    Curves,
    LabelledItems,
    ProtocolSettings,
    add_point,
    choose,
    dataset,
    digest,
    extrapolated_seconds,
    make,
    model_measures,
    n_training_pairs,
    record,
)

_TIES_TO_THE_FIRST = ", ties to the first class"

#: Fits shorter than this in all are repeated, at most so often, and the median is taken.
_REPEAT_SECONDS, _MOST_REPEATS = 0.2, 5

#: Pairs learnt before the clock starts, so that compiled code is loaded.
_WARM_UP = 600


class PairMetricSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `pair_metric`."""

    #: Numbers of neighbours. The error for each is recorded as curves, plain and class-averaged (the mean
    #: over classes of the error within the class); a tied vote goes to the class of the nearest of the tied,
    #: or to the first class.
    k: tuple[int, ...] = tuple(range(1, 26))
    #: "reversed" if the last label is the first class.
    class_order: Literal["sorted", "reversed"] = "sorted"
    #: Number of moments along the stream, evenly spaced on a logarithmic scale, at which losses and effective
    #: dimension are recorded as curves, in a second training: the first one is timed as a whole.
    stops: int = 0
    #: Number of sizes, from one dimension to all, that the metric is truncated to; neighbours to judge it by.
    truncated: int = 0
    truncated_k: int = 2
    #: Number of steps of the textbook version of the learner that are timed, where there is one.
    eager_steps: int = 0
    #: Error that parameters are chosen by: leave-one-out on the training half, smallest over k.
    tuning_error: Literal[
        "class-averaged",
        "plain",
        "class-averaged, ties to the first class",
        "plain, ties to the first class",
    ] = "class-averaged"
    #: How far a learner goes before that error is measured: one pass over the pairs, or all steps.
    tuning_steps: Literal["one pass", "all"] = "one pass"


class _Run(NamedTuple):
    """Both halves, the pairs of the training half, and the number of steps over them."""

    train: LabelledItems
    test: LabelledItems
    pairs: np.ndarray
    signs: np.ndarray
    n_steps: int

    def stream(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs, repeated."""
        return np.resize(self.pairs, (self.n_steps, 2)), np.resize(self.signs, self.n_steps)


def _prepare(cell: Cell) -> _Run:
    data = dataset(cell.data)
    labels = np.asarray(data.labels)
    n, c = len(labels), len(np.unique(labels))
    rng = np.random.default_rng(cell.data_seed)
    train, test = np.split(rng.permutation(n), [n // 2])
    whole = LabelledItems(
        datasets.prepare(data.items, cell.preprocessing, fit_rows=train).items, labels
    )
    sampler = PairSampler(labels[train], rng, similar_share=None)
    pairs, signs = sampler.draw_distinct(n_training_pairs(len(train), c))
    r = len(pairs)
    n_steps = max(2 * r, min(n * (n - 2) // 40, 50 * r))
    return _Run(whole.rows(train), whole.rows(test), pairs, signs, n_steps)


def run(cell: Cell, settings: PairMetricSettings) -> dict[str, Any]:
    """Learn from the training half, measure on the test half."""
    given = _prepare(cell)
    model, seconds = _learn(cell, given)
    curves = _knn_curves(model, given, settings)
    measures = model_measures(model)
    if hasattr(model, "violation_rate_"):
        measures["violation rate"] = model.violation_rate_
    if seconds is not None:
        measures["seconds"] = seconds
    if settings.stops and hasattr(model, "partial_fit"):
        curves |= _online_curves(make(cell, preprocessor=given.train.items), given, settings.stops)
    if settings.truncated:
        curves |= _truncation_curves(model, given, settings)
    if settings.eager_steps and cell.learner == "PAMetric":
        measures["eager seconds"] = _eager_seconds(cell, given, settings.eager_steps)
    for curve in curves.values():
        curve["y"] = [round(value, 5) for value in curve["y"]]
    more = {"n_pairs": len(given.pairs), "n_steps": given.n_steps}
    stream = digest(given.pairs, given.signs)
    return record(cell, measures, curves, seconds, stream=stream, **more)


def _eager_seconds(cell: Cell, given: _Run, eager_steps: int) -> float:
    pairs, signs = given.stream()
    items, d = given.train.items, given.train.items.shape[1]
    C, variant = cell.parameters["C"], cell.parameters["variant"]
    every_step = cell.parameters["projection"] == "every-step"

    def learn(n: int) -> None:
        steps = zip(items[pairs[:n, 0]] - items[pairs[:n, 1]], signs[:n], strict=True)
        reference.pa_metric.last(
            np.zeros((d, d)), steps, C, variant, every_step=every_step, only_down=True
        )

    return extrapolated_seconds(learn, min(eager_steps, given.n_steps), given.n_steps)


def tune(cell: Cell, settings: PairMetricSettings) -> dict[str, Any]:
    """Choose parameters on the training half. A grid of "auto" alone is left to the learner itself."""
    given = _prepare(cell)
    items, labels = given.train
    if list(cell.grid.values()) == [["auto"]]:
        (name,) = cell.grid
        options = {name: "auto", "n_constraints": len(given.pairs), "random_state": cell.data_seed}
        model = make(cell, **options).fit(items, labels)
        tried = [[{name: float(value)}, float(score)] for value, score in model.tuning_]
        return {"parameters": {name: getattr(model, f"{name}_")}, "tried": tried, "measures": {}}
    ties = "first" if settings.tuning_error.endswith(_TIES_TO_THE_FIRST) else "nearest"
    averaged = settings.tuning_error.startswith("class-averaged")
    stream = given.stream() if settings.tuning_steps == "all" else (given.pairs, given.signs)

    def evaluate(candidate: Cell) -> float:
        model = make(candidate, preprocessor=items).fit(*stream)
        return float(min(_knn_errors(model, given.train, None, settings, ties)[averaged]))

    return choose(cell, evaluate, higher_is_better=False)


# -- learning ---------------------------------------------------------------------------------------------


def _learn(cell: Cell, given: _Run) -> tuple[Any, float | None]:
    """The model, and the CPU seconds of its training; None where there is nothing to learn."""
    learner = make(cell, preprocessor=given.train.items)
    if hasattr(learner, "fit_pairs"):
        return _timed(learner.fit_pairs, given.pairs, given.signs)
    if learner.natural_tuples == "pairs":
        return _timed(learner.fit, *given.stream())
    learner.prepare()
    return learner, None


def _timed(
    fit: Callable[[np.ndarray, np.ndarray], Any], pairs: np.ndarray, signs: np.ndarray
) -> tuple[Any, float]:
    fit(pairs[:_WARM_UP], signs[:_WARM_UP])
    seconds: list[float] = []
    while len(seconds) < _MOST_REPEATS and sum(seconds) < _REPEAT_SECONDS:
        start = working_seconds()
        model = fit(pairs, signs)
        seconds.append(working_seconds() - start)
    return model, float(np.median(seconds))


def _online_curves(learner: Any, given: _Run, n_stops: int) -> Curves:
    """Losses known before each step, averaged so far, and the dimension reached."""
    pairs, signs = given.stream()
    names = {
        "predictive loss": "mistake_rate_",
        "violation rate": "violation_rate_",
        "effective dimension": "effective_dimension_",
    }
    curves: Curves = {}
    done = 0
    for stop in np.unique(np.geomspace(1, given.n_steps, n_stops).round().astype(int)).tolist():
        learner.partial_fit(pairs[done:stop], signs[done:stop])
        done = stop
        for name, attribute in names.items():
            add_point(curves, name, stop, float(getattr(learner, attribute)))
    return curves


# -- measuring --------------------------------------------------------------------------------------------


def _knn_curves(model: Any, given: _Run, settings: PairMetricSettings) -> Curves:
    curves: Curves = {}
    for ties in ("nearest", "first"):
        errors = _knn_errors(model, given.test, given.train, settings, ties)
        for averaged, kind in enumerate(("plain", "class-averaged")):
            name = f"k-NN error, {kind}" + (_TIES_TO_THE_FIRST if ties == "first" else "")
            curves[name] = {"x": list(settings.k), "y": errors[averaged].tolist()}
    return curves


def _knn_errors(
    model: Any,
    queries: LabelledItems,
    known: LabelledItems | None,
    settings: PairMetricSettings,
    ties: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Plain and class-averaged error for every k; leave-one-out on the queries if nothing else is known."""
    loo = known is None
    known = queries if known is None else known
    if ties == "nearest":
        plain, averaged = (
            metrics.knn_error_curve(
                model, *queries, *known, settings.k, class_averaged=averaged, exclude_self=loo
            )
            for averaged in (False, True)
        )
        return plain, averaged
    wrong = _wrong_with_ties_to_the_first(model, queries, known, settings, loo)
    within = [wrong[queries.labels == one].mean(axis=0) for one in np.unique(queries.labels)]
    return wrong.mean(axis=0), np.mean(within, axis=0)


def _wrong_with_ties_to_the_first(
    model: Any,
    queries: LabelledItems,
    known: LabelledItems,
    settings: PairMetricSettings,
    loo: bool,
) -> np.ndarray:
    """Whether each query (row) is put into a wrong class, for every k (column)."""
    order = np.unique(np.concatenate([queries.labels, known.labels]))
    if settings.class_order == "reversed":
        order = order[::-1]
    a, b = (part.items @ model.components_.T for part in (queries, known))
    distances = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1) - 2 * a @ b.T
    if loo:
        np.fill_diagonal(distances, np.inf)
    near = known.labels[np.argsort(distances, axis=1, kind="stable")[:, : max(settings.k)]]
    votes = np.cumsum(near[:, :, None] == order, axis=1, dtype=np.int16)
    said = order[votes.argmax(axis=2)[:, np.array(settings.k) - 1]]
    return said != queries.labels[:, None]


def _truncation_curves(model: Any, given: _Run, settings: PairMetricSettings) -> Curves:
    """Class-averaged error of the metric with only its q largest directions."""
    d, k = given.train.items.shape[1], settings.truncated_k
    one_k = msgspec.structs.replace(settings, k=(k,))
    sizes = np.unique(np.geomspace(1, d, settings.truncated).round().astype(int)).tolist()
    curves: Curves = {}
    for ties in ("nearest", "first"):
        name = f"{k}-NN error, truncated" + (_TIES_TO_THE_FIRST if ties == "first" else "")
        for q in sizes:
            error = _knn_errors(model.truncated(q), given.test, given.train, one_k, ties)[1]
            add_point(curves, name, q, float(error[0]))
    return curves


# -- step lengths -----------------------------------------------------------------------------------------

_N_RANDOM_PAIRS = 1000


class StepLengthSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `step_length`."""

    #: Signed losses: least, greatest, how many.
    losses: tuple[float, float, int]


def run_step_lengths(cell: Cell, settings: StepLengthSettings) -> dict[str, Any]:
    """How far a passive-aggressive learner goes after one pair, as a function of its signed loss.

    The pair has the median length among random pairs of the data set.
    """
    data = dataset(cell.data)
    items = datasets.prepare(data.items, cell.preprocessing).items
    sampler = PairSampler(data.labels, cell.seed, similar_share=None)
    pairs, _ = sampler.draw_distinct(_N_RANDOM_PAIRS)
    squared = np.sort(np.sum((items[pairs[:, 0]] - items[pairs[:, 1]]) ** 2, axis=1))
    median = float(squared[len(squared) // 2])
    losses = np.linspace(*settings.losses)
    lengths = [_step_length(cell, float(loss), median) for loss in losses]
    curve = {"x": losses.round(5).tolist(), "y": np.round(lengths, 5).tolist()}
    measures = {"squared length of the pair": median}
    return record(cell, measures, {"step length": curve}, None, stream=digest(pairs))


def _step_length(cell: Cell, loss: float, squared: float) -> float:
    """tau after a dissimilar pair with this loss.

    The loss is 1 + b - d for the threshold b and the distance d. One of them is 0: d comes from the initial
    matrix, b from an earlier similar pair in a direction of its own, so short that it changes nothing else.
    """
    d, b = max(0.0, 1 - loss), max(0.0, loss - 1)
    short = 0.01
    start = np.diag([d / squared, (1 + b) / short**2])
    learner = make(cell, init=start)
    if b > 0:
        learner.set_params(variant="PA-I", C=b).learn_one([0.0, short], [0.0, 0.0], 1)
        learner.set_params(**{"C": 1.0} | cell.parameters)
    learner.learn_one([np.sqrt(squared), 0.0], [0.0, 0.0], -1)
    return float((learner.get_mahalanobis_matrix()[0, 0] - start[0, 0]) / squared)
