"""Checks of what callers want to happen, and the events that it becomes.

Each function returns an `Admission`: the writer calls it with a draft, in the order of the log, so that
what is checked is still true when the event is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import BadRequestError, ConflictError, NotFoundError
from .events import (
    ANSWER,
    CONTROL_KINDS,
    DELETE,
    FEEDBACK,
    ITEM,
    LEARNER_KINDS,
    PIN,
    QUESTION,
    RETRACT,
    ROLLBACK,
    Event,
    Vector,
)
from .exclusions import excluded_ranges, is_excluded
from .ledger import Draft
from .writer import Admission

#: Comparisons that one list of shown items may become.
MOST_TRIPLETS = 2500


class NewItem(NamedTuple):
    """An item to be added."""

    name: str
    vector: Vector
    #: Text or picture, as JSON values.
    payload: dict[str, Any]


class Judgement(NamedTuple):
    """What somebody thinks: the anchor, an item or a vector, is more like the first of each pair."""

    anchor: str | Vector
    pairs: Sequence[tuple[str, str]]
    task: str | None = None
    #: How it came about: "triplet", "clicks" or "thumbs".
    source: str = "triplet"


class Question(NamedTuple):
    """Three items: which of the two candidates is more like the anchor?"""

    anchor: str
    candidates: tuple[str, str]
    task: str | None
    #: Whether it was drawn at random, to measure.
    is_random: bool
    #: Triplets that were looked at to find it.
    considered: int


def add_items(items: Sequence[NewItem]) -> Admission:
    """Add items, none of which is there."""

    def admit(draft: Draft) -> None:
        for item in items:
            draft.new_item(item.name)
            _keep_item(draft, item)

    return admit


def add_missing(items: Sequence[NewItem]) -> Admission:
    """Add those items whose ids are not there; leave the others as they are."""

    def admit(draft: Draft) -> None:
        for item in items:
            if draft.find(item.name) is None:
                _keep_item(draft, item)

    return admit


def put_item(item: NewItem) -> Admission:
    """Add or replace an item."""
    return lambda draft: _keep_item(draft, item)


def _keep_item(draft: Draft, item: NewItem) -> None:
    draft.check_vector(item.vector, is_item=True)
    draft.add(ITEM, subject=item.name, vector=item.vector, body=item.payload)


def delete_item(name: str) -> Admission:
    """Take an item away. What was learnt with it stays."""

    def admit(draft: Draft) -> None:
        draft.item(name)
        draft.add(DELETE, subject=name)

    return admit


def judge(judgement: Judgement, *, has_tasks: bool) -> Admission:
    """Keep comparisons."""

    def admit(draft: Draft) -> None:
        _check_task(judgement.task, has_tasks)
        anchor, pairs = judgement.anchor, judgement.pairs
        vector = None
        names: dict[str, Any] = {}
        if isinstance(anchor, str):
            start = draft.item(anchor)
            names["anchor"] = anchor
        else:
            draft.check_vector(anchor)
            start, vector = 0, anchor
        if len(pairs) > MOST_TRIPLETS:
            raise BadRequestError(
                f"feedback: expected at most {MOST_TRIPLETS} comparisons of one list, got {len(pairs)}"
            )
        triplets = [(start, draft.item(better), draft.item(worse)) for better, worse in pairs]
        for triplet, (better, worse) in zip(triplets, pairs, strict=True):
            if better == worse:
                raise BadRequestError(
                    f"feedback: expected two different items, got {better!r} twice"
                )
            if triplet[0] in triplet[1:]:
                raise BadRequestError(f"feedback: {anchor!r} is compared with itself")
        body = names | {
            "pairs": [list(pair) for pair in pairs],
            "triplets": triplets,
            "task": judgement.task,
            "source": judgement.source,
        }
        draft.add(FEEDBACK, vector=vector, body=body)

    return admit


def ask(question: Question, *, has_tasks: bool) -> Admission:
    """Keep that a question is shown."""

    def admit(draft: Draft) -> None:
        _check_task(question.task, has_tasks)
        names = (question.anchor, *question.candidates)
        body = {
            "names": names,
            "items": [draft.item(name) for name in names],
            "task": question.task,
            "random": question.is_random,
            "considered": question.considered,
        }
        draft.add(QUESTION, body=body)

    return admit


def answer(question: int, winner: int | None) -> Admission:
    """Keep the answer to a question: 0 or 1 for a candidate, None where it was skipped."""

    def admit(draft: Draft) -> None:
        asked = _event(draft, question, (QUESTION,), "question")
        draft.add(ANSWER, body=asked.body | {"question": question, "winner": winner})

    return admit


def retract(position: int) -> Admission:
    """Take feedback or an answer back; the question of an answer is asked again."""

    def admit(draft: Draft) -> None:
        event = _event(draft, position, (FEEDBACK, ANSWER), "feedback or answer")
        draft.add(RETRACT, body={"position": position})
        if event.kind == ANSWER and all(draft.find(name) for name in event.body["names"]):
            body = {
                key: value for key, value in event.body.items() if key not in ("question", "winner")
            }
            draft.add(QUESTION, body=body | {"considered": 0})

    return admit


def roll_back(position: int) -> Admission:
    """Go back to what was learnt after a position. Items stay as they are."""
    return _move(ROLLBACK, position)


def pin(position: int | None) -> Admission:
    """Serve what was learnt after a position, whatever is learnt later; None serves the newest again."""
    return _move(PIN, position)


def _move(kind: str, position: int | None) -> Admission:
    def admit(draft: Draft) -> None:
        if position is not None and not 0 <= position < draft.next_position:
            raise NotFoundError(
                f"position: expected one from 0 to {draft.next_position - 1}, got {position}"
            )
        draft.add(kind, body={"position": position})

    return admit


def _check_task(task: str | None, has_tasks: bool) -> None:
    if task is not None and not has_tasks:
        raise BadRequestError(
            "task: this service learns one similarity for all; start it with --algorithm omtrsl"
        )


def _event(draft: Draft, position: int, kinds: tuple[str, ...], what: str) -> Event:
    """An event of some kinds that counts."""
    event = draft.log.get(position)
    if event is None or event.kind not in kinds:
        raise NotFoundError(f"position: there is no {what} at {position}")
    assert event.kind in LEARNER_KINDS
    controls = list(draft.log.read(0, kinds=CONTROL_KINDS))
    if is_excluded(excluded_ranges(controls, draft.next_position - 1), position):
        raise ConflictError(f"position: the {what} at {position} was taken back already")
    return event
