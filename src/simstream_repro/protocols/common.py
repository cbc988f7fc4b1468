"""What protocols share: data, splits, streams, teaching a learner, measuring a model, choosing parameters."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone

import simstream
from simstream import TripletSampler, datasets, metrics
from simstream.datasets.facts import facts
from simstream.datasets.sizes import differences

from ..clock import working_seconds
from ..plan import Cell

#: Triplets learnt from before the clock starts, so that compiled code is loaded.
WARM_UP = 64


class Part(NamedTuple):
    """Items with their labels."""

    items: Any
    labels: np.ndarray

    def rows(self, rows: np.ndarray) -> Part:
        """Some of them."""
        return Part(self.items[rows], self.labels[rows])


def dense(items: Any) -> Any:
    """Items as an array, for what reads nothing else."""
    return items.toarray() if sparse.issparse(items) else items


@cache
def dataset(name: str) -> Any:
    """A data set, loaded once in a process; it must be the one that plans and verdicts are about."""
    found = datasets.load(name)
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


def digest(*arrays: np.ndarray) -> str:
    """A short name of a stream: methods of one run that saw the same have the same."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


def make(cell: Cell, **parameters: Any) -> Any:
    """The learner of a cell, with its parameters and these."""
    given = cell.parameters | parameters
    if given.pop("gradient", "exact") == "printed":
        return PrintedGradient(**given)
    return getattr(simstream, cell.learner)(**given)


class PrintedGradient(simstream.OSLLRGS):
    """OSLLR-GS with the one of the gradient's two terms that its paper prints."""

    _exact_gradient = False


def teach(
    learner: Any,
    train: Part,
    triplets: np.ndarray,
    *,
    stops: Sequence[int] = (),
    at_stop: Callable[[int, Any], None] | None = None,
) -> float:
    """Train in the way the learner is made for; CPU seconds of training alone.

    Learners from labels get the items (dense: they read nothing else), ITML and pair learners the pairs
    (anchor, positive) and (anchor, negative) of the triplets.
    """
    seconds = 0.0
    kind = getattr(learner, "natural_tuples", "labels")
    if isinstance(learner, (simstream.Dot, simstream.Euclidean)):  # nothing to learn
        learner.set_params(preprocessor=train.items).prepare()
        return seconds
    if isinstance(learner, simstream.ITML):
        learner.set_params(preprocessor=train.items)
        pairs = np.stack([triplets[:, :2], triplets[:, ::2]], axis=1).reshape(-1, 2)
        signs = np.tile([1, -1], len(triplets))
        start = working_seconds()
        learner.fit_pairs(pairs, signs)
        return working_seconds() - start
    if kind == "labels":
        items = dense(train.items)
        start = working_seconds()
        learner.fit(items, train.labels)
        return working_seconds() - start
    learner.set_params(preprocessor=train.items)
    clone(learner).fit(triplets[:WARM_UP])
    if at_stop is None or not hasattr(learner, "partial_fit"):
        start = working_seconds()
        learner.fit(triplets)
        return working_seconds() - start
    done = 0
    for stop in sorted({*stops, len(triplets)}):
        start = working_seconds()
        (learner.partial_fit if done else learner.fit)(triplets[done:stop])
        seconds += working_seconds() - start
        done = stop
        at_stop(stop, learner)
    return seconds


def model_measures(model: Any) -> dict[str, float]:
    """What can be said of a model by itself: zeros of M, rank, losses seen while learning."""
    found: dict[str, float] = {}
    names = {
        "sparsity_": "sparsity",
        "rank_": "rank",
        "effective_dimension_": "rank",
        "average_loss_": "average loss",
        "mistake_rate_": "mistake rate",
        "n_updates_": "updates",
    }
    for attribute, name in names.items():
        value = getattr(model, attribute, None)
        if value is not None:
            found[name] = float(value)
    return found


def retrieval_measures(
    model: Any, test: Part, train: Part | None, k: Sequence[int], *, with_itself: bool = False
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


def choose(
    cell: Cell, evaluate: Callable[[Cell], float], *, higher_is_better: bool = True
) -> dict[str, Any]:
    """Try every combination of the grid; the first of equals wins. What fails or diverges is left out."""
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


def triplet_stream(labels: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The triplets that every method of a run sees."""
    return TripletSampler(labels, seed).draw(n)
