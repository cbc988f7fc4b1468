"""Triplets and labelled pairs: read in batches as they arrive, from files and from streams.

One reader and one writer serve both kinds of records (see `records`).
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
    open_output,
    open_text_output,
)
from .lines import SEPARATORS, Records, line_blocks, no_records, text_records, too_short
from .records import PAIRS, TRIPLETS, Limits, RecordKind

_FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".tsv": "tsv",
    ".txt": "txt",
    ".npy": "npy",
    ".npz": "npz",
}
_BLOCK_LINES = 4096

_BatchType = TypeVar("_BatchType")


class Batch(NamedTuple):
    """Some triplets and how far the reading has come.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.formats import Batch
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

    @property
    def tuples(self) -> tuple[np.ndarray, ...]:
        """What a learner's ``partial_fit`` takes."""
        return (self.triplets,)


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
    ``head,winner,loser`` (Salmon) or ``anchor,near,far``, in any order and among other columns; CSV
    without a header, three columns in the order anchor, positive, negative; or JSONL, objects with
    the same names or arrays of three. ``.tsv`` is CSV with tabs, ``.txt`` what its first line looks
    like: commas, tabs or white space. ``.npy`` holds an array of shape (n, 3), ``.npz`` one called
    ``triplets``. Text files may be compressed (``.gz``, ``.bz2``). In a stream, or a path that is a
    pipe, a first line that begins with ``{`` or ``[`` means JSONL, any other is taken like that of
    ``.txt``. Blank lines are passed over.

    Parameters
    ----------
    source : str, os.PathLike or file object
        A file, or a stream of text or bytes such as ``sys.stdin``.
    on_error : {"fail", "skip"}, default="fail"
        What to do at a bad record: one that is not three integers, has a number below 0 or beyond
        ``n_items``, or whose positive is its negative. "fail" yields the triplets before it and
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
        Triplets, position and number of bad records in it.

    Raises
    ------
    FormatError
        At a bad record, and if a file cannot be read, holds no records or fewer than ``start``.

    Examples
    --------
    >>> import io
    >>> from simstream.formats import read_triplets
    >>> stream = io.StringIO("winner,head,loser\\n1,0,2\\n1,0,oops\\n3,0,4\\n")
    >>> for batch in read_triplets(stream, on_error="skip", n_items=10):
    ...     print(batch.triplets.tolist(), batch.position, batch.n_skipped)
    [[0, 1, 2], [0, 3, 4]] 3 1
    """
    limits = Limits(_both(n_items), distinct)
    return _read(source, TRIPLETS, Batch, on_error, limits, start, batch_size)


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
    >>> from simstream.formats import read_pairs
    >>> stream = io.StringIO("0,1,+1\\n1,0,2\\n0,2,-1\\n")
    >>> for batch in read_pairs(stream, on_error="skip", n_items=3):
    ...     print(batch.pairs.tolist(), batch.y.tolist(), batch.position, batch.n_skipped)
    [[0, 1], [0, 2]] [1, -1] 3 1
    """
    limits = Limits(_both(n_items), distinct=not isinstance(n_items, tuple | list))
    return _read(source, PAIRS, _pair_batch, on_error, limits, start, batch_size)


def _pair_batch(numbers: np.ndarray, position: int, n_skipped: int) -> PairBatch:
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
    new_batch: Callable[[np.ndarray, int, int], _BatchType],
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
    block_lines = batch_size * max(1, _BLOCK_LINES // batch_size)
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
    extension = format_of(path, _FORMATS)
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
    yield Records(numbers[start:], lambda row: (None, f"{numbers[start + row].tolist()}"))


def _cut(
    records: Iterator[Records],
    name: str,
    kind: RecordKind,
    skip: bool,
    limits: Limits,
    position: int,
    batch_size: int,
) -> Iterator[tuple[np.ndarray, int, int]]:
    """Cut records into batches (numbers, position, bad ones) without the bad ones."""
    for numbers, describe in records:
        for first in range(0, len(numbers), batch_size):
            batch = numbers[first : first + batch_size]
            good = kind.are_good(batch, limits)
            n_bad = len(batch) - int(np.count_nonzero(good))
            if n_bad and not skip:
                row = int(np.argmin(good))
                if row:
                    yield batch[:row], position + row, 0
                line, text = describe(first + row)
                raise _bad_record(name, kind, batch[row], limits, line, text, position + row)
            position += len(batch)
            yield batch[good] if n_bad else batch, position, n_bad


def _bad_record(
    name: object,
    kind: RecordKind,
    numbers: np.ndarray,
    limits: Limits,
    line: int | None,
    text: str,
    position: int,
) -> FormatError:
    """Say what is wrong with a record that is not good."""
    problem, expected = kind.problem(numbers, limits)
    place = "" if line is not None else f" in row {position} (counted from 0)"
    return format_error(name, problem + place, expected=expected, got=text, line=line)


def write_triplets(path: PathLike, triplets: Any) -> None:
    """Write triplets to a text file (``.csv``, ``.tsv``, ``.txt``, ``.jsonl``), ``.npy`` or ``.npz``.

    Text is compressed where the name ends in ``.gz`` or ``.bz2``. The file appears whole or not at
    all. Only what `read_triplets` takes back is written.

    Parameters
    ----------
    path : str or os.PathLike
        The file; its name says in which format.
    triplets : array-like of int, shape (n, 3)
        Anchor, positive, negative.

    Raises
    ------
    FormatError
        If the triplets are not integers of that shape, a number is negative, or a positive is its
        negative.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.formats import write_triplets
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "triplets.jsonl"
    >>> write_triplets(path, [[0, 1, 2]])
    >>> path.read_text()
    '{"anchor": 0, "positive": 1, "negative": 2}\\n'
    """
    _write(path, TRIPLETS, np.asarray(triplets), Limits())


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
    >>> from simstream.formats import write_pairs
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


def _write(path: PathLike, kind: RecordKind, numbers: np.ndarray, limits: Limits) -> None:
    path = Path(path)
    extension = format_of(path, _FORMATS)
    if numbers.ndim != 2 or numbers.shape[1] != 3 or numbers.dtype.kind not in "iu":
        raise format_error(
            path,
            f"not {kind.plural}",
            expected="integers of shape (n, 3)",
            got=f"shape {numbers.shape}, type {numbers.dtype}",
        )
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    good = kind.are_good(numbers, limits)
    if not good.all():
        row = int(np.argmin(good))
        text = f"{numbers[row].tolist()}"
        raise _bad_record(path, kind, numbers[row], limits, None, text, row)
    if extension in ("npy", "npz"):
        with open_output(path) as handle:
            if extension == "npy":
                np.save(handle, numbers)
            else:
                arrays: dict[str, Any] = {kind.plural: numbers}
                np.savez(handle, **arrays)
        return
    names = kind.names[0]
    if extension == "jsonl":
        line, header = "{" + ", ".join(f'"{name}": %d' for name in names) + "}\n", ""
    else:
        separator = SEPARATORS.get(extension, " ")
        line, header = separator.join(["%d"] * 3) + "\n", separator.join(names) + "\n"
    with open_text_output(path) as text_file:
        text_file.write(header)
        for first in range(0, len(numbers), _BLOCK_LINES):
            block = numbers[first : first + _BLOCK_LINES]
            # One format for many lines: about seven times as fast as numpy.savetxt.
            text_file.write(line * len(block) % tuple(block.ravel().tolist()))
