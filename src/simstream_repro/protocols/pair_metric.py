"""A distance learnt from pairs of one half of the data, judged by k-NN on the other half.

With c classes, r = 40 c (c - 1) different pairs of the training half are drawn at random (all pairs, if there
are fewer) and shown in the same order again and again: max(2r, min(n (n - 2) / 40, 50r)) steps, n the size of
the whole data set. Learners that are not online get the r pairs once. Settings:

k
    Numbers of neighbours, by default 1 to 25. The error for each is recorded as curves, plain and
    class-averaged (the mean over classes of the error within the class), with a tied vote going to the class
    of the nearest of the tied, or to the first class.
class_order
    "reversed" if the last label is the first class.
stops
    So many moments along the stream, evenly spaced on a logarithmic scale, at which losses and effective
    dimension are recorded as curves, in a second training: the first one is timed as a whole.
truncated
    So many numbers of dimensions, down from all, at which the error with `truncated_k` neighbours (2) of the
    metric without the others is recorded.
eager_steps
    So many steps of the plain NumPy version of the learner are timed, where there is one (see `eager`).
tuning
    "every run" to choose parameters anew for each (see `plan`).
tuning_error
    Which of these errors parameters are chosen by: "class-averaged" (default), "plain", or one of them
    followed by ", ties to the first class"; leave-one-out on the training half, smallest over k.
tuning_steps
    "one pass" over the pairs (default) or "all" steps before that error is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simstream import PairSampler, datasets, metrics

from ..clock import working_seconds
from ..plan import Cell
from .common import Part, choose, dataset, digest, make, model_measures
from .eager import eager_pa, extrapolated_seconds

_K = range(1, 26)
_TIES_TO_THE_FIRST = ", ties to the first class"

#: Fits shorter than this in all are repeated, at most so often, and the median is taken.
_REPEAT_SECONDS, _MOST_REPEATS = 0.2, 5

#: Pairs learnt before the clock starts, so that compiled code is loaded.
_WARM_UP = 600


class _Run(NamedTuple):
    """Both halves, the pairs of the training half, and how many steps go through them."""

    train: Part
    test: Part
    pairs: np.ndarray
    signs: np.ndarray
    n_steps: int

    def stream(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs again and again."""
        return np.resize(self.pairs, (self.n_steps, 2)), np.resize(self.signs, self.n_steps)


def _prepare(cell: Cell) -> _Run:
    data = dataset(cell.data)
    labels = np.asarray(data.labels)
    n, c = len(labels), len(np.unique(labels))
    rng = np.random.default_rng(cell.data_seed)
    train, test = np.split(rng.permutation(n), [n // 2])
    whole = Part(datasets.prepare(data.items, cell.preprocessing, fit_rows=train).items, labels)
    pairs, signs = PairSampler(labels[train], rng).draw_distinct(40 * c * (c - 1))
    r = len(pairs)
    n_steps = max(2 * r, min(n * (n - 2) // 40, 50 * r))
    return _Run(whole.rows(train), whole.rows(test), pairs, signs, n_steps)


def run(cell: Cell) -> dict[str, Any]:
    """Learn from the training half, measure on the test half."""
    given, settings = _prepare(cell), cell.settings
    model, seconds = _learn(cell, given)
    curves = _knn_curves(model, given, settings)
    measures = model_measures(model)
    if hasattr(model, "violation_rate_"):
        measures["violation rate"] = model.violation_rate_
    if seconds is not None:
        measures["seconds"] = seconds
    if settings.get("stops") and hasattr(model, "partial_fit"):
        curves |= _online_curves(
            make(cell, preprocessor=given.train.items), given, settings["stops"]
        )
    if settings.get("truncated"):
        curves |= _truncation_curves(model, given, settings)
    if settings.get("eager_steps") and cell.learner == "PAMetric":
        measures["eager seconds"] = _eager_seconds(cell, given)
    return {
        "measures": measures,
        "curves": {name: _rounded(curve) for name, curve in curves.items()},
        "parameters": cell.parameters,
        "seconds": seconds,
        "stream": digest(given.pairs, given.signs),
        "n_pairs": len(given.pairs),
        "n_steps": given.n_steps,
    }


def _eager_seconds(cell: Cell, given: _Run) -> float:
    pairs, signs = given.stream()

    def learn(n: int) -> None:
        eager_pa(given.train.items, pairs[:n], signs[:n], **cell.parameters)

    steps = min(cell.settings["eager_steps"], given.n_steps)
    return extrapolated_seconds(learn, steps, given.n_steps)


def tune(cell: Cell) -> dict[str, Any]:
    """Choose parameters on the training half. A grid of "auto" alone is left to the learner itself."""
    given, settings = _prepare(cell), cell.settings
    items, labels = given.train
    if list(cell.grid.values()) == [["auto"]]:
        (name,) = cell.grid
        options = {name: "auto", "n_constraints": len(given.pairs), "random_state": cell.data_seed}
        model = make(cell, **options).fit(items, labels)
        tried = [[{name: float(value)}, float(score)] for value, score in model.tuning_]
        return {"parameters": {name: getattr(model, f"{name}_")}, "tried": tried, "measures": {}}
    kind = settings.get("tuning_error", "class-averaged")
    ties = "first" if kind.endswith(_TIES_TO_THE_FIRST) else "nearest"
    averaged = kind.removesuffix(_TIES_TO_THE_FIRST) == "class-averaged"
    everything = settings.get("tuning_steps", "one pass") == "all"
    stream = given.stream() if everything else (given.pairs, given.signs)

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


def _online_curves(learner: Any, given: _Run, n_stops: int) -> dict[str, dict[str, list[float]]]:
    """What is known before each step, averaged so far, and the dimension reached."""
    pairs, signs = given.stream()
    names = {
        "predictive loss": "mistake_rate_",
        "violation rate": "violation_rate_",
        "effective dimension": "effective_dimension_",
    }
    curves: dict[str, dict[str, list[float]]] = {name: {"x": [], "y": []} for name in names}
    done = 0
    for stop in np.unique(np.geomspace(1, given.n_steps, n_stops).round().astype(int)).tolist():
        learner.partial_fit(pairs[done:stop], signs[done:stop])
        done = stop
        for name, attribute in names.items():
            curves[name]["x"].append(stop)
            curves[name]["y"].append(float(getattr(learner, attribute)))
    return curves


# -- measuring --------------------------------------------------------------------------------------------


def _knn_curves(model: Any, given: _Run, settings: dict[str, Any]) -> dict[str, dict[str, list]]:
    lengths = _lengths(settings)
    curves = {}
    for ties in ("nearest", "first"):
        errors = _knn_errors(model, given.test, given.train, settings, ties)
        for averaged, kind in enumerate(("plain", "class-averaged")):
            name = f"k-NN error, {kind}" + (_TIES_TO_THE_FIRST if ties == "first" else "")
            curves[name] = {"x": lengths, "y": errors[averaged].tolist()}
    return curves


def _lengths(settings: dict[str, Any]) -> list[int]:
    return list(settings.get("k", _K))


def _knn_errors(
    model: Any, queries: Part, known: Part | None, settings: dict[str, Any], ties: str
) -> tuple[np.ndarray, np.ndarray]:
    """Plain and class-averaged error for every k; leave-one-out on the queries if nothing else is known."""
    loo = known is None
    known = queries if known is None else known
    lengths = _lengths(settings)
    if ties == "nearest":
        plain, averaged = (
            metrics.knn_error_curve(
                model, *queries, *known, lengths, class_averaged=averaged, exclude_self=loo
            )
            for averaged in (False, True)
        )
        return plain, averaged
    wrong = _wrong_with_ties_to_the_first(model, queries, known, lengths, settings, loo)
    within = [wrong[queries.labels == one].mean(axis=0) for one in np.unique(queries.labels)]
    return wrong.mean(axis=0), np.mean(within, axis=0)


def _wrong_with_ties_to_the_first(
    model: Any,
    queries: Part,
    known: Part,
    lengths: Sequence[int],
    settings: dict[str, Any],
    loo: bool,
) -> np.ndarray:
    """Whether each query (row) is put into a wrong class, for every k (column)."""
    order = np.unique(np.concatenate([queries.labels, known.labels]))
    if settings.get("class_order") == "reversed":
        order = order[::-1]
    a, b = (part.items @ model.components_.T for part in (queries, known))
    distances = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1) - 2 * a @ b.T
    if loo:
        np.fill_diagonal(distances, np.inf)
    near = known.labels[np.argsort(distances, axis=1, kind="stable")[:, : max(lengths)]]
    votes = np.cumsum(near[:, :, None] == order, axis=1, dtype=np.int16)
    said = order[votes.argmax(axis=2)[:, np.array(lengths) - 1]]
    return said != queries.labels[:, None]


def _truncation_curves(
    model: Any, given: _Run, settings: dict[str, Any]
) -> dict[str, dict[str, list[float]]]:
    """Class-averaged error of the metric with only its q largest directions."""
    d = given.train.items.shape[1]
    k = settings.get("truncated_k", 2)
    sizes = np.unique(np.geomspace(1, d, settings["truncated"]).round().astype(int)).tolist()
    curves: dict[str, dict[str, list[float]]] = {}
    for ties in ("nearest", "first"):
        name = f"{k}-NN error, truncated" + (_TIES_TO_THE_FIRST if ties == "first" else "")
        errors = [
            float(
                _knn_errors(
                    model.truncated(q), given.test, given.train, settings | {"k": [k]}, ties
                )[1][0]
            )
            for q in sizes
        ]
        curves[name] = {"x": sizes, "y": errors}
    return curves


def _rounded(curve: dict[str, list]) -> dict[str, list]:
    return {"x": curve["x"], "y": [round(value, 5) for value in curve["y"]]}
