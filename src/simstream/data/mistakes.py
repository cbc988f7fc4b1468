"""Why a line of triplets or pairs cannot be read, where that can be told."""

from __future__ import annotations

import json

from .records import ANSWER, TASK, UNDECIDED, Extras, RecordKind

_TYPE_NAMES = {int: "an integer", str: "a text"}


def json_mistake(line: bytes, kind: RecordKind, extras: Extras) -> str:
    """What an object that `parse_json_line` does not take lacks or has too much; "" for anything else."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return ""
    if not isinstance(record, dict):
        return ""
    # Of the sets of names, the one that it comes closest to.
    names = max(kind.names, key=lambda names: sum(name in record for name in names))
    for name in names:
        if name not in record:
            return f"no key {name!r}"
        if type(record[name]) is not int:
            return f"key {name!r} is not an integer"
    for name, wanted, kinds in (
        (ANSWER, extras.has_answer, (int,)),
        (TASK, extras.has_task, (str, int)),
    ):
        value = record.get(name) if kind.may_have_extras else None
        if value is None and (wanted or (name == ANSWER and names == UNDECIDED)):
            return f"no key {name!r}"
        if value is not None and not wanted:
            return f"key {name!r}, which the first record has not"
        if value is not None and type(value) not in kinds:
            return f"key {name!r} is not {' or '.join(_TYPE_NAMES[one] for one in kinds)}"
    return ""


def headless_mistake(line: bytes, separator: str | None) -> str:
    """Why a line of a text without a header may have more columns than three: a stream that goes on."""
    n_cells = len(line.split(None if separator is None else separator.encode()))
    if n_cells <= 3:
        return ""
    return f"{n_cells} columns without a header, which every file and stream with y or task begins with"


def unexplained(line: bytes) -> str:
    """Nothing, where nothing is known."""
    return ""
