"""What is known about every data set before it is loaded: the table datasets.toml."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Facts:
    """One data set of the table datasets.toml, which says what the fields mean.

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
        ways = [] if self.file is None else [f"put {self.file} into the data folder"]
        if self.get:
            ways[-1:] = [f"{way} (source: {self.get})" for way in ways]
        if self.fetch is not None:
            ways.append(f"download with scikit-learn's {self.fetch_call} ({self.fetch['verdict']})")
        return ", or ".join(ways)

    @property
    def fetch_call(self) -> str:
        """The call that fetches it, as one would write it."""
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


def unknown_name(name: str, known: Any) -> ValueError:
    """The error about a name that is none, with those it may have been meant for."""
    close = difflib.get_close_matches(str(name), list(known), n=3)
    hint = f"{' or '.join(close)}" if close else "a name that `simstream datasets` lists"
    return ValueError(f"no such data set; expected {hint}, got {name!r}")
