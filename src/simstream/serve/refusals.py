"""What is wrong with a request, in the words of its sender and not of the library that checked it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Names that Pydantic gives to the members of a union; none of our fields looks like this.
_MEMBER = re.compile(r"[\[(-]|^[A-Z]")

#: Errors of a union's member that was not meant at all: something of another JSON type was sent.
_OTHER_TYPE = {"string_type", "list_type", "dict_type", "model_type", "model_attributes_type"}


def refusal(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first error of the form that was meant, as ``where: what``.

    Examples
    --------
    >>> place = ("body", "vector")
    >>> refusal([
    ...     {"loc": (*place, "list[constrained-float]"), "type": "list_type", "msg": "not a list"},
    ...     {"loc": (*place, "Sparse", "indices", 0), "type": "int_type", "msg": "not an integer"},
    ... ])
    'vector.indices.0: not an integer'
    """
    meant = [error for error in errors if not _is_other_member(error)]
    error = (meant or errors)[0]
    if error["type"] == "json_invalid":
        return f"body: expected JSON, got an error at character {error['loc'][-1]}"
    *before, last = error["loc"]
    is_member = error["type"] != "extra_forbidden" and _is_member(error["loc"], last)
    parts = [part for part in before if not _is_member(error["loc"], part)]
    parts += [] if is_member else [last]
    place = ".".join(str(part) for part in parts if part != "body")
    return f"{place or 'body'}: {error['msg'].removeprefix('Value error, ')}"


def _is_member(place: Sequence[Any], part: Any) -> bool:
    return place[0] == "body" and isinstance(part, str) and _MEMBER.search(part) is not None


def _is_other_member(error: Mapping[str, Any]) -> bool:
    return error["type"] in _OTHER_TYPE and _is_member(error["loc"], error["loc"][-1])
