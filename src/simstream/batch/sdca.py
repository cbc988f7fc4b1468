"""A bilinear similarity as the solution of an optimisation problem, with a certificate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from ..data.comparisons import Comparisons
from ..similarity.base import Similarity
from ..similarity.bilinear import Bilinear
from ..similarity.learner import Learner, delegated, delegated_property
from ..validation import check_choice, check_integer, check_number

#: Columns of `history_`.
_COLUMNS = ("primal", "dual", "gap", "hinge", "squared_hinge", "mistake_rate")


class SDCA(Learner):
    """Relative similarity by stochastic dual coordinate ascent, with a duality gap.

    Minimises P(M) = 1/n sum_i [1 - x_i' M (x_i+ - x_i-)]_+^2 + lam/2 ||M||^2 over a fixed set of n triplets.
    Every draw moves one dual variable to its best value; P(M) minus the dual value bounds how far from the
    optimum M can be, and anyone can recompute it.

    Parameters
    ----------
    lam : float
        Strength of the regularisation.
    n_epochs : int
        Epochs of n draws each, with replacement; fewer if `tol` is reached.
    output : "average", "random" or "last"
        Which M is kept: the mean of the iterates of the second half of all draws, a random one of them, or
        the last one. With `tol`, when the number of draws is not known before, the second half begins where
        1/2, 1, 2, 4, ... epochs had been made: the latest of these that leaves at least half of all draws.
    tol : float, optional
        Stop after an epoch when the duality gaps of its last iterate and of the M that is kept are at most
        this. The mean takes about twice the epochs that the last iterate does.
    random_state : None, int or RandomState
        Draws triplets, and the iterate of output "random".
    block_size : int, optional
        Draws made together on dense items, the same steps as one at a time to rounding. None chooses by
        dimension. Sparse items are always drawn one at a time.
    head_bytes : int, optional
        Sparse items only: memory of the dense block of the most frequent features.
    callback : function of (epoch, duality gap of its last iterate), optional
        Called after every epoch; what it raises ends the fit.
    verbose : bool
        Whether to print every epoch.
    dtype : "float32" or "float64", optional
        Precision of M. None takes that of the items.
    preprocessor : array, CSR matrix or pair (queries, items) of them, optional
        Items behind row numbers.

    Attributes
    ----------
    primal_, dual_, gap_ : float
        Of the M that is kept: P(M), the value of its dual variables, and their difference, worked out in
        float64 whatever the precision of M.
    alpha_ : array of shape (n,)
        Dual variables, none negative; M = 1/(lam n) sum_i alpha_i x_i z_i'.
    history_ : dict of arrays
        "primal", "dual" and "gap" of the last iterate of every epoch (in the precision of M: in float32 a
        gap below 1e-5 of the primal value says little); "hinge", "squared_hinge" and "mistake_rate" as
        means over the draws of the epoch, each before its own step.
    n_iter_ : int
        Epochs made.
    converged_ : bool
        Whether `tol` was given, and `gap_` is at most that. If not, there is a ConvergenceWarning.

    Notes
    -----
    The paper writes the primal over positive semi-definite M, but its dual and its algorithm have no such
    constraint: neither has this. Both outputs use the iterates before each step.

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
        preprocessor: Any = None,
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
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam)
        check_integer("n_epochs", self.n_epochs)
        check_choice("output", self.output, ("average", "random", "last"))
        if self.tol is not None:
            check_number("tol", self.tol)
        for name in ("block_size", "head_bytes"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))

    def fit(self, triplets: Any, y: Any = None) -> SDCA:
        """Learn from a fixed set of triplets.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
            Anchor, positive, negative: the anchor is more like the positive than the negative.
        y : ignored
        """
        from .solve_sdca import solve_sdca

        self._check_parameters()
        read = self._read_tuples(triplets, 3, self.dtype)
        _check_lengths(read)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        solution = solve_sdca(
            read,
            float(self.lam),
            n_epochs=self.n_epochs,
            output=self.output,
            tol=self.tol,
            rng=np.random.default_rng(seed),
            block_size=self.block_size,
            head_bytes=self.head_bytes,
            report=self._report,
        )
        self._kept = solution.matrix
        self.n_features_in_ = solution.matrix.shape[0]
        self.alpha_ = solution.alpha
        self.primal_, self.dual_ = solution.primal, solution.dual
        rows = [(r.primal, r.dual, r.primal - r.dual, *r[2:]) for r in solution.history]
        self.history_ = dict(zip(_COLUMNS, np.array(rows).T, strict=True))
        self.n_iter_, self.converged_ = len(rows), solution.converged
        if self.tol is not None and not self.converged_:
            warnings.warn(
                f"SDCA has not reached tol = {self.tol:g} after {self.n_iter_} epochs: the duality gap of "
                f"the M that is kept is {self.gap_:.3g}; raise n_epochs, or take output='last'",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _report(self, epoch: int, record: Any) -> None:
        gap = record.primal - record.dual
        if self.verbose:
            print(  # noqa: T201
                f"[SDCA] epoch {epoch}: gap {gap:.3g}, primal {record.primal:.6g}, dual {record.dual:.6g}"
            )
        if self.callback is not None:
            self.callback(epoch, gap)

    @property
    def gap_(self) -> float:
        """Duality gap of the M that is kept."""
        return float(self.primal_ - self.dual_)

    def _learnt(self) -> Any:
        return self._kept

    def _similarity(self) -> Bilinear:
        return Bilinear._of(self._fitted())._with_items(self.preprocessor, self._item_cache())

    get_bilinear_matrix = delegated(Bilinear.get_bilinear_matrix)
    transform_query = delegated(Bilinear.transform_query)
    sparsity_ = delegated_property(Bilinear, "sparsity_")
    decision_function = delegated(Similarity.decision_function)
    predict = delegated(Similarity.predict)
    score = delegated(Similarity.score)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        matrix = self._fitted()
        header = {
            name: getattr(self, name) for name in ("primal_", "dual_", "n_iter_", "converged_")
        }
        arrays = {"alpha": self.alpha_, "history": np.array([self.history_[c] for c in _COLUMNS])}
        header["shape"] = list(matrix.shape)
        if sp.issparse(matrix):
            parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        else:
            parts = {"matrix": matrix}
        return header, arrays | parts

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if "matrix" in arrays:
            matrix = arrays["matrix"]
        else:
            parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
            matrix = sp.csr_matrix(parts, shape=tuple(header["shape"]))
            matrix.check_format()
        if list(matrix.shape) != header["shape"] or matrix.dtype not in (np.float32, np.float64):
            raise ValueError(f"matrix: expected shape {header['shape']}, got {matrix.shape}")
        self._kept = matrix
        self.n_features_in_ = matrix.shape[0]
        self.alpha_ = arrays["alpha"]
        self.history_ = dict(zip(_COLUMNS, arrays["history"], strict=True))
        for name in ("primal_", "dual_", "n_iter_", "converged_"):
            setattr(self, name, header[name])


def _check_lengths(tuples: Comparisons) -> None:
    """Refuse items so long that ||x||^2 ||z||^2 is no number any more: no step could be taken."""
    longest = []
    for items in (tuples.left, tuples.right):
        numbers = items.values.data if tuples.is_sparse else items.values
        longest.append(float(np.abs(numbers).max(initial=0.0)))
    with np.errstate(over="ignore"):
        product = np.float64(longest[0]) ** 2 * (2 * np.float64(longest[1])) ** 2
        product *= tuples.left.shape[1] * tuples.right.shape[1]
    if not np.isfinite(product):
        raise ValueError(
            "items: expected numbers whose products can be represented, got one as large as "
            f"{max(longest):.3g}; scale the items"
        )
