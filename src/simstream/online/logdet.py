"""Online learners of a distance by LogDet steps towards target distances: LEGO and OnlineITML."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import Engine, LogDetEngine, LogDetStep, default_block_size
from ..data.comparisons import Comparisons
from ..similarity.learner import Learner, documented
from ..similarity.mahalanobis import first_metric
from ..validation import Items, check_features, check_number
from .pairs import ATTRIBUTES, COMMON, NORMALISED, PairLearner

#: Random pairs of items whose distances give the targets.
_N_TARGET_PAIRS = 10_000

#: Relative difference up to which distances count as equal.
_EQUALLY_FAR = 1e-6

#: From this dimension on blocks of LEGO are faster than single steps.
_LEGO_BLOCKS_FROM = 300

_TARGETS = """lower, upper : float, optional
        Squared distances that similar pairs should not exceed, and that dissimilar pairs should reach. None
        takes the 5th and the 95th percentile of squared Euclidean distances of random pairs of all rows of
        `preprocessor`, whether tuples are row numbers or vectors; without it, or where it is a function, of
        the items of the first call, each once. Where items are all equally far apart, it is half and one and
        a half times that distance.
    always : bool
        Also update pairs whose distance already meets its target."""


_with_targets = documented(
    common=COMMON, normalise=NORMALISED, attributes=ATTRIBUTES, targets=_TARGETS
)


@_with_targets
class LEGO(PairLearner):
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

    _engine_types = (LogDetEngine,)

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
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.eta = eta
        self.lower = lower
        self.upper = upper
        self.always = always
        self.init = init
        self.block_size = block_size
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("eta", self.eta)
        check_targets(self.lower, self.upper)
        self._check_init("identity")
        self._check_integers_or_none("block_size")

    def _block_size(self, engine: Any) -> int:
        # Its recursion costs B^3: smaller blocks than usual, and they pay later.
        size = default_block_size(engine.shape[0])
        return self.block_size or (1 if engine.shape[0] < _LEGO_BLOCKS_FROM else max(32, size // 4))

    def _new_engine(self, tuples: Comparisons) -> Engine:
        start = first_metric(self.init, tuples.left.shape[1], definite=True)
        targets = _first_targets(self.lower, self.upper, collection_of(self, tuples))
        return LogDetEngine([start], targets, 1.0, tuples.left.dtype)

    def _step(self) -> Any:
        return LogDetStep(float(self.eta), bool(self.always))

    def _has_weights(self) -> bool:
        return True

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        return _kept_targets(engine, self.lower, self.upper)

    def _own_threshold(self) -> float:
        return self._engine.threshold()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        _check_matrices(self._engine, 1)


@_with_targets
class OnlineITML(PairLearner):
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
        longest of the items that targets are taken from. `lower`, `upper` and all distances are in the items'
        own units.
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    M is kept at least 1e-4 below the identity: the exact rule would approach it by ever smaller steps and end
    in a division by zero. Distances start d times too small, so the threshold (the middle of the targets)
    means little until many steps were taken; rankings and `calibrate_threshold` do not depend on it.

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

    _engine_types = (LogDetEngine,)

    def __init__(
        self,
        eta: float = 0.1,
        *,
        lower: float | None = None,
        upper: float | None = None,
        always: bool = False,
        scale: float | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.eta = eta
        self.lower = lower
        self.upper = upper
        self.always = always
        self.scale = scale
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("eta", self.eta)
        check_targets(self.lower, self.upper)
        if self.scale is not None:
            check_number("scale", self.scale)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        d = tuples.left.shape[1]
        scale = self.scale
        items = collection_of(self, tuples)
        if scale is None:
            longest = max(_longest_row(items.left.values), _longest_row(items.right.values))
            scale = 0.5 / longest if longest > 0 else 1.0
        share = 1.0 / max(2, d)  # below the identity also where there is one feature
        matrices = [share * np.eye(d), share / (1.0 - share) * np.eye(d)]
        targets = _first_targets(self.lower, self.upper, items) * scale**2
        return LogDetEngine(matrices, targets, scale, tuples.left.dtype)

    def _step(self) -> Any:
        return LogDetStep(float(self.eta), bool(self.always))

    def _has_weights(self) -> bool:
        return True

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        scale = engine.scale if self.scale is None else self.scale
        kept = _kept_targets(engine, self.lower, self.upper)
        return {**kept, "scale": (engine.scale, scale)}

    def _own_threshold(self) -> float:
        return self._engine.threshold()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        _check_matrices(self._engine, 2)


def collection_of(learner: Learner, tuples: Comparisons) -> Comparisons:
    """Tuples with the items that bounds are taken from: the collection, also where tuples are vectors.

    The same pairs mean the same then, whether they are given as row numbers or as vectors. A function of keys
    has no collection: there it is the vectors themselves.
    """
    if not tuples.of_vectors or learner.preprocessor is None or callable(learner.preprocessor):
        return tuples
    left, right = learner._item_cache().items(learner.preprocessor, tuples.left.dtype)
    check_features(tuples.shape, left, right)
    return Comparisons(left, right, tuples.index[:0])


def _first_targets(lower: Any, upper: Any, tuples: Comparisons) -> np.ndarray:
    """`distance_targets` for the first tuples of a stream."""
    if tuples.left.shape[0] + tuples.right.shape[0] < 4 and None in (lower, upper):
        raise ValueError(
            "lower, upper: expected both to start from a single tuple without an array as preprocessor "
            f"(there are too few items to measure distances of), got {lower} and {upper}"
        )
    return distance_targets(lower, upper, tuples)


def _kept_targets(engine: LogDetEngine, lower: Any, upper: Any) -> dict[str, tuple[Any, Any]]:
    """The targets of an engine, and those given as parameters; one that is None is unchanged."""
    found = {}
    for name, given, kept in zip(
        ("lower", "upper"), (lower, upper), engine.targets / engine.scale**2, strict=True
    ):
        same = given is None or np.isclose(given, kept, rtol=1e-9, atol=0)
        found[name] = (float(kept), float(kept) if same else given)
    return found


def _check_matrices(engine: LogDetEngine, n: int) -> None:
    if len(engine.matrices) != n:
        raise ValueError(f"a: expected {n} matrices, got {len(engine.matrices)}")


def _longest_row(values: Any) -> float:
    squares = values.multiply(values) if sp.issparse(values) else np.square(values)
    return float(np.sqrt(np.asarray(squares.sum(axis=1)).max()))


def check_targets(lower: Any, upper: Any) -> None:
    """Check the parameters `lower` and `upper`, either of which may be None."""
    for name, value in (("lower", lower), ("upper", upper)):
        if value is not None:
            check_number(name, value)
    if None not in (lower, upper) and lower >= upper:
        raise ValueError(f"upper: expected more than lower ({lower}), got {upper}")


def distance_targets(lower: Any, upper: Any, tuples: Comparisons) -> np.ndarray:
    """Squared distances that similar pairs should not exceed, and that dissimilar pairs should reach.

    Where one is None: the 5th or the 95th percentile of squared Euclidean distances of random pairs of the
    items. The same items in the same order give the same targets, whatever the tuples are; in another order
    other pairs are drawn, and targets differ by what a sample of that size does.
    """
    given = np.array([np.nan if target is None else target for target in (lower, upper)])
    if np.isnan(given).any():
        percentiles = np.percentile(_random_distances(tuples), (5, 95))
        if np.isnan(given).all() and percentiles[1] <= (1 + _EQUALLY_FAR) * percentiles[0]:
            percentiles = percentiles * (0.5, 1.5)  # room on both sides
        given = np.where(np.isnan(given), percentiles, given)
    if not given[0] < given[1]:
        raise ValueError(
            f"lower, upper: expected lower < upper, got {given[0]:g} and {given[1]:g} (where None was "
            "given: percentiles of the items' squared distances); give both, or none"
        )
    return given


def _random_distances(tuples: Comparisons) -> np.ndarray:
    """Squared Euclidean distances of random pairs, equal items left out; the generator has a fixed seed."""
    rng = np.random.default_rng(0)
    left, right = tuples.left, tuples.right
    if tuples.of_vectors and left is right:
        # As often as an item is in the tuples it is in their vectors; in a collection it is once.
        left = right = Items._of(np.unique(left.values, axis=0))
    a = rng.integers(0, left.shape[0], _N_TARGET_PAIRS)
    b = rng.integers(0, right.shape[0], _N_TARGET_PAIRS)
    distances = np.zeros(_N_TARGET_PAIRS)
    with np.errstate(over="ignore"):
        for s in range(0, _N_TARGET_PAIRS, 1000):
            v = left.dense_rows(a[s : s + 1000]) - right.dense_rows(b[s : s + 1000])
            distances[s : s + 1000] = np.einsum("ij,ij->i", v, v, dtype=np.float64)
    distances = distances[distances > 0]
    if len(distances) == 0 or not np.isfinite(distances).all():
        got = "infinite ones" if len(distances) else "only zeros (equal items, or tiny numbers)"
        raise ValueError(f"items: expected squared distances that are positive numbers, got {got}")
    return distances
