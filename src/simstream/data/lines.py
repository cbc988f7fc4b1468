"""Lines of triplets or pairs: in blocks as they arrive, and from text to numbers."""

from __future__ import annotations

import csv
import json
import os
import re
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .files import FormatError, excerpt, format_error
from .labels import is_number
from .mistakes import headless_mistake, json_mistake, unexplained
from .records import ANSWER, TASK, TRIPLETS, UNDECIDED, UNREADABLE, Extras, RecordKind

_READ_BYTES = 1 << 20
_DIGITS = re.compile(rb"\d+")

#: A line's text to its numbers, three unless there are extras, or None.
LineParser = Callable[[bytes], Sequence[int] | None]


class Records(NamedTuple):
    """Rows of numbers not yet checked, and how to speak of one of them."""

    numbers: np.ndarray
    #: Row to line number (None: no lines), text, and why it cannot be read where that is known.
    describe: Callable[[int], tuple[int | None, str, str]]
    extras: Extras


def line_blocks(stream: Any, n_lines: int) -> Iterator[bytes]:
    """Cut a stream into blocks of whole lines, each line ended by a newline.

    From a regular file, blocks of exactly ``n_lines`` lines but for the last. From anything else (a
    pipe, a terminal, a socket) whatever one read returns: such a read waits for the first byte
    only, so that lines are passed on as soon as they are there.
    """
    stream = getattr(stream, "buffer", stream)  # the bytes below a text stream such as sys.stdin
    descriptor = _descriptor(stream)
    read = getattr(stream, "read1", None)
    if read is None and descriptor is not None:
        read = stream.read  # unbuffered: one read of the system
    if read is None or (descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode)):
        while lines := list(islice(stream, n_lines)):
            if isinstance(lines[0], str):
                lines = [line.encode() for line in lines]
            yield b"".join(lines) if lines[-1].endswith(b"\n") else b"".join([*lines, b"\n"])
        return
    rest: list[bytes] = []  # pieces of a line that has not ended yet
    while chunk := _read_some(read, descriptor):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, chunk[:end]])
            rest = []
        if end < len(chunk):
            rest.append(chunk[end:])
    if rest:
        yield b"".join([*rest, b"\n"])


def _descriptor(stream: Any) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError):
        return None


def _read_some(read: Callable[[int], bytes | None], descriptor: int | None) -> bytes | None:
    """Read what is there; wait if there is nothing; return nothing at the end only."""
    chunk = read(_READ_BYTES)
    if not chunk and descriptor is not None and not os.get_blocking(descriptor):
        # A non-blocking stream says "nothing yet" in the same way as "the end".
        select.select([descriptor], [], [])
        chunk = read(_READ_BYTES)
    return chunk


def csv_parser(
    columns: Sequence[int],
    n_columns: int,
    separator: str | None = ",",
    extras: Extras | None = None,
    answer: int | None = None,
    task: int | None = None,
) -> LineParser:
    """Parser of lines of cells; None separates at white space.

    Parameters
    ----------
    columns : where the three numbers are
    n_columns : cells of a line
    separator : str or None
    extras : what records have besides, where they have something
    answer, task : where it is
    """
    between = None if separator is None else separator.encode()
    chosen_columns = [*columns] if answer is None else [*columns, answer]

    def parse(line: bytes) -> Sequence[int] | None:
        try:
            if b'"' in line and separator is not None:
                rows = csv.reader([line.decode()], delimiter=separator)
                cells = [cell.encode() for cell in next(rows)]
            else:
                cells = line.split(between)
            if len(cells) != n_columns:
                return None
            chosen = [cells[column] for column in chosen_columns]
            # Python reads 1_000 as an integer; numpy and everybody else do not.
            if b"_" in b"".join(chosen):
                return None
            numbers = [int(cell) for cell in chosen]
            if extras is None:
                return numbers
            name = None if task is None else cells[task].decode().strip()
            return extras.completed(numbers[:3], numbers[3] if len(numbers) > 3 else None, name)
        except (ValueError, csv.Error):
            return None

    return parse


def parse_json_line(
    line: bytes, kind: RecordKind = TRIPLETS, extras: Extras | None = None
) -> Sequence[int] | None:
    """Parser of lines of JSON: an array of three, or an object with one of the sets of names."""
    try:
        record = json.loads(line.decode())  # from bytes it would guess the encoding: slower
    except (ValueError, RecursionError):
        return None
    extras = extras or Extras()
    answer = task = None
    if isinstance(record, dict):
        names = kind.names_in(record)
        if kind.may_have_extras:
            answer, task = record.get(ANSWER), record.get(TASK)
        if names == UNDECIDED and answer is None:
            return None
        record = [record[name] for name in names]
    is_good = (
        isinstance(record, list)
        and len(record) == 3
        and all(type(value) is int for value in record)
        # Each as in the first record: a task that comes and goes is rather a mistake.
        and type(answer) is (int if extras.has_answer else type(None))
        and type(task) in ((str, int) if extras.has_task else (type(None),))
    )
    if not is_good:
        return None
    return extras.completed(record, answer, None if task is None else str(task).strip())


def parse_lines(lines: Sequence[bytes], parse: LineParser, width: int = 3) -> np.ndarray:
    """The numbers of lines, `UNREADABLE` for a bad one; halving keeps the good ones fast."""
    if len(lines) > 64 and width == 3:
        numbers = parse_block(b"\n".join([*lines, b""]), parse)
        if numbers is not None:
            return numbers
        middle = len(lines) // 2
        return np.concatenate(
            [parse_lines(lines[:middle], parse), parse_lines(lines[middle:], parse)]
        )
    bad = (UNREADABLE,) * width
    parsed = (parse(line) or bad for line in lines)
    fitting = [row if max(map(abs, row)) < 2**63 else bad for row in parsed]
    return np.array(fitting, dtype=np.int64).reshape(-1, width)


def parse_block(block: bytes, parse: LineParser) -> np.ndarray | None:
    """The numbers of a block whose lines differ in nothing but three numbers, else None.

    The first line, split at its numbers, is the pattern ``p0 N p1 N p2 N p3``. Replacing ``p1``,
    ``p2`` and the line ends ``p3 newline p0`` by three bytes that occur nowhere else leaves digits
    and these bytes, in turn, exactly if all lines follow the pattern. One parser serves CSV and
    JSONL at the speed of numpy, and anything unusual, a bad line above all, is left to be parsed
    line by line. Signs, which the labels of pairs have, become digits for a while.
    """
    signs = [(sign, digits) for sign, digits in _SIGNS if sign in block]
    n_signs = {sign: block.count(sign) for sign, _ in signs}
    for sign, digits in signs:
        if digits in block:
            return None
        block = block.replace(sign, digits)
    first = block[: block.index(b"\n")]
    pieces = _DIGITS.split(first)
    if len(pieces) != 4 or any(mark in block for mark in (b"\x01", b"\x02", b"\x03")):
        return None
    # Which number is which: ask the parser, with numbers that cannot be mistaken, and whether it
    # takes such signs (JSON has no plus).
    order = parse(_filled(pieces, b"1", b"2", b"3"))
    if order is None or sorted(order) != [1, 2, 3]:
        return None
    if any(
        parse(_filled(pieces, sign + b"1", sign + b"1", sign + b"1")) is None for sign, _ in signs
    ):
        return None
    text = (block + pieces[0])[len(pieces[0]) :]
    text = text.replace(pieces[3] + b"\n" + pieces[0], b"\x03").replace(pieces[1], b"\x01")
    text = text.replace(pieces[2], b"\x02")
    characters = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(characters < ord("0"))
    marks = np.array([1, 1 if pieces[1] == pieces[2] else 2, 3], dtype=np.uint8)
    if len(ends) != 3 * block.count(b"\n") or np.any(characters > ord("9")):
        return None
    lengths = np.diff(ends, prepend=-1) - 1
    # 18 digits fit into int64. A leading zero is an error in JSON, so it is not decided here.
    if np.any(characters[ends].reshape(-1, 3) != marks) or lengths.min() < 1 or lengths.max() > 18:
        return None
    if np.any((characters[ends - lengths] == ord("0")) & (lengths > 1)):
        return None
    numbers = np.fromstring(text.translate(_COMMAS), dtype=np.int64, sep=",").reshape(-1, 3)
    for sign, digits in signs:
        signed = numbers == int(digits + b"1")
        if np.count_nonzero(signed) != n_signs[sign]:  # other numbers than one, or misplaced signs
            return None
        numbers[signed] = int(sign + b"1")
    return np.take(numbers, np.array(order) - 1, axis=1)


def _filled(pieces: Sequence[bytes], *numbers: bytes) -> bytes:
    """A line of the pattern with these numbers."""
    return b"".join(a + b for a, b in zip(pieces, (*numbers, b""), strict=True))


#: Signs and the digits that stand for them while a block is parsed.
_SIGNS = ((b"-", b"88888888"), (b"+", b"99999999"))
_COMMAS = bytes.maketrans(b"\x01\x02\x03", b",,,")


def text_records(
    blocks: Iterator[bytes],
    name: str,
    extension: str | None,
    start: int,
    kind: RecordKind,
    must_have_records: bool = False,
) -> Iterator[Records]:
    """Records of blocks of lines: a whole block at once where possible, else line by line."""
    recognised: Recognised | None = None
    next_line = 1
    n_passed = 0
    empty = True
    for block in blocks:
        if recognised is None:
            block = block.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            n_blank = len(block) - len(block.lstrip())
            next_line += block[:n_blank].count(b"\n")
            block = block[n_blank:]
            if not block:
                continue
            end = block.index(b"\n")
            recognised = _recognise(block, name, extension, next_line, kind)
            parse, extras, has_header, mistake = recognised
            if has_header:
                block = block[end + 1 :]
                next_line += 1
        if n_passed < start:
            block, n_records, n_lines = _pass_over(block, start - n_passed)
            n_passed += n_records
            next_line += n_lines
            empty = empty and not n_records
        if not block:
            continue
        n_lines = block.count(b"\n")
        rows: Sequence[int] = range(n_lines)
        numbers = parse_block(block, parse) if extras.width == 3 else None
        if numbers is None:
            lines = block.split(b"\n")
            rows = [row for row, line in enumerate(lines) if line.strip()]
            numbers = parse_lines([lines[row] for row in rows], parse, extras.width)
        if len(numbers):
            empty = False
            describe = partial(_describe_line, block, rows, next_line, mistake)
            yield Records(numbers, describe, extras)
        next_line += n_lines
    if empty and must_have_records:
        raise no_records(name, kind)
    if n_passed < start:
        raise too_short(name, start, n_passed)


class Recognised(NamedTuple):
    """How to read a text, to judge by its beginning."""

    parse: LineParser
    #: What records have besides their three numbers.
    extras: Extras
    has_header: bool
    #: From a line that cannot be read to why, "" where there is nothing to say.
    mistake: Callable[[bytes], str]


def _recognise(
    block: bytes, name: str, extension: str | None, line: int, kind: RecordKind
) -> Recognised:
    text = block[: block.index(b"\n")].decode(errors="replace").strip()
    if extension == "jsonl" or (extension is None and text[0] in "{["):
        extras = _json_extras(block, kind)
        parse_json = partial(parse_json_line, kind=kind, extras=extras)
        why = partial(json_mistake, kind=kind, extras=extras)
        return Recognised(parse_json, extras, False, why)
    separator = SEPARATORS.get(extension or "", _separator_of(text))
    cells = [cell.strip().strip('"').lower() for cell in text.split(separator)]
    names = kind.names_in(cells)
    if (not names and not any(map(is_number, cells))) or (
        names == UNDECIDED and ANSWER not in cells
    ):
        # Without the columns nothing after it can be understood, so on_error does not apply.
        problem = "a header without y, which says which is nearer" if names else "unknown header"
        raise format_error(name, problem, expected=kind.headers, got=excerpt(text), line=line)
    if not names:
        mistake = partial(headless_mistake, separator=separator)
        parse = csv_parser((0, 1, 2), 3, separator)
        return Recognised(parse, Extras(), False, mistake if kind.may_have_extras else unexplained)
    columns = [cells.index(column) for column in names]
    named = cells if kind.may_have_extras else []
    answer, task = (named.index(n) if n in named else None for n in (ANSWER, TASK))
    extras = Extras(answer is not None, task is not None)
    found = (extras, answer, task) if extras.width > 3 else ()
    parse = csv_parser(columns, len(cells), separator, *found)
    return Recognised(parse, extras, True, unexplained)


def _json_extras(block: bytes, kind: RecordKind) -> Extras:
    """What records have besides their three numbers, to judge by the first one that can be read."""
    for line in block.splitlines() if kind.may_have_extras else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return Extras(record.get(ANSWER) is not None, record.get(TASK) is not None)
        break
    return Extras()


#: What is between the cells of a text; in others (a stream, .txt) the first line shows it.
SEPARATORS = {"csv": ",", "tsv": "\t"}


def _separator_of(text: str) -> str | None:
    return next((separator for separator in SEPARATORS.values() if separator in text), None)


def _pass_over(block: bytes, n_records: int) -> tuple[bytes, int, int]:
    """What follows the first records of a block; how many records and lines were passed over."""
    lines = block.split(b"\n")
    filled = [row for row, line in enumerate(lines) if line.strip()]
    if n_records >= len(filled):
        return b"", len(filled), len(lines) - 1
    n_lines = filled[n_records]
    return b"\n".join(lines[n_lines:]), n_records, n_lines


def _describe_line(
    block: bytes, rows: Sequence[int], first_line: int, mistake: Callable[[bytes], str], row: int
) -> tuple[int, str, str]:
    """Number and text of the line of a record, and why it cannot be read."""
    line = block.split(b"\n")[rows[row]]
    return first_line + rows[row], excerpt(line.decode(errors="replace").strip()), mistake(line)


def no_records(name: object, kind: RecordKind) -> FormatError:
    """The error for a file without a single record."""
    return format_error(name, f"no {kind.plural}", expected="at least one", got="none")


def too_short(name: object, start: int, n_records: int) -> FormatError:
    """The error for a file that ends before the place to resume at."""
    return format_error(
        name, "too short to resume", expected=f"at least start={start} records", got=f"{n_records}"
    )
