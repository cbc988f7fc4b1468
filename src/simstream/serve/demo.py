"""Handwritten digits with pictures, and somebody who knows them."""

from __future__ import annotations

import base64
import logging
import struct
import threading
import time
import zlib
from collections.abc import Callable

import numpy as np

from . import admissions
from .errors import ServiceError
from .importing import import_items
from .service import Service, digest_of
from .writer import Part

logger = logging.getLogger("simstream.serve")


def png(pixels: np.ndarray, scale: int = 6) -> bytes:
    """A grey picture, dark on light, as PNG.

    Parameters
    ----------
    pixels : 2-d array of numbers from 0 (light) to 1 (dark)
    scale : how many times larger

    Examples
    --------
    >>> png(np.eye(2))[:4]
    b'\\x89PNG'
    """
    large = np.kron(
        255 - np.round(255 * pixels).astype(np.uint8), np.ones((scale, scale), np.uint8)
    )
    lines = b"".join(b"\0" + line.tobytes() for line in large)
    header = struct.pack(">IIBBBBB", large.shape[1], large.shape[0], 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def digits() -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Ids, rows, pixels from 0 to 1, and labels of scikit-learn's bundled digits.

    Rows are centred and of length one: what all digits have in common says nothing about any of them, and
    the first few answers would mostly teach the model about that.
    """
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import normalize

    items, labels = load_digits(return_X_y=True)
    names = [f"digit-{row:04d}" for row in range(len(labels))]
    rows = normalize(items - items.mean(axis=0)).astype(np.float32)
    return names, rows, items.reshape(-1, 8, 8) / 16, labels


def add_digits(service: Service) -> int:
    """Add the digits unless they are there; return how many were added."""
    names, rows, pixels, _ = digits()
    payloads = [
        {"image": "data:image/png;base64," + base64.b64encode(png(picture)).decode()}
        for picture in pixels
    ]
    return import_items(service, names, rows, payloads, digest_of("digits"))


class Annotator:
    """Answers questions about digits by their labels: the candidate of the anchor's class, if there is one.

    Where both or neither is of the anchor's class, it skips.
    """

    def __init__(self) -> None:
        names, _, _, labels = digits()
        self._label = dict(zip(names, labels.tolist(), strict=True))

    def winner(self, anchor: str, candidates: tuple[str, str]) -> int | None:
        """0 or 1, or None to skip.

        Examples
        --------
        >>> Annotator().winner("digit-0000", ("digit-0001", "digit-0010"))  # 0: 1 or 0?
        1
        """
        alike = [self._label[name] == self._label[anchor] for name in candidates]
        return None if alike[0] == alike[1] else int(alike[1])


def start_annotator(service: Service, per_second: float = 100.0) -> Callable[[], None]:
    """Ask and answer in the background; return how to stop it."""
    annotator, stop = Annotator(), threading.Event()

    def work() -> None:
        while not stop.wait(1 / per_second):
            try:
                answer_one(service, annotator)
            except ServiceError as error:
                if service.writer.is_closed:
                    return
                logger.info("annotator: %s", error)
                time.sleep(1)

    threading.Thread(target=work, name="annotator", daemon=True).start()
    return stop.set


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
