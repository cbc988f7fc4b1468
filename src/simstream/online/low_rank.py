"""Online learners of a bilinear similarity of low rank from triplets: OSLLR-GS, OMLLR, Loreta.

They keep factors of the matrix (or its singular vectors): queries and items can be mapped into a space of few
dimensions, where plain inner products are the similarity.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from .._engines import (
    Engine,
    GroupGramEngine,
    GroupRowsEngine,
    LowRankEngine,
    NuclearEngine,
    RetractionEngine,
    first_matrix,
)
from .._kernels.omllr import NuclearStep
from .._kernels.osllrgs import GroupStep
from ..data.comparisons import Comparisons
from ..similarity.bilinear import NORMALISE
from ..similarity.learner import delegated, delegated_property, documented
from ..similarity.low_rank import LowRank
from ..similarity.mahalanobis import check_positive
from ..validation import check_choice, check_integer, check_items, check_number
from .base import OnlineLearner

_COMMON = """dtype : "float32" or "float64", optional
        Precision of the items as they are used, and of the matrix that is read; learning is in float64. None
        takes that of the first items: float32 stays, all else is float64.
    {normalise}
    preprocessor : array, sparse matrix, table, `Items`, pair (queries, items) of them, or function, optional
        Items that row numbers refer to. In a pair, anchors are rows of the first, others of the second. A
        function gets an array of keys, each once, and returns their rows."""

_ATTRIBUTES = """singular_values_ : array
        Singular values of the matrix as it is read, largest first.
    rank_ : int
        Number of singular values above 1e-6 times the largest one.
    n_rounds_, n_updates_, n_skipped_ : int
        Triplets seen, those that were violated, those skipped (identical vectors, or a zero anchor).
    average_loss_, mistake_rate_ : float
        Mean hinge loss, and share of margins <= 0, each before its own update."""

_documented = documented(common=_COMMON, normalise=NORMALISE, attributes=_ATTRIBUTES)


class _EngineFactors(LowRank):
    """The similarity of an engine as it is now: costly parts are computed once, when they are first used."""

    def __init__(self, engine: LowRankEngine) -> None:
        self._engine = engine

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}  # an engine is no parameter

    @property
    def shape_(self) -> tuple[int, int]:
        return self._engine.shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        return self._engine.dtype

    @cached_property
    def _full(self) -> np.ndarray | None:
        return self._engine.full()

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        return self._engine.factors(self._full)

    @cached_property
    def _singular_values(self) -> np.ndarray:
        values = self._engine.singular_values()
        return super()._singular_values if values is None else values

    def get_bilinear_matrix(self) -> np.ndarray:
        return self._engine.matrix()


class LowRankLearner(OnlineLearner):
    """Base of the learners that keep W = L R'."""

    def _similarity_of(self, engine: Any) -> LowRank:
        return _EngineFactors(engine)

    get_bilinear_matrix = delegated(LowRank.get_bilinear_matrix)
    transform_query = delegated(LowRank.transform_query)
    transform_items = delegated(LowRank.transform_items)
    singular_values_ = delegated_property(LowRank, "singular_values_")
    rank_ = delegated_property(LowRank, "rank_")
    sparsity_ = delegated_property(LowRank, "sparsity_")


@_documented
class OSLLRGS(LowRankLearner):
    """Online similarity learning with low rank and group sparsity (OSLLR-GS).

    Learns W = X X' with X of shape (d, m): a gradient step on [1 - x'W(x+ - x-)]_+, then every row of X is
    shortened by eta_t gamma and cut to length beta, so that no diagonal entry of W is above beta^2. Features
    whose row is zero are not used. Shortening is lazy, and exact: a triplet without loss changes nothing, and
    on sparse items a violated one costs m for each feature of its three items. W is positive semi-definite.

    Parameters
    ----------
    beta : float
        Largest length of a row of X; may be infinite.
    gamma : float
        Strength of the group sparsity: how fast rows shrink.
    eta : float
        Step size: eta_t = eta / sqrt(t).
    n_components : int, optional
        Columns m of X, the largest rank of W. None is the number of features.
    output : "avg_x", "avg_w" or "last"
        What is read: the average of X weighted by eta_t, the average of W = X X' (d x d numbers, and O(d^2)
        for a violated triplet whatever m is), or the last X. Averages hardly ever have rows of zeros.
    init : "auto" or array of shape (d, m)
        The first X. "auto" is min(1, beta) times the identity where m >= d (padded with zeros), otherwise
        random normal numbers of variance 1/m. Rows longer than beta are cut. From X = 0 nothing is learnt.
    random_state : None, int or RandomState
        Seed of the random start.
    {common}

    Attributes
    ----------
    feature_importances_ : array (d,)
        Lengths of the rows of X as it is read, for scikit-learn's SelectFromModel.
    {attributes}

    Notes
    -----
    Deviations from the paper, where it is printed in error: it starts from X = 0, which no step ever leaves;
    its gradient lacks one of the two terms and is taken even without a loss; its first step size is infinite
    (rounds count from 1 here); the threshold of a row is eta_t gamma, against the norm after the gradient
    step.

    References
    ----------
    Cong, Liu, Fan, Zeng, Yu, Luo. Online similarity learning for big data with overfitting. IEEE Trans. Big
    Data 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from simstream import OSLLRGS, TripletSampler
    >>> X, y = load_digits(return_X_y=True)
    >>> triplets = TripletSampler(y, random_state=0).draw(5000)
    >>> model = OSLLRGS(beta=10.0, gamma=1e-3, preprocessor=X / 64).fit(triplets)
    >>> model.score(TripletSampler(y, random_state=1).draw(1000)) > 0.9
    True
    >>> model.transform(X[:2] / 64).shape, model.feature_importances_.shape
    ((2, 64), (64,))
    """

    _engine_types = (GroupRowsEngine, GroupGramEngine)
    #: Whether steps follow the whole gradient. The paper prints one of its two terms.
    _exact_gradient = True

    def __init__(
        self,
        beta: float = 1.0,
        gamma: float = 1e-3,
        eta: float = 1.0,
        *,
        n_components: int | None = None,
        output: str = "avg_x",
        init: Any = "auto",
        random_state: Any = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.beta = beta
        self.gamma = gamma
        self.eta = eta
        self.n_components = n_components
        self.output = output
        self.init = init
        self.random_state = random_state
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("beta", self.beta, finite=False)
        check_number("gamma", self.gamma, exclusive=False)
        check_number("eta", self.eta)
        self._check_integers_or_none("n_components")
        check_choice("output", self.output, ("avg_x", "avg_w", "last"))
        self._check_init("auto")

    def _start(self, d: int) -> np.ndarray:
        """The first X, not yet cut to the ball."""
        m = self.n_components
        if not isinstance(self.init, str):
            values = check_items(self.init, "init", dtype="float64").values
            start = values.toarray() if sp.issparse(values) else values
            if start.shape != (d, m or start.shape[1]):
                raise ValueError(
                    f"init: expected an array of shape ({d}, {m or 'n_components'}), got {start.shape}"
                )
            return start
        m = m or d
        if m >= d:
            return np.eye(d, m)
        return check_random_state(self.random_state).normal(size=(d, m)) / np.sqrt(m)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        tuples.check_one_space("W = X X'")
        start, beta = self._start(tuples.left.shape[1]), float(self.beta)
        if self.output == "avg_w":
            return GroupGramEngine(start, beta, tuples.left.dtype)
        return GroupRowsEngine(start, beta, self.output == "avg_x", tuples.left.dtype)

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        given = self.n_components
        if given is None:
            given = engine.shape[0] if isinstance(self.init, str) else np.shape(self.init)[-1]
        return {
            "n_components": (engine.n_columns, given),
            "beta": (engine.beta, float(self.beta)),
            "output": (engine.output, self.output),
        }

    def _step(self) -> Any:
        exact = self._exact_gradient
        return GroupStep(float(self.eta), float(self.gamma), float(self.beta), exact)

    transform = delegated(LowRank.transform_items)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Length of each feature's row of X as it is read: how much the feature matters."""
        similarity = self._similarity()
        if similarity._full is not None:
            return np.sqrt(np.maximum(np.diag(similarity._full), 0.0))
        return np.linalg.norm(similarity._factors[0], axis=1)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        return {**header, "exact_gradient": self._exact_gradient}, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        if not header["exact_gradient"]:
            self._exact_gradient = False


@_documented
class OMLLR(LowRankLearner):
    """Online metric learning with low rank (OMLLR): gradient steps with a nuclear norm.

    W_{t+1} = argmin_W <G_t, W> + lam ||W||_* + ||W - W_t||^2 / (2 eta_t): a gradient step, then every
    singular value is lowered by eta_t lam. W is kept in its singular vectors. A triplet costs O(d rank), one
    that is violated a singular value decomposition of order rank + 1 and O(d rank^2): cheap from
    ``init="zeros"``, while from the identity the rank is d until the thresholds have added up to 1.

    Parameters
    ----------
    lam : float
        Strength of the nuclear norm; 0 is OGD.
    eta : float
        Step size: eta_t = eta / sqrt(t).
    projection : None or "psd"
        "psd" keeps W symmetric positive semi-definite: half steps along x z' and z x', eigenvalues that are
        not positive after the threshold are left out.
    init : "identity", "zeros" or matrix of shape (d, d')
        The first W. Two item spaces of different dimension need "zeros" or a matrix.
    output : "average" or "last"
        What is read: the average of all W weighted by eta_t (d x d' numbers more), or the last W.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    The source used gives the idea only: the start, the step sizes and the positive semi-definite form are
    choices made here.

    References
    ----------
    Cong, Liu, Yuan, Luo. Self-supervised online metric learning with low rank constraint for scene
    categorization. IEEE Trans. Image Processing 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from simstream import OMLLR, TripletSampler
    >>> X, y = load_digits(return_X_y=True)
    >>> triplets = TripletSampler(y, random_state=0).draw(3000)
    >>> model = OMLLR(lam=0.02, init="zeros", output="last", preprocessor=X / 64).fit(triplets)
    >>> model.rank_ < 64, model.transform_query(X[:2] / 64).shape == (2, model.rank_)
    (True, True)
    """

    _engine_types = (NuclearEngine,)

    def __init__(
        self,
        lam: float = 0.01,
        eta: float = 1.0,
        *,
        projection: str | None = None,
        init: Any = "identity",
        output: str = "average",
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.lam = lam
        self.eta = eta
        self.projection = projection
        self.init = init
        self.output = output
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam, exclusive=False)
        check_number("eta", self.eta)
        check_choice("projection", self.projection, (None, "psd"))
        check_choice("output", self.output, ("average", "last"))
        self._check_init("identity", "zeros")

    def _new_engine(self, tuples: Comparisons) -> Engine:
        symmetric = self.projection == "psd"
        if symmetric:
            tuples.check_one_space("projection='psd'")
        elif isinstance(self.init, str) and self.init == "identity":
            tuples.check_one_space("init='identity'")
        value, left, right = self._start(tuples.shape, symmetric)
        return NuclearEngine(
            value,
            left,
            right,
            symmetric=symmetric,
            averages=self.output == "average",
            dtype=tuples.left.dtype,
        )

    def _start(
        self, shape: tuple[int, int], symmetric: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values and vectors (rows) of the first matrix."""
        if isinstance(self.init, str):
            r = shape[0] if self.init == "identity" else 0
            return np.ones(r), np.eye(r, shape[0]), np.eye(r, shape[1])
        start = first_matrix(self.init, shape, np.float64, False)
        if symmetric:
            values, vectors = np.linalg.eigh(check_positive(start, "init", size=shape[0]))
            value, left = values[::-1], vectors.T[::-1]
            right = left
        else:
            u, value, right = np.linalg.svd(start, full_matrices=False)
            left = u.T
        kept = value > 1e-15 * value.max(initial=0.0)
        return value[kept], left[kept], right[kept]

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        return {
            "projection": ("psd" if engine.symmetric else None, self.projection),
            "output": ("average" if engine.averages else "last", self.output),
        }

    def _step(self) -> Any:
        return NuclearStep(float(self.eta), float(self.lam), self.projection == "psd")


@_documented
class Loreta(LowRankLearner):
    """Online learning on the manifold of matrices of a given rank (LORETA-1).

    W = A B' with k columns each. A violated triplet moves W along the part of x (x+ - x-)' that is tangent to
    the matrices of rank k, and back on them by a second-order retraction: rank-one changes of A and B. A
    triplet costs O(d k).

    Parameters
    ----------
    n_components : int
        Rank k of W; where there are fewer features, their number.
    eta : float
        Step size, constant.
    init : "truncated-identity", "random" or a pair of arrays (d, k) and (d', k)
        The first A and B: the identity's first k columns, normal numbers of variance 1/k, or these.
    random_state : None, int or RandomState
        Seed of the random start.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: none in the step. Pseudo-inverses come from the inverses of A'A and B'B, which
    are updated and, every 1000 steps, worked out anew. Near a singular factor, which is likely where k is
    nearly d and steps are long, they come from the factors themselves: such a triplet costs O(d k^2).

    References
    ----------
    Shalit, Weinshall, Chechik. Online learning in the embedded manifold of low-rank matrices. JMLR 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from simstream import Loreta, TripletSampler
    >>> X, y = load_digits(return_X_y=True)
    >>> triplets = TripletSampler(y, random_state=0).draw(5000)
    >>> model = Loreta(n_components=10, eta=0.5, preprocessor=X / 64).fit(triplets)
    >>> model.transform_items(X / 64).shape
    (1797, 10)
    >>> model.score(TripletSampler(y, random_state=1).draw(1000)) > 0.9
    True
    """

    _engine_types = (RetractionEngine,)

    def __init__(
        self,
        n_components: int = 10,
        eta: float = 0.1,
        *,
        init: Any = "truncated-identity",
        random_state: Any = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.n_components = n_components
        self.eta = eta
        self.init = init
        self.random_state = random_state
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_integer("n_components", self.n_components)
        check_number("eta", self.eta)
        self._check_init("truncated-identity", "random")

    def _new_engine(self, tuples: Comparisons) -> Engine:
        shape = tuples.shape
        k = min(self.n_components, *shape)
        if isinstance(self.init, str):
            if self.init == "random":
                rng = check_random_state(self.random_state)
                a, b = (rng.normal(size=(d, k)) / np.sqrt(k) for d in shape)
            else:
                a, b = (np.eye(d, k) for d in shape)
        else:
            a, b = self._given(shape, k)
        return RetractionEngine(a, b, tuples.left.dtype)

    def _given(self, shape: tuple[int, int], k: int) -> list[np.ndarray]:
        if not hasattr(self.init, "__len__") or len(self.init) != 2:
            raise ValueError("init: expected a pair of arrays (A, B)")
        factors = []
        for name, d, values in zip("AB", shape, self.init, strict=True):
            factor = check_items(values, f"init {name}", dtype="float64").values
            if sp.issparse(factor) or factor.shape != (d, k):
                raise ValueError(
                    f"init: expected an array {name} of shape ({d}, {k}), got {factor.shape}"
                )
            if np.linalg.matrix_rank(factor) < k:
                raise ValueError(f"init: expected linearly independent columns of {name}")
            factors.append(factor)
        return factors

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        k = engine.pair.a.shape[1]
        given = k if min(self.n_components, *engine.shape) == k else self.n_components
        return {"n_components": (k, given)}

    def _step(self) -> Any:
        return float(self.eta)

    def _has_weights(self) -> bool:
        return True
