"""What is known about a data set before it is loaded (the table datasets.toml), and what it is loaded as."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from scipy import sparse

#: The task of a row that belongs to none of the tasks asked for.
OUTSIDE = ""

#: How a data set relates to the published one of that name.
VERDICTS = ("exact", "variant", "partial", "stand-in", "extra", "bundled")

#: What the table and every index.json state about a data set.
COUNTS = ("rows", "features", "classes")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Items with their labels, and what is known about them.

    Attributes
    ----------
    name : str
        As in `names`.
    items : ndarray or csr_matrix of shape (n_items, n_features)
        One row per item.
    labels : ndarray of int of shape (n_items,) or None
        Classes, from 0.
    class_names : tuple of str
        Name of each class in the original data.
    splits : dict of str to ndarray
        Parts of the original data ("train", "test", "valid"): row numbers.
    groups : ndarray of shape (n_items,) or None
        The speaker or domain each row comes from.
    class_groups : dict of str to tuple of int
        Classes that make up a task.
    feature_ranges : dict of str to (int, int)
        Sets of features, as [start, stop).
    triplets : ndarray of int of shape (n, 3) or None
        Human judgements: anchor, near, far; row numbers.
    informative : ndarray of int or None
        Generated data: the features that separate the classes.
    source : str
        "folder", "sklearn" (bundled or one of its fetchers), "openml" or "generated".
    verdict : str
        "exact", "variant", "partial", "stand-in", "extra" or "bundled": how the data relate to those
        of the paper that uses the name. Never report results on a stand-in under the paper's name.
    note : str
        How the data differ, and what a user should know.
    digest : str or None
        SHA-256 of the file, for records; None where there is no file.

    Examples
    --------
    >>> from simstream import datasets
    >>> wine = datasets.load("wine")
    >>> wine.items.shape, wine.n_classes, wine.verdict
    ((178, 13), 3, 'exact')
    """

    name: str
    items: Any
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    groups: np.ndarray | None = None
    class_groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    feature_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    triplets: np.ndarray | None = None
    informative: np.ndarray | None = None
    source: str = "folder"
    verdict: str = "extra"
    note: str = ""
    digest: str | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 without labels."""
        return 0 if self.labels is None else len(self.class_names)

    def tasks(self, which: Iterable[Any] | None = None) -> np.ndarray | None:
        """Return the task of each row: its group, or else the group of its class.

        Parameters
        ----------
        which : iterable of names, default=None
            The tasks to keep, all by default.

        Returns
        -------
        ndarray of str of shape (n_items,) or None
            Names of tasks, the empty string for rows of none of them; None if the data set has
            neither groups nor groups of classes.

        Raises
        ------
        ValueError
            If there is no task of a name in ``which``.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream.datasets import Dataset
        >>> news = Dataset("news", np.eye(4), np.array([2, 0, 1, 0]), ("a", "b", "c"),
        ...                class_groups={"sci": (0, 1), "rec": (2,)})
        >>> news.tasks().tolist(), news.tasks(["sci"]).tolist()
        (['rec', 'sci', 'sci', 'sci'], ['', 'sci', 'sci', 'sci'])
        """
        if self.groups is not None:
            tasks = self.groups.astype(str)
        elif self.class_groups and self.labels is not None:
            task_of_class = {
                label: name for name, labels in self.class_groups.items() for label in labels
            }
            tasks = np.array([task_of_class.get(label, OUTSIDE) for label in self.labels.tolist()])
        else:
            return None
        if which is None:
            return tasks
        wanted = [str(name) for name in which]
        known = {*tasks.tolist()} - {OUTSIDE}
        if not known >= {*wanted}:
            raise ValueError(
                f"{self.name}: no such task; expected some of {', '.join(sorted(known))}, "
                f"got {sorted({*wanted} - known)}"
            )
        return np.where(np.isin(tasks, wanted), tasks, OUTSIDE)


@dataclass(frozen=True)
class Facts:
    """One entry of the table datasets.toml, where the fields are explained.

    Examples
    --------
    >>> from simstream import datasets
    >>> iono = datasets.facts("ionosphere")
    >>> iono.rows, iono.features, iono.papers
    (351, 34, {'P1': ('iono',)})
    """

    name: str
    title: str
    rows: int
    features: int
    classes: int
    verdict: str
    papers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""
    file: str | None = None
    class_groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bundled: str | None = None
    generated: str | None = None
    fetch: Mapping[str, Any] | None = None
    get: str = ""

    @property
    def size(self) -> str:
        """Rows, features and classes, for people."""
        parts = [self.rows, self.features, self.classes]
        return " x ".join(f"{part:,}" if part else "-" for part in parts)

    @property
    def how_to_get(self) -> str:
        """Where the data come from, for people."""
        if self.generated is not None:
            return "generated"
        if self.bundled is not None:
            return f"bundled with scikit-learn ({self.bundled})"
        ways = []
        if self.file is not None:
            source = f" (source: {self.get})" if self.get else ""
            ways.append(f"put {self.file} into the data folder{source}")
        if self.fetch is not None:
            ways.append(f"download with scikit-learn's {self.fetch_call} ({self.fetch['verdict']})")
        return ", or ".join(ways)

    @property
    def fetch_call(self) -> str:
        """The call that downloads it, as one would write it."""
        fetch = self.fetch or {}
        known = ("name", "version", "subset")
        arguments = [f"{key}={fetch[key]!r}" for key in known if key in fetch]
        return f"{fetch['function']}({', '.join(arguments)})"


@cache
def table() -> dict[str, Facts]:
    """All data sets by name, in the order of the table."""
    text = resources.files(__package__).joinpath("datasets.toml").read_text("utf-8")
    return {name: _facts(name, entry) for name, entry in tomllib.loads(text).items()}


def _facts(name: str, entry: dict[str, Any]) -> Facts:
    papers = {
        paper: (names,) if isinstance(names, str) else tuple(names)
        for paper, names in entry.pop("papers", {}).items()
    }
    groups = {group: tuple(labels) for group, labels in entry.pop("class_groups", {}).items()}
    return Facts(name=name, papers=papers, class_groups=groups, **entry)


def names() -> list[str]:
    """Names of the data sets that `load` knows, present or not.

    Examples
    --------
    >>> from simstream import datasets
    >>> {"bbc", "isolet", "digits", "synthetic-embedded"} <= set(datasets.names())
    True
    """
    return list(table())


def facts(name: str) -> Facts:
    """What is known about a data set before it is loaded.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    ValueError
        If there is no data set of that name.

    Examples
    --------
    >>> from simstream import datasets
    >>> datasets.facts("sector").size
    '9,619 x 55,197 x 105'
    """
    known = table()
    if name not in known:
        raise unknown_name(name, known)
    return known[name]


def unknown_name(name: str, known: Iterable[str]) -> ValueError:
    """The error for an unknown name, with the names it may have been meant for."""
    close = difflib.get_close_matches(str(name), list(known), n=3)
    hint = f"{' or '.join(close)}" if close else "a name listed by `simstream datasets`"
    return ValueError(f"no such data set; expected {hint}, got {name!r}")


def sizes_of(items: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """Counts of a data set, under their names in an index.json."""
    counts = [] if labels is None else np.bincount(labels).tolist()
    sizes = {"rows": items.shape[0], "features": items.shape[1], "classes": len(counts)}
    stored = {"nnz": int(items.nnz)} if sparse.issparse(items) else {}
    return sizes | stored | {"class_counts": counts}


def differences(known: Facts | None, items: Any, labels: np.ndarray | None) -> str:
    """How the data differ from the table, where 0 means "not stated"; empty if they do not."""
    sizes = sizes_of(items, labels)
    return ", ".join(
        f"{sizes[key]} {key} instead of {getattr(known, key)}"
        for key in COUNTS
        if known is not None and getattr(known, key) not in (0, sizes[key])
    )
