"""Ranking by a similarity learnt from triplets.

Every class is divided into a training and a test part; triplets are drawn from the training labels; each test
item ranks the other test items. Settings:

train_share, or counts
    Share of every class that trains (0.7), or [training, test] items of each class.
division
    "random" (of every class, as these say), or "given": as the data set comes.
n_triplets
    Length of the stream.
k
    Lengths of the list for P@k.
stops
    Where along the stream mAP, sparsity and loss are recorded as curves.
knn
    Whether 1-NN of test items among training items is measured too.
group
    Only the rows of this group of the data set.
test_group
    The rows of this group test, all others train (instead of dividing every class).
train_fraction
    Share of the training part (of every class) that is kept.
dtype
    Precision of the items ("float64").
coordinates
    What to learn in: "features", or "span" (see `span`; for the learners named there, where there are
    fewer items than features).
pool
    What a test item ranks: "others" (the other test items) or "all" (itself among them).
max_test
    At most so many test items (a share of every class), where ranking all takes too long.
tuning_triplets
    Length of the stream while parameters are chosen (default: n_triplets); on 80 % of the training part,
    judged by mAP on the other 20 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstream import datasets

from ..clock import working_seconds
from ..plan import Cell
from .common import (
    Part,
    dataset,
    digest,
    make,
    model_measures,
    retrieval_measures,
    split_per_class,
    teach,
    triplet_stream,
)
from .common import choose as choose_parameters
from .span import KEEP_DISTANCES, Span

_TUNING_SHARE = 0.8


def parts(cell: Cell, seed: int) -> tuple[Part, Part]:
    """Training and test part, preprocessed with what the training part says."""
    data = dataset(cell.data)
    rng = np.random.default_rng(seed)
    settings = cell.settings
    rows = np.arange(len(data.labels))
    if settings.get("group"):
        rows = np.flatnonzero(np.asarray(data.groups) == settings["group"])
    labels = np.asarray(data.labels)[rows]
    if settings.get("test_group"):
        is_test = np.asarray(data.groups)[rows] == settings["test_group"]
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    elif _choice(settings, "division", "random", "given") == "given":
        if not data.splits or len(rows) < len(data.labels):
            raise ValueError(f"division: {cell.data} (all of its groups) has none that is given")
        train, test = (np.asarray(data.splits[name]) for name in ("train", "test"))
    else:
        train, test = split_per_class(
            labels, rng, share=settings.get("train_share", 0.7), counts=settings.get("counts")
        )
    if settings.get("train_fraction", 1.0) < 1.0:
        train = train[split_per_class(labels[train], rng, share=settings["train_fraction"])[0]]
    limit = settings.get("max_test")
    if limit is not None and len(test) > limit:
        kept = split_per_class(labels[test], rng, share=limit / len(test))[0]
        test = test[kept]
    items = data.items[rows].astype(settings.get("dtype", "float64"))
    prepared = datasets.prepare(items, cell.preprocessing, fit_rows=train).items
    whole = Part(prepared, labels)
    return whole.rows(train), whole.rows(test)


def run(cell: Cell) -> dict[str, Any]:
    """Train on the training part of this seed, measure on its test part."""
    train, test = parts(cell, cell.seed)
    settings = cell.settings
    with_itself = _choice(settings, "pool", "others", "all") == "all"
    triplets = triplet_stream(train.labels, settings["n_triplets"], cell.seed)
    curves: dict[str, dict[str, list[float]]] = {}

    def at_stop(n: int, model: Any) -> None:
        found = _model_measures(model, span)
        found |= retrieval_measures(model, test, None, (), with_itself=with_itself)
        for name, value in found.items():
            curve = curves.setdefault(name, {"x": [], "y": []})
            curve["x"].append(n)
            curve["y"].append(value)

    model = make(cell)
    begin = working_seconds()
    train, test, span = _coordinates(cell, train, test)
    seconds = working_seconds() - begin if span is not None else 0.0
    stops = settings.get("stops", ())
    seconds += teach(model, train, triplets, stops=stops, at_stop=at_stop if stops else None)
    measures = retrieval_measures(
        model,
        test,
        train if settings.get("knn") else None,
        settings.get("k", ()),
        with_itself=with_itself,
    )
    return {
        "measures": measures | _model_measures(model, span) | {"seconds": seconds},
        "curves": curves,
        "parameters": cell.parameters,
        "seconds": seconds,
        "stream": digest(triplets),
        "n_train": len(train.labels),
        "n_test": len(test.labels),
    }


def _coordinates(cell: Cell, train: Part, test: Part) -> tuple[Part, Part, Span | None]:
    """Both parts in the coordinates to learn in, and the span if it is that of the items."""
    wanted = _choice(cell.settings, "coordinates", "features", "span")
    n_items, n_features = len(train.labels) + len(test.labels), train.items.shape[1]
    if wanted == "features" or n_items >= n_features or cell.learner not in KEEP_DISTANCES:
        return train, test, None
    span = Span(train.items, test.items)
    train, test = (Part(span.coordinates(one.items), one.labels) for one in (train, test))
    return train, test, span


def _choice(settings: dict[str, Any], name: str, *known: str) -> str:
    """A setting that is one of these words, the first if it is not given."""
    found = settings.get(name, known[0])
    if found not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {found!r}")
    return str(found)


def _model_measures(model: Any, span: Span | None) -> dict[str, float]:
    found = model_measures(model)
    if span is not None:
        found |= span.measures(model.get_mahalanobis_matrix(), found.get("rank"))
    return found


def tune(cell: Cell) -> dict[str, Any]:
    """Choose parameters on the training part of the first seed (of its own, if every run does)."""
    whole, _ = parts(cell, cell.data_seed)
    rng = np.random.default_rng(10_000)
    rows, held_out = split_per_class(whole.labels, rng, share=_TUNING_SHARE)
    train, test, _ = _coordinates(cell, whole.rows(rows), whole.rows(held_out))
    n = cell.settings.get("tuning_triplets", cell.settings["n_triplets"])
    triplets = triplet_stream(train.labels, n, 10_000)

    def evaluate(candidate: Cell) -> float:
        model = make(candidate)
        teach(model, train, triplets)
        return retrieval_measures(model, test, None, ())["mAP"]

    return choose_parameters(cell, evaluate)
