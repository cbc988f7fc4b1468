"""Labels and tasks of items: integers or floats where all are numbers, strings otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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

_FORMATS = {".npy": "npy", ".csv": "csv", ".txt": "txt", ".jsonl": "jsonl"}


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
