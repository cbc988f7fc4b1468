"""Tables of a paper's file as typed records: a misspelt key or a wrong type is an error that names it."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec


class TypedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table whose keys are the fields of the class."""


Kind = TypeVar("Kind", bound=TypedTable)

_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_WORDS = (
    (re.compile(r"Object missing required field `(.+)`"), r"missing key '\1'"),
    (re.compile(r"Expected `(.+)`, got `(.+)`"), r"expected \1, got \2"),
)


def read_table(given: dict[str, Any], kind: type[Kind], where: str) -> Kind:
    """The record of a table; `where` begins the message if the table does not fit.

    Examples
    --------
    >>> class Walk(TypedTable, frozen=True):
    ...     steps: int
    ...     pace: Literal["slow", "fast"] = "slow"
    >>> read_table({"steps": 3}, Walk, "here")
    Walk(steps=3, pace='slow')
    >>> read_table({"step": 3}, Walk, "here")
    Traceback (most recent call last):
    ValueError: here: unknown key 'step'; did you mean 'steps'?
    >>> read_table({"steps": "many"}, Walk, "here")
    Traceback (most recent call last):
    ValueError: here: steps: expected int, got str
    >>> read_table({"steps": 3, "pace": "quick"}, Walk, "here")
    Traceback (most recent call last):
    ValueError: here: pace: expected one of slow, fast, got 'quick'
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        words, _, path = str(error).partition(" - at `$")
        key = path.strip("`").lstrip(".")
        raise ValueError(
            f"{where}: " + (f"{key}: " if key else "") + _in_words(words, kind, key)
        ) from None


def _in_words(words: str, kind: type[TypedTable], key: str) -> str:
    """msgspec's message in the words of this project."""
    if found := _UNKNOWN.match(words):
        near = difflib.get_close_matches(found[1], kind.__struct_fields__, 1) if not key else []
        return f"unknown key {found[1]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    expected = get_type_hints(kind).get(key)
    if words.startswith("Invalid enum value ") and get_origin(expected) is Literal:
        return f"expected one of {', '.join(get_args(expected))}, got {words.split()[-1]}"
    for pattern, better in _WORDS:
        words = pattern.sub(better, words)
    return words
