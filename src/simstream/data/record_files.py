"""Read and write triplets and labelled pairs: in batches, from files and streams, each line as it arrives.

The way of a line: `_line_blocks` cuts the input into blocks of whole lines, a `LineParser` turns a block into
rows of integers, and `_Reader.batches` checks the rows and yields the valid ones.
"""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ..ids import some_of
from ..validation import check_choice, check_integer, check_pair_labels
from .files import (
    FormatError,
    PathLike,
    excerpt,
    format_error,
    format_of,
    is_regular,
    load_arrays,
    open_input,
    open_output,
    open_text_output,
)
from .records import (
    ANSWER,
    BY_ROWS,
    FORMATS,
    PAIRS,
    SEPARATORS,
    TASK,
    TRIPLETS,
    UNKNOWN,
    IdLookup,
    ItemLimits,
    LineParser,
    RecordKind,
    RecordRows,
    parser_for,
)

_BLOCK_LINES = 4096
_READ_BYTES = 1 << 20

#: From a row to its line number (None: no lines), its text, and why it could not be parsed.
_Describe = Callable[[int], tuple[int | None, str, str]]


class Batch(NamedTuple):
    """Some triplets, and how far reading has come.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data import Batch
    >>> Batch(np.array([[0, 1, 2]]), position=5, n_skipped=1).position
    5
    """

    #: Anchor, positive, negative: int64, shape (n, 3).
    triplets: np.ndarray
    #: Records read since the beginning of the input, including invalid ones and those before ``start``.
    position: int
    #: Invalid records left out of this batch.
    n_skipped: int
    #: Where the input has a column ``y``: +1 if the first candidate is nearer, -1 if the second is; int64,
    #: shape (n,).
    y: np.ndarray | None = None
    #: Where the input has a column ``task``: names, shape (n,).
    tasks: np.ndarray | None = None

    @property
    def tuples(self) -> tuple[np.ndarray, ...]:
        """The arguments of a learner's ``partial_fit``: the triplets, then their answers if the input has
        answers or tasks (+1 if it has only tasks), then their tasks if it has tasks."""
        if self.tasks is None and self.y is None:
            return (self.triplets,)
        y = np.ones(len(self.triplets), np.int64) if self.y is None else self.y
        return (self.triplets, y) if self.tasks is None else (self.triplets, y, self.tasks)


class PairBatch(NamedTuple):
    """Some labelled pairs, and how far reading has come.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data import PairBatch
    >>> [part.tolist() for part in PairBatch(np.array([[0, 1]]), np.array([-1]), 1, 0).tuples]
    [[[0, 1]], [-1]]
    """

    #: Two items: int64, shape (n, 2).
    pairs: np.ndarray
    #: +1 (similar) or -1 (dissimilar) for each: int64, shape (n,).
    y: np.ndarray
    #: As in `Batch`.
    position: int
    n_skipped: int

    @property
    def tuples(self) -> tuple[np.ndarray, ...]:
        """The arguments of a learner's ``partial_fit``."""
        return self.pairs, self.y


def read_triplets(
    source: PathLike | IO[Any],
    *,
    on_error: str = "fail",
    n_items: int | tuple[int, int] | None = None,
    ids: Any = None,
    distinct: bool = False,
    start: int = 0,
    batch_size: int = 4096,
) -> Iterator[Batch]:
    """Read triplets in batches, each as soon as its lines have arrived.

    Text has one triplet per line:

    - CSV with a header ``anchor,positive,negative``, ``head,winner,loser`` (Salmon),
      ``anchor,near,far`` or ``anchor,first,second,y``, in any order and among other columns
    - CSV without a header: three columns in the order anchor, positive, negative
    - JSONL: objects with the same names, or arrays of three

    ``.tsv`` is CSV with tabs; the first line of ``.txt`` shows whether commas, tabs or white space
    separate its columns. ``.npy`` holds an array of shape (n, 3), ``.npz`` one called ``triplets``.

    Triplets may have a task, in a column or key ``task`` (a string, or an integer read as a string),
    and an answer, in one called ``y``: +1 if the first candidate is nearer, -1 if the second is. In
    JSONL every line has them or none has. In ``.npz`` the arrays are called ``tasks`` and ``y``.

    Text files may be compressed (``.gz``, ``.bz2``). A stream, or a path that is a pipe, is read as
    JSONL if its first line begins with ``{`` or ``[``, and like ``.txt`` otherwise. Blank lines are
    ignored.

    Parameters
    ----------
    source : str, os.PathLike or file object
        A file, or a stream of text or bytes such as ``sys.stdin``.
    on_error : {"fail", "skip"}, default="fail"
        What to do with an invalid record: one that is not three integers, has a number below 0 or
        beyond ``n_items``, whose positive equals its negative, whose ``y`` is neither +1 nor -1, or
        whose task is empty. "fail" yields the triplets before it, then raises; "skip" counts it and
        goes on.
    n_items : int or (int, int), default=None
        Number of items; two numbers if anchors and candidates come from different sets of items. By
        default no item number is too large.
    ids : sequence of ids, or pair of them, default=None
        Ids of the items in the order of their rows: records then name items by ids. A pair if anchors and
        candidates come from different sets of items, None in it for row numbers. Ids that are not known are
        one error, which names the first three.
    distinct : bool, default=False
        Whether a triplet whose anchor is also its positive or its negative is invalid too.
    start : int, default=0
        Number of records to pass over: the ``position`` of the last batch of an earlier reading.
    batch_size : int, default=4096
        Largest number of records in a batch. A file is cut every ``batch_size`` lines, counting a
        header and blank lines; a pipe yields what has arrived without waiting to fill a batch.

    Yields
    ------
    Batch
        Triplets, position and number of invalid records; answers and tasks if the input has them.

    Raises
    ------
    FormatError
        At an invalid record, and if a file cannot be read, has no records or fewer than ``start``.

    Examples
    --------
    >>> import io
    >>> from simstream.data import read_triplets
    >>> stream = io.StringIO("winner,head,loser\\n1,0,2\\n1,0,oops\\n3,0,4\\n")
    >>> for batch in read_triplets(stream, on_error="skip", n_items=10):
    ...     print(batch.triplets.tolist(), batch.position, batch.n_skipped)
    [[0, 1, 2], [0, 3, 4]] 3 1
    """
    limits = ItemLimits(_both(n_items), distinct)
    reader = _Reader(source, TRIPLETS, limits, on_error, start, batch_size, ids)
    return (
        Batch(rows.numbers, position, n_skipped, rows.y, rows.tasks)
        for rows, position, n_skipped in reader.batches()
    )


def read_pairs(
    source: PathLike | IO[Any],
    *,
    on_error: str = "fail",
    n_items: int | tuple[int, int] | None = None,
    ids: Any = None,
    start: int = 0,
    batch_size: int = 4096,
) -> Iterator[PairBatch]:
    """Read labelled pairs in batches, in the same formats as `read_triplets`.

    A record has three numbers: two items, and +1 if they are similar or -1 (or 0) if they are not; ``true``
    and ``false`` are 1 and 0. An input has -1 or 0, not both: the first one decides. The names in a header or
    an object are ``first,second,y``, ``left,right,y`` or ``i,j,y``. The array of an ``.npz`` file is called
    ``pairs``.

    Parameters
    ----------
    source, on_error, ids, start, batch_size : as in `read_triplets`
        A record is invalid if it is not three integers, has an item number below 0 or beyond
        ``n_items``, another label (also 0 after -1, or -1 after 0), or pairs an item with itself.
    n_items : int or (int, int), default=None
        Number of items; two numbers if the first and the second come from different sets of items,
        where equal numbers are not the same item. By default no item number is too large.

    Yields
    ------
    PairBatch
        Pairs, labels, position and number of invalid records.

    Raises
    ------
    FormatError
        At an invalid record, and if a file cannot be read, has no records or fewer than ``start``.

    Examples
    --------
    >>> import io
    >>> from simstream.data import read_pairs
    >>> stream = io.StringIO("0,1,+1\\n1,0,2\\n0,2,-1\\n")
    >>> for batch in read_pairs(stream, on_error="skip", n_items=3):
    ...     print(batch.pairs.tolist(), batch.y.tolist(), batch.position, batch.n_skipped)
    [[0, 1], [0, 2]] [1, -1] 3 1
    """
    is_one_set = not isinstance(n_items, tuple | list) and not _are_two(ids)
    limits = ItemLimits(_both(n_items), distinct=is_one_set)
    reader = _Reader(source, PAIRS, limits, on_error, start, batch_size, ids)
    return (
        PairBatch(
            np.ascontiguousarray(rows.numbers[:, :2]),
            np.where(rows.numbers[:, 2] > 0, 1, -1),
            position,
            n_skipped,
        )
        for rows, position, n_skipped in reader.batches()
    )


def _both(n_items: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Number of items of the first column and of the others."""
    if n_items is None:
        return None
    first, others = n_items if isinstance(n_items, tuple | list) else (n_items, n_items)
    return first, others


def _are_two(ids: Any) -> bool:
    """Whether these are the ids of two sets of items."""
    return isinstance(ids, tuple) and len(ids) == 2 and not isinstance(ids[0], str | int)


class _Reader:
    """One reading of one source; wrong arguments and file names are refused at once."""

    def __init__(
        self,
        source: PathLike | IO[Any],
        kind: RecordKind,
        limits: ItemLimits,
        on_error: str,
        start: int,
        batch_size: int,
        ids: Any,
    ) -> None:
        self.source, self.kind, self.limits = source, kind, limits
        self.ids = None if ids is None else IdLookup(*(ids if _are_two(ids) else (ids, ids)))
        self.skip = check_choice("on_error", on_error, ("fail", "skip")) == "skip"
        self.start = check_integer("start", start, minimum=0)
        self.batch_size = check_integer("batch_size", batch_size)
        self.extension: str | None = None  # the first line of a stream or pipe shows its format
        if isinstance(source, str | os.PathLike):
            self.name = str(source)
            if is_regular(Path(source)):
                self.extension = format_of(Path(source), FORMATS)
        else:
            name = getattr(source, "name", None)
            self.name = name if isinstance(name, str) else "<stream>"

    def batches(self) -> Iterator[tuple[RecordRows, int, int]]:
        """Yield the valid rows of each batch, the position, and the number of invalid rows."""
        position = self.start
        for rows, describe in self._parts():
            for first in range(0, len(rows.numbers), self.batch_size):
                batch = rows.part(slice(first, first + self.batch_size))
                self.limits = self.kind.limits_with(batch, self.limits)
                valid = self.kind.are_valid(batch, self.limits)
                n_invalid = len(valid) - int(np.count_nonzero(valid))
                if n_invalid and not self.skip:
                    bad = int(np.argmin(valid))
                    if bad:
                        yield batch.part(slice(bad)), position + bad, 0
                    line, text, reason = describe(first + bad)
                    if (batch.numbers[bad] == UNKNOWN).any():
                        raise self._unknown(line)
                    problem, expected = self.kind.problem(batch, bad, self.limits, reason)
                    if line is None:
                        problem += f" in row {position + bad} (counted from 0)"
                    raise format_error(self.name, problem, expected, text, line)
                position += len(valid)
                yield batch.part(valid) if n_invalid else batch, position, n_invalid

    def _unknown(self, line: int | None) -> FormatError:
        """The one error about all unknown ids, of the whole input if that is a file."""
        assert self.ids is not None
        if self.extension is not None:
            for _ in self._parts():
                pass  # parsing notes them
        unknown = self.ids.unknown
        others = ", not row numbers" if all(name.isdecimal() for name in unknown) else ""
        expected = f"ids of the items{others}"
        return format_error(self.name, "unknown items", expected, some_of(unknown), line)

    def _parts(self) -> Iterator[tuple[RecordRows, _Describe]]:
        """Yield rows that are not checked yet, and how to describe one of them in a message."""
        if not isinstance(self.source, str | os.PathLike):
            yield from self._text(self.source)
        elif self.extension in ("npy", "npz"):
            rows = self._array(Path(self.source))
            yield rows, lambda row: (None, rows.shown(row), "")
        else:
            with open_input(Path(self.source)) as handle:
                yield from self._text(handle)

    def _array(self, path: Path) -> RecordRows:
        arrays, key = load_arrays(path), "" if self.extension == "npy" else self.kind.plural
        if key not in arrays:
            expected = f"an array {key!r} of integers of shape (n, 3)"
            found = ", ".join(arrays) or "no arrays"
            raise format_error(path, f"not {self.kind.plural}", expected, found)
        numbers = arrays[key]
        if self.ids is not None:
            numbers = self._by_rows(path, numbers)
        _check_integers(path, numbers, self.kind, width=3)
        self._check_length(len(numbers), len(numbers))
        names = (ANSWER, "tasks") if self.kind.may_have_extras else ("", "")
        y, tasks = (arrays.get(name) if name else None for name in names)
        return _rows_of_arrays(path, numbers, y, tasks).part(slice(self.start, None))

    def _by_rows(self, path: Path, array: np.ndarray) -> np.ndarray:
        """An array of ids, texts or integers, as row numbers."""
        assert self.ids is not None
        n, width = self.kind.n_items, 3
        if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "iuU":
            found = f"shape {array.shape}, type {array.dtype}"
            raise format_error(path, f"not {self.kind.plural}", f"ids of shape (n, {width})", found)
        try:
            rows = [
                [*self.ids.rows(record[:n]), *map(int, record[n:])] for record in array.tolist()
            ]
        except ValueError as error:
            raise format_error(path, f"not {self.kind.plural}", "numbers", error) from None
        return np.array(rows, np.int64).reshape(-1, width)

    def _text(self, stream: Any) -> Iterator[tuple[RecordRows, _Describe]]:
        """Parse blocks of lines: a block at once where its lines allow it, else line by line."""
        parser: LineParser | None = None
        next_line = 1
        n_passed = n_records = 0
        block_lines = self.batch_size * max(1, _BLOCK_LINES // self.batch_size)
        for block in _line_blocks(stream, block_lines):
            if parser is None:
                block = block.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
                n_blank = len(block) - len(block.lstrip())
                next_line += block[:n_blank].count(b"\n")
                block = block[n_blank:]
                if not block:
                    continue
                parser = parser_for(
                    block, self.name, self.extension, next_line, self.kind, self.ids
                )
                if parser.has_header:
                    block = block[block.index(b"\n") + 1 :]
                    next_line += 1
            if not block:
                continue
            rows, places = parser.parse_all(block)
            n_records += len(places)
            first = min(self.start - n_passed, len(places))
            n_passed += first
            if first < len(places):
                describe = partial(_describe_line, block, places[first:], next_line, parser)
                yield rows.part(slice(first, None)), describe
            next_line += block.count(b"\n")
        self._check_length(n_records, n_passed)

    def _check_length(self, n_records: int, n_passed: int) -> None:
        """Refuse a file without records, and any input that ends before the place to resume at."""
        if not n_records and self.extension is not None:
            raise format_error(self.name, f"no {self.kind.plural}", "at least one", "none")
        if n_passed < self.start:
            expected = f"at least start={self.start} records"
            raise format_error(self.name, "too short to resume", expected, n_passed)


def _describe_line(
    block: bytes, places: Sequence[int], first_line: int, parser: LineParser, row: int
) -> tuple[int, str, str]:
    line = block.split(b"\n")[places[row]]
    text = excerpt(line.decode(errors="replace").strip())
    return first_line + places[row], text, parser.reason(line)


# -- arrays, read or written ---------------------------------------------------------------------


def _check_integers(path: PathLike, array: np.ndarray, kind: RecordKind, width: int) -> None:
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "iu":
        problem = f"not {kind.plural}" + (f": {BY_ROWS}" if array.dtype.kind == "U" else "")
        found = f"shape {array.shape}, type {array.dtype}"
        raise format_error(path, problem, f"integers of shape (n, {width})", found)


def _rows_of_arrays(source: object, numbers: np.ndarray, y: Any, tasks: Any) -> RecordRows:
    """Triplets with the arrays of their answers and tasks, whose shapes and types are checked."""
    for name, values, kinds, expected in (
        (ANSWER, y, "iu", "integers"),
        ("tasks", tasks, "iuU", "strings or integers"),
    ):
        shape = (len(numbers),)
        if values is not None and (values.shape != shape or values.dtype.kind not in kinds):
            expected = f"{expected}, one for each of {len(numbers)} triplets"
            found = f"shape {values.shape}, type {values.dtype}"
            raise format_error(source, f"bad array {name!r}", expected, found)
    return RecordRows(
        np.ascontiguousarray(numbers, np.int64),
        None if y is None else y.astype(np.int64),
        None if tasks is None else tasks.astype(str),
    )


# -- from a stream to blocks of lines ------------------------------------------------------------


def _line_blocks(stream: Any, n_lines: int) -> Iterator[bytes]:
    """Cut a stream into blocks of whole lines, each line ended by a newline.

    A regular file gives blocks of exactly ``n_lines`` lines, except for the last. Anything else (a
    pipe, a terminal, a socket) gives whatever one read returns: such a read waits for the first
    byte only, so that lines are passed on as soon as they arrive.
    """
    stream = getattr(stream, "buffer", stream)  # the bytes below a text stream such as sys.stdin
    descriptor = _descriptor(stream)
    read = getattr(stream, "read1", None)
    if read is None and descriptor is not None:
        read = stream.read  # unbuffered: one system call
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
    """Read what has arrived, waiting if nothing has; empty only at the end."""
    chunk = read(_READ_BYTES)
    if not chunk and descriptor is not None and not os.get_blocking(descriptor):
        # A non-blocking stream says "nothing yet" in the same way as "the end".
        select.select([descriptor], [], [])
        chunk = read(_READ_BYTES)
    return chunk


# -- writing -------------------------------------------------------------------------------------


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
    _write(Path(path), TRIPLETS, _rows_of_arrays(path, numbers, *extras))


def write_pairs(path: PathLike, pairs: Any, y: Any) -> None:
    """Write labelled pairs, in the same formats as `write_triplets`.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its extension determines the format.
    pairs : array-like of int, shape (n, 2)
        Two items.
    y : array-like of shape (n,)
        +1 (similar) or -1 (dissimilar), or 1 and 0, or booleans.

    Raises
    ------
    FormatError
        If the pairs are not integers of that shape, a number is negative, or labels are others or mixed.

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
    try:
        signs = check_pair_labels(labels, len(array))
    except ValueError:
        expected = f"+1 or -1 (or 1 or 0) for each of {len(array)}"
        found = f"shape {labels.shape}, values {np.unique(labels)[:5].tolist()}"
        raise format_error(path, "bad labels of pairs", expected, found) from None
    columns = array.astype(np.int64), signs.astype(np.int64)
    _write(Path(path), PAIRS, RecordRows(np.column_stack(columns)))


def _write(path: Path, kind: RecordKind, rows: RecordRows) -> None:
    extension = format_of(path, FORMATS)
    valid = kind.are_valid(rows, ItemLimits())
    if not valid.all():
        bad = int(np.argmin(valid))
        problem, expected = kind.problem(rows, bad, ItemLimits())
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
