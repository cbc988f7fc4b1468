"""Read and write items: rows of features, with labels and ids where the file has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ..validation import float_type
from .files import (
    PathLike,
    excerpt,
    format_error,
    format_of,
    load_arrays,
    open_input,
    parse_json,
    split_cells,
    text_lines,
)
from .item_formats import (
    RawItems,
    as_labels,
    check_labels,
    check_task_names,
    json_labels,
    numbers_if_possible,
    read_raw,
    write_raw,
)

#: More features than this have to be asked for, unless the file has about as many values: what takes memory
#: for every feature would take gigabytes, and one mistyped feature number is the more likely reason.
_MANY_FEATURES = 2**24
_LABEL_FORMATS = ("npy", "csv", "txt", "jsonl")


class _Contents(NamedTuple):
    items: Any
    labels: np.ndarray | None
    ids: list[str] | None


class ItemsFile(_Contents):
    """The contents of a file of items: items, labels and ids, and maybe names of features.

    Attributes
    ----------
    items : C-contiguous array, or `scipy.sparse.csr_matrix` (sorted, no duplicates)
        One row per item.
    labels : array of numbers or strings, shape (n_items,), or None
    ids : list of names of the items, or None
    feature_names : list of str, or None
        Where the file has a column with a name for each feature; not part of the tuple.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data import ItemsFile
    >>> ItemsFile(np.eye(2), np.array([0, 1]), None).items.shape
    (2, 2)
    """

    feature_names: list[str] | None = None


def read_items(
    path: PathLike,
    *,
    label_column: str | int | None = None,
    dtype: Any = None,
    n_features: int | None = None,
    array: str | None = None,
) -> ItemsFile:
    """Read rows of features; the file's extension determines the format.

    - ``.svm``, ``.libsvm``, ``.svmlight``: LIBSVM, label first; features are numbered from 1 unless
      a 0 occurs in the file
    - ``.csv``: numbers; the first line is a header if one of its feature cells is not a number. A first
      column without a name, as pandas writes an index, is ids if it holds texts, left out if it counts rows
    - ``.jsonl``: ``{"id": .., "features": .., "label": ..}``; the features (or ``embedding``, or
      ``vector``) are a list, or a mapping from feature number (from 0) to value, which makes sparse items
    - ``.npy``: a 2-d array
    - ``.npz``: from `scipy.sparse.save_npz`; or an array ``items`` or ``X``, or the CSR parts
      ``data, indices, indptr, shape``; each with optional ``labels`` or ``y``, and ``ids``
    - ``.parquet`` (``pip install 'simstream[parquet]'``): a column of vectors, or else one column per
      feature; with optional columns ``label`` and ``id``

    The text formats may be compressed (``.gz``, ``.bz2``).

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    label_column : str or int, default=None
        CSV and parquet: the name or number of the column of labels (-1 is the last). By default the
        column called ``label``, if there is one. A column called ``id`` holds names.
    dtype : dtype, default=None
        Type of the items, float32 or float64. By default float32 for arrays of float16 and float32,
        else float64.
    n_features : int, default=None
        Number of features. Sparse items are widened to it, since a file does not tell of features
        after the last one in use; dense items must have it.
    array : str, default=None
        Name of the array of an ``.npz`` file to read instead of the items, if the file has it: such as
        ``queries`` in a file with ``items`` and ``queries``.

    Returns
    -------
    ItemsFile
        The items, their labels or None, their ids or None. Labels in LIBSVM and CSV that are all
        whole numbers become integers.

    Raises
    ------
    FormatError
        If the file cannot be read, is empty, or holds anything but finite numbers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_items
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "items.csv"
    >>> _ = path.write_text("width,height,kind\\n1,2,cat\\n3,4.5,dog\\n")
    >>> items, labels, ids = read_items(path, label_column="kind")
    >>> items.tolist(), labels.tolist(), ids
    ([[1.0, 2.0], [3.0, 4.5]], ['cat', 'dog'], None)
    """
    path = Path(path)
    raw = read_raw(path, label_column, array)
    items = _as_floats(path, raw.items, None if dtype is None else np.dtype(dtype))
    if n_features is not None:
        items = _with_width(path, raw, items, n_features)
    elif sparse.issparse(items) and raw.line_of is not None:
        _check_width(path, raw, items)
    _check_finite(path, raw, items)
    labels = None if raw.labels is None else check_labels(path, raw.labels, items.shape[0])
    _check_ids(path, raw.ids, items.shape[0])
    found = ItemsFile(items, labels, raw.ids)
    found.feature_names = raw.feature_names
    return found


def write_items(
    path: PathLike,
    items: Any,
    labels: Any = None,
    ids: Sequence[str] | None = None,
    *,
    feature_names: Sequence[str] | None = None,
) -> None:
    """Write rows of features in the format of the file's extension; see `read_items`.

    The file is written completely or not at all, and reading it gives exactly the same values. What
    a format cannot hold is refused: sparse items in ``.csv``, ``.npy`` and ``.parquet``, labels in
    ``.npy``, string labels in LIBSVM, ids in either. LIBSVM requires labels, so 0 is written if
    there are none; its features are numbered from 1. LIBSVM and sparse JSONL do not store the number
    of features.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    items : array-like or sparse matrix of shape (n_items, n_features)
        Finite numbers.
    labels : array-like of shape (n_items,), default=None
        Numbers or strings.
    ids : sequence of str of length n_items, default=None
        Names of the items.
    feature_names : sequence of str of length n_features, default=None
        Names of the columns of a ``.csv`` or ``.parquet`` file; other formats have none.

    Raises
    ------
    FormatError
        If the items are not finite 2-d numbers, the lengths differ or the format cannot hold them.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from scipy import sparse
    >>> from simstream.data import read_items, write_items
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "items.svm"
    >>> write_items(path, sparse.csr_matrix([[0.0, 1.5], [2.0, 0.0]]), labels=[7, 8])
    >>> path.read_text()
    '7 2:1.5\\n8 1:2.0\\n'
    >>> read_items(path).items.toarray().tolist()
    [[0.0, 1.5], [2.0, 0.0]]
    """
    path = Path(path)
    items = sparse.csr_matrix(items) if sparse.issparse(items) else np.asarray(items)
    if sparse.issparse(items) and not items.has_canonical_format:
        items = items.copy()  # it is about to be sorted in place, and it is the caller's
    items = _as_floats(path, items, None)
    _check_finite(path, RawItems(items), items)
    if labels is not None:
        labels = check_labels(path, as_labels(labels), items.shape[0])
        labels = labels.astype(np.int64) if labels.dtype.kind == "b" else labels
    if ids is not None:
        ids = [str(name) for name in ids]
        _check_ids(path, ids, items.shape[0])
    if feature_names is not None:
        feature_names = [str(name) for name in feature_names]
        if len(feature_names) != items.shape[1] or {"id", "label"} & set(feature_names):
            raise format_error(
                path,
                "bad feature_names",
                f"{items.shape[1]} names other than id and label",
                excerpt(feature_names, 200),
            )
    write_raw(path, items, labels, ids, feature_names)


def read_labels(path: PathLike) -> np.ndarray:
    """Read one label per item from a separate file.

    Parameters
    ----------
    path : str or os.PathLike
        An ``.npy`` file of a 1-d array; a ``.csv`` or ``.txt`` file with one label per line, after
        an optional header ``label``; or a ``.jsonl`` file, each line a label or an object with a
        ``"label"``. The text formats may be compressed (``.gz``, ``.bz2``).

    Returns
    -------
    ndarray of shape (n,)
        Integers if every label is a whole number, else floats if every one is a number, else
        strings. JSON strings stay strings.

    Raises
    ------
    FormatError
        If the file cannot be read or is empty, or a label is missing or not finite.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
    >>> _ = path.write_text("label\\nsport\\npolitics\\n")
    >>> read_labels(path).tolist()
    ['sport', 'politics']
    """
    return _read_column(Path(path), "label")


def read_tasks(path: PathLike) -> np.ndarray:
    """Read the name of each item's task from a separate file.

    Parameters
    ----------
    path : str or os.PathLike
        The formats of `read_labels`, with ``task`` instead of ``label``.

    Returns
    -------
    ndarray of str, shape (n,)
        Numbers become strings, so that task 1 is the same in every format.

    Raises
    ------
    FormatError
        If the file cannot be read or is empty, or a name is missing.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_tasks
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "users.txt"
    >>> _ = path.write_text("task\\n17\\n4\\n17\\n")
    >>> read_tasks(path).tolist()
    ['17', '4', '17']
    """
    return check_task_names(path, _read_column(Path(path), "task"))


def _read_column(path: Path, name: str) -> np.ndarray:
    """Read one value per item; ``name`` says what the values are."""
    kind = format_of(path, _LABEL_FORMATS)
    if kind == "npy":
        return check_labels(path, load_arrays(path)[""], what=name)
    with open_input(path) as handle:
        lines = [(line, text.rstrip("\r\n")) for line, text in text_lines(handle)]
    if kind == "jsonl":
        records = [parse_json(path, line, text) for line, text in lines]
        values = [record.get(name) if isinstance(record, dict) else record for record in records]
        found = json_labels(path, values, [line for line, _ in lines], name)
        return check_labels(path, found, what=name)
    texts = []
    for place, (line, text) in enumerate(lines, 1):
        # Skipping a line would give every label after it to the wrong item.
        if line != place:
            raise format_error(path, "blank line", f"a {name}", "nothing", place)
        cells = split_cells(path, line, text) if kind == "csv" else [text.strip()]
        if len(cells) != 1 or not cells[0]:
            raise format_error(path, f"not a {name}", f"one {name} per line", excerpt(text), line)
        texts.append(cells[0])
    has_header = bool(texts) and texts[0].strip().lower() == name
    labels = numbers_if_possible(np.array(texts[has_header:], dtype=str))
    return check_labels(path, labels, what=name)


# -- checks that all formats share ---------------------------------------------------------------


def _as_floats(path: Path, items: Any, dtype: np.dtype | None) -> Any:
    """Rows as the kernels take them: 2-d, float32 or float64, contiguous or canonical CSR."""
    if items.ndim != 2 or 0 in items.shape or items.dtype.kind not in "biuf":
        expected = "at least one row and one column of real numbers"
        found = f"shape {items.shape}, type {items.dtype}"
        raise format_error(path, "not rows of features", expected, found)
    if dtype is None:
        dtype = float_type(items.dtype)
    elif dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    with np.errstate(over="ignore"):  # a number that is too large becomes an infinity: reported
        if not sparse.issparse(items):
            return np.ascontiguousarray(items, dtype=dtype)
        items = items.astype(dtype, copy=False)
    items.sum_duplicates()
    return items


def _with_width(path: Path, raw: RawItems, items: Any, n_features: int) -> Any:
    """Give sparse items the width asked for; check that of dense ones."""
    if not sparse.issparse(items):
        if items.shape[1] != n_features:
            raise format_error(path, "wrong number of features", f"{n_features}", items.shape[1])
        return items
    too_large = np.flatnonzero(items.indices >= n_features)
    if len(too_large):
        row = _row_of(items, too_large[0])
        problem = f"feature number too large in row {row} (rows and features counted from 0)"
        expected = f"feature numbers below n_features={n_features}"
        found = items.indices[too_large[0]]
        raise format_error(path, problem, expected, found, raw.line_of and raw.line_of(row))
    return sparse.csr_matrix(
        (items.data, items.indices, items.indptr), shape=(items.shape[0], n_features)
    )


def _check_width(path: Path, raw: RawItems, items: Any) -> None:
    """Refuse a largest feature number that the other values of the file make improbable."""
    if items.shape[1] <= _MANY_FEATURES or items.shape[1] <= 10 * items.nnz:
        return
    row = _row_of(items, int(np.argmax(items.indices)))
    problem = f"improbably large feature number in row {row} (rows and features counted from 0)"
    expected = f"at most {_MANY_FEATURES:,} features, or their number as n_features (--n-features)"
    line = raw.line_of and raw.line_of(row)
    raise format_error(path, problem, expected, items.shape[1] - 1, line)


def _row_of(items: Any, place: int) -> int:
    """The row of a stored value of a CSR matrix."""
    return int(np.searchsorted(items.indptr, place, side="right")) - 1


def _check_finite(path: Path, raw: RawItems, items: Any) -> None:
    values = items.data if sparse.issparse(items) else items
    finite = np.isfinite(values)
    if finite.all():
        return
    first = int(np.flatnonzero(~finite)[0])
    if sparse.issparse(items):
        row, column = _row_of(items, first), int(items.indices[first])
    else:
        row, column = divmod(first, items.shape[1])
    problem = f"not finite at row {row}, column {column} (counted from 0)"
    expected = f"finite {items.dtype} numbers"
    line = raw.line_of and raw.line_of(row)
    raise format_error(path, problem, expected, values.flat[first], line)


def _check_ids(path: Path, ids: Sequence[str] | None, n_items: int) -> None:
    if ids is not None and len(ids) != n_items:
        raise format_error(path, "ids and items differ in number", f"{n_items} ids", len(ids))
