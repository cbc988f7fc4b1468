"""Read feedback on searches: which items are relevant to which queries, and logs of clicks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..ids import repeated_ids
from .files import (
    PathLike,
    excerpt,
    format_error,
    format_of,
    hint_at_semicolons,
    load_arrays,
    open_input,
    parse_json,
    split_cells,
    text_lines,
)
from .item_formats import opened_parquet

#: Names of the columns in a header, and of the fields of an object: of simstream first, then of others.
_COLUMNS = {
    "query": ("query", "query-id", "query_id", "qid"),
    "item": (
        "item",
        "item-id",
        "item_id",
        "corpus-id",
        "corpus_id",
        "doc-id",
        "doc_id",
        "docid",
        "clicked",
    ),
    "grade": ("grade", "score", "relevance", "rel"),
}

#: Columns of lines without a header, by how many there are; four are those of TREC's judgements.
_PLACES = {2: (0, 1, None), 3: (0, 1, 2), 4: (0, 2, 3)}

_FORMATS = ("tsv", "csv", "txt", "jsonl", "npy", "npz", "parquet")

#: A judgement as it is written, the grade None where there is none; its line, or None; and its row.
_Written = tuple[Any, Any, Any, int | None, int]


class ClickedSearch(NamedTuple):
    """One search of a log: the query, the items that were shown, and those that were clicked.

    Examples
    --------
    >>> from simstream.data import ClickedSearch
    >>> ClickedSearch(0, [4, 7, 2], [7]).clicked
    [7]
    """

    #: Row of the query, or its vector.
    query: int | np.ndarray
    #: Rows of the items, from the top.
    shown: list[int]
    clicked: list[int]


def read_relevance(
    path: PathLike, *, queries: int | Sequence[str], items: int | Sequence[str]
) -> np.ndarray:
    """Read which items are relevant to which queries.

    - ``.tsv``, ``.csv``, ``.txt``: columns query, item and maybe grade, in this order or named by a header
      (BEIR's ``query-id``, ``corpus-id``, ``score`` too); four columns without a header are TREC's, with the
      item in the third and the grade in the fourth. The first line of ``.txt`` shows whether commas,
      tabs or white space separate them
    - ``.jsonl``: objects with ``"query"``, ``"item"`` (or ``"clicked"``, one or a list) and maybe
      ``"grade"``, or arrays of two or three
    - ``.npy``: an array of shape (n, 2) or (n, 3); ``.npz``: one called ``relevance``
    - ``.parquet``: columns with these names, or the first two or three

    The text formats may be compressed (``.gz``, ``.bz2``).

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    queries, items : int or sequence of str
        What the file calls them: ids, in the order of the rows, or row numbers below this number.

    Returns
    -------
    array of shape (n, 3)
        Row of the query, row of the item and grade (1 where there is none) of every judgement, in the order
        of the file: what `Adapter.fit` takes.

    Raises
    ------
    FormatError
        If the file cannot be read or is empty, items or queries are unknown, or a grade is not finite. It
        says how many are unknown, and names the first three.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_relevance
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "relevance.tsv"
    >>> _ = path.write_text("query\\titem\\tgrade\\n0\\tb\\t2\\n1\\ta\\t1\\n")
    >>> read_relevance(path, queries=2, items=["a", "b"]).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]]
    """
    path = Path(path)
    rows_of = _RowNames(queries, "query"), _RowNames(items, "item")
    found = []
    for *names, grade, line, row in _written(path):
        where = f" in row {row} (counted from 0)" if line is None else ""
        places = [
            known.row_or_note(name, line, where) for known, name in zip(rows_of, names, strict=True)
        ]
        try:
            number = 1.0 if grade is None else float(grade)
        except (TypeError, ValueError):
            number = np.nan
        if not np.isfinite(number):
            problem = f"not a grade{where}"
            raise format_error(path, problem, "a finite number", excerpt(grade), line)
        found.append((*places, number))
    for known in rows_of:
        known.refuse_unknown(path)
    if not found:
        raise format_error(path, "no judgements", "at least one", "none")
    return np.array(found, np.float64)


def read_clicks(
    path: PathLike,
    *,
    items: int | Sequence[str],
    queries: int | Sequence[str] = 0,
    n_features: int | None = None,
) -> list[ClickedSearch]:
    """Read a log of searches and clicks.

    Every line is a JSON object such as ``{"query": 3, "shown": [8, 2, 5], "clicked": [5]}``: the query, the
    items that were shown, from the top, and those of them that were clicked. Other fields are ignored. The
    file may be compressed (``.jsonl.gz``, ``.jsonl.bz2``).

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    items, queries : int or sequence of str
        What the file calls them: ids, in the order of the rows, or row numbers below this number. A query may
        also be a list of numbers, its vector.
    n_features : int, default=None
        Numbers that such a vector must have.

    Returns
    -------
    list of ClickedSearch
        In the order of the file, by row numbers.

    Raises
    ------
    FormatError
        If the file cannot be read or is empty, something is unknown, an item is shown twice, or one is
        clicked that was not shown.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import read_clicks
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.jsonl"
    >>> _ = path.write_text('{"query": 1, "shown": ["b", "a"], "clicked": ["a"]}\\n')
    >>> read_clicks(path, items=["a", "b"], queries=2)
    [ClickedSearch(query=1, shown=[1, 0], clicked=[0])]
    """
    path = Path(path)
    format_of(path, ("jsonl",))
    known_items, known_queries = _RowNames(items, "item"), _RowNames(queries, "query")
    found = []
    with open_input(path) as handle:
        for line, text in text_lines(handle):
            record = parse_json(path, line, text)
            if not isinstance(record, dict) or not record.keys() >= {"query", "shown", "clicked"}:
                expected = "an object with query, shown and clicked (without shown: relevance)"
                raise format_error(path, "not a search", expected, excerpt(record), line)
            query: Any = record["query"]
            if isinstance(query, list):
                query = _vector(path, line, query, n_features)
            else:
                query = known_queries.row_or_note(query, line)
            shown, clicked = (
                _item_rows(path, line, record[name], known_items, name)
                for name in ("shown", "clicked")
            )
            if known_items.unknown:  # there will be an error: read on, to tell of all of them
                continue
            if len(set(shown)) < len(shown):
                raise format_error(
                    path, "an item shown twice", "different items", excerpt(record["shown"]), line
                )
            if not set(clicked) <= set(shown):
                problem, expected = "a click on an item not shown", "some of the items shown"
                raise format_error(path, problem, expected, excerpt(record["clicked"]), line)
            found.append(ClickedSearch(query, shown, clicked))
    if not known_queries:
        known_queries.expected = (
            "a list of numbers, since there are no queries to refer to (where items look for items, they are "
            "given as --queries too)"
        )
    else:
        known_queries.expected += ", or a list of numbers"
    known_queries.refuse_unknown(path)
    known_items.refuse_unknown(path)
    if not found:
        raise format_error(path, "no searches", "at least one", "none")
    return found


class _RowNames:
    """What a file calls rows: ids, or row numbers."""

    def __init__(self, names: int | Sequence[str], what: str) -> None:
        self.what = what
        #: Names of no row, each with its first place: " in ...", and the line.
        self.unknown: dict[Any, tuple[str, int | None]] = {}
        self._n = names if isinstance(names, int) else len(names)
        self._rows = None
        self.expected = f"a row number below {self._n}"
        if not isinstance(names, int):
            self.expected = "a known id"
            self._rows = {name: row for row, name in enumerate(names)}
            if repeated := repeated_ids(names):
                raise ValueError(
                    f"ids of {what} rows: expected different ones, got {repeated} twice"
                )

    def __len__(self) -> int:
        return self._n

    def row_or_note(self, name: Any, line: int | None, where: str = "") -> int:
        """The row that is meant; an unknown one is noted, to be refused with all the others."""
        row = self.row(name)
        if row is None:
            self.unknown.setdefault(excerpt(name), (where, line))
        return -1 if row is None else row

    def refuse_unknown(self, path: Path) -> None:
        """Raise one error about all unknown names: how many there are, and the first three."""
        if not self.unknown:
            return
        named = list(self.unknown.items())
        if len(named) == 1:
            name, (where, line) = named[0]
            raise format_error(path, f"unknown {self.what}{where}", self.expected, name, line)
        shown = [
            name + (where if line is None else f" in line {line}")
            for name, (where, line) in named[:3]
        ]
        plural = {"query": "queries"}.get(self.what, f"{self.what}s")
        more = ", ..." if len(named) > 3 else ""
        problem, expected = f"{len(named):,} unknown {plural}", f"{self.expected} for each"
        raise format_error(path, problem, expected, ", ".join(shown) + more)

    def row(self, name: Any) -> int | None:
        """The row that is meant, None if there is no such row."""
        if isinstance(name, bool):
            return None
        if isinstance(name, float) and name.is_integer():
            name = int(name)  # of an array that has grades too
        if self._rows is not None:
            return self._rows.get(str(name))
        if isinstance(name, str):
            name = int(name) if name.strip().isdecimal() else -1
        return name if isinstance(name, int) and 0 <= name < self._n else None


def _vector(path: Path, line: int, numbers: list[Any], n_features: int | None) -> np.ndarray:
    """A query given by its numbers."""
    if n_features is not None and len(numbers) != n_features:
        problem = "wrong number of features of a query"
        raise format_error(path, problem, f"{n_features}", len(numbers), line)
    for number in numbers:
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not (is_number and abs(number) < np.inf):
            raise format_error(path, "bad query", "finite numbers", excerpt(number), line)
    return np.array(numbers, np.float64)


def _item_rows(path: Path, line: int, names: Any, known: _RowNames, field: str) -> list[int]:
    if field == "clicked" and isinstance(names, str | int):
        names = [names]
    if not isinstance(names, list):
        raise format_error(path, f"bad {field}", "a list of items", excerpt(names), line)
    return [known.row_or_note(name, line, f" in {field}") for name in names]


# -- judgements as they are written --------------------------------------------------------------


def _written(path: Path) -> Iterator[_Written]:
    match format_of(path, _FORMATS):
        case "jsonl":
            return _of_objects(path)
        case "npy" | "npz" as kind:
            return _of_array(path, "" if kind == "npy" else "relevance")
        case "parquet":
            return _of_parquet(path)
        case kind:
            return _of_cells(path, {"tsv": "\t", "csv": ","}.get(kind))


def _columns_of(header: Sequence[str]) -> list[int | None]:
    """Columns of query, item and grade, None for what is not there."""
    names = [name.strip().lower() for name in header]
    return [
        next((names.index(name) for name in known if name in names), None)
        for known in _COLUMNS.values()
    ]


def _of_cells(path: Path, separator: str | None) -> Iterator[_Written]:
    with open_input(path) as handle:
        split: Callable[[int, str], list[str]] | None = None
        row = 0
        for line, text in text_lines(handle):
            if split is None:
                split = _splitter(path, separator, text)
                first = split(line, text)
                places = _columns_of(first)
                has_header = None not in places[:2]
                if not has_header:
                    places = list(_PLACES.get(len(first), (None, None, None)))
                if None in places[:2]:
                    problem = f"not judgements{hint_at_semicolons(text)}"
                    expected = "columns query, item and maybe grade"
                    raise format_error(path, problem, expected, excerpt(first), line)
                if has_header:
                    width = len(first)
                    continue
                width = len(first)
            cells = [cell.strip() for cell in split(line, text)]
            if len(cells) != width:
                expected = f"{width} cells, as in the first line"
                raise format_error(path, "ragged line", expected, len(cells), line)
            query, item, grade = (None if place is None else cells[place] for place in places)
            yield query, item, grade, line, row
            row += 1


def _splitter(path: Path, separator: str | None, first: str) -> Callable[[int, str], list[str]]:
    """How to cut a line into cells; where the extension does not say so, the first line does."""
    if separator is None:
        separator = next((mark for mark in ("\t", ",") if mark in first), " ")
    if separator == ",":
        return lambda line, text: split_cells(path, line, text)
    if separator == " ":
        return lambda line, text: text.split()
    return lambda line, text: text.rstrip("\r\n").split(separator)


def _of_objects(path: Path) -> Iterator[_Written]:
    with open_input(path) as handle:
        for row, (line, text) in enumerate(text_lines(handle)):
            record = parse_json(path, line, text)
            if isinstance(record, dict):
                keys = list(record)
                places = _columns_of(keys)
                values: list[Any] = [
                    None if place is None else record[keys[place]] for place in places
                ]
            else:
                is_short = isinstance(record, list) and len(record) in (2, 3)
                values = [*record, None][:3] if is_short else [None] * 3
            if None in values[:2]:
                expected = "an object with query, item and maybe grade"
                raise format_error(path, "not a judgement", expected, excerpt(record), line)
            query, item, grade = values
            for one in item if isinstance(item, list) else [item]:
                yield query, one, grade, line, row


def _of_array(path: Path, key: str) -> Iterator[_Written]:
    arrays = load_arrays(path)
    array = arrays.get(key)
    is_table = array is not None and array.ndim == 2 and array.shape[1] in (2, 3)
    if array is None or not is_table or array.dtype.kind not in "iufU":
        found = ", ".join(arrays) if array is None else f"shape {array.shape}, type {array.dtype}"
        expected = f"an array{f' {key!r}' if key else ''} of shape (n, 2) or (n, 3)"
        raise format_error(path, "not judgements", expected, found)
    for row, values in enumerate(array.tolist()):
        query, item, grade = (*values, None)[:3]
        yield query, item, grade, None, row


def _of_parquet(path: Path) -> Iterator[_Written]:
    with opened_parquet(path) as file:
        table = file.read()
    places = _columns_of(table.column_names)
    if None in places[:2]:
        places = list(_PLACES.get(table.num_columns, (None, None, None)))
    if None in places[:2]:
        found = ", ".join(table.column_names) or "none"
        raise format_error(path, "not judgements", "columns query, item and maybe grade", found)
    columns = [
        [None] * table.num_rows if place is None else table.column(place).to_pylist()
        for place in places
    ]
    for row, (query, item, grade) in enumerate(zip(*columns, strict=True)):
        yield query, item, grade, None, row
