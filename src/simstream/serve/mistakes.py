"""What is wrong with a request, in the words of all errors: ``what: expected ..., got ...``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import schemas

#: Names that Pydantic gives to the members of a union; none of our fields looks like this.
_MEMBER = re.compile(r"[\[(-]|^[A-Z]")

#: Errors of a union member that was not meant: a value of another JSON type was sent.
_OTHER_TYPE = {"string_type", "list_type", "dict_type", "model_type", "model_attributes_type"}

#: Fields that are lists of ids, and what is often sent instead: one id.
_LISTS_OF_IDS = ("shown", "clicked", "up", "down")

#: What is expected instead of another type, by the name of Pydantic's error.
_TYPES = {
    "string_type": "text",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

#: The same for bounds of numbers and lengths, with the name of the bound in the error's context.
_BOUNDS = {
    "greater_than_equal": ("at least", "ge", ""),
    "greater_than": ("more than", "gt", ""),
    "less_than_equal": ("at most", "le", ""),
    "less_than": ("less than", "lt", ""),
    "too_short": ("at least", "min_length", " item"),
    "too_long": ("at most", "max_length", " item"),
    "string_too_short": ("at least", "min_length", " character"),
    "string_too_long": ("at most", "max_length", " character"),
}

#: What texts are expected by the patterns of fields.
_PATTERNS = {
    schemas.NAME: "text without control characters",
    schemas.PICTURE: "data:image/png;base64,... (or jpeg, gif, webp)",
}

#: Longest number that is sent back.
_LONGEST = 30


def refusal(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of Pydantic's errors that concerns the form that was meant.

    Examples
    --------
    >>> place = ("body", "vector")
    >>> refusal([
    ...     {"loc": (*place, "list[constrained-float]"), "type": "list_type", "input": {}},
    ...     {"loc": (*place, "Sparse", "indices", 0), "type": "int_type", "input": "1"},
    ... ])
    'vector.indices.0: expected an integer, got text'
    """
    meant = [error for error in errors if not _is_other_member(error)]
    error = (meant or errors)[0]
    if error["type"] == "json_invalid":
        return f"body: expected JSON, got an error at character {error['loc'][-1]}"
    place = [str(part) for part in error["loc"][1:] if not _is_member(error["loc"], part)]
    text = _text(error, place)
    # A check of several fields says itself which one is meant.
    field, colon, rest = text.partition(": expected")
    if colon:
        text = f"expected{rest}"
        place += [] if place[-1:] == [field] else [field]
    return f"{'.'.join(place) or 'body'}: {text}"


def _text(error: Mapping[str, Any], place: Sequence[str]) -> str:
    kind, given, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "missing":
        return "expected a value, got none" if place else "expected JSON, got nothing"
    if kind == "list_type" and place and place[-1] in _LISTS_OF_IDS:
        return f"expected a list of ids, got {_shown(given)}"
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}, got {_shown(given)}"
    if kind in _BOUNDS:
        than, name, unit = _BOUNDS[kind]
        got = str(len(given) if unit and given is not None else given)[:_LONGEST]
        unit += "s" if unit and context[name] != 1 else ""
        return f"expected {than} {context[name]}{unit}, got {got}"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {_shown(given)}"
    if kind == "string_pattern_mismatch":
        what = _PATTERNS.get(context["pattern"], f"text like {context['pattern']}")
        return f"expected {what}, got other text"
    return str(error["msg"]).removeprefix("Value error, ")


def _shown(value: Any) -> str:
    """A number as it is, of other values only what they are: they may be long, and contain anything."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or str(value)[:_LONGEST]


def _is_member(place: Sequence[Any], part: Any) -> bool:
    return place[0] == "body" and isinstance(part, str) and _MEMBER.search(part) is not None


def _is_other_member(error: Mapping[str, Any]) -> bool:
    return error["type"] in _OTHER_TYPE and _is_member(error["loc"], error["loc"][-1])
