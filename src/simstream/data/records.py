"""Records, which are triplets or labelled pairs: what makes one valid, and how lines of text are parsed.

Both kinds have three integers: anchor, positive and negative, or two items and +1 or -1. Triplets may also
have an answer and a task. A parser reads one line at a time, or, far faster, a block of lines that differ in
nothing but their numbers.
"""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ids import check_ids
from .files import excerpt, format_error, hint_at_semicolons, is_number

FORMATS = ("csv", "jsonl", "tsv", "txt", "npy", "npz")

#: What separates the cells of a line; in others (a stream, .txt) the first line shows it.
SEPARATORS = {"csv": ",", "tsv": "\t"}

#: Stands for each number of a line that cannot be parsed: no valid record begins with a negative number.
UNREADABLE = -(2**63)

#: Stands for an item whose id is not known.
UNKNOWN = UNREADABLE + 1

#: What to say where items are named by ids that nobody knows.
BY_ROWS = (
    "ids, but the items have no ids, or go by rows (ids are a column or field id of the items, or come with "
    "--item-ids or ids=)"
)

#: Labels of pairs that are not numbers.
_LABELS = {"true": 1, "false": 0}

#: Names of the optional columns of triplets.
ANSWER, TASK = "y", "task"

#: Names of candidates that do not say which of them is nearer: such triplets need an answer.
CANDIDATES = ("anchor", "first", "second")

#: Which rows pass, what is wrong with the others, and what was expected.
Check = tuple[np.ndarray, str, str]


class ItemLimits(NamedTuple):
    """Limits on the item numbers of a record."""

    #: Number of items of the first column and of the others; None: no number is too large.
    n_items: tuple[int, int] | None = None
    #: Whether the first column must differ from the others.
    distinct: bool = False
    #: What dissimilar pairs have as label, 0 or -1: the first one decides. None: there was none yet.
    dissimilar: int | None = None


class IdLookup:
    """Rows of the items that records name by ids: of the first column, and of the others.

    Parameters
    ----------
    first, others : sequences of ids in the order of the rows; None where these are row numbers
    """

    def __init__(self, first: Sequence[Any] | None, others: Sequence[Any] | None) -> None:
        self._first = _rows_by_text(first)
        self._others = self._first if others is first else _rows_by_text(others)
        #: Ids that were not known, in the order in which they were met.
        self.unknown: dict[str, None] = {}

    def rows(self, names: Sequence[Any]) -> list[int]:
        """Row numbers of the items of one record; raises ValueError where a row number is none."""
        found = []
        for place, name in enumerate(names):
            known = self._others if place else self._first
            row = int(name) if known is None else known.get(str(name).strip())
            if row is None:
                self.unknown[str(name).strip()] = None
            found.append(UNKNOWN if row is None else row)
        return found


def _rows_by_text(ids: Sequence[Any] | None) -> dict[str, int] | None:
    """Row of each id, as files write it: integers are texts there."""
    if ids is None:
        return None
    return {str(value): row for row, value in enumerate(check_ids([str(value) for value in ids]))}


class RecordRows(NamedTuple):
    """Records as arrays."""

    #: The three integers of each: int64, shape (n, 3).
    numbers: np.ndarray
    #: Answers to triplets, where the input has them: int64, shape (n,).
    y: np.ndarray | None = None
    #: Names of the tasks of triplets, where the input has them: shape (n,).
    tasks: np.ndarray | None = None

    def part(self, which: Any) -> RecordRows:
        """The rows that a slice or a mask selects."""
        y, tasks = (None if column is None else column[which] for column in (self.y, self.tasks))
        return RecordRows(self.numbers[which], y, tasks)

    def shown(self, row: int) -> str:
        """The numbers of a record, for a message."""
        numbers = self.numbers[row].tolist()
        return str(numbers if self.y is None else [*numbers, int(self.y[row])])


class RecordKind(NamedTuple):
    """Triplets or pairs: how they are called, and the checks of their rows."""

    singular: str
    #: Also the name of its array in an ``.npz`` file.
    plural: str
    #: Names of the three numbers in headers and objects; the first set is the one written.
    names: tuple[tuple[str, str, str], ...]
    #: What a record consists of.
    numbers: str
    #: How many of the three numbers are items.
    n_items: int
    #: Whether records may have an answer and a task.
    may_have_extras: bool
    #: Checks of rows, in the order in which they are reported.
    checks: Callable[[RecordRows, ItemLimits], Iterator[Check]]

    @property
    def headers(self) -> str:
        """The headers a file may have, for a message."""
        sets = [
            ",".join((*names, ANSWER) if names == CANDIDATES else names) for names in self.names
        ]
        return " or ".join(sets) + (
            f", optionally with {TASK} and {ANSWER}" if self.may_have_extras else ""
        )

    def names_in(self, found: Container[str]) -> tuple[str, ...]:
        """The first set of names that is complete among those found; empty if none is."""
        return next((names for names in self.names if all(name in found for name in names)), ())

    def limits_with(self, rows: RecordRows, limits: ItemLimits) -> ItemLimits:
        """The limits for these rows and those after them: of labels 0 and -1, the first one decides."""
        if self.n_items != 2 or limits.dissimilar is not None:
            return limits
        labels = rows.numbers[:, 2]
        found = labels[(labels == 0) | (labels == -1)]
        return limits._replace(dissimilar=int(found[0])) if len(found) else limits

    def are_valid(self, rows: RecordRows, limits: ItemLimits) -> np.ndarray:
        """Which rows are valid records."""
        valid = rows.numbers[:, 0] != UNREADABLE
        for passed, _, _ in self.checks(rows, limits):
            valid &= passed
        return valid

    def problem(
        self, rows: RecordRows, row: int, limits: ItemLimits, reason: str = ""
    ) -> tuple[str, str]:
        """What is wrong with an invalid record, and what was expected.

        ``reason`` is why its text could not be parsed, if that is known.
        """
        one = rows.part(slice(row, row + 1))
        if one.numbers[0, 0] != UNREADABLE:
            checks = self.checks(one, limits)
            return next((what, expected) for passed, what, expected in checks if not passed[0])
        expected = self.numbers
        if one.y is not None or one.tasks is not None:
            expected += ", and the answer y or the task that the first record has"
        return f"not a {self.singular}" + (reason and f": {reason}"), expected


def _triplet_checks(rows: RecordRows, limits: ItemLimits) -> Iterator[Check]:
    anchor, positive, negative = rows.numbers.T
    is_number = (anchor >= 0) & (positive >= 0) & (negative >= 0)
    yield is_number, "negative item number", "numbers from 0"
    yield positive != negative, "positive equals negative", "two different items"
    if limits.n_items is not None:
        n_anchors, n_others = limits.n_items
        fits = (anchor < n_anchors) & (positive < n_others) & (negative < n_others)
        expected = f"anchor < {n_anchors}, positive and negative < {n_others}"
        yield fits, "item number too large", expected
    if rows.y is not None:
        expected = "y = +1 (the first candidate is nearer) or -1"
        yield (rows.y == 1) | (rows.y == -1), "bad answer", expected
    if rows.tasks is not None:
        yield rows.tasks != "", "no task", "the name of a task"
    if limits.distinct:
        differ = (anchor != positive) & (anchor != negative)
        yield differ, "anchor compared with itself", "three different items"


def _pair_checks(rows: RecordRows, limits: ItemLimits) -> Iterator[Check]:
    first, second, y = rows.numbers.T
    yield (first >= 0) & (second >= 0), "negative item number", "numbers from 0"
    yield (y == 1) | (y == -1) | (y == 0), "bad label of a pair", "+1 (similar), -1 or 0"
    if limits.dissimilar is not None:  # 0 among 1 and -1 may mean that nobody knows
        expected = f"{limits.dissimilar}, as dissimilar pairs have before"
        yield (y == 1) | (y == limits.dissimilar), "labels 0 and -1 of pairs in one input", expected
    if limits.n_items is not None:
        n_first, n_second = limits.n_items
        fits = (first < n_first) & (second < n_second)
        yield fits, "item number too large", f"first < {n_first}, second < {n_second}"
    if limits.distinct:
        yield first != second, "an item paired with itself", "two different items"


TRIPLETS = RecordKind(
    "triplet",
    "triplets",
    (
        ("anchor", "positive", "negative"),
        ("head", "winner", "loser"),  # as Salmon calls them
        ("anchor", "near", "far"),
        CANDIDATES,
    ),
    "three integers",
    3,
    True,
    _triplet_checks,
)

PAIRS = RecordKind(
    "pair",
    "pairs",
    (("first", "second", "y"), ("left", "right", "y"), ("i", "j", "y")),
    "two item numbers and +1 or -1",
    2,
    False,
    _pair_checks,
)


# -- from lines of text to rows: CSV, TSV, white space and JSONL ---------------------------------

#: Three integers, or four with the answer where the input has answers; and the task, empty if there is none.
Record = tuple[list[int], str]


class UnreadableError(ValueError):
    """A line cannot be parsed; the message says why, or is empty if there is no more to say."""


class LineParser(ABC):
    """How the lines of one input are parsed: one at a time, or many of the same pattern at once."""

    def __init__(
        self,
        kind: RecordKind,
        has_answer: bool = False,
        has_task: bool = False,
        has_header: bool = False,
        ids: IdLookup | None = None,
    ) -> None:
        self.kind, self.has_answer, self.has_task = kind, has_answer, has_task
        self.has_header, self.ids = has_header, ids

    @abstractmethod
    def parse(self, line: bytes) -> Record:
        """Return the record of a line, or raise `UnreadableError`."""

    def reason(self, line: bytes) -> str:
        """Say why a line cannot be parsed."""
        try:
            self.parse(line)
        except UnreadableError as error:
            return str(error)
        return ""

    def parse_all(self, block: bytes) -> tuple[RecordRows, Sequence[int]]:
        """Return the rows of a block of lines, and the place of each one's line in the block."""
        numbers = self.parse_block(block)
        if numbers is not None:
            return RecordRows(numbers), range(len(numbers))
        lines = block.split(b"\n")
        places = [place for place, line in enumerate(lines) if line.strip()]
        return self.parse_lines([lines[place] for place in places]), places

    def parse_lines(self, lines: Sequence[bytes]) -> RecordRows:
        """Return the rows of lines, with `UNREADABLE` in that of a bad one."""
        if not self.has_answer and not self.has_task:
            return RecordRows(self._numbers(lines))
        records = [self._record(line) for line in lines]
        numbers = np.array([numbers for numbers, _ in records], np.int64)
        numbers = numbers.reshape(-1, 3 + self.has_answer)
        return RecordRows(
            np.ascontiguousarray(numbers[:, :3]),
            numbers[:, 3].copy() if self.has_answer else None,
            np.array([task for _, task in records], str) if self.has_task else None,
        )

    def _numbers(self, lines: Sequence[bytes]) -> np.ndarray:
        """Halving keeps the parsing of good lines fast where there are few bad ones."""
        if len(lines) > 64:
            numbers = self.parse_block(b"\n".join([*lines, b""]))
            if numbers is not None:
                return numbers
            middle = len(lines) // 2
            return np.concatenate([self._numbers(lines[:middle]), self._numbers(lines[middle:])])
        return np.array([self._record(line)[0] for line in lines], np.int64).reshape(-1, 3)

    def _record(self, line: bytes) -> Record:
        try:
            numbers, task = self.parse(line)
            if max(map(abs, numbers)) < 2**63:
                return numbers, task
        except UnreadableError:
            pass
        return [UNREADABLE] * (3 + self.has_answer), ""

    def parse_block(self, block: bytes) -> np.ndarray | None:
        """Return the rows of a block whose lines differ in nothing but three numbers, else None.

        The first line, split at its numbers, is the pattern ``p0 N p1 N p2 N p3``. Replacing
        ``p1``, ``p2`` and the line ends ``p3 newline p0`` by three bytes that occur nowhere else
        leaves digits and these bytes, in turn, exactly if all lines follow the pattern. This serves
        CSV and JSONL at the speed of numpy; anything unusual, above all a bad line, is left to be
        parsed line by line. The signs of the labels of pairs are replaced by digits meanwhile.
        """
        if self.has_answer or self.has_task or self.ids is not None:
            return None
        signs = [(sign, digits) for sign, digits in _SIGNS if sign in block]
        n_signs = {sign: block.count(sign) for sign, _ in signs}
        for sign, digits in signs:
            if digits in block:
                return None
            block = block.replace(sign, digits)
        pieces = _DIGITS.split(block[: block.index(b"\n")])
        if len(pieces) != 4 or any(mark in block for mark in (b"\x01", b"\x02", b"\x03")):
            return None
        # Ask the parser, with numbers that cannot be mistaken, which number is which, and whether
        # it accepts such signs (JSON has no plus).
        try:
            order, _ = self.parse(_filled(pieces, b"1", b"2", b"3"))
            for sign, _ in signs:
                self.parse(_filled(pieces, sign + b"1", sign + b"1", sign + b"1"))
        except UnreadableError:
            return None
        if sorted(order) != [1, 2, 3]:
            return None
        text = (block + pieces[0])[len(pieces[0]) :]
        text = text.replace(pieces[3] + b"\n" + pieces[0], b"\x03").replace(pieces[1], b"\x01")
        text = text.replace(pieces[2], b"\x02")
        characters = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(characters < ord("0"))
        if len(ends) != 3 * block.count(b"\n") or np.any(characters > ord("9")):
            return None
        marks = np.array([1, 1 if pieces[1] == pieces[2] else 2, 3], dtype=np.uint8)
        if np.any(characters[ends].reshape(-1, 3) != marks):
            return None
        lengths = np.diff(ends, prepend=-1) - 1
        if lengths.min() < 1 or lengths.max() > 18:  # 18 digits fit into int64
            return None
        # JSON forbids leading zeros and CSV does not, so the parser of lines has to decide.
        if np.any((characters[ends - lengths] == ord("0")) & (lengths > 1)):
            return None
        numbers = np.fromstring(text.translate(_COMMAS), dtype=np.int64, sep=",").reshape(-1, 3)
        for sign, digits in signs:
            signed = numbers == int(digits + b"1")
            if np.count_nonzero(signed) != n_signs[sign]:  # not a one, or a misplaced sign
                return None
            numbers[signed] = int(sign + b"1")
        return np.take(numbers, np.array(order) - 1, axis=1)


_DIGITS = re.compile(rb"\d+")
#: Signs, and the digits that stand for them while a block is parsed.
_SIGNS = ((b"-", b"88888888"), (b"+", b"99999999"))
_COMMAS = bytes.maketrans(b"\x01\x02\x03", b",,,")


def _filled(pieces: Sequence[bytes], *numbers: bytes) -> bytes:
    """A line of the pattern with these numbers."""
    return b"".join(a + b for a, b in zip(pieces, (*numbers, b""), strict=True))


class CellParser(LineParser):
    """Parser of lines of cells: CSV, TSV, or separated by white space.

    Parameters
    ----------
    names : list of str
        The header, or empty for three columns without a header.
    separator : str or None
        None separates at white space.
    kind : RecordKind
    """

    def __init__(
        self,
        names: list[str],
        separator: str | None,
        kind: RecordKind,
        ids: IdLookup | None = None,
    ) -> None:
        has_answer, has_task = (kind.may_have_extras and name in names for name in (ANSWER, TASK))
        super().__init__(kind, has_answer, has_task, has_header=bool(names), ids=ids)
        self._separator = separator
        self._between = None if separator is None else separator.encode()
        self._n_columns = len(names) or 3
        self._columns = [names.index(name) for name in kind.names_in(names)] or [0, 1, 2]
        if has_answer:
            self._columns.append(names.index(ANSWER))
        self._task = names.index(TASK) if has_task else None

    def parse(self, line: bytes) -> Record:
        """Return the record of a line of cells."""
        cells: list[bytes] = []
        n = self.kind.n_items
        try:
            if b'"' in line and self._separator is not None:
                row = next(csv.reader([line.decode()], delimiter=self._separator))
                cells = [cell.encode() for cell in row]
            else:
                cells = line.split(self._between)
            if len(cells) == self._n_columns:
                chosen = [cells[column] for column in self._columns]
                task = "" if self._task is None else cells[self._task].decode().strip()
                if self.ids is not None:
                    rows = self.ids.rows([cell.decode() for cell in chosen[:n]])
                    return rows + [_number(cell, self.kind) for cell in chosen[n:]], task
                # Python reads 1_000 as an integer; numpy and other tools do not.
                if b"_" not in b"".join(chosen):
                    items = [int(cell) for cell in chosen[:n]]
                    return items + [_number(cell, self.kind) for cell in chosen[n:]], task
        except (ValueError, csv.Error):
            names = [cells[column] for column in self._columns[:n]] if cells else [b"0"]
            if self.ids is None and not any(
                is_number(name.decode(errors="replace")) for name in names
            ):
                raise UnreadableError(BY_ROWS) from None
        if len(cells) > 3 and not self.has_header and self.kind.may_have_extras:
            raise UnreadableError(
                f"{len(cells)} columns without a header, which is required with y or task"
            )
        raise UnreadableError(hint_at_semicolons(line.decode(errors="replace")).removeprefix(": "))


def _number(cell: bytes, kind: RecordKind) -> int:
    """An answer, or the label of a pair, which may be a word."""
    word = None if kind.may_have_extras else _LABELS.get(cell.decode().strip().lower())
    return int(cell) if word is None else word


class JsonParser(LineParser):
    """Parser of lines of JSON: an array of three, or an object with one of the sets of names."""

    def parse(self, line: bytes) -> Record:
        """Return the record of a line of JSON."""
        try:
            record = json.loads(line.decode())  # from bytes it would guess the encoding: slower
        except (ValueError, RecursionError):
            raise UnreadableError from None
        if isinstance(record, dict):
            return self._parse_object(record)
        if not isinstance(record, list) or len(record) != 3 or self.has_answer or self.has_task:
            raise UnreadableError
        return self._numbers_of([(str(place), value) for place, value in enumerate(record)]), ""

    def _numbers_of(self, named: Sequence[tuple[str, Any]]) -> list[int]:
        """The three numbers of a record: rows of items, by number or by id, and the label of a pair."""
        n = self.kind.n_items
        for place, (name, value) in enumerate(named):
            kinds: tuple[type, ...] = (int,)
            if place >= n:
                kinds = (int, bool)
            elif self.ids is not None:
                kinds = (int, str)
            if type(value) is str and place < n and self.ids is None and not is_number(value):
                raise UnreadableError(BY_ROWS)
            if type(value) not in kinds:
                expected = "a string or an integer" if str in kinds else "an integer"
                raise UnreadableError("" if name.isdecimal() else f"key {name!r} is not {expected}")
        values = [value for _, value in named]
        try:
            items = values[:n] if self.ids is None else self.ids.rows(values[:n])
        except ValueError:
            raise UnreadableError from None
        return items + [int(value) for value in values[n:]]

    def _parse_object(self, record: dict[str, Any]) -> Record:
        # Of the sets of names, the one it comes closest to.
        names = self.kind.names_in(record) or max(
            self.kind.names, key=lambda names: sum(name in record for name in names)
        )
        for name in names:
            if record.get(name) is None:
                raise UnreadableError(f"no key {name!r}")
        numbers = self._numbers_of([(name, record[name]) for name in names])
        if not self.kind.may_have_extras:
            return numbers, ""
        if _value(record, ANSWER, self.has_answer) is not None:
            numbers.append(record[ANSWER])
        elif names == CANDIDATES:
            raise UnreadableError(f"no key {ANSWER!r}")
        task = _value(record, TASK, self.has_task)
        return numbers, "" if task is None else str(task).strip()


def _value(record: dict[str, Any], name: str, in_first: bool = True) -> Any:
    """An integer of an object, or its task; there if it is in the first record, and only then."""
    value = record.get(name)
    if value is None and in_first:
        raise UnreadableError(f"no key {name!r}")
    if value is not None and not in_first:  # a task that comes and goes is likely to be a mistake
        raise UnreadableError(f"key {name!r}, which the first record does not have")
    if value is not None and type(value) is not int and not (name == TASK and type(value) is str):
        expected = "a string or an integer" if name == TASK else "an integer"
        raise UnreadableError(f"key {name!r} is not {expected}")
    return value


def parser_for(
    block: bytes,
    name: str,
    extension: str | None,
    line: int,
    kind: RecordKind,
    ids: IdLookup | None = None,
) -> LineParser:
    """Choose the parser by the extension and the first line."""
    text = block[: block.index(b"\n")].decode(errors="replace").strip()
    if extension == "jsonl" or (extension is None and text[0] in "{["):
        return JsonParser(kind, *_json_extras(block, kind), ids=ids)
    shown = next((separator for separator in SEPARATORS.values() if separator in text), None)
    separator = SEPARATORS.get(extension or "", shown)
    cells = [cell.strip().strip('"').lower() for cell in text.split(separator)]
    names = kind.names_in(cells)
    undecided = names == CANDIDATES and ANSWER not in cells
    if undecided or (not names and ids is None and not any(map(is_number, cells))):
        # Without its columns nothing in the input can be understood, so on_error does not apply.
        problem = "header without y, which says which is nearer" if names else "unknown header"
        problem += hint_at_semicolons(text)
        if not names and len(cells) == kind.n_items == 3:
            problem += f"; or {BY_ROWS}"
        raise format_error(name, problem, kind.headers, excerpt(text), line)
    return CellParser(cells if names else [], separator, kind, ids)


def _json_extras(block: bytes, kind: RecordKind) -> tuple[bool, bool]:
    """Whether triplets have answers and tasks, judging by the first one that can be parsed."""
    for line in block.splitlines() if kind.may_have_extras else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record.get(ANSWER) is not None, record.get(TASK) is not None
        break
    return False, False
