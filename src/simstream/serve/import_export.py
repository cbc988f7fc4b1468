"""Files in and out: items from files into a service, and its responses as JSON lines or CSV."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..data import ItemsFile, read_items
from ..data.files import open_input, text_lines
from .events import EventKind, SparseVector, Vector, triplets_of
from .log import Log, LogError
from .schemas import LARGEST_NUMBER, decode_picture
from .service import Service
from .state import ItemStore
from .writer import Ledger, NewItem, Receipt, Write

#: Items that are known to be imported or not, and how many such chunks are made durable together.
_CHUNK, _TOGETHER = 2000, 5

#: Column names of Salmon, and ours. `head`, `winner` and `loser` number the items in the order of their first
#: addition.
COLUMNS = (
    "head",
    "winner",
    "loser",
    "head_id",
    "winner_id",
    "loser_id",
    "task",
    "source",
    "random",
    "position",
    "at",
)


# -- items in ---------------------------------------------------------------------------------


class Imported(NamedTuple):
    """What an import did."""

    added: int
    #: Items whose ids existed and were left as they are; 0 for a file that was imported before.
    present: int = 0
    #: How many of those have another vector in the file.
    different: int = 0


def import_file(
    service: Service, path: Path, data: ItemsFile | None = None, *, may_add: bool = False
) -> Imported:
    """Add the items of a file, unless the same file was imported before.

    Items without ids are named by their row number. Text and pictures come from ``.jsonl`` files.
    """
    data = data or read_items(path, dtype="float32")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    names = data.ids or [str(row) for row in range(data.items.shape[0])]
    return import_items(
        service, names, data.items, _payloads(path), digest, source=str(path), may_add=may_add
    )


def _payloads(path: Path) -> list[dict[str, Any]] | None:
    """Text and picture of each item of a ``.jsonl`` file; None for other files."""
    if ".jsonl" not in path.suffixes:
        return None
    payloads = []
    with open_input(path) as handle:
        for _, line in text_lines(handle):
            record = json.loads(line)
            payload = {key: record[key] for key in ("text", "image") if record.get(key) is not None}
            if "image" in payload:
                decode_picture(payload["image"])
            payloads.append(payload)
    return payloads


def import_items(
    service: Service,
    names: list[str],
    rows: Any,
    payloads: list[dict[str, Any]] | None,
    digest: str,
    *,
    source: str = "items",
    may_add: bool = False,
) -> Imported:
    """Add items by row; the digest identifies them, so that they are imported once.

    Errors call them by their `source`. With `may_add` they may join other items; items with known ids are
    left as they are.

    Raises
    ------
    ValueError
        An id occurs twice, or a number is too large.
    LogError
        There are other items already, or items of another dimension. Nothing was added.
    """
    largest = _largest(rows)
    if not largest <= LARGEST_NUMBER:
        raise ValueError(f"{source}: expected numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
    counts = Counter(names)
    if len(counts) < len(names):
        name, count = counts.most_common(1)[0]
        times = "twice" if count == 2 else f"{count} times"
        raise ValueError(f"{source}: expected every id once, got {name!r} {times} in the file")
    before = Imported(0)
    # An import that was interrupted is continued, whatever happened to its items since.
    if not service.log.find_requests([_key(digest, 0)]):
        before = _check_items(service, names, rows, source, may_add)
    added = 0
    vectors = _vectors(rows)
    writes = (
        Write(
            Ledger.add_missing,
            (
                [
                    NewItem(name, next(vectors), payloads[begin + place] if payloads else {})
                    for place, name in enumerate(names[begin : begin + _CHUNK])
                ],
            ),
            _key(digest, begin),
            digest,
        )
        for begin in range(0, len(names), _CHUNK)
    )
    unseen: Receipt | None = None
    while some := list(islice(writes, _TOGETHER)):
        later = service.submit(some)
        if unseen is not None:  # not further ahead of who reads the log than this
            service.wait_for(unseen, timeout=600)
        receipts = later.result()
        added += sum(0 if receipt.is_repeated else receipt.events for receipt in receipts)
        unseen = receipts[-1]
    if unseen is not None:
        service.wait_for(unseen, timeout=600)
    return before._replace(added=added)


def _largest(rows: Any) -> float:
    """The largest absolute value; NaN if there is one."""
    if sp.issparse(rows):
        return float(abs(rows).max())
    parts = (np.abs(rows[begin : begin + _CHUNK]).max() for begin in range(0, len(rows), _CHUNK))
    return float(np.max([0.0, *parts]))


def _key(digest: str, begin: int) -> str:
    return f"import:{digest}:{begin}"


def _check_items(
    service: Service, names: list[str], rows: Any, source: str, may_add: bool
) -> Imported:
    """Count the items that are already there; an error if they are not the same, unless others may join."""
    items, folder = service.engine.items, service.settings.folder
    is_sparse = service.settings.n_features is not None
    if items.n_features not in (None, rows.shape[1]) or is_sparse != sp.issparse(rows):
        raise LogError(
            f"{source}: expected {_describe(is_sparse, items.n_features)} vectors, as in {folder}, "
            f"got {_describe(sp.issparse(rows), rows.shape[1])}; choose another folder (--data)"
        )
    known = [row for row, name in enumerate(names) if name in items.positions]
    different = 0
    for begin in range(0, len(known), _CHUNK):
        some = known[begin : begin + _CHUNK]
        kept = items.vectors([items.positions[names[row]] for row in some])
        unequal = kept != rows[some].astype(np.float32)
        by_row = unequal.getnnz(axis=1) if sp.issparse(unequal) else unequal.any(axis=1)
        different += int(np.count_nonzero(by_row))
    if not may_add and len(items) and (len(known) < len(names) or different):
        other = f", {different} of them with another vector" if different else ""
        raise LogError(
            f"{source}: expected the {len(items)} items that are already in {folder}, got "
            f"{len(names) - len(known)} new ids and {len(known)} known ids{other}; --add adds the new "
            "ids and leaves the known ones as they are, --data chooses another folder"
        )
    return Imported(0, len(known), different)


def _describe(is_sparse: bool, n_features: int | None) -> str:
    size = "" if n_features is None else f" {n_features}-dimensional"
    return f"{'sparse' if is_sparse else 'dense'}{size}"


def _vectors(rows: Any) -> Iterator[Vector]:
    if not sp.issparse(rows):
        yield from np.asarray(rows, np.float32)
        return
    for begin, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        yield SparseVector(rows.indices[begin:end], rows.data[begin:end].astype(np.float32))


# -- responses out ----------------------------------------------------------------------------


def responses(log: Log, items: ItemStore, until: int) -> Iterator[dict[str, Any]]:
    """One record for each comparison that counts, except comparisons with a vector that is not an item."""
    places = _places(items)
    for event in log.read_counting(0, until, (EventKind.FEEDBACK, EventKind.ANSWER)):
        body = event.body
        is_answer = event.kind == EventKind.ANSWER
        source, is_random = ("answer", body["random"]) if is_answer else (body["source"], False)
        for triplet in triplets_of(event):
            if triplet[0] == 0:
                continue
            names = [items.names[position] for position in triplet]
            values = [*(places[name] for name in names), *names, body["task"], source, is_random]
            yield dict(zip(COLUMNS, [*values, event.position, event.at], strict=True))


def count_left_out(log: Log, until: int) -> int:
    """Comparisons that count but are not among `responses`, because their query was a vector."""
    return sum(
        triplet[0] == 0
        for event in log.read_counting(0, until, (EventKind.FEEDBACK,))
        for triplet in triplets_of(event)
    )


def _places(items: ItemStore) -> dict[str, int]:
    """Id -> number, of all items there ever were, in the order of their first addition."""
    places: dict[str, int] = {}
    for _, name in sorted(items.names.copy().items()):
        places.setdefault(name, len(places))
    return places


def as_jsonl(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One JSON object per line; the key ``task`` only where there is a task."""
    for record in records:
        kept = {
            name: value for name, value in record.items() if name != "task" or value is not None
        }
        yield json.dumps(kept) + "\n"


def in_chunks(lines: Iterable[str], size: int = 2**16) -> Iterator[str]:
    """The same text in pieces of about this many letters: sending a piece costs more than making a line.

    Examples
    --------
    >>> list(in_chunks(["ab", "cd", "e"], size=3))
    ['abcd', 'e']
    """
    some: list[str] = []
    length = 0
    for line in lines:
        some.append(line)
        length += len(line)
        if length >= size:
            yield "".join(some)
            some, length = [], 0
    if some:
        yield "".join(some)


def as_csv(records: Iterator[dict[str, Any]], *, has_tasks: bool) -> Iterator[str]:
    """A header and one line per record; the column ``task`` only with tasks."""
    columns = [name for name in COLUMNS if has_tasks or name != "task"]
    writer = csv.DictWriter(_Echo(), columns, lineterminator="\n", extrasaction="ignore")
    yield writer.writeheader()
    yield from map(writer.writerow, records)


class _Echo:
    """A file for `csv`, whose methods return what the file's `write` returns."""

    def write(self, line: str) -> str:
        return line
