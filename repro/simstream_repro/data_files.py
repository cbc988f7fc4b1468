"""The files that data sets are read from, known by their SHA-256.

Means over runs are about one data set only if all runs have read the same file, so that is checked before
anything runs. ``published/data_files.csv`` has the files of the published pages.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from simstream import datasets

from .records import Record


def digests(names: Iterable[str], data_dir: str | Path | None = None) -> dict[str, str]:
    """SHA-256 of each data set's file, as it is on disk; those without a file are left out."""
    folder = data_dir or os.environ.get("SIMSTREAM_DATA")
    if not folder:
        return {}
    known = datasets.names()
    named = {name: datasets.facts(name).file for name in names if name in known}
    paths = {name: Path(folder) / file for name, file in named.items() if file is not None}
    return {name: _digest(path) for name, path in paths.items() if path.is_file()}


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def published_digests() -> dict[str, str]:
    """Those of the files behind the published pages.

    Examples
    --------
    >>> published_digests()["vehicle"][:12]
    '6c8f1319b1f3'
    """
    text = (files(__package__) / "published" / "data_files.csv").read_text("utf-8")
    return {row["data"]: row["sha256"] for row in csv.DictReader(text.splitlines())}


def of_other_files(records: Iterable[Record], now: dict[str, str]) -> dict[str, str]:
    """Data sets whose records have read another file than there is now, with the digest of that one.

    Examples
    --------
    >>> of_other_files([{"data": "wine", "data_sha256": "a1"}], {"wine": "b2"})
    {'wine': 'a1'}
    """
    return {
        one["data"]: one["data_sha256"]
        for one in records
        if "data_sha256" in one and now.get(one["data"], one["data_sha256"]) != one["data_sha256"]
    }
