"""Read what rows are called: their ids and their texts, one for each row of a file of items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

#: Names of an id in objects: of simstream, and of BEIR.
_ID_FIELDS = ("id", "_id")


def read_ids(path: PathLike) -> list[str]:
    """Read one id for each row.

    Parameters
    ----------
    path : str or os.PathLike
        A ``.csv`` or ``.txt`` file with one id per line, after an optional header ``id``; a ``.jsonl`` file,
        each line an id or an object with an ``"id"``; or an ``.npy`` file of a 1-d array. The text formats
        may be compressed (``.gz``, ``.bz2``).

    Returns
    -------
    list of str
        Different texts, as they are written: 007 is not 7.

    Raises
    ------
    FormatError
        If the file cannot be read or is empty, or an id is missing or occurs twice.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_ids
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ids.txt"
    >>> _ = path.write_text("id\\n007\\n008\\n")
    >>> read_ids(path)
    ['007', '008']
    """
    path = Path(path)
    kind = format_of(path, ("csv", "txt", "jsonl", "npy"))
    if kind == "npy":
        array = load_arrays(path)[""]
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            found = f"shape {array.shape}, type {array.dtype}"
            raise format_error(path, "not ids", "a 1-d array of strings or integers", found)
        found_at = [(str(value), row) for row, value in enumerate(array.tolist(), 1)]
    else:
        found_at = []
        for line, text in _lines(path):
            if kind == "jsonl":
                record = parse_json(path, line, text)
                value = _id_of(record) if isinstance(record, dict) else record
            else:
                cells = split_cells(path, line, text) if kind == "csv" else [text.strip()]
                value = cells[0].strip() if len(cells) == 1 else None
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
                raise format_error(path, "not an id", "one id per line", excerpt(text), line)
            found_at.append((str(value), line))
        if kind != "jsonl" and found_at and found_at[0][0].lower() == "id":
            del found_at[0]
    if not found_at:
        raise format_error(path, "no ids", "at least one", "none")
    seen = set()
    for value, line in found_at:
        if value in seen:
            raise format_error(path, "an id twice", "different ids", excerpt(value), line)
        seen.add(value)
    return [value for value, _ in found_at]


def read_texts(path: PathLike, ids: Sequence[str] | int) -> list[str | None]:
    """Read the text of each row.

    Parameters
    ----------
    path : str or os.PathLike
        A ``.txt`` file with one text per line; or a ``.jsonl`` file, each line a text or an object with a
        ``"text"`` and maybe an ``"id"``. Both may be compressed (``.gz``, ``.bz2``).
    ids : sequence of str, or int
        Ids of the rows, or the number of rows if they have none. Objects with ids are assigned by them,
        everything else by place.

    Returns
    -------
    list of str or None
        A text for each row; None where there is none for its id.

    Raises
    ------
    FormatError
        If the file cannot be read, holds anything else, or has too few or too many texts.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_texts
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "texts.jsonl"
    >>> _ = path.write_text('{"id": "b", "text": "a bee"}\\n{"id": "a", "text": "an ant"}\\n')
    >>> read_texts(path, ["a", "b"])
    ['an ant', 'a bee']
    """
    path = Path(path)
    is_json = format_of(path, ("txt", "jsonl")) == "jsonl"
    texts: list[str | None] = []
    by_id: dict[str, str] = {}
    for line, text in _lines(path):
        value: Any = text.strip()
        if is_json:
            record = parse_json(path, line, text)
            value = record.get("text") if isinstance(record, dict) else record
            if not isinstance(value, str):
                raise format_error(path, "not a text", 'a "text"', excerpt(record), line)
            if isinstance(record, dict) and (name := _id_of(record)) is not None:
                by_id[str(name)] = value
        texts.append(value)
    if not isinstance(ids, int) and len(by_id) == len(texts):
        return [by_id.get(name) for name in ids]
    n = ids if isinstance(ids, int) else len(ids)
    if len(texts) != n:
        raise format_error(path, "texts and rows differ in number", f"{n} texts", len(texts))
    return texts


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers; skipping a blank one would give what follows to the wrong row."""
    with open_input(path) as handle:
        lines = list(text_lines(handle))
    for place, (line, _) in enumerate(lines, 1):
        if line != place:
            raise format_error(path, "blank line", "one value per row", "nothing", place)
    return lines


def _id_of(record: dict[str, Any]) -> Any:
    return next((record[name] for name in _ID_FIELDS if name in record), None)
