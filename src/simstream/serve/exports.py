"""What was answered, for other programs: JSON lines and CSV with Salmon's column names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from .events import ANSWER, CONTROL_KINDS, FEEDBACK, Event
from .exclusions import excluded_ranges, is_excluded
from .items import ItemStore
from .log import Log

#: `head`, `winner` and `loser` are places of items in the order in which they were first added.
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


def responses(log: Log, items: ItemStore, until: int) -> Iterator[dict[str, Any]]:
    """One record for each comparison that counts. Comparisons with a vector that is no item are left out."""
    places = item_places(items)
    for event in _that_count(log, until, (FEEDBACK, ANSWER)):
        body = event.body
        if event.kind == FEEDBACK:
            triplets, source, is_random = body["triplets"], body["source"], False
        elif body["winner"] is None:
            continue
        else:
            anchor, *candidates = body["items"]
            winner = body["winner"]
            triplets = [(anchor, candidates[winner], candidates[1 - winner])]
            source, is_random = "answer", body["random"]
        for triplet in triplets:
            if triplet[0] == 0:
                continue
            names = [items.names[position] for position in triplet]
            values = [*(places[name] for name in names), *names, body["task"], source, is_random]
            yield dict(zip(COLUMNS, [*values, event.position, event.at], strict=True))


def count_left_out(log: Log, until: int) -> int:
    """Comparisons that count but are not among `responses`, because their query was a vector."""
    return sum(
        triplet[0] == 0
        for event in _that_count(log, until, (FEEDBACK,))
        for triplet in event.body["triplets"]
    )


def _that_count(log: Log, until: int, kinds: Sequence[str]) -> Iterator[Event]:
    ranges = excluded_ranges(list(log.read(0, until, kinds=CONTROL_KINDS)), until)
    for event in log.read(0, until, kinds=kinds):
        if not is_excluded(ranges, event.position):
            yield event


def item_places(items: ItemStore) -> dict[str, int]:
    """Ids of all items there ever were -> their place in the order of the log."""
    places: dict[str, int] = {}
    for _, name in sorted(items.names.copy().items()):
        places.setdefault(name, len(places))
    return places


def as_jsonl(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One JSON object per line; without a task it has no such key."""
    for record in records:
        kept = {
            name: value for name, value in record.items() if name != "task" or value is not None
        }
        yield json.dumps(kept) + "\n"


def as_csv(records: Iterator[dict[str, Any]], *, has_tasks: bool) -> Iterator[str]:
    """A header and one line per record; without tasks there is no column of them."""
    buffer = io.StringIO()
    columns = [name for name in COLUMNS if has_tasks or name != "task"]
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for record in records:
        yield _taken(buffer)
        writer.writerow(record)
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text
