"""Data sets in a folder: files of items, and an index.json that says what is in them.

``NAME.csv.gz`` is dense, without a header, the label in the last column; ``NAME.svm.gz`` is LIBSVM, numbered
from 1. Labels are integers from 0. ``index.json`` maps each file's name to its ``rows``, ``features`` and
``classes`` (0: no column of labels), and optionally ``class_counts``, ``class_labels``,
``class_names_inferred``, ``class_groups``, ``feature_ranges``, ``groups`` and ``splits`` (ranges of rows
[start, stop)) or ``groups_file`` (one a line); a file of triplets names its ``items_file``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..data import FormatError, read_items, read_labels, read_triplets
from .dataset import Dataset
from .facts import Facts
from .sizes import COUNTS, differences, sizes_of

#: Names the folder where none is given.
VARIABLE = "SIMSTREAM_DATA"
INDEX = "index.json"
_ENDINGS = (".csv.gz", ".svm.gz", ".csv", ".svm")


def find_folder(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder given, or else the one that SIMSTREAM_DATA names, or else None."""
    said_by = "data_dir" if data_dir is not None else VARIABLE
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not given:
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise FileNotFoundError(f"{said_by}: expected a folder of data sets, got {str(folder)!r}")
    return folder


def read_index(folder: Path) -> dict[str, Any]:
    """What the folder says of its files; nothing, if it has no index."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        index = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(index, dict) or not all(isinstance(entry, dict) for entry in index.values()):
        raise FormatError(f"{path}: expected an object of objects, one for each file")
    return index


def files_by_name(index: Mapping[str, Any]) -> dict[str, str]:
    """Data sets that the index lists, by the name of their file without its ending."""
    return {
        file.removesuffix(ending): file
        for file, entry in index.items()
        if "items_file" not in entry
        for ending in _ENDINGS
        if file.endswith(ending)
    }


def load_from_folder(
    folder: Path, name: str, file: str, facts: Facts | None, dtype: Any
) -> Dataset:
    """Read one data set and check it against the index, and that against the table."""
    path = folder / file
    index = read_index(folder)
    entry = index.get(file, {})
    expected = _expected(folder / INDEX, file, entry, facts)
    has_labels = expected["classes"] > 0
    dense = ".csv" in path.suffixes
    found = read_items(
        path,
        label_column=-1 if dense and has_labels else None,
        dtype=dtype,
        n_features=None if dense else expected["features"] or None,
    )
    labels = _check_labels(path, found.labels) if has_labels else None
    _check_counts(path, entry, found.items, labels)
    n_rows = found.items.shape[0]
    verdict, note = ("extra", "") if facts is None else (facts.verdict, facts.note)
    differing = differences(facts, found.items, labels)
    if differing:
        verdict = "variant" if verdict == "exact" else verdict
        note = "; ".join(filter(None, [note, f"not the listed set: {differing}"]))
    own_groups = facts.class_groups if facts is not None and not differing else {}
    return Dataset(
        name=name,
        items=found.items,
        labels=labels,
        class_names=_class_names(path, entry, labels),
        splits={
            part: np.arange(*_range(path, part, bounds, n_rows))
            for part, bounds in entry.get("splits", {}).items()
        },
        groups=_groups(folder, path, entry, n_rows),
        class_groups=own_groups
        or {group: tuple(members) for group, members in entry.get("class_groups", {}).items()},
        feature_ranges={
            part: _range(path, part, bounds, found.items.shape[1])
            for part, bounds in entry.get("feature_ranges", {}).items()
        },
        triplets=_triplets(folder, index, file, n_rows),
        source="folder",
        verdict=verdict,
        note=note,
        digest=_digest(path),
    )


def _expected(
    index: Path, file: str, entry: Mapping[str, Any], facts: Facts | None
) -> dict[str, int]:
    """Rows, features and classes as the index says, or else the table."""
    expected = {key: entry.get(key, getattr(facts, key, None)) for key in COUNTS}
    for key, value in expected.items():
        if type(value) is not int or value < 0:
            raise FormatError(
                f"{index}: expected a whole number of {key} for {file}, got {value!r}"
            )
    return expected


def _class_names(
    path: Path, entry: Mapping[str, Any], labels: np.ndarray | None
) -> tuple[str, ...]:
    n_classes = 0 if labels is None else int(labels.max()) + 1
    names = entry.get("class_names_inferred", entry.get("class_labels", range(n_classes)))
    if len(names) != n_classes:
        raise FormatError(f"{path}: expected {n_classes} class names in {INDEX}, got {len(names)}")
    return tuple(map(str, names))


def _check_labels(path: Path, labels: np.ndarray | None) -> np.ndarray:
    """Labels as classes from 0, none of them without a row."""
    if labels is None or labels.dtype.kind != "i":
        got = "none" if labels is None else labels.dtype.name
        raise FormatError(f"{path}: bad labels; expected integers from 0, got {got}")
    classes = np.unique(labels)
    if not np.array_equal(classes, np.arange(len(classes))):
        raise FormatError(
            f"{path}: bad labels; expected every integer from 0 to {len(classes) - 1}, "
            f"got {classes[:10].tolist()}"
        )
    return labels.astype(np.intp)


def _check_counts(path: Path, entry: Mapping[str, Any], items: Any, labels: Any) -> None:
    """A file that is not what its index says is damaged, or the index is another's."""
    differing = [
        f"{key} {got} instead of {entry[key]}"
        for key, got in sizes_of(items, labels).items()
        if key in entry and entry[key] != got
    ]
    if differing:
        raise FormatError(f"{path}: not what {INDEX} says: {'; '.join(differing)}")


def _range(path: Path, name: str, bounds: Any, size: int) -> tuple[int, int]:
    match bounds:
        case [int(start), int(stop)] if 0 <= start < stop <= size:
            return start, stop
    raise FormatError(
        f"{path}: bad range {name!r} in {INDEX}; expected [start, stop) up to {size}, got {bounds}"
    )


def _groups(folder: Path, path: Path, entry: Mapping[str, Any], n_rows: int) -> np.ndarray | None:
    if "groups_file" in entry:
        groups = read_labels(folder / entry["groups_file"])
        if len(groups) != n_rows:
            raise FormatError(
                f"{folder / entry['groups_file']}: expected one group for each of {n_rows} rows, "
                f"got {len(groups)}"
            )
        return groups
    if "groups" not in entry:
        return None
    groups = np.full(n_rows, "", dtype=f"U{max(map(len, entry['groups']))}")
    for name, bounds in entry["groups"].items():
        groups[slice(*_range(path, name, bounds, n_rows))] = name
    return groups


def _triplets(folder: Path, index: Mapping[str, Any], file: str, n_rows: int) -> np.ndarray | None:
    for candidate, entry in index.items():
        if entry.get("items_file") == file and (folder / candidate).is_file():
            batches = read_triplets(folder / candidate, n_items=n_rows, batch_size=1 << 16)
            triplets = np.concatenate([batch.triplets for batch in batches])
            if entry.get("rows", len(triplets)) != len(triplets):
                raise FormatError(
                    f"{folder / candidate}: not what {INDEX} says: "
                    f"rows {len(triplets)} instead of {entry['rows']}"
                )
            return triplets
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
