"""Items from files into a service."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..data import ItemsFile, read_items
from ..data.files import open_input, text_lines
from .admissions import NewItem, add_missing
from .errors import BadRequestError, LogError
from .events import SparseVector, Vector
from .ledger import Shape
from .schemas import LARGEST_NUMBER, decode_picture
from .service import Service
from .writer import Part

#: Items that are made durable together.
_CHUNK = 2000


def payloads_of(path: Path) -> list[dict[str, Any]] | None:
    """Text and picture of each item of a ``.jsonl`` file (fields ``text`` and ``image``); else None."""
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


class Imported(NamedTuple):
    """What came of a file."""

    added: int
    #: So many ids were there and are left as they are; 0 for a file that was added before.
    present: int = 0
    #: How many of those have another vector in the file.
    different: int = 0


def import_file(
    service: Service, path: Path, data: ItemsFile | None = None, *, may_add: bool = False
) -> Imported:
    """Add the items of a file, unless that very file was added before.

    Items without ids are called by their row number. Payloads come from ``.jsonl`` files.
    """
    data = data or read_items(path, dtype="float32")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    names = data.ids or [str(row) for row in range(data.items.shape[0])]
    payloads = payloads_of(path)
    return import_items(
        service, names, data.items, payloads, digest, source=str(path), may_add=may_add
    )


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
    """Add items by row; the digest says what they are, so that they are added once.

    Parameters
    ----------
    service, names, rows, payloads, digest : where to, and what
    source : what to call them in errors
    may_add : whether they may join other items; those whose ids are there are left as they are

    Raises
    ------
    ValueError
        An id is there twice, or a number is too large.
    LogError
        There are other items already, or items of another dimension. Nothing was added.
    """
    largest = abs(rows).max()
    if not largest <= LARGEST_NUMBER:
        raise ValueError(f"{source}: expected numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
    counts = Counter(names)
    if len(counts) < len(names):
        name, count = counts.most_common(1)[0]
        times = "twice" if count == 2 else f"{count} times"
        raise ValueError(f"{source}: expected every id once, got {name!r} {times} in the file")
    before = Imported(0)
    # A file that was begun is gone on with, whatever happened to its items since.
    if service.log.request(_key(digest, 0)) is None:
        _check_shape(service, rows, source)
        before = _compare(service, names, rows)
        _check_items(service, before, names, source, may_add)
    added = 0
    vectors = _vectors(rows)
    for begin in range(0, len(names), _CHUNK):
        chunk = names[begin : begin + _CHUNK]
        items = [
            NewItem(name, next(vectors), payloads[begin + place] if payloads else {})
            for place, name in enumerate(chunk)
        ]
        part = Part(add_missing(items), _key(digest, begin), digest)
        try:
            (receipt,) = service.submit([part]).result()
        except BadRequestError as error:
            raise LogError(
                f"{service.settings.folder}: the items do not fit those that are there ({error}); "
                "choose another folder (--data)"
            ) from error
        added += 0 if receipt.is_repeated else receipt.events
        service.wait_for(receipt, timeout=600)
    return before._replace(added=added)


def _key(digest: str, begin: int) -> str:
    return f"import:{digest}:{begin}"


def _check_shape(service: Service, rows: Any, source: str) -> None:
    shape = service.writer.ledger.shape
    if shape.n_features is None:
        return
    got = Shape(rows.shape[1], sp.issparse(rows))
    if got != shape:
        raise LogError(
            f"{source}: expected {_words(shape)} vectors, as in {service.settings.folder}, "
            f"got {_words(got)} ones; choose another folder (--data)"
        )


def _words(shape: Shape) -> str:
    return f"{'sparse' if shape.is_sparse else 'dense'} {shape.n_features}-dimensional"


def _compare(service: Service, names: list[str], rows: Any) -> Imported:
    """How many of the items are there already, and how many of those differ."""
    items = service.engine.items
    places = [place for place, name in enumerate(names) if name in items.positions]
    different = 0
    for begin in range(0, len(places), _CHUNK):
        some = places[begin : begin + _CHUNK]
        kept = items.vectors([items.positions[names[place]] for place in some])
        unequal = kept != rows[some].astype(np.float32)
        by_row = unequal.getnnz(axis=1) if sp.issparse(unequal) else unequal.any(axis=1)
        different += int(np.count_nonzero(by_row))
    return Imported(0, len(places), different)


def _check_items(
    service: Service, found: Imported, names: list[str], source: str, may_add: bool
) -> None:
    n_kept = len(service.engine.items)
    if may_add or not n_kept or (found.present == len(names) and not found.different):
        return
    other = f", {found.different} of them with another vector" if found.different else ""
    raise LogError(
        f"{source}: expected the items that are in {service.settings.folder} already ({n_kept}), got "
        f"{len(names) - found.present} items of new ids and {found.present} of known ones{other}; --add "
        "adds those of new ids and leaves the others as they are, --data takes another folder"
    )


def _vectors(rows: Any) -> Iterator[Vector]:
    if not sp.issparse(rows):
        yield from np.asarray(rows, np.float32)
        return
    for begin, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        yield SparseVector(rows.indices[begin:end], rows.data[begin:end].astype(np.float32))
