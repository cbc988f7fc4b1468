"""A run: workers, what they have learnt, what waits to be learnt, and how both survive a loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from .._engines.base import DivergedError, ctrl_c_waits
from .._kernels.steps import ROUNDS, UPDATES
from .cluster import WorkerLostError
from .exchange import RestartedError
from .folder import Checkpoint, RunFolder
from .shard import Progress

logger = logging.getLogger("simstream.distributed")

#: How long workers learn by themselves, at most, if that is several blocks: Ctrl-C waits for them.
_SECONDS_AT_A_TIME = 0.5

#: Takes notice of how far learning is: the clock, and the number of tasks seen.
Note = Callable[[np.ndarray, int], None]


class Call:
    """Tuples that are learnt in blocks of this size, and the file that has them too, if there is one."""

    def __init__(self, arrays: dict[str, np.ndarray], block_size: int, file: str | None) -> None:
        self.arrays, self.block_size, self.file = arrays, block_size, file
        #: A reference to the arrays that workers can read.
        self.shared: Any = None
        #: Whether its next block was learnt up to the tuple where learning diverged.
        self.has_diverged = False


class Run:
    """Learns one call after the other with all workers; when one is lost, all go back to the last checkpoint.

    A block is a function of its tuples and of what was learnt before: learnt again, it gives the same bits.

    Parameters
    ----------
    workers : SerialWorkers or RayWorkers, not started yet
    folder : RunFolder
    columns : list of slices, those of the workers
    is_temporary : bool
        Whether the folder ends with this process: what waits need not be written then.
    seconds : float
        Time between two checkpoints.
    is_batch : bool
        Whether `fit` is one call. Its tuples stay, and no checkpoint is written after its last block.
    note : called after every few blocks
    max_restarts : int
        How often each worker may be lost, at least once, before learning gets any further.
    """

    def __init__(
        self,
        workers: Any,
        folder: RunFolder,
        columns: list[slice],
        *,
        is_temporary: bool,
        seconds: float,
        is_batch: bool,
        note: Note,
        max_restarts: int,
    ) -> None:
        self.workers, self.folder = workers, folder
        self._columns, self._is_temporary, self._seconds = columns, is_temporary, seconds
        self._is_batch = is_batch
        self._note, self._most_losses = note, max(1, max_restarts) * len(columns)
        self._saved_at = time.monotonic()
        #: JSON values that are kept with the run.
        self.extra: dict[str, Any] = {}
        self.checkpoint: Checkpoint | None = None
        #: Calls since the checkpoint, which one of them is being learnt, and its next block.
        self._calls: list[Call] = []
        self._at = self._block = 0
        #: The first block of the first call that is not in the checkpoint.
        self._saved_block = 0
        self._n_calls = self._n_checkpoints = 0
        #: The furthest call and block where a worker was lost, and how often that was since it was reached.
        self._lost_at, self._n_losses = (0, -1), 0

    @property
    def is_finished(self) -> bool:
        """Whether nothing waits to be learnt."""
        return self._at == len(self._calls)

    def start(self) -> None:
        """Start the workers at the last checkpoint."""
        try:
            self.workers.start(str(self.folder.path))
            self.workers.call("restore", self.checkpoint)
            self._take_notice(self.workers.call("progress"))
        except BaseException:
            self.workers.close()
            raise
        self._saved_at = time.monotonic()

    # -- learning -----------------------------------------------------------------------------

    def add(self, arrays: dict[str, np.ndarray], block_size: int) -> None:
        """Let tuples wait for `finish`."""
        file = None if self._is_temporary else self.folder.write_tuples(self._n_calls, arrays)
        self._n_calls += 1
        self._calls.append(Call(arrays, block_size, file))

    def finish(self) -> None:
        """Learn what waits."""
        try:
            self._learn_up_to(None, 0)
        except (KeyboardInterrupt, DivergedError):
            if not self._is_temporary:
                with suppress(RestartedError):  # an older checkpoint is as good: nothing is lost
                    self._save()
            raise
        except WorkerLostError as error:
            raise WorkerLostError(error.problem, self._advice()) from error

    def _learn_up_to(self, goal: Call | None, block: int) -> None:
        """Learn what waits, up to this block of this call, or all of it."""
        while not self.is_finished:
            call = self._calls[self._at]
            is_there = call is goal and self._block >= block
            if is_there and not call.has_diverged:
                return
            try:
                self._learn(call, block if call is goal and not is_there else None)
            except RestartedError:
                self._go_back()
            except DivergedError:
                if is_there:
                    return  # as before
                raise
            except Exception:
                with suppress(Exception):  # some have learnt blocks that others have not
                    self._restore()
                raise

    def _learn(self, call: Call, until: int | None) -> None:
        """Learn a call from the next block on, up to another of its blocks, or all of it."""
        workers = self.workers
        if call.shared is None:
            call.shared = workers.share(call.arrays)
        found, n_blocks = workers.begin(call.shared, self._block, call.block_size)[0], 1
        while found.is_more:
            if self._block == until:
                return
            with ctrl_c_waits():
                first, begun = self._block, time.monotonic()
                most = n_blocks if until is None else min(n_blocks, until - first)
                try:
                    found = self._take_notice(workers.learn(most))
                except DivergedError:
                    self._block = self._take_notice(workers.call("progress")).block
                    call.has_diverged = True
                    raise
                self._block, now, left = found.block, time.monotonic(), _SECONDS_AT_A_TIME
                if now - self._saved_at >= self._seconds:
                    self._save()
                left = min(left, self._saved_at + self._seconds - now)
                pace = (self._block - first) / max(now - begun, 1e-6)
                n_blocks = max(1, min(2 * (self._block - first), int(left * pace)))
        call.shared = None
        self._at, self._block = self._at + 1, 0

    def _take_notice(self, found: list[Progress]) -> Progress:
        """All workers must have taken the same steps: each decides for itself, from the same sums."""
        clock = found[0].clock
        for number, (_, _, other, _) in enumerate(found):
            if other[UPDATES] != clock[UPDATES] or other[ROUNDS] != clock[ROUNDS]:
                raise RuntimeError(
                    f"worker {number} has taken other steps than worker 0: their machines round differently; "
                    "use machines of one kind"
                )
        self._note(clock, found[0].n_seen)
        return found[0]

    def _go_back(self) -> None:
        """Bring all workers to the last checkpoint: what was learnt after it is learnt again."""
        self._count_loss()
        begun = "the beginning" if self.checkpoint is None else "the last checkpoint"
        logger.warning("a worker was lost, or its connection: learning goes on from %s", begun)
        while True:
            try:
                return self._restore()
            except RestartedError:
                continue

    def _restore(self) -> None:
        self.workers.call("restore", self.checkpoint)
        self._at, self._block = 0, self._saved_block
        for call in self._calls:
            call.shared = None  # those who had a copy may be gone

    def _count_loss(self) -> None:
        """Raise if workers are lost again and again before learning gets any further."""
        place = (self._n_calls - len(self._calls) + self._at, self._block)
        if place > self._lost_at:
            self._lost_at, self._n_losses = place, 0
        self._n_losses += 1
        if self._n_losses > self._most_losses:
            raise WorkerLostError(
                f"workers or their connections were lost {self._n_losses} times before block "
                f"{self._block + 1} of a call was learnt: see that the machines of the cluster are up, have "
                "memory and can reach each other"
            )

    def answers(self, method: str, *args: Any) -> list[Any]:
        """Answers of all workers about what was learnt; after a loss it is learnt again first."""
        while True:
            try:
                return self.workers.call(method, *args)
            except RestartedError:
                self._recover()

    def _recover(self) -> None:
        """After a loss: from the last checkpoint to where learning was, and no further."""
        goal, block = None if self.is_finished else self._calls[self._at], self._block
        self._go_back()
        self._learn_up_to(goal, block)
        self._n_losses = 0

    def leave(self) -> None:
        """Leave what still waits after an interruption: what was learnt of it is in a checkpoint."""
        if not self.is_finished:
            self.save()
            self._calls = []
            self._at = self._block = self._saved_block = 0
            self.write()

    def forget(self) -> None:
        """Go back to before the first tuple."""
        self._calls, self.checkpoint = [], None
        self._at = self._block = self._saved_block = 0
        self.answers("restore", None)

    def close(self) -> None:
        """End the workers, after a checkpoint if the folder stays."""
        try:
            if not self._is_temporary and self.is_finished:
                self.save()
        finally:
            self.workers.close()
            self.folder.unlock()

    def _advice(self) -> str:
        if self._is_temporary:
            return "without a folder, the run cannot be continued: begin again, and give one"
        return (
            "continue the run from its last checkpoint with "
            f"ShardedLearner.resume({str(self.folder.path)!r}), and n_workers=... if there are fewer machines"
        )

    # -- checkpoints --------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of all that was learnt."""
        while True:
            try:
                self._save()
                break
            except RestartedError:
                self._recover()

    def _is_underway(self) -> bool:
        """Whether something was learnt of a call, more than in the checkpoint, and it can be finished."""
        is_further = not self.is_finished and self._block > self._saved_block
        return is_further and not self._calls[self._at].has_diverged

    def _save(self) -> None:
        if self._is_batch and not self._is_underway():
            return
        number = self._n_checkpoints + 1
        self.workers.call("save", number)
        self._n_checkpoints = number
        self.checkpoint = Checkpoint(number, self._columns)
        del self._calls[: self._at]
        if self._calls and self._calls[0].has_diverged:
            self._calls, self._block = [], 0  # it would only diverge again
        self._at, self._saved_block = 0, self._block
        self._saved_at = time.monotonic()
        self.write()
        self.folder.delete_all_but(number, {call.file for call in self._calls if call.file})

    #: JSON values of the learner that belong to the run.
    names: Callable[[], dict[str, Any]] = staticmethod(dict)

    def write(self) -> None:
        """Write the record of the run, from which `read` continues it, unless the folder is temporary."""
        if not self._is_temporary:
            self.folder.write_run(self.record())

    def record(self, *, waiting: bool = True) -> dict[str, Any]:
        """JSON values: the last checkpoint, and, unless it is left out, what waited then."""
        saved = self.checkpoint
        calls = self._calls if waiting else []
        return {
            "n_workers": len(self._columns),
            "checkpoint": None if saved is None else saved.number,
            "columns": [] if saved is None else [[some.start, some.stop] for some in saved.columns],
            "calls": [{"file": call.file, "block_size": call.block_size} for call in calls],
            "block": self._saved_block if waiting else 0,
            "n_calls": self._n_calls,
            "extra": self.extra,
            "names": self.names(),
        }

    def read(self, record: dict[str, Any]) -> None:
        """Take over a record, before `start`."""
        self._n_calls, self.extra = record["n_calls"], record["extra"]
        if record["checkpoint"] is not None:
            self._n_checkpoints = record["checkpoint"]
            columns = [slice(*some) for some in record["columns"]]
            self.checkpoint = Checkpoint(self._n_checkpoints, columns)
        for call in record["calls"]:
            arrays = self.folder.read_tuples(call["file"])
            self._calls.append(Call(arrays, call["block_size"], call["file"]))
        self._block = self._saved_block = record["block"]
