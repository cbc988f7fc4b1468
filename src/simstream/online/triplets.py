"""Online learners of a bilinear similarity s(q, x) = q' M x from triplets.

Each class stores its parameters and names its two components: the entry rule (what a stored number of M
means, `_kernels.rules`) and the step (how far a violated triplet moves M, `_kernels.steps`).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import (
    DenseEngine,
    Engine,
    FactoredEngine,
    Geometry,
    SparseEngine,
    default_block_size,
    entrywise_engine,
    first_matrix,
)
from .._kernels import steps
from .._kernels.rules import ADAPTIVE, CONFIDENT, PLAIN, THRESHOLDED, Rule
from ..data.comparisons import Comparisons
from ..similarity.bilinear import NORMALISE, Bilinear
from ..similarity.discriminant import check_dense_space, metric_of_tuples
from ..similarity.learner import delegated, delegated_property, documented
from ..similarity.mahalanobis import Spectrum
from ..similarity.shift import Shift
from ..similarity.stored import StoredBilinear
from ..validation import check_choice, check_number
from .base import DEVICE, OnlineLearner

GEOMETRY = """init_scale : float or "auto"
        Scale c of the first M = c I, for ``init="identity"``. Steps are in proportion to it: learning from
        c I is learning from I with the same steps and a margin of 1/c instead of 1. It should be about the
        difference of q'x between a relevant and a near irrelevant item: with a much larger margin every
        triplet counts as violated, and M is carried away from the identity. "auto" is one over the standard
        deviation of q'x over the items x, typical for the queries q.
    centre : None, "auto", vector of d numbers, or pair of vectors
        What queries and items are measured from: s(q, x) = (q - m)'M(x - m). "auto" is the mean of the items;
        of a pair (queries, items), each side has its own. `transform_query` takes care of it: the items of
        an index stay as they are. Sparse items stay sparse, in OASIS, OGD and SORS without a threshold, whose
        steps are plain rank-one matrices. AROMA with a factored covariance, which is dense anyway, centres
        them too; learners with a rule for every single entry refuse to.
    item_term : bool or float
        Learn a term w'(x - m) of the items alone: that some items are nearer to every query. A number is the
        size of a constant feature of queries that w belongs to: the larger, the faster w is learnt. True is
        0.3 times the typical length of the (centred) queries."""

INIT = """init : "identity", "zeros", "lda" or matrix of shape (d, d')
        The first M. Two item spaces of different dimension need "zeros" or a matrix. "lda", on dense items,
        is the positive part of inv(C) - inv(T): C is the covariance inside similar pairs (anchors and
        positives) of the first call that has triplets, shrunk as in `RCA`, T that of all items. It is scaled
        so that q'Mx has a standard deviation of one over the items x. `sample_weight` does not enter it,
        except that triplets of weight 0 are left out."""

_COMMON = """{init}
    {geometry}
    block_size : int, optional
        Triplets learnt together on dense items: the same steps as one at a time, to rounding, several
        times faster where d is large. None chooses by dimension; 1 is one at a time. Sparse items are
        always learnt one at a time, and so are SORS with a threshold, AdaSORS and AROMA with a diagonal
        covariance, which change every entry by a rule of its own: they refuse larger blocks.
    head_bytes : int, optional
        Sparse items only: memory of the dense head that holds the most frequent features, for each
        number an entry carries (default 2 GiB). Other entries take memory only when touched. Where the stream
        begins with a few vectors (`learn_one`), it is small until a thousand were seen, and chosen by these.
    dtype : "float32" or "float64", optional
        Precision of M. None takes that of the first items: float32 stays, all else is float64.
    {normalise}
    preprocessor : array, sparse matrix, table, `Items`, pair (queries, items) of them, or function, optional
        Items that row numbers refer to. In a pair, anchors are rows of the first, others of the second. A
        function gets an array of keys, each once, and returns their rows."""

_ATTRIBUTES = """n_rounds_, n_updates_, n_skipped_ : int
        Triplets seen, those that changed M, those skipped (identical vectors, or a zero anchor).
    average_loss_, mistake_rate_ : float
        Mean hinge loss, and share of margins <= 0, each before its own update.
    sparsity_ : float
        Share of zero entries of M.
    init_scale_ : float
        Scale of the first M. What is "auto" is worked out in the first call (`fit`, or the first
        `partial_fit` or `prepare`) from the items of `preprocessor`, or else from the vectors of the call,
        and stays as it is.
    centre_ : vector, pair of vectors (queries, items) or None
        What queries and items are measured from."""

_AVERAGE = """average_from : int, optional
        Read the average of all matrices from this round (counted from 1) on, instead of the last one."""


def _times(matrix: Any, scale: float) -> Any:
    """A matrix times a scale, in its own precision; the same matrix for 1."""
    return matrix if scale == 1.0 else matrix * matrix.dtype.type(scale)


def _given(centre: Any) -> str:
    """What errors call a centre."""
    return repr(centre) if isinstance(centre, str) else "a vector"


_documented = documented(
    common=_COMMON,
    init=INIT,
    device=DEVICE,
    geometry=GEOMETRY,
    normalise=NORMALISE,
    attributes=_ATTRIBUTES,
    average=_AVERAGE,
)


class TripletLearner(OnlineLearner):
    """Base of the learners of s(q, x) = q' M x that change M entry by entry.

    Subclasses provide `_rule` (an entry rule of `_kernels.rules`) and `_step`.
    """

    block_size: Any
    head_bytes: Any
    average_from: Any = None
    #: Engines for dense and for sparse items, and all that its files may hold.
    _entrywise_engines: tuple[type[DenseEngine], type[SparseEngine]] = (DenseEngine, SparseEngine)
    _engine_types: tuple[type[Engine], ...] = _entrywise_engines
    #: Whether the mean of sparse queries can be folded into what is learnt.
    _folds_means = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._check_init("identity", "zeros", "lda")
        self._check_integers_or_none("block_size", "head_bytes", "average_from")

    def _refuse_blocks(self, learner: str) -> None:
        """For rules that have no blocked form: better an error than a parameter without effect."""
        if self.block_size not in (None, 1):
            raise ValueError(
                f"block_size: expected None or 1, got {self.block_size!r}; {learner} learns one triplet "
                "at a time"
            )

    @abstractmethod
    def _rule(self) -> Any:
        """The entry rule of the kernels."""

    def _has_weights(self) -> bool:
        # AdaSORS and AROMA also keep squares of what they have seen, and variant="PA" has no C.
        return self._rule().kind in (PLAIN, THRESHOLDED) and getattr(self, "variant", None) != "PA"

    def _needs_diagonal(self) -> str | None:
        """The parameter that only makes sense for a square matrix, if one is set."""
        has_one = isinstance(self.init, str) and self.init in ("identity", "lda")
        return f"init={self.init!r}" if has_one else None

    @property
    def _starts_from_tuples(self) -> bool:
        """Whether the first matrix is worked out from the first tuples."""
        return isinstance(self.init, str) and self.init == "lda"

    def prepare(self) -> int:
        """Get ready for a stream over the items of `preprocessor`; return the block size.

        Cutting the stream into calls at multiples of that number gives the same model, bit for bit; if it is
        1, cutting it anywhere does. With ``init="lda"`` the first call decides where learning begins: until
        then only the items and the parameters are checked, and there is nothing to read.
        """
        if self._engine is not None or not self._starts_from_tuples:
            return super().prepare()
        self._check_parameters()
        left, right = self._item_cache().items(self.preprocessor, self._target_dtype())
        check_dense_space(Comparisons(left, right, np.empty((0, 3), np.int64)))
        return copy.copy(self).set_params(init="zeros").prepare()

    def _start(self, tuples: Comparisons) -> Any:
        """The first matrix: CSR for sparse items, else an array."""
        needs_diagonal = self._needs_diagonal()
        if needs_diagonal:
            hint = "; there is no diagonal (start from init='zeros' or a matrix)"
            tuples.check_one_space(needs_diagonal, hint)
        init = self.init
        if self._starts_from_tuples:
            init = metric_of_tuples(tuples)
            init *= Geometry.of(tuples, 1.0, self.centre, False, folded=False).typical_scale(
                tuples, init
            )
        return first_matrix(init, tuples.shape, tuples.left.dtype, tuples.is_sparse)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        rule, start = self._rule(), self._start(tuples)
        folds = self._folds_means and rule.kind == PLAIN
        if tuples.is_sparse and self.centre is not None and not folds:
            raise ValueError(
                f"centre: expected None for sparse items, got {_given(self.centre)}; a mean would fill the "
                f"matrix of {type(self).__name__}"
            )
        geometry = self._geometry(tuples, folded=tuples.is_sparse)
        start = geometry.extended(_times(start, geometry.scale))
        head_bytes = self.head_bytes or self._head_hint
        engine = entrywise_engine(
            rule, self.average_from, start, tuples, head_bytes, self._entrywise_engines
        )
        engine.geometry = geometry
        return engine

    def _new_shard(self, tuples: Comparisons, geometry: Geometry, columns: slice) -> Engine:
        rule = self._rule()
        if rule.kind != PLAIN:  # no blocked form
            return super()._new_shard(tuples, geometry, columns)
        if self._needs_diagonal():
            tuples.check_one_space(str(self._needs_diagonal()))
        if self._starts_from_tuples:
            raise ValueError(
                "init: expected 'identity', 'zeros' or a matrix to divide the columns, got 'lda'; a model "
                "that has begun elsewhere goes on here after set_params(init='zeros'), which "
                "leaves its M alone"
            )
        start = first_matrix(self.init, tuples.shape, tuples.left.dtype, False, columns)
        start = geometry.extended(_times(start, geometry.scale))
        engine = self._entrywise_engines[0](rule, self.average_from, start)
        engine.geometry = geometry
        return engine

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        return {
            "average_from": (engine.average_from, self.average_from),
            "off_diagonal, delta, r, covariance, or whether lam is 0": (engine.rule, self._rule()),
        }

    def _block_size(self, engine: Any) -> int:
        if engine.rule.kind != PLAIN:
            return 1
        return self.block_size or default_block_size(max(engine.shape))

    def _similarity_of(self, engine: Any) -> Bilinear:
        if not isinstance(engine, SparseEngine) or self._reads_another:
            matrix, shift = _decoded(engine)
            return Bilinear._of(self._as_read(matrix), shift)
        return StoredBilinear(
            self.shape_,
            engine.dtype,
            values=engine.values,
            decode=lambda: _decoded(engine),  # without self: it would keep itself
            work=engine.reading_work,
            geometry=engine.geometry,
            turn=engine.turn,
            version=lambda: engine.version,
        )

    @property
    def _reads_another(self) -> bool:
        """Whether the M that is read is another than the learnt one."""
        return False

    def _as_read(self, matrix: Any) -> Any:
        """The learnt M as it is read."""
        return matrix

    @property
    def init_scale_(self) -> float:
        """Scale of the first matrix, as it was given or worked out in the first call."""
        return self._fitted().geometry.scale

    @property
    def centre_(self) -> Any:
        """Mean that was given or worked out in the first call.

        A vector, or a pair of vectors if queries and items have different means; None without `centre`.
        """
        return self._fitted().geometry.centre()

    get_bilinear_matrix = delegated(Bilinear.get_bilinear_matrix)
    transform_query = delegated(Bilinear.transform_query)
    sparsity_ = delegated_property(Bilinear, "sparsity_")


@_documented
class OASIS(TripletLearner):
    """Online passive-aggressive learning of a bilinear similarity (OASIS).

    Every violated triplet moves M by the smallest step that repairs it, at most C long:
    M_{t+1} = argmin_M 1/2 ||M - M_t||^2 + C [1 - x' M (x+ - x-)]_+.

    Parameters
    ----------
    C : float
        Aggressiveness: the longest step (PA-I), or the price of a remaining loss (PA-II).
    variant : "PA-I", "PA" or "PA-II"
        Step min(C, l / K), l / K or l / (K + 1/(2C)), with K = ||x||^2 ||x+ - x-||^2.
    symmetric : bool
        Read (M + M')/2. Learning goes on with the raw M.
    projection : None or "end"
        "end" reads the nearest symmetric positive semi-definite matrix. Learning goes on with the raw M.
    {average}
    {common}
    {device}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: none in the update. The start is the identity, as in the authors' release
    (the paper also allows it).

    References
    ----------
    Chechik, Sharma, Shalit, Bengio. Large scale online learning of image similarity through ranking.
    JMLR 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from simstream import OASIS, TripletSampler
    >>> X, y = load_digits(return_X_y=True)
    >>> triplets = TripletSampler(y, random_state=0).draw(5000)
    >>> model = OASIS(C=0.1, preprocessor=X / 64).fit(triplets)
    >>> model.score(TripletSampler(y, random_state=1).draw(1000)) > 0.9
    True
    """

    _takes_quadruplets = True

    def __init__(
        self,
        C: float = 0.1,
        *,
        variant: str = "PA-I",
        symmetric: bool = False,
        projection: str | None = None,
        average_from: int | None = None,
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
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
        self.symmetric = symmetric
        self.projection = projection
        self.average_from = average_from
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
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
        check_choice("variant", self.variant, ("PA-I", "PA", "PA-II"))
        check_choice("projection", self.projection, (None, "end"))

    def _rule(self) -> Any:
        return Rule(PLAIN)

    def _step(self) -> Any:
        rule = {"PA-I": steps.PA_I, "PA": steps.PA, "PA-II": steps.PA_II}[self.variant]
        # PA-II's C is the price of a squared loss, which is in proportion by itself.
        C = self._scaled(self.C) if self.variant == "PA-I" else float(self.C)
        return steps.Step(rule=rule, C=C, average_from=self.average_from or 0)

    def _needs_diagonal(self) -> str | None:
        if self.symmetric:
            return "symmetric=True"
        return f"projection={self.projection!r}" if self.projection else super()._needs_diagonal()

    def _reading(self) -> tuple[Any, ...]:
        return *super()._reading(), self.symmetric, self.projection

    def _new_engine(self, tuples: Comparisons) -> Engine:
        if tuples.is_sparse and self.centre is not None:
            self._check_unread()
        return super()._new_engine(tuples)

    def _similarity_of(self, engine: Any) -> Bilinear:
        if engine.geometry.folded:
            self._check_unread()
        return super()._similarity_of(engine)

    def _check_unread(self) -> None:
        """M of centred sparse items is only known as S - m u', whose symmetric part is something else."""
        if self._reads_another:
            raise ValueError(
                "symmetric, projection: expected False and None where sparse items are centred, got "
                f"{self.symmetric!r} and {self.projection!r}"
            )

    @property
    def _reads_another(self) -> bool:
        return bool(self.symmetric or self.projection)

    def _as_read(self, matrix: Any) -> Any:
        if self._reads_another:
            matrix = (matrix + matrix.T) / 2
        if self.projection:
            positive = Spectrum.of_matrix(matrix).matrix()
            matrix = sp.csr_matrix(positive) if sp.issparse(matrix) else positive
        return matrix


def _decoded(engine: Any) -> tuple[Any, Shift | None]:
    """The matrix, and what is added to its products; None for nothing."""
    matrix, *added = engine.geometry.parts(engine.matrix())
    return matrix, None if added[0] is None else Shift(*added)


@_documented
class OGD(TripletLearner):
    """Online gradient descent on the hinge loss of triplets.

    M_{t+1} = M_t + eta_t x (x+ - x-)' if x' M_t (x+ - x-) < 1, else M_t.

    Parameters
    ----------
    eta : float
        Step size.
    schedule : "constant" or "inv-sqrt"
        eta_t = eta, or eta / sqrt(t).
    {average}
    {common}
    {device}

    Attributes
    ----------
    {attributes}

    References
    ----------
    A baseline of Yao, Zhao, Yu, Jin, Li. Sparse online relative similarity learning. ICDM 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OGD
    >>> model = OGD(eta=0.5, init="zeros").learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0])
    >>> model.get_bilinear_matrix()
    array([[0.5, 0. ],
           [0. , 0. ]])
    """

    _takes_quadruplets = True

    def __init__(
        self,
        eta: float = 0.1,
        *,
        schedule: str = "constant",
        average_from: int | None = None,
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.eta = eta
        self.schedule = schedule
        self.average_from = average_from
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor
        self.device = device
        self.precision = precision

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("eta", self.eta)
        check_choice("schedule", self.schedule, ("constant", "inv-sqrt"))

    def _rule(self) -> Any:
        return Rule(PLAIN)

    def _step(self) -> Any:
        decay = self.schedule == "inv-sqrt"
        return steps.Step(
            steps.CONSTANT, self._scaled(self.eta), decay, average_from=self.average_from or 0
        )


@_documented
class SORS(TripletLearner):
    """Sparse online relative similarity: gradient steps with l1 regularisation.

    M_{t+1} = argmin_M <G_t, M> + lam r(M) + ||M - M_t||^2 / (2 eta_t): a gradient step, then a soft
    threshold of eta_t lam on every entry (SORS-I) or on every entry off the diagonal (SORS-II), in every
    round. On sparse items a round costs only the entries it touches: the thresholds of the other entries
    are added up and applied, exactly, when they are next read.

    Parameters
    ----------
    lam : float
        Strength of the l1 regularisation; 0 is OGD.
    eta : float
        Step size.
    off_diagonal : bool
        False is SORS-I, True is SORS-II.
    schedule : "constant" or "inv-sqrt"
        eta_t = eta, or eta / sqrt(t).
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: none. (Its regret bound assumes M_1 = 0 while its algorithm starts from
    the identity, as here.)

    References
    ----------
    Yao, Zhao, Yu, Jin, Li. Sparse online relative similarity learning. ICDM 2015.

    Examples
    --------
    >>> import scipy.sparse
    >>> from simstream import SORS, TripletSampler
    >>> X = scipy.sparse.random(60, 500, density=0.02, format="csr", random_state=0)
    >>> y = [0, 1, 2] * 20
    >>> model = SORS(lam=1e-2, eta=0.5, preprocessor=X).fit(TripletSampler(y, 0).draw(500))
    >>> model.get_bilinear_matrix().format, model.sparsity_ > 0.9
    ('csr', True)
    """

    def __init__(
        self,
        lam: float = 1e-6,
        eta: float = 0.1,
        *,
        off_diagonal: bool = False,
        schedule: str = "constant",
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.lam = lam
        self.eta = eta
        self.off_diagonal = off_diagonal
        self.schedule = schedule
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam, exclusive=False)
        check_number("eta", self.eta)
        check_choice("schedule", self.schedule, ("constant", "inv-sqrt"))
        if self.lam > 0:
            self._refuse_blocks("SORS with lam > 0")

    def _rule(self) -> Any:
        # Without a threshold this is OGD, and may be blocked like it.
        return Rule(THRESHOLDED, bool(self.off_diagonal)) if self.lam > 0 else Rule(PLAIN)

    def _step(self) -> Any:
        return steps.Step(
            steps.CONSTANT, self._scaled(self.eta), self.schedule == "inv-sqrt", lam=float(self.lam)
        )

    def _needs_diagonal(self) -> str | None:
        return "off_diagonal=True" if self.off_diagonal else super()._needs_diagonal()


@_documented
class AdaSORS(TripletLearner):
    """SORS with an adaptive step per entry (AdaGrad).

    H_t = sqrt(H_{t-1}^2 + G_t^2) entrywise, and both the gradient step and the soft threshold of entry
    (i, j) are divided by delta + H_t,ij. Rare features take longer steps. Exact and lazy like `SORS`.

    Parameters
    ----------
    lam : float
        Strength of the l1 regularisation; 0 is diagonal AdaGrad.
    eta : float
        Step size.
    delta : float
        Added to the gradients' root sum of squares; must be positive.
    off_diagonal : bool
        False is AdaSORS-I (every entry is thresholded), True is AdaSORS-II (all but the diagonal).
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: H_0 = 0, so that the first gradient is part of the first scaling (the
    paper calls H_1 zero, which its recursion contradicts).

    References
    ----------
    Yao, Zhao, Yu, Jin, Li. Sparse online relative similarity learning. ICDM 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import AdaSORS, TripletSampler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AdaSORS(lam=1e-4, eta=0.1, preprocessor=X).fit(TripletSampler(y, 0).draw(2000))
    >>> model.n_rounds_
    2000
    """

    def __init__(
        self,
        lam: float = 1e-6,
        eta: float = 0.1,
        delta: float = 0.1,
        *,
        off_diagonal: bool = False,
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.lam = lam
        self.eta = eta
        self.delta = delta
        self.off_diagonal = off_diagonal
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("lam", self.lam, exclusive=False)
        check_number("eta", self.eta)
        check_number("delta", self.delta)
        self._refuse_blocks("AdaSORS")

    def _rule(self) -> Any:
        return Rule(ADAPTIVE, bool(self.off_diagonal), delta=float(self.delta))

    def _step(self) -> Any:
        return steps.Step(steps.CONSTANT, self._scaled(self.eta), lam=float(self.lam))

    def _needs_diagonal(self) -> str | None:
        return "off_diagonal=True" if self.off_diagonal else super()._needs_diagonal()


@_documented
class AROMA(TripletLearner):
    """Adaptive regularisation of weight matrices: a Gaussian over M whose variance shrinks with use.

    Per round, argmin KL(N(M, S) || N(M_t, S_t)) + ([1 - m]_+)^2 / (2r) + phi' S phi / (2r) with
    phi = vec(x (x+ - x-)') and m = x' M (x+ - x-): confident entries move less.

    Parameters
    ----------
    r : float
        Larger values take smaller steps and forget uncertainty more slowly.
    covariance : "diagonal", "diagonal-drop" or "factored"
        "diagonal" keeps one precision per entry (the exact minimiser over diagonal covariances),
        "diagonal-drop" the diagonal of the full update instead, "factored" the covariance
        Lambda (x) Omega of a d x d and a d' x d' matrix (dense memory of d^2 + d'^2, blocked exactly).
    {average}
    {common}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Deviations from the paper: it does not state the factored update's constant; the exact minimiser of
    the objective over each factor, the other fixed and both updated from the old ones, is used. An
    experiment that does not name the variant is taken to mean "diagonal".

    References
    ----------
    Crammer, Chechik. Adaptive regularization for weight matrices. ICML 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import AROMA, TripletSampler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AROMA(r=10.0, preprocessor=X).fit(TripletSampler(y, 0).draw(2000))
    >>> model.n_updates_ < model.n_rounds_
    True
    """

    _engine_types = (DenseEngine, SparseEngine, FactoredEngine)

    def __init__(
        self,
        r: float = 1.0,
        *,
        covariance: str = "diagonal",
        average_from: int | None = None,
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.r = r
        self.covariance = covariance
        self.average_from = average_from
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("r", self.r)
        check_choice("covariance", self.covariance, ("diagonal", "diagonal-drop", "factored"))
        if self.covariance != "factored":
            self._refuse_blocks("AROMA with a diagonal covariance")

    def _rule(self) -> Any:
        return Rule(
            CONFIDENT,
            inverse_r=1.0 / float(self.r),
            drop=self.covariance == "diagonal-drop",
            factored=self.covariance == "factored",
        )

    def _step(self) -> Any:
        return steps.Step(steps.CONFIDENCE, r=float(self.r), average_from=self.average_from or 0)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        if self.covariance != "factored":
            return super()._new_engine(tuples)
        start, geometry = self._start(tuples), self._geometry(tuples, folded=False)
        dense = start.toarray() if sp.issparse(start) else start
        start = geometry.extended(_times(dense, geometry.scale))
        engine = FactoredEngine(self._rule(), self.average_from, start)
        engine.geometry = geometry
        return engine

    def _block_size(self, engine: Any) -> int:
        if not isinstance(engine, FactoredEngine):
            return 1
        # Its recursion costs B^3: smaller blocks than usual, but blocks even where d is small.
        return self.block_size or max(32, default_block_size(max(engine.shape)) // 4)
