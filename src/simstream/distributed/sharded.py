"""A learner whose matrix is divided by columns over several workers, with the result of one process."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from .._engines import Geometry
from .._engines.columns import cut_state, joined_state
from .._kernels.columns import divided
from ..batch.sdca import SDCA, check_lengths
from ..data.comparisons import Comparisons
from ..online.base import OnlineLearner
from ..online.listwise import ListwiseSoftmax
from ..online.multitask import OMTRSL
from ..online.pairs import PairLearner
from ..online.triplets import TripletLearner
from ..persistence import check_saved_task, from_params, load, to_params
from ..similarity.base import SearchResult, chunks, top_k
from ..similarity.pair_labels import saved_classes
from ..validation import (
    Items,
    check_choice,
    check_feature_names,
    check_integer,
    check_items,
    check_number,
    shape_of,
)
from .cluster import DEFAULT_STORE_BYTES, Cluster
from .folder import Checkpoint, RunFolder, map_array
from .run import Run
from .shard import geometry_of
from .workers import RayWorkers, SerialWorkers

#: Tuples that workers are given at a time.
_TUPLES_AT_A_TIME = 2**20

#: Items of the lists of a block, at most: the Gram matrix of all of them travels.
_MOST_LIST_ITEMS = 1024

#: Fewest tuples of a block: fewer cost more messages than they save work.
_FEWEST_TUPLES = 256


def _of_front(name: str) -> Any:
    """A property that a learner without columns has as well as the whole one."""

    def read(self: ShardedLearner) -> Any:
        self._running()
        return getattr(self._front, name)

    return property(read, doc=f"As ``{name}`` of the learner.")


class ShardedLearner:
    """Exact learning with the columns of M divided over workers, on one machine or on many.

    In every block of tuples each worker works out its part of the margins and Gram matrices from its own
    columns of M and of the items; the parts are summed, always in the same order, and each takes the same
    steps on its own columns. The result is that of one process to rounding, whatever the number of workers,
    and bit for bit the same for the same number of workers, also after a worker was lost.

    OASIS, OGD, SORS without a threshold, PAMetric (projection "end"), ListwiseSoftmax, OMTRSL and SDCA can be
    divided, on dense items. SDCA learns from all tuples at once, in `fit`.

    Parameters
    ----------
    learner : an online learner, or SDCA
        Its parameters; if it has learnt already, it is continued. It is not changed itself.
    n_workers : int
    preprocessor : path, array, reference of ``ray.put``, or pair (queries, items) of them, optional
        Items that row numbers refer to, by default those of the learner. An .npy file is memory-mapped by all
        workers and must have the same name on all machines; anything else is first written to the folder,
        and so are the ids of `Items` with ids.
    folder : path, optional
        Where checkpoints and waiting tuples are kept, a new or empty folder that all machines can reach. From
        it `resume` continues a run whose process was killed. It is locked while the run is open. None is a
        temporary folder, for the loss of workers alone, and for one machine.
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
    shape_, dtype_ :
        Features of queries and items, and precision.
    learner_ :
        The ordinary learner with all columns in this process.

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
        self._run: Run | None = None
        self._temporary: Any = None
        if not isinstance(learner, (OnlineLearner, SDCA)):
            raise TypeError(
                f"learner: expected an online learner or SDCA, got {type(learner).__name__}"
            )
        learner.check_parameters()
        if learner.device not in ("cpu", "auto"):
            raise ValueError(
                f"device: expected 'cpu' for a learner whose columns are divided, got {learner.device!r}"
            )
        self.n_workers = check_integer("n_workers", n_workers)
        self.backend = check_choice("backend", backend, ("ray", "serial"))
        check_number("checkpoint_seconds", checkpoint_seconds, exclusive=False)
        check_integer("max_restarts", max_restarts, minimum=0)
        check_number("restart_seconds", restart_seconds)
        self._learner = learner
        self._is_batch = isinstance(learner, SDCA)
        self._source = learner.preprocessor if preprocessor is None else preprocessor
        self._folder_given = None if folder is None else Path(folder)
        self._seconds = float(checkpoint_seconds)
        self._cluster_options: dict[str, Any] = {
            "address": address,
            "threads": threads,
            "object_store_bytes": object_store_bytes,
            "num_cpus": num_cpus,
        }
        self._restarts = max_restarts, float(restart_seconds)
        #: The items, and the learner as far as this process knows it: geometry, tasks, clock, no columns.
        self._whole: Any = None
        self._front: Any = None
        self._gathered: Any = None

    # -- beginning and ending -------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; if a folder was given, what was learnt is written there before."""
        try:
            if self._run is not None:
                run, self._run = self._run, None
                run.close()
        finally:
            if self._temporary is not None:
                self._temporary()  # deletes it
                self._temporary = None

    @property
    def folder(self) -> Path | None:
        """The folder of the run, while there are workers."""
        return None if self._run is None else self._run.folder.path

    def prepare(self) -> int:
        """Start the workers, if they are not running; return the block size, as that of a learner does."""
        if self._run is None:
            self._start()
        return self._block_size()

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the learner, before learning begins; `preprocessor` may be a path."""
        if self._run is not None:
            raise ValueError("set_params: expected it before learning begins, got it afterwards")
        if "preprocessor" in params:
            self._source = params.pop("preprocessor")
        if params:
            self._learner = copy.copy(self._learner).set_params(**params)
        return self

    def _start(self) -> None:
        learner = self._learner
        if self._source is None:
            raise ValueError("preprocessor: expected items (a path or an array), got None")
        engine = getattr(learner, "_engine", None)
        folder = self._new_folder()
        try:
            files = folder.items(self._source, learner.dtype if engine is None else engine.dtype)
            self._open(folder, files)
            geometry = Geometry()
            if self._is_batch:
                learner = _with_seed(learner)
            elif engine is None:
                geometry = learner._geometry(self._whole, folded=False)
            else:
                geometry = _check_divisible(learner, self._whole)
            self._front = self._new_front(learner, geometry)
            content, arrays = to_params(learner)
            added, means = geometry.state()
            folder.write_learner({**content, **added, "items": files}, arrays | means)
            run = self._new_run(folder)
            if engine is not None:
                run.checkpoint = self._write_cut(folder, engine)
                _take_names(self._front, _names(learner))
            run.start()
        except BaseException:
            folder.clear()
            folder.unlock()
            self.close()
            raise
        run.write()
        self._run = run

    def _new_folder(self) -> RunFolder:
        if self._folder_given is None:
            if self._cluster_options["address"] not in (None, "local", "auto"):
                raise ValueError(
                    "folder: expected one that all machines of the cluster can reach, got None"
                )
            path = Path(tempfile.mkdtemp(prefix="simstream-shards-"))
            self._temporary = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
            return RunFolder(path)
        folder = RunFolder(self._folder_given.resolve())
        folder.make()
        folder.lock()
        return folder

    def _open(self, folder: RunFolder, files: list[dict[str, Any]]) -> None:
        """Map the items of a run, and check them."""
        mapped = folder.open_items(files)
        sides = []
        for rows, file in zip(mapped, files, strict=True):
            items = check_items(rows, "preprocessor", dtype=mapped[0].dtype)
            sides.append(Items(items, ids=folder.read_ids(file)))
            if "feature_names" in file:
                sides[-1].feature_names = np.array(file["feature_names"], dtype=object)
        self._whole = Comparisons(sides[0], sides[-1], np.empty((0, 3), np.int64))
        self._items = sides[0] if len(sides) == 1 else tuple(sides)
        if self.n_workers > self._whole.shape[1]:
            raise ValueError(
                f"n_workers: expected at most one for each of {self._whole.shape[1]} columns, got "
                f"{self.n_workers}"
            )

    def _new_front(self, learner: Any, geometry: Geometry) -> Any:
        """A learner without columns, which reads and checks tuples and counts rounds."""
        front = from_params(*to_params(learner))
        front.preprocessor = self._items
        if not self._is_batch:
            engine = front._new_shard(self._whole, geometry, slice(0, 1))
            rows, columns = self._whole.shape
            engine.geometry, engine.shape = geometry, (rows + geometry.n_extra, columns)
            front._forget(engine)
        front._name_features(self._whole)
        if front._feature_names is None:
            _name_features(front, learner._feature_names)
        return front

    def _new_run(self, folder: RunFolder) -> Run:
        workers: Any = SerialWorkers(self.n_workers)
        if self.backend == "ray":
            workers = RayWorkers(
                Cluster(self.n_workers, **self._cluster_options),
                *self._restarts,
                is_temporary=self._temporary is not None,
            )
        run = Run(
            workers,
            folder,
            divided(self._whole.shape[1], self.n_workers),
            is_temporary=self._temporary is not None,
            seconds=self._seconds,
            is_batch=self._is_batch,
            note=self._note,
            max_restarts=self._restarts[0],
        )
        run.names = lambda: _names(self._front)
        return run

    def _write_cut(self, folder: RunFolder, engine: Any) -> Checkpoint:
        """The columns of an engine as a first checkpoint."""
        columns = divided(engine.shape[1], self.n_workers)
        for number, some in enumerate(columns):
            state = cut_state(engine.kind, engine.state(), some)
            folder.write_shard(0, number, engine.kind, state, some)
        return Checkpoint(0, columns)

    def _note(self, clock: np.ndarray, n_seen: int) -> None:
        """Take over the counters of the workers."""
        self._gathered = None
        if not self._is_batch:
            self._front._engine.clock[...] = clock
        if isinstance(self._front, OMTRSL):
            self._front._engine.n_seen = n_seen

    # -- learning -------------------------------------------------------------------------------

    def fit(self, tuples: Any, y: Any = None, tasks: Any = None) -> Self:
        """Forget what was learnt and learn from these tuples, in order; see `partial_fit`."""
        if self._run is None:
            self._learner = from_params(*to_params(self._learner))  # one that has learnt nothing
            self._start()
        else:
            geometry = Geometry() if self._is_batch else self._front._engine.geometry
            self._front, self._gathered = self._new_front(self._front, geometry), None
            self._run.forget()
        return self._learn(tuples, y, tasks, None)

    def partial_fit(
        self, tuples: Any, y: Any = None, tasks: Any = None, *, oracle: Any = None
    ) -> Self:
        """Go on learning from these tuples, in order.

        Parameters
        ----------
        tuples : (n, 3) or (n, 2) integers, lists of them for ListwiseSoftmax, or the path of an .npy file
            Rows of `preprocessor`, or ids if it is `Items` with ids.
        y : labels of pairs, or answers of OMTRSL
        tasks, oracle : as those of OMTRSL
        """
        if self._is_batch:
            raise TypeError(
                "partial_fit: expected fit for SDCA, which learns from all tuples at once"
            )
        if self._run is None:
            self._start()
        return self._learn(tuples, y, tasks, oracle)

    def _learn(self, tuples: Any, y: Any, tasks: Any, oracle: Any) -> Self:
        run = self._running()
        if isinstance(tuples, (str, Path)):
            tuples = map_array(tuples)
        read = self._read(tuples, y, tasks, oracle)
        run.leave()
        size = self._block_size(read)
        at_a_time = len(read) if self._is_batch else size * max(1, _TUPLES_AT_A_TIME // size)
        for first in range(0, len(read), max(1, at_a_time)):
            part = read.part(first, first + at_a_time)
            arrays = {name: getattr(part, name) for name in ("index", "y", "tasks", "coins")}
            given = {name: array for name, array in arrays.items() if array is not None}
            run.add({name: np.ascontiguousarray(array) for name, array in given.items()}, size)
        run.write()
        run.finish()
        return self

    def _read(self, tuples: Any, y: Any, tasks: Any, oracle: Any) -> Comparisons:
        """Checked tuples; the learner without columns knows their tasks afterwards."""
        front = self._front
        front._check_parameters()
        if len(shape := shape_of(tuples)) != 2:
            raise ValueError(
                f"tuples: expected row numbers of preprocessor, or ids, got an array of shape {shape}"
            )
        if isinstance(front, OMTRSL):
            if y is not None and oracle is not None:
                raise ValueError("oracle: expected it instead of y, got both")
            given = y if oracle is None else oracle
            read = front._read_tuples(tuples, 3, self.dtype_)
            read, numbers = front._named(read, given, tasks, front._known())
            front._begin(read)
            read = front._with_coins(read, oracle is not None)
            front._numbers = numbers
            return read
        if tasks is not None or oracle is not None:
            raise TypeError(f"tasks, oracle: expected None for {type(front).__name__}, got some")
        if self._is_batch:
            read = front._read_tuples(tuples, 3, self.dtype_)
            check_lengths(read)
            return read
        read = front._read(tuples, y, self.dtype_)
        if read.is_quadruplets:
            raise ValueError(
                "tuples: expected pairs or triplets to divide the columns, got quadruplets"
            )
        front._begin(read)
        return read

    def _block_size(self, tuples: Comparisons | None = None) -> int:
        """Tuples of a block; the same for any number of workers."""
        front = self._front
        if self._is_batch:
            return 1  # it draws blocks by itself
        size = int(front._block_size(front._engine))
        if tuples is not None and isinstance(front, ListwiseSoftmax):
            # The Gram matrix of all items costs each list more, the more lists there are in a block.
            length = tuples.index.shape[1] - 1
            cheap = max(8, 4 * front._engine.shape[0] // length**2)
            return max(1, min(size, cheap, _MOST_LIST_ITEMS // length))
        return max(size, _FEWEST_TUPLES) if front.block_size is None else size

    def checkpoint(self) -> None:
        """Write all shards to the folder; older ones are deleted when all are written.

        When SDCA has finished, nothing is written: `resume` finishes again, from the checkpoint before. What
        it has found is written by `save`.
        """
        self._running().save()

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
            Where they are now, if not where they were; others are refused, and so are other ids. Ids are kept
            with the run: what is given here need not have them.
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
        found.read_run()  # raises if there is none
        found.lock()
        try:
            return cls._resume(found, n_workers, preprocessor, folder=folder, **options)
        except BaseException:
            found.unlock()
            raise

    @classmethod
    def _resume(
        cls, found: RunFolder, n_workers: int | None, preprocessor: Any, **options: Any
    ) -> Self:
        record = found.read_run()
        content, arrays = found.read_learner()
        learner = from_params(content, arrays)
        self = cls(learner, n_workers or record["n_workers"], **options)
        if preprocessor is not None:
            found.check_same(content["items"], preprocessor)
            files = found.items(preprocessor, np.dtype(content["items"][0]["dtype"]))
            for before, file in zip(content["items"], files, strict=True):
                for name in ("ids", "feature_names"):
                    if name in before:  # and there are no others
                        file[name] = before[name]
            content["items"] = files
            found.write_learner(content, arrays)
        found.check_items(content["items"])
        self._open(found, content["items"])
        geometry = geometry_of(content, arrays, self._whole)
        self._front = self._new_front(learner, geometry)
        _take_names(self._front, record["names"])
        run = self._new_run(found)
        run.read(record)
        run.start()
        try:
            run.finish()
        except BaseException:
            run.workers.close()
            raise
        self._run = run
        return self

    # -- reading --------------------------------------------------------------------------------

    @property
    def extra_(self) -> dict[str, Any]:
        """JSON values of the caller, kept with the run from the next call or checkpoint on."""
        return self._running().extra

    @extra_.setter
    def extra_(self, extra: dict[str, Any]) -> None:
        self._running().extra = extra

    @property
    def front_(self) -> Any:
        """The learner without columns: its parameters, counters and tasks are right, its matrix is not."""
        self._running()
        return self._front

    @property
    def learner_(self) -> Any:
        """The ordinary learner with all columns, copied into this process as it is now."""
        run = self._running()
        if self._gathered is None:
            self._gathered = self._solved(run) if self._is_batch else self._joined(run)
        return self._gathered

    def _joined(self, run: Run) -> Any:
        answers = run.answers("state")
        kind = answers[0][0]
        state = joined_state(kind, [state for _, state in answers])
        learner = copy.copy(self._front)
        engine = {known.kind: known for known in learner._engine_types}[kind].from_state(*state)
        engine.geometry = learner._engine.geometry
        learner._engine = engine
        learner._reads().clear()
        return learner

    def _solved(self, run: Run) -> SDCA:
        found = run.answers("solution")
        if found[0] is None:
            raise NotFittedError("SDCA has not learnt anything yet: call fit first")
        matrix = np.concatenate([part.matrix for part in found], axis=1)
        return copy.copy(self._front)._keep(found[0]._replace(matrix=matrix))

    def _reads_by_columns(self) -> bool:
        """Whether a column of what is read depends on that column of the matrix alone."""
        front = self._front
        others = ("symmetric", "projection", "normalise")
        return isinstance(front, TripletLearner) and not any(
            getattr(front, name, None) for name in others
        )

    def transform_query(self, queries: Any) -> np.ndarray:
        """Map queries q to M'q, each worker its own columns: see `Bilinear.transform_query`."""
        run = self._running()
        if not self._reads_by_columns():
            return self.learner_.transform_query(queries)
        checked = check_items(queries, "queries", dtype=self.dtype_)
        if checked.shape[1] != self.shape_[0]:
            raise ValueError(f"queries: expected {self.shape_[0]} features, got {checked.shape[1]}")
        check_feature_names(self._front._feature_names, checked, "queries")
        rows = checked.values
        return np.concatenate(run.answers("transform", run.workers.share(rows)), axis=1)

    def search(self, queries: Any, items: Any = None, k: int = 10) -> SearchResult:
        """Most similar items of each query, best first, as the learner finds them.

        Parameters
        ----------
        queries : array
        items : array or path of an .npy file, optional
            Those that the learner was given, if None.
        k : int
        """
        self._running()
        check_integer("k", k)
        if items is None:
            items = self._whole.right
        elif isinstance(items, (str, Path)):
            items = map_array(items)
        is_plain = self._reads_by_columns() and not self._front._engine.geometry.n_extra
        if not is_plain or self._front._engine.geometry.query_mean is not None:
            return self.learner_.search(queries, items, k)
        checked = check_items(items, "items", dtype=self.dtype_)
        check_feature_names(self._front._feature_names, checked, "items")
        rows = checked.values
        transformed = self.transform_query(queries)
        parts = [
            top_k(transformed[some] @ rows.T, min(k, len(rows)))
            for some in chunks(len(transformed), 4 * len(rows) * self.dtype_.itemsize)
        ]
        best = SearchResult(*(np.concatenate(found) for found in zip(*parts, strict=True)))
        return best.named(items)

    def _running(self) -> Run:
        if self._run is None:
            raise NotFittedError(
                "this ShardedLearner has no workers: call prepare, fit or partial_fit first"
            )
        return self._run

    def pids(self) -> list[int]:
        """The processes of the workers."""
        return self._running().answers("ping")

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        self._running()
        return self._whole.shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the matrix."""
        self._running()
        return self._whole.left.dtype

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        run = self._running()
        if not self._reads_by_columns():
            return float(self.learner_.sparsity_)
        rows, columns = self.shape_
        return float(sum(run.answers("n_zeros")) / (rows * columns))

    n_rounds_ = _of_front("n_rounds_")
    n_updates_ = _of_front("n_updates_")
    n_skipped_ = _of_front("n_skipped_")
    average_loss_ = _of_front("average_loss_")
    mistake_rate_ = _of_front("mistake_rate_")
    violation_rate_ = _of_front("violation_rate_")
    init_scale_ = _of_front("init_scale_")
    centre_ = _of_front("centre_")
    tasks_ = _of_front("tasks_")
    query_ratio_ = _of_front("query_ratio_")

    # -- saving ---------------------------------------------------------------------------------

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write one model file, that of the ordinary learner: `simstream.load` reads it anywhere."""
        self.learner_.save(path, extra=extra)

    def save_shards(self, folder: str | Path) -> None:
        """Write a folder that `load` divides again, over any number of workers: nothing is gathered.

        It names the items by their path; those in the folder of the run are copied. Tuples that wait after
        an interruption are left out.
        """
        run = self._running()
        if self._is_batch:
            raise TypeError("save_shards: expected an online learner, got SDCA; save writes a file")
        target = RunFolder(Path(folder).resolve())
        target.make()
        run.save()
        content, arrays = run.folder.read_learner()
        assert run.checkpoint is not None
        for number in range(len(run.checkpoint.columns)):
            file = run.folder.shard_path(run.checkpoint.number, number)
            shutil.copyfile(file, target.path / file.name)
        for item_file in content["items"]:
            if not Path(item_file["path"]).is_absolute():
                shutil.copyfile(
                    run.folder.path / item_file["path"], target.path / item_file["path"]
                )
            if "ids" in item_file:
                shutil.copyfile(run.folder.path / item_file["ids"], target.path / item_file["ids"])
        target.write_learner(content, arrays)
        target.write_run(run.record(waiting=False))

    @classmethod
    def load(cls, path: str | Path, n_workers: int | None = None, **options: Any) -> Self:
        """Divide a saved model: a file of any process, or a folder of `save_shards` or of a run.

        Parameters
        ----------
        path : file or folder
        n_workers : int, optional
            If None, 2 for a file and as many as before for a folder.
        options : as those of the class
        """
        if Path(path).is_dir():
            return cls.resume(path, n_workers, **options)
        return cls(load(path), n_workers or 2, **options)


def _check_divisible(learner: Any, whole: Comparisons) -> Geometry:
    """The geometry of a learner that has learnt already; raises if its engine has no columns to cut."""
    engine = learner._engine
    if engine.kind not in ("dense", "dense-tasks") or engine.geometry.folded:
        raise TypeError(
            f"learner: expected one that has learnt from dense items, got an engine of kind {engine.kind!r}"
        )
    learner._begin(whole)
    return engine.geometry


def _with_seed(learner: Any) -> Any:
    """The same with a number as seed: all workers must make the same draws."""
    seed = learner.random_state
    if not isinstance(seed, (int, np.integer)):
        seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
    return copy.copy(learner).set_params(random_state=int(seed), callback=None, verbose=False)


def _name_features(learner: Any, names: Any) -> None:
    """Let a learner expect features of these names, if there are any."""
    if names is not None:
        learner.feature_names_in_ = np.array(names, dtype=object)


def _names(learner: Any) -> dict[str, Any]:
    """JSON values of what a learner knows besides its matrices: features, labels of pairs, tasks, coins."""
    features = learner._feature_names
    names: dict[str, Any] = {} if features is None else {"features": list(features)}
    if isinstance(learner, PairLearner):
        names["classes"] = learner._classes
    if isinstance(learner, OMTRSL):
        coins = None if learner._coins is None else learner._coins.bit_generator.state
        names |= {"tasks": [check_saved_task(name) for name in learner._numbers], "coins": coins}
    return names


def _take_names(front: Any, names: dict[str, Any]) -> None:
    _name_features(front, names.get("features"))
    if isinstance(front, PairLearner):
        front._classes = saved_classes(names)
    if isinstance(front, OMTRSL):
        front._numbers = {name: number for number, name in enumerate(names["tasks"])}
        if names["coins"] is not None:
            front._coins = np.random.default_rng()
            front._coins.bit_generator.state = names["coins"]
