"""One similarity for each user or task, sharing what they have in common; active learning asks little."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from .._engines import (
    DenseTasksEngine,
    Engine,
    Geometry,
    SparseTasksEngine,
    TasksEngine,
    default_block_size,
    tasks_engine,
)
from .._kernels import steps
from ..data.comparisons import Comparisons
from ..metrics import sparsity
from ..persistence import check_saved_task
from ..similarity.bilinear import NORMALISE, Bilinear
from ..similarity.learner import delegated, delegated_property, documented, new_generator
from ..similarity.stored import StoredBilinear
from ..similarity.tasks import OwnParts, Tasks
from ..validation import check_answers, check_choice, check_number, check_tasks, is_sign
from .base import OnlineLearner

_COMMON = """query : "all", "active" or "random"
        Which answers are asked for: all of them; those the model is unsure about, with probability
        ask_delta / (ask_delta + |p|) at margin p; a random share `ask_rate`. See `should_ask` and
        `partial_fit`.
    ask_delta : float
        The larger it is, the more answers are asked for ("active").
    ask_rate : float from 0 to 1
        Share of answers asked for ("random").
    random_state : None, int or RandomState
        Seed of the random numbers that decide whether to ask: one per triplet considered, in stream order.
    init : "identity" or "zeros"
        The first matrix of every task.
    block_size : int, optional
        Triplets learnt together on dense items, the same steps as one at a time to rounding. None chooses by
        dimension. Sparse items are always learnt one at a time.
    head_bytes : int, optional
        Sparse items only: memory of the dense head of the most frequent features.
    dtype : "float32" or "float64", optional
    {normalise}
    preprocessor : array, sparse matrix, table, `Items` or pair (queries, items) of them, optional
        Items that row numbers refer to."""

_ATTRIBUTES = """tasks_ : list
        Tasks seen, in the order in which they appeared.
    query_ratio_ : float
        Share of the triplets considered that were asked for; 1 if none was considered.
    n_rounds_, n_updates_, n_skipped_ : int
        Triplets given, in a simulation (`oracle`) also those not asked for; those that changed the matrices;
        those skipped (identical vectors, or a zero anchor).
    average_loss_, mistake_rate_ : float
        Mean hinge loss and share of margins <= 0 of all rounds, each before its own update."""

_PAPER = "Hao, Zhao, Liu, Hoi, Miao. Online multitask relative similarity learning. IJCAI 2017."

_documented = documented(common=_COMMON, normalise=NORMALISE, attributes=_ATTRIBUTES, paper=_PAPER)


class _EngineTasks(Tasks):
    """The similarities of an engine's tasks as they are now: matrices are built when they are asked for."""

    def __init__(self, engine: TasksEngine, numbers: dict[Hashable, int], pools: bool) -> None:
        self._engine, self._numbers, self._pools = engine, numbers, pools

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}  # an engine is no parameter

    def _parts(self) -> Any:
        return self._engine  # the same as long as this object lives

    @property
    def tasks_(self) -> list[Hashable]:
        return list(self._numbers)

    @property
    def shape_(self) -> tuple[int, int]:
        return self._engine.shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        return self._engine.dtype

    def _number(self, task: Hashable) -> int | None:
        return self._numbers.get(None if self._pools else task)

    def _key(self, task: Hashable) -> tuple[Any, ...]:
        return (self._number(task),)

    def matrix(self, task: Hashable = None) -> Any:
        return self._engine.matrix(self._number(task))

    def _bilinear(self, task: Hashable) -> Bilinear:
        engine, number = self._engine, self._number(task)
        if not isinstance(engine, SparseTasksEngine):
            return super()._bilinear(task)
        return StoredBilinear(
            engine.shape,
            engine.dtype,
            values=lambda tuples: engine.values(
                replace(tuples, tasks=self._same_task(number, tuples))
            ),
            decode=lambda: (engine.matrix(number), None),
            work=engine.reading_work,
            geometry=engine.geometry,
            turn=engine.turn,
            version=lambda: engine.version,
        )

    def _same_task(self, number: int | None, tuples: Comparisons) -> np.ndarray:
        """The number of a task, or of one never seen, for each of the tuples."""
        return np.full(len(tuples), self._engine.n_seen if number is None else number)

    def transform_query(self, queries: Any, task: Hashable = None) -> Any:
        return self.for_task(task).transform_query(queries)

    def _task_margins(self, triplets: Comparisons, tasks: Any) -> np.ndarray:
        if self.normalise:
            return super()._task_margins(triplets, tasks)
        names = check_tasks(tasks, len(triplets), "triplet")
        unseen = self._engine.n_seen
        numbers = [unseen if (n := self._number(name)) is None else n for name in names]
        return self._engine.values(replace(triplets, tasks=np.array(numbers, np.int64)))

    @property
    def sparsity_(self) -> float:
        return sparsity(self._engine.matrix(None))

    def _frozen(self) -> Tasks:
        common, parts = self._engine.freeze()
        own = OwnParts(self._numbers, parts, common.dtype.type(self._engine.weights()[1]))
        frozen = Tasks._of(common, own)
        if self._pools:
            frozen = Tasks._of(frozen.matrix(None), {})
        return frozen._with_items(self)


@_documented
class OMTRSL(OnlineLearner):
    """Online multi-task relative similarity learning: passive-aggressive steps on coupled matrices.

    Task k has a similarity x'M_k z of its own. A violated triplet of task k moves the matrices of all tasks
    along x (x1 - x2)': its own by (coupling + K) / ((1 + coupling) K) of the step, the others by coupling /
    ((1 + coupling) K). Kept as M_k = I + shared S + own D_k, so that a step costs the same for any number of
    tasks, and a task takes as much memory as it has learnt.

    Parameters
    ----------
    C : float
        Aggressiveness: the longest step.
    coupling : float
        b of the paper. 0 learns every task on its own; a very large one learns the same matrix for all.
    n_tasks : int, optional
        Number of tasks K, as in the paper: more tasks are an error. None counts the tasks seen so far. The
        length of a step follows from the K at its time, but matrices are read with the current K: when a new
        task appears, every earlier step has less weight in the matrices of all tasks, including its own.
        Scores of a task then change although nothing was learnt from it, unless coupling is 0.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    The paper's mistake bound holds with 2C where it prints C, and with the distance from the first matrix. It
    needs a fixed `n_tasks`, or coupling 0: where K is counted, the weights of earlier steps change.

    On sparse items memory grows with the entries that steps have touched (counted for all tasks and again for
    the step's own) and with the features of each task's anchors, not with tasks times features.

    References
    ----------
    {paper}

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OMTRSL
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 4))
    >>> triplets = rng.integers(0, 25, (200, 3)) + [0, 0, 25]
    >>> users = rng.choice(["ann", "bob"], 200)
    >>> model = OMTRSL(C=0.1, coupling=1.0, preprocessor=X).fit(triplets, tasks=users)
    >>> sorted(map(str, model.tasks_))
    ['ann', 'bob']
    >>> model.pair_score([[0, 1]], task="ann") == model.pair_score([[0, 1]], task="bob")
    array([False])
    >>> model.transform_query(X[:2], task="a stranger").shape  # what all have in common
    (2, 4)
    """

    _engine_types = (DenseTasksEngine, SparseTasksEngine)
    #: Whether all tasks share one similarity.
    _pools = False
    _coins: np.random.Generator | None = None
    _numbers: dict[Hashable, int]

    def __init__(
        self,
        C: float = 1.0,
        coupling: float = 1.0,
        *,
        n_tasks: int | None = None,
        query: str = "all",
        ask_delta: float = 1.0,
        ask_rate: float = 0.5,
        random_state: Any = None,
        init: str = "identity",
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.C = C
        self.coupling = coupling
        self.n_tasks = n_tasks
        self.query = query
        self.ask_delta = ask_delta
        self.ask_rate = ask_rate
        self.random_state = random_state
        self.init = init
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("C", self.C, finite=False)
        check_number("coupling", self.coupling, exclusive=False)
        check_choice("query", self.query, ("all", "active", "random"))
        check_number("ask_delta", self.ask_delta, finite=False)
        if check_number("ask_rate", self.ask_rate, exclusive=False) > 1:
            raise ValueError(f"ask_rate: expected at most 1, got {self.ask_rate}")
        check_choice("init", self.init, ("identity", "zeros"))
        self._check_integers_or_none("n_tasks", "block_size", "head_bytes")

    # -- learning -----------------------------------------------------------------------------

    def fit(self, triplets: Any, y: Any = None, tasks: Any = None) -> OMTRSL:
        """Forget everything and learn from these triplets. Same input as `partial_fit`."""
        self._check_parameters()
        read = self._read_tuples(triplets, 3, self.dtype)
        read, numbers = self._named(read, y, tasks, known={})
        return self._go_on(read, numbers, anew=True)

    def partial_fit(
        self, triplets: Any, y: Any = None, tasks: Any = None, *, oracle: Any = None
    ) -> OMTRSL:
        """Go on learning from these triplets, in order.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
            An anchor and two candidates.
        y : array of +1 and -1, optional
            Answers: +1 where the first candidate is nearer to the anchor (the default), -1 where the second
            is.
        tasks : array of n hashable values, optional
            Task of each triplet; one task for all if None.
        oracle : array of +1 and -1, optional
            True answers instead of `y`, for a simulation: only those that `query` asks for are learnt from.
        """
        self._check_parameters()
        if y is not None and oracle is not None:
            raise ValueError("oracle: expected it instead of y, got both")
        given = y if oracle is None else oracle
        read = self._read_tuples(triplets, 3, self._target_dtype())
        return self._go_on(*self._named(read, given, tasks, self._known()), oracle is not None)

    def _go_on(
        self,
        read: Comparisons,
        numbers: dict[Hashable, int],
        simulates: bool = False,
        *,
        anew: bool = False,
    ) -> OMTRSL:
        """Learn from checked triplets; a simulation learns only from what it asks for."""
        self._begin(read, anew=anew)
        read = self._with_coins(read, simulates)
        self._numbers = numbers  # if learning is interrupted, `_known` drops those it did not reach
        self._advance(self._engine, read.in_memory())
        return self

    def _with_coins(self, read: Comparisons, simulates: bool) -> Comparisons:
        """The triplets with the random numbers by which a simulation decides what it asks for."""
        if simulates and self.query != "all":
            return replace(read, coins=self._generator().random(len(read)))
        return read

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        names = ("coupling", "n_tasks")
        return {name: (getattr(engine, name), getattr(self, name)) for name in names}

    def learn_one(
        self, x: Any, first: Any, second: Any, y: int = 1, task: Hashable = None
    ) -> OMTRSL:
        """Learn from one triplet of vectors: +1 says that `first` is nearer to x, -1 that `second` is."""
        if self._single_cache is not None and is_sign(y) and isinstance(task, Hashable):
            number = self._known().get(None if self._pools else task)
            if number is not None and self._learn_single((x, first, second), float(y), number):
                return self
        self._check_parameters()
        left, right = self._read_vectors(("x", "first", "second"), x, first, second)
        read = Comparisons(left, right, np.array([[0, 0, 1]]), of_vectors=True)
        named = self._named(read, [y], None if task is None else [task], self._known())
        self._begin(read)
        self._numbers = named[1]
        return self._learn_alone(named[0], 3)

    def score_one(self, x: Any, other: Any, task: Hashable = None) -> float:
        """Similarity of two vectors for a task."""
        return self._score_vectors(self._similarity()._of_task(task), x, other)[0]

    def predict_one(self, x: Any, first: Any, second: Any, task: Hashable = None) -> int:
        """+1 if x is more similar to `first` than to `second` for a task, else -1."""
        of_task = self._similarity()._of_task(task)
        of_first, of_second = self._score_vectors(of_task, x, first, second)
        return 1 if of_first > of_second else -1

    def should_ask(self, triplet: Any, task: Hashable = None) -> bool:
        """Whether to ask a person about this triplet, by `query`; every call draws one random number.

        Parameters
        ----------
        triplet : three rows of `preprocessor`, or three vectors
        task : hashable, optional
        """
        self._check_parameters()
        read = self._read_tuples(np.asarray(triplet)[None], 3, self._target_dtype())
        check_tasks([task], 1, "triplet")
        self._begin(read)
        asked = True
        if self.query != "all":
            coin = self._generator().random()
            if self.query == "random":
                asked = coin < self.ask_rate
            elif np.isfinite(self.ask_delta):
                margin = abs(float(self._similarity()._task_margins(read.one(0), [task])[0]))
                asked = coin * (self.ask_delta + margin) < self.ask_delta
        clock = self._engine.clock
        clock[steps.CONSIDERED] += 1
        clock[steps.ASKED] += asked
        return bool(asked)

    def _generator(self) -> np.random.Generator:
        if self._coins is None:
            self._coins = new_generator(self.random_state)
        return self._coins

    def _known(self) -> dict[Hashable, int]:
        """Numbers of the tasks by name, without those that an interrupted call did not reach."""
        if self._engine is None:
            return {}
        if len(self._numbers) > self._engine.n_seen:
            seen = self._engine.n_seen
            self._numbers = {name: k for name, k in self._numbers.items() if k < seen}
        return self._numbers

    def _named(
        self, read: Comparisons, y: Any, tasks: Any, known: dict[Hashable, int]
    ) -> tuple[Comparisons, dict[Hashable, int]]:
        """The triplets with their answers and the numbers of their tasks, and all tasks by name."""
        labels = None if y is None else check_answers(y, len(read))
        names: list[Hashable] = [None] * len(read)
        if tasks is not None:
            checked = check_tasks(tasks, len(read), "triplet")
            names = names if self._pools else checked
        numbers = known if all(name in known for name in names) else dict(known)
        found = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        if self.n_tasks is not None and len(numbers) > self.n_tasks:
            raise ValueError(
                f"tasks: expected at most n_tasks = {self.n_tasks} different ones, got {len(numbers)}"
            )
        return replace(read, y=labels, tasks=found), numbers

    def _forget(self, engine: Engine) -> None:
        super()._forget(engine)
        self._numbers = {}
        self._coins = None

    def _new_engine(self, tuples: Comparisons) -> Engine:
        if self.init == "identity":
            tuples.check_one_space("init='identity'", "; start from init='zeros'")
        head_bytes = self.head_bytes or self._head_hint
        has_start = self.init == "identity"
        return tasks_engine(tuples, float(self.coupling), self.n_tasks, has_start, head_bytes)

    def _new_shard(self, tuples: Comparisons, geometry: Geometry, columns: slice) -> Engine:
        if self.init == "identity":
            tuples.check_one_space("init='identity'", "; start from init='zeros'")
        width = len(range(*columns.indices(tuples.shape[1])))
        given = float(self.coupling), self.n_tasks, self.init == "identity"
        return DenseTasksEngine((tuples.shape[0], width), tuples.left.dtype, *given)

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        self._changing()
        engine.see(tuples)
        engine.learn(self._step_for(tuples), tuples, self._block_size(engine))

    def _step_for(self, tuples: Comparisons) -> Any:
        step = self._step()
        # Without coins, these answers have been given already.
        return step._replace(ask=steps.ASK_ALL) if tuples.coins is None else step

    def _step(self) -> Any:
        ask = {"all": steps.ASK_ALL, "active": steps.ASK_ACTIVE, "random": steps.ASK_RANDOM}
        parameter = self.ask_delta if self.query == "active" else self.ask_rate
        if not np.isfinite(parameter):  # everything is asked, and still counted
            return steps.Step(steps.PA_I, C=float(self.C), ask=steps.ASK_RANDOM, ask_parameter=2.0)
        return steps.Step(
            steps.PA_I, C=float(self.C), ask=ask[self.query], ask_parameter=float(parameter)
        )

    def _block_size(self, engine: Any) -> int:
        # Twice as long as for one matrix: only some rows of a block belong to a task.
        return self.block_size or min(512, max(32, 2 * default_block_size(max(engine.shape))))

    # -- reading ------------------------------------------------------------------------------

    @property
    def tasks_(self) -> list[Hashable]:
        """Tasks seen, in the order in which they appeared."""
        self._fitted()
        return list(self._known())

    @property
    def query_ratio_(self) -> float:
        """Share of the triplets considered that were asked for."""
        considered = self._count(steps.CONSIDERED)
        return self._count(steps.ASKED) / considered if considered else 1.0

    def _similarity_of(self, engine: Any) -> Tasks:
        return _EngineTasks(engine, self._known(), self._pools)

    def for_task(self, task: Hashable = None) -> Bilinear:
        """The similarity of a task as a model of its own, frozen as it is now.

        A task never seen has what all have in common; None is the task of triplets given without one.
        """
        return self._similarity().for_task(task)._freeze()

    def freeze(self) -> Tasks:
        """The similarities of all tasks as they are now, whatever is learnt later: `similarity_`.

        It takes about as long as for one task: what a task learnt alone is multiplied out by
        ``transform_query(rows, task)`` and ``matrix(task)``, which other threads may call while this one
        goes on learning.

        Examples
        --------
        >>> from simstream import OMTRSL
        >>> model = OMTRSL().learn_one([1.0, 0.0], [0.5, 1.0], [0.0, 1.0], task="ann")
        >>> before = model.freeze()
        >>> model = model.learn_one([0.0, 1.0], [1.0, 0.0], [0.0, 1.0], task="ann")
        >>> before.matrix("ann")
        array([[1.5, 0. ],
               [0. , 1. ]])
        """
        return self._similarity()._freeze()

    # Any: type checkers would take the signatures of the base class, which have no task.
    item_scale: Any = delegated(Tasks.item_scale)
    pair_score: Any = delegated(Tasks.pair_score)
    score_items: Any = delegated(Tasks.score_items)
    sides: Any = delegated(Tasks.sides)
    search: Any = delegated(Tasks.search)
    get_metric: Any = delegated(Tasks.get_metric)
    triplet_margin: Any = delegated(Tasks.triplet_margin)
    decision_function: Any = delegated(Tasks.decision_function)
    predict: Any = delegated(Tasks.predict)
    score: Any = delegated(Tasks.score)
    get_bilinear_matrix = delegated(Tasks.get_bilinear_matrix)
    transform_query = delegated(Tasks.transform_query)
    sparsity_ = delegated_property(Tasks, "sparsity_")

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        names = [check_saved_task(name) for name in self._known()]
        coins = None if self._coins is None else self._coins.bit_generator.state
        return {**header, "tasks": names, "coins": coins}, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        self._numbers = {name: number for number, name in enumerate(header["tasks"])}
        if len(self._numbers) < self._engine.n_seen:
            raise ValueError(
                f"tasks: expected {self._engine.n_seen} names, got {len(self._numbers)}"
            )
        if header["coins"] is not None:
            self._coins = np.random.default_rng()
            self._coins.bit_generator.state = header["coins"]


@_documented
class OSTRSL(OMTRSL):
    """Online single-task relative similarity learning: every task by itself, `OMTRSL` with coupling 0.

    Parameters
    ----------
    C : float
        Aggressiveness: the longest step.
    {common}

    Attributes
    ----------
    {attributes}

    References
    ----------
    {paper}

    Examples
    --------
    >>> from simstream import OSTRSL
    >>> model = OSTRSL().learn_one([1.0, 0.0], [0.5, 1.0], [0.0, 1.0], task="ann")
    >>> model.pair_score([[[1.0, 0.0], [1.0, 0.0]]], task="ann") > 1
    array([ True])
    >>> model.pair_score([[[1.0, 0.0], [1.0, 0.0]]], task="bob")
    array([1.])
    """

    coupling = 0.0
    n_tasks = None

    def __init__(
        self,
        C: float = 1.0,
        *,
        query: str = "all",
        ask_delta: float = 1.0,
        ask_rate: float = 0.5,
        random_state: Any = None,
        init: str = "identity",
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.C = C
        self.query = query
        self.ask_delta = ask_delta
        self.ask_rate = ask_rate
        self.random_state = random_state
        self.init = init
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor


@_documented
class OGRSL(OMTRSL):
    """Online global relative similarity learning: one similarity for all tasks, learnt from all of them.

    Parameters
    ----------
    C : float
        Aggressiveness: the longest step.
    {common}

    Attributes
    ----------
    {attributes}

    References
    ----------
    {paper}

    Examples
    --------
    >>> from simstream import OGRSL
    >>> model = OGRSL().learn_one([1.0, 0.0], [0.5, 1.0], [0.0, 1.0], task="ann")
    >>> model.pair_score([[[1.0, 0.0], [1.0, 0.0]]], task="bob") > 1
    array([ True])
    """

    _pools = True
    coupling = 0.0
    n_tasks = None

    __init__ = OSTRSL.__init__
