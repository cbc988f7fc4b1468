"""Run cells, each in a process of its own and within a budget; records are written as soon as a cell ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import random
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import Any

import simstream

from . import clock, protocols
from .memory import machine_megabytes, peak_megabytes, resident_megabytes
from .records import FINAL, Cell, Record, RecordStore, flaw_of_measures
from .sources import imported_modules, module_digest

_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_POLL_SECONDS = 0.2
#: A cell that takes so many times its budget in wall-clock time is stopped, however little CPU time it had;
#: but never before so many seconds, in which a busy machine may have compiled its kernels.
_PATIENCE = 20
_LEAST_PATIENCE = 600.0


@dataclass(frozen=True)
class Budget:
    """What one cell may use."""

    #: CPU seconds without compiling, where the system reports them; wall-clock seconds otherwise.
    seconds: float
    gigabytes: float


@dataclass(frozen=True)
class Job:
    """A cell with its budget."""

    cell: Cell
    budget: Budget
    #: The parameters its tuning chose.
    chosen: dict[str, Any] | None = None


@dataclass(frozen=True)
class Progress:
    """Reported after every cell."""

    n_done: int
    n_cells: int
    job: Job
    record: Record


def run_jobs(
    jobs: Sequence[Job],
    store: RecordStore,
    *,
    n_processes: int = 1,
    data_dir: str | None = None,
    report: Callable[[Progress], None] | None = None,
    stale: bool = False,
    sample: int | None = None,
) -> list[Cell]:
    """Run the cells that have no record yet.

    Choosing parameters is a cell of its own, which runs first and serves all seeds. When one seed is over
    budget, the other seeds of the same run are recorded as over budget without being tried, and so are cells
    whose parameters were not found, as what choosing these ended with. What other code has finished is not
    replaced in this way.

    Parameters
    ----------
    jobs : sequence of Job
    store : RecordStore
    n_processes : int
        Cells at a time; each has one thread, so that training times compare.
    data_dir : str, optional
        Folder of data sets.
    report : function of a Progress, optional
    stale : bool
        Run those again, too, whose records come from other code (`RecordStore.is_stale`).
    sample : int, optional
        Only so many of these, drawn at random, and none without a record. If they come out as before, the
        change of the code did not matter.

    Returns
    -------
    list of Cell
        Those that have got a record now, in that order.
    """
    for name in imported_modules():  # the code as it is now, before anything runs
        module_digest(name)
    with _single_threaded():
        queue = _Queue(jobs, store, stale=stale, sample=sample)
        running: dict[Connection, _Running] = {}
        try:
            while queue.waiting or running:
                while len(running) < n_processes and (job := queue.next()) is not None:
                    process = _Running.start(job, data_dir)
                    running[process.answer] = process
                for answer in _finished(running):
                    process = running.pop(answer)
                    record = process.result()
                    record["versions"]["source"] = store.sources.note(process.modules)
                    store.append(process.job.cell, record)
                    queue.done(process.job, record)
                    if report is not None:
                        report(Progress(queue.n_done, queue.n_cells, process.job, record))
        finally:
            for process in running.values():
                process.stop()
    return queue.recorded


class _Queue:
    """Which cells can run now: those whose parameters are known."""

    def __init__(
        self,
        jobs: Sequence[Job],
        store: RecordStore,
        *,
        stale: bool = False,
        sample: int | None = None,
    ) -> None:
        self._store = store
        #: Fingerprints of cells whose records are from other code, until they have been run again.
        self._stale: set[str] = set()
        wanted: dict[str, Job] = {}
        for job in jobs:
            for cell in job.cell.steps():
                wanted.setdefault(cell.fingerprint, replace(job, cell=cell))
        if stale or sample is not None:
            records = {name: store.find(job.cell) for name, job in wanted.items()}
            self._stale = {name for name, one in records.items() if one and store.is_stale(one)}
        if sample is not None:
            drawn = _drawn([wanted[name].cell for name in sorted(self._stale)], store, sample)
            wanted = {name: wanted[name] for name in wanted if name in drawn}
            self._stale = drawn
        self.n_cells = len(wanted)
        self.waiting = [job for job in wanted.values() if not self._is_final(job)]
        #: Fingerprints of cells that wait or run.
        self._open = {job.cell.fingerprint for job in self.waiting}
        #: Cells that have got a record, whether they were tried or given up.
        self.recorded: list[Cell] = []
        self._give_up_without_parameters()  # these were over budget in an earlier run

    @property
    def n_done(self) -> int:
        """Number of cells that need not be run any more."""
        return self.n_cells - len(self._open)

    def _is_final(self, job: Job) -> bool:
        """Whether there is nothing to try: it is done, or was over a budget at least as large."""
        found = self._find(job.cell)
        if found is None or found["status"] not in FINAL:
            return False
        tried, budget = found.get("budget"), job.budget
        if found["status"] == "done" or tried is None:
            return True
        return budget.seconds <= tried["seconds"] and budget.gigabytes <= tried["gigabytes"]

    def _has_ended_well(self, job: Job) -> bool:
        """Whether other code has finished it within the budget: no record replaces that without a try."""
        found = self._store.find(job.cell)
        return found is not None and found["status"] == "done"

    def _find(self, cell: Cell) -> Record | None:
        """The record of a cell, unless it has to be run again."""
        return None if cell.fingerprint in self._stale else self._store.find(cell)

    def next(self) -> Job | None:
        for place, job in enumerate(self.waiting):
            ready = self._ready(job)
            if ready is not None:
                del self.waiting[place]
                return ready
        return None

    def _ready(self, job: Job) -> Job | None:
        """The job with its parameters, or None if they are still being chosen."""
        if not job.cell.grid or job.cell.is_tuning:
            return job
        found = self._find(job.cell.tuning())
        if found is None or found["status"] != "done":
            return None
        return replace(job, chosen=found["parameters"])

    def done(self, job: Job, record: Record) -> None:
        self._note(job)
        if record["status"] == "over budget":
            like = replace(job.cell, seed=0)
            for other in list(self.waiting):
                if replace(other.cell, seed=0) == like and not self._has_ended_well(other):
                    self._give_up(other, job.cell, record)
        if record["status"] != "done":
            self._give_up_without_parameters()

    def _note(self, job: Job) -> None:
        """It has a record now."""
        self.recorded.append(job.cell)
        self._stale.discard(job.cell.fingerprint)
        self._open.discard(job.cell.fingerprint)

    def _give_up(self, job: Job, like: Cell, record: Record) -> None:
        """Record, without trying, that a job ends as another one did."""
        names = ("status", "error", "budget", "versions")
        kept = {name: record[name] for name in names if name in record}
        self._store.append(job.cell, kept | {"measures": {}, "note": f"as {like.name}"})
        self.waiting.remove(job)
        self._note(job)

    def _give_up_without_parameters(self) -> None:
        """Give up what waits for parameters that nothing chooses any more; results of other code stay."""
        for job in list(self.waiting):
            choosing = job.cell.tuning()
            if not job.cell.grid or job.cell.is_tuning or choosing.fingerprint in self._open:
                continue
            record = self._find(choosing)
            if record is None or record["status"] == "done":
                continue
            if self._has_ended_well(job):
                self.waiting.remove(job)
                self._open.discard(job.cell.fingerprint)
            else:
                self._give_up(job, choosing, record)


def _drawn(cells: Sequence[Cell], store: RecordStore, sample: int) -> set[str]:
    """Fingerprints of some cells that ended well and whose parameters are known, each time the same ones."""

    def is_done(cell: Cell) -> bool:
        found = store.find(cell)
        return found is not None and found["status"] == "done"

    names = [
        one.fingerprint
        for one in cells
        if is_done(one) and (not one.grid or one.is_tuning or is_done(one.tuning()))
    ]
    return set(random.Random(0).sample(names, min(sample, len(names))))


class _Running:
    """A process that works on a cell."""

    def __init__(
        self, job: Job, process: Any, answer: Connection, compiling: Any, alive: Any = None
    ) -> None:
        self.job, self.process, self.answer, self.compiling = job, process, answer, compiling
        self._alive = alive  # closed by the system when this process ends, however it does
        self.begin = time.monotonic()
        self.over: str | None = None
        self.modules: list[str] = []
        self._record: Record | None = None

    @classmethod
    def start(cls, job: Job, data_dir: str | None) -> _Running:
        context = _context()
        ours, theirs = context.Pipe(duplex=False)
        cell = job.cell if job.chosen is None else job.cell.with_parameters(job.chosen)
        compiling = clock.shared_numbers(context)
        watched, alive = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(cell, data_dir, theirs, compiling, watched), daemon=True
        )
        process.start()
        theirs.close()
        watched.close()
        return cls(job, process, ours, compiling, alive)

    def check_budget(self) -> bool:
        """Stop the process if it has used too much; whether it was stopped."""
        wall_seconds = time.monotonic() - self.begin
        seconds = _processor_seconds(self.process.pid)
        if seconds is not None:
            seconds = clock.without_compiling(seconds, self.compiling)
        patience = max(_PATIENCE * self.job.budget.seconds, _LEAST_PATIENCE)
        if seconds is None or wall_seconds > patience:
            seconds = wall_seconds
        gigabytes = resident_megabytes(self.process.pid) / 2**10
        if seconds > self.job.budget.seconds:
            self.over = f"{self.job.budget.seconds:g} seconds"
        elif gigabytes > self.job.budget.gigabytes:
            self.over = f"{self.job.budget.gigabytes:g} GB"
        if self.over is not None:
            self.stop()
        return self.over is not None

    def has_ended(self) -> bool:
        """Read what the process has sent; whether that was its record, or its end."""
        try:
            sent = self.answer.recv()
        except (EOFError, OSError):  # killed, perhaps while answering
            return True
        self.modules = sent["modules"]
        self._record = sent.get("record")
        return self._record is not None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()

    def result(self) -> Record:
        seconds = time.monotonic() - self.begin
        common = {"wall_seconds": round(seconds, 3), "versions": versions()}
        asked_too_much = self._record is not None and self._record["status"] == "out of memory"
        # What a machine with more memory than the budget cannot give is over the budget.
        if asked_too_much and machine_megabytes() >= self.job.budget.gigabytes * 2**10:
            self.over = f"{self.job.budget.gigabytes:g} GB"
        if self.over is not None:
            return {
                "status": "over budget",
                "error": f"more than {self.over}",
                "budget": asdict(self.job.budget),
                "measures": {},
            } | common
        self.process.join()
        if self._record is not None:
            return self._record | common
        code = self.process.exitcode
        return {
            "status": "failed",
            "error": f"the process ended with {code}",
            "measures": {},
        } | common


def _finished(running: dict[Connection, _Running]) -> list[Connection]:
    """Wait a little, then name the processes that have answered, died or used too much."""
    ended = [
        one
        for one in wait(list(running), timeout=_POLL_SECONDS)
        if isinstance(one, Connection) and running[one].has_ended()
    ]
    over = [
        answer
        for answer, process in running.items()
        if answer not in ended and process.check_budget()
    ]
    return ended + over


def _work(
    cell: Cell, data_dir: str | None, answer: Connection, compiling: Any, watched: Connection
) -> None:
    """In the process: run the cell and send its record."""
    _end_with(watched)
    clock.report_to(compiling)
    if data_dir is not None:
        os.environ["SIMSTREAM_DATA"] = data_dir
    try:
        protocols.protocol(cell.protocol)
        getattr(simstream, cell.learner, None)
        answer.send({"modules": imported_modules()})  # known even if it has to be stopped
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            result = protocols.run(cell)
        if flaw := flaw_of_measures(result["measures"]):  # no page could show it
            raise ValueError(flaw)
        record = {"status": "done", **result, "peak_mb": peak_megabytes()}
        if caught:
            record["warnings"] = sorted({str(one.message) for one in caught})
    except MemoryError as error:
        record = {"status": "out of memory", "error": str(error), "measures": {}}
    except Exception as error:
        record = {
            "status": "failed",
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "measures": {},
        }
    with contextlib.suppress(BrokenPipeError):
        answer.send({"modules": imported_modules(), "record": record})


def _end_with(watched: Connection) -> None:
    """End this process when the one that waits for its record is gone, even if that was killed."""
    if sys.platform == "linux":
        import fcntl

        # A signal that ends the process by default: compiled code lets no other thread run.
        flags = fcntl.fcntl(watched.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(watched.fileno(), fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(watched.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)
        if watched.poll():  # it has gone already
            os._exit(1)
        return

    def end() -> None:
        wait([watched])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _context() -> Any:
    """Where possible, processes forked from a clean one that has already loaded the libraries."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.preload"])
    return context


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """One thread for every library in the processes started inside: they read these variables when loaded."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _processor_seconds(pid: int | None) -> float | None:
    """CPU seconds of a process, which do not depend on other work on the machine; None where not reported."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before it may hold anything
        user, system = int(fields[11]), int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return (user + system) / os.sysconf("SC_CLK_TCK")


def versions() -> dict[str, str]:
    """Versions of Python, simstream and the numerical libraries, and the processor."""
    names = ("simstream", "numpy", "scipy", "scikit-learn", "numba")
    found = {"python": platform.python_version()} | {name: version(name) for name in names}
    if find_spec("torch") is not None:
        found["torch"] = version("torch")
    return found | {"cpu": processor()}


@cache
def processor() -> str:
    """The name of this machine's processor.

    Examples
    --------
    >>> len(processor()) > 0
    True
    """
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
