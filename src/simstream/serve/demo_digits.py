"""The demo on digits in eight colours: a simulated user who looks at shapes only, and a measure.

By the plain inner product, the neighbours of a digit share its colour rather than its shape. Answers teach
that the shape counts: then most neighbours show the same digit, in any colour.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .. import Bilinear
from ..asking import Asking
from ..metrics import precision_at_k
from .engine import Model
from .import_export import import_items
from .service import Service, digest_of
from .state import Learning
from .writer import Ledger, Write

#: How the demo learns and asks by default: thirty answers make a visible difference.
LEARNING = Learning("oasis", {"C": 0.3})
ASKING = Asking(delta=0.1, near=24)

ABOUT = (
    "Digits in eight colours. At first the colour counts as much as the shape; "
    "answers teach that only the shape counts."
)

#: Neighbours of each digit that the measure considers.
NEIGHBOURS = 10

#: Digits that are served, and as many others held out for the measure. With many more, every digit would have
#: ten neighbours of its own shape *and* colour, and there would be nothing to learn for the top ten.
_SERVED = 600

#: Share of the colour in a digit's squared length: the same colour outweighs the same digit.
_COLOUR_SHARE = 0.4

#: How much more similar one of two shapes must be to win if both or neither show the anchor's digit.
_CLEAR = 0.25

#: Easy to tell apart, also for most people with impaired colour vision.
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
    """Handwritten digits, each in one colour."""

    names: np.ndarray
    #: Descriptions such as "blue 3".
    texts: np.ndarray
    #: The digits, from 0 to 9.
    numbers: np.ndarray
    #: Shape, centred and of length one.
    shapes: np.ndarray
    #: Shape and colour together, of length one: the served vectors.
    rows: np.ndarray
    #: 8 x 8, from 0 (paper) to 1 (ink).
    pixels: np.ndarray
    #: Red, green and blue of the ink, from 0 to 255.
    inks: np.ndarray


@cache
def digits() -> tuple[Digits, Digits]:
    """Digits to serve, and held-out digits for the measure; both from scikit-learn.

    Shapes are centred by the mean of the served ones: what all digits have in common distinguishes none of
    them, and the first answers would mostly teach the model about that part.

    Examples
    --------
    >>> served, held_out = digits()
    >>> len(served.names), len(held_out.names), served.rows.shape
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


def opening() -> tuple[str, str, str]:
    """The first question: a digit, another one of its colour, and the same one in another colour.

    Examples
    --------
    >>> served, _ = digits()
    >>> text_of = dict(zip(served.names.tolist(), served.texts.tolist()))
    >>> anchor, other, same = (text_of[name].split() for name in opening())
    >>> anchor[0] == other[0], anchor[1] == other[1], anchor[0] == same[0], anchor[1] == same[1]
    (True, False, False, True)
    """
    served, _ = digits()
    has_shape = served.numbers == served.numbers[0]
    has_colour = (served.inks == served.inks[0]).all(axis=1)
    other = int(np.argmax(has_colour & ~has_shape))
    same = int(np.argmax(has_shape & ~has_colour))
    return str(served.names[0]), str(served.names[other]), str(served.names[same])


def add_digits(service: Service) -> int:
    """Add the digits unless they are there already; return how many were added."""
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
    """Share of a digit's nearest neighbours that show the same digit, among held-out digits.

    Examples
    --------
    >>> measure = Measure()
    >>> told = measure(Model(0))
    >>> told["learnt"] == told["baseline"]
    True
    >>> only_shape = np.diag([1.0] * 64 + [0.0] * 8)
    >>> measure(Model(1, Bilinear(only_shape)))["learnt"] > told["baseline"] + 0.3
    True
    """

    def __init__(self) -> None:
        _, held_out = digits()
        self._data = held_out.rows, held_out.numbers
        self._baseline = self._precision(None)
        #: Position and trust of the last measured model; precision of what was learnt, and of what is served.
        self._last = (-1, 0.0, self._baseline, self._baseline)

    def __call__(self, model: Model) -> dict[str, Any]:
        """The precision of what was learnt, of what is served and of the inner product, as JSON values."""
        position, trust, precision, served = self._last
        if (position, trust) != (model.position, model.trust):
            precision = self._precision(model.common)
            served = precision if model.trust == 1 else self._precision(model.similarity())
            self._last = (model.position, model.trust, precision, served)
        return {
            "about": ABOUT,
            "what": f"Top-{NEIGHBOURS} neighbours showing the same digit",
            "how": f"Measured on {len(self._data[1])} held-out digits, which are never asked about.",
            "neighbours": NEIGHBOURS,
            "items": len(self._data[1]),
            "learnt": precision,
            "trusted": served,
            "baseline": self._baseline,
        }

    def _precision(self, similarity: Bilinear | None) -> float:
        rows, numbers = self._data
        if similarity is None:
            similarity = Bilinear(np.eye(rows.shape[1], dtype=np.float32))
        return float(precision_at_k(similarity, rows, numbers, k=NEIGHBOURS))


class Annotator:
    """A simulated user who looks at shapes only.

    Prefers the candidate that shows the anchor's digit. If both or neither do, prefers the clearly more
    similar shape, and skips the question if there is none.
    """

    def __init__(self) -> None:
        served, _ = digits()
        self._row = {name: row for row, name in enumerate(served.names.tolist())}
        self._numbers, self._shapes = served.numbers, served.shapes

    def winner(self, anchor: str, candidates: tuple[str, str]) -> int | None:
        """0 or 1, or None to skip.

        Examples
        --------
        >>> Annotator().winner("digit-0000", ("digit-0001", "digit-0010"))  # anchor 0: 1 or 0?
        1
        >>> Annotator().winner("digit-0000", ("digit-0006", "digit-0001"))  # anchor 0: 6 or 1?
        0
        """
        row, *pair = (self._row[name] for name in (anchor, *candidates))
        alike = self._numbers[pair] == self._numbers[row]
        if alike[0] != alike[1]:
            return int(alike[1])
        first, second = self._shapes[pair] @ self._shapes[row]
        return None if abs(first - second) < _CLEAR else int(second > first)


def progress(service: Service, measure: Measure) -> str:
    """One line about the progress of learning."""
    version = service.version
    tally, told = version.tally, measure(version.model)
    return (
        f"{tally.answers} questions answered, {tally.skips} skipped: {told['trusted']:.0%} of the top-"
        f"{NEIGHBOURS} neighbours show the same digit (inner product: {told['baseline']:.0%}), "
        f"measured on {told['items']} held-out digits"
    )


def answer_one(service: Service, annotator: Annotator) -> None:
    """Ask one question and answer it."""
    question = service.choose_question(None)
    (asked,) = service.submit([Write(Ledger.ask, (question,))]).result()
    winner = annotator.winner(question.anchor, question.candidates)
    key = f"answer:{asked.first}"
    write = Write(Ledger.answer, (asked.first, winner), key, digest_of(winner))
    (receipt,) = service.submit([write]).result()
    service.wait_for(receipt)


def png(pixels: np.ndarray, ink: Sequence[int] = (0, 0, 0), scale: int = 6) -> bytes:
    """A picture in one ink on white paper, as PNG.

    Parameters
    ----------
    pixels : 2-d array of numbers from 0 (paper) to 1 (ink)
    ink : red, green and blue, from 0 to 255
    scale : size of a pixel in the picture

    Examples
    --------
    >>> png(np.eye(2), (200, 0, 0))[:4]
    b'\\x89PNG'
    """
    paper = np.array([255, 255, 255])
    colours = paper + pixels[..., None] * (np.asarray(ink) - paper)
    large = colours.round().astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
    lines = b"".join(b"\0" + line.tobytes() for line in large)
    header = struct.pack(">IIBBBBB", large.shape[1], large.shape[0], 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
