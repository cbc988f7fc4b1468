"""Ranking by a similarity learnt from triplets.

Every class is divided into a training and a test part; triplets are drawn from the training labels; each test
item ranks the other test items. Parameters are chosen by mAP on 20 % of the first seed's training part, with
learners trained on the other 80 %.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from simstream import datasets

from ..clock import working_seconds
from ..records import Cell
from .common import (
    TUNING_SHARE,
    Curves,
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
    retrieval_measures,
    split_per_class,
    teach,
    teach_from_labels,
    triplet_stream,
)

#: Learners of distances that learn the same in coordinates of the span of the items, see `Span`.
KEEP_DISTANCES = ("ITML", "LEGO", "LMNN", "PAMetric", "POLA", "RDML")

_ROWS_AT_A_TIME = 1000
#: Entries below this share of the largest are zeros but for rounding.
_ROUNDING = 1e-9


class RetrievalSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `retrieval`."""

    #: Length of the stream, and its length while parameters are chosen (default: the same).
    n_triplets: int
    tuning_triplets: int | None = None
    #: The training part: a share of every class, or [training, test] items of each class ..
    train_share: float = 0.7
    counts: tuple[int, int] | None = None
    #: .. or as the data set is distributed ("given") ..
    division: Literal["random", "given"] = "random"
    #: .. or all rows but those of this group of the data set, which test.
    test_group: str = ""
    #: Only the rows of this group of the data set.
    group: str = ""
    #: Share of the training part (of every class) that is kept.
    train_fraction: float = 1.0
    #: At most so many test items (a share of every class), where ranking all takes too long.
    max_test: int | None = None
    dtype: Literal["float32", "float64"] = "float64"
    #: What to learn in; "span" for the learners of `KEEP_DISTANCES`, where features outnumber items.
    coordinates: Literal["features", "span"] = "features"
    #: What a test item ranks: the other test items, or all of them, itself included.
    pool: Literal["others", "all"] = "others"
    #: List lengths of P@k.
    k: tuple[int, ...] = ()
    #: Where along the stream mAP, sparsity and loss are recorded as curves.
    stops: tuple[int, ...] = ()
    #: Parameters of `simstream.FromLabels`, which then draws what learners learn from (batch learners take
    #: the labels themselves); without them, all learn from the same triplets.
    from_labels: dict[str, Any] | None = None
    #: Parameters of those learners that have them.
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Whether 1-NN of test items among training items is measured too.
    knn: bool = False

    def __post_init__(self) -> None:
        if self.from_labels is not None and (self.stops or self.tuning_triplets is not None):
            raise ValueError("from_labels: expected no stops and no tuning_triplets beside it")


def parts(
    cell: Cell, settings: RetrievalSettings, seed: int
) -> tuple[LabelledItems, LabelledItems]:
    """Training and test part, preprocessed by statistics of the training part."""
    data = dataset(cell.data)
    rng = np.random.default_rng(seed)
    rows = np.arange(len(data.labels))
    if settings.group:
        rows = np.flatnonzero(np.asarray(data.groups) == settings.group)
    labels = np.asarray(data.labels)[rows]
    if settings.test_group:
        is_test = np.asarray(data.groups)[rows] == settings.test_group
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    elif settings.division == "given":
        if not data.splits or len(rows) < len(data.labels):
            raise ValueError(
                f"division: {cell.data} (with all its groups) is not distributed divided"
            )
        train, test = (np.asarray(data.splits[name]) for name in ("train", "test"))
    else:
        train, test = split_per_class(
            labels, rng, share=settings.train_share, counts=settings.counts
        )
    if settings.train_fraction < 1.0:
        train = train[split_per_class(labels[train], rng, share=settings.train_fraction)[0]]
    limit = settings.max_test
    if limit is not None and len(test) > limit:
        test = test[split_per_class(labels[test], rng, share=limit / len(test))[0]]
    items = data.items[rows].astype(settings.dtype)
    prepared = datasets.prepare(items, cell.preprocessing, fit_rows=train).items
    whole = LabelledItems(prepared, labels)
    return whole.rows(train), whole.rows(test)


def run(cell: Cell, settings: RetrievalSettings) -> dict[str, Any]:
    """Train on the training part of this seed, measure on its test part."""
    train, test = parts(cell, settings, cell.seed)
    with_itself = settings.pool == "all"
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    curves: Curves = {}

    def at_stop(n: int, model: Any) -> None:
        found = span_measures(model, span)
        found |= retrieval_measures(model, test, None, (), with_itself=with_itself)
        for name, value in found.items():
            add_point(curves, name, n, value)

    model = _make(cell, settings)
    begin = working_seconds()
    train, test, span = in_coordinates(cell, settings, train, test)
    seconds = working_seconds() - begin if span is not None else 0.0
    stops, how = settings.stops, settings.from_labels
    if how is None:
        seconds += teach(model, train, triplets, stops=stops, at_stop=at_stop if stops else None)
    else:
        model, own = teach_from_labels(model, train, settings.n_triplets, cell.seed, how)
        seconds += own
    known = train if settings.knn else None
    measures = retrieval_measures(model, test, known, settings.k, with_itself=with_itself)
    measures |= span_measures(model, span) | {"seconds": seconds}
    n_train, n_test = len(train.labels), len(test.labels)
    stream = digest(triplets) if how is None else ""
    return record(cell, measures, curves, seconds, stream=stream, n_train=n_train, n_test=n_test)


def _make(cell: Cell, settings: RetrievalSettings) -> Any:
    """The learner of a cell, with those of the options that it has."""
    model = make(cell)
    has = model.get_params(deep=False)
    return model.set_params(**{name: one for name, one in settings.options.items() if name in has})


def tune(cell: Cell, settings: RetrievalSettings) -> dict[str, Any]:
    """Choose parameters on the training part of the first seed (of each, if every run does)."""
    if settings.from_labels is not None:
        raise ValueError("from_labels: expected methods without a grid")
    whole, _ = parts(cell, settings, cell.data_seed)
    rng = np.random.default_rng(10_000)
    rows, held_out = split_per_class(whole.labels, rng, share=TUNING_SHARE)
    train, test, _ = in_coordinates(cell, settings, whole.rows(rows), whole.rows(held_out))
    n = settings.tuning_triplets or settings.n_triplets
    triplets = triplet_stream(train.labels, n, 10_000)

    def evaluate(candidate: Cell) -> float:
        model = _make(candidate, settings)
        teach(model, train, triplets)
        return retrieval_measures(model, test, None, ())["mAP"]

    return choose(cell, evaluate)


# -- coordinates in the span of the items ------------------------------------------------------------------


class Span:
    """An orthonormal basis of the span of the items, plus one direction that no item has.

    For full matrices where features outnumber items. Most learners of distances start from the identity, or
    from nothing, and move along differences of items: all they learn lies in the span of the items, and an
    orthonormal basis of it keeps every distance. Only the zeros of M have to be counted in the features
    themselves. What a learner leaves in the extra direction is what it leaves in all directions outside the
    span. This is not so for RCA, OnlineITML and MCML, whose initial matrix or regularisation depends on the
    number of features.

    Parameters
    ----------
    *items : arrays or CSR matrices of shape (n_items, n_features)

    Examples
    --------
    >>> items = np.array([[1.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
    >>> span = Span(items)
    >>> inside = span.coordinates(items)
    >>> inside.shape
    (2, 3)
    >>> np.allclose(inside @ inside.T, items @ items.T)
    True
    >>> span.zero_share(np.eye(3))
    0.75
    """

    def __init__(self, *items: Any) -> None:
        stacked = np.vstack([dense(some) for some in items])
        self._basis, _ = np.linalg.qr(stacked.T.astype(np.float64))

    def coordinates(self, items: Any) -> np.ndarray:
        """Items in these coordinates, with a zero for the direction that none has."""
        inside = np.asarray(items @ self._basis)
        return np.hstack([inside, np.zeros((len(inside), 1))])

    def measures(self, matrix: np.ndarray, rank: float | None) -> dict[str, float]:
        """Share of zeros and rank of M over the features, from M and its rank in these coordinates."""
        found = {"sparsity": self.zero_share(matrix)}
        if rank is not None:  # the one direction outside stands for all of them
            d, r = self._basis.shape
            found["rank"] = rank + (d - r - 1 if matrix[-1, -1] != 0 else 0)
        return found

    def zero_share(self, matrix: np.ndarray) -> float:
        """Share of zeros in M over the features, from M in these coordinates."""
        outside = matrix[-1, -1]
        inside = matrix[:-1, :-1] - outside * np.eye(len(matrix) - 1)
        d = len(self._basis)
        largest, magnitudes = 0.0, []
        for start in range(0, d, _ROWS_AT_A_TIME):
            rows = self._basis[start : start + _ROWS_AT_A_TIME] @ inside @ self._basis.T
            own = np.arange(len(rows))
            rows[own, start + own] += outside
            largest = max(largest, float(np.abs(rows).max()))
            magnitudes.append(np.abs(rows).astype(np.float32))
        n_zeros = sum(int((rows <= _ROUNDING * largest).sum()) for rows in magnitudes)
        return n_zeros / d**2


def in_coordinates(
    cell: Cell, settings: RetrievalSettings, train: LabelledItems, test: LabelledItems
) -> tuple[LabelledItems, LabelledItems, Span | None]:
    """Both parts in the coordinates to learn in, and the span if these are its."""
    n_items, n_features = len(train.labels) + len(test.labels), train.items.shape[1]
    if (
        settings.coordinates == "features"
        or n_items >= n_features
        or cell.learner not in KEEP_DISTANCES
    ):
        return train, test, None
    span = Span(train.items, test.items)
    train, test = (LabelledItems(span.coordinates(one.items), one.labels) for one in (train, test))
    return train, test, span


def span_measures(model: Any, span: Span | None) -> dict[str, float]:
    """What a model says about itself, counted in the features where it was learnt in a span."""
    found = model_measures(model)
    if span is not None:
        found |= span.measures(model.get_mahalanobis_matrix(), found.get("rank"))
    return found
