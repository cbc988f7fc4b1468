"""Readers of the text formats of items: LIBSVM, CSV and JSONL."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from .files import FormatError, excerpt, format_error, open_input, text_lines
from .labels import (
    is_number,
    json_labels,
    numbers_if_possible,
    parse_json,
    split_cells,
    whole_if_possible,
)


class RawItems(NamedTuple):
    """What a reader found, before the checks that all formats share."""

    items: Any
    labels: np.ndarray | None = None
    ids: list[str] | None = None
    #: Row number to line number, for messages only; None where the format has no lines.
    line_of: Callable[[int], int] | None = None


def read_libsvm(path: Path) -> RawItems:
    """LIBSVM by scikit-learn, which does not say where an error is: that is searched afterwards."""
    with open_input(path) as handle:
        try:
            items, labels = _parse_libsvm(handle)
        except (ValueError, OverflowError):
            raise _libsvm_error(path) from None
    return RawItems(
        items,
        whole_if_possible(labels),
        line_of=lambda row: _line_of_row(path, row, lambda text: text.partition("#")[0].strip()),
    )


def _parse_libsvm(handle: Any) -> tuple[Any, np.ndarray]:
    # Imported when it is needed: whoever reads other files does not wait for it.
    from sklearn.datasets import load_svmlight_file

    return load_svmlight_file(handle)


def _libsvm_error(path: Path) -> FormatError:
    """Find the first line scikit-learn refuses, by halving."""
    with open_input(path) as handle:
        lines = handle.readlines()
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _libsvm_refusal(lines[low:middle]) else (middle, high)
    reason = _libsvm_refusal(lines[low:high])
    return format_error(
        path,
        "not a LIBSVM line",
        expected="label number:value ... with rising feature numbers",
        got=f"{excerpt(lines[low].decode(errors='replace').rstrip())} ({reason})",
        line=low + 1,
    )


def _libsvm_refusal(lines: Sequence[bytes]) -> str:
    try:
        _parse_libsvm(io.BytesIO(b"".join(lines)))
    except (ValueError, OverflowError) as error:
        return f"{error}"
    return ""


def _line_of_row(path: Path, row: int, is_row: Callable[[str], object], n_header: int = 0) -> int:
    """Line number of a row, by reading the file again."""
    with open_input(path) as handle:
        rows = (line for line, text in text_lines(handle) if is_row(text))
        return next(line for number, line in enumerate(rows) if number == row + n_header)


def read_csv(path: Path, label_column: str | int | None) -> RawItems:
    """CSV by `numpy.loadtxt`; labels and ids pass through it as the numbers of distinct strings."""
    with open_input(path) as handle:
        lines = (text for _, text in text_lines(handle))
        first = next(lines, "")
        names = split_cells(path, 1, first)
        named = _is_header(names, label_column)
        columns = _named_columns(path, names, named, label_column)
        body = lines if named else chain([first], lines)
        second = next(body, "")
        if not second:
            raise format_error(path, "no rows", expected="at least one line of numbers", got="none")
        codes: dict[int, dict[str, int]] = {column: {} for column in columns.values()}
        try:
            table = np.loadtxt(
                chain([second], body),
                delimiter=",",
                quotechar='"',
                comments=None,
                ndmin=2,
                converters={column: _coder(known) for column, known in codes.items()} or None,
            )
        except ValueError as error:
            raise _csv_error(path, names, named, columns, f"{error}") from None
    items = np.delete(table, list(codes), axis=1) if codes else table
    texts = {
        role: np.array(list(codes[column]), dtype=str)[table[:, column].astype(np.intp)]
        for role, column in columns.items()
    }
    if any("" in known for known in codes.values()) or not np.isfinite(items).all():
        raise _csv_error(path, names, named, columns, "an empty or infinite cell")
    return RawItems(
        items,
        numbers_if_possible(texts["label"]) if "label" in texts else None,
        texts["id"].tolist() if "id" in texts else None,
        lambda row: _line_of_row(path, row, str.strip, n_header=int(named)),
    )


def _coder(known: dict[str, int]) -> Callable[[str], int]:
    return lambda text: known.setdefault(text, len(known))


def _is_header(names: Sequence[str], label_column: str | int | None) -> bool:
    """Whether the first line is a header: a feature cell is no number, or names are asked for."""
    if isinstance(label_column, str):
        return True
    features = list(names)
    if label_column is not None and -len(names) <= label_column < len(names):
        del features[label_column]
    return any(not is_number(cell) for cell in features)


def _named_columns(
    path: Path, names: Sequence[str], named: bool, label_column: str | int | None
) -> dict[str, int]:
    """Numbers of the columns that are not features."""
    header = [name.strip() for name in names] if named else []
    columns: dict[str, int] = {
        role: header.index(role) for role in ("label", "id") if role in header
    }
    if isinstance(label_column, str):
        if label_column not in header:
            raise format_error(
                path,
                f"no label column {label_column!r}",
                expected="one of the header's names",
                got=excerpt(header, 200),
            )
        columns["label"] = header.index(label_column)
    elif label_column is not None:
        if not -len(names) <= label_column < len(names):
            raise format_error(
                path,
                f"no label column {label_column}",
                expected=f"a number from {-len(names)} to {len(names) - 1}",
                got=f"{label_column}",
            )
        columns["label"] = label_column % len(names)
    if columns.get("id") == columns.get("label"):
        columns.pop("id", None)
    return columns


def _csv_error(
    path: Path, names: Sequence[str], named: bool, columns: dict[str, int], reason: str
) -> FormatError:
    """Find the first bad cell by reading the file again, slowly."""
    others = set(columns.values())
    with open_input(path) as handle:
        rows = text_lines(handle)
        if named:
            next(rows)
        for line, text in rows:
            cells = split_cells(path, line, text)
            if len(cells) != len(names):
                return format_error(
                    path,
                    "ragged row",
                    expected=f"{len(names)} cells, as in the first line",
                    got=f"{len(cells)}",
                    line=line,
                )
            for column, cell in enumerate(cells):
                good = cell if column in others else is_number(cell) and np.isfinite(float(cell))
                if not good:
                    label = f" ({names[column].strip()})" if named else ""
                    return format_error(
                        path,
                        f"bad cell in column {column} (counted from 0){label}",
                        expected="a label" if column in others else "a finite number",
                        got=excerpt(cell),
                        line=line,
                    )
    return format_error(path, "not a table", expected="numbers separated by commas", got=reason)


def read_jsonl(path: Path) -> RawItems:
    """One object a line; the first one says whether rows are lists (dense) or mappings (sparse)."""
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
                expected = " or ".join({list: "a list", dict: "a mapping"}[kind] for kind in kinds)
                raise format_error(
                    path,
                    "bad row",
                    expected=f'"features": {expected}',
                    got=excerpt(record),
                    line=line,
                )
            kinds = (type(features),)
            if isinstance(features, dict):
                columns.append(_feature_numbers(path, line, list(features)))
                features = list(features.values())
            elif rows and len(features) != len(rows[0]):
                raise format_error(
                    path,
                    "ragged row",
                    expected=f"{len(rows[0])} features, as in the first row",
                    got=f"{len(features)}",
                    line=line,
                )
            lines.append(line)
            rows.append(_feature_values(path, line, features))
            for key, found in extras.items():
                found.append(record.get(key))
                if (found[0] is None) != (found[-1] is None):
                    raise format_error(
                        path,
                        f"{key} missing in some rows",
                        expected=f'"{key}" in every row or in none',
                        got=excerpt(found[-1]),
                        line=line,
                    )
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
        raise format_error(
            path,
            "bad feature number",
            expected="distinct whole numbers from 0 to 999999999",
            got=excerpt(bad),
            line=line,
        )
    return np.array(numbers, dtype=np.int32)


def _feature_values(path: Path, line: int, values: list[Any]) -> np.ndarray:
    """The values of a row, which are not converted from strings or booleans."""
    for column, value in enumerate(values):
        # A comparison, because math.isfinite does not take integers of more than 308 digits.
        if type(value) not in (float, int) or not abs(value) <= sys.float_info.max:
            raise format_error(
                path,
                f"bad value at place {column} (counted from 0)",
                expected="a finite number",
                got=excerpt(value),
                line=line,
            )
    return np.array(values, dtype=np.float64)
