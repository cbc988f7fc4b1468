"""What every data set is loaded as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: The task of a row that belongs to none of those asked for.
OUTSIDE = ""

#: What a data set is to the published one of that name.
VERDICTS = ("exact", "variant", "partial", "stand-in", "extra", "bundled")


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
        Upstream's name of each class.
    splits : dict of str to ndarray
        Upstream's parts ("train", "test", "valid"): numbers of rows.
    groups : ndarray of shape (n_items,) or None
        The speaker or domain each row comes from.
    class_groups : dict of str to tuple of int
        Classes that make up a task.
    feature_ranges : dict of str to (int, int)
        Sets of features, as [start, stop).
    triplets : ndarray of int of shape (n, 3) or None
        Human judgements: anchor, near, far; numbers of rows.
    informative : ndarray of int or None
        Generated data: the features that tell the classes apart.
    source : str
        "folder", "sklearn" (bundled or one of its fetchers), "openml" or "generated".
    verdict : str
        "exact", "variant", "partial", "stand-in", "extra" or "bundled": what the data are to those
        of the paper that uses the name. A stand-in is never to be reported under the paper's name.
    note : str
        How they differ, and what a user has to know.
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
        """The task of each row: its group, or else the group of its class.

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
        absent = sorted({*wanted} - {*tasks.tolist()})
        if absent or OUTSIDE in wanted:
            known = sorted({*tasks.tolist()} - {OUTSIDE})
            raise ValueError(
                f"{self.name}: no such task; expected some of {', '.join(known)}, got {absent}"
            )
        return np.where(np.isin(tasks, wanted), tasks, OUTSIDE)
