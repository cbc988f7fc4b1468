"""Online learners of a distance d(q, x) = (q - x)' M (q - x) from pairs or triplets.

Each class stores its parameters and names its engine and its step. Everything else is in `pairs_base`,
`mahalanobis` and `online`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._documentation import documented
from .._engines import (
    Engine,
    LogDetEngine,
    LogDetStep,
    SpectralEngine,
    default_block_size,
    entrywise_engine,
    first_matrix,
)
from .._engines.store import DEFAULT_HEAD_BYTES
from ..data.comparisons import Comparisons
from ..similarity.mahalanobis import Spectrum, check_positive, first_metric
from ..validation import check_choice, check_integer, check_number
from .pairs_base import PairLearner, check_targets, distance_targets

_COMMON = """dtype : "float32" or "float64", optional
        Precision of the items and of what is read. None takes that of the first items.
    preprocessor : array, CSR matrix or pair (queries, items) of them, optional
        Items behind row numbers."""

_ATTRIBUTES = """threshold_ : float
        Squared distance up to which two items count as similar.
    components_ : array of shape (q, d)
        L with M = L'L, the longest direction first.
    eigenvalues_, effective_dimension_ : array of shape (d,), int
        Eigenvalues of M, largest first, and how many of them count.
    n_rounds_, n_updates_, n_skipped_ : int
        Pairs seen, those that changed the model, those of equal vectors.
    average_loss_, mistake_rate_, violation_rate_ : float
        Mean loss, share of pairs on the wrong side, share with a loss, each before its own update."""


_documented = documented(common=_COMMON, attributes=_ATTRIBUTES)


def _start_spectrum(init: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Positive eigenvalues and eigenvectors (rows) of the first matrix."""
    if isinstance(init, str):
        rank = d if init == "identity" else 0
        return np.ones(rank), np.eye(rank, d)
    values, vectors = np.linalg.eigh(check_positive(init, "init", dtype=np.float64, size=d))
    positive = values > 1e-14 * max(values[-1], 0.0)
    return values[positive], vectors.T[positive]


class _PassiveAggressive(PairLearner):
    """PA, PA-I, PA-II and PALS, with the constraints applied at the end or after every step."""

    C: Any
    variant: str
    projection: str
    tolerance: float
    init: Any
    block_size: Any = None
    head_bytes: Any = None
    _engine_kinds: tuple[str, ...] = ("dense", "sparse", "spectral")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("C", self.C, finite=False)
        check_choice("variant", self.variant, ("PA", "PA-I", "PA-II", "PALS"))
        check_choice("projection", self.projection, ("end", "every-step"))
        check_number("tolerance", self.tolerance, exclusive=False)
        if isinstance(self.init, str):
            check_choice("init", self.init, ("zeros", "identity"))
        if self.block_size is not None:
            check_integer("block_size", self.block_size)
        if self.head_bytes is not None:
            check_integer("head_bytes", self.head_bytes)

    def _step(self) -> Any:
        from .._kernels import steps

        rules = {"PA": steps.PA, "PA-I": steps.PA_I, "PA-II": steps.PA_II, "PALS": steps.PALS}
        return steps.Step(
            rules[self.variant], C=float(self.C), bias=1.0, tolerance=float(self.tolerance)
        )

    def _new_engine(self, tuples: Comparisons) -> Engine:
        from .._kernels.rules import PLAIN, Rule

        d, dtype = tuples.left.shape[1], tuples.left.dtype
        if self.projection == "every-step":
            values, vectors = _start_spectrum(self.init, d)
            return SpectralEngine(values, vectors, dtype, shortens=False, threshold=0.0)
        if not isinstance(self.init, str):
            check_positive(self.init, "init", size=d)
        start = first_matrix(self.init, (d, d), dtype, tuples.is_sparse)
        return entrywise_engine(Rule(PLAIN), None, start, tuples, False, self.head_bytes)

    def _storage_options(self) -> dict[str, Any]:
        return {"has_aux": False, "head_bytes": self.head_bytes or DEFAULT_HEAD_BYTES}

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        if isinstance(engine, SpectralEngine) != (self.projection == "every-step"):
            raise ValueError(
                "projection: cannot change in the middle of a stream, got "
                f"{self.projection!r} instead of the other one"
            )
        super()._advance(engine, tuples)

    def _block_size(self, engine: Any) -> int:
        # One Gram matrix where triplets have two: larger blocks pay.
        size = default_block_size(engine.shape[0])
        return self.block_size or (size if size == 1 else min(512, 2 * size))

    def _own_threshold(self) -> float:
        return max(1.0, self._count("THRESHOLD"))


@_documented
class PAMetric(_PassiveAggressive):
    """Online passive-aggressive learning of a distance and of the threshold that divides it.

    A similar pair (y = 1) should have a distance of at most b - 1, a dissimilar one (y = -1) of at least
    b + 1. With p = 1 - y (b - v'Mv), v the difference of the two items and K = 1 + ||v||^4, each pair moves
    M by -tau y v v' and b by tau y.

    Parameters
    ----------
    C : float
        Aggressiveness: the longest step (PA-I), or the price of a remaining loss (PA-II, PALS).
    variant : "PA", "PA-I", "PA-II" or "PALS"
        tau = [p]+ / K, min(C, [p]+ / K), [p]+ / (K + 1/(2C)) or p / (K + 1/(2C)).
    projection : "end" or "every-step"
        When M is brought back to the positive semi-definite matrices and b to at least 1. "end" (the
        paper's - version) learns with the raw M and b and projects what is read. "every-step" (+) does so
        after every change, exactly, without an eigendecomposition: a step costs O(d r^2) while the rank r is
        below d/3, and some tens of products of a matrix with a vector above.
    tolerance : float
        Steps with |tau| below it are not taken.
    init : "zeros", "identity" or matrix of shape (d, d)
        The first M, symmetric and positive semi-definite. The first threshold is 0.
    block_size : int, optional
        With "end" on dense items: pairs learnt together, the same steps as one at a time to rounding. None
        chooses by dimension.
    head_bytes : int, optional
        With "end" on sparse items: memory of the dense block of the most frequent features.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: none in the updates. The paper asks for b >= 1 to be checked after similar
    pairs only; b falls after dissimilar ones, so it is checked after every change. PALS may take negative
    steps: M is projected whenever tau y > 0. On sparse items, reading needs the eigenvectors of M on the
    features that were touched: cubic in their number.

    References
    ----------
    Perez-Suay, Ferri, Arevalillo-Herraez. Passive-aggressive online distance metric learning and
    extensions. Progress in Artificial Intelligence 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import minmax_scale
    >>> from simstream import PAMetric, PairSampler
    >>> X, y = load_wine(return_X_y=True)
    >>> X = minmax_scale(X)
    >>> model = PAMetric(C=0.1, preprocessor=X).fit(*PairSampler(y, 0).draw(2000))
    >>> model.score(*PairSampler(y, 1).draw(1000)) > 0.9
    True
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        variant: str = "PA-I",
        projection: str = "end",
        tolerance: float = 0.0,
        init: Any = "zeros",
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.C = C
        self.variant = variant
        self.projection = projection
        self.tolerance = tolerance
        self.init = init
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.preprocessor = preprocessor


@_documented
class POLA(_PassiveAggressive):
    """Pseudo-metric online learning: successive projections on each pair's half-space and on the metrics.

    The same as ``PAMetric(variant="PA", projection="every-step")``.

    Parameters
    ----------
    tolerance : float
        Steps shorter than it are not taken.
    init : "zeros", "identity" or matrix of shape (d, d)
        The first M, symmetric and positive semi-definite. The first threshold is 0.
    {common}

    Attributes
    ----------
    {attributes}

    References
    ----------
    Shalev-Shwartz, Singer, Ng. Online and batch learning of pseudo-metrics. ICML 2004.

    Examples
    --------
    >>> from simstream import POLA
    >>> model = POLA().learn_one([1.0, 0.0], [0.0, 0.0], -1)
    >>> model.pair_distance([[[1.0, 0.0], [0.0, 0.0]]])
    array([0.5])
    """

    C = np.inf
    variant = "PA"
    projection = "every-step"

    def __init__(
        self,
        *,
        tolerance: float = 0.0,
        init: Any = "zeros",
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.tolerance = tolerance
        self.init = init
        self.dtype = dtype
        self.preprocessor = preprocessor


@_documented
class RDML(PairLearner):
    """Regularised distance metric learning, online: fixed steps on mistakes, M always positive semi-definite.

    A similar pair with a distance of 1 or more, or a dissimilar one with 1 or less, moves M by -lam y v v'. A
    step that would leave the positive semi-definite matrices is shortened to the longest one that does not.

    Parameters
    ----------
    lam : float
        Length of a step.
    exact : bool
        Take the whole step and project back on the positive semi-definite matrices instead of shortening it.
    margin : float from 0 to 1
        A pair counts as a mistake until its distance is beyond the threshold 1 by more than this.
    {common}

    Attributes
    ----------
    {attributes}

    References
    ----------
    Jin, Wang, Zhou. Regularized distance metric learning: theory and algorithm. NIPS 2009.

    Examples
    --------
    >>> from simstream import RDML
    >>> model = RDML(lam=0.5).learn_one([1.0, 0.0], [0.0, 0.0], -1)
    >>> model.get_mahalanobis_matrix()
    array([[0.5, 0. ],
           [0. , 0. ]])
    """

    _engine_kinds: tuple[str, ...] = ("spectral",)

    def __init__(
        self,
        lam: float = 0.1,
        *,
        exact: bool = False,
        margin: float = 0.0,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.lam = lam
        self.exact = exact
        self.margin = margin
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam)
        if check_number("margin", self.margin, exclusive=False) > 1:
            raise ValueError(f"margin: expected at most 1, got {self.margin}")

    def _step(self) -> Any:
        from .._kernels.steps import ON_MISTAKE, Step

        return Step(ON_MISTAKE, eta=float(self.lam), margin=float(self.margin))

    def _new_engine(self, tuples: Comparisons) -> Engine:
        d = tuples.left.shape[1]
        return SpectralEngine(
            np.empty(0),
            np.empty((0, d)),
            tuples.left.dtype,
            shortens=not self.exact,
            threshold=1.0,
        )

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        if engine.shortens == bool(self.exact):
            raise ValueError(f"exact: cannot change in the middle of a stream, got {self.exact!r}")
        super()._advance(engine, tuples)

    def _own_threshold(self) -> float:
        return 1.0


class _LogDet(PairLearner):
    """Learners whose step adds a multiple of v v' to the inverse of M."""

    eta: float
    lower: Any
    upper: Any
    always: bool
    _engine_kinds: tuple[str, ...] = ("logdet",)
    _n_matrices = 1

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("eta", self.eta)
        check_targets(self.lower, self.upper)

    def _step(self) -> Any:
        return LogDetStep(float(self.eta), bool(self.always))

    def _targets(self, tuples: Comparisons) -> np.ndarray:
        """Squared distances that similar pairs should not exceed and dissimilar ones should reach."""
        if tuples.left.shape[0] + tuples.right.shape[0] < 4 and None in (self.lower, self.upper):
            raise ValueError(
                "lower, upper: expected both to start from a single tuple (there are too few items to "
                f"measure distances of), got {self.lower} and {self.upper}"
            )
        return distance_targets(self.lower, self.upper, tuples)

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        own = engine.targets / engine.scale**2
        for name, given, kept in zip(
            ("lower", "upper"), (self.lower, self.upper), own, strict=True
        ):
            if given is not None and not np.isclose(given, kept, rtol=1e-9, atol=0):
                raise ValueError(
                    f"{name}: cannot change in the middle of a stream, expected {kept:g}, got {given!r}"
                )
        super()._advance(engine, tuples)

    def _spectrum_of(self, engine: Any) -> Spectrum:
        spectrum = Spectrum.of_matrix(engine.exact_matrix())
        spectrum.dtype = engine.dtype
        return spectrum

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        if len(self._engine.matrices) != self._n_matrices:
            raise ValueError(
                f"a: expected {self._n_matrices} matrices, got {len(self._engine.matrices)}"
            )

    def _own_threshold(self) -> float:
        engine = self._fitted()
        return float(engine.targets.mean() / engine.scale**2)


#: From this dimension on blocks of LEGO are faster than single steps.
_LEGO_BLOCKS_FROM = 300

_TARGETS = """lower, upper : float, optional
        Squared distances that similar pairs should not exceed, and that dissimilar pairs should reach. None
        takes the 5th and the 95th percentile of squared Euclidean distances of random pairs of the items
        of the first call (all rows of `preprocessor`).
    always : bool
        Update also where a distance is on the right side of its target already."""


_with_targets = documented(common=_COMMON, attributes=_ATTRIBUTES, targets=_TARGETS)


@_with_targets
class LEGO(_LogDet):
    """LogDet exact gradient online: M_{t+1} = argmin_M D_ld(M, M_t) + eta/2 (v'Mv - target)^2.

    M stays positive definite for any step size and any data, without projections.

    Parameters
    ----------
    eta : float
        Step size.
    {targets}
    init : "identity" or matrix of shape (d, d)
        The first M, symmetric and positive definite.
    block_size : int, optional
        Pairs learnt together: the same steps as one at a time, to rounding. None chooses by dimension.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    The threshold is the middle of the two targets. The loss counted is half the squared violation.

    References
    ----------
    Jain, Kulis, Dhillon, Grauman. Online metric learning and fast similarity search. NIPS 2008.

    Examples
    --------
    >>> from simstream import LEGO
    >>> model = LEGO(eta=1e6, lower=0.5, upper=2.0).learn_one([1.0, 0.0], [0.0, 0.0], 1)
    >>> round(float(model.pair_distance([[[1.0, 0.0], [0.0, 0.0]]])[0]), 3)
    0.5
    """

    def __init__(
        self,
        eta: float = 0.1,
        *,
        lower: float | None = None,
        upper: float | None = None,
        always: bool = False,
        init: Any = "identity",
        block_size: int | None = None,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.eta = eta
        self.lower = lower
        self.upper = upper
        self.always = always
        self.init = init
        self.block_size = block_size
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.init, str):
            check_choice("init", self.init, ("identity",))
        if self.block_size is not None:
            check_integer("block_size", self.block_size)

    def _block_size(self, engine: Any) -> int:
        # Its recursion costs B^3: smaller blocks than usual, and they pay later.
        size = default_block_size(engine.shape[0])
        return self.block_size or (1 if engine.shape[0] < _LEGO_BLOCKS_FROM else max(32, size // 4))

    def _new_engine(self, tuples: Comparisons) -> Engine:
        start = first_metric(self.init, tuples.left.shape[1], definite=True)
        return LogDetEngine([start], self._targets(tuples), 1.0, tuples.left.dtype)


@_with_targets
class OnlineITML(_LogDet):
    """Information-theoretic metric learning, online: LogDet steps along the gradient of the violation.

    M starts as I/d (I/2 where there is one feature) and stays between zero and the identity: a step that
    would leave that range is shortened.

    Parameters
    ----------
    eta : float
        Step size.
    {targets}
    scale : float, optional
        Items are multiplied by it before learning, so that targets are below 1. None takes one over twice the
        longest of the first items. `lower`, `upper` and all distances are in the items' own units.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    M is kept at least 1e-4 below the identity: the exact rule would go on by ever smaller steps and end in a
    division by zero. Learning starts from distances d times too small, so that the threshold (the middle of
    the targets) says little before many steps; rankings, and `calibrate_threshold`, do not depend on it.

    References
    ----------
    Davis, Kulis, Jain, Sra, Dhillon. Information-theoretic metric learning. ICML 2007.

    Examples
    --------
    >>> from simstream import OnlineITML
    >>> model = OnlineITML(eta=0.5, lower=0.1, upper=0.8, scale=1.0)
    >>> model.learn_one([1.0, 0.0], [0.0, 0.0], 1).pair_distance([[[1.0, 0.0], [0.0, 0.0]]]) < 0.5
    array([ True])
    """

    _n_matrices = 2

    def __init__(
        self,
        eta: float = 0.1,
        *,
        lower: float | None = None,
        upper: float | None = None,
        always: bool = False,
        scale: float | None = None,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.eta = eta
        self.lower = lower
        self.upper = upper
        self.always = always
        self.scale = scale
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.scale is not None:
            check_number("scale", self.scale)

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        if self.scale is not None and self.scale != engine.scale:
            raise ValueError(
                f"scale: cannot change in the middle of a stream, expected {engine.scale}, got {self.scale}"
            )
        super()._advance(engine, tuples)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        d = tuples.left.shape[1]
        scale = self.scale
        if scale is None:
            longest = max(_longest_row(tuples.left.values), _longest_row(tuples.right.values))
            scale = 0.5 / longest if longest > 0 else 1.0
        share = 1.0 / max(2, d)  # below the identity also where there is one feature
        matrices = [share * np.eye(d), share / (1.0 - share) * np.eye(d)]
        targets = self._targets(tuples) * scale**2
        return LogDetEngine(matrices, targets, scale, tuples.left.dtype)


def _longest_row(values: Any) -> float:
    squares = values.multiply(values) if sp.issparse(values) else np.square(values)
    return float(np.sqrt(np.asarray(squares.sum(axis=1)).max()))
