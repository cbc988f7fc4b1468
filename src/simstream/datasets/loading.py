"""Load data sets by name: from a folder, bundled with scikit-learn, generated, or from the network.

A folder has files of items and an index.json. ``NAME.csv.gz`` is dense, without a header, with the label in
the last column; ``NAME.svm.gz`` is LIBSVM, numbered from 1. Labels are integers from 0. ``index.json`` maps
each file's name to its ``rows``, ``features`` and ``classes`` (0: no column of labels), and optionally
``class_counts``, ``class_labels``, ``class_names_inferred``, ``class_groups``, ``feature_ranges``, ``groups``
and ``splits`` (ranges of rows [start, stop)) or ``groups_file`` (one per line); a file of triplets names its
``items_file``.

Downloads are left to scikit-learn's fetchers, which cache and verify them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ..data import FormatError, read_items, read_labels, read_triplets
from ..validation import check_choice, check_items
from .facts import COUNTS, Dataset, Facts, differences, sizes_of, table, unknown_name

PathLike = str | os.PathLike[str]

#: The environment variable that names the data folder if none is given.
VARIABLE = "SIMSTREAM_DATA"
INDEX = "index.json"
_ENDINGS = (".csv.gz", ".svm.gz", ".csv", ".svm")


class DatasetMissingError(FileNotFoundError):
    """A data set is known but not present; the message says how to get it.

    Examples
    --------
    >>> from simstream import datasets
    >>> datasets.load("sector", data_dir=".")
    Traceback (most recent call last):
        ...
    simstream.datasets.loading.DatasetMissingError: sector: not found; put sector.svm.gz into...
    """


def load(
    name: str, *, data_dir: PathLike | None = None, download: bool = False, dtype: Any = None
) -> Dataset:
    """Load a data set by name.

    It is looked for in the data folder, then among those bundled with scikit-learn or generated, and
    then, if ``download``, on the network with scikit-learn's fetchers, which keep a copy.

    Parameters
    ----------
    name : str
        One of `names`, or of the folder's index.json.
    data_dir : str or os.PathLike, default=None
        Folder of data sets; by default the one in the environment variable SIMSTREAM_DATA.
    download : bool, default=False
        Whether the network may be used.
    dtype : dtype, default=None
        Type of the items, float32 or float64 (the default).

    Returns
    -------
    Dataset
        Its ``verdict`` and ``note`` say how it relates to the published one.

    Raises
    ------
    DatasetMissingError
        If it is not present; the message says how to get it.
    ValueError
        If there is no such name, or the file does not match the index.

    Examples
    --------
    >>> from simstream import datasets
    >>> digits = datasets.load("digits")
    >>> digits.items.shape, digits.labels[:4].tolist(), digits.source
    ((1797, 64), [0, 1, 2, 3], 'sklearn')
    """
    dtype = np.dtype(np.float64 if dtype is None else dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    folder = _find_folder(data_dir)
    known = table().get(name)
    file = _file_in(folder, name, known)
    if folder is not None and file is not None:
        return _load_from_folder(folder, name, file, known, dtype)
    if known is None:
        raise unknown_name(name, [*table(), *_listed(folder)])
    if known.generated is not None:
        return make_low_rank(known.generated, dtype=dtype)
    if known.bundled is not None:
        return _load_bundled(known, dtype)
    if download and known.fetch is not None:
        try:
            return _fetch(known, dtype)
        except OSError as error:
            raise DatasetMissingError(
                f"{name}: download with {known.fetch_call} failed: {error}"
            ) from error
    where = f"data folder: {folder}" if folder is not None else f"no data folder: set {VARIABLE}"
    if known.fetch is not None and not download:
        where += "; downloads need download=True"
    raise DatasetMissingError(f"{name}: not found; {known.how_to_get} ({where})")


def available(data_dir: PathLike | None = None) -> dict[str, str]:
    """Data sets that `load` has without the network, with their sources.

    Parameters
    ----------
    data_dir : str or os.PathLike, default=None
        As in `load`.

    Returns
    -------
    dict of str to str
        Name -> "folder", "sklearn" or "generated", including files of the folder's index.json that
        are not in `names`.

    Examples
    --------
    >>> from simstream import datasets
    >>> present = datasets.available()
    >>> present["iris"], present["synthetic-projected"]
    ('sklearn', 'generated')
    """
    folder = _find_folder(data_dir)
    found = {}
    for name, known in table().items():
        if _file_in(folder, name, known) is not None:
            found[name] = "folder"
        elif known.generated is not None:
            found[name] = "generated"
        elif known.bundled is not None:
            found[name] = "sklearn"
    files = {known.file for known in table().values()}
    for name, file in _listed(folder).items():
        if file not in files and folder is not None and (folder / file).is_file():
            found[name] = "folder"
    return found


# -- a folder ------------------------------------------------------------------------------------


def _find_folder(data_dir: PathLike | None) -> Path | None:
    """The folder given, else the one in SIMSTREAM_DATA, else None."""
    origin = "data_dir" if data_dir is not None else VARIABLE
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not given:
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise FileNotFoundError(f"{origin}: expected a folder of data sets, got {str(folder)!r}")
    return folder


def _read_index(folder: Path) -> dict[str, Any]:
    """What the folder states about its files; empty without an index."""
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


def _listed(folder: Path | None) -> dict[str, str]:
    """Data sets that the index lists: name -> file, the name being the file's without its ending."""
    index = {} if folder is None else _read_index(folder)
    return {
        file.removesuffix(ending): file
        for file, entry in index.items()
        if "items_file" not in entry
        for ending in _ENDINGS
        if file.endswith(ending)
    }


def _file_in(folder: Path | None, name: str, known: Facts | None) -> str | None:
    """The name of the data set's file, if the folder has it."""
    if folder is None:
        return None
    file = _listed(folder).get(name) if known is None else known.file
    return file if file is not None and (folder / file).is_file() else None


def _load_from_folder(
    folder: Path, name: str, file: str, known: Facts | None, dtype: Any
) -> Dataset:
    """Read one data set and check it against the index, and that against the table."""
    path = folder / file
    index = _read_index(folder)
    entry = index.get(file, {})
    expected = {key: entry.get(key, getattr(known, key, None)) for key in COUNTS}
    for key, value in expected.items():
        if type(value) is not int or value < 0:
            raise FormatError(
                f"{folder / INDEX}: expected a whole number of {key} for {file}, got {value!r}"
            )
    has_labels = expected["classes"] > 0
    dense = ".csv" in path.suffixes
    found = read_items(
        path,
        label_column=-1 if dense and has_labels else None,
        dtype=dtype,
        n_features=None if dense else expected["features"] or None,
    )
    labels = _check_classes(path, found.labels) if has_labels else None
    _check_counts(path, entry, sizes_of(found.items, labels))
    n_rows, n_features = found.items.shape
    verdict, note = ("extra", "") if known is None else (known.verdict, known.note)
    differing = differences(known, found.items, labels)
    if differing:
        verdict = "variant" if verdict == "exact" else verdict
        note = "; ".join(filter(None, [note, f"not the listed set: {differing}"]))
    class_groups = known.class_groups if known is not None and not differing else {}
    if not class_groups:
        class_groups = {
            group: tuple(members) for group, members in entry.get("class_groups", {}).items()
        }
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
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
        class_groups=class_groups,
        feature_ranges={
            part: _range(path, part, bounds, n_features)
            for part, bounds in entry.get("feature_ranges", {}).items()
        },
        triplets=_triplets(folder, index, file, n_rows),
        source="folder",
        verdict=verdict,
        note=note,
        digest=digest,
    )


def _check_classes(path: Path, labels: np.ndarray | None) -> np.ndarray:
    """Labels as classes from 0, each of which has a row."""
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


def _check_counts(path: Path, entry: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Refuse a file that does not match its index: it is damaged, or the index belongs to another."""
    differing = [
        f"{key} {got} instead of {entry[key]}"
        for key, got in sizes.items()
        if key in entry and entry[key] != got
    ]
    if differing:
        raise FormatError(f"{path}: does not match {INDEX}: {'; '.join(differing)}")


def _class_names(
    path: Path, entry: Mapping[str, Any], labels: np.ndarray | None
) -> tuple[str, ...]:
    n_classes = 0 if labels is None else int(labels.max()) + 1
    names = entry.get("class_names_inferred", entry.get("class_labels", range(n_classes)))
    if len(names) != n_classes:
        raise FormatError(f"{path}: expected {n_classes} class names in {INDEX}, got {len(names)}")
    return tuple(map(str, names))


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
        path = folder / candidate
        if entry.get("items_file") == file and path.is_file():
            batches = read_triplets(path, n_items=n_rows, batch_size=1 << 16)
            triplets = np.concatenate([batch.triplets for batch in batches])
            _check_counts(path, entry, {"rows": len(triplets)})
            return triplets
    return None


# -- scikit-learn: bundled, and from the network -------------------------------------------------


def _load_bundled(known: Facts, dtype: Any) -> Dataset:
    from sklearn import datasets  # slow to import

    bunch = getattr(datasets, str(known.bundled))()
    return Dataset(
        name=known.name,
        items=check_items(bunch.data, dtype=dtype).values,
        labels=np.asarray(bunch.target, dtype=np.intp),
        class_names=tuple(map(str, bunch.target_names)),
        source="sklearn",
        verdict=known.verdict,
        note=known.note,
    )


def _fetch(known: Facts, dtype: Any) -> Dataset:
    """Download a data set and compare it with the table."""
    how = dict(known.fetch or {})
    items, names_of_rows, splits = _FETCHERS[how["function"]](how)
    if how.get("complete_rows"):
        complete = ~np.isnan(items).any(axis=1)
        items, names_of_rows = items[complete], names_of_rows[complete]
    if "rows" in how:
        items, names_of_rows = items[slice(*how["rows"])], names_of_rows[slice(*how["rows"])]
    class_names, labels = _in_order(names_of_rows)
    items = check_items(items, known.name, dtype=dtype).values
    differing = differences(known, items, labels)
    if differing and how["verdict"] == "exact":
        raise FormatError(f"{known.name}: {known.fetch_call} is not the expected set: {differing}")
    return Dataset(
        name=known.name,
        items=items,
        labels=labels,
        class_names=class_names,
        splits=splits,
        class_groups=known.class_groups if len(class_names) == known.classes else {},
        source="openml" if how["function"] == "fetch_openml" else "sklearn",
        verdict=how["verdict"],
        note="; ".join(filter(None, [how.get("note"), differing and f"differs: {differing}"])),
    )


def _in_order(names_of_rows: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Classes in the order of their names, numbers by value."""
    names, labels = np.unique(np.asarray(names_of_rows).astype(str), return_inverse=True)
    try:
        order = np.argsort(names.astype(np.float64), kind="stable")
    except ValueError:
        order = np.arange(len(names))
    return tuple(names[order].tolist()), np.argsort(order)[labels]


#: Items, the class of each row, and splits.
_Fetched = tuple[Any, np.ndarray, dict[str, np.ndarray]]


def _openml(how: dict[str, Any]) -> _Fetched:
    from sklearn.datasets import fetch_openml

    # This parser needs no pandas; it numbers the values of nominal features.
    bunch = fetch_openml(
        name=how["name"], version=how["version"], as_frame=False, parser="liac-arff"
    )
    items = bunch.data
    if how.get("numeric_only"):
        nominal = [name in bunch.categories for name in bunch.feature_names]
        items = items[:, np.flatnonzero(~np.array(nominal))]
    return items, np.asarray(bunch.target), {}


def _newsgroups(how: dict[str, Any]) -> _Fetched:
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


def _rcv1(how: dict[str, Any]) -> _Fetched:
    """Documents of exactly one second-level topic, as LIBSVM's rcv1.multiclass is made.

    A topic below the second level counts as its parent there; those of the first level are ignored.
    Codes show the level: E12 is above E121; only in GCAT do letters stand for numbers.
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


# -- generated: two low-dimensional Gaussians in a space of higher dimension ----------------------


def make_low_rank(kind: str, seed: int = 0, *, dtype: Any = np.float64) -> Dataset:
    """Generate two-class data that show low rank and feature selection.

    Each class has 200 points g ~ N(mu_c, S_c) in five dimensions, where mu_2 = -mu_1, the two means
    are 3 apart in a random direction, and S_c = B B'/5 + 0.1 I with standard normal entries of B.

    Parameters
    ----------
    kind : {"projected", "embedded"}
        "projected": x = R g, where R is 20 x 5 with entries N(0, 1/5): data of rank 5, in which
        every feature is informative. "embedded": g in five random coordinates of 20, N(0, 1) in the
        others.
    seed : int, default=0
        The same seed makes the same data.
    dtype : dtype, default=float64
        Type of the items, float32 or float64.

    Returns
    -------
    Dataset
        ``informative`` holds the numbers of the informative features; the split "train" holds 30 %
        of each class, "test" the rest.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.datasets import make_low_rank
    >>> projected = make_low_rank("projected", seed=1)
    >>> projected.items.shape, int(np.linalg.matrix_rank(projected.items))
    ((400, 20), 5)
    >>> len(make_low_rank("embedded", seed=1).informative)
    5
    """
    check_choice("kind", kind, ("projected", "embedded"))
    n_per_class, n_features, n_informative = 200, 20, 5
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(n_informative)
    mean = direction * (1.5 / np.linalg.norm(direction))
    points = np.concatenate([_gaussian(rng, sign * mean, n_per_class) for sign in (-1, 1)])
    if kind == "projected":
        projection = rng.normal(0, np.sqrt(1 / n_informative), (n_features, n_informative))
        items = points @ projection.T
        informative = np.arange(n_features)
    else:
        items = rng.standard_normal((len(points), n_features))
        informative = np.sort(rng.permutation(n_features)[:n_informative])
        items[:, informative] = points
    # The points of a class are independent, so the first of them are a random sample.
    is_train = np.arange(len(items)) % n_per_class < round(0.3 * n_per_class)
    facts = table()[f"synthetic-{kind}"]
    return Dataset(
        name=facts.name,
        items=items.astype(dtype),
        labels=np.repeat(np.arange(2), n_per_class),
        class_names=("0", "1"),
        splits={"train": np.flatnonzero(is_train), "test": np.flatnonzero(~is_train)},
        informative=informative,
        source="generated",
        verdict=facts.verdict,
        note=f"{facts.note}; seed {seed}",
    )


def _gaussian(rng: np.random.Generator, mean: np.ndarray, n: int) -> np.ndarray:
    d = len(mean)
    B = rng.standard_normal((d, d))
    covariance = B @ B.T / d + 0.1 * np.eye(d)
    return mean + rng.standard_normal((n, d)) @ np.linalg.cholesky(covariance).T
