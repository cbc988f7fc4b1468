"""Read and write items: rows of features, with labels and ids where the file has them."""

from __future__ import annotations

import csv
import io
import json
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy import sparse

from .files import (
    FormatError,
    PathLike,
    excerpt,
    format_error,
    format_of,
    is_number,
    load_arrays,
    open_input,
    open_output,
    open_text_output,
    parse_json,
    split_cells,
    text_lines,
)
from .labels import as_labels, check_labels, json_labels, numbers_if_possible, whole_if_possible

_FORMATS = {
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
}
_CSR_PARTS = {"data", "indices", "indptr", "shape"}

#: More features than this have to be asked for, unless the file has about as many values: what takes memory
#: for every feature would take gigabytes, and one mistyped feature number is the more likely reason.
_MANY_FEATURES = 2**24


class ItemsFile(NamedTuple):
    """The contents of a file of items.

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


class RawItems(NamedTuple):
    """What the reader of one format found, before the checks that all formats share."""

    items: Any
    labels: np.ndarray | None = None
    ids: list[str] | None = None
    #: Row number to line number, for messages only; None where the format has no lines.
    line_of: Callable[[int], int] | None = None


def read_items(
    path: PathLike,
    *,
    label_column: str | int | None = None,
    dtype: Any = None,
    n_features: int | None = None,
) -> ItemsFile:
    """Read rows of features; the file's extension determines the format.

    - ``.svm``, ``.libsvm``, ``.svmlight``: LIBSVM, label first; features are numbered from 1 unless
      a 0 occurs in the file
    - ``.csv``: numbers; the first line is a header if one of its feature cells is not a number
    - ``.jsonl``: ``{"id": .., "features": .., "label": ..}``; the features are a list, or a mapping
      from feature number (from 0) to value, which makes sparse items
    - ``.npy``: a 2-d array
    - ``.npz``: from `scipy.sparse.save_npz`; or an array ``items`` or ``X``, or the CSR parts
      ``data, indices, indptr, shape``; each with optional ``labels`` or ``y``, and ``ids``
    - ``.parquet`` (``pip install 'simstream[parquet]'``): a column ``features`` of vectors, or else
      one column per feature; with optional columns ``label`` and ``id``

    The text formats may be compressed (``.gz``, ``.bz2``).

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    label_column : str or int, default=None
        CSV and parquet: the name or number of the column of labels (-1 is the last). By default the
        column called ``label``, if there is one. A column called ``id`` holds names.
    dtype : dtype, default=None
        Type of the items, float32 or float64. By default that of the arrays in the file, if it is
        one of the two, else float64.
    n_features : int, default=None
        Number of features. Sparse items are widened to it, since a file does not tell of features
        after the last one in use; dense items must have it.

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
    kind = format_of(path, _FORMATS)
    if label_column is not None and kind not in ("csv", "parquet"):
        raise format_error(
            path, "label_column is for CSV and parquet", "label_column=None", excerpt(label_column)
        )
    match kind:
        case "libsvm":
            raw = _read_libsvm(path)
        case "csv":
            raw = _read_csv(path, label_column)
        case "jsonl":
            raw = _read_jsonl(path)
        case "parquet":
            from .parquet import read_parquet  # needs an extra

            raw = read_parquet(path, label_column)
        case _:
            raw = _from_arrays(path, load_arrays(path))
    items = _as_floats(path, raw.items, None if dtype is None else np.dtype(dtype))
    if n_features is not None:
        items = _with_width(path, raw, items, n_features)
    elif sparse.issparse(items) and raw.line_of is not None:
        _check_width(path, raw, items)
    _check_finite(path, raw, items)
    labels = None if raw.labels is None else check_labels(path, raw.labels, items.shape[0])
    _check_ids(path, raw.ids, items.shape[0])
    return ItemsFile(items, labels, raw.ids)


def write_items(
    path: PathLike, items: Any, labels: Any = None, ids: Sequence[str] | None = None
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
        items = items.copy()  # it is about to be sorted in place, and it is the caller's
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
        case "parquet":
            from .parquet import write_parquet  # needs an extra

            write_parquet(path, items, labels, ids)
        case _:
            with open_text_output(path) as text:
                _TEXT_WRITERS[kind](text, items, labels, ids)


# -- checks that all formats share ---------------------------------------------------------------


def _as_floats(path: Path, items: Any, dtype: np.dtype | None) -> Any:
    """Rows as the kernels take them: 2-d, float32 or float64, contiguous or canonical CSR."""
    if items.ndim != 2 or 0 in items.shape or items.dtype.kind not in "biuf":
        expected = "at least one row and one column of real numbers"
        found = f"shape {items.shape}, type {items.dtype}"
        raise format_error(path, "not rows of features", expected, found)
    if dtype is None:
        dtype = np.dtype("f4" if items.dtype.kind == "f" and items.dtype.itemsize == 4 else "f8")
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
    expected = f"at most {_MANY_FEATURES:,} features, or more of them given by n_features"
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


def _check_can_hold(path: Path, kind: str, items: Any, labels: Any, ids: Any) -> None:
    """Refuse what would be lost, or could not be read again."""
    texts = labels if labels is not None and labels.dtype.kind == "U" else []
    refusals = {
        "sparse items": sparse.issparse(items) and kind in ("csv", "npy", "parquet"),
        "labels": labels is not None and kind == "npy",
        "string labels": len(texts) and kind == "libsvm",
        "ids": ids is not None and kind in ("libsvm", "npy"),
        "labels or ids that are empty or span several lines": kind == "csv"
        and any(not text or "\n" in text or "\r" in text for text in [*texts, *(ids or [])]),
    }
    for what, refused in refusals.items():
        if refused:
            expected = "another format, such as .jsonl or .npz"
            found = f"{what} for {path.suffix}"
            raise format_error(path, f"the format cannot hold {what}", expected, found)


# -- LIBSVM --------------------------------------------------------------------------------------


def _read_libsvm(path: Path) -> RawItems:
    """Parse with scikit-learn, which does not say where an error is: that is searched afterwards."""
    with open_input(path) as handle:
        try:
            items, labels = _parse_libsvm(handle)
        except (ValueError, OverflowError):
            raise _libsvm_error(path) from None

    def line_of(row: int) -> int:
        with open_input(path) as handle:
            lines = (line for line, text in text_lines(handle) if text.partition("#")[0].strip())
            return next(islice(lines, row, None))

    return RawItems(items, whole_if_possible(labels), line_of=line_of)


def _parse_libsvm(handle: Any) -> tuple[Any, np.ndarray]:
    from sklearn.datasets import load_svmlight_file  # slow to import, and needed for LIBSVM only

    return load_svmlight_file(handle)


def _libsvm_error(path: Path) -> FormatError:
    """Find the first line that scikit-learn refuses, by bisection."""
    with open_input(path) as handle:
        lines = handle.readlines()
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _libsvm_refusal(lines[low:middle]) else (middle, high)
    return format_error(
        path,
        "not a LIBSVM line",
        "label number:value ... with increasing feature numbers",
        f"{excerpt(lines[low].decode(errors='replace').rstrip())} "
        f"({_libsvm_refusal(lines[low:high])})",
        low + 1,
    )


def _libsvm_refusal(lines: Sequence[bytes]) -> str:
    try:
        _parse_libsvm(io.BytesIO(b"".join(lines)))
    except (ValueError, OverflowError) as error:
        return f"{error}"
    return ""


def _write_libsvm(text: IO[str], items: Any, labels: np.ndarray | None, ids: Any) -> None:
    # Not scikit-learn's dump_svmlight_file: it prints 16 digits, and a float64 needs 17.
    first_cells = repeat(0) if labels is None else labels.tolist()
    rows = _sparse_rows(sparse.csr_matrix(items))
    for label, (columns, values) in zip(first_cells, rows, strict=False):
        pairs = (f" {column + 1}:{value!r}" for column, value in zip(columns, values, strict=True))
        text.write(f"{label!r}{''.join(pairs)}\n")


def _sparse_rows(items: Any) -> Any:
    """Each row as lists of feature numbers and of values, which Python prints without loss."""
    for low, high in zip(items.indptr, items.indptr[1:], strict=False):
        yield items.indices[low:high].tolist(), items.data[low:high].tolist()


# -- CSV -----------------------------------------------------------------------------------------


def _read_csv(path: Path, label_column: str | int | None) -> RawItems:
    """Parse line by line: a bad cell is found at once, and `numpy.loadtxt` is little faster."""
    no_rows = format_error(path, "no rows", "at least one line of numbers", "none")
    values = array("d")
    lines: list[int] = []
    with open_input(path) as handle:
        rows = text_lines(handle)
        first = next(rows, None)
        if first is None:
            raise no_rows
        names = split_cells(path, *first)
        has_header = _is_header(names, label_column)
        special = special_columns(path, names, label_column, has_header)
        is_feature = [column not in special.values() for column in range(len(names))]
        texts: dict[str, list[str]] = {role: [] for role in special}
        for line, text in rows if has_header else chain([first], rows):
            quoted = '"' in text
            cells = split_cells(path, line, text) if quoted else text.rstrip("\r\n").split(",")
            if len(cells) != len(names):
                expected = f"{len(names)} cells, as in the first line"
                raise format_error(path, "ragged row", expected, len(cells), line)
            suspicious = "_" in text
            try:
                values.fromlist(list(map(float, compress(cells, is_feature))))
            except ValueError:
                suspicious = True
            for role, column in special.items():
                texts[role].append(cells[column])
                suspicious = suspicious or not cells[column]
            if suspicious:
                _check_cells(path, line, cells, is_feature, names if has_header else [])
            lines.append(line)
    if not lines:
        raise no_rows
    return RawItems(
        np.frombuffer(values).reshape(len(lines), sum(is_feature)),
        numbers_if_possible(np.array(texts["label"], str)) if "label" in texts else None,
        texts.get("id"),
        lines.__getitem__,
    )


def _check_cells(
    path: Path, line: int, cells: list[str], is_feature: list[bool], names: list[str]
) -> None:
    """Raise an error about the first bad cell of a line, if there is one."""
    for column, cell in enumerate(cells):
        if not (is_number(cell) if is_feature[column] else cell):
            name = f" ({names[column].strip()})" if names else ""
            problem = f"bad cell in column {column} (counted from 0){name}"
            expected = "a number" if is_feature[column] else "a label"
            raise format_error(path, problem, expected, excerpt(cell), line)


def _is_header(names: Sequence[str], label_column: str | int | None) -> bool:
    """Whether the first line is a header: a feature cell is not a number, or a name is asked for."""
    if isinstance(label_column, str):
        return True
    features = list(names)
    if label_column is not None and -len(names) <= label_column < len(names):
        del features[label_column]
    return any(not is_number(cell) for cell in features)


def special_columns(
    path: Path, names: Sequence[str], label_column: str | int | None, has_header: bool = True
) -> dict[str, int]:
    """Find the columns of a table that are not features: "label" and "id", where there are such."""
    header = [name.strip() for name in names] if has_header else []
    columns: dict[str, int] = {
        role: header.index(role) for role in ("label", "id") if role in header
    }
    if isinstance(label_column, str):
        if label_column not in header:
            problem = f"no label column {label_column!r}"
            raise format_error(path, problem, "one of the header's names", excerpt(header, 200))
        columns["label"] = header.index(label_column)
    elif label_column is not None:
        if not -len(names) <= label_column < len(names):
            problem = f"no label column {label_column}"
            expected = f"a number from {-len(names)} to {len(names) - 1}"
            raise format_error(path, problem, expected, label_column)
        columns["label"] = label_column % len(names)
    if columns.get("id") == columns.get("label"):
        columns.pop("id", None)
    return columns


def _write_csv(text: IO[str], items: np.ndarray, labels: np.ndarray | None, ids: Any) -> None:
    writer = csv.writer(text, lineterminator="\n")
    before = [] if ids is None else ["id"]
    after = [] if labels is None else ["label"]
    writer.writerow([*before, *(f"f{column}" for column in range(items.shape[1])), *after])
    for row, values in enumerate(items):
        name = [] if ids is None else [ids[row]]
        label = [] if labels is None else [labels[row].item()]
        writer.writerow(name + values.tolist() + label)


# -- JSONL ---------------------------------------------------------------------------------------


def _read_jsonl(path: Path) -> RawItems:
    """One object per line; the first shows whether rows are lists (dense) or mappings (sparse)."""
    lines: list[int] = []
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    extras: dict[str, list[Any]] = {"label": [], "id": []}
    kinds: tuple[Any, ...] = (list, dict)
    with open_input(path) as handle:
        for line, text in text_lines(handle):
            record = parse_json(path, line, text)
            features: Any = record.get("features") if isinstance(record, dict) else None
            if not isinstance(features, kinds):
                forms = " or ".join({list: "a list", dict: "a mapping"}[kind] for kind in kinds)
                raise format_error(path, "bad row", f'"features": {forms}', excerpt(record), line)
            kinds = (type(features),)
            if isinstance(features, dict):
                columns.append(_feature_numbers(path, line, list(features)))
                features = list(features.values())
            elif rows and len(features) != len(rows[0]):
                expected = f"{len(rows[0])} features, as in the first row"
                raise format_error(path, "ragged row", expected, len(features), line)
            lines.append(line)
            rows.append(_feature_values(path, line, features))
            for key, found in extras.items():
                found.append(record.get(key))
                if (found[0] is None) != (found[-1] is None):
                    problem, expected = (
                        f"{key} missing in some rows",
                        f'"{key}" in all rows or none',
                    )
                    raise format_error(path, problem, expected, excerpt(found[-1]), line)
    if not columns:
        items: Any = np.array(rows)
    else:
        indptr = np.cumsum([0, *map(len, columns)])
        indices = np.concatenate(columns)
        width = int(indices.max(initial=0)) + 1
        items = sparse.csr_matrix((np.concatenate(rows), indices, indptr), shape=(len(rows), width))
    labels, ids = (found if found and found[0] is not None else None for found in extras.values())
    return RawItems(
        items,
        None if labels is None else json_labels(path, labels, lines),
        None if ids is None else [str(value) for value in ids],
        lines.__getitem__,
    )


def _feature_numbers(path: Path, line: int, keys: list[str]) -> np.ndarray:
    """The keys of a sparse row."""
    numbers = [int(key) if key.isdecimal() and len(key) < 10 else -1 for key in keys]
    if -1 in numbers or len(set(numbers)) < len(numbers):
        bad = keys[numbers.index(-1)] if -1 in numbers else f"one twice in {keys}"
        expected = "distinct whole numbers from 0 to 999999999"
        raise format_error(path, "bad feature number", expected, excerpt(bad), line)
    return np.array(numbers, dtype=np.int32)


def _feature_values(path: Path, line: int, values: list[Any]) -> np.ndarray:
    """The values of a row; strings and booleans are not converted."""
    for column, value in enumerate(values):
        # A comparison, because math.isfinite does not accept integers of more than 308 digits.
        if type(value) not in (float, int) or not abs(value) <= sys.float_info.max:
            problem = f"bad value at place {column} (counted from 0)"
            raise format_error(path, problem, "a finite number", excerpt(value), line)
    return np.array(values, dtype=np.float64)


def _write_jsonl(text: IO[str], items: Any, labels: np.ndarray | None, ids: Any) -> None:
    rows = (
        (dict(zip(columns, values, strict=True)) for columns, values in _sparse_rows(items))
        if sparse.issparse(items)
        else (values.tolist() for values in items)
    )
    for row, features in enumerate(rows):
        record = {} if ids is None else {"id": ids[row]}
        record["features"] = features
        if labels is not None:
            record["label"] = labels[row].item()
        text.write(json.dumps(record) + "\n")


_TEXT_WRITERS = {"libsvm": _write_libsvm, "csv": _write_csv, "jsonl": _write_jsonl}


# -- arrays --------------------------------------------------------------------------------------


def _from_arrays(path: Path, arrays: dict[str, np.ndarray]) -> RawItems:
    """Find the items among the arrays of an .npy or .npz file."""
    labels = arrays.get("labels", arrays.get("y"))
    ids = check_labels(path, arrays["ids"]).astype(str).tolist() if "ids" in arrays else None
    dense = next((arrays[key] for key in ("", "items", "X") if key in arrays), None)
    if dense is not None:
        return RawItems(dense, labels, ids)
    if not arrays.keys() >= _CSR_PARTS and "format" not in arrays:
        expected = f"an array items or X, or {', '.join(sorted(_CSR_PARTS))}"
        raise format_error(path, "no items", expected, ", ".join(arrays) or "no arrays")
    try:
        if "format" in arrays and arrays["format"].astype(str) != "csr":
            items = sparse.load_npz(path)
        else:
            parts = tuple(arrays[key] for key in ("data", "indices", "indptr"))
            items = sparse.csr_matrix(parts, shape=tuple(arrays["shape"].tolist()))
        # Compiled code trusts these numbers: a wrong one would read foreign memory.
        if hasattr(items, "check_format"):
            items.check_format(full_check=True)
        items = sparse.csr_matrix(items)
    except Exception as error:
        # scipy's constructors raise whatever the damaged part happens to trip.
        raise format_error(path, "not a sparse matrix", "consistent CSR parts", error) from None
    return RawItems(items, labels, ids)


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
