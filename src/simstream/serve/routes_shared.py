"""What routes have in common: their parameters, handing over to the writer, telling what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Query
from fastapi import Path as PathField

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
    bool,
    Query(
        description="Answer when it can be seen, not only when it is durable; after ten seconds in any "
        "case, with `visible` false."
    ),
]

#: Seconds that a caller waits at most.
_LONGEST_WAIT = 10.0


class Written(NamedTuple):
    """What came of the parts of a request, and whether readers can see it."""

    receipts: list[Receipt]
    is_visible: bool

    def told(self) -> dict[str, Any]:
        """What came of the only part, as JSON values."""
        (receipt,) = self.receipts
        return {
            "position": receipt.first,
            "events": receipt.events,
            "repeated": receipt.is_repeated,
            "visible": self.is_visible,
        }

    @property
    def is_repeated(self) -> bool:
        """Whether nothing of it is new."""
        return all(receipt.is_repeated for receipt in self.receipts)


async def written(service: Service, parts: Sequence[Part], wait: bool) -> Written:
    """Hand over parts of a request; return when they are durable, or visible."""
    receipts = await asyncio.wrap_future(service.submit(parts))
    last = max(receipt.last for receipt in receipts)
    if wait:
        # In the event loop: those who wait must not occupy the threads that searches run in.
        seen = asyncio.wrap_future(service.engine.published(last))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen, _LONGEST_WAIT)
    return Written(receipts, service.version.position >= last)


def named(key: str | None, what: str) -> str | None:
    """Keys of different kinds of requests do not meet."""
    return None if key is None else f"{what}:{key}"


def with_payload(service: Service, found: dict[str, Any], wanted: bool) -> dict[str, Any]:
    """What was found, with text and picture if they are wanted."""
    if wanted:
        with contextlib.suppress(NotFoundError):  # deleted since
            found |= service.item(found["id"])[2]
    return found
