"""Where online learners get their tuples: labels, a file, a stream. Each knows its position and can resume.

A source hands out *pieces*, triplets or labelled pairs that are learnt in one call. Learners that work in
blocks give the same result, to the bit, only if the stream is cut at the same places; so every source cuts
at places that depend neither on the speed of the machine nor on where an earlier run was interrupted.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import ModelFileError, PairSampler, TaskTripletSampler, TripletSampler
from ..data import Batch, FormatError, PairBatch
from .inputs import STANDARD_INPUT
from .learners import DEFAULT_SEED, report_left_out
from .options import UNIFORM, refuse_options
from .output import logger

#: Tuples drawn from labels unless told otherwise.
DEFAULT_N_TUPLES = 100_000

#: Records of a file between two places where learning may stop: few, for learners of 100 a second.
_BATCH_OF_FILE = 64

#: Bytes read from a stream at a time: few, because everything read is learnt before stopping (about 200
#: records).
_READ_BYTES = 8192
_POLL_SECONDS = 0.2

#: Near triplets chosen with the same state of the model, or a few more to fill a block.
_REFRESH = 1000

#: Parameters of each sampler, by the names of their options, and their defaults.
_SAMPLING: dict[str, dict[str, Any]] = {
    "triplets": {"negatives": "random", "positives": "random", "near-share": 0.5},
    "pairs": {"similar-share": 0.5},
    "tasks": {},
}

#: What they are in checkpoints that do not name them, where that is not the default.
_UNNAMED = {"pairs": {"similar-share": UNIFORM}}

#: How many tuples the learner would like in the next piece.
Wish = Callable[[], int]

#: Triplets, or pairs and their labels, or triplets with their answers (and tasks).
Piece = tuple[np.ndarray, ...]

#: Reads batches of records: `simstream.data.read_triplets` or ``read_pairs`` with its options.
Reader = Callable[..., Iterator[Batch | PairBatch]]


def multiple_of(block: int, n: int) -> int:
    """The smallest multiple of the block that is at least n.

    Examples
    --------
    >>> multiple_of(64, 100), multiple_of(1, 100)
    (128, 100)
    """
    return block * max(1, -(-n // block))


def earlier_state(state: dict[str, Any] | None, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The state if it is one of this input, else None: another input is read from its beginning."""
    if state is None or any(state.get(key) != value for key, value in identity.items()):
        return None
    return state


class LabelSource:
    """Triplets or pairs drawn from labels by a seeded generator; triplets with answers if there are tasks.

    Like `RecordSource`, it yields ``pieces`` until there are no more or ``stop()`` is true; its ``state`` is
    the position after the last piece handed out, as JSON values. A state ``before`` with another identity
    belongs to another input. ``n_tuples`` includes those of earlier runs; None keeps their number. Every
    piece but the last has a multiple of ``block`` tuples.

    ``sampling`` holds the parameters of the sampler, None for those not given, which are the defaults or
    those of the earlier run. Near triplets are chosen by ``learner``, and a piece never reaches past the
    place where the sampler looks at it again, so that the stream depends on no cut and no interruption.
    """

    n_bad = 0  # no records, so no bad ones

    def __init__(
        self,
        labels: np.ndarray,
        tasks: np.ndarray | None,
        identity: dict[str, Any],
        *,
        tuples: str,
        n_tuples: int | None,
        seed: int | None,
        sampling: dict[str, Any],
        items: Any,
        learner: Any,
        before: dict[str, Any] | None,
        block: int,
        stop: Callable[[], bool],
    ) -> None:
        self.tuples = tuples
        self._identity = {"kind": "labels", "tuples": tuples, **identity}
        self._block, self._stop = block, stop
        earlier = earlier_state(before, self._identity)
        #: Whether an earlier run is continued.
        self.is_continued = earlier is not None
        if earlier is None:
            self._seed, self.n_drawn = DEFAULT_SEED if seed is None else seed, 0
            self.total = n_tuples or DEFAULT_N_TUPLES
        else:
            self._seed, self.n_drawn = earlier["seed"], earlier["n_drawn"]
            self.total = max(n_tuples or earlier["n_total"], self.n_drawn)
        kind = "tasks" if tasks is not None else tuples
        self._sampling = _sampling(kind, sampling, earlier)
        self._sampler: TripletSampler | PairSampler | TaskTripletSampler
        if tasks is not None:
            self._sampler = TaskTripletSampler(labels, tasks, self._seed)
        elif tuples == "pairs":
            share = self._sampling["similar-share"]
            self._sampler = PairSampler(
                labels, self._seed, similar_share=None if share == UNIFORM else share
            )
        else:
            self._sampler = TripletSampler(
                labels,
                self._seed,
                negatives=self._sampling["negatives"],
                positives=self._sampling["positives"],
                share=self._sampling["near-share"],
                items=items,
                model=learner,
                refresh=multiple_of(block, _REFRESH),
            )
        report_left_out(getattr(self._sampler, "left_out", []))
        if earlier is None:
            return
        try:
            self._sampler.state = earlier["sampler"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"damaged state of the sampler ({error})") from error
        if seed not in (None, self._seed):
            raise click.UsageError(
                f"--resume: the model continues with its own seed, expected {self._seed}, got {seed}"
            )

    @property
    def finished(self) -> bool:
        """Whether all tuples were drawn."""
        return self.n_drawn >= self.total

    def pieces(self, wish: Wish) -> Iterator[Piece]:
        """Draw tuples until there are as many as asked for."""
        while not (self.finished or self._stop()):
            n = min(multiple_of(self._block, wish()), self.total - self.n_drawn)
            n = min(n, getattr(self._sampler, "until_refresh", None) or n)
            self.n_drawn += n
            drawn = self._sampler.draw(n)
            yield drawn if isinstance(drawn, tuple) else (drawn,)

    def state(self) -> dict[str, Any]:
        """Generator and counts."""
        return self._identity | {
            "seed": self._seed,
            "n_total": self.total,
            "n_drawn": self.n_drawn,
            "sampling": self._sampling,
            "sampler": self._sampler.state,
        }


def _sampling(kind: str, given: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Parameters of a sampler of triplets, pairs or tasks: those of an earlier run, or given, or defaults."""
    known = _SAMPLING[kind]
    refuse_options(
        f"does not apply to {'triplets within tasks' if kind == 'tasks' else kind} drawn from labels",
        {f"--{name}": value is not None and name not in known for name, value in given.items()},
    )
    asked = {name: given[name] for name in known if given[name] is not None}
    if earlier is None:
        return known | asked
    kept = earlier.get("sampling", known | _UNNAMED.get(kind, {}))
    for name, value in asked.items():
        if kept[name] != value:
            raise click.UsageError(
                f"--resume: the model continues with its own --{name}, expected {kept[name]}, got {value}"
            )
    return kept


class RecordSource:
    """Triplets or pairs of a file, which is known by its place, or of a stream, which is never read again.

    A file is read on from the state ``before``. A stream (a named pipe, or ``-`` for standard input) ends
    when ``stop()`` is true, and every record read from it is handed out at once.
    """

    total = None  # nobody knows how many there are

    def __init__(
        self,
        path: Path,
        tuples: str,
        read: Reader,
        *,
        before: dict[str, Any] | None,
        block: int,
        stop: Callable[[], bool],
    ) -> None:
        if str(path) == STANDARD_INPUT:
            self._is_stream, self.name = True, "standard input"
        else:
            self._is_stream = path.exists() and not (path.is_file() or path.is_dir())
            self.name = str(path if self._is_stream else path.resolve())
        self.tuples = tuples
        kind = "stream" if self._is_stream else "file"
        self._identity = {"kind": kind, "path": self.name, "tuples": tuples}
        earlier = earlier_state(before, self._identity) or {"position": 0, "n_bad": 0}
        self.position, self.n_bad = earlier["position"], earlier["n_bad"]
        #: Whether an earlier run is continued.
        self.is_continued = self.position > 0
        #: Whether everything has been handed out; never true of a stream.
        self.finished = False
        self._block, self._stop = block, stop
        if self._is_stream:
            self._n_earlier = self.position  # it is never read again: its records are counted on
            stream = _open_stream(path, self.name, tuples, stop)
            self._batches = read(stream, batch_size=multiple_of(block, 4096))
        else:
            self._n_earlier = 0  # the reader counts from the beginning of the file
            size = multiple_of(block, _BATCH_OF_FILE)
            self._batches = read(path, start=self.position, batch_size=size)

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
                self.position = batch.position + self._n_earlier
                self.n_bad += batch.n_skipped
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
            if self._stop() and not self._is_stream:
                return

    def state(self) -> dict[str, Any]:
        """Number of records read."""
        return self._identity | {"position": self.position, "n_bad": self.n_bad}


def _open_stream(path: Path, name: str, tuples: str, stop: Callable[[], bool]) -> Any:
    if str(path) != STANDARD_INPUT:
        return StoppableInput(os.open(path, os.O_RDONLY), name, stop)
    if sys.stdin.isatty():
        logger.info("reading %s from the terminal; end with Ctrl-D", tuples)
    try:
        return StoppableInput(sys.stdin.fileno(), name, stop)
    except OSError:  # not a file at all, as in tests
        return sys.stdin


class StoppableInput:
    """The whole lines of a pipe, a terminal or a socket, as soon as they arrive; ends when asked to stop.

    It has what `simstream.data.read_triplets` wants of a stream: ``read1``, and a name for errors.
    """

    def __init__(self, descriptor: int, name: str, stop: Callable[[], bool]) -> None:
        self.name = name
        self._descriptor = descriptor
        self._stop = stop
        self._pieces: list[bytes] = []  # of a line that has not ended yet

    def read1(self, size: int = -1) -> bytes:
        """Some whole lines as soon as there are any; nothing at the end, or when asked to stop."""
        while not self._stop():
            if not select.select([self._descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            try:
                chunk = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk and self._stop():
                break  # Ctrl-C ends the writer as well, perhaps in the middle of a line
            end = chunk.rfind(b"\n") + 1
            if chunk and not end:
                self._pieces.append(chunk)
                continue
            lines = b"".join([*self._pieces, chunk[:end]])
            self._pieces = [chunk[end:]]
            return lines
        # A line cut short is dropped: its last number might have had more digits.
        return b""
