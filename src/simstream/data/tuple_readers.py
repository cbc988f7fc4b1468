"""Triplets and labelled pairs: read in batches as they arrive, from files and from streams.

One reader serves both kinds of records (see `records`), and one writer (`triplet_files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from .files import (
    FormatError,
    PathLike,
    format_error,
    format_of,
    is_regular,
    load_arrays,
    open_input,
)
from .lines import Records, line_blocks, no_records, text_records, too_short
from .records import ANSWER, PAIRS, TRIPLETS, UNREADABLE, Extras, Limits, RecordKind

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".tsv": "tsv",
    ".txt": "txt",
    ".npy": "npy",
    ".npz": "npz",
}
BLOCK_LINES = 4096

_BatchType = TypeVar("_BatchType")


class Batch(NamedTuple):
    """Some triplets and how far the reading has come.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data import Batch
    >>> Batch(np.array([[0, 1, 2]]), position=5, n_skipped=1).position
    5
    """

    #: Anchor, positive, negative: int64, shape (n, 3).
    triplets: np.ndarray
    #: Records consumed since the beginning of the input, bad ones and those before ``start``
    #: included.
    position: int
    #: Bad records left out of this batch.
    n_skipped: int
    #: Where the input has a column ``y``: +1 where the first candidate is nearer, -1 where the second
    #: is, int64, shape (n,).
    y: np.ndarray | None = None
    #: Where the input has a column ``task``: names, shape (n,).
    tasks: np.ndarray | None = None

    @property
    def tuples(self) -> tuple[np.ndarray, ...]:
        """What a learner's ``partial_fit`` takes: the triplets; their answers, if there are answers or
        tasks (+1 if there are only tasks); their tasks, if there are tasks."""
        if self.tasks is None and self.y is None:
            return (self.triplets,)
        y = np.ones(len(self.triplets), np.int64) if self.y is None else self.y
        return (self.triplets, y) if self.tasks is None else (self.triplets, y, self.tasks)


class PairBatch(NamedTuple):
    """Some labelled pairs and how far the reading has come."""

    #: Two items: int64, shape (n, 2).
    pairs: np.ndarray
    #: +1 (similar) or -1 (dissimilar) for each: int64, shape (n,).
    y: np.ndarray
    #: As in `Batch`.
    position: int
    n_skipped: int

    @property
    def tuples(self) -> tuple[np.ndarray, ...]:
        """What a learner's ``partial_fit`` takes."""
        return self.pairs, self.y


def read_triplets(
    source: PathLike | IO[Any],
    *,
    on_error: str = "fail",
    n_items: int | tuple[int, int] | None = None,
    distinct: bool = False,
    start: int = 0,
    batch_size: int = 4096,
) -> Iterator[Batch]:
    """Read triplets in batches, each as soon as its lines are there.

    Text has one triplet a line: CSV with a header ``anchor,positive,negative``,
    ``head,winner,loser`` (Salmon), ``anchor,near,far`` or ``anchor,first,second,y``, in any order and
    among other columns; CSV without a header, three columns in the order anchor, positive, negative; or
    JSONL, objects with the same names or arrays of three. ``.tsv`` is CSV with tabs, ``.txt`` what its
    first line looks like: commas, tabs or white space. ``.npy`` holds an array of shape (n, 3), ``.npz``
    one called ``triplets``.

    Triplets of many tasks have a column or a key ``task`` besides: text, or an integer taken as text.
    Answers have one called ``y``: +1 where the first candidate is nearer, -1 where the second is.
    JSONL has them in every line or in none. The arrays of an ``.npz`` file are called ``tasks`` and
    ``y``.

    Text files may be compressed (``.gz``, ``.bz2``). In a stream, or a path that is a
    pipe, a first line that begins with ``{`` or ``[`` means JSONL, any other is taken like that of
    ``.txt``. Blank lines are passed over.

    Parameters
    ----------
    source : str, os.PathLike or file object
        A file, or a stream of text or bytes such as ``sys.stdin``.
    on_error : {"fail", "skip"}, default="fail"
        What to do at a bad record: one that is not three integers, has a number below 0 or beyond
        ``n_items``, whose positive is its negative, whose ``y`` is neither +1 nor -1, or whose task
        has no name. "fail" yields the triplets before it and
        raises; "skip" counts it and goes on.
    n_items : int or (int, int), default=None
        Number of items; a pair where anchors and candidates are different items. By default no
        number is too large.
    distinct : bool, default=False
        Whether a triplet whose anchor is also its positive or its negative is bad too.
    start : int, default=0
        Records to pass over first: the ``position`` of the last batch of an earlier reading.
    batch_size : int, default=4096
        Most records of a batch. A file is cut every ``batch_size`` lines, a header and blank lines
        included; a pipe is never waited for to fill a batch.

    Yields
    ------
    Batch
        Triplets, position and number of bad records in it; answers and tasks where there are some.

    Raises
    ------
    FormatError
        At a bad record, and if a file cannot be read, holds no records or fewer than ``start``.

    Examples
    --------
    >>> import io
    >>> from simstream.data import read_triplets
    >>> stream = io.StringIO("winner,head,loser\\n1,0,2\\n1,0,oops\\n3,0,4\\n")
    >>> for batch in read_triplets(stream, on_error="skip", n_items=10):
    ...     print(batch.triplets.tolist(), batch.position, batch.n_skipped)
    [[0, 1, 2], [0, 3, 4]] 3 1
    """
    limits = Limits(_both(n_items), distinct)
    return _read(source, TRIPLETS, _triplet_batch, on_error, limits, start, batch_size)


def read_pairs(
    source: PathLike | IO[Any],
    *,
    on_error: str = "fail",
    n_items: int | tuple[int, int] | None = None,
    start: int = 0,
    batch_size: int = 4096,
) -> Iterator[PairBatch]:
    """Read labelled pairs in batches: like `read_triplets`, in the same formats.

    A record has three numbers: two items, and +1 if they are similar or -1 if they are not. The
    names in a header or an object are ``first,second,y``, ``left,right,y`` or ``i,j,y``. The array
    of an ``.npz`` file is called ``pairs``.

    Parameters
    ----------
    source, on_error, start, batch_size : as in `read_triplets`
        A bad record is one that is not three integers, has an item number below 0 or beyond
        ``n_items``, a label other than +1 and -1, or an item paired with itself.
    n_items : int or (int, int), default=None
        Number of items; a pair where the first and the second are different items, of which equal
        numbers do not mean the same item. By default no number is too large.

    Yields
    ------
    PairBatch
        Pairs, labels, position and number of bad records in it.

    Raises
    ------
    FormatError
        At a bad record, and if a file cannot be read, holds no records or fewer than ``start``.

    Examples
    --------
    >>> import io
    >>> from simstream.data import read_pairs
    >>> stream = io.StringIO("0,1,+1\\n1,0,2\\n0,2,-1\\n")
    >>> for batch in read_pairs(stream, on_error="skip", n_items=3):
    ...     print(batch.pairs.tolist(), batch.y.tolist(), batch.position, batch.n_skipped)
    [[0, 1], [0, 2]] [1, -1] 3 1
    """
    limits = Limits(_both(n_items), distinct=not isinstance(n_items, tuple | list))
    return _read(source, PAIRS, _pair_batch, on_error, limits, start, batch_size)


def _triplet_batch(numbers: np.ndarray, position: int, n_skipped: int, extras: Extras) -> Batch:
    if extras.width == 3:
        return Batch(numbers, position, n_skipped)
    triplets, y = np.ascontiguousarray(numbers[:, :3]), np.ascontiguousarray(numbers[:, 3])
    return Batch(
        triplets,
        position,
        n_skipped,
        y if extras.has_answer else None,
        np.array([extras.names[n] for n in numbers[:, 4]], str) if extras.has_task else None,
    )


def _pair_batch(numbers: np.ndarray, position: int, n_skipped: int, extras: Extras) -> PairBatch:
    pairs, y = np.ascontiguousarray(numbers[:, :2]), np.ascontiguousarray(numbers[:, 2])
    return PairBatch(pairs, y, position, n_skipped)


def _both(n_items: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Items of the first column and of the others."""
    if n_items is None:
        return None
    first, others = n_items if isinstance(n_items, tuple | list) else (n_items, n_items)
    return first, others


def _read(
    source: PathLike | IO[Any],
    kind: RecordKind,
    new_batch: Callable[[np.ndarray, int, int, Extras], _BatchType],
    on_error: str,
    limits: Limits,
    start: int,
    batch_size: int,
) -> Iterator[_BatchType]:
    if on_error not in ("fail", "skip"):
        raise ValueError(f"unknown on_error; expected 'fail' or 'skip', got {on_error!r}")
    if batch_size < 1 or start < 0:
        raise ValueError(
            f"expected batch_size >= 1 and start >= 0, got batch_size={batch_size}, start={start}"
        )
    block_lines = batch_size * max(1, BLOCK_LINES // batch_size)
    records, name = _open_records(source, kind, start, block_lines)
    cut = _cut(records, name, kind, on_error == "skip", limits, start, batch_size)
    return (new_batch(*parts) for parts in cut)


def _open_records(
    source: PathLike | IO[Any], kind: RecordKind, start: int, block_lines: int
) -> tuple[Iterator[Records], str]:
    """Find out what the source is; what is wrong with a file's name is raised at once."""
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        name = name if isinstance(name, str) else "<stream>"
        return text_records(line_blocks(source, block_lines), name, None, start, kind), name
    path = Path(source)
    name = str(path)
    if not is_regular(path):
        return _file_records(path, None, kind, start, block_lines), name
    extension = format_of(path, FORMATS)
    if extension in ("npy", "npz"):
        key = "" if extension == "npy" else kind.plural
        return _array_records(path, key, kind, start), name
    return _file_records(path, extension, kind, start, block_lines), name


def _file_records(
    path: Path, extension: str | None, kind: RecordKind, start: int, block_lines: int
) -> Iterator[Records]:
    """Records of a text file, of which there must be some, or of a named pipe."""
    with open_input(path) as handle:
        yield from text_records(
            line_blocks(handle, block_lines),
            str(path),
            extension,
            start,
            kind,
            must_have_records=extension is not None,
        )


def _array_records(path: Path, key: str, kind: RecordKind, start: int) -> Iterator[Records]:
    """Rows of an array of integers."""
    arrays = load_arrays(path)
    numbers = arrays.get(key)
    if (
        numbers is None
        or numbers.ndim != 2
        or numbers.shape[1] != 3
        or numbers.dtype.kind not in "iu"
    ):
        found = (
            ", ".join(arrays) if numbers is None else f"shape {numbers.shape}, type {numbers.dtype}"
        )
        raise format_error(
            path,
            f"not {kind.plural}",
            expected=f"an array{key and f' {key!r}'} of integers of shape (n, 3)",
            got=found or "no arrays",
        )
    if not len(numbers):
        raise no_records(path, kind)
    if start > len(numbers):
        raise too_short(path, start, len(numbers))
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    extras = Extras()
    if kind.may_have_extras:
        numbers, extras = with_extras(path, numbers, arrays.get(ANSWER), arrays.get("tasks"))
    yield Records(
        numbers[start:], lambda row: (None, f"{numbers[start + row, :4].tolist()}", ""), extras
    )


def with_extras(
    path: PathLike, numbers: np.ndarray, y: np.ndarray | None, tasks: np.ndarray | None
) -> tuple[np.ndarray, Extras]:
    """Triplets with their answers and the numbers of their tasks, where there are some."""
    extras = Extras(y is not None, tasks is not None)
    if extras.width == 3:
        return numbers, extras
    for name, values, kinds, expected in (
        (ANSWER, y, "iu", "integers"),
        ("tasks", tasks, "iuU", "strings or integers"),
    ):
        if values is not None and (
            values.shape != (len(numbers),) or values.dtype.kind not in kinds
        ):
            raise format_error(
                path,
                f"bad array {name!r}",
                expected=f"{expected}, one for each of {len(numbers)} triplets",
                got=f"shape {values.shape}, type {values.dtype}",
            )
    answers = [None] * len(numbers) if y is None else y.tolist()
    names = [None] * len(numbers) if tasks is None else [str(task) for task in tasks.tolist()]
    rows = zip(numbers.tolist(), answers, names, strict=True)
    return np.array([extras.completed(*row) for row in rows], np.int64), extras


def _cut(
    records: Iterator[Records],
    name: str,
    kind: RecordKind,
    skip: bool,
    limits: Limits,
    position: int,
    batch_size: int,
) -> Iterator[tuple[np.ndarray, int, int, Extras]]:
    """Cut records into batches (numbers, position, bad ones, extras) without the bad ones."""
    for numbers, describe, extras in records:
        for first in range(0, len(numbers), batch_size):
            batch = numbers[first : first + batch_size]
            good = kind.are_good(batch, limits)
            n_bad = len(batch) - int(np.count_nonzero(good))
            if n_bad and not skip:
                row = int(np.argmin(good))
                if row:
                    yield batch[:row], position + row, 0, extras
                line, text, why = describe(first + row)
                raise bad_record(name, kind, batch[row], limits, line, text, position + row, why)
            position += len(batch)
            yield batch[good] if n_bad else batch, position, n_bad, extras


def bad_record(
    name: object,
    kind: RecordKind,
    numbers: np.ndarray,
    limits: Limits,
    line: int | None,
    text: str,
    position: int,
    why_unreadable: str = "",
) -> FormatError:
    """Say what is wrong with a record that is not good."""
    problem, expected = kind.problem(numbers, limits)
    if why_unreadable and numbers[0] == UNREADABLE:
        problem = f"{problem}: {why_unreadable}"
    place = "" if line is not None else f" in row {position} (counted from 0)"
    return format_error(name, problem + place, expected=expected, got=text, line=line)
