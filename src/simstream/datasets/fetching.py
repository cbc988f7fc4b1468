"""Data sets that scikit-learn bundles, and those that its fetchers get from the network."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..data import FormatError
from ..validation import check_items
from .dataset import Dataset
from .facts import Facts
from .sizes import differences


def load_bundled(facts: Facts, dtype: Any) -> Dataset:
    """A data set that comes with scikit-learn."""
    from sklearn import datasets

    bunch = getattr(datasets, str(facts.bundled))()
    return Dataset(
        name=facts.name,
        items=check_items(bunch.data, dtype=dtype).values,
        labels=np.asarray(bunch.target, dtype=np.intp),
        class_names=tuple(map(str, bunch.target_names)),
        source="sklearn",
        verdict=facts.verdict,
        note=facts.note,
    )


def fetch(facts: Facts, dtype: Any) -> Dataset:
    """A data set from the network; what comes is compared with the table."""
    how = dict(facts.fetch or {})
    items, names_of_rows, splits = _FETCHERS[how["function"]](how)
    if how.get("complete_rows"):
        complete = ~np.isnan(items).any(axis=1)
        items, names_of_rows = items[complete], names_of_rows[complete]
    if "rows" in how:
        items, names_of_rows = items[slice(*how["rows"])], names_of_rows[slice(*how["rows"])]
    class_names, labels = _in_order(names_of_rows)
    items = check_items(items, facts.name, dtype=dtype).values
    note = how.get("note", "")
    differing = differences(facts, items, labels)
    if differing and how["verdict"] == "exact":
        raise FormatError(f"{facts.name}: {facts.fetch_call} is not the expected set: {differing}")
    return Dataset(
        name=facts.name,
        items=items,
        labels=labels,
        class_names=class_names,
        splits=splits,
        class_groups=facts.class_groups if len(class_names) == facts.classes else {},
        source="openml" if how["function"] == "fetch_openml" else "sklearn",
        verdict=how["verdict"],
        note="; ".join(filter(None, [note, differing and f"differs: {differing}"])),
    )


def _in_order(names_of_rows: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Classes in the order of their names, numbers by value."""
    names, labels = np.unique(np.asarray(names_of_rows).astype(str), return_inverse=True)
    try:
        order = np.argsort(names.astype(np.float64), kind="stable")
    except ValueError:
        order = np.arange(len(names))
    place = np.empty(len(names), dtype=np.intp)
    place[order] = np.arange(len(names))
    return tuple(names[order].tolist()), place[labels]


def _openml(how: dict[str, Any]) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    from sklearn.datasets import fetch_openml

    # This parser needs no pandas; it numbers the values of nominal features.
    bunch = fetch_openml(
        name=how["name"], version=how["version"], as_frame=False, parser="liac-arff"
    )
    items = bunch.data
    if how.get("numeric_only"):
        numeric = [
            column
            for column, name in enumerate(bunch.feature_names)
            if name not in bunch.categories
        ]
        items = items[:, numeric]
    return items, np.asarray(bunch.target), {}


def _newsgroups(how: dict[str, Any]) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    from sklearn.datasets import fetch_20newsgroups_vectorized

    parts = {
        part: fetch_20newsgroups_vectorized(subset=part, normalize=False)
        for part in ("train", "test")
    }
    names = [np.asarray(bunch.target_names)[bunch.target] for bunch in parts.values()]
    n_train = len(names[0])
    return (
        sparse.vstack([bunch.data for bunch in parts.values()], format="csr"),
        np.concatenate(names),
        {"train": np.arange(n_train), "test": np.arange(n_train, n_train + len(names[1]))},
    )


def _rcv1(how: dict[str, Any]) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """Documents of exactly one topic of the second level, as LIBSVM's rcv1.multiclass is made.

    A topic below the second level counts as its parent there; those of the first level count as
    none. Codes show the level: E12 is above E121; only in GCAT do letters stand for numbers.
    """
    from sklearn.datasets import fetch_rcv1

    bunch = fetch_rcv1(subset=how["subset"])
    codes = np.array(
        [
            "" if name.endswith("CAT") else name[:3] if name[1].isdigit() else name
            for name in map(str, bunch.target_names)
        ]
    )
    second = np.unique(codes[codes != ""])
    above = sparse.csr_matrix((codes[:, None] == second).astype(np.int64))
    belongs = (sparse.csr_matrix(bunch.target).astype(np.int64) @ above) > 0
    rows = np.flatnonzero(belongs.sum(axis=1) == 1)
    return bunch.data[rows], second[belongs[rows].indices], {}


_FETCHERS = {
    "fetch_openml": _openml,
    "fetch_20newsgroups_vectorized": _newsgroups,
    "fetch_rcv1": _rcv1,
}
