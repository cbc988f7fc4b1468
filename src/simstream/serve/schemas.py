"""The shapes of requests and answers: every field has bounds, and unknown fields are refused."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise, product
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
    model_validator,
)

from ..data.clicks import pairs_from_clicks
from ..ids import repeated_ids
from .events import SparseVector, Vector
from .writer import MOST_TRIPLETS, Judgement, NewItem

#: Products of larger numbers could overflow float32.
LARGEST_NUMBER = 1e6

#: Positions are exact in JSON, indices fit into int32.
LARGEST_POSITION = 2**53
_LARGEST_INDEX = 2**31 - 1

#: Patterns of texts.
NAME = r"^[^\x00-\x1f\x7f]+$"
PICTURE = r"^data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$"

_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/=]+)")

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=NAME,
        description="Any text without control characters.",
        examples=["shoe-12"],
    ),
]
Number = Annotated[
    float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False, strict=True)
]


def _whole(value: Any) -> Any:
    """JSON has one kind of numbers: 2.0 is the integer 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(values: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """The same for a list; it may be long, and most have no such number."""
    try:
        return check(values)
    except ValidationError:
        return check([_whole(value) for value in values] if isinstance(values, list) else values)


Position = Annotated[int, Field(ge=0, le=LARGEST_POSITION, strict=True), BeforeValidator(_whole)]
Flag = Annotated[bool, Field(strict=True)]
Task = Annotated[Name | None, Field(description="User or task; needs a multi-task learner.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields(cls, given: Any) -> Any:
        """Pydantic would refuse the others too, but without a word about those that there are."""
        known = cls.model_fields
        if isinstance(given, dict) and not given.keys() <= known.keys():
            name = next(name for name in given if name not in known)
            near = get_close_matches(name[:50], known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"expected only the fields {', '.join(known)}, got {name[:50]!r}{meant}"
            )
        return given


class Sparse(_Strict):
    """A vector by its nonzero features."""

    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=_LARGEST_INDEX, strict=True)]],
        Field(
            max_length=100_000,
            description="Ascending.",
            json_schema_extra={"uniqueItems": True},
        ),
        WrapValidator(_all_whole),
    ]
    values: Annotated[list[Number], Field(max_length=100_000)]

    @model_validator(mode="after")
    def _fits(self) -> Sparse:
        if len(self.indices) != len(self.values):
            raise ValueError(
                f"expected as many values as indices ({len(self.indices)}), got {len(self.values)}"
            )
        for before, after in pairwise(self.indices):
            if after <= before:
                raise ValueError(
                    f"indices: expected ascending numbers without repeats, got {after} after {before}"
                )
        return self


Dense = Annotated[list[Number], Field(min_length=1, max_length=100_000)]
VectorField = Dense | Sparse


def as_vector(given: list[float] | Sparse) -> Vector:
    """A vector in the form that the library uses."""
    if isinstance(given, Sparse):
        return SparseVector(np.array(given.indices, np.int32), np.array(given.values, np.float32))
    return np.array(given, np.float32)


class Content(_Strict):
    """A vector, and what people see of the item."""

    vector: VectorField
    text: Annotated[str | None, Field(max_length=10_000)] = None
    image: Annotated[
        str | None,
        Field(
            max_length=1_500_000,
            pattern=PICTURE,
            description="A picture as a data: URL.",
        ),
    ] = None

    @field_validator("image")
    @classmethod
    def _is_picture(cls, value: str | None) -> str | None:
        if value is not None:
            decode_picture(value)
        return value

    def as_item(self, name: str) -> NewItem:
        """The item to be added under a name."""
        payload = {"text": self.text, "image": self.image}
        return NewItem(
            name, as_vector(self.vector), {k: v for k, v in payload.items() if v is not None}
        )


def decode_picture(address: str) -> tuple[str, bytes]:
    """Media type and bytes of a picture in a ``data:`` URL.

    Examples
    --------
    >>> decode_picture("data:image/png;base64,iVBORw==")
    ('image/png', b'\\x89PNG')
    """
    match = _PICTURE.fullmatch(address)
    if match is None:
        raise ValueError(
            "image: expected data:image/png;base64,... (or jpeg, gif, webp), got other text"
        )
    try:
        return f"image/{match[1]}", base64.b64decode(match[2], validate=True)
    except binascii.Error as error:
        raise ValueError(f"image: expected base64, got an error: {error}") from None


class Item(Content):
    """An item to be added."""

    id: Name


class Items(_Strict):
    """Items to be added: all or none."""

    items: Annotated[list[Item], Field(min_length=1, max_length=10_000)]


def _exactly(
    *alternatives: Mapping[str, str | list[str]], examples: Sequence[Any]
) -> dict[str, Any]:
    """A JSON schema: the fields of one of the alternatives, with these types, and none of the others."""
    names = sorted({name for fields in alternatives for name in fields})
    return {
        "examples": examples,
        "oneOf": [
            {
                "required": [name for name, kind in fields.items() if "null" not in kind],
                "properties": {name: {"type": fields.get(name, "null")} for name in names},
            }
            for fields in alternatives
        ],
    }


#: JSON types of a vector.
_VECTOR = ["array", "object"]


class Search(_Strict):
    """Find the nearest neighbours of an item or a vector."""

    model_config = ConfigDict(
        json_schema_extra=_exactly(
            {"item": "string"}, {"vector": _VECTOR}, examples=[{"item": "shoe-12", "k": 5}]
        )
    )

    item: Name | None = None
    vector: VectorField | None = None
    k: Annotated[int, Field(ge=1, le=1_000_000, strict=True), BeforeValidator(_whole)] = 10
    task: Task = None
    baseline: Annotated[
        Flag, Field(description="Also return the results of the plain inner product.")
    ] = False
    payload: Annotated[Flag, Field(description="Include text and picture of the results.")] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Search:
        if (self.item is None) == (self.vector is None):
            got = "neither" if self.item is None else "both"
            raise ValueError(f"expected an item or a vector, got {got}")
        return self

    def anchor(self) -> str | Vector:
        """The id, or the vector."""
        if self.item is not None:
            return self.item
        assert self.vector is not None
        return as_vector(self.vector)


_Names = Annotated[
    list[Name], Field(min_length=1, max_length=1000, json_schema_extra={"uniqueItems": True})
]


class Feedback(_Strict):
    """A comparison, or clicks or thumbs on a list of results.

    - ``anchor``, ``positive``, ``negative``: the anchor is more similar to the positive
    - ``query`` (an id or a vector), ``shown`` and ``clicked``: a clicked item beats the skipped items above
    it
    - ``query``, ``shown``, ``up`` and ``down``: every thumb up beats every thumb down
    """

    model_config = ConfigDict(
        json_schema_extra=_exactly(
            {"anchor": "string", "positive": "string", "negative": "string"},
            {
                "query": ["string", *_VECTOR],
                "shown": "array",
                "clicked": "array",
                "randomised": ["integer", "null"],
            },
            {"query": ["string", *_VECTOR], "shown": "array", "up": "array", "down": "array"},
            examples=[
                {"anchor": "shoe-12", "positive": "shoe-7", "negative": "shoe-3"},
                {"query": "shoe-12", "shown": ["shoe-3", "shoe-7"], "clicked": ["shoe-7"]},
            ],
        )
    )

    anchor: Name | None = None
    positive: Name | None = None
    negative: Name | None = None
    query: Name | VectorField | None = None
    shown: _Names | None = None
    clicked: _Names | None = None
    up: _Names | None = None
    down: _Names | None = None
    randomised: Annotated[
        int | None,
        Field(
            ge=1,
            le=999,
            strict=True,
            description="With clicked: what the search answered under this name.",
        ),
        BeforeValidator(_whole),
    ] = None
    task: Task = None
    key: Annotated[Name | None, Field(description="Idempotency key of this judgement alone.")] = (
        None
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Feedback:
        given = {
            name
            for name in self.model_fields_set
            if name not in ("task", "key", "randomised") and getattr(self, name) is not None
        }
        kinds = (
            {"anchor", "positive", "negative"},
            {"query", "shown", "clicked"},
            {"query", "shown", "up", "down"},
        )
        if given not in kinds:
            raise ValueError(
                "expected anchor, positive and negative; or query, shown and clicked; or query, shown, "
                f"up and down; got {', '.join(sorted(given)) or 'nothing'}"
            )
        shown = self.shown or []
        if twice := repeated_ids(shown):
            raise ValueError(f"shown: expected every item at most once, got {twice} twice")
        marks = {"clicked": self.clicked or [], "up": self.up or [], "down": self.down or []}
        for name, items in marks.items():
            strange = set(items).difference(shown)
            if strange:
                raise ValueError(f"{name}: expected only items from shown, got {min(strange)!r}")
        if twice := repeated_ids([item for items in marks.values() for item in items]):
            raise ValueError(f"expected at most one click or thumb per item, got two for {twice}")
        if self.randomised is not None:
            if self.clicked is None:
                raise ValueError(
                    "randomised: expected it only together with clicked, got it without"
                )
            if self.randomised >= len(shown):
                raise ValueError(
                    f"randomised: expected less than the {len(shown)} items shown, got {self.randomised}"
                )
        if self.n_comparisons() > MOST_TRIPLETS:
            raise ValueError(
                f"expected at most {MOST_TRIPLETS} comparisons from one list, got {self.n_comparisons()}"
            )
        return self

    def n_comparisons(self) -> int:
        """How many comparisons follow from it, without making them."""
        if self.clicked is None:
            return 1 if self.up is None else len(self.up) * len(self.down or [])
        chosen, n_skipped, count = set(self.clicked), 0, 0
        for item in self.shown or []:
            if item in chosen:
                count += n_skipped
            else:
                n_skipped += 1
        return count

    def n_built(self) -> int:
        """How many pairs `as_judgement` makes: those of clicks that are only measured, too."""
        if self.clicked is None:
            return self.n_comparisons()
        n_other = len(self.shown or []) - len(self.clicked)
        return self.n_comparisons() + min(MOST_TRIPLETS, len(self.clicked) * n_other)

    @model_serializer(mode="wrap")
    def _as_before(self, handler: Any) -> Any:
        """Without a field that is not used: digests of the requests in a log were made without it."""
        values = handler(self)
        if self.randomised is None:
            del values["randomised"]
        return values

    def as_judgement(self) -> Judgement:
        """The comparisons it stands for."""
        if self.anchor is not None and self.positive is not None and self.negative is not None:
            return Judgement(self.anchor, [(self.positive, self.negative)], self.task)
        assert self.query is not None
        anchor = self.query if isinstance(self.query, str) else as_vector(self.query)
        if self.clicked is not None:
            pairs = pairs_from_clicks(self.shown or [], self.clicked)
            # Pairs that correct what was shown do not tell how good it was: clicks on top are part of that.
            compared = pairs_from_clicks(
                self.shown or [], self.clicked, "no-click", most=MOST_TRIPLETS
            )
            rank = {item: place for place, item in enumerate(self.shown or [], 1)}
            return Judgement(
                anchor,
                pairs,
                self.task,
                "clicks",
                compared,
                [rank[better] for better, _ in compared],
                self.randomised,
                sorted(rank[item] for item in self.clicked),
            )
        pairs = list(product(self.up or [], self.down or []))
        return Judgement(anchor, pairs, self.task, "thumbs")


FeedbackBody = Feedback | Annotated[list[Feedback], Field(min_length=1, max_length=10_000)]


class Answer(_Strict):
    """The answer to a question: the candidate more similar to the anchor, or null to skip."""

    question: Position
    winner: Annotated[
        Literal[0, 1] | None,
        Field(description="null skips the question."),
        BeforeValidator(_whole),
    ]


class At(_Strict):
    """A position in the log."""

    position: Position


class MaybeAt(_Strict):
    """A position in the log, or null."""

    position: Position | None


class _Visible(BaseModel):
    repeated: Annotated[bool, Field(description="Whether an earlier request did it.")]
    visible: Annotated[
        bool,
        Field(
            description="Whether readers can see it now. False is possible without `wait`, or after "
            "waiting ten seconds in vain; the events are durable either way."
        ),
    ]


class Written(_Visible):
    """The first position of the new events in the log, and their number."""

    position: int
    events: int


class FeedbackWritten(_Visible):
    """Positions of the judgements in the log."""

    positions: list[int]


class AnswerWritten(Written):
    """With the accuracy that readers see now."""

    accuracy: dict[str, Any]


class RetractWritten(Written):
    """With the question that is asked again, if an answer was undone."""

    question: dict[str, Any] | None = None


class Shown(BaseModel):
    """An item as people see it."""

    id: Name
    text: str | None = None
    image: str | None = None


class Listed(BaseModel):
    """A page of the items, and how many there are."""

    total: int
    items: list[Shown]


class Stored(Shown):
    """An item with its vector, and the position of the event that added it."""

    position: int
    vector: list[float] | Sparse


class Hit(Shown):
    """An item that was found."""

    score: float


class SearchAnswer(BaseModel):
    """What a search found, best first, and the position of the model that found it."""

    position: int
    results: list[Hit]
    baseline: list[Hit] | None = None
    randomised: Annotated[
        int | None,
        Field(description="The first of two ranks in random order; send it back with the clicks."),
    ] = None


class Asked(BaseModel):
    """A question: which of the candidates is more similar to the anchor?"""

    question: int
    anchor: Shown
    candidates: Annotated[list[Shown], Field(min_length=2, max_length=2)]
    task: str | None


class Versions(BaseModel):
    """What is served, and the positions with a snapshot."""

    position: int
    served: int
    pinned: int | None
    snapshots: list[int]


class Health(BaseModel):
    """How the service is."""

    status: str
    version: str | None = None
    position: int | None = None
    lag: int | None = None


class Mounted(BaseModel):
    """One of several services in a process."""

    name: str
    path: str
    items: int
    position: int
    status: Annotated[str, Field(description="ready, or what is wrong.")]


class Collections(BaseModel):
    """All services of a process."""

    collections: list[Mounted]


class Problem(BaseModel):
    """Why a request was refused."""

    error: Annotated[str, Field(examples=["k: expected at most 1000, got 5000"])]
    request_id: str
