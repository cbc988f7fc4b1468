"""One worker's part of a learner whose columns are divided, wherever it is called from."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .._engines import DenseEngine, Geometry
from .._kernels.columns import SharedBlas, divided, summed
from .._kernels.steps import CLOCK_SIZE
from ..batch.sdca import SDCA
from ..data.comparisons import Comparisons
from ..persistence import from_params
from ..similarity.bilinear import Bilinear
from ..similarity.shift import Shift
from ..validation import Items
from .exchange import RestartedError
from .folder import Checkpoint, RunFolder


class Progress(NamedTuple):
    """How far a worker is: the next block of the call, if there is one, its clock, tasks seen."""

    block: int
    is_more: bool
    clock: np.ndarray
    n_seen: int


def after_restore(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a shard that has no state raise: its worker was started again, perhaps while idle."""

    @functools.wraps(method)
    def checked(self: Shard, *args: Any) -> Any:
        if not self._is_restored:
            raise RestartedError(f"worker {self._number} was started again")
        return method(self, *args)

    return checked


class Shard:
    """Some columns of a learner's matrix.

    A call that begins with `begin` is learnt by one `advance` for each block: it is given the parts of all
    shards, finishes the block and works out this shard's parts of the next one. `restore` must come before.

    Parameters
    ----------
    folder : str
        The folder of the run: all that a worker needs is read from there, so that it can be started again.
    number, n_workers : int
        Which of how many ranges of columns.
    """

    def __init__(self, folder: str, number: int, n_workers: int) -> None:
        self._folder, self._number, self._n_workers = RunFolder(folder), number, n_workers
        self._learner: Any = None
        self._engine: Any = None
        self._coroutine: Generator[Any, Any, Any] | None = None
        self._block = 0
        #: What solves the problem of a whole set of tuples, the state it begins with, and what it has found.
        self._solver: Any = None
        self._kept: Any = None
        self._solution: Any = None
        self._is_restored = False

    def ping(self) -> int:
        """The process that this is."""
        return os.getpid()

    def _open(self) -> None:
        """Read what never changes. The constructor does not: of its errors Ray would tell the text alone."""
        content, arrays = self._folder.read_learner()
        sides = [Items._of(rows) for rows in self._folder.open_items(content["items"])]
        self._left, self._right = sides[0], sides[-1]
        self.columns = divided(self._right.shape[1], self._n_workers)[self._number]
        self._content, self._arrays = content, arrays
        self._learner = from_params(content, arrays)

    # -- state --------------------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Go back to a checkpoint, whatever ranges of columns it has; None is before the first tuple."""
        self._coroutine = self._solver = self._solution = None
        self._is_restored = False
        if self._learner is None:
            self._open()
        learner, columns = self._learner, self.columns
        if isinstance(learner, SDCA):
            self._kept = None
            if checkpoint is not None:
                _, self._kept = self._folder.read_columns(checkpoint, columns)
            self._share = divided(self._left.shape[1], self._n_workers)[self._number]
            self._is_restored = True
            return
        whole = Comparisons(self._left, self._right, np.empty((0, 3), np.int64))
        geometry = geometry_of(self._content, self._arrays, whole)
        if checkpoint is None:
            engine = learner._new_shard(whole, geometry, columns)
        else:
            kind, state = self._folder.read_columns(checkpoint, columns)
            engine = {known.kind: known for known in learner._engine_types}[kind].from_state(*state)
        engine.geometry = geometry
        if hasattr(engine, "width"):
            engine.columns, engine.width = columns, whole.shape[1]
        learner._engine = self._engine = engine
        self._share = divided(engine.shape[0], self._n_workers)[self._number]
        self._is_restored = True

    @after_restore
    def save(self, number: int) -> None:
        """Write these columns to the folder, as part of the checkpoint of that number."""
        kind, state = self.state()
        self._folder.write_shard(number, self._number, kind, state, self.columns)

    @after_restore
    def state(self) -> tuple[str, Any]:
        """Kind and state of the engine of these columns, or of the solver."""
        if self._solver is not None:
            # Its matrix is "u", as in a dense engine: `_engines.columns` cuts and joins both alike.
            return DenseEngine.kind, self._solver.state()
        return self._engine.kind, self._engine.state()

    @after_restore
    def solution(self) -> Any:
        """What a learner of the whole set of tuples has found, of M these columns."""
        return self._solution

    @after_restore
    def progress(self) -> Progress:
        """How far learning is."""
        engine, is_more = self._engine, self._coroutine is not None
        clock = np.zeros(CLOCK_SIZE) if engine is None else engine.clock.copy()
        return Progress(self._block, is_more, clock, getattr(engine, "n_seen", 0))

    # -- learning -----------------------------------------------------------------------------

    @after_restore
    def begin(self, tuples: dict[str, np.ndarray], first_block: int, block_size: int) -> Any:
        """Begin a call at one of its blocks: this shard's parts of that block, or None if there is none."""
        index = tuples["index"]
        # Compiled code is made for arrays that may be written to; those from a store may not.
        others: Any = {name: np.array(array) for name, array in tuples.items() if name != "index"}
        read = Comparisons(self._left, self._right, index, columns=self.columns, **others)
        if isinstance(self._learner, SDCA):
            ops = SharedBlas(self._left.dtype, self._share, False)
            self._solver = self._learner._solver(read, ops)
            if self._kept is not None:
                self._solver.restore(*self._kept)
                self._kept = None  # it is as large as M
            self._coroutine = self._solver.run()
        else:
            self._coroutine = self._learn(read, first_block, block_size)
        self._block = first_block
        return self._go_on(None)

    @after_restore
    def advance(self, *parts: Any) -> Any:
        """Finish a block, given the parts of all shards or their sum: the parts of the next one, or None."""
        parts_of_next = self._go_on(summed(list(parts)))
        self._block += 1
        return parts_of_next

    def _go_on(self, sums: Any) -> Any:
        assert self._coroutine is not None
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return self._coroutine.send(sums)
        except StopIteration as end:
            self._coroutine, self._solution = None, end.value
            return None

    def _learn(
        self, tuples: Comparisons, first_block: int, block_size: int
    ) -> Generator[Any, Any, None]:
        engine, step = self._engine, self._learner._step_for(tuples)
        ops = SharedBlas(engine.dtype, self._share, tuples.is_pairs)
        for first in range(first_block * block_size, len(tuples), block_size):
            part = engine.geometry.comparisons(tuples.part(first, first + block_size))
            learnt = yield from engine.block(ops, step, part, 0, len(part))
            if learnt < len(part):
                raise engine.diverged()

    # -- reading ------------------------------------------------------------------------------

    @after_restore
    def transform(self, rows: np.ndarray) -> np.ndarray:
        """These columns of M'q for the rows q."""
        matrix, *added = self._engine.geometry.parts(self._engine.matrix())
        shift = None if added[0] is None else Shift(*added)
        return Bilinear._of(matrix, shift)._transform(rows)

    @after_restore
    def n_zeros(self) -> int:
        """Zeros of these columns of M."""
        matrix = self._engine.geometry.parts(self._engine.matrix())[0]
        return int(matrix.size - np.count_nonzero(matrix))


def geometry_of(
    content: dict[str, Any], arrays: dict[str, np.ndarray], whole: Comparisons
) -> Geometry:
    """The geometry in the file of a run's learner; `whole` are its items, with all columns."""
    constant = content.get("geometry", {}).get("constant", 0.0)
    rows = whole.shape[0] + (constant > 0)
    sizes = SimpleNamespace(shape=(rows, whole.shape[1]), dtype=whole.left.dtype)
    return Geometry.from_state(content, arrays, sizes)
