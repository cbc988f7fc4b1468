"""Digits in eight colours, somebody who looks at shapes only, and how much the ranking has improved.

By the plain inner product, neighbours of a digit have its colour rather than its shape. Whoever answers says
that the shape counts: most of what is near a digit then has its number, in any colour.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .. import Bilinear
from ..asking import Asking
from ..metrics import precision_at_k
from . import admissions
from .errors import ServiceError
from .importing import import_items
from .pictures import png
from .service import Service, digest_of
from .settings import Learning
from .version import Model
from .writer import Part

#: How the demo learns and asks unless something else is said: one can see a change after thirty answers.
LEARNING = Learning("oasis", {"C": 0.3})
ASKING = Asking(delta=0.1, near=24)

ABOUT = (
    "Digits in eight colours. At first the colour counts as much as the shape; "
    "answers teach that the shape counts, whatever the colour."
)

#: Neighbours of each digit that the measure looks at.
NEIGHBOURS = 10

#: Digits that are served, and as many others that only the measure knows. With many more, each would have
#: ten neighbours of its own number *and* colour, and there would be nothing to learn for the first ten.
_SERVED = 600

#: Share of the colour in a digit's length: same colour then outweighs same number.
_COLOUR_SHARE = 0.4

#: How much more alike one of two shapes must be to win where both or neither have the anchor's number.
_CLEAR = 0.25

#: What can be told apart, also by most people who do not see all colours.
_INKS = {
    "black": (40, 40, 40),
    "blue": (0, 90, 200),
    "green": (0, 140, 80),
    "orange": (230, 130, 0),
    "pink": (225, 90, 170),
    "purple": (110, 50, 160),
    "red": (200, 30, 40),
    "teal": (0, 165, 190),
}


class Digits(NamedTuple):
    """Handwritten digits, each in some colour."""

    names: np.ndarray
    #: What they are, in words: "blue 3".
    texts: np.ndarray
    #: Numbers from 0 to 9.
    numbers: np.ndarray
    #: Shape, centred and of length one.
    shapes: np.ndarray
    #: Shape and colour together, of length one: what is served.
    rows: np.ndarray
    #: 8 x 8, from 0 (paper) to 1 (ink).
    pixels: np.ndarray
    #: Red, green and blue of the ink, from 0 to 255.
    inks: np.ndarray


@cache
def digits() -> tuple[Digits, Digits]:
    """Digits to be served, and digits that are kept back to measure.

    They are scikit-learn's. Shapes are centred, by the mean of those served: what all digits have in common
    says nothing about any of them, and the first answers would mostly teach the model about that.

    Examples
    --------
    >>> served, kept_back = digits()
    >>> len(served.names), len(kept_back.names), served.rows.shape
    (600, 600, (600, 72))
    >>> served.texts[:3].tolist()
    ['red 0', 'purple 1', 'pink 2']
    """
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import normalize

    pixels, numbers = (part[: 2 * _SERVED] for part in load_digits(return_X_y=True))
    shapes = normalize(pixels - pixels[:_SERVED].mean(axis=0))
    ink = np.random.default_rng(0).integers(len(_INKS), size=len(pixels))
    colours = normalize(np.eye(len(_INKS)) - 1 / len(_INKS))[ink]
    parts = (np.sqrt(1 - _COLOUR_SHARE) * shapes, np.sqrt(_COLOUR_SHARE) * colours)
    inks = list(_INKS)
    everything = Digits(
        np.array([f"digit-{row:04d}" for row in range(len(pixels))]),
        np.array([f"{inks[i]} {number}" for i, number in zip(ink, numbers, strict=True)]),
        numbers,
        shapes,
        np.hstack(parts).astype(np.float32),
        pixels.reshape(-1, 8, 8) / 16,
        np.array([_INKS[name] for name in inks])[ink],
    )
    return (
        Digits(*(part[:_SERVED] for part in everything)),
        Digits(*(part[_SERVED:] for part in everything)),
    )


def add_digits(service: Service) -> int:
    """Add the digits unless they are there; return how many were added."""
    served, _ = digits()
    payloads = [
        {
            "text": text,
            "image": "data:image/png;base64," + base64.b64encode(png(pixels, ink)).decode(),
        }
        for text, pixels, ink in zip(served.texts.tolist(), served.pixels, served.inks, strict=True)
    ]
    digest = digest_of([served.texts.tolist(), served.rows.shape])
    return import_items(service, served.names.tolist(), served.rows, payloads, digest).added


class Measure:
    """How many of a digit's nearest neighbours have its number, among the digits that nobody is asked about.

    Examples
    --------
    >>> from simstream.serve.version import model_of
    >>> measure = Measure()
    >>> told = measure(model_of(0, None, False))
    >>> told["learnt"] == told["baseline"]
    True
    >>> only_shape = Bilinear(np.diag([1.0] * 64 + [0.0] * 8))
    >>> measure(model_of(1, only_shape, False))["learnt"] > told["baseline"] + 0.3
    True
    """

    def __init__(self) -> None:
        _, kept_back = digits()
        self._data = kept_back.rows, kept_back.numbers
        self._baseline = self._precision(None)
        #: Position of the model that was measured last, and its precision.
        self._last = (-1, self._baseline)

    def __call__(self, model: Model) -> dict[str, Any]:
        """The measure of what is served, and of the inner product, as JSON values."""
        position, precision = self._last
        if position != model.position:
            precision = self._precision(model.common)
            self._last = (model.position, precision)
        return {
            "about": ABOUT,
            "neighbours": NEIGHBOURS,
            "items": len(self._data[1]),
            "learnt": precision,
            "baseline": self._baseline,
        }

    def _precision(self, matrix: Any) -> float:
        rows, numbers = self._data
        if matrix is None:
            matrix = np.eye(rows.shape[1], dtype=np.float32)
        return float(precision_at_k(Bilinear(matrix), rows, numbers, k=NEIGHBOURS))


class Annotator:
    """Looks at shapes only: the candidate of the anchor's number, else the one that is clearly more alike.

    Where both or neither is of that number and their shapes are about as much like the anchor's, it skips.
    """

    def __init__(self) -> None:
        served, _ = digits()
        self._row = {name: row for row, name in enumerate(served.names.tolist())}
        self._numbers, self._shapes = served.numbers, served.shapes

    def winner(self, anchor: str, candidates: tuple[str, str]) -> int | None:
        """0 or 1, or None to skip.

        Examples
        --------
        >>> Annotator().winner("digit-0000", ("digit-0001", "digit-0010"))  # 0: 1 or 0?
        1
        >>> Annotator().winner("digit-0000", ("digit-0006", "digit-0001"))  # 0: 6 or 1?
        0
        """
        row, *pair = (self._row[name] for name in (anchor, *candidates))
        alike = self._numbers[pair] == self._numbers[row]
        if alike[0] != alike[1]:
            return int(alike[1])
        first, second = self._shapes[pair] @ self._shapes[row]
        return None if abs(first - second) < _CLEAR else int(second > first)


def start_annotator(
    service: Service, measure: Measure, tell: Callable[[str], None], per_second: float = 10.0
) -> Callable[[], None]:
    """Ask and answer in the background, and tell now and then how it goes; return how to stop it."""
    annotator, stop = Annotator(), threading.Event()

    def work() -> None:
        count = 0
        while not stop.wait(1 / per_second):
            try:
                answer_one(service, annotator)
            except ServiceError as error:
                if service.writer.is_closed:
                    return
                tell(f"annotator: {error}")
                stop.wait(1)
                continue
            count += 1
            if count in (10, 30) or count % 100 == 0:
                tell(progress(service, measure))

    threading.Thread(target=work, name="annotator", daemon=True).start()
    return stop.set


def progress(service: Service, measure: Measure) -> str:
    """Where learning stands, in a line."""
    version = service.version
    tally, told = version.tally, measure(version.model)
    return (
        f"{tally.answers} questions answered, {tally.skips} skipped: {told['learnt']:.0%} of the first "
        f"{NEIGHBOURS} neighbours have the same number ({told['baseline']:.0%} by the inner product), "
        f"among {told['items']} digits never asked about"
    )


def answer_one(service: Service, annotator: Annotator) -> None:
    """Ask one question and answer it."""
    (asked,) = service.submit([Part(service.question(None))]).result()
    event = service.log.get(asked.first)
    assert event is not None
    anchor, first, second = event.body["names"]
    winner = annotator.winner(anchor, (first, second))
    part = Part(admissions.answer(asked.first, winner), f"answer:{asked.first}", digest_of(winner))
    (receipt,) = service.submit([part]).result()
    service.wait_for(receipt)
