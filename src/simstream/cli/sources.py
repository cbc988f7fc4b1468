"""Where tuples come from: labels, a file, a stream. Each knows its position and can go on from one.

A source hands out *pieces*, triplets or labelled pairs that are learnt in one call. Learners that work in
blocks give the same result, to the bit, only if the stream is cut at the same places; so every source cuts
at places that do not depend on the speed of the machine or on where an earlier run was interrupted.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np

from .. import ModelFileError, PairSampler, TaskTripletSampler, TripletSampler
from ..data import Batch, FormatError, PairBatch
from .algorithms import DEFAULT_SEED

#: Tuples drawn from labels unless told otherwise.
DEFAULT_N_TUPLES = 100_000

#: Records of a file between two places where learning may stop: few, for learners of 100 a second.
_BATCH_OF_FILE = 64

#: How many tuples the learner would like in the next piece.
Wish = Callable[[], int]

#: Triplets, or pairs and their labels, or triplets with their answers (and tasks).
Piece = tuple[np.ndarray, ...]


class Source(Protocol):
    """What the training loop asks of a source."""

    #: "triplets" or "pairs".
    tuples: str
    #: Records left out because they were bad.
    n_bad: int

    @property
    def total(self) -> int | None:
        """Tuples in all where that is known, counting those of earlier runs."""

    @property
    def finished(self) -> bool:
        """Whether everything there is has been handed out; of a stream nobody knows."""

    def pieces(self, wish: Wish) -> Iterator[Piece]:
        """Yield tuples until there are no more, or until asked to stop."""

    def state(self) -> dict[str, Any]:
        """Position after the last piece handed out, as JSON values."""


def multiple_of(block: int, n: int) -> int:
    """The smallest multiple of the block that is at least n.

    Examples
    --------
    >>> multiple_of(64, 100), multiple_of(1, 100)
    (128, 100)
    """
    return block * max(1, -(-n // block))


class LabelSource:
    """Triplets or pairs drawn from labels by a seeded generator.

    Parameters
    ----------
    labels : array of shape (n_items,)
    identity : dict of JSON values
        Which input this is; a state with another identity is that of another input.
    tasks : array of shape (n_items,) or None
        Draws triplets inside tasks, with answers.
    tuples : "triplets" or "pairs"
    n_tuples : int or None
        Tuples in all, those of earlier runs included. None keeps the number of the earlier run.
    seed : int or None
        Seed of the generator.
    earlier : dict or None
        State to go on from.
    block : int
        Pieces have a multiple of this length, but for the last one.
    stop : function without arguments
        Returns True once learning shall end.
    """

    n_bad = 0

    def __init__(
        self,
        labels: np.ndarray,
        identity: dict[str, Any],
        *,
        tasks: np.ndarray | None,
        tuples: str,
        n_tuples: int | None,
        seed: int | None,
        earlier: dict[str, Any] | None,
        block: int,
        stop: Callable[[], bool],
    ) -> None:
        self.tuples = tuples
        self._identity = {"kind": "labels", "tuples": tuples, **identity}
        self._block, self._stop = block, stop
        if earlier is None:
            self.total = n_tuples or DEFAULT_N_TUPLES
            self._seed = DEFAULT_SEED if seed is None else seed
            self._sampler = _new_sampler(tuples, labels, tasks, self._seed)
            self._n_drawn = 0
            return
        self._seed, self._n_drawn = earlier["seed"], earlier["n_drawn"]
        self.total = max(n_tuples or earlier["n_total"], self._n_drawn)
        self._sampler = _new_sampler(tuples, labels, tasks, self._seed)
        try:
            self._sampler.state = earlier["sampler"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"damaged state of the sampler ({error})") from error
        if seed is not None and seed != self._seed:
            raise click.UsageError(
                f"--resume: the model goes on with its own seed, expected {self._seed}, got {seed}"
            )

    @property
    def tasks_left_out(self) -> list[Any]:
        """Tasks from which nothing can be drawn."""
        return getattr(self._sampler, "left_out", [])

    @property
    def finished(self) -> bool:
        """Whether all tuples were drawn."""
        return self._n_drawn >= self.total

    def pieces(self, wish: Wish) -> Iterator[Piece]:
        """Draw tuples until there are as many as asked for."""
        while not (self.finished or self._stop()):
            n = min(multiple_of(self._block, wish()), self.total - self._n_drawn)
            self._n_drawn += n
            drawn = self._sampler.draw(n)
            yield drawn if isinstance(drawn, tuple) else (drawn,)

    def state(self) -> dict[str, Any]:
        """Generator and counts."""
        return self._identity | {
            "seed": self._seed,
            "n_total": self.total,
            "n_drawn": self._n_drawn,
            "sampler": self._sampler.state,
        }


def _new_sampler(
    tuples: str, labels: np.ndarray, tasks: np.ndarray | None, seed: int
) -> TripletSampler | PairSampler | TaskTripletSampler:
    if tasks is not None:
        return TaskTripletSampler(labels, tasks, seed)
    return (PairSampler if tuples == "pairs" else TripletSampler)(labels, seed)


class RecordSource:
    """Triplets or pairs of a file or a stream.

    Parameters
    ----------
    batches : function from batch size to an iterator of `simstream.data.Batch` or ``PairBatch``
    path : str
        Name of the input.
    tuples : "triplets" or "pairs"
    position, n_bad : int
        Records read, and bad ones among them, in earlier runs.
    block : int
        Tuples that the learner takes together.
    stop : function without arguments, or None
        Returns True once learning shall end. None for a stream: it ends by itself when asked to, and
        every record read from it is handed out as soon as it is there, since it cannot be read again.
    """

    total = None

    def __init__(
        self,
        batches: Callable[[int], Iterator[Batch | PairBatch]],
        path: str,
        *,
        tuples: str,
        position: int,
        n_bad: int,
        block: int,
        stop: Callable[[], bool] | None,
    ) -> None:
        self._is_stream = stop is None
        self.tuples = tuples
        kind = "stream" if self._is_stream else "file"
        self._identity = {"kind": kind, "path": path, "tuples": tuples}
        size = 4096 if self._is_stream else _BATCH_OF_FILE
        self._batches = batches(multiple_of(block, size))
        self._position, self.n_bad, self._block = position, n_bad, block
        self._stop = stop or (lambda: False)
        self.finished = False

    def pieces(self, wish: Wish) -> Iterator[Piece]:
        """Join batches until there are as many tuples as the learner wants at a time."""
        held: list[Piece] = []
        n_held = 0
        while True:
            failure: FormatError | None = None
            try:
                batch = next(self._batches, None)
            except FormatError as error:
                batch, failure = None, error
            if batch is not None:
                held.append(batch.tuples)
                n_held += len(batch.tuples[0])
                self._position, self.n_bad = batch.position, self.n_bad + batch.n_skipped
                # Blocks are counted from the start of a piece: after an incomplete block nothing may
                # be appended, or an interruption here would cut the blocks differently.
                is_full = n_held >= wish() or n_held % self._block or self._is_stream
                if not is_full:
                    continue
            if n_held:
                yield tuple(np.concatenate(parts) for parts in zip(*held, strict=True))
                held, n_held = [], 0
            if failure is not None:
                raise failure
            if batch is None:
                self.finished = not self._is_stream
                return
            if self._stop():
                return

    def state(self) -> dict[str, Any]:
        """Number of records read."""
        return self._identity | {"position": self._position, "n_bad": self.n_bad}


def file_identity(path: Path) -> str:
    """The name under which a file that may still grow is known again in a later run: its place."""
    return str(path.resolve())


def content_identity(path: Path) -> str:
    """The name under which a finished file is known again, wherever it is: what is in it.

    Size and both ends are enough to notice another file, and quick for large ones.
    """
    end = 2**20
    with path.open("rb") as file:
        checksum = zlib.crc32(file.read(end))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - end))
        checksum = zlib.crc32(file.read(end), checksum)
    return f"{path.name} of {size} bytes, crc32 {checksum:08x}"


def earlier_state(state: dict[str, Any] | None, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The state if it is one of this input, else None: another input is read from its beginning."""
    if state is None or any(state.get(key) != value for key, value in identity.items()):
        return None
    return state
