"""What routes have in common: their parameters, handing over to the writer, telling what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Header, Query
from fastapi import Path as PathField
from starlette.concurrency import run_in_threadpool

from . import schemas
from .errors import NotFoundError
from .service import Service
from .writer import Part, Receipt

Key = Annotated[
    schemas.Name | None,
    Header(
        alias="Idempotency-Key", description="The same key is done once, however often it is sent."
    ),
]
ItemId = Annotated[schemas.Name, PathField()]
#: Whether to answer only when readers can see it.
Wait = Annotated[
    bool, Query(description="Answer when it can be seen, not only when it is durable.")
]


async def written(service: Service, parts: Sequence[Part], wait: bool) -> list[Receipt]:
    """Hand over parts of a request; return when they are durable, or visible."""
    receipts = await asyncio.wrap_future(service.submit(parts))
    if wait:
        last = max(receipts, key=lambda receipt: receipt.first + receipt.events)
        await run_in_threadpool(service.wait_for, last)
    return receipts


def told(receipt: Receipt) -> dict[str, Any]:
    """What came of a part of a request, as JSON values."""
    return {
        "position": receipt.first,
        "events": receipt.events,
        "repeated": receipt.is_repeated,
    }


def named(key: str | None, what: str) -> str | None:
    """Keys of different kinds of requests do not meet."""
    return None if key is None else f"{what}:{key}"


def with_payload(service: Service, found: dict[str, Any], wanted: bool) -> dict[str, Any]:
    """What was found, with text and picture if they are wanted."""
    if wanted:
        with contextlib.suppress(NotFoundError):  # deleted since
            found |= service.item(found["id"])[2]
    return found
