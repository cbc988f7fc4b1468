"""Learning from shards of a stream side by side: parameter mixing, for learners without exact blocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from .._engines.base import State
from .._engines.mixing import Arrays, entries_before_rows, mixed_rows, mixed_state, row_ranges
from .._kernels.steps import UPDATES
from ..data.comparisons import Comparisons
from ..online.triplets import TripletLearner
from ..similarity.base import Similarity
from ..similarity.bilinear import Bilinear
from ..similarity.learner import Learner, delegated, delegated_property
from ..validation import Items, check_choice, check_integer, check_number
from .cluster import DEFAULT_STORE_BYTES, Cluster

#: Lengths of the step from the start of a round, by name: how many times the way to the average.
_STEPS = {"mean": lambda n: 1.0, "sqrt": lambda n: n**0.5, "sum": float}


class Mixing(NamedTuple):
    """One round of a `MixedLearner`: what each shard did, and how long it took.

    Examples
    --------
    >>> Mixing((50, 50), (31, 29), learning=(2.0, 3.0), mixing=(0.2, 0.1), joining=0.1).critical_seconds
    3.3...
    """

    #: Tuples that each shard has seen, and those that changed its matrix.
    n_tuples: tuple[int, ...]
    n_updates: tuple[int, ...]
    #: CPU seconds that each shard took to learn, from the state it was given to the one it gave back.
    learning: tuple[float, ...]
    #: CPU seconds for each part of the rows that were mixed by themselves, and for joining them.
    mixing: tuple[float, ...]
    joining: float

    @property
    def critical_seconds(self) -> float:
        """How long the round takes with a processor for every shard and for every part of the rows.

        The time to send models from one process to another is not part of it.
        """
        return max(self.learning) + max(self.mixing, default=0.0) + self.joining


class MixedLearner(Learner):
    """Learn from shards of a stream side by side, and mix what they have learnt.

    For learners of a bilinear similarity that change every entry of M by a rule of its own (SORS, AdaSORS,
    AROMA with a diagonal covariance), and for all learners from triplets on sparse items: these cannot learn
    in exact blocks. In every round each shard goes on from the same model with tuples of its own, and the
    next model is the average of theirs. **The result is another one than without mixing**: see
    ``docs/mixing.md`` for how much worse or better it is, and what it costs.

    Parameters
    ----------
    learner : SORS, AdaSORS, AROMA, OGD, OASIS or ListwiseSoftmax
        It is copied, the original is left alone. `average_from` must be None, AROMA's covariance diagonal.
    n_shards : int
        Shards of the stream that are learnt side by side. With one, this is the learner itself: bit for bit,
        or to rounding where it learns dense items in blocks.
    n_rounds : int
        Rounds of every call of `fit` or `partial_fit`: the tuples of the call are cut into as many parts, in
        order, and each part into shards, in order. A round costs as much as reading and writing the whole
        model.
    weights : "uniform" or "updates"
        Weights of the shards in the average: equal, or in proportion to the tuples that changed the matrix
        in this round.
    step : "mean", "sqrt", "sum" or float
        How far the next model is from the one the round began with, as a multiple of the way to the average:
        once, sqrt(n_shards) times (the sum of the changes, divided by sqrt(n_shards)) or n_shards times
        (the sum of the changes). Entries that are thresholded do not go past zero beyond the average.
    n_workers : int
        Processes of Ray that learn, shards in turn; 0 learns in this process, one shard after the other. The
        result is the same, bit for bit.
    address : str, optional
        Ray to use, see `Cluster`.
    object_store_bytes : int
        Shared memory of a Ray that is started here, see `Cluster`. All models of a round fit into it, or are
        kept on disk, which is slow.

    Attributes
    ----------
    learner_ : the learner, with the mixed model; it can go on learning by itself
    mixings_ : list of `Mixing`
        What the rounds of the last call were.

    Notes
    -----
    M is averaged entry by entry. The squared H of AdaSORS is the average of the shards' squared
    H, the precision of AROMA the average of theirs; with a longer step their growth since the start of the
    round is multiplied like the change of M. Numbers of tuples, updates and losses are added up, so steps of
    size eta / sqrt(t) count the tuples of all shards. What results is a state that the learner could be in,
    and a mixed model is saved as an ordinary file of the learner.

    A round depends on nothing but the model, the tuples of the shard and their order: one that is repeated,
    because its process was killed, gives the same again, bit for bit.

    References
    ----------
    McDonald, Hall, Mann. Distributed training strategies for the structured perceptron. NAACL 2010.

    Examples
    --------
    >>> import scipy.sparse
    >>> from simstream import SORS, TripletSampler
    >>> from simstream.distributed import MixedLearner
    >>> X = scipy.sparse.random(60, 500, density=0.02, format="csr", random_state=0)
    >>> triplets = TripletSampler([0, 1, 2] * 20, 0).draw(500)
    >>> model = MixedLearner(SORS(lam=1e-2, eta=0.5, preprocessor=X), n_shards=4, n_rounds=5).fit(triplets)
    >>> model.learner_.n_rounds_, model.sparsity_ > 0.9, len(model.mixings_)
    (500, True, 5)
    """

    _to_be_called = "fit or partial_fit"
    natural_tuples = "triplets"
    learner_: Any = None
    mixings_: list[Mixing]

    def __init__(
        self,
        learner: Any,
        *,
        n_shards: int = 4,
        n_rounds: int = 1,
        weights: str = "uniform",
        step: Any = "mean",
        n_workers: int = 0,
        address: str | None = None,
        object_store_bytes: int = DEFAULT_STORE_BYTES,
    ) -> None:
        self.learner = learner
        self.n_shards = n_shards
        self.n_rounds = n_rounds
        self.weights = weights
        self.step = step
        self.n_workers = n_workers
        self.address = address
        self.object_store_bytes = object_store_bytes

    def _check_parameters(self) -> None:
        check_mixable(self.learner)
        check_integer("n_shards", self.n_shards)
        check_integer("n_rounds", self.n_rounds)
        check_choice("weights", self.weights, ("uniform", "updates"))
        if isinstance(self.step, str):
            check_choice("step", self.step, tuple(_STEPS))
        else:
            check_number("step", self.step)
        check_integer("n_workers", self.n_workers, minimum=0)
        self.learner.check_parameters()

    # -- learning -------------------------------------------------------------------------------

    def fit(self, tuples: Any, y: Any = None) -> Any:
        """Forget what was learnt and learn from these tuples, in `n_rounds` rounds.

        Parameters
        ----------
        tuples : (n, 3) integers, rows of the learner's `preprocessor`, or ids, or (n, 3, d) numbers
            As the learner takes them; at least one for every shard and round.
        y : ignored
        """
        self._check_parameters()
        learner = type(self.learner)(**self.learner.get_params(deep=False))
        return self._learn(learner, tuples)

    def partial_fit(self, tuples: Any, y: Any = None) -> Any:
        """Go on learning from these tuples, in `n_rounds` rounds. Same input as `fit`.

        If it fails, nothing has changed.
        """
        if self.learner_ is None:
            return self.fit(tuples)
        self._check_parameters()
        return self._learn(self.learner_, tuples)

    def _learn(self, learner: Any, tuples: Any) -> Any:
        read = learner._read(tuples, None, learner._target_dtype())
        if len(read) < self.n_shards * self.n_rounds:
            raise ValueError(
                f"{learner.natural_tuples}: expected at least n_shards x n_rounds ({self.n_shards} x "
                f"{self.n_rounds}), got {len(read)}"
            )
        learner._begin(read)
        state, mixings = learner._get_state(), []
        unfitted = type(learner)(**{**learner.get_params(deep=False), "preprocessor": None})
        crew = _Here if self.n_workers == 0 else _Workers
        with crew(self) as workers:
            job = workers.share((unfitted, _items_of(read)))
            rows = np.asarray(tuples) if read.of_vectors else read.index
            for part in np.array_split(rows, self.n_rounds):
                shards = np.array_split(part, self.n_shards)
                state, mixing = self._one_round(workers, job, state, shards)
                mixings.append(mixing)
        _restore(learner, state)
        self.learner_, self.mixings_ = learner, mixings
        return self

    def _one_round(
        self, workers: Any, job: Any, state: State, shards: list[np.ndarray]
    ) -> tuple[State, Mixing]:
        """The next state, and what the round was."""
        start = workers.share(state)
        notes, learnt = workers.run("learn", [(job, start, shard) for shard in shards])
        n_updates = np.array([note.clock[UPDATES] for note in notes]) - state[1]["clock"][UPDATES]
        step = _STEPS[self.step](self.n_shards) if isinstance(self.step, str) else float(self.step)
        seconds: tuple[float, ...] = ()
        began = time.process_time()
        if len(shards) == 1 and step == 1.0:
            state = workers.fetch(learnt)[0]
        else:
            weights = np.full(len(shards), 1.0 / len(shards))
            if self.weights == "updates" and n_updates.any():
                weights = n_updates / n_updates.sum()
            ranges = row_ranges([note.entries for note in notes], workers.n_parts)
            seconds, parts = workers.run(
                "mix", [(weights, step, rows, start, *learnt) for rows in ranges]
            )
            began = time.process_time()
            state = mixed_state(state, [note.clock for note in notes], workers.fetch(parts))
        return state, Mixing(
            n_tuples=tuple(map(len, shards)),
            n_updates=tuple(int(n) for n in n_updates),
            learning=tuple(note.seconds for note in notes),
            mixing=tuple(seconds),
            joining=time.process_time() - began,
        )

    # -- using what was learnt ------------------------------------------------------------------

    @property
    def preprocessor(self) -> Any:  # type: ignore[override]
        """Items that row numbers refer to: those of the learner."""
        return self.learner.preprocessor

    def _learnt(self) -> Any:
        return None if self.learner_ is None else self.learner_._learnt()

    def _similarity(self) -> Any:
        self._fitted()
        return self.learner_._similarity()

    decision_function = delegated(Similarity.decision_function)
    predict = delegated(Similarity.predict)
    score = delegated(Similarity.score)
    get_bilinear_matrix = delegated(Bilinear.get_bilinear_matrix)
    transform_query = delegated(Bilinear.transform_query)
    sparsity_ = delegated_property(Bilinear, "sparsity_")

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the mixed model as a file of the learner; `simstream.load` reads it back.

        Parameters
        ----------
        path : file name
        extra : dict of JSON values kept with the model, for the caller's own use
        """
        self._fitted()
        self.learner_.save(path, extra=extra)

    def _get_state(self) -> Any:
        return self.learner_._get_state()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        raise AssertionError("a mixed model is a file of its learner")


def check_mixable(learner: Any) -> None:
    """Raise unless models of this learner can be mixed."""
    if not isinstance(learner, TripletLearner):
        raise TypeError(
            "learner: expected SORS, AdaSORS, AROMA, OGD, OASIS or ListwiseSoftmax, got "
            f"{type(learner).__name__}; models of other learners are not mixed"
        )
    if learner.average_from is not None:
        raise ValueError(
            f"average_from: expected None for a learner that is mixed, got {learner.average_from!r}"
        )
    if learner.device != "cpu":
        raise ValueError(
            f"device: expected 'cpu' for a learner that is mixed, got {learner.device!r}"
        )
    if getattr(learner, "covariance", "diagonal") == "factored":
        raise ValueError(
            "covariance: expected 'diagonal' or 'diagonal-drop' for a learner that is mixed, got 'factored'"
        )


# -- where shards are learnt --------------------------------------------------------------------


class _Note(NamedTuple):
    """What is said of a shard that was learnt, without its model."""

    clock: np.ndarray
    seconds: float
    #: Entries before each row of the matrix.
    entries: np.ndarray


def _restore(learner: Any, state: State) -> None:
    """Give a learner a state that stays as it is when the learner goes on."""
    header, arrays = state
    is_laid_out = "indptr" in arrays  # elsewhere in memory; other arrays are used as they are
    own = {
        name: array if is_laid_out and array.flags.writeable else np.array(array)
        for name, array in arrays.items()
    }
    learner._set_state(header, own)


def _items_of(read: Comparisons) -> Any:
    """The items that rows of tuples refer to, as a learner is given them; None if the tuples are vectors."""
    if read.of_vectors:
        return None
    left = read.left.without_ids()
    return left if read.left is read.right else (left, read.right.without_ids())


def _writable(items: Any) -> Any:
    """The same items in arrays that may be written to: kernels would be compiled again for those of Ray."""
    if isinstance(items, tuple):
        return tuple(_writable(side) for side in items)
    if isinstance(items, Items):
        kept = vars(items).get("values")  # others are of a file, or on a GPU
        values = _writable(kept)
        return items if values is kept else Items._of(values)
    if sp.issparse(items):
        parts = (items.data, items.indices, items.indptr)
        return items if all(part.flags.writeable for part in parts) else items.copy()
    if isinstance(items, np.ndarray) and not items.flags.writeable:
        return np.array(items)
    return items


class ShardWorker:
    """Learns shards and mixes rows, each from nothing but what the call is given.

    Methods return something small, then something large.
    """

    def __init__(self) -> None:
        self._learner: Any = None

    def learn(self, job: tuple[Any, Any], start: State, tuples: np.ndarray) -> tuple[_Note, State]:
        """The state after these tuples; the job, an unfitted learner and its items, is always the same."""
        began = time.process_time()
        if self._learner is None:
            learner, items = job
            self._learner = learner.set_params(preprocessor=_writable(items))
        _restore(self._learner, start)
        self._learner.partial_fit(np.array(tuples))
        header, arrays = self._learner._get_state()
        note = _Note(arrays["clock"], time.process_time() - began, entries_before_rows(arrays))
        return note, (header, arrays)

    def mix(
        self, weights: np.ndarray, step: float, rows: tuple[int, int], start: State, *states: State
    ) -> tuple[float, Arrays]:
        """These rows of the mixed matrix, and the seconds it took."""
        began = time.process_time()
        mixed = mixed_rows(start, states, weights, step, rows)
        return time.process_time() - began, mixed


class _Here:
    """Shards in this process, one after the other."""

    def __init__(self, mixed: MixedLearner) -> None:
        self.n_parts = mixed.n_shards
        self._worker = ShardWorker()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def share(self, value: Any) -> Any:
        return value

    def run(self, method: str, calls: list[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
        """What is small and what is large of the results of a method, for each of these arguments."""
        results = [getattr(self._worker, method)(*arguments) for arguments in calls]
        return [small for small, _ in results], [large for _, large in results]

    def fetch(self, values: list[Any]) -> list[Any]:
        return values


class _Workers:
    """Shards in actors of Ray, in turn; what is large stays in Ray's store until it is fetched."""

    def __init__(self, mixed: MixedLearner) -> None:
        self.n_parts = min(mixed.n_workers, mixed.n_shards)
        self._cluster = Cluster(
            self.n_parts, address=mixed.address, object_store_bytes=mixed.object_store_bytes
        )
        self._workers: list[Any] = []

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        # Not with arguments from Ray's store: one that is started again might not get them back.
        self._workers = [self._cluster.start(ShardWorker) for _ in range(self.n_parts)]
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.stop(self._workers)
        self._cluster.__exit__(*error)

    def share(self, value: Any) -> Any:
        return self._cluster.put(value)

    def run(self, method: str, calls: list[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
        """As `_Here.run`, but references to what is large."""
        started = [
            getattr(self._workers[n % self.n_parts], method).options(num_returns=2).remote(*call)
            for n, call in enumerate(calls)
        ]
        return self._cluster.get([small for small, _ in started]), [large for _, large in started]

    def fetch(self, values: list[Any]) -> list[Any]:
        return self._cluster.get(values)
