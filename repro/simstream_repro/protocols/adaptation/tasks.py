"""The tasks: what contenders learn from, and what they are measured on.

A folder of test collections, ``retrieval`` in the data folder, has one folder for each: ``vectors.npz`` with
the rows ``items`` and ``queries``; ``relevance.tsv`` with the columns query and item, row numbers from 0; and
``split.txt`` if its queries are distributed divided, one word (train or test) a query.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simstream import datasets
from simstream.datasets.loading import VARIABLE

from ..common import dataset, split_per_class
from ..questions import question_keys

#: Share of the queries that train, where a collection is not distributed divided.
TRAIN_SHARE = 0.6

#: Share of the items that are there from the beginning, where the others are new in the test.
OLD_SHARE = 0.5

_PARTS = ("train", "test")


class CollectionMissingError(FileNotFoundError):
    """A test collection is not in the data folder."""


@dataclass(frozen=True)
class SearchTask:
    """Judged queries to learn from.

    Attributes
    ----------
    queries : (n_queries, d) float32 array
        In order of arrival.
    items : (n_items, d) float32 array
    relevance : (n, 2) array of int
        Row of the query and row of the item, ordered by query.
    seed : int
    """

    queries: np.ndarray
    items: np.ndarray
    relevance: np.ndarray
    seed: int


@dataclass(frozen=True)
class LabelTask:
    """Items with class labels to learn from."""

    items: np.ndarray
    labels: np.ndarray
    seed: int


@dataclass(frozen=True)
class TripletTask:
    """Items, and triplets anchor, near, far to learn from, in order of arrival."""

    items: np.ndarray
    triplets: np.ndarray
    seed: int


class SearchTest(NamedTuple):
    """Queries that nobody has learnt from, and every item they rank."""

    queries: np.ndarray
    items: np.ndarray
    #: (n_queries, n_items) bool: relevant items, and those that are not candidates.
    relevant: np.ndarray
    excluded: np.ndarray


class Collection(NamedTuple):
    """A test collection."""

    queries: np.ndarray
    items: np.ndarray
    relevance: np.ndarray
    #: "train" or "test" for each query; None if it is not distributed divided.
    parts: np.ndarray | None


def collection_folder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a test collection.

    Examples
    --------
    >>> collection_folder("cranfield", ".")
    Traceback (most recent call last):
        ...
    simstream_repro.protocols.adaptation.tasks.CollectionMissingError: cranfield: expected retrieval/...
    """
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if given:
        folder = Path(given) / "retrieval" / name
        if (folder / "vectors.npz").is_file() and (folder / "relevance.tsv").is_file():
            return folder
    where = f"the data folder {str(given)!r}" if given else f"the folder that {VARIABLE} names"
    raise CollectionMissingError(
        f"{name}: expected retrieval/{name}/vectors.npz and relevance.tsv in {where}"
    )


def read_collection(name: str, data_dir: str | os.PathLike[str] | None = None) -> Collection:
    """Read a test collection."""
    folder = collection_folder(name, data_dir)
    with np.load(folder / "vectors.npz") as vectors:
        queries, items = (vectors[part].astype(np.float32) for part in ("queries", "items"))
    relevance = np.loadtxt(
        folder / "relevance.tsv", dtype=np.int64, delimiter="\t", skiprows=1, ndmin=2
    )
    sizes = len(queries), len(items)
    if relevance.shape[1:] != (2,) or (relevance < 0).any() or (relevance >= sizes).any():
        raise ValueError(
            f"{folder / 'relevance.tsv'}: expected rows of {sizes[0]} queries and {sizes[1]} items"
        )
    parts = None
    if (path := folder / "split.txt").is_file():
        parts = np.array(path.read_text("utf-8").split())
        if parts.shape != (len(queries),) or not np.isin(parts, _PARTS).all():
            raise ValueError(f"{path}: expected train or test for each of {len(queries)} queries")
    return Collection(queries, items, relevance, parts)


def divide_queries(collection: Collection, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training queries in order of arrival, and of the test queries."""
    rng = np.random.default_rng(seed)
    if collection.parts is not None:
        train, test = (np.flatnonzero(collection.parts == part) for part in _PARTS)
        return rng.permutation(train), test
    shuffled = rng.permutation(len(collection.queries))
    n_train = int(TRAIN_SHARE * len(shuffled))
    return shuffled[:n_train], shuffled[n_train:]


def search_task(
    collection: Collection, seed: int, *, n_queries: int | None = None, new_items: bool = False
) -> tuple[SearchTask, SearchTest]:
    """Divide a collection.

    Parameters
    ----------
    collection : Collection
    seed : int
    n_queries : int, optional
        Only the first so many training queries.
    new_items : bool, default=False
        Half of the items are not there while learning. In the test all are ranked, only new ones count as
        relevant, and old ones that are relevant are not candidates.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pairs = np.column_stack([np.repeat(np.arange(10), 2), np.arange(20)])
    >>> one = Collection(rng.normal(size=(10, 3)), rng.normal(size=(20, 3)), pairs, None)
    >>> task, test = search_task(one, 0)
    >>> len(task.queries), len(task.relevance), test.relevant.sum()
    (6, 12, np.int64(8))
    >>> task, test = search_task(one, 0, new_items=True)
    >>> len(task.items), len(test.items), bool((test.relevant & test.excluded).any())
    (10, 20, False)
    """
    train, test = divide_queries(collection, seed)
    relevant = np.zeros((len(collection.queries), len(collection.items)), dtype=bool)
    relevant[tuple(collection.relevance.T)] = True
    old = np.arange(len(collection.items))
    excluded = np.zeros_like(relevant)
    wanted = relevant
    if new_items:
        shuffled = np.random.default_rng([seed, 1]).permutation(old)
        old, new = np.split(shuffled, [int(OLD_SHARE * len(shuffled))])
        old = np.sort(old)
        excluded[:, old] = relevant[:, old]
        wanted = relevant.copy()
        wanted[:, old] = False
        train = train[relevant[np.ix_(train, old)].any(axis=1)]
        test = test[relevant[np.ix_(test, new)].any(axis=1)]
    train = train[:n_queries]
    items = collection.items[old]
    pairs = np.argwhere(relevant[np.ix_(train, old)])
    return (
        SearchTask(collection.queries[train], items, pairs, seed),
        SearchTest(collection.queries[test], collection.items, wanted[test], excluded[test]),
    )


def label_task(name: str, preprocessing: str, seed: int) -> tuple[LabelTask, LabelTask]:
    """Half of every class to learn from; each item of the other half ranks the others of that half."""
    data = dataset(name)
    labels = np.asarray(data.labels)
    train, test = split_per_class(labels, np.random.default_rng(seed), share=0.5)
    items = data.items.toarray() if hasattr(data.items, "toarray") else data.items
    items = datasets.prepare(items, preprocessing, fit_rows=train).items.astype(np.float32)
    train = np.random.default_rng([seed, 1]).permutation(train)
    return (
        LabelTask(items[train], labels[train], seed),
        LabelTask(items[test], labels[test], seed),
    )


def triplet_task(name: str, preprocessing: str, seed: int) -> tuple[TripletTask, np.ndarray]:
    """Half of the questions that people answered, and the triplets of the other half."""
    data = dataset(name)
    items = datasets.prepare(data.items, preprocessing).items.astype(np.float32)
    keys = question_keys(data.triplets, len(items))
    distinct = np.random.default_rng(seed).permutation(np.unique(keys))
    learnt = np.isin(keys, distinct[: len(distinct) // 2])
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(learnt))
    return TripletTask(items, data.triplets[order], seed), data.triplets[~learnt]
