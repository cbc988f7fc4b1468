"""Items: rows of features, with labels and names where the file has them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy import sparse

from .files import (
    PathLike,
    excerpt,
    format_error,
    format_of,
    load_arrays,
    open_output,
    open_text_output,
)
from .labels import as_labels, check_labels
from .text_items import RawItems, read_csv, read_jsonl, read_libsvm

_FORMATS = {
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".npy": "npy",
    ".npz": "npz",
}
_CSR_PARTS = {"data", "indices", "indptr", "shape"}


class ItemsFile(NamedTuple):
    """What a file of items holds.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data import ItemsFile
    >>> ItemsFile(np.eye(2), np.array([0, 1]), None).items.shape
    (2, 2)
    """

    #: One row per item: C-contiguous array, or `scipy.sparse.csr_matrix` (sorted, no duplicates).
    items: Any
    #: Numbers or strings, shape (n_items,), or None.
    labels: np.ndarray | None
    #: Names of the items, or None.
    ids: list[str] | None


def read_items(
    path: PathLike,
    *,
    label_column: str | int | None = None,
    dtype: Any = None,
    n_features: int | None = None,
) -> ItemsFile:
    """Read rows of features; the file's name says in which format.

    - ``.svm``, ``.libsvm``, ``.svmlight``: LIBSVM, label first; feature numbers count from 1 unless
      a 0 occurs in the file
    - ``.csv``: numbers; a first line with a feature cell that is no number is a header
    - ``.jsonl``: ``{"id": .., "features": .., "label": ..}``, the features a list, or a mapping
      from feature number (from 0) to value, which makes sparse items
    - ``.npy``: a 2-d array
    - ``.npz``: from `scipy.sparse.save_npz`; or an array ``items`` or ``X``, or the CSR parts
      ``data, indices, indptr, shape``; each with optional ``labels`` or ``y``, and ``ids``

    The text formats may be compressed (``.gz``, ``.bz2``).

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    label_column : str or int, default=None
        CSV only: the header's name or the number of the column of labels (-1 is the last). By
        default a column called ``label``, if there is a header that has one. A column called ``id``
        holds names.
    dtype : dtype, default=None
        Type of the items, float32 or float64. By default that of the arrays in the file, where it
        is one of the two, else float64.
    n_features : int, default=None
        Number of features. Sparse items are widened to it, since a file does not tell of features
        after the last one in use; dense items must have it.

    Returns
    -------
    ItemsFile
        The items, their labels or None, their names or None. Labels in LIBSVM and CSV that are all
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
    kind = format_of(path, _FORMATS)
    if label_column is not None and kind != "csv":
        raise format_error(
            path, "label_column is for CSV", expected="label_column=None", got=excerpt(label_column)
        )
    match kind:
        case "libsvm":
            raw = read_libsvm(path)
        case "csv":
            raw = read_csv(path, label_column)
        case "jsonl":
            raw = read_jsonl(path)
        case _:
            raw = _from_arrays(path, load_arrays(path))
    items = _as_floats(path, raw.items, None if dtype is None else np.dtype(dtype))
    if n_features is not None:
        items = _with_width(path, raw, items, n_features)
    _check_finite(path, raw, items)
    labels = None if raw.labels is None else check_labels(path, raw.labels, items.shape[0])
    _check_ids(path, raw.ids, items.shape[0])
    return ItemsFile(items, labels, raw.ids)


def _from_arrays(path: Path, arrays: dict[str, np.ndarray]) -> RawItems:
    """Find the items among the arrays of an .npy or .npz file."""
    labels = arrays.get("labels", arrays.get("y"))
    ids = check_labels(path, arrays["ids"]).astype(str).tolist() if "ids" in arrays else None
    dense = next((arrays[key] for key in ("", "items", "X") if key in arrays), None)
    if dense is not None:
        return RawItems(dense, labels, ids)
    if not arrays.keys() >= _CSR_PARTS and "format" not in arrays:
        raise format_error(
            path,
            "no items",
            expected=f"an array items or X, or {', '.join(sorted(_CSR_PARTS))}",
            got=f"{', '.join(arrays) or 'no arrays'}",
        )
    try:
        if "format" in arrays and arrays["format"].astype(str) != "csr":
            items = sparse.load_npz(path)
        else:
            parts = tuple(arrays[key] for key in ("data", "indices", "indptr"))
            items = sparse.csr_matrix(parts, shape=tuple(arrays["shape"].tolist()))
        # Compiled code trusts these numbers: a wrong one reads memory of others.
        if hasattr(items, "check_format"):
            items.check_format(full_check=True)
        items = sparse.csr_matrix(items)
    except Exception as error:
        # scipy's constructors raise whatever the damaged part happens to trip.
        raise format_error(
            path, "not a sparse matrix", expected="consistent CSR parts", got=f"{error}"
        ) from None
    return RawItems(items, labels, ids)


def _as_floats(path: Path, items: Any, dtype: np.dtype | None) -> Any:
    """Rows as the kernels take them: 2-d, float32 or float64, contiguous or canonical CSR."""
    if items.ndim != 2 or 0 in items.shape or items.dtype.kind not in "biuf":
        raise format_error(
            path,
            "not rows of features",
            expected="at least one row and one column of real numbers",
            got=f"shape {items.shape}, type {items.dtype}",
        )
    if dtype is None:
        dtype = np.dtype("f4" if items.dtype.kind == "f" and items.dtype.itemsize == 4 else "f8")
    elif dtype not in (np.float32, np.float64):
        raise ValueError(f"unsupported dtype; expected float32 or float64, got {dtype}")
    with np.errstate(over="ignore"):  # too large a number becomes an infinity: that is reported
        if not sparse.issparse(items):
            return np.ascontiguousarray(items, dtype=dtype)
        items = items.astype(dtype, copy=False)
    items.sum_duplicates()
    return items


def _with_width(path: Path, raw: RawItems, items: Any, n_features: int) -> Any:
    """Give sparse items the width asked for; check that of dense ones."""
    if not sparse.issparse(items):
        if items.shape[1] != n_features:
            raise format_error(
                path, "wrong number of features", expected=f"{n_features}", got=f"{items.shape[1]}"
            )
        return items
    too_large = np.flatnonzero(items.indices >= n_features)
    if len(too_large):
        row = int(np.searchsorted(items.indptr, too_large[0], side="right")) - 1
        raise format_error(
            path,
            f"feature number too large in row {row} (rows and features counted from 0)",
            expected=f"feature numbers below n_features={n_features}",
            got=f"{items.indices[too_large[0]]}",
            line=raw.line_of and raw.line_of(row),
        )
    return sparse.csr_matrix(
        (items.data, items.indices, items.indptr), shape=(items.shape[0], n_features)
    )


def _check_finite(path: Path, raw: RawItems, items: Any) -> None:
    values = items.data if sparse.issparse(items) else items
    finite = np.isfinite(values)
    if finite.all():
        return
    first = int(np.flatnonzero(~finite)[0])
    if sparse.issparse(items):
        row = int(np.searchsorted(items.indptr, first, side="right")) - 1
        column = int(items.indices[first])
    else:
        row, column = divmod(first, items.shape[1])
    raise format_error(
        path,
        f"not finite at row {row}, column {column} (counted from 0)",
        expected=f"finite {items.dtype} numbers",
        got=f"{values.flat[first]}",
        line=raw.line_of and raw.line_of(row),
    )


def _check_ids(path: Path, ids: Sequence[str] | None, n_items: int) -> None:
    if ids is not None and len(ids) != n_items:
        raise format_error(
            path, "ids and items differ in number", expected=f"{n_items} ids", got=f"{len(ids)}"
        )


def write_items(
    path: PathLike, items: Any, labels: Any = None, ids: Sequence[str] | None = None
) -> None:
    """Write rows of features in the format that the file's name says; see `read_items`.

    The file appears whole or not at all, and what is read back has exactly the same values. What a
    format cannot hold is refused: sparse items in ``.csv`` and ``.npy``, labels in ``.npy``, string
    labels in LIBSVM, names in either. LIBSVM needs labels, so 0 is written where there are none;
    its feature numbers are written from 1. LIBSVM and sparse JSONL do not hold the number of
    features.

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
    kind = format_of(path, _FORMATS)
    items = sparse.csr_matrix(items) if sparse.issparse(items) else np.asarray(items)
    if sparse.issparse(items) and not items.has_canonical_format:
        items = items.copy()  # it is going to be sorted in place, and it is the caller's
    items = _as_floats(path, items, None)
    _check_finite(path, RawItems(items), items)
    if labels is not None:
        labels = check_labels(path, as_labels(labels), items.shape[0])
        labels = labels.astype(np.int64) if labels.dtype.kind == "b" else labels
    if ids is not None:
        ids = [str(name) for name in ids]
        _check_ids(path, ids, items.shape[0])
    _check_can_hold(path, kind, items, labels, ids)
    match kind:
        case "npy":
            with open_output(path) as handle:
                np.save(handle, items)
        case "npz":
            with open_output(path) as handle:
                np.savez(handle, allow_pickle=False, **_arrays(items, labels, ids))
        case _:
            with open_text_output(path) as text:
                _WRITERS[kind](text, items, labels, ids)


def _check_can_hold(path: Path, kind: str, items: Any, labels: Any, ids: Any) -> None:
    """Refuse what would be lost or could not be read back."""
    texts = labels if labels is not None and labels.dtype.kind == "U" else []
    refusals = {
        "sparse items": sparse.issparse(items) and kind in ("csv", "npy"),
        "labels": labels is not None and kind == "npy",
        "string labels": len(texts) and kind == "libsvm",
        "ids": ids is not None and kind in ("libsvm", "npy"),
        "labels or ids that are empty or of several lines": kind == "csv"
        and any(not text or "\n" in text or "\r" in text for text in [*texts, *(ids or [])]),
    }
    for what, refused in refusals.items():
        if refused:
            raise format_error(
                path,
                f"the format cannot hold {what}",
                expected="another format, such as .jsonl" + (" or .npz" if kind != "npz" else ""),
                got=f"{what} for {path.suffix}",
            )


def _arrays(items: Any, labels: np.ndarray | None, ids: Sequence[str] | None) -> dict[str, Any]:
    """The arrays of an .npz file; scipy.sparse.load_npz reads the sparse ones too."""
    arrays: dict[str, Any] = {"items": items}
    if sparse.issparse(items):
        arrays = {key: getattr(items, key) for key in sorted(_CSR_PARTS)} | {"format": b"csr"}
    if labels is not None:
        arrays["labels"] = labels
    if ids is not None:
        arrays["ids"] = np.array(ids, dtype=str)
    return arrays


def _rows(items: Any) -> Any:
    """Each row as lists of feature numbers and values, which Python prints without loss."""
    for low, high in zip(items.indptr, items.indptr[1:], strict=False):
        yield items.indices[low:high].tolist(), items.data[low:high].tolist()


def _write_libsvm(text: IO[str], items: Any, labels: np.ndarray | None, ids: Any) -> None:
    # Not scikit-learn's dump_svmlight_file: it prints 16 digits, and a float64 needs 17.
    first_cells = repeat(0) if labels is None else labels.tolist()
    for label, (columns, values) in zip(first_cells, _rows(sparse.csr_matrix(items)), strict=False):
        pairs = (f" {column + 1}:{value!r}" for column, value in zip(columns, values, strict=True))
        text.write(f"{label!r}{''.join(pairs)}\n")


def _write_csv(text: IO[str], items: np.ndarray, labels: np.ndarray | None, ids: Any) -> None:
    writer = csv.writer(text, lineterminator="\n")
    before = [] if ids is None else ["id"]
    after = [] if labels is None else ["label"]
    writer.writerow([*before, *(f"f{column}" for column in range(items.shape[1])), *after])
    for row, values in enumerate(items):
        name = [] if ids is None else [ids[row]]
        label = [] if labels is None else [labels[row].item()]
        writer.writerow(name + values.tolist() + label)


def _write_jsonl(text: IO[str], items: Any, labels: np.ndarray | None, ids: Any) -> None:
    rows = (
        (dict(zip(columns, values, strict=True)) for columns, values in _rows(items))
        if sparse.issparse(items)
        else (values.tolist() for values in items)
    )
    for row, features in enumerate(rows):
        record = {} if ids is None else {"id": ids[row]}
        record["features"] = features
        if labels is not None:
            record["label"] = labels[row].item()
        text.write(json.dumps(record) + "\n")


_WRITERS = {"libsvm": _write_libsvm, "csv": _write_csv, "jsonl": _write_jsonl}
