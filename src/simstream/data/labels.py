"""Labels: numbers where they are numbers, strings where they are not."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .files import PathLike, excerpt, format_error, format_of, load_arrays, open_input, text_lines

_FORMATS = {".npy": "npy", ".csv": "csv", ".txt": "txt", ".jsonl": "jsonl"}


def read_labels(path: PathLike) -> np.ndarray:
    """Read one label per item from a file of their own.

    Parameters
    ----------
    path : str or os.PathLike
        An ``.npy`` file of a 1-d array; a ``.csv`` or ``.txt`` file of one label a line, after an
        optional header ``label``; or a ``.jsonl`` file, each line a label or an object with a
        ``"label"``. The text formats may be compressed (``.gz``, ``.bz2``).

    Returns
    -------
    ndarray of shape (n,)
        Integers if every label is a whole number, else floats if every one is a number, else
        strings. JSON strings stay strings.

    Raises
    ------
    FormatError
        If the file cannot be read, is empty, or a label is missing or not finite.

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
    """Read the name of one task per item from a file of their own.

    Parameters
    ----------
    path : str or os.PathLike
        The formats of `read_labels`, with ``task`` instead of ``label``.

    Returns
    -------
    ndarray of str, shape (n,)
        Numbers are taken as text, so that task 1 is the same wherever it is written.

    Raises
    ------
    FormatError
        If the file cannot be read, is empty, or a name is missing.

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


def check_task_names(path: PathLike, values: np.ndarray) -> np.ndarray:
    """Tasks as text, 1.0 by the same name as 1; each must have a name."""
    names = [str(value) for value in whole_if_possible(values).tolist()]
    for row, name in enumerate(names):
        # What is missing becomes such a text where numpy or pandas write it among names.
        if not name.strip() or name in ("nan", "NaN"):
            raise format_error(
                path,
                f"task {row} (counted from 0) is missing",
                expected="the name of a task for every item",
                got=excerpt(name),
            )
    return np.array(names, str)


def _read_column(path: Path, name: str) -> np.ndarray:
    """One value per item; `name` is what they are called."""
    kind = format_of(path, _FORMATS)
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
        # A line left out would give every label after it to the wrong item.
        if line != place:
            raise format_error(path, "blank line", expected=f"a {name}", got="nothing", line=place)
        fields = split_cells(path, line, text) if kind == "csv" else [text.strip()]
        if len(fields) != 1 or not fields[0]:
            raise format_error(
                path, f"not a {name}", expected=f"one {name} a line", got=excerpt(text), line=line
            )
        texts.append(fields[0])
    header = bool(texts) and texts[0].strip().lower() == name
    return check_labels(path, numbers_if_possible(np.array(texts[header:], dtype=str)), what=name)


def split_cells(path: Path, line: int, text: str) -> list[str]:
    """The cells of one line of CSV."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise format_error(
            path, "not CSV", expected="short cells", got=f"{error}", line=line
        ) from None


def is_number(cell: str) -> bool:
    """Whether a cell is a number, finite or not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python takes and numpy does not


def parse_json(path: Path, line: int, text: str) -> Any:
    """One line of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise format_error(
            path, "not JSON", expected="one value", got=excerpt(text), line=line
        ) from None


def json_labels(
    path: Path, values: Sequence[Any], lines: Sequence[int], what: str = "label"
) -> np.ndarray:
    """Labels, or whatever they are called, from JSON, where they are all strings or all numbers."""
    texts = bool(values) and isinstance(values[0], str)
    kind, expected = (str, "a string") if texts else ((int, float), "a number")
    for row, value in enumerate(values):
        if not isinstance(value, kind):
            raise format_error(
                path,
                f"not a {what}",
                expected=f"{expected}, like the first {what}" if row else "a string or a number",
                got=excerpt(value),
                line=lines[row],
            )
    return whole_if_possible(np.array(values)) if not texts else np.array(values, dtype=str)


def as_labels(values: Any) -> np.ndarray:
    """Labels as given by a caller; strings held as objects become a string array."""
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
    # Beyond 2**53 a float no longer says which integer was meant; infinities stay for the check.
    return numbers.astype(np.int64) if np.all(np.abs(numbers) < 2.0**53) else numbers


def check_labels(
    path: Path, labels: np.ndarray, n_items: int | None = None, what: str = "label"
) -> np.ndarray:
    """Check shape, type, number and finiteness of labels, or whatever they are called."""
    if labels.ndim != 1 or labels.dtype.kind not in "biufU":
        raise format_error(
            path,
            f"not {what}s",
            expected="a 1-d array of numbers or strings",
            got=f"shape {labels.shape}, type {labels.dtype}",
        )
    if n_items is not None and len(labels) != n_items:
        raise format_error(
            path,
            f"{what}s and items differ in number",
            expected=f"{n_items} {what}s",
            got=f"{len(labels)}",
        )
    if not len(labels):
        raise format_error(path, f"no {what}s", expected="at least one", got="none")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise format_error(
            path,
            f"{what} {row} (counted from 0) is not finite",
            expected="finite numbers or strings",
            got=f"{labels[row]}",
        )
    return labels
