"""SDCA: a bilinear similarity by stochastic dual coordinate ascent, with a duality gap as certificate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from .._engines import (
    DenseEngine,
    check_device,
    default_block_size,
    entrywise_engine,
    find_device,
    first_matrix,
)
from .._engines.base import State
from .._engines.sparse import csr_reader
from .._kernels.blocked import Blas, alone
from .._kernels.dual import (
    Dual,
    ascend_block,
    ascend_singly,
    sparse_margins,
    squared_hinges,
)
from .._kernels.rules import PLAIN, Rule
from ..data.comparisons import Comparisons
from ..persistence import csr_arrays, csr_from_arrays
from ..similarity.base import Similarity, chunks, row_products
from ..similarity.bilinear import NORMALISE, Bilinear
from ..similarity.learner import (
    Learner,
    delegated,
    delegated_property,
    documented,
    new_generator,
)
from ..validation import check_choice, check_integer, check_number

#: Triplets that the certificate evaluates together: enough for a fast product, few enough for the caches.
_PART = 1024

#: Draws of a block on a device: every block waits for the host once.
_DEVICE_BLOCK = 512


@documented(normalise=NORMALISE)
class SDCA(Learner):
    """Relative similarity by stochastic dual coordinate ascent, with a duality gap.

    Minimises P(M) = 1/n sum_i [1 - x_i' M (x_i+ - x_i-)]_+^2 + lam/2 ||M||^2 over a fixed set of n triplets.
    Every draw moves one dual variable to its best value. The duality gap, P(M) minus the dual value, bounds
    how far M is from the optimum, and anyone can recompute it.

    Parameters
    ----------
    lam : float
        Strength of the regularisation.
    n_epochs : int
        Number of epochs of n draws each, with replacement; fewer if `tol` is reached.
    output : "average", "random" or "last"
        Which M is kept: the mean of the iterates in the second half of all draws, a random one of them, or
        the last iterate. With `tol` the number of draws is not known in advance; the second half then begins
        after 1/2, 1, 2, 4, ... epochs, at the latest of these that leaves at least half of all draws.
    tol : float, optional
        Stop after an epoch when the duality gaps of its last iterate and of the M that is kept are both at
        most this. The mean needs about twice as many epochs as the last iterate.
    random_state : None, int or RandomState
        Draws the triplets, and the iterate kept by output "random".
    block_size : int, optional
        Number of draws processed together on dense items; the result is the same up to rounding. None
        chooses by dimension. Sparse items are always processed one draw at a time.
    head_bytes : int, optional
        Sparse items only: memory of the dense head of the most frequent features.
    callback : function of (epoch, duality gap of its last iterate), optional
        Called after every epoch; an exception it raises ends the fit.
    verbose : bool
        Whether to print every epoch.
    dtype : "float32" or "float64", optional
        Precision of M; None means that of the items.
    {normalise}
    preprocessor : array, sparse matrix, table, `Items` or pair (queries, items) of them, optional
        Items that row numbers refer to.
    device : "cpu", "cuda", "cuda:N", "auto" or "torch"
        Where dense items are learnt from, as in `OASIS`.

    Attributes
    ----------
    primal_, dual_, gap_ : float
        P(M), the dual value and their difference for the M that is kept, computed in float64 whatever the
        precision of M.
    alpha_ : array of shape (n,)
        Dual variables, non-negative; M = 1/(lam n) sum_i alpha_i x_i z_i'.
    history_ : dict of arrays
        "primal", "dual" and "gap" of the last iterate of every epoch (in the precision of M: in float32, a
        gap below 1e-5 of the primal value means little); "hinge", "squared_hinge" and "mistake_rate" as
        means over the draws of the epoch, each before its own step.
    n_iter_ : int
        Number of epochs.
    converged_ : bool
        Whether `tol` was given and `gap_` is at most `tol`. With a `tol` that is not reached, there is a
        ConvergenceWarning.

    Notes
    -----
    The paper states the primal over positive semi-definite M, but its dual and its algorithm have no such
    constraint, and neither does this. Outputs "average" and "random" use the iterate before each step.

    References
    ----------
    Wu, Ding, Zhao, Miao, Hoi. Learning relative similarity by stochastic dual coordinate ascent. AAAI 2014.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from simstream import SDCA, TripletSampler
    >>> X, y = load_wine(return_X_y=True)
    >>> triplets = TripletSampler(y, random_state=0).draw(1000)
    >>> model = SDCA(lam=0.01, n_epochs=50, tol=1e-3, random_state=0, preprocessor=scale(X)).fit(triplets)
    >>> model.converged_, bool(0 <= model.gap_ <= 1e-3)
    (True, True)
    """

    natural_tuples = "triplets"
    _to_be_called = "fit"
    _kept: Any = None
    _saved_numbers = ("primal_", "dual_", "n_iter_", "converged_")

    def __init__(
        self,
        lam: float = 0.005,
        *,
        n_epochs: int = 1,
        output: str = "average",
        tol: float | None = None,
        random_state: Any = None,
        block_size: int | None = None,
        head_bytes: int | None = None,
        callback: Any = None,
        verbose: bool = False,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
        device: str = "cpu",
    ) -> None:
        self.lam = lam
        self.n_epochs = n_epochs
        self.output = output
        self.tol = tol
        self.random_state = random_state
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.callback = callback
        self.verbose = verbose
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor
        self.device = device

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_device(self.device, "float32")
        check_number("lam", self.lam)
        check_integer("n_epochs", self.n_epochs)
        check_choice("output", self.output, ("average", "random", "last"))
        if self.tol is not None:
            check_number("tol", self.tol)
        self._check_integers_or_none("block_size", "head_bytes")

    def fit(self, triplets: Any, y: Any = None) -> SDCA:
        """Learn from a fixed set of triplets.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
            Anchor, positive, negative: the anchor is more like the positive than the negative.
        y : ignored
        """
        self._check_parameters()
        read = self._read_tuples(triplets, 3, self.dtype)
        check_lengths(read)
        solution = alone(self._solver(read).run())
        self._name_features(read)
        return self._keep(solution)

    def _solver(self, read: Comparisons, ops: Any = None) -> SDCASolver:
        """What solves the problem of these triplets."""
        return SDCASolver(
            read,
            float(self.lam),
            n_epochs=self.n_epochs,
            output=self.output,
            tol=self.tol,
            rng=new_generator(self.random_state),
            block_size=self.block_size,
            head_bytes=self.head_bytes or self._head_hint,
            report=self._report,
            ops=ops,
            device=None if ops else find_device(self.device, is_sparse=read.is_sparse),
        )

    def _keep(self, solution: SDCASolution) -> SDCA:
        self._take(solution.matrix)
        self.alpha_ = solution.alpha
        self.primal_, self.dual_ = solution.primal, solution.dual
        columns = np.array(solution.history).T
        self.history_ = dict(zip(EpochRecord._fields, columns, strict=True))
        self.n_iter_, self.converged_ = len(solution.history), solution.converged
        if self.tol is not None and not self.converged_:
            warnings.warn(
                f"SDCA has not reached tol = {self.tol:g} after {self.n_iter_} epochs: the duality gap of "
                f"the M that is kept is {self.gap_:.3g}; raise n_epochs, or use output='last'",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _take(self, matrix: Any) -> None:
        """Keep the learnt M, and have what reading needs: it adds no attribute."""
        self._kept = matrix
        self.n_features_in_ = matrix.shape[0]
        self._item_cache()
        self._reads()

    def _report(self, epoch: int, record: EpochRecord) -> None:
        if self.verbose:
            print(  # noqa: T201
                f"[SDCA] epoch {epoch}: gap {record.gap:.3g}, primal {record.primal:.6g}, "
                f"dual {record.dual:.6g}"
            )
        if self.callback is not None:
            self.callback(epoch, record.gap)

    @property
    def gap_(self) -> float:
        """Duality gap of the M that is kept."""
        return float(self.primal_ - self.dual_)

    def _learnt(self) -> Any:
        return self._kept

    def _similarity(self) -> Bilinear:
        matrix = self._fitted()
        kept = self._reads()
        reader = kept.get(id(matrix))  # of a matrix that the reader has: nothing else gets its id
        if reader is None:
            reader = Bilinear._of(matrix)
            kept.put(id(matrix), reader)  # with its cosine
        reader.normalise = self.normalise
        return reader._with_items(self)

    get_bilinear_matrix = delegated(Bilinear.get_bilinear_matrix)
    transform_query = delegated(Bilinear.transform_query)
    sparsity_ = delegated_property(Bilinear, "sparsity_")
    decision_function = delegated(Similarity.decision_function)
    predict = delegated(Similarity.predict)
    score = delegated(Similarity.score)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        matrix = self._fitted()
        header: dict[str, Any] = {name: getattr(self, name) for name in self._saved_numbers}
        history = np.array([self.history_[column] for column in EpochRecord._fields])
        header["shape"] = list(matrix.shape)
        parts = csr_arrays("", matrix) if sp.issparse(matrix) else {"matrix": matrix}
        return header, {"alpha": self.alpha_, "history": history, **parts}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        matrix = arrays.get("matrix")
        if matrix is None:
            matrix = csr_from_arrays("", arrays, header["shape"])
        if list(matrix.shape) != header["shape"] or matrix.dtype not in (np.float32, np.float64):
            raise ValueError(f"matrix: expected shape {header['shape']}, got {matrix.shape}")
        self._take(matrix)
        self.alpha_ = arrays["alpha"]
        self.history_ = dict(zip(EpochRecord._fields, arrays["history"], strict=True))
        for name in self._saved_numbers:
            setattr(self, name, header[name])


# -- solver ---------------------------------------------------------------------------------------


class EpochRecord(NamedTuple):
    """Certificate of an epoch's last iterate, and losses as means over its draws, each before its step."""

    primal: float
    dual: float
    gap: float
    hinge: float
    squared_hinge: float
    mistake_rate: float


class SDCASolution(NamedTuple):
    """The matrix that is kept, its dual variables and its certificate."""

    matrix: Any
    alpha: np.ndarray
    primal: float
    dual: float
    history: list[EpochRecord]
    converged: bool


@dataclass
class _Window:
    """The iterates from draw `begin` on: the sum of their dual variables, or a random one of them."""

    begin: int
    length: int = 0
    kept: np.ndarray | None = None


class _Suffix:
    """The mean or a random one of the iterates in the second half of all draws, in constant memory.

    Where the number of epochs is known, so is the first of these draws. Where learning may stop after any
    epoch, windows open after 1/2, 1, 2, 4, ... epochs, and the latest one with at least half of all draws is
    read. It has at most three quarters of them; older windows are dropped.
    """

    def __init__(self, output: str, n: int, n_epochs: int | None, rng: np.random.Generator) -> None:
        self._output, self._rng = output, rng
        self._begin = None if n_epochs is None else n * n_epochs // 2
        self._drawn = self._halves = 0
        self.windows: list[_Window] = []

    def add(self, length: int, total: np.ndarray, sample: np.ndarray | None) -> None:
        """Add half an epoch: the sum of the dual variables before each of its draws, and a random iterate."""
        if self._output == "last":
            return
        if self._opens():
            self.windows.append(_Window(self._drawn))
        coin = self._rng.random()
        for window in self.windows:
            window.length += length
            if self._output == "random":
                if coin * window.length < length:
                    window.kept = sample
            elif window.kept is None:
                window.kept = total.copy()
            else:
                window.kept += total
        self._drawn += length
        self._halves += 1
        while len(self.windows) > 1 and self.windows[1].begin <= self._drawn // 2:
            del self.windows[0]

    def _opens(self) -> bool:
        if self._begin is None:
            return self._halves.bit_count() == 1  # a power of two
        return not self.windows and self._drawn >= self._begin

    def read(self, last: np.ndarray) -> np.ndarray:
        """The dual variables to keep after a whole epoch; `last` are the current ones."""
        if self._output == "last":
            return last
        window = self.windows[0]
        assert window.kept is not None
        return window.kept if self._output == "random" else window.kept / window.length

    def state(self) -> State:
        """JSON values and arrays from which `restore` goes on."""
        kept = {f"window.{i}": window.kept for i, window in enumerate(self.windows)}
        scalars = {
            "others": self._rng.bit_generator.state,
            "drawn": [self._drawn, self._halves],
            "windows": [[window.begin, window.length] for window in self.windows],
        }
        return scalars, {name: array for name, array in kept.items() if array is not None}

    def restore(self, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Go on from the state of another one."""
        self._rng.bit_generator.state = scalars["others"]
        self._drawn, self._halves = scalars["drawn"]
        self.windows = [
            _Window(begin, length, arrays.get(f"window.{i}"))
            for i, (begin, length) in enumerate(scalars["windows"])
        ]


class SDCASolver:
    """Draws n triplets in every epoch until the duality gap is small enough.

    `run` is a coroutine: where others have columns of M too (`_kernels.columns`), it yields its parts of
    margins, Gram matrices and penalties, and is sent their sums. Draws and dual variables are the same
    everywhere. Whenever it waits for sums, `state` is where `restore` lets another solver of the same
    problem go on, to the same bits.

    Parameters
    ----------
    tuples : triplets
    lam : strength of the regularisation
    output : "last", or "average" or "random" over the second half of all draws (see `_Suffix`)
    tol : stop when the duality gaps of an epoch's last iterate and of the M that is kept are at most this;
        None runs all epochs
    ops : the large products, where columns are divided
    device : of torch, None for NumPy on the CPU
    """

    def __init__(
        self,
        tuples: Comparisons,
        lam: float,
        *,
        n_epochs: int,
        output: str,
        tol: float | None,
        rng: np.random.Generator,
        block_size: int | None = None,
        head_bytes: int | None = None,
        report: Callable[[int, EpochRecord], None] | None = None,
        ops: Any = None,
        device: Any = None,
    ) -> None:
        self._n, self._n_epochs, self._output = len(tuples), n_epochs, output
        self._goal = -np.inf if tol is None else tol
        self._report = report
        self._ascent = _Ascent(tuples, lam, block_size, head_bytes, ops, device)
        # A seed gives the same draws for every output: other random choices use a generator of their own.
        others = np.random.Generator(rng.bit_generator.jumped())  # type: ignore[attr-defined]
        self._suffix = _Suffix(output, self._n, n_epochs if tol is None else None, others)
        self._rng = rng
        self._history: list[EpochRecord] = []
        #: The present epoch, the generator before its draws, how many halves of it are drawn.
        self._epoch, self._seed, self._half = 1, rng.bit_generator.state, 0

    def run(self) -> Generator[Any, Any, SDCASolution]:
        """Solve the problem."""
        n, rng, ascent, history = self._n, self._rng, self._ascent, self._history
        while True:
            self._seed = rng.bit_generator.state
            draws = rng.integers(0, n, n)
            halves = draws[: n // 2], draws[n // 2 :]
            picked = [int(rng.integers(len(half))) if len(half) else 0 for half in halves]
            while self._half < 2:
                half, pick = halves[self._half], picked[self._half]
                run = yield from ascent.run(half, pick if self._output == "random" else None)
                self._suffix.add(len(half), *run)
                self._half += 1
            if len(history) < self._epoch:
                primal, dual = yield from ascent.current_certificate()
                history.append(EpochRecord(primal, dual, primal - dual, *(ascent.sums / n)))
                if self._report is not None:
                    self._report(self._epoch, history[-1])
            is_last = self._epoch == self._n_epochs
            if is_last or history[-1].gap <= self._goal + ascent.doubt(history[-1]):
                alpha = self._suffix.read(ascent.alpha)
                matrix, primal, dual = yield from ascent.certified(alpha)
                converged = bool(primal - dual <= self._goal)
                if converged or is_last:
                    return SDCASolution(matrix, alpha, primal, dual, history, converged)
            self._epoch, self._half = self._epoch + 1, 0
            ascent.sums[...] = 0.0

    def state(self) -> State:
        """JSON values and arrays from which `restore` goes on; "u" has a column for each of M here."""
        place, arrays = self._ascent.state()
        scalars, windows = self._suffix.state()
        scalars |= {"epoch": self._epoch, "half": self._half, "seed": self._seed, "place": place}
        history = np.array(self._history).reshape(-1, len(EpochRecord._fields))
        return scalars, {**arrays, **windows, "history": history}

    def restore(self, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Go on from the state of another solver, before `run`."""
        self._epoch, self._half = scalars["epoch"], scalars["half"]
        self._rng.bit_generator.state = self._seed = scalars["seed"]
        self._ascent.restore(scalars["place"], arrays)
        self._suffix.restore(scalars, arrays)
        self._history = [EpochRecord(*map(float, row)) for row in arrays["history"]]


class _Ascent:
    """The dual variables and their matrix."""

    def __init__(
        self,
        tuples: Comparisons,
        lam: float,
        block_size: int | None,
        head_bytes: int | None,
        ops: Any,
        device: Any,
    ) -> None:
        self._tuples, self._lam = tuples, lam
        self._scale = 1.0 / (lam * len(tuples))
        self.alpha = np.zeros(len(tuples))
        #: Sums of losses over the draws of the epoch.
        self.sums = np.zeros(3)
        # Sorted by anchor and split: the certificate then multiplies each anchor with M only once.
        by_anchor = tuples.index[np.argsort(tuples.index[:, 0], kind="stable")]
        self._parts = [
            (by_anchor[part], *np.unique(by_anchor[part, 0], return_inverse=True))
            for part in (slice(i, i + _PART) for i in range(0, len(by_anchor), _PART))
        ]
        columns = slice(None) if tuples.columns is None else tuples.columns
        dtype = tuples.left.dtype
        start = first_matrix("zeros", tuples.shape, dtype, tuples.is_sparse, columns)
        self._engine: Any = entrywise_engine(Rule(PLAIN), None, start, tuples, head_bytes)
        self._block = block_size or default_block_size(max(tuples.shape))
        self._ops: Any = Blas(dtype) if ops is None else ops
        if device is not None:
            self._engine.place(device, "float32")
            self._block = max(2, block_size or _DEVICE_BLOCK)
        if not self._ops.has_all_columns:
            self._block = max(self._block, 2)  # only blocks can be learnt
        self._begin_half()

    def _begin_half(self) -> None:
        n = len(self._tuples)
        self._dual = Dual(self.alpha, np.zeros(n), np.zeros(n, np.int64))
        #: Draws of this half that are made, and alpha before the picked one of them.
        self._n_made = 0
        self._sample: np.ndarray | None = None
        self._begin_certificate()

    def _begin_certificate(self) -> None:
        #: Parts of a certificate that are worked out where columns are divided, and their squared hinges.
        self._n_parts, self._squared = 0, 0.0

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON values of the place in this half or its certificate, and arrays; `restore` goes on there."""
        arrays = {**self._dual._asdict(), "sums": self.sums, "u": self._engine.arrays.u}
        if self._sample is not None:
            arrays["sample"] = self._sample
        return {"made": self._n_made, "parts": self._n_parts, "squared": self._squared}, arrays

    def restore(self, place: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Go on from the state of another one."""
        self._n_made, self._sample = place["made"], arrays.get("sample")
        self._n_parts, self._squared = place["parts"], place["squared"]
        for name, array in self._dual._asdict().items():
            array[...] = arrays[name]
        self.sums[...] = arrays["sums"]
        self._engine.arrays.u[...] = arrays["u"]

    def matrix(self) -> Any:
        return self._engine.matrix()

    def run(
        self, draws: np.ndarray, picked: int | None
    ) -> Generator[Any, Any, tuple[np.ndarray, np.ndarray | None]]:
        """Make what is left of these draws, half an epoch, and begin another half.

        Returns the sum of alpha before each draw, and alpha before draw `picked`.
        """
        if picked is not None and self._n_made <= picked:
            yield from self._draw(draws[:picked])
            self._sample = self.alpha.copy()
        yield from self._draw(draws)
        dual, sample = self._dual, self._sample
        self._begin_half()
        return dual.total + dual.alpha * (len(draws) - dual.since), sample

    def _draw(self, draws: np.ndarray) -> Generator[Any, Any, None]:
        """Make those of these draws that are not made yet."""
        engine = self._engine
        if isinstance(engine, DenseEngine) and self._block > 1:
            ops, u, rows_of = self._ops, engine.arrays.u, cast(Any, self._tuples.rows_of)
            if engine.device is not None:
                ops, u, rows_of = engine.there.draws(self._tuples)
            for begin in range(self._n_made, len(draws), self._block):
                some = draws[begin : begin + self._block]
                made = yield from ascend_block(
                    ops, u, rows_of, some, begin, self._dual, self._scale, self.sums
                )
                if made < len(some):
                    raise engine.diverged()
                self._n_made = begin + made
        elif self._n_made < len(draws):
            self._draw_singly(draws[self._n_made :])
            self._n_made = len(draws)

    def _draw_singly(self, draws: np.ndarray) -> None:
        engine, first_draw = self._engine, self._n_made
        drawn = replace(self._tuples, index=self._tuples.index[draws])

        def learn_singly(
            first: int, begin: int, end: int, readers: Any, named: Any, scratch: Any
        ) -> tuple[int, int]:
            return ascend_singly(
                engine.arrays,
                engine.rule,
                *readers,
                named,
                draws[first : first + end],
                begin,
                first_draw + first,
                self._dual,
                self._scale,
                scratch,
                self.sums,
            )

        if isinstance(engine, DenseEngine):
            engine.drive_gathered(lambda first, n, *rows: learn_singly(first, 0, n, *rows), drawn)
        else:
            *rows, chunk = engine.open(drawn)
            engine._drive(
                lambda begin, end: learn_singly(0, begin, end, *rows),
                len(draws),
                chunk,
            )

    def combine(self, alpha: np.ndarray) -> Any:
        """M = (1 / (lam n)) sum_i alpha_i x_i z_i' in float64, dense or CSR like the items.

        Triplets with the same anchor are summed first: M = L' (A R) with the items' rows L and R, where a
        triplet (a, p, n) adds its weight to A[a, p] and subtracts it from A[a, n].
        """
        used = np.flatnonzero(alpha)
        weights, index = alpha[used] * self._scale, self._tuples.index[used]
        anchors, place = np.unique(index[:, 0], return_inverse=True)
        others, columns = np.unique(index[:, 1:], return_inverse=True)
        sums = sp.csr_matrix(
            (
                np.concatenate([weights, -weights]),
                (np.tile(place, 2), columns.reshape(-1, 2).T.ravel()),
            ),
            shape=(len(anchors), len(others)),
        )
        left, right = self._tuples.left, self._tuples.right_rows(others).astype(np.float64)
        if self._tuples.is_sparse:
            return sp.csr_matrix(left.rows(anchors).T @ (sums @ right))
        total = np.zeros((left.shape[1], right.shape[1]))
        for part in chunks(len(anchors), 8 * (left.shape[1] + right.shape[1])):
            total += left.rows(anchors[part]).astype(np.float64).T @ (sums[part] @ right)
        return total

    def certified(self, alpha: np.ndarray) -> Generator[Any, Any, tuple[Any, float, float]]:
        """M of these dual variables in the engine's precision, its primal value and their dual value.

        In single precision the matrix drifts away from its dual variables: M is computed again from them in
        double precision, and so are the primal and the dual value.
        """
        dtype = self._engine.dtype
        if alpha is self.alpha and dtype == np.float64:
            exact = matrix = self.matrix()
        else:
            exact = self.combine(alpha)
            if isinstance(self._engine, DenseEngine) and sp.issparse(exact):
                exact = exact.toarray()
            matrix = exact.astype(dtype, copy=False)
        exactly = matrix.astype(np.float64, copy=False)
        return matrix, *(yield from self.certificate(alpha, exactly, exact))

    def doubt(self, record: EpochRecord) -> float:
        """How far off the gap of an epoch may be because the matrix is in single precision."""
        return 1e-5 * record.primal if self._engine.dtype == np.float32 else 0.0

    def current_certificate(self) -> Generator[Any, Any, tuple[float, float]]:
        """Primal and dual value of the current iterate; a sparse M is not decoded for it."""
        if isinstance(self._engine, DenseEngine):
            return (yield from self.certificate(self.alpha, self.matrix()))
        margins = self._engine.values(self._tuples)
        # ||M||^2 is the sum of alpha_i x_i'M z_i / (lam n).
        penalty = 0.5 * self._lam * self._scale * float(self.alpha @ margins)
        squared = float(np.square(np.maximum(0.0, 1.0 - margins)).mean())
        return squared + penalty, float(np.mean(self.alpha - np.square(self.alpha) / 4)) - penalty

    def certificate(
        self, alpha: np.ndarray, matrix: Any, of_alpha: Any = None
    ) -> Generator[Any, Any, tuple[float, float]]:
        """Primal value of `matrix` and dual value of `alpha`.

        `of_alpha` is the matrix of the dual variables where `matrix` is only close to it.
        """
        n = len(self._tuples)
        penalty = self._penalty(matrix)
        dual_penalty = penalty
        if of_alpha is not None and of_alpha is not matrix:
            dual_penalty = self._penalty(of_alpha)
        if self._tuples.is_sparse:
            squared = self._sparse_squared_hinges(matrix)
        elif self._ops.has_all_columns:
            squared = sum(self._squared_hinges(*part, matrix) for part in self._parts)
        else:
            for part in self._parts[self._n_parts :]:
                margins = yield self._margins(*part, matrix)
                self._squared += float(np.square(np.maximum(0.0, 1.0 - margins)).sum())
                self._n_parts += 1
            penalty, dual_penalty = map(float, (yield np.array([penalty, dual_penalty])))
            squared = self._squared
            self._begin_certificate()
        return squared / n + penalty, float(np.mean(alpha - np.square(alpha) / 4)) - dual_penalty

    def _penalty(self, matrix: Any) -> float:
        if sp.issparse(matrix):
            total = matrix.data @ matrix.data  # in float64
        else:
            total = np.square(matrix, dtype=np.float64).sum()
        return 0.5 * self._lam * float(total)

    def _margins(
        self, index: np.ndarray, anchors: np.ndarray, place: np.ndarray, matrix: np.ndarray
    ) -> np.ndarray:
        """Margins of triplets, as far as they come from the columns that are here."""
        products = self._tuples.left.rows(anchors) @ matrix
        z = self._tuples.right_rows(index[:, 1]).astype(np.float64)
        z -= self._tuples.right_rows(index[:, 2])
        return row_products(products[place], z)

    def _squared_hinges(
        self, index: np.ndarray, anchors: np.ndarray, place: np.ndarray, matrix: Any
    ) -> float:
        """Sum of the squared hinge losses of the triplets `index`, whose anchors are ``anchors[place]``."""
        if self._engine.device is not None:
            return self._engine.there.squared_hinges(self._tuples, index, matrix)
        left, right = self._tuples.left, self._tuples.right
        return squared_hinges(left.rows(anchors) @ matrix, place, right.values, index)

    def _sparse_squared_hinges(self, matrix: sp.csr_matrix) -> float:
        """Sum of the squared hinge losses of all triplets, where items and M are sparse."""
        left, right = (
            side.csr_renumbered(None) for side in (self._tuples.left, self._tuples.right)
        )
        index = np.concatenate([part[0] for part in self._parts])
        anchors, first = np.unique(index[:, 0], return_index=True)
        by_feature = csr_reader(left[anchors].tocsc())
        margins = np.zeros(len(index))
        sparse_margins(
            csr_reader(matrix),
            by_feature,
            np.append(first, len(index)),
            csr_reader(right),
            index,
            np.zeros(matrix.shape[1]),
            margins,
        )
        return float(np.square(np.maximum(0.0, 1.0 - margins)).sum())


def check_lengths(tuples: Comparisons) -> None:
    """Refuse items so long that ||x||^2 ||z||^2 overflows: no step could be computed."""
    longest = []
    for items in (tuples.left, tuples.right):
        numbers = items.values.data if tuples.is_sparse else items.values
        longest.append(float(np.abs(numbers).max(initial=0.0)))
    with np.errstate(over="ignore"):
        product = np.float64(longest[0]) ** 2 * (2 * np.float64(longest[1])) ** 2
        product *= tuples.left.shape[1] * tuples.right.shape[1]
    if not np.isfinite(product):
        raise ValueError(
            "items: expected numbers whose products do not overflow, got one as large as "
            f"{max(longest):.3g}; scale the items"
        )
