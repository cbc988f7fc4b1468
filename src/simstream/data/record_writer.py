"""Write triplets and labelled pairs, in the formats that `read_triplets` and `read_pairs` read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .files import PathLike, format_error, format_of, open_output, open_text_output
from .records import (
    ANSWER,
    FORMATS,
    PAIRS,
    SEPARATORS,
    TASK,
    TRIPLETS,
    ItemLimits,
    RecordKind,
    RecordRows,
    rows_of_arrays,
)

_BLOCK_LINES = 4096


def write_triplets(path: PathLike, triplets: Any, y: Any = None, tasks: Any = None) -> None:
    """Write triplets to a text file (``.csv``, ``.tsv``, ``.txt``, ``.jsonl``), ``.npy`` or ``.npz``.

    Text is compressed if the name ends in ``.gz`` or ``.bz2``. The file is written completely or not
    at all. Only what `read_triplets` accepts is written.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its extension determines the format.
    triplets : array-like of int, shape (n, 3)
        Anchor, positive, negative.
    y : array-like of shape (n,), default=None
        Answers: +1 if the first candidate is nearer, -1 if the second is.
    tasks : array-like of shape (n,), default=None
        Names of tasks, strings or integers.

    Raises
    ------
    FormatError
        If the triplets are not integers of that shape, a number is negative, a positive equals its
        negative, an answer is neither +1 nor -1, or the format cannot hold a task: ``.npy`` holds
        none, ``.txt`` none with white space.

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
    numbers = np.asarray(triplets)
    _check_integers(path, numbers, TRIPLETS, width=3)
    extras = (None if values is None else np.asarray(values) for values in (y, tasks))
    _write(Path(path), TRIPLETS, rows_of_arrays(path, numbers, *extras))


def write_pairs(path: PathLike, pairs: Any, y: Any) -> None:
    """Write labelled pairs, in the same formats as `write_triplets`.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its extension determines the format.
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
    _check_integers(path, array, PAIRS, width=2)
    if labels.shape != (len(array),) or not np.isin(labels, (1, -1)).all():
        expected = f"+1 or -1 for each of {len(array)}"
        found = f"shape {labels.shape}, values {np.unique(labels)[:5].tolist()}"
        raise format_error(path, "bad labels of pairs", expected, found)
    columns = array.astype(np.int64), labels.astype(np.int64)
    _write(Path(path), PAIRS, RecordRows(np.column_stack(columns)))


def _check_integers(path: PathLike, array: np.ndarray, kind: RecordKind, width: int) -> None:
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "iu":
        found = f"shape {array.shape}, type {array.dtype}"
        raise format_error(path, f"not {kind.plural}", f"integers of shape (n, {width})", found)


def _write(path: Path, kind: RecordKind, rows: RecordRows) -> None:
    extension = format_of(path, FORMATS)
    valid = kind.are_valid(rows, ItemLimits())
    if not valid.all():
        bad = int(np.argmin(valid))
        problem, expected = kind.problem(rows.part(slice(bad, bad + 1)), ItemLimits())
        problem += f" in row {bad} (counted from 0)"
        raise format_error(path, problem, expected, rows.shown(bad))
    if extension == "npy":
        if rows.y is not None or rows.tasks is not None:
            problem = ".npy cannot hold answers or tasks"
            raise format_error(path, problem, "another format", ".npy")
        with open_output(path) as handle:
            np.save(handle, rows.numbers)
    elif extension == "npz":
        arrays: dict[str, Any] = {kind.plural: rows.numbers, ANSWER: rows.y, "tasks": rows.tasks}
        with open_output(path) as handle:
            np.savez(handle, **{name: part for name, part in arrays.items() if part is not None})
    else:
        _write_text(path, extension, kind, rows)


def _write_text(path: Path, extension: str, kind: RecordKind, rows: RecordRows) -> None:
    names, cells = list(kind.names[0]), rows.numbers
    if rows.y is not None:
        names.append(ANSWER)
        cells = np.column_stack([cells, rows.y])
    kinds = ["%d"] * len(names)
    if rows.tasks is not None:
        names.append(TASK)
        kinds.append("%s")
        tasks = [_task_cell(path, extension, task) for task in rows.tasks.tolist()]
        cells = np.column_stack([cells.astype(object), np.array(tasks, object)])
    if extension == "jsonl":
        pairs = (f'"{name}": {kind}' for name, kind in zip(names, kinds, strict=True))
        header, line = "", "{" + ", ".join(pairs) + "}\n"
    else:
        separator = SEPARATORS.get(extension, " ")
        header, line = separator.join(names) + "\n", separator.join(kinds) + "\n"
    with open_text_output(path) as text_file:
        text_file.write(header)
        for first in range(0, len(cells), _BLOCK_LINES):
            block = cells[first : first + _BLOCK_LINES]
            # One format for many lines: about seven times as fast as numpy.savetxt.
            text_file.write(line * len(block) % tuple(block.ravel().tolist()))


def _task_cell(path: Path, extension: str, task: str) -> str:
    """A task as it is written, quoted where that is necessary."""
    one_word = len(task.split()) == 1
    if not task.isprintable() or (extension == "txt" and not one_word):
        expected = "one line of text" + (" without white space" if extension == "txt" else "")
        raise format_error(path, "a task that the format cannot hold", expected, repr(task))
    if extension == "jsonl":
        return json.dumps(task, ensure_ascii=False)
    if extension != "txt" and ('"' in task or SEPARATORS[extension] in task):
        return '"' + task.replace('"', '""') + '"'
    return task
