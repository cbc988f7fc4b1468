"""The contenders: each learns from a task and gives back how it scores.

To add one, write a function for each kind of task it can learn from, and list it in `CONTENDERS`. The
clock and the memory are measured around the function. What it depends on belongs in `parameters`, so that
changing it makes new records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from simstream import OASIS, RCA, Adapter, ListwiseSoftmax, TripletSampler
from simstream.similarity.mahalanobis import Spectrum

from . import torch_layers
from .tasks import LabelTask, SearchTask, TripletTask

Kind = Literal["search", "labels", "triplets"]

#: (n_queries, d) and (n_items, d) arrays to (n_queries, n_items) scores, higher = more similar.
Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Learnt(NamedTuple):
    """How a contender scores, and what its record should say about it."""

    scores: Scores
    details: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Attributes
    ----------
    note : str
        What it is, for the page.
    search, labels, triplets : functions, optional
        From a task and the parameters to `Learnt`; None where it cannot learn from such a task.
    parameters : mapping
        Handed over as keywords, and part of the identity of a record.
    needs : tuple of str
        Modules beyond those of simstream.
    role : {"baseline", "opponent", "simstream"}
        What it is compared with: nothing learnt, layers trained in batches, or the others.
    """

    note: str
    role: Literal["baseline", "opponent", "simstream"] = "simstream"
    search: Callable[..., Learnt] | None = None
    labels: Callable[..., Learnt] | None = None
    triplets: Callable[..., Learnt] | None = None
    parameters: Mapping[Kind, Mapping[str, Any]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def learn(self, kind: Kind, task: Any) -> Learnt:
        """Learn from a task."""
        work: Callable[..., Learnt] | None = getattr(self, kind)
        if work is None:
            raise ValueError(f"kind: expected one that {self.note} learns from, got {kind!r}")
        return work(task, **self.parameters.get(kind, {}))


def inner_products(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Scores of vectors as they are.

    Examples
    --------
    >>> inner_products(np.array([[1.0, 2.0]]), np.eye(2)).tolist()
    [[1.0, 2.0]]
    """
    return queries @ items.T


def query_map(matrix: np.ndarray) -> Scores:
    """Scores of mapped queries against unchanged items.

    Examples
    --------
    >>> query_map(np.diag([2.0, 1.0]))(np.ones((1, 2)), np.eye(2)).tolist()
    [[2.0, 1.0]]
    """
    return lambda queries, items: (queries @ matrix) @ items.T


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows scaled to length one; those of zeros stay.

    Examples
    --------
    >>> unit_rows(np.array([[0.0, 2.0], [0.0, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, np.finfo(rows.dtype).tiny)


def cosine(matrix: np.ndarray | None = None) -> Scores:
    """Cosines, of items mapped by a layer if there is one.

    Examples
    --------
    >>> cosine()(np.array([[2.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 5.0]])).tolist()
    [[1.0, 0.0]]
    """

    def unit(rows: np.ndarray) -> np.ndarray:
        return unit_rows(rows if matrix is None else rows @ matrix)

    return lambda queries, items: unit(queries) @ unit(items).T


# -- nothing learnt -----------------------------------------------------------------------------------------


def _inner_product(task: SearchTask) -> Learnt:
    return Learnt(inner_products)


def _cosine(task: LabelTask | TripletTask) -> Learnt:
    return Learnt(cosine())


# -- torch --------------------------------------------------------------------------------------------------


def _torch_query_map(task: SearchTask) -> Learnt:
    matrix, details = torch_layers.train_query_map(task)
    return Learnt(query_map(matrix), details)


def _torch_supcon(task: LabelTask) -> Learnt:
    matrix, details = torch_layers.train_supcon(task)
    return Learnt(cosine(matrix), details)


def _torch_label_triplets(task: LabelTask) -> Learnt:
    matrix, details = torch_layers.train_triplet_loss(task)
    return Learnt(cosine(matrix), details)


def _torch_human_triplets(task: TripletTask) -> Learnt:
    matrix, details = torch_layers.train_on_triplets(task)
    return Learnt(cosine(matrix), details)


# -- Adapter ------------------------------------------------------------------------------------------------


def _adapter(task: SearchTask) -> Learnt:
    adapter = Adapter(random_state=task.seed).fit(task.queries, task.items, task.relevance)
    chosen = (
        None if adapter.chosen_ is None else [int(adapter.chosen_[0]), float(adapter.chosen_[1])]
    )
    return Learnt(
        lambda queries, items: adapter.transform_query(queries) @ items.T, {"chosen": chosen}
    )


# -- ListwiseSoftmax ----------------------------------------------------------------------------------------


def lists_from_labels(
    labels: np.ndarray, n: int, n_relevant: int, n_negatives: int, rng: np.random.Generator
) -> np.ndarray:
    """Random lists: an item, others of its class, and items of other classes; some may occur twice.

    Examples
    --------
    >>> labels = np.array([0, 0, 0, 1, 1])
    >>> lists = lists_from_labels(labels, 8, 2, 3, np.random.default_rng(0))
    >>> lists.shape
    (8, 6)
    >>> bool((labels[lists[:, 1:3]] == labels[lists[:, :1]]).all())
    True
    >>> bool((labels[lists[:, 3:]] == labels[lists[:, :1]]).any())
    False
    """
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(numbers, kind="stable")
    starts = np.cumsum(sizes) - sizes
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))

    usable = np.flatnonzero(sizes[numbers] > 1)
    query = usable[rng.integers(len(usable), size=n)][:, None]
    size, start = sizes[numbers[query]], starts[numbers[query]]
    # the query's own place, and the places of its class, are left out by moving those behind them
    relevant = start + (rng.random((n, n_relevant)) * (size - 1)).astype(np.int64)
    relevant += relevant >= place[query]
    negatives = (rng.random((n, n_negatives)) * (len(order) - size)).astype(np.int64)
    negatives = np.where(negatives >= start, negatives + size, negatives)
    return np.column_stack([query, order[relevant], order[negatives]])


def _learn_in_rounds(
    items: np.ndarray,
    layer: np.ndarray,
    draw: Callable[[], np.ndarray],
    *,
    rounds: int,
    eta: float,
    temperature: float,
    n_relevant: int = 1,
    decay: float = 1.0,
) -> tuple[Scores, np.ndarray]:
    """ListwiseSoftmax on items of length one, in rounds, each on lists of its own.

    Before each round the items are mapped by what was learnt so far, and scaled to length one again: so the
    rounds together learn a linear layer that is read by cosines. `decay` multiplies the step after a round.
    Returned are the scores as the last round has learnt them, and the layer.
    """
    for number in range(rounds):
        before, lists = layer, draw()
        model = ListwiseSoftmax(
            eta * decay**number,
            temperature,
            n_steps=1,
            n_relevant=n_relevant,
            average_from=max(1, len(lists) // 3),
            preprocessor=unit_rows(items @ before),
        ).fit(lists)
        root = Spectrum.of_matrix(model.get_bilinear_matrix()).components
        layer = before @ root.T.astype(np.float32)

    def scores(queries: np.ndarray, others: np.ndarray) -> np.ndarray:
        return model.score_items(unit_rows(queries @ before), unit_rows(others @ before))

    return scores, layer


def _listwise_labels(
    task: LabelTask,
    *,
    n_relevant: int,
    n_negatives: int,
    lists_per_item: int,
    regularization: float | None,
    **given: Any,
) -> Learnt:
    layer = np.eye(task.items.shape[1], dtype=np.float32)
    if regularization is not None:
        whitened = RCA(regularization=regularization).fit(task.items, task.labels)
        layer = whitened.components_.T.astype(np.float32)
    rng, n = np.random.default_rng([task.seed, 3]), lists_per_item * len(task.items)

    def draw() -> np.ndarray:
        return lists_from_labels(task.labels, n, n_relevant, n_negatives, rng)

    _, layer = _learn_in_rounds(task.items, layer, draw, n_relevant=n_relevant, **given)
    return Learnt(cosine(layer))


def _listwise_triplets(task: TripletTask, *, regularization: float | None, **given: Any) -> Learnt:
    layer = np.eye(task.items.shape[1], dtype=np.float32)
    if regularization is not None:
        together = np.zeros(len(task.items), dtype=np.int64)
        whitened = RCA(regularization=regularization).fit_chunklets(task.items, together)
        layer = whitened.components_.T.astype(np.float32)
    rng = np.random.default_rng([task.seed, 3])
    scores, _ = _learn_in_rounds(task.items, layer, lambda: rng.permutation(task.triplets), **given)
    return Learnt(scores)


# -- OASIS --------------------------------------------------------------------------------------------------


def _oasis_search(task: SearchTask, *, C: float, n_triplets: int) -> Learnt:
    n_queries, n_items = len(task.queries), len(task.items)
    rng = np.random.default_rng([task.seed, 3])
    relevant = np.zeros((n_queries, n_items), dtype=bool)
    relevant[tuple(task.relevance.T)] = True
    query, positive = task.relevance[rng.integers(len(task.relevance), size=n_triplets)].T
    negative = rng.integers(n_items, size=n_triplets)
    while (wrong := relevant[query, negative]).any():
        negative[wrong] = rng.integers(n_items, size=int(wrong.sum()))
    triplets = np.column_stack([query, n_queries + positive, n_queries + negative])
    model = OASIS(C=C, preprocessor=np.vstack([task.queries, task.items])).fit(triplets)
    return Learnt(model.score_items)


def _oasis_labels(task: LabelTask, *, C: float, n_triplets: int) -> Learnt:
    triplets = TripletSampler(task.labels, task.seed).draw(n_triplets)
    return Learnt(OASIS(C=C, preprocessor=task.items).fit(triplets).score_items)


def _oasis_triplets(task: TripletTask, *, C: float) -> Learnt:
    return Learnt(OASIS(C=C, preprocessor=task.items).fit(task.triplets).score_items)


#: The same for all data sets; the page says what they were chosen on.
_FROM_LABELS = {"eta": 4.0, "temperature": 0.1, "n_relevant": 20, "n_negatives": 180}

#: In the order of the rows of tables.
CONTENDERS: dict[str, Contender] = {
    "nothing learnt": Contender(
        note="inner products of the vectors as they are; cosines where there are labels or triplets",
        role="baseline",
        search=_inner_product,
        labels=_cosine,
        triplets=_cosine,
    ),
    "torch, softmax": Contender(
        note=(
            "linear query map from the identity, softmax over in-batch and hard negatives at "
            "temperature 0.05, AdamW at four rates, stopped early on a fifth of the training queries"
        ),
        role="opponent",
        search=_torch_query_map,
        needs=("torch",),
    ),
    "torch, SupCon": Contender(
        note="square linear layer, supervised contrastive loss, scored by cosines after the layer",
        role="opponent",
        labels=_torch_supcon,
        needs=("torch",),
    ),
    "torch, triplet loss": Contender(
        note=(
            "square linear layer, triplet loss (semi-hard negatives of the batch where there are "
            "labels), scored by cosines after the layer"
        ),
        role="opponent",
        labels=_torch_label_triplets,
        triplets=_torch_human_triplets,
        needs=("torch",),
    ),
    "Adapter": Contender(
        note=(
            "`Adapter(random_state=seed)` with its defaults, one pass over the judged queries; queries "
            "are mapped, items stay as they are"
        ),
        search=_adapter,
    ),
    "ListwiseSoftmax": Contender(
        note=(
            "one pass from the identity over random lists; from labels, six lists of each item with 20 "
            "relevant and 180 negative ones, read as cosines (`normalise=True`); triplets as they are"
        ),
        labels=_listwise_labels,
        triplets=_listwise_triplets,
        parameters={
            "labels": {**_FROM_LABELS, "rounds": 1, "lists_per_item": 6, "regularization": None},
            "triplets": {"eta": 2.0, "temperature": 0.1, "rounds": 1, "regularization": None},
        },
    ),
    "RCA, then ListwiseSoftmax": Contender(
        note=(
            "items whitened by `RCA` (within classes; where there are triplets, all items together), then "
            "the same learner in rounds: three with two lists of each item, or seven with all triplets and "
            "steps that get shorter; between rounds items are mapped by what was learnt and scaled to "
            "length one"
        ),
        labels=_listwise_labels,
        triplets=_listwise_triplets,
        parameters={
            "labels": {**_FROM_LABELS, "rounds": 3, "lists_per_item": 2, "regularization": 1.0},
            "triplets": {
                "eta": 0.7,
                "temperature": 0.1,
                "rounds": 7,
                "decay": 0.7,
                "regularization": 0.3,
            },
        },
    ),
    "OASIS": Contender(
        note="from the identity, triplets with random negatives, one pass, read as it is",
        search=_oasis_search,
        labels=_oasis_labels,
        triplets=_oasis_triplets,
        parameters={
            "search": {"C": 0.1, "n_triplets": 30_000},
            "labels": {"C": 0.1, "n_triplets": 50_000},
            "triplets": {"C": 0.1},
        },
    ),
}
