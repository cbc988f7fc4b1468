"""What protocols share: data, splits, streams, teaching a learner, measuring a model, choosing parameters."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone

import simstream
from simstream import OSLLRGS, FromLabels, TripletSampler, datasets, metrics
from simstream.datasets.facts import differences, facts

from ..clock import working_seconds
from ..records import Cell
from ..typed import TypedTable

#: Triplets learnt before the clock starts, so that compiled code is loaded.
WARM_UP = 64

#: Share of the training part that trains while parameters are chosen; the rest judges.
TUNING_SHARE = 0.8

Curves = dict[str, dict[str, list[Any]]]


class ProtocolSettings(TypedTable, frozen=True, kw_only=True):
    """What a study may tell its protocol; a key that is not a field is refused."""

    #: "every run" chooses parameters anew for each seed instead of once, on the data of the first.
    tuning: Literal["first run", "every run"] = "first run"


class LabelledItems(NamedTuple):
    """Items with their labels."""

    items: Any
    labels: np.ndarray

    def rows(self, rows: np.ndarray) -> LabelledItems:
        """Some of them."""
        return LabelledItems(self.items[rows], self.labels[rows])


def dense(items: Any) -> Any:
    """Items as an array, for learners that cannot read sparse matrices."""
    return items.toarray() if sparse.issparse(items) else items


#: Data sets that this process has loaded -> digest of their file, None where there is no file.
_loaded: dict[str, str | None] = {}


def data_digest(name: str) -> str | None:
    """SHA-256 of the file of a data set that this process has loaded; None if it has not, or has no file."""
    return _loaded.get(name)


@cache
def dataset(name: str) -> Any:
    """A data set, loaded once a process and checked to be the one that plans and verdicts are about."""
    found = datasets.load(name)
    _loaded[name] = found.digest
    if name in datasets.names() and (
        differing := differences(facts(name), found.items, found.labels)
    ):
        raise ValueError(f"{name}: expected the data set as it is listed, got {differing}")
    return found


def split_per_class(
    labels: np.ndarray, rng: np.random.Generator, *, share: float = 0.7, counts: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a training and a test part: a share of every class, or (n_train, n_test) of each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train, test = split_per_class(np.repeat([0, 1], 10), rng, share=0.7)
    >>> len(train), len(test)
    (14, 6)
    """
    train, test = [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        if counts is not None:
            n_train, n_test = counts
        else:
            n_train = round(share * len(members))
            n_test = len(members) - n_train
        train.append(members[:n_train])
        test.append(members[n_train : n_train + n_test])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def triplet_stream(labels: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The triplets that every method of a run sees."""
    return TripletSampler(labels, seed).draw(n)


def n_training_pairs(n_items: int, n_classes: int) -> int:
    """How many pairs the PA family learns from: 40 c (c - 1), but not more than the items have.

    Examples
    --------
    >>> n_training_pairs(89, 3), n_training_pairs(145, 20)
    (240, 10440)
    """
    return min(40 * n_classes * (n_classes - 1), n_items * (n_items - 1) // 2)


def digest(*arrays: np.ndarray) -> str:
    """A short digest of a stream: the same for all methods of a run that saw the same stream."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


class PrintedOSLLRGS(OSLLRGS):
    """OSLLR-GS with the gradient that its paper prints, which lacks one of two terms."""

    _exact_gradient = False


def make(cell: Cell, **parameters: Any) -> Any:
    """The learner of a cell, with its parameters and these.

    Examples
    --------
    >>> cell = Cell("s", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {"C": 0.5}, {}, 0, {})
    >>> make(cell, block_size=1)
    OASIS(C=0.5, block_size=1)
    """
    given = cell.parameters | parameters
    if given.pop("gradient", "exact") == "printed":
        return PrintedOSLLRGS(**given)
    return getattr(simstream, cell.learner)(**given)


def teach(
    learner: Any,
    train: LabelledItems,
    triplets: np.ndarray,
    *,
    stops: Sequence[int] = (),
    at_stop: Callable[[int, Any], None] | None = None,
) -> float:
    """Train in the way the learner is made for; CPU seconds of training alone.

    Learners from labels get the items (dense: they read nothing else), ITML and pair learners the pairs
    (anchor, positive) and (anchor, negative) of the triplets.
    """
    kind = getattr(learner, "natural_tuples", "labels")
    if isinstance(learner, (simstream.Dot, simstream.Euclidean)):  # nothing to learn
        learner.set_params(preprocessor=train.items).prepare()
        return 0.0
    if isinstance(learner, simstream.ITML):
        learner.set_params(preprocessor=train.items)
        pairs = np.stack([triplets[:, :2], triplets[:, ::2]], axis=1).reshape(-1, 2)
        signs = np.tile([1, -1], len(triplets))
        warm_up(clone(learner).fit_pairs, pairs[:WARM_UP], signs[:WARM_UP])
        return seconds_of(learner.fit_pairs, pairs, signs)
    if kind == "labels":
        return seconds_of_labels(learner, train)
    learner.set_params(preprocessor=train.items)
    warm_up(clone(learner).fit, triplets[:WARM_UP])
    if at_stop is None or not hasattr(learner, "partial_fit"):
        return seconds_of(learner.fit, triplets)
    seconds, done = 0.0, 0
    for stop in sorted({*stops, len(triplets)}):
        seconds += seconds_of(learner.partial_fit if done else learner.fit, triplets[done:stop])
        done = stop
        at_stop(stop, learner)
    return seconds


def teach_from_labels(
    learner: Any, train: LabelledItems, n_triplets: int, seed: int, how: dict[str, Any]
) -> tuple[Any, float]:
    """Train as one would from class labels: the learner that has learnt, and CPU seconds of training alone.

    `FromLabels` with the parameters `how` draws the tuples: as many triplets, as many lists, or the pairs
    of as many triplets, two for each. Batch learners get the labels themselves.
    """
    kind = getattr(learner, "natural_tuples", "labels")
    if kind == "labels":
        return learner, seconds_of_labels(learner, train)
    draws_pairs = kind == "pairs" and how.get("tuples", "auto") != "triplets"
    n_tuples = 2 * n_triplets if draws_pairs else n_triplets
    model = FromLabels(learner, n_tuples=n_tuples, random_state=seed, **how)
    warm_up(clone(model).set_params(n_tuples=WARM_UP).fit, *train)
    seconds = seconds_of(model.fit, *train)
    return model.learner_, seconds


def warm_up(work: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Do a small piece of work before the clock starts, so that code and libraries are loaded."""
    with warnings.catch_warnings(), contextlib.suppress(ValueError):  # too small a piece for some
        warnings.simplefilter("ignore")
        work(*arguments, **options)


def seconds_of_labels(learner: Any, train: LabelledItems, *tasks: np.ndarray) -> float:
    """CPU seconds of a batch learner on labelled items, after a first iteration on a few of them."""
    few = np.concatenate(
        [np.flatnonzero(train.labels == one)[:WARM_UP] for one in np.unique(train.labels)[:3]]
    )
    small = clone(learner)
    if "max_iter" in small.get_params():
        small.set_params(max_iter=1)
    items = dense(train.items)
    warm_up(small.fit, items[few], train.labels[few], *(one[few] for one in tasks))
    return seconds_of(learner.fit, items, train.labels, *tasks)


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    """CPU seconds of a call, without compiling."""
    start = working_seconds()
    work(*arguments)
    return working_seconds() - start


def extrapolated_seconds(learn: Callable[[int], Any], n_timed: int, n: int) -> float:
    """CPU seconds of n steps of ``learn(number of steps)``, from those of the first `n_timed`."""
    return seconds_of(learn, n_timed) * n / n_timed


def model_measures(model: Any) -> dict[str, float]:
    """What a model says about itself: zeros of M, rank, losses seen while learning."""
    names = {
        "sparsity_": "sparsity",
        "rank_": "rank",
        "effective_dimension_": "rank",
        "average_loss_": "average loss",
        "mistake_rate_": "mistake rate",
        "n_updates_": "updates",
    }
    return {
        name: float(value)
        for attribute, name in names.items()
        if (value := getattr(model, attribute, None)) is not None
    }


def retrieval_measures(
    model: Any,
    test: LabelledItems,
    train: LabelledItems | None,
    k: Sequence[int],
    *,
    with_itself: bool = False,
) -> dict[str, float]:
    """Each test item ranks the other test items; with a training part, 1-NN among its items too."""
    pool = test if with_itself else (None, None)
    report = metrics.ranking_report(model, test.items, test.labels, *pool, k=tuple(k))
    found = {name: report[name] for name in ("mAP", *(f"P@{one}" for one in k))}
    if train is not None:
        error = metrics.knn_error_curve(
            model, test.items, test.labels, train.items, train.labels, (1,)
        )
        found["1-NN error"] = float(error[0])
    return found


def record(
    cell: Cell, measures: dict[str, Any], curves: Curves, seconds: float | None, **more: Any
) -> dict[str, Any]:
    """What ``run`` returns."""
    common: dict[str, Any] = {"measures": measures, "curves": curves, "parameters": cell.parameters}
    if (data := data_digest(cell.data)) is not None:
        common["data_sha256"] = data
    return common | {"seconds": seconds} | more


def add_point(curves: Curves, name: str, x: float, y: float) -> None:
    """Append a point to a curve, which may be new."""
    curve = curves.setdefault(name, {"x": [], "y": []})
    curve["x"].append(x)
    curve["y"].append(y)


def choose(
    cell: Cell, evaluate: Callable[[Cell], float], *, higher_is_better: bool = True
) -> dict[str, Any]:
    """Try every combination of the grid; the first of equals wins, and those that diverge are left out."""
    tried = []
    names = list(cell.grid)
    for values in itertools.product(*cell.grid.values()):
        parameters = dict(zip(names, values, strict=True))
        try:
            value = evaluate(cell.with_parameters(parameters))
        except simstream.DivergedError:
            value = float("nan")
        tried.append((parameters, value))
    good = [one for one in tried if np.isfinite(one[1])]
    if not good:
        raise ValueError(f"{cell.name}: every combination of the grid diverged")
    best = (max if higher_is_better else min)(good, key=lambda one: one[1])
    return {"parameters": best[0], "tried": [list(one) for one in tried], "measures": {}}
