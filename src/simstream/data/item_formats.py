"""The file formats of items: a reader and a writer for each, and the labels they share.

LIBSVM, CSV, JSONL and NumPy arrays; parquet needs pyarrow: ``pip install 'simstream[parquet]'``. pyarrow
could read CSV and JSONL too, about twice as fast, but it does not say in which line an error is: large files
are better kept as parquet, ``.npy`` or ``.npz``.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress, islice, product, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy import sparse

from ..extras import MissingExtraError
from ..ids import repeated_ids
from ..validation import float_type
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

_LIBSVM = ("svm", "libsvm", "svmlight")
FORMATS = (*_LIBSVM, "csv", "jsonl", "npy", "npz", "parquet")
#: Names of a column or a field of vectors, and of ids: of simstream first, then of others.
_VECTORS = ("features", "embedding", "vector")
_IDS = ("id", "_id")
#: First column of a CSV file with the index of a table of pandas, and what it is called when read by pandas.
_UNNAMED = ("", "Unnamed: 0")
_CSR_PARTS = {"data", "indices", "indptr", "shape"}


class LabelColumnError(FormatError):
    """The file has no such column of labels."""


class RawItems(NamedTuple):
    """What the reader of one format found, before the checks that all formats share."""

    items: Any
    labels: np.ndarray | None = None
    ids: list[str] | None = None
    #: Row number to line number, for messages only; None where the format has no lines.
    line_of: Callable[[int], int] | None = None
    #: Names of the features, None where there are none.
    feature_names: list[str] | None = None


def read_raw(path: Path, label_column: str | int | None, array: str | None = None) -> RawItems:
    """Read a file in the format of its extension; of an .npz file the array named, if it has one."""
    kind = format_of(path, FORMATS)
    if label_column is not None and kind not in ("csv", "parquet"):
        problem = "label_column is for CSV and parquet"
        raise _no_column(path, problem, "label_column=None", excerpt(label_column))
    match kind:
        case "csv":
            return _read_csv(path, label_column)
        case "jsonl":
            return _read_jsonl(path)
        case "parquet":
            return _read_parquet(path, label_column)
        case "npy" | "npz":
            return _read_arrays(path, array)
        case _:
            return _read_libsvm(path)


def write_raw(
    path: Path,
    items: Any,
    labels: np.ndarray | None,
    ids: list[str] | None,
    feature_names: Sequence[str] | None = None,
) -> None:
    """Write a file in the format of its extension, which must be able to hold everything."""
    kind = format_of(path, FORMATS)
    _check_can_hold(path, kind, items, labels, ids)
    if kind == "parquet":
        _write_parquet(path, items, labels, ids, feature_names)
    elif kind in ("npy", "npz"):
        with open_output(path) as handle:
            if kind == "npy":
                np.save(handle, items)
            else:
                np.savez(handle, allow_pickle=False, **_arrays(items, labels, ids))
    else:
        csv_of_names = functools.partial(_write_csv, feature_names=feature_names)
        write: Any = {"csv": csv_of_names, "jsonl": _write_jsonl}.get(kind, _write_libsvm)
        with open_text_output(path) as text:
            write(text, items, labels, ids)


def _check_can_hold(path: Path, kind: str, items: Any, labels: Any, ids: Any) -> None:
    """Refuse what would be lost, or could not be read again."""
    texts = labels if labels is not None and labels.dtype.kind == "U" else []
    refusals = {
        "sparse items": sparse.issparse(items) and kind in ("csv", "npy", "parquet"),
        "labels": labels is not None and kind == "npy",
        "string labels": len(texts) and kind in _LIBSVM,
        "ids": ids is not None and kind in (*_LIBSVM, "npy"),
        "labels or ids that are empty or span several lines": kind == "csv"
        and any(not text or "\n" in text or "\r" in text for text in [*texts, *(ids or [])]),
    }
    for what, refused in refusals.items():
        if refused:
            expected = "another format, such as .jsonl or .npz"
            found = f"{what} for {path.suffix}"
            raise format_error(path, f"the format cannot hold {what}", expected, found)


# -- labels --------------------------------------------------------------------------------------


def json_labels(
    path: Path, values: Sequence[Any], lines: Sequence[int], what: str = "label"
) -> np.ndarray:
    """Labels (or tasks) from JSON, which must be all strings or all numbers."""
    are_strings = bool(values) and isinstance(values[0], str)
    kind, expected = (str, "a string") if are_strings else ((int, float), "a number")
    for row, value in enumerate(values):
        if not isinstance(value, kind):
            expected = f"{expected}, like the first {what}" if row else "a string or a number"
            raise format_error(path, f"not a {what}", expected, excerpt(value), lines[row])
    return np.array(values, dtype=str) if are_strings else whole_if_possible(np.array(values))


def as_labels(values: Any) -> np.ndarray:
    """Labels as a caller gives them, without Python objects where they are all strings."""
    labels = np.asarray(values)
    if labels.dtype.kind == "O" and all(isinstance(value, str) for value in labels.flat):
        labels = labels.astype(str)
    return labels


def numbers_if_possible(texts: np.ndarray) -> np.ndarray:
    """Turn strings that are all numbers into integers or floats."""
    for dtype in (np.int64, np.float64):
        try:
            return whole_if_possible(texts.astype(dtype))
        except (ValueError, OverflowError):
            continue
    return texts


def whole_if_possible(numbers: np.ndarray) -> np.ndarray:
    """Turn floats that are all whole numbers into integers, so that class 1.0 is class 1."""
    if numbers.dtype.kind != "f" or np.any(np.rint(numbers) != numbers):
        return numbers
    # Beyond 2**53 a float does not say which integer was meant; infinities are left to the check.
    return numbers.astype(np.int64) if np.all(np.abs(numbers) < 2.0**53) else numbers


def check_labels(
    path: Path, labels: np.ndarray, n_items: int | None = None, what: str = "label"
) -> np.ndarray:
    """Check shape, type, number and finiteness of labels (or tasks)."""
    if labels.ndim != 1 or labels.dtype.kind not in "biufU":
        found = f"shape {labels.shape}, type {labels.dtype}"
        raise format_error(path, f"not {what}s", "a 1-d array of numbers or strings", found)
    if n_items is not None and len(labels) != n_items:
        problem = f"{what}s and items differ in number"
        raise format_error(path, problem, f"{n_items} {what}s", len(labels))
    if not len(labels):
        raise format_error(path, f"no {what}s", "at least one", "none")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        problem = f"{what} {row} (counted from 0) is not finite"
        raise format_error(path, problem, "finite numbers or strings", labels[row])
    return labels


def check_task_names(path: PathLike, values: np.ndarray) -> np.ndarray:
    """Tasks as strings, where 1.0 is the same as 1; none may be missing."""
    names = [str(value) for value in whole_if_possible(values).tolist()]
    for row, name in enumerate(names):
        # numpy and pandas write a missing value among strings as "nan".
        if not name.strip() or name in ("nan", "NaN"):
            problem = f"task {row} (counted from 0) is missing"
            raise format_error(path, problem, "the name of a task for every item", excerpt(name))
    return np.array(names, str)


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
        if len(names) == 1:
            _check_separator(path, first[1], first[0], names, anything=True)
        has_header = _is_header(names, label_column)
        special = _special_columns(path, names, label_column, has_header)
        if has_header and names[0].strip() in _UNNAMED and 0 not in special.values():
            special["index"] = 0
        is_feature = [column not in special.values() for column in range(len(names))]
        _check_separator(path, first[1], first[0], compress(names, is_feature))
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
                if not lines and role == "label":
                    _check_separator(path, text, line, [cells[column]])
            if suspicious:
                _check_cells(path, line, cells, is_feature, names if has_header else [])
            lines.append(line)
    if not lines:
        raise no_rows
    items = np.frombuffer(values).reshape(len(lines), sum(is_feature))
    feature_names = [name.strip() for name in compress(names, is_feature)] if has_header else None
    ids = texts.get("id")
    if "index" in texts:
        index = _index_as_ids(path, texts["index"], has_ids=ids is not None)
        if index is None:  # a feature that nobody has named
            items = np.column_stack([np.array(texts["index"], np.float64), items])
            feature_names = [names[0].strip(), *(feature_names or [])]
        ids = ids or index or None
    return RawItems(
        items,
        numbers_if_possible(np.array(texts["label"], str)) if "label" in texts else None,
        ids,
        lines.__getitem__,
        feature_names,
    )


def _index_as_ids(path: Path, texts: list[str], has_ids: bool) -> list[str] | None:
    """Ids in a first column without a name, where pandas writes the index of a table.

    Empty if it holds numbers, which count rows or are what filtering has left of them, or there is a column
    of ids; None if it is a feature: numbers of which some are not whole.
    """
    are_numbers = all(map(is_number, texts))
    are_whole = are_numbers and all(float(text).is_integer() for text in texts)
    what = f"{path}: the first column has no name"
    if are_numbers and not are_whole:
        warnings.warn(f"{what}: taken as a feature, for its numbers are not whole", stacklevel=5)
        return None
    if not has_ids and (repeated := repeated_ids(texts)):
        problem = "the first column has no name, as an index of pandas has none, and values twice"
        expected = "different row numbers or ids, or a name for the column"
        raise format_error(path, problem, expected, repeated)
    meaning = "row numbers" if are_whole else "another index" if has_ids else "ids"
    warnings.warn(f"{what}: taken as {meaning}, not as a feature", stacklevel=5)
    return [] if are_whole or has_ids else texts


def _check_separator(
    path: Path, text: str, line: int, cells: Iterable[str], *, anything: bool = False
) -> None:
    """Refuse semicolons or tabs in a cell where commas should be: between numbers, or between anything."""
    for cell, (mark, name) in product(cells, {";": "semicolons", "\t": "tabs"}.items()):
        if mark in cell.strip() and (anything or all(map(is_number, cell.split(mark)))):
            expected = "commas between cells, and points in numbers"
            raise format_error(
                path, f"{name} between cells", expected, excerpt(text.rstrip()), line
            )


def _check_cells(
    path: Path, line: int, cells: list[str], is_feature: list[bool], names: list[str]
) -> None:
    """Raise an error about the first bad cell of a line, if there is one."""
    for column, cell in enumerate(cells):
        if not (is_number(cell) if is_feature[column] else cell):
            _check_separator(path, ",".join(cells), line, [cell])
            name = f" ({names[column].strip()})" if names else ""
            problem = f"bad cell in column {column} (counted from 0){name}"
            expected = "a number" if is_feature[column] else "a label or an id"
            raise format_error(path, problem, expected, excerpt(cell), line)


def _is_header(names: Sequence[str], label_column: str | int | None) -> bool:
    """Whether the first line is a header: a feature cell is not a number, or a name is asked for."""
    if isinstance(label_column, str):
        return True
    features = list(names)
    if label_column is not None and -len(names) <= label_column < len(names):
        del features[label_column]
    return any(not is_number(cell) for cell in features)


def _special_columns(
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
            raise _no_column(path, problem, "one of the header's names", excerpt(header, 200))
        columns["label"] = header.index(label_column)
    elif label_column is not None:
        if not -len(names) <= label_column < len(names):
            problem = f"no label column {label_column}"
            expected = f"a number from {-len(names)} to {len(names) - 1}"
            raise _no_column(path, problem, expected, label_column)
        columns["label"] = label_column % len(names)
    if columns.get("id") == columns.get("label"):
        columns.pop("id", None)
    return columns


def _no_column(path: Path, problem: str, expected: str, got: object) -> LabelColumnError:
    return LabelColumnError(*format_error(path, problem, expected, got).args)


def _write_csv(
    text: IO[str],
    items: np.ndarray,
    labels: np.ndarray | None,
    ids: Any,
    feature_names: Sequence[str] | None = None,
) -> None:
    writer = csv.writer(text, lineterminator="\n")
    names = feature_names or [f"f{column}" for column in range(items.shape[1])]
    before = [] if ids is None else ["id"]
    after = [] if labels is None else ["label"]
    writer.writerow([*before, *names, *after])
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
            features: Any = _field(record, _VECTORS) if isinstance(record, dict) else None
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
                found.append(_field(record, _IDS if key == "id" else (key,)))
                if (found[0] is None) != (found[-1] is None):
                    problem = f"{key} missing in some rows"
                    expected = f'"{key}" in all rows or none'
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


def _field(record: dict[str, Any], names: Sequence[str]) -> Any:
    """What an object has under the first of these names that it has; None if it has none of them."""
    return next((record[name] for name in names if name in record), None)


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


# -- arrays --------------------------------------------------------------------------------------


def _read_arrays(path: Path, name: str | None) -> RawItems:
    """Find the items among the arrays of an .npy or .npz file."""
    arrays = load_arrays(path)
    if name is not None and name in arrays:
        return RawItems(arrays[name])  # labels and ids are those of the items
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


# -- parquet -------------------------------------------------------------------------------------

#: pandas writes an index as a column of such a name: it is not a feature.
_INDEX = "__index_level_"


class ParquetColumns(NamedTuple):
    """Which columns of a parquet file are features, and which are labels and ids."""

    features: list[str]
    label: str | None
    id: str | None
    #: Whether the one column of features holds vectors.
    are_vectors: bool = False

    @classmethod
    def of(cls, path: Path, schema: Any, label_column: str | int | None) -> ParquetColumns:
        """By their names: a column of vectors, or else one column per feature.

        Ids are in a column ``id``, or in the index of texts of a table that pandas wrote.
        """
        index = _index_of(path, schema)
        names = [name for name in schema.names if name not in index and not name.startswith(_INDEX)]
        places = _special_columns(path, names, label_column)
        special = {role: names[place] for role, place in places.items()}
        vectors = [name for name in names if _is_list(path, schema.field(name).type)]
        known = [name for name in _VECTORS if name in vectors]
        if "features" in names:
            features = ["features"]
        elif len(vectors) > 1 and not known:
            raise format_error(
                path, "several columns of vectors", "one, or one called features", vectors
            )
        else:
            features = (known or vectors)[:1] or names
        features = [name for name in features if name not in special.values()]
        ids = special.get("id", index[0] if len(index) == 1 else None)
        return cls(features, special.get("label"), ids, bool(vectors))

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the features, None where one column holds all of them."""
        return None if self.are_vectors else self.features

    @property
    def special(self) -> list[str]:
        """Columns that are not features."""
        return [name for name in (self.label, self.id) if name is not None]

    def values(self, path: Path, table: Any, first_row: int = 0) -> np.ndarray:
        """The features of a table's rows, the first of which has this number."""
        pa, _ = load_pyarrow(path)
        _check_nulls(path, table, self.features, first_row)
        if self.are_vectors or self.features == ["features"]:
            return _vectors(path, pa, table.column(self.features[0]), self.features[0], first_row)
        for name in self.features:
            kind = table.column(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise format_error(path, f"bad column {name!r}", "numbers", kind)
        kinds = {
            float_type(np.dtype(table.column(name).type.to_pandas_dtype()))
            for name in self.features
        }
        dtype = np.result_type(*kinds) if kinds else np.float64
        items = np.empty((table.num_rows, len(self.features)), dtype)
        for k, name in enumerate(self.features):
            items[:, k] = table.column(name).to_numpy()
        return items

    def others(self, path: Path, table: Any) -> tuple[np.ndarray | None, list[str] | None]:
        """Labels and ids of a table's rows, None where there are none."""
        _check_nulls(path, table, self.special)
        labels = None if self.label is None else as_labels(table.column(self.label).to_numpy())
        ids = None if self.id is None else table.column(self.id).to_numpy().tolist()
        return labels, None if ids is None else [str(name) for name in ids]


def _check_nulls(path: Path, table: Any, names: Sequence[str], first_row: int = 0) -> None:
    for name in names:
        if table.column(name).null_count:
            row = first_row + table.column(name).is_null().to_pylist().index(True)
            problem = f"null in column {name!r}, row {row} (counted from 0)"
            raise format_error(path, problem, "a value in every row", "null")


def _read_parquet(path: Path, label_column: str | int | None) -> RawItems:
    """Read a column ``features`` of vectors, or else one column per feature."""
    with opened_parquet(path) as file:
        table = file.read()
    columns = ParquetColumns.of(path, table.schema, label_column)
    values, others = columns.values(path, table), columns.others(path, table)
    return RawItems(values, *others, feature_names=columns.feature_names)


def _index_of(path: Path, schema: Any) -> list[str]:
    """Columns of texts that were the index of a table of pandas."""
    types = load_pyarrow(path)[0].types
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [
        name
        for name in index  # an index that only counts is no column, but a description
        if isinstance(name, str)
        and name in schema.names
        and (types.is_string(kind := schema.field(name).type) or types.is_large_string(kind))
    ]


def _is_list(path: Path, kind: Any) -> bool:
    types = load_pyarrow(path)[0].types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _vectors(path: Path, pa: Any, column: Any, name: str, first_row: int = 0) -> np.ndarray:
    """Rows of a column of lists, which must all have the same length."""
    if not _is_list(path, column.type):
        raise format_error(path, f"bad column {name!r}", "a vector in every row", column.type)
    rows = column.combine_chunks()
    values = rows.flatten().to_numpy(zero_copy_only=False)
    lengths = np.array(pa.compute.list_value_length(rows))
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        problem = f"ragged row {first_row + row} (counted from 0)"
        expected = f"{lengths[0]} features, as in row {first_row}"
        raise format_error(path, problem, expected, lengths[row])
    return values.reshape(len(rows), -1) if len(rows) else np.empty((0, 0))


def _write_parquet(
    path: Path,
    items: np.ndarray,
    labels: np.ndarray | None,
    ids: Sequence[str] | None,
    feature_names: Sequence[str] | None = None,
) -> None:
    """Write a column for each named feature, or one, ``features``, of vectors; and ``label`` and ``id``."""
    pa, pq = load_pyarrow(path)
    columns = {} if ids is None else {"id": pa.array(ids)}
    if feature_names is not None:
        columns |= {name: pa.array(items[:, at]) for at, name in enumerate(feature_names)}
    else:
        flat = pa.array(items.ravel())
        columns["features"] = pa.FixedSizeListArray.from_arrays(flat, items.shape[1])
    if labels is not None:
        columns["label"] = pa.array(labels.tolist())
    with open_output(path) as handle:
        pq.write_table(pa.table(columns), handle)


@contextmanager
def opened_parquet(path: Path, *, mapped: bool = False) -> Iterator[Any]:
    """The file as pyarrow opens it, by itself; whatever goes wrong in the block is a FormatError.

    It never gets a file of Python: when there is an error, other threads of pyarrow may still be reading, and
    one that reads a file of Python while the interpreter ends aborts the process.
    """
    pa, pq = load_pyarrow(path)
    with open_input(path):
        pass  # says what is wrong with a file that cannot be opened, or is empty
    try:
        with pq.ParquetFile(path, memory_map=mapped) as file:
            yield file
    except FormatError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise format_error(path, "damaged or truncated", "a parquet file", error) from None


class NoPyarrowError(MissingExtraError, FormatError):
    """A parquet file cannot be read or written without pyarrow."""


def load_pyarrow(path: Path) -> tuple[Any, Any]:
    """The package and its module for parquet, or an error that says how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise NoPyarrowError(f"{path}: parquet", "pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet
