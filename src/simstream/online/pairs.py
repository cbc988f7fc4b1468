"""Online learners of a distance d(q, x) = (q - x)' M (q - x) from pairs or triplets.

Each class stores its parameters and names its engine and its step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if

from .._engines import (
    DenseEngine,
    Engine,
    Geometry,
    LogDetEngine,
    SparseEngine,
    SpectralEngine,
    default_block_size,
    entrywise_engine,
    first_matrix,
)
from .._kernels import steps
from .._kernels.rules import PLAIN, Rule
from ..data.comparisons import Comparisons, PairClasses
from ..similarity.base import are_quadruplets
from ..similarity.learner import delegated, delegated_property, documented
from ..similarity.mahalanobis import (
    NORMALISE,
    Mahalanobis,
    Spectrum,
    check_positive,
    tuple_size,
)
from ..similarity.pair_labels import (
    SIGNS,
    given_classes,
    is_label,
    known_classes,
    pair_classifier_tags,
    saved_classes,
)
from ..similarity.thresholds import saved_threshold
from ..validation import check_choice, check_features, check_number, check_pair_labels
from .base import DEVICE, OnlineLearner

NORMALISED = NORMALISE.replace("{origin}", "zero")

COMMON = """dtype : "float32" or "float64", optional
        Precision of the items and of what is read. None takes that of the first items.
    {normalise}
    preprocessor : array, sparse matrix, table, `Items`, pair (queries, items) of them, or function, optional
        Items that row numbers refer to. A function gets an array of keys, each once, and returns their
        rows."""

ATTRIBUTES = """threshold_ : float
        Squared distance up to which two items count as similar.
    components_ : array of shape (q, d)
        L with M = L'L, the longest direction first.
    eigenvalues_, effective_dimension_ : array of shape (d,), int
        Eigenvalues of M, largest first, and the number of them that matter.
    n_rounds_, n_updates_, n_skipped_ : int
        Pairs seen, those that changed the model, those skipped (identical vectors).
    average_loss_, mistake_rate_, violation_rate_ : float
        Mean loss, share of pairs on the wrong side, share with a loss, each before its own update."""


_documented = documented(common=COMMON, device=DEVICE, normalise=NORMALISED, attributes=ATTRIBUTES)


class PairLearner(OnlineLearner):
    """Base of the learners of d(q, x) = (q - x)' M (q - x) from pairs, similar (+1) or dissimilar (-1).

    Triplets are taken too: each is its similar pair followed by its dissimilar one.
    """

    natural_tuples = "pairs"
    #: A threshold that was calibrated or set, after the version of the engine that it belongs to.
    _decided: tuple[float, float] | None = None
    #: The labels that pairs were given; None before any of them says which.
    _classes: PairClasses | None = None

    def __sklearn_tags__(self) -> Any:
        return pair_classifier_tags(super().__sklearn_tags__())

    @property
    def classes_(self) -> np.ndarray:
        """What `predict` answers: the labels learnt from, dissimilar first; -1 and +1 if there were none."""
        self._fitted()
        return np.array(self._classes or SIGNS)

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        if self._takes_quadruplets and are_quadruplets(tuples):
            if y is not None:
                raise ValueError(
                    "y: expected None with quadruplets (their order says it all), got labels"
                )
            return self._quadruplets(self._read_tuples(tuples, 4, dtype))
        return labelled_pairs(self._read_tuples(tuples, tuple_size(tuples), dtype), y)

    def learn_one(self, x: Any, other: Any, y: Any, fourth: Any = None) -> Any:
        """Learn from one pair of vectors, from one triplet, or, with a fourth vector, from one quadruplet.

        Parameters
        ----------
        x, other : 1-d arrays, or CSR matrices of one row
        y : +1 (similar), -1, 0 or False (dissimilar), or a third vector less like x than `other` is
        fourth : vector, optional
            x is more like `other` than y is like it.
        """
        if fourth is not None:
            return self._learn_one_quadruplet(x, other, y, fourth)
        if is_label(y, self._classes) and self._learn_single((x, other), -1.0 if y == 1 else 1.0):
            if y == -1:
                self._classes = SIGNS
            return self
        self._check_parameters()
        if np.ndim(y) == 0 and not hasattr(y, "tocsr"):
            left, right = self._read_vectors(("x", "other"), x, other)
            read = Comparisons(left, right, np.array([[0, 0]]), of_vectors=True)
            read = _with_labels(read, [y])
        else:
            left, right = self._read_vectors(("x", "other", "y"), x, other, y)
            triplet = Comparisons(left, right, np.array([[0, 0, 1]]), of_vectors=True)
            read = triplet.as_pairs()
        self._begin(read)
        return self._learn_alone(read, 2)

    def predict_one(self, x: Any, other: Any, negative: Any = None) -> int:
        """The second of `classes_` if the distance of two vectors is at most `threshold_`, else the first.

        With a third vector: +1 if x is more similar to `other` than to `negative`, else -1. The first reading
        after a step costs an eigendecomposition of M, which is cubic in the number of features; a step is
        quadratic. Learners that project after every step (`POLA`, `RDML`, `PAMetric` if told to) know the
        eigenvectors while their rank is low.
        """
        if negative is not None:
            return super().predict_one(x, other, negative)
        metric = self._similarity()
        left, right = self._read_vectors(("x", "other"), x, other)
        check_features(metric.shape_, left, right)
        distance = -float(metric._score_rows(left.values, right.values)[0])
        return metric._labels(distance <= metric.threshold_).item()

    def _quadruplets(self, read: Comparisons) -> Comparisons:
        """Of differences: a step goes along w w' - v v', v of the similar items; the threshold cancels."""
        read.check_one_space("distance")
        return super()._quadruplets(read).differences()

    def _begin(self, tuples: Comparisons, *, anew: bool = False) -> None:
        tuples.check_one_space("distance")
        # Similar pairs alone go with all labels.
        given = tuples.classes if tuples.y is None or (tuples.y < 0).any() else None
        classes = known_classes(None if anew else self._classes, given) or tuples.classes
        super()._begin(tuples, anew=anew)
        self._classes = classes

    def _forget(self, engine: Engine) -> None:
        super()._forget(engine)
        self._calibrated = None

    # -- using what was learnt ----------------------------------------------------------------

    def _similarity_of(self, engine: Any) -> Mahalanobis:
        if isinstance(engine, SpectralEngine):
            spectrum = Spectrum(*engine.eigenpairs(), engine.dtype)
        elif isinstance(engine, LogDetEngine):
            spectrum = Spectrum.of_matrix(engine.exact_matrix(), dtype=engine.dtype)
        else:
            spectrum = Spectrum.of_matrix(engine.matrix(), rounding=np.finfo(engine.dtype).eps)
        own = self._own_threshold() if self._calibrated is None else self._calibrated
        return Mahalanobis._of(spectrum, own, self._classes)

    def _own_threshold(self) -> float | None:
        """The threshold that belongs to the method, if it has one."""
        return None

    @property
    def _calibrated(self) -> float | None:
        """A threshold that was calibrated or set since the matrix last changed."""
        if self._decided is None:
            return None
        version, threshold = self._decided
        return threshold if version == self._engine.version else None

    @_calibrated.setter
    def _calibrated(self, threshold: float | None) -> None:
        self._decided = None if threshold is None else (self._engine.version, threshold)

    @wraps(Mahalanobis.calibrate_threshold)
    def calibrate_threshold(self, pairs: Any, y: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        check_pair_labels(y, np.size(y))
        known_classes(self._classes, given_classes(y))  # before anything is changed
        return self._take_threshold(
            self._similarity().calibrate_threshold(pairs, y, *args, **kwargs)
        )

    @wraps(Mahalanobis.set_threshold)
    def set_threshold(self, threshold: float) -> Any:  # noqa: D102
        return self._take_threshold(self._similarity().set_threshold(threshold))

    def _take_threshold(self, decided: Mahalanobis) -> Any:
        """Keep the threshold of a similarity, and the labels of the pairs that it is from."""
        classes = known_classes(self._classes, decided._classes)
        self._calibrated, self._classes = decided.threshold_, classes
        return self

    decision_function = delegated(Mahalanobis.decision_function)  # type: ignore[arg-type]
    predict = delegated(Mahalanobis.predict)  # type: ignore[arg-type]
    score = delegated(Mahalanobis.score)  # type: ignore[arg-type]
    predict_pairs = delegated(Mahalanobis.predict_pairs)
    pair_distance = delegated(Mahalanobis.pair_distance)
    get_metric = delegated(Mahalanobis.get_metric)
    transform_query = available_if(lambda self: self.normalise)(
        delegated(Mahalanobis.transform_query)
    )
    get_mahalanobis_matrix = delegated(Mahalanobis.get_mahalanobis_matrix)
    transform = delegated(Mahalanobis.transform)
    truncated = delegated(Mahalanobis.truncated)
    threshold_ = delegated_property(Mahalanobis, "threshold_")
    components_ = delegated_property(Mahalanobis, "components_")
    eigenvalues_ = delegated_property(Mahalanobis, "eigenvalues_")
    effective_dimension_ = delegated_property(Mahalanobis, "effective_dimension_")
    sparsity_ = delegated_property(Mahalanobis, "sparsity_")

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        return {**header, "calibrated": self._calibrated, "classes": self._classes}, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        self._calibrated, self._classes = saved_threshold(header), saved_classes(header)


def labelled_pairs(read: Comparisons, y: Any) -> Comparisons:
    """Pairs with checked labels, from pairs or from triplets, in one feature space."""
    read.check_one_space("distance")
    if not read.is_pairs:
        if y is not None:
            raise ValueError("y: expected None with triplets (their order says it all), got labels")
        return read.as_pairs()
    labelled, index = _with_labels(read, y), read.index
    same = np.flatnonzero(index[:, 0] == index[:, 1])
    if read.left is read.right and len(same):
        raise ValueError(
            f"pairs: both items of pair {same[0]} are the same row ({index[same[0], 0]}); expected two "
            "different items"
        )
    return labelled


def _with_labels(pairs: Comparisons, y: Any) -> Comparisons:
    """Pairs with their labels, once these are checked."""
    labels = check_pair_labels(y, len(pairs))
    return replace(pairs, y=labels, classes=given_classes(y))


@_documented
class PAMetric(PairLearner):
    """Online passive-aggressive learning of a distance and a threshold for similar pairs.

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
        When M is projected onto the positive semi-definite matrices and b raised to at least 1. "end" (the
        paper's - version) learns with the raw M and b and projects what is read. "every-step" (+) projects
        after every change, exactly, without an eigendecomposition: a step costs O(d r^2) while the rank r is
        below d/3, and a few dozen matrix-vector products above.
    tolerance : float
        Steps with |tau| below it are not taken.
    init : "zeros", "identity" or matrix of shape (d, d)
        The first M, symmetric and positive semi-definite. The first threshold is 0.
    block_size : int, optional
        With "end" on dense items: pairs learnt together, the same steps as one at a time to rounding. None
        chooses by dimension.
    head_bytes : int, optional
        With "end" on sparse items: memory of the dense head of the most frequent features.
    {common}
    {device}

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

    _engine_types = (DenseEngine, SparseEngine, SpectralEngine)

    @property
    def _takes_quadruplets(self) -> bool:  # type: ignore[override]
        return self.projection == "end"

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
        normalise: bool = False,
        preprocessor: Any = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.C = C
        self.variant = variant
        self.projection = projection
        self.tolerance = tolerance
        self.init = init
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor
        self.device = device
        self.precision = precision

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("C", self.C, finite=False)
        check_choice("variant", self.variant, ("PA", "PA-I", "PA-II", "PALS"))
        check_choice("projection", self.projection, ("end", "every-step"))
        if self.projection == "every-step" and self.device not in ("cpu", "auto"):
            raise ValueError(
                f"device: expected 'cpu' or 'auto' with projection='every-step', got {self.device!r}"
            )
        check_number("tolerance", self.tolerance, exclusive=False)
        self._check_init("zeros", "identity")
        self._check_integers_or_none("block_size", "head_bytes")

    def _step(self) -> Any:
        rules = {"PA": steps.PA, "PA-I": steps.PA_I, "PA-II": steps.PA_II, "PALS": steps.PALS}
        return steps.Step(
            rules[self.variant], C=float(self.C), bias=1.0, tolerance=float(self.tolerance)
        )

    def _has_weights(self) -> bool:
        return self.variant != "PA"  # its steps have no C

    def _new_engine(self, tuples: Comparisons) -> Engine:
        d, dtype = tuples.left.shape[1], tuples.left.dtype
        if self.projection == "every-step":
            return _projected_engine(self.init, d, dtype)
        if not isinstance(self.init, str):
            check_positive(self.init, "init", size=d)
        start = first_matrix(self.init, (d, d), dtype, tuples.is_sparse)
        return entrywise_engine(
            Rule(PLAIN), None, start, tuples, self.head_bytes or self._head_hint
        )

    def _new_shard(self, tuples: Comparisons, geometry: Geometry, columns: slice) -> Engine:
        if self.projection != "end":
            raise ValueError(
                f"projection: expected 'end' to divide the columns, got {self.projection!r}"
            )
        if not isinstance(self.init, str):
            check_positive(self.init, "init", size=tuples.shape[0])
        start = first_matrix(self.init, tuples.shape, tuples.left.dtype, False, columns)
        return DenseEngine(Rule(PLAIN), None, start)

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        kept = "every-step" if isinstance(engine, SpectralEngine) else "end"
        return {"projection": (kept, self.projection)}

    def _block_size(self, engine: Any) -> int:
        # One Gram matrix where triplets have two: larger blocks pay.
        size = default_block_size(engine.shape[0])
        return self.block_size or (size if size == 1 else min(512, 2 * size))

    def _own_threshold(self) -> float:
        return max(1.0, self._count(steps.THRESHOLD))


def _projected_engine(init: Any, d: int, dtype: Any) -> SpectralEngine:
    """The first matrix as its positive eigenvalues and eigenvectors (rows), threshold 0."""
    if isinstance(init, str):
        rank = d if init == "identity" else 0
        values, vectors = np.ones(rank), np.eye(rank, d)
    else:
        values, columns = np.linalg.eigh(check_positive(init, "init", dtype=np.float64, size=d))
        positive = values > 1e-14 * max(values[-1], 0.0)
        values, vectors = values[positive], columns.T[positive]
    return SpectralEngine(values, vectors, dtype, shortens=False, threshold=0.0)


@_documented
class POLA(PairLearner):
    """Pseudo-metric online learning: projections onto each pair's half-space and onto the metrics in turn.

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

    _engine_types = (SpectralEngine,)

    def __init__(
        self,
        *,
        tolerance: float = 0.0,
        init: Any = "zeros",
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.tolerance = tolerance
        self.init = init
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("tolerance", self.tolerance, exclusive=False)
        self._check_init("zeros", "identity")

    def _step(self) -> Any:
        return steps.Step(steps.PA, bias=1.0, tolerance=float(self.tolerance))

    def _new_engine(self, tuples: Comparisons) -> Engine:
        return _projected_engine(self.init, tuples.left.shape[1], tuples.left.dtype)

    def _own_threshold(self) -> float:
        return max(1.0, self._count(steps.THRESHOLD))


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

    _engine_types = (SpectralEngine,)

    def __init__(
        self,
        lam: float = 0.1,
        *,
        exact: bool = False,
        margin: float = 0.0,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.lam = lam
        self.exact = exact
        self.margin = margin
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam)
        if check_number("margin", self.margin, exclusive=False) > 1:
            raise ValueError(f"margin: expected at most 1, got {self.margin}")

    def _step(self) -> Any:
        return steps.Step(steps.ON_MISTAKE, eta=float(self.lam), margin=float(self.margin))

    def _has_weights(self) -> bool:
        return True

    def _new_engine(self, tuples: Comparisons) -> Engine:
        d = tuples.left.shape[1]
        return SpectralEngine(
            np.empty(0),
            np.empty((0, d)),
            tuples.left.dtype,
            shortens=not self.exact,
            threshold=1.0,
        )

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        return {"exact": (not engine.shortens, bool(self.exact))}

    def _own_threshold(self) -> float:
        return 1.0
