"""A learner whose matrix is divided by columns over several workers, with the result of one process."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from .._engines import Geometry
from .._engines.base import ctrl_c_waits
from .._engines.columns import cut_state, joined_state
from .._kernels.columns import divided, summed
from .._kernels.steps import ROUNDS, UPDATES
from ..data.comparisons import Comparisons
from ..online.base import OnlineLearner
from ..online.listwise import ListwiseSoftmax
from ..online.multitask import OMTRSL
from ..online.triplets import TripletLearner
from ..persistence import check_saved_task, from_params, load, to_params
from ..similarity.base import SearchResult, chunks, top_k
from ..validation import Items, check_choice, check_integer, check_items, check_number
from .cluster import DEFAULT_STORE_BYTES, Cluster, WorkerLostError
from .folder import Checkpoint, RunFolder
from .shard import geometry_of
from .workers import RayWorkers, RestartedError, SerialWorkers

#: Tuples of a call that workers are given at a time.
_TUPLES_AT_A_TIME = 2**20

#: Items of the lists of a block, at most: the Gram matrix of all of them travels.
_MOST_LIST_ITEMS = 1024


class ShardedLearner:
    """Exact learning with the columns of M divided over workers, on one machine or on many.

    In every block of tuples each worker works out its part of the margins and Gram matrices from its own
    columns of M and of the items; the parts are summed in the order of the workers, and each takes the same
    steps on its own columns. The result is that of one process to rounding, whatever the number of workers,
    and bit for bit the same for the same number of workers, also after a worker was lost.

    OASIS, OGD, SORS without a threshold, PAMetric (projection "end"), ListwiseSoftmax and OMTRSL on dense
    items can be divided.

    Parameters
    ----------
    learner : an online learner
        Its parameters; if it has learnt already, it is continued. It is not changed itself.
    n_workers : int
    preprocessor : path, array, reference of ``ray.put``, or pair (queries, items) of them, optional
        Items that row numbers refer to, by default those of the learner. An .npy file is memory-mapped by all
        workers and must have the same name on all machines; anything else is first written to the folder.
    folder : path, optional
        Where checkpoints and waiting tuples are kept, a new or empty folder that all machines can reach. From
        it `resume` continues a run whose process was killed. None is a temporary folder, for the loss of
        workers alone.
    address : str, optional
        A running Ray cluster, as in `Cluster`; None starts Ray on this machine.
    backend : "ray" or "serial"
        "serial" keeps all shards in this process, without Ray: for trying things out.
    threads : int
        Threads of BLAS in each worker.
    checkpoint_seconds : float
        Time between two checkpoints; 0 is one after every block.
    max_restarts : int
        How often each worker is started again when it dies.
    restart_seconds : float
        How long to wait for that.
    object_store_bytes, num_cpus : int, optional
        Of a Ray that is started here: see `Cluster`.

    Attributes
    ----------
    n_rounds_, n_updates_, n_skipped_, average_loss_, mistake_rate_, violation_rate_ :
        As those of the learner.
    shape_, dtype_ : features of queries and items, precision
    learner_ : the ordinary learner with all columns in this process

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS
    >>> from simstream.distributed import ShardedLearner
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 8))
    >>> triplets = rng.integers(0, 50, (500, 3)) + [0, 0, 50]
    >>> with ShardedLearner(OASIS(C=0.1), 3, preprocessor=X, backend="serial") as divided:
    ...     together = divided.fit(triplets).learner_
    >>> alone = OASIS(C=0.1, preprocessor=X).fit(triplets)
    >>> np.allclose(together.get_bilinear_matrix(), alone.get_bilinear_matrix(), rtol=1e-12)
    True
    """

    def __init__(
        self,
        learner: Any,
        n_workers: int = 2,
        *,
        preprocessor: Any = None,
        folder: str | Path | None = None,
        address: str | None = None,
        backend: str = "ray",
        threads: int = 1,
        checkpoint_seconds: float = 60.0,
        max_restarts: int = 4,
        restart_seconds: float = 60.0,
        object_store_bytes: int = DEFAULT_STORE_BYTES,
        num_cpus: int | None = None,
    ) -> None:
        self._workers: Any = None
        self._is_temporary = False
        self._own_folder: RunFolder | None = None
        if not isinstance(learner, OnlineLearner):
            raise TypeError(f"learner: expected an online learner, got {type(learner).__name__}")
        check_integer("n_workers", n_workers)
        check_choice("backend", backend, ("ray", "serial"))
        check_number("checkpoint_seconds", checkpoint_seconds, exclusive=False)
        check_integer("max_restarts", max_restarts, minimum=0)
        check_number("restart_seconds", restart_seconds)
        learner.check_parameters()
        self.n_workers, self.backend = n_workers, backend
        self._learner = learner
        self._source = learner.preprocessor if preprocessor is None else preprocessor
        self._folder_given = None if folder is None else Path(folder)
        self._checkpoint_seconds = float(checkpoint_seconds)
        self._cluster_options: dict[str, Any] = {
            "address": address,
            "threads": threads,
            "object_store_bytes": object_store_bytes,
            "num_cpus": num_cpus,
        }
        self._restarts = max_restarts, float(restart_seconds)
        #: The learner as far as this process knows it: items, geometry, tasks and clock, but no columns.
        self._front: Any = None
        self._checkpoint: Checkpoint | None = None
        #: Calls since the last checkpoint; the one that is being learnt, and its next block.
        self._calls: list[_Call] = []
        self._at, self._block, self._saved_block = 0, 0, 0
        self._n_calls = self._n_checkpoints = 0
        self._saved_at = 0.0
        self._extra: dict[str, Any] = {}
        self._read_cache: Any = None
        self._items: Any = None

    # -- beginning and ending -------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_temporary", False):
            self.close()

    def close(self) -> None:
        """End the workers; if a folder was given, what was learnt is written there before."""
        if self._workers is not None:
            try:
                if not self._is_temporary and self._at == len(self._calls):
                    self.checkpoint()
            finally:
                self._workers.close()
                self._workers = None
        if self._is_temporary and self._own_folder is not None:
            shutil.rmtree(self._own_folder.path, ignore_errors=True)
            self._own_folder, self._is_temporary = None, False

    @property
    def folder(self) -> Path | None:
        """The folder of the run, once it has begun."""
        return None if self._own_folder is None else self._own_folder.path

    def prepare(self) -> int:
        """Start the workers, if they are not running; return the block size, as that of a learner does."""
        if self._workers is None:
            self._start()
        return self._block_size()

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the learner before it is divided; `preprocessor` may be a path."""
        if self._workers is not None:
            raise ValueError("set_params: expected it before learning begins, got it afterwards")
        if "preprocessor" in params:
            self._source = params.pop("preprocessor")
        if params:
            self._learner = copy.copy(self._learner).set_params(**params)
        return self

    def _start(self) -> None:
        folder = self._new_folder()
        learner = self._learner
        if self._source is None:
            raise ValueError("preprocessor: expected items (a path or an array), got None")
        dtype = learner.dtype if learner._engine is None else learner._engine.dtype
        files, _ = folder.items(self._source, dtype)
        whole = self._open(learner, folder, files)
        if learner._engine is None:
            geometry = learner._geometry(whole, folded=False)
        else:
            geometry = _check_divisible(learner, whole)
        front = self._new_front(whole, geometry)
        self._check_width(whole)
        content, arrays = to_params(learner)
        added, means = geometry.state()
        folder.write_learner({**content, **added, "items": files}, arrays | means)
        if learner._engine is not None:
            self._checkpoint = self._write_cut(folder, learner._engine)
            _take_names_and_coins(front, _names_and_coins(learner))
        self._front = front
        self._go(folder)

    def _go(self, folder: RunFolder) -> None:
        """Start the workers at the last checkpoint."""
        if self.backend == "serial":
            workers: Any = SerialWorkers(self.n_workers)
        else:
            workers = RayWorkers(Cluster(self.n_workers, **self._cluster_options), *self._restarts)
        try:
            workers.start(str(folder.path))
            workers.call("restore", self._checkpoint)
            _synchronise(self._front, *workers.call("progress")[0])
        except BaseException:
            workers.close()
            raise
        self._workers = workers
        self._saved_at = time.monotonic()
        self._write_run()

    def _new_folder(self) -> RunFolder:
        if self._folder_given is None:
            if self._cluster_options["address"] not in (None, "local", "auto"):
                raise ValueError(
                    "folder: expected one that all machines of the cluster can reach, got None"
                )
            self._own_folder = RunFolder(tempfile.mkdtemp(prefix="simstream-shards-"))
            self._is_temporary = True
            return self._own_folder
        path = self._folder_given.resolve()
        path.mkdir(parents=True, exist_ok=True)
        self._own_folder = RunFolder(path)
        if self._own_folder.has_run:
            raise FileExistsError(
                f"folder: expected a new one, got {path}, which has a run already; continue it with "
                "ShardedLearner.resume, or delete it"
            )
        return self._own_folder

    def _open(self, learner: Any, folder: RunFolder, files: list[dict[str, str]]) -> Comparisons:
        """The items of a run, checked, without tuples."""
        sides = folder.open_items(files)
        self._items = sides[0] if len(sides) == 1 else tuple(sides)
        probe = copy.copy(learner)
        probe._items = None
        left, right = probe._item_cache().items(self._items, sides[0].dtype)
        self._whole = Comparisons(left, right, np.empty((0, 3), np.int64))
        return self._whole

    def _new_front(self, whole: Comparisons, geometry: Geometry) -> Any:
        """A learner without columns, which reads and checks tuples and counts rounds."""
        front = from_params(*to_params(self._learner))
        front.preprocessor = self._items
        engine = front._new_shard(whole, geometry, slice(0, 1))
        engine.geometry = geometry
        engine.shape = (whole.shape[0] + geometry.n_extra, whole.shape[1])
        front._forget(engine)
        return front

    def _check_width(self, whole: Comparisons) -> None:
        if self.n_workers > whole.shape[1]:
            raise ValueError(
                f"n_workers: expected at most one for each of {whole.shape[1]} columns, got {self.n_workers}"
            )

    def _write_cut(self, folder: RunFolder, engine: Any) -> Checkpoint:
        """The columns of an engine as a first checkpoint."""
        columns = divided(engine.shape[1], self.n_workers)
        for number, some in enumerate(columns):
            state = cut_state(engine.kind, engine.state(), some)
            folder.write_shard(0, number, engine.kind, state, some)
        return Checkpoint(0, columns)

    def _block_size(self, tuples: Comparisons | None = None) -> int:
        """Tuples of a block; the same for any number of workers."""
        front = self._front
        size = int(front._block_size(front._engine))
        if tuples is not None and isinstance(front, ListwiseSoftmax):
            # The Gram matrix of a list's items costs more the more lists there are in a block.
            length = tuples.index.shape[1] - 1
            fitting = min(_MOST_LIST_ITEMS // length, 4 * front._engine.shape[0] // length**2)
            return max(1, min(size, fitting))
        return max(size, 32)

    # -- learning -------------------------------------------------------------------------------

    def fit(self, tuples: Any, y: Any = None, tasks: Any = None) -> Self:
        """Forget what was learnt and learn from these tuples, in order; see `partial_fit`."""
        if self._workers is None:
            self._learner = from_params(*to_params(self._learner))  # one that has learnt nothing
            self._start()
        else:
            front = self._front
            self._front = self._new_front(self._whole, front._engine.geometry)
            self._calls, self._at, self._block = [], 0, 0
            self._saved_block, self._checkpoint = 0, None
            self._answers("restore", None)
        return self.partial_fit(tuples, y, tasks)

    def partial_fit(
        self, tuples: Any, y: Any = None, tasks: Any = None, *, oracle: Any = None
    ) -> Self:
        """Go on learning from these tuples, in order.

        Parameters
        ----------
        tuples : (n, 3) or (n, 2) integers, lists of them for ListwiseSoftmax, or the path of an .npy file
            Rows of `preprocessor`.
        y : labels of pairs, or answers of OMTRSL
        tasks, oracle : as those of OMTRSL
        """
        if self._workers is None:
            self._start()
        if isinstance(tuples, (str, Path)):
            tuples = np.load(tuples, mmap_mode="r", allow_pickle=False)
        read = self._read(np.asarray(tuples), y, tasks, oracle)
        if self._at < len(self._calls):
            self._end_interrupted()
        size = self._block_size(read)
        at_a_time = size * max(1, _TUPLES_AT_A_TIME // size)
        for first in range(0, len(read), at_a_time):
            self._add_call(read.part(first, first + at_a_time), size)
        self._write_run()
        self._finish()
        return self

    def _read(self, tuples: np.ndarray, y: Any, tasks: Any, oracle: Any) -> Comparisons:
        """Checked tuples; the front learner knows their tasks afterwards."""
        front = self._front
        front._check_parameters()
        if tuples.ndim != 2:
            raise ValueError(
                f"tuples: expected row numbers of preprocessor, got an array of shape {tuples.shape}"
            )
        if not isinstance(front, OMTRSL):
            if tasks is not None or oracle is not None:
                raise TypeError(f"tasks, oracle: expected None for {type(front).__name__}")
            read = front._read(tuples, y, front._target_dtype())
            front._begin(read)
            return read
        if y is not None and oracle is not None:
            raise ValueError("oracle: expected it instead of y, got both")
        read = front._read_tuples(tuples, 3, front._target_dtype())
        given = y if oracle is None else oracle
        read, numbers = front._named(read, given, tasks, front._known())
        front._begin(read)
        read = front._with_coins(read, oracle is not None)
        front._numbers = numbers
        return read

    def _add_call(self, read: Comparisons, block_size: int) -> None:
        arrays = {"index": np.ascontiguousarray(read.index)}
        for name in ("y", "tasks", "coins"):
            if (array := getattr(read, name)) is not None:
                arrays[name] = np.ascontiguousarray(array)
        file = None
        if not self._is_temporary:
            assert self._own_folder is not None
            file = self._own_folder.write_tuples(self._n_calls, arrays)
        self._n_calls += 1
        self._calls.append(_Call(arrays, block_size, file))

    def _finish(self) -> None:
        """Learn all calls that wait; go back to the last checkpoint whenever a worker was lost."""
        try:
            while self._at < len(self._calls):
                try:
                    self._learn_call(self._calls[self._at])
                except RestartedError:
                    self._go_back()
        except KeyboardInterrupt:
            if not self._is_temporary:
                with suppress(RestartedError):  # an older checkpoint is as good: nothing is lost
                    self._save()
            raise
        except WorkerLostError as error:
            raise WorkerLostError(f"{error}; {self._advice()}") from error

    def _learn_call(self, call: _Call) -> None:
        workers = self._workers
        if call.shared is None:
            call.shared = workers.share(call.arrays)
        answers = workers.call("begin", call.shared, self._block, call.block_size)
        while answers[0][0] is not None:
            with ctrl_c_waits():
                sums = summed([parts for parts, _, _ in answers])
                answers = workers.call("advance", workers.share(sums))
                self._note(answers)
                self._block += 1
                if time.monotonic() - self._saved_at >= self._checkpoint_seconds:
                    self._save()
        call.shared = None
        self._at, self._block = self._at + 1, 0

    def _note(self, answers: list[Any]) -> None:
        """Take over the counters; all workers must have made the same decisions."""
        _, clock, n_seen = answers[0]
        for number, (_, other, _) in enumerate(answers):
            if other[UPDATES] != clock[UPDATES] or other[ROUNDS] != clock[ROUNDS]:
                raise RuntimeError(
                    f"worker {number} has taken other steps than worker 0: their machines round differently; "
                    "use machines of one kind"
                )
        _synchronise(self._front, clock, n_seen)
        self._read_cache = None

    def _go_back(self) -> None:
        """Bring all workers to the last checkpoint; what was learnt after it is learnt again."""
        while True:
            try:
                self._workers.call("restore", self._checkpoint)
                break
            except RestartedError:
                continue
        self._at, self._block = 0, self._saved_block
        for call in self._calls:
            call.shared = None  # those who had a reference may be gone

    def _end_interrupted(self) -> None:
        """Leave the rest of a call that was interrupted: a checkpoint says what was learnt of it."""
        self._calls, self._at, self._block = [], 0, 0
        self.checkpoint()

    def _advice(self) -> str:
        if self._is_temporary:
            return "without a folder, the run cannot be continued: begin again, and give one"
        return (
            f"the run is continued from its last checkpoint by ShardedLearner.resume({str(self.folder)!r}), "
            "with n_workers=... if there are fewer machines"
        )

    # -- checkpoints ----------------------------------------------------------------------------

    def checkpoint(self, *, extra: dict[str, Any] | None = None) -> None:
        """Write all shards to the folder; older ones are deleted when all are written.

        Parameters
        ----------
        extra : dict of JSON values kept with the run, for the caller's own use
        """
        if self._workers is None:
            raise ValueError("checkpoint: expected a run that has begun; call prepare or fit first")
        if extra is not None:
            self._extra = extra
        while True:
            try:
                return self._save()
            except RestartedError:
                self._go_back()
                self._finish()

    def _save(self) -> None:
        number = self._n_checkpoints + 1
        self._workers.call("save", number)
        self._n_checkpoints = number
        assert self._own_folder is not None
        self._checkpoint = Checkpoint(number, divided(self.shape_[1], self.n_workers))
        del self._calls[: self._at]
        self._at, self._saved_block = 0, self._block
        self._saved_at = time.monotonic()
        self._write_run()
        kept = {call.file for call in self._calls if call.file is not None}
        self._own_folder.delete_all_but(number, kept)

    def _write_run(self) -> None:
        """Write what `resume` needs; nothing for a temporary folder."""
        if not self._is_temporary and self._own_folder is not None:
            self._own_folder.write_run(self._record())

    def _record(self) -> dict[str, Any]:
        saved = self._checkpoint
        calls = [{"file": call.file, "block_size": call.block_size} for call in self._calls]
        return {
            "n_workers": self.n_workers,
            "checkpoint": None if saved is None else saved.number,
            "columns": [] if saved is None else [[some.start, some.stop] for some in saved.columns],
            "calls": calls,
            "block": self._saved_block,
            "n_calls": self._n_calls,
            "extra": self._extra,
            **_names_and_coins(self._front),
        }

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        n_workers: int | None = None,
        *,
        preprocessor: Any = None,
        **options: Any,
    ) -> Self:
        """Continue the run of a folder: the rest of what was being learnt when it ended is learnt first.

        Parameters
        ----------
        folder : the folder of a run, or of `save_shards`
        n_workers : int, optional
            As many as before if None; with another number the columns are divided anew.
        preprocessor : items, optional
            Where they are now, if not where they were.
        options : as those of the class

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from simstream import OASIS
        >>> from simstream.distributed import ShardedLearner
        >>> folder = tempfile.mkdtemp()
        >>> X, triplets = np.eye(6), np.array([[0, 1, 2], [3, 4, 5]])
        >>> given = {"folder": folder, "preprocessor": X, "backend": "serial"}
        >>> with ShardedLearner(OASIS(), 2, **given) as divided:
        ...     _ = divided.fit(triplets)
        >>> with ShardedLearner.resume(folder, 3, backend="serial") as divided:
        ...     divided.n_rounds_
        2
        """
        found = RunFolder(Path(folder).resolve())
        run = found.read_run()
        content, arrays = found.read_learner()
        learner = from_params(content, arrays)
        self = cls(learner, n_workers or run["n_workers"], folder=folder, **options)
        self._own_folder = found
        if preprocessor is not None:
            if run["calls"]:
                raise ValueError(
                    "preprocessor: expected None, since tuples wait that refer to the items of the run"
                )
            content["items"] = found.items(preprocessor, None)[0]
            found.write_learner(content, arrays)
        found.check_items(content["items"])
        whole = self._open(learner, found, content["items"])
        self._check_width(whole)
        geometry = geometry_of(content, arrays, whole)
        self._front = self._new_front(whole, geometry)
        _take_names_and_coins(self._front, run)
        self._n_calls, self._extra = run["n_calls"], run["extra"]
        if run["checkpoint"] is not None:
            columns = [slice(*some) for some in run["columns"]]
            self._checkpoint = Checkpoint(run["checkpoint"], columns)
            self._n_checkpoints = run["checkpoint"]
        for call in run["calls"]:
            tuples = found.read_tuples(call["file"])
            self._calls.append(_Call(tuples, call["block_size"], call["file"]))
        self._block = self._saved_block = run["block"]
        self._go(found)
        try:
            self._finish()
        except BaseException:
            self._workers.close()
            self._workers = None
            raise
        return self

    # -- reading --------------------------------------------------------------------------------

    @property
    def extra_(self) -> dict[str, Any]:
        """What `checkpoint` was given as extra."""
        return self._extra

    @property
    def learner_(self) -> Any:
        """The ordinary learner with all columns, copied into this process as it is now."""
        front = self._fitted()
        kept = self._read_cache
        if kept is None:
            answers = self._answers("state")
            kind = answers[0][0]
            state = joined_state(kind, [state for _, state in answers])
            engine = {known.kind: known for known in front._engine_types}[kind].from_state(*state)
            engine.geometry = front._engine.geometry
            learner = copy.copy(front)
            learner._engine, learner._read_cache = engine, None
            kept = self._read_cache = learner
        return kept

    def transform_query(self, queries: Any) -> np.ndarray:
        """Map queries q to M'q, each worker its own columns: see `Bilinear.transform_query`."""
        if not self._reads_by_columns():
            return self.learner_.transform_query(queries)
        rows = check_items(queries, "queries", dtype=self.dtype_).values
        if rows.shape[1] != self.shape_[0]:
            raise ValueError(f"queries: expected {self.shape_[0]} features, got {rows.shape[1]}")
        return np.concatenate(self._answers("transform", self._workers.share(rows)), axis=1)

    def search(self, queries: Any, items: Any = None, k: int = 10) -> SearchResult:
        """Most similar items of each query, best first, as the learner finds them.

        Parameters
        ----------
        queries : array
        items : array or path of an .npy file, optional
            Those that the learner was given, if None.
        k : int
        """
        if items is None:
            items = self._items[-1] if isinstance(self._items, tuple) else self._items
        elif isinstance(items, (str, Path)):
            items = np.load(items, mmap_mode="r")
        check_integer("k", k)
        front = self._fitted()
        if not self._reads_by_columns() or front._engine.geometry.n_extra:
            return self.learner_.search(queries, items, k)
        if front._engine.geometry.query_mean is not None:  # scores count from the mean
            return self.learner_.search(queries, items, k)
        transformed, rows = self.transform_query(queries), Items(np.asarray(items))
        parts = [
            top_k(transformed[some] @ rows.values.T, min(k, rows.shape[0]))
            for some in chunks(len(transformed), 4 * rows.shape[0] * self.dtype_.itemsize)
        ]
        return SearchResult(*(np.concatenate(found) for found in zip(*parts, strict=True)))

    def _reads_by_columns(self) -> bool:
        """Whether a column of what is read depends on that column of the matrix alone."""
        front = self._fitted()
        reads = any(getattr(front, name, None) for name in ("symmetric", "projection", "normalise"))
        return isinstance(front, TripletLearner) and not reads

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write one model file, that of the ordinary learner: `simstream.load` reads it anywhere."""
        self.learner_.save(path, extra=extra)

    def save_shards(self, folder: str | Path) -> None:
        """Write a folder that `load` divides again, over any number of workers: nothing is gathered.

        The folder names the items by their path; those in the folder of the run are copied.
        """
        self.checkpoint()
        assert self._own_folder is not None
        assert self._checkpoint is not None
        target = RunFolder(Path(folder).resolve())
        target.path.mkdir(parents=True, exist_ok=True)
        if target.has_run:
            raise FileExistsError(
                f"folder: expected a new one, got {folder}, which has a run already"
            )
        content, arrays = self._own_folder.read_learner()
        for number in range(len(self._checkpoint.columns)):
            source = self._own_folder.shard_path(self._checkpoint.number, number)
            shutil.copyfile(source, target.shard_path(self._checkpoint.number, number))
        for file in content["items"]:
            if not Path(file["path"]).is_absolute():
                shutil.copyfile(self._own_folder.path / file["path"], target.path / file["path"])
        target.write_learner(content, arrays)
        target.write_run(self._record())

    @classmethod
    def load(cls, path: str | Path, n_workers: int | None = None, **options: Any) -> Self:
        """Divide a saved model: a file of any process, or a folder of `save_shards` or of a run.

        Parameters
        ----------
        path : file or folder
        n_workers : int, optional
            2 for a file, as many as before for a folder, if None.
        options : as those of the class
        """
        if Path(path).is_dir():
            return cls.resume(path, n_workers, **options)
        return cls(load(path), n_workers or 2, **options)

    def _answers(self, method: str, *args: Any) -> list[Any]:
        """Answers of all workers about what was learnt; after a loss it is learnt again first."""
        while True:
            try:
                return self._workers.call(method, *args)
            except RestartedError:
                self._go_back()
                self._finish()

    def _fitted(self) -> Any:
        if self._workers is None:
            raise NotFittedError(
                "this ShardedLearner has no workers: call prepare, fit or partial_fit first"
            )
        return self._front

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._fitted().shape_

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the matrix."""
        return self._fitted().dtype_

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        if not self._reads_by_columns():
            return float(self.learner_.sparsity_)
        rows, columns = self.shape_
        return sum(self._answers("n_zeros")) / (rows * columns)

    def __getattr__(self, name: str) -> Any:
        if name in _COUNTED:
            return getattr(self._fitted(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


#: What the learner without columns knows as well as the whole one.
_COUNTED = (
    "n_rounds_", "n_updates_", "n_skipped_", "average_loss_", "mistake_rate_", "violation_rate_",
    "init_scale_", "centre_", "tasks_", "query_ratio_",
)  # fmt: skip


class _Call:
    """Tuples that are learnt together, and the file that has them too."""

    def __init__(self, arrays: dict[str, np.ndarray], block_size: int, file: str | None) -> None:
        self.arrays, self.block_size, self.file = arrays, block_size, file
        #: A reference to the arrays that workers can read.
        self.shared: Any = None


def _check_divisible(learner: Any, whole: Comparisons) -> Geometry:
    """The geometry of a learner that has learnt already; raises if its engine has no columns to cut."""
    engine = learner._engine
    if engine.kind not in ("dense", "dense-tasks") or engine.geometry.folded:
        raise TypeError(
            f"learner: expected one that has learnt from dense items, got an engine of kind {engine.kind!r}"
        )
    learner._begin(whole)
    return engine.geometry


def _synchronise(front: Any, clock: np.ndarray, n_seen: int) -> None:
    """Take over the counters of a worker."""
    front._engine.clock[...] = clock
    if isinstance(front, OMTRSL):
        front._engine.n_seen = n_seen


def _names_and_coins(front: Any) -> dict[str, Any]:
    """JSON values of what OMTRSL knows besides its matrices."""
    if not isinstance(front, OMTRSL):
        return {}
    coins = None if front._coins is None else front._coins.bit_generator.state
    return {"tasks": [check_saved_task(name) for name in front._numbers], "coins": coins}


def _take_names_and_coins(front: Any, run: dict[str, Any]) -> None:
    if isinstance(front, OMTRSL):
        front._numbers = {name: number for number, name in enumerate(run["tasks"])}
        if run["coins"] is not None:
            front._coins = np.random.default_rng()
            front._coins.bit_generator.state = run["coins"]
