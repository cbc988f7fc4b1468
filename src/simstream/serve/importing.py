"""Items from files into a service."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats import ItemsFile, read_items
from ..formats.files import open_input, text_lines
from .admissions import NewItem, add_items
from .errors import BadRequestError, ConflictError, LogError
from .events import SparseVector, Vector
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


def import_file(service: Service, path: Path, data: ItemsFile | None = None) -> int:
    """Add the items of a file, unless that very file was added before; return how many were added.

    Items without ids are called by their row number. Payloads come from ``.jsonl`` files.
    """
    data = data or read_items(path, dtype="float32")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    names = data.ids or [str(row) for row in range(data.items.shape[0])]
    return import_items(service, names, data.items, payloads_of(path), digest)


def import_items(
    service: Service,
    names: list[str],
    rows: Any,
    payloads: list[dict[str, Any]] | None,
    digest: str,
) -> int:
    """Add items by row; the digest says what they are, so that they are added once.

    Raises
    ------
    LogError
        There are items of these names already, or of another dimension.
    """
    largest = abs(rows).max()
    if not largest <= LARGEST_NUMBER:
        raise ValueError(f"items: expected numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
    added = 0
    vectors = _vectors(rows)
    for begin in range(0, len(names), _CHUNK):
        chunk = names[begin : begin + _CHUNK]
        items = [
            NewItem(name, next(vectors), payloads[begin + place] if payloads else {})
            for place, name in enumerate(chunk)
        ]
        part = Part(add_items(items), f"import:{digest}:{begin}", digest)
        try:
            (receipt,) = service.submit([part]).result()
        except (BadRequestError, ConflictError) as error:
            raise LogError(
                f"{service.settings.folder}: the items do not fit those that are there ({error}); "
                "choose another folder (--data)"
            ) from error
        added += 0 if receipt.is_repeated else receipt.events
        service.wait_for(receipt, timeout=600)
    return added


def _vectors(rows: Any) -> Iterator[Vector]:
    if not sp.issparse(rows):
        yield from np.asarray(rows, np.float32)
        return
    for begin, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        yield SparseVector(rows.indices[begin:end], rows.data[begin:end].astype(np.float32))
