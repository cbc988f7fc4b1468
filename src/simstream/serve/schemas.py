"""What requests and answers look like: every field has bounds, and nothing else is let in."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .admissions import Judgement, NewItem
from .events import SparseVector, Vector
from .feedback import from_clicks, from_thumbs

#: Numbers beyond this would leave float32 when they are multiplied.
LARGEST_NUMBER = 1e6

#: Positions and indices: whatever SQLite and int32 hold.
LARGEST_POSITION = 2**53
_LARGEST_INDEX = 2**31 - 1

_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/=]+)")

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Any text without control characters.",
        examples=["shoe-12"],
    ),
]
Number = Annotated[
    float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False, strict=True)
]
Position = Annotated[int, Field(ge=0, le=LARGEST_POSITION, strict=True)]
Task = Annotated[Name | None, Field(description="User or task; needs a learner of many tasks.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Sparse(_Strict):
    """A vector by the features that are not zero."""

    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=_LARGEST_INDEX, strict=True)]],
        Field(max_length=100_000, description="Ascending."),
    ]
    values: Annotated[list[Number], Field(max_length=100_000)]

    @model_validator(mode="after")
    def _fits(self) -> Sparse:
        if len(self.indices) != len(self.values):
            raise ValueError(
                f"expected as many values as indices ({len(self.indices)}), got {len(self.values)}"
            )
        if any(b <= a for a, b in zip(self.indices, self.indices[1:], strict=False)):
            raise ValueError("indices: expected ascending numbers, each once")
        return self


Dense = Annotated[list[Number], Field(min_length=1, max_length=100_000)]
VectorField = Dense | Sparse


def as_vector(given: list[float] | Sparse) -> Vector:
    """A vector as the library takes it."""
    if isinstance(given, Sparse):
        return SparseVector(np.array(given.indices, np.int32), np.array(given.values, np.float32))
    return np.array(given, np.float32)


class Content(_Strict):
    """A vector, and what people see."""

    vector: VectorField
    text: Annotated[str | None, Field(max_length=10_000)] = None
    image: Annotated[
        str | None,
        Field(
            max_length=1_500_000,
            pattern=r"^data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$",
            description="A picture as a data: address.",
        ),
    ] = None

    @field_validator("image")
    @classmethod
    def _is_picture(cls, value: str | None) -> str | None:
        if value is not None:
            decode_picture(value)
        return value

    def as_item(self, name: str) -> NewItem:
        """The item to be kept."""
        payload = {"text": self.text, "image": self.image}
        return NewItem(
            name, as_vector(self.vector), {k: v for k, v in payload.items() if v is not None}
        )


def decode_picture(address: str) -> tuple[str, bytes]:
    """Media type and bytes of a ``data:`` address.

    Examples
    --------
    >>> decode_picture("data:image/png;base64,iVBORw==")
    ('image/png', b'\\x89PNG')
    """
    match = _PICTURE.fullmatch(address)
    if match is None:
        raise ValueError("image: expected data:image/png;base64,... (or jpeg, gif, webp)")
    try:
        return f"image/{match[1]}", base64.b64decode(match[2], validate=True)
    except binascii.Error as error:
        raise ValueError(f"image: expected base64, got something else ({error})") from None


class Item(Content):
    """An item to be added."""

    id: Name


class Items(_Strict):
    """Items to be added: all of them, or none."""

    items: Annotated[list[Item], Field(min_length=1, max_length=10_000)]


class _ByItemOrVector(_Strict):
    item: Name | None = None
    vector: VectorField | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Any:
        if (self.item is None) == (self.vector is None):
            raise ValueError("expected an item or a vector, one of both")
        return self

    def anchor(self) -> str | Vector:
        """The id, or the vector."""
        if self.item is not None:
            return self.item
        assert self.vector is not None
        return as_vector(self.vector)


class Search(_ByItemOrVector):
    """What to look for: an item's neighbours, or those of a vector."""

    k: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 10
    task: Task = None
    baseline: Annotated[bool, Field(description="Also what the plain inner product finds.")] = False
    payload: Annotated[bool, Field(description="With text and picture of what is found.")] = False


class Feedback(_Strict):
    """A comparison, or what somebody did with a list.

    - ``anchor``, ``positive``, ``negative``: the anchor is more like the positive
    - ``query`` (an id or a vector), ``shown`` and ``clicked``: a click counts over skipped items above it
    - ``query``, ``shown``, ``up`` and ``down``: a thumb up counts over every thumb down
    """

    anchor: Name | None = None
    positive: Name | None = None
    negative: Name | None = None
    query: Name | VectorField | None = None
    shown: Annotated[list[Name] | None, Field(min_length=1, max_length=1000)] = None
    clicked: Annotated[list[Name] | None, Field(min_length=1, max_length=1000)] = None
    up: Annotated[list[Name] | None, Field(min_length=1, max_length=1000)] = None
    down: Annotated[list[Name] | None, Field(min_length=1, max_length=1000)] = None
    task: Task = None
    key: Annotated[Name | None, Field(description="Idempotency key of this judgement alone.")] = (
        None
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Feedback:
        given = {
            name
            for name in self.model_fields_set
            if name not in ("task", "key") and getattr(self, name) is not None
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
        if len(set(shown)) < len(shown):
            raise ValueError("shown: expected every item once")
        marked = [*(self.clicked or []), *(self.up or []), *(self.down or [])]
        if not set(marked) <= set(shown) and shown:
            raise ValueError("expected only items that were shown")
        if len(set(marked)) < len(marked):
            raise ValueError("expected every item to be clicked, or to get a thumb, at most once")
        return self

    def as_judgement(self) -> Judgement:
        """The comparisons that it says."""
        if self.anchor is not None and self.positive is not None and self.negative is not None:
            return Judgement(self.anchor, [(self.positive, self.negative)], self.task)
        assert self.query is not None
        anchor = self.query if isinstance(self.query, str) else as_vector(self.query)
        if self.clicked is not None:
            pairs = from_clicks(self.shown or [], self.clicked)
            return Judgement(anchor, pairs, self.task, "clicks")
        return Judgement(anchor, from_thumbs(self.up or [], self.down or []), self.task, "thumbs")


FeedbackBody = Feedback | Annotated[list[Feedback], Field(min_length=1, max_length=10_000)]


class Answer(_Strict):
    """The answer to a question: the candidate that is more like the anchor, or None to skip it."""

    question: Position
    winner: Annotated[Literal[0, 1] | None, Field(description="None skips the question.")]


class At(_Strict):
    """A position of the log."""

    position: Position


class MaybeAt(_Strict):
    """A position of the log, or None."""

    position: Position | None


class _Visible(BaseModel):
    repeated: Annotated[bool, Field(description="Whether it was done by an earlier request.")]
    visible: Annotated[
        bool,
        Field(
            description="Whether readers can see it now. It may be false without waiting, and is where "
            "ten seconds were not enough; it is durable all the same."
        ),
    ]


class Written(_Visible):
    """What a request led to: its first position in the log, and how many events."""

    position: int
    events: int


class FeedbackWritten(_Visible):
    """The positions of judgements in the log."""

    positions: list[int]


class AnswerWritten(Written):
    """With the accuracy that readers see now."""

    accuracy: dict[str, Any]


class RetractWritten(Written):
    """With the question that is asked again, if it was an answer that is taken back."""

    question: dict[str, Any] | None = None
