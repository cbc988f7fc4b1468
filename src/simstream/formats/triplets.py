"""Triplets: read in batches as they arrive, from files and from streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

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
from .lines import NAMES, UNREADABLE, Records, line_blocks, no_records, text_records, too_short

_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".npy": "npy", ".npz": "npz"}
_BLOCK_LINES = 4096


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


def read_triplets(
    source: PathLike | IO[Any],
    *,
    on_error: str = "fail",
    n_items: int | tuple[int, int] | None = None,
    start: int = 0,
    batch_size: int = 4096,
) -> Iterator[Batch]:
    """Read triplets in batches, each as soon as its lines are there.

    Text has one triplet a line: CSV with a header ``anchor,positive,negative``,
    ``head,winner,loser`` (Salmon) or ``anchor,near,far``, in any order and among other columns; CSV
    without a header, three columns in the order anchor, positive, negative; or JSONL, objects with
    the same names or arrays of three. ``.npy`` holds an array of shape (n, 3), ``.npz`` one called
    ``triplets``. Text files may be compressed (``.gz``, ``.bz2``). In a stream, or a path that is a
    pipe, a first line that begins with ``{`` or ``[`` means JSONL, any other one CSV. Blank lines
    are passed over.

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
    if on_error not in ("fail", "skip"):
        raise ValueError(f"unknown on_error; expected 'fail' or 'skip', got {on_error!r}")
    if batch_size < 1 or start < 0:
        raise ValueError(
            f"expected batch_size >= 1 and start >= 0, got batch_size={batch_size}, start={start}"
        )
    block_lines = batch_size * max(1, _BLOCK_LINES // batch_size)
    records, name = _open_records(source, start, block_lines)
    limits = _limits(n_items)
    return _batches(records, name, on_error == "skip", limits, start, batch_size)


def _open_records(
    source: PathLike | IO[Any], start: int, block_lines: int
) -> tuple[Iterator[Records], str]:
    """Find out what the source is; what is wrong with a file's name is raised at once."""
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        name = name if isinstance(name, str) else "<stream>"
        return text_records(line_blocks(source, block_lines), name, None, start), name
    path = Path(source)
    name = str(path)
    if not is_regular(path):
        return _file_records(path, None, start, block_lines), name
    kind = format_of(path, _FORMATS)
    if kind in ("npy", "npz"):
        return _array_records(path, "" if kind == "npy" else "triplets", start), name
    return _file_records(path, kind, start, block_lines), name


def _file_records(path: Path, kind: str | None, start: int, block_lines: int) -> Iterator[Records]:
    """Records of a text file, of which there must be some, or of a named pipe."""
    with open_input(path) as handle:
        yield from text_records(
            line_blocks(handle, block_lines),
            str(path),
            kind,
            start,
            must_have_records=kind is not None,
        )


def _array_records(path: Path, key: str, start: int) -> Iterator[Records]:
    """Rows of an array of integers."""
    arrays = load_arrays(path)
    triplets = arrays.get(key)
    if (
        triplets is None
        or triplets.ndim != 2
        or triplets.shape[1] != 3
        or triplets.dtype.kind not in "iu"
    ):
        found = (
            ", ".join(arrays)
            if triplets is None
            else f"shape {triplets.shape}, type {triplets.dtype}"
        )
        raise format_error(
            path,
            "not triplets",
            expected=f"an array{key and f' {key!r}'} of integers of shape (n, 3)",
            got=found or "no arrays",
        )
    if not len(triplets):
        raise no_records(path)
    if start > len(triplets):
        raise too_short(path, start, len(triplets))
    triplets = np.ascontiguousarray(triplets, dtype=np.int64)
    yield Records(triplets[start:], lambda row: (None, f"{triplets[start + row].tolist()}"))


def _batches(
    records: Iterator[Records],
    name: str,
    skip: bool,
    limits: np.ndarray | None,
    position: int,
    batch_size: int,
) -> Iterator[Batch]:
    """Cut records into batches, without the bad ones."""
    for triplets, describe in records:
        for first in range(0, len(triplets), batch_size):
            batch = triplets[first : first + batch_size]
            good = _are_good(batch, limits)
            n_bad = len(batch) - int(np.count_nonzero(good))
            if n_bad and not skip:
                row = int(np.argmin(good))
                if row:
                    yield Batch(batch[:row], position + row, 0)
                line, text = describe(first + row)
                raise _bad_record(name, batch[row].tolist(), limits, line, text, position + row)
            position += len(batch)
            yield Batch(batch[good] if n_bad else batch, position, n_bad)


def _limits(n_items: int | tuple[int, int] | None) -> np.ndarray | None:
    """The first number that is too large, for anchor, positive and negative."""
    if n_items is None:
        return None
    n_anchors, n_candidates = n_items if isinstance(n_items, tuple | list) else (n_items, n_items)
    return np.array([n_anchors, n_candidates, n_candidates], dtype=np.int64)


def _are_good(triplets: np.ndarray, limits: np.ndarray | None) -> np.ndarray:
    anchor, positive, negative = triplets.T
    good = (anchor >= 0) & (positive >= 0) & (negative >= 0) & (positive != negative)
    if limits is not None:
        good &= (anchor < limits[0]) & (positive < limits[1]) & (negative < limits[2])
    return good


def _bad_record(
    name: object,
    triplet: list[int],
    limits: np.ndarray | None,
    line: int | None,
    text: str,
    position: int,
) -> FormatError:
    """Say what is wrong with a record that `_are_good` refused."""
    if triplet == list(UNREADABLE):
        problem, expected = "not a triplet", "three integers"
    elif min(triplet) < 0:
        problem, expected = "negative item number", "numbers from 0"
    elif triplet[1] == triplet[2]:
        problem, expected = "positive equals negative", "two different items"
    else:
        assert limits is not None  # the only check left
        problem = "item number too large"
        expected = f"anchor < {limits[0]}, positive and negative < {limits[1]}"
    place = "" if line is not None else f" in row {position} (counted from 0)"
    return format_error(name, problem + place, expected=expected, got=text, line=line)


def write_triplets(path: PathLike, triplets: Any) -> None:
    """Write triplets to ``.csv`` or ``.jsonl`` (or ``.gz``, ``.bz2`` of these), ``.npy``, ``.npz``.

    The file appears whole or not at all. Only what `read_triplets` takes back is written.

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
    path = Path(path)
    kind = format_of(path, _FORMATS)
    triplets = np.asarray(triplets)
    if triplets.ndim != 2 or triplets.shape[1] != 3 or triplets.dtype.kind not in "iu":
        raise format_error(
            path,
            "not triplets",
            expected="integers of shape (n, 3)",
            got=f"shape {triplets.shape}, type {triplets.dtype}",
        )
    triplets = np.ascontiguousarray(triplets, dtype=np.int64)
    good = _are_good(triplets, None)
    if not good.all():
        row = int(np.argmin(good))
        triplet = triplets[row].tolist()
        raise _bad_record(path, triplet, None, None, f"{triplet}", row)
    if kind in ("npy", "npz"):
        with open_output(path) as handle:
            if kind == "npy":
                np.save(handle, triplets)
            else:
                np.savez(handle, triplets=triplets)
        return
    line, header = '{"anchor": %d, "positive": %d, "negative": %d}\n', ""
    if kind == "csv":
        line, header = "%d,%d,%d\n", ",".join(NAMES[0]) + "\n"
    with open_text_output(path) as text:
        text.write(header)
        for first in range(0, len(triplets), _BLOCK_LINES):
            block = triplets[first : first + _BLOCK_LINES]
            # One format for many lines: about seven times as fast as numpy.savetxt.
            text.write(line * len(block) % tuple(block.ravel().tolist()))
