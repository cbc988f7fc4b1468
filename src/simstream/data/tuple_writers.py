"""Writing triplets and labelled pairs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from .files import PathLike, format_error, format_of, open_output, open_text_output
from .lines import SEPARATORS
from .records import ANSWER, PAIRS, TASK, TRIPLETS, Limits, RecordKind
from .tuple_readers import BLOCK_LINES, FORMATS, bad_record, with_extras


def write_triplets(path: PathLike, triplets: Any, y: Any = None, tasks: Any = None) -> None:
    """Write triplets to a text file (``.csv``, ``.tsv``, ``.txt``, ``.jsonl``), ``.npy`` or ``.npz``.

    Text is compressed where the name ends in ``.gz`` or ``.bz2``. The file appears whole or not at
    all. Only what `read_triplets` takes back is written.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its name says in which format.
    triplets : array-like of int, shape (n, 3)
        Anchor, positive, negative.
    y : array-like of shape (n,), default=None
        Answers: +1 where the first candidate is nearer, -1 where the second is.
    tasks : array-like of shape (n,), default=None
        Names of tasks, strings or integers.

    Raises
    ------
    FormatError
        If the triplets are not integers of that shape, a number is negative, a positive is its
        negative, an answer is neither +1 nor -1, or the format cannot hold a task: ``.npy`` none at
        all, ``.txt`` none with white space.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import write_triplets
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "triplets.jsonl"
    >>> write_triplets(path, [[0, 1, 2]])
    >>> path.read_text()
    '{"anchor": 0, "positive": 1, "negative": 2}\\n'
    >>> write_triplets(path, [[0, 1, 2]], y=[-1], tasks=["ann"])
    >>> path.read_text()
    '{"anchor": 0, "positive": 1, "negative": 2, "y": -1, "task": "ann"}\\n'
    """
    _write(path, TRIPLETS, np.asarray(triplets), Limits(), y, tasks)


def write_pairs(path: PathLike, pairs: Any, y: Any) -> None:
    """Write labelled pairs, in the same formats as `write_triplets`.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its name says in which format.
    pairs : array-like of int, shape (n, 2)
        Two items.
    y : array-like of shape (n,)
        +1 (similar) or -1 (dissimilar).

    Raises
    ------
    FormatError
        If the pairs are not integers of that shape, a number is negative, or a label is neither +1
        nor -1.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import write_pairs
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
    >>> write_pairs(path, [[0, 1], [0, 2]], [1, -1])
    >>> path.read_text()
    'first,second,y\\n0,1,1\\n0,2,-1\\n'
    """
    array, labels = np.asarray(pairs), np.asarray(y)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise format_error(
            path,
            "not pairs",
            expected="integers of shape (n, 2)",
            got=f"shape {array.shape}, type {array.dtype}",
        )
    if labels.shape != (len(array),) or not np.isin(labels, (1, -1)).all():
        raise format_error(
            path,
            "bad labels of pairs",
            expected=f"+1 or -1 for each of {len(array)}",
            got=f"shape {labels.shape}, values {np.unique(labels)[:5].tolist()}",
        )
    _write(path, PAIRS, np.column_stack([array, labels.astype(np.int64)]), Limits())


def _write(
    path: PathLike,
    kind: RecordKind,
    numbers: np.ndarray,
    limits: Limits,
    y: Any = None,
    tasks: Any = None,
) -> None:
    path = Path(path)
    extension = format_of(path, FORMATS)
    if numbers.ndim != 2 or numbers.shape[1] != 3 or numbers.dtype.kind not in "iu":
        raise format_error(
            path,
            f"not {kind.plural}",
            expected="integers of shape (n, 3)",
            got=f"shape {numbers.shape}, type {numbers.dtype}",
        )
    answers = None if y is None else np.asarray(y)
    names = None if tasks is None else np.asarray(tasks)
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    rows, extras = with_extras(path, numbers, answers, names)
    good = kind.are_good(rows, limits)
    if not good.all():
        row = int(np.argmin(good))
        text = f"{rows[row, :4].tolist()}"
        raise bad_record(path, kind, rows[row], limits, None, text, row)
    if extension == "npy" and extras.width > 3:
        raise format_error(
            path, ".npy cannot hold answers or tasks", expected="another format", got=".npy"
        )
    besides = {ANSWER: answers, "tasks": None if names is None else names.astype(str)}
    held = {name: values for name, values in besides.items() if values is not None}
    if extension in ("npy", "npz"):
        with open_output(path) as handle:
            if extension == "npy":
                np.save(handle, numbers)
            else:
                arrays: dict[str, Any] = {kind.plural: numbers, **held}
                np.savez(handle, **arrays)
        return
    if extras.width > 3:
        _write_table(path, extension, kind, numbers, held)
        return
    names_of_three = kind.names[0]
    if extension == "jsonl":
        line, header = "{" + ", ".join(f'"{name}": %d' for name in names_of_three) + "}\n", ""
    else:
        separator = SEPARATORS.get(extension, " ")
        line, header = separator.join(["%d"] * 3) + "\n", separator.join(names_of_three) + "\n"
    with open_text_output(path) as text_file:
        text_file.write(header)
        for first in range(0, len(numbers), BLOCK_LINES):
            block = numbers[first : first + BLOCK_LINES]
            # One format for many lines: about seven times as fast as numpy.savetxt.
            text_file.write(line * len(block) % tuple(block.ravel().tolist()))


def _write_table(
    path: Path, extension: str, kind: RecordKind, numbers: np.ndarray, held: dict[str, np.ndarray]
) -> None:
    """Text with a column for each of the answers and tasks that there are."""
    header = [*kind.names[0], *(TASK if name == "tasks" else name for name in held)]
    columns = [*numbers.T.tolist(), *(values.tolist() for values in held.values())]
    separator = SEPARATORS.get(extension, " ")
    for task in held["tasks"].tolist() if "tasks" in held else ():
        if not task.isprintable() or (separator == " " and len(task.split()) != 1):
            raise format_error(
                path,
                "a task that the format cannot hold",
                expected="one line of text" + (" without white space" if separator == " " else ""),
                got=repr(task),
            )
    with open_text_output(path) as text_file:
        rows = zip(*columns, strict=True)
        if extension == "jsonl":
            for row in rows:
                record = dict(zip(header, row, strict=True))
                text_file.write(json.dumps(record, ensure_ascii=False) + "\n")
            return
        if separator == " ":  # no quotes there: tasks have no white space
            text_file.writelines(" ".join(map(str, row)) + "\n" for row in (header, *rows))
            return
        writer = csv.writer(text_file, delimiter=separator, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
