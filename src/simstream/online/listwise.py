"""The online learner of a bilinear similarity s(q, x) = q' M x from lists: relevant items, many others."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import DenseListsEngine, Engine, SparseListsEngine
from .._kernels.listwise import ListStep
from .._kernels.rules import PLAIN, Rule
from ..data.comparisons import Comparisons
from ..similarity.bilinear import NORMALISE
from ..similarity.learner import documented
from ..validation import Items, check_integer, check_items, check_number
from .triplets import GEOMETRY, INIT, TripletLearner

#: Lists learnt together where nothing is said.
_BLOCK_SIZE = 64


@documented(init=INIT, geometry=GEOMETRY, normalise=NORMALISE)
class ListwiseSoftmax(TripletLearner):
    """Online learning from lists: relevant items against many negatives, by the softmax loss.

    A relevant item r of a query q has the loss -log p_r, with p_j proportional to exp(q' M x_j / temperature)
    over r and the negatives; the loss of a list is the mean over its relevant items. The gradient moves M
    along q alone, so that `n_steps` gradient steps on one list cost its own items and one change of M:
    M += q (t_new - t_old)' / ||q||^2, where t = M'q takes the steps
    t += eta temperature ||q||^2 (x_r - sum_j p_j x_j), averaged over r.

    Triplets are lists with one negative: their loss is the logistic one.

    Parameters
    ----------
    eta : float
        Step size, in units that do not depend on the temperature: temperature^2 times the step along the
        gradient. For vectors of length one, 1 moves the scores of a list by about one temperature.
    temperature : float
        Differences of scores that count: a negative that is several temperatures below the relevant item
        hardly matters. About half the spread of the scores of a query, 0.05 for sentence embeddings of
        length one.
    n_steps : int
        Gradient steps on each list. 1 is online gradient descent; several come near the implicit step, which
        goes as far as the list still asks for it.
    n_relevant : int
        Relevant items of a list: that many columns follow the query, the rest are negatives. From class
        labels, ten teach several times as fast as one.
    average_from : int, optional
        Read the average of all matrices from this round (counted from 1) on, instead of the last one.
    {init}
    {geometry}
    {normalise}
    block_size : int, optional
        Lists learnt together on dense items: the same steps as one at a time, to rounding, several times
        faster. None is 64; 1 is one at a time. Sparse items are always learnt one list at a time.
    head_bytes : int, optional
        Sparse items only: memory of the dense head that holds the most frequent features, for each
        number an entry carries (default 2 GiB). Other entries take memory only when touched.
    dtype : "float32" or "float64", optional
        Precision of M. None takes that of the first items: float32 stays, all else is float64.
    preprocessor : array, sparse matrix, table, `Items` or pair (queries, items) of them, optional
        Items that row numbers refer to. In a pair, queries are rows of the first, others of the second.

    Attributes
    ----------
    n_rounds_, n_updates_, n_skipped_ : int
        Lists seen, those that changed M, those skipped (all items identical, or a zero query).
    average_loss_, mistake_rate_, violation_rate_ : float
        Mean softmax loss, share of lists where a negative was at least as similar as a relevant item, and
        share whose loss was above log 2 (the relevant item had less than half of the probability), each
        before its own update.
    sparsity_ : float
        Share of zero entries of M.

    Notes
    -----
    The loss is the cross-entropy of ListNet with one relevant item, called InfoNCE where the negatives are
    sampled. On sparse items a list costs the columns that its items have, times the features of the query.

    References
    ----------
    Cao, Qin, Liu, Tsai, Li. Learning to rank: from pairwise approach to listwise approach. ICML 2007.
    The step: Kulis, Bartlett. Implicit online learning. ICML 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from simstream import ListwiseSoftmax, TripletSampler
    >>> X, y = load_digits(return_X_y=True)
    >>> X = X - X.mean(axis=0)
    >>> X /= np.linalg.norm(X, axis=1, keepdims=True)
    >>> lists = TripletSampler(y, random_state=0).draw_lists(2000, 20)
    >>> lists.shape  # query, relevant item, 20 negatives
    (2000, 22)
    >>> model = ListwiseSoftmax(eta=1.0, temperature=0.1, average_from=500, preprocessor=X).fit(lists)
    >>> model.score(TripletSampler(y, random_state=1).draw(1000)) > 0.9
    True
    """

    _entrywise_engines = (DenseListsEngine, SparseListsEngine)
    _engine_types: tuple[type[Engine], ...] = _entrywise_engines
    _folds_means = False

    def __init__(
        self,
        eta: float = 4.0,
        temperature: float = 0.05,
        n_steps: int = 5,
        *,
        n_relevant: int = 1,
        average_from: int | None = None,
        init: Any = "identity",
        init_scale: Any = 1.0,
        centre: Any = None,
        item_term: Any = False,
        normalise: bool = False,
        block_size: int | None = None,
        head_bytes: int | None = None,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.eta = eta
        self.temperature = temperature
        self.n_steps = n_steps
        self.n_relevant = n_relevant
        self.average_from = average_from
        self.init = init
        self.init_scale = init_scale
        self.centre = centre
        self.item_term = item_term
        self.normalise = normalise
        self.block_size = block_size
        self.head_bytes = head_bytes
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("eta", self.eta)
        check_number("temperature", self.temperature)
        check_integer("n_steps", self.n_steps)
        check_integer("n_relevant", self.n_relevant)

    def _rule(self) -> Any:
        return Rule(PLAIN)

    def _step(self) -> Any:
        return ListStep(
            eta=float(self.eta),
            temperature=float(self.temperature),
            n_steps=int(self.n_steps),
            n_relevant=int(self.n_relevant),
            average_from=self.average_from or 0,
        )

    def _block_size(self, engine: Any) -> int:
        return self.block_size or _BLOCK_SIZE

    # -- learning -----------------------------------------------------------------------------

    def fit(self, tuples: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Forget what was learnt and learn from these lists, in order.

        Parameters
        ----------
        tuples : (n, 1 + n_relevant + k) integers, rows of `preprocessor`, or the same number of vectors
            Query, relevant items and k negatives. -1 is no item: it pads shorter lists. Vectors have shape
            (n, 1 + n_relevant + k, d).
        y : ignored
        sample_weight : array of n numbers, optional
            Importance of each list: what its steps are multiplied by. Lists of weight 0 are left out.

        Returns
        -------
        self
        """
        return super().fit(tuples, y, sample_weight)

    def learn_one(self, x: Any, positive: Any, negative: Any) -> Any:  # type: ignore[override]
        """Learn from one list of vectors.

        Parameters
        ----------
        x : 1-d array, or CSR matrix of one row
            The query.
        positive, negative : arrays or CSR matrices of shape (k, d), or one vector each
            The relevant items, at most `n_relevant` of them, and the others.
        """
        self._check_parameters()
        relevant, others = _as_rows(positive, "positive"), _as_rows(negative, "negative")
        if len(relevant) > self.n_relevant:
            raise ValueError(
                f"positive: expected at most n_relevant={self.n_relevant} items, got {len(relevant)}"
            )
        names = ("x", *["positive"] * len(relevant), *["negative"] * len(others))
        left, right = self._read_vectors(names, x, *relevant, *others)
        places = np.arange(len(relevant) + len(others))
        padding = np.full(self.n_relevant - len(relevant), -1)
        entry = np.concatenate([[0], places[: len(relevant)], padding, places[len(relevant) :]])
        return self._learn(Comparisons(left, right, entry[None]))

    def learn_rows(
        self, query: Items, items: Items, relevant: Any, negatives: Any, *, weight: float = 1.0
    ) -> Any:
        """Learn from one list of rows of checked items, any number of them relevant: nothing is copied.

        `weight` multiplies the step.
        """
        self._check_parameters()
        entry = np.concatenate([[0], relevant, negatives]).astype(np.int64)
        tuples = Comparisons(query, items, entry[None])
        self._begin(tuples)
        step = self._step()._replace(eta=float(self.eta) * weight, n_relevant=len(relevant))
        self._reads().clear()
        self._engine.learn(step, self._engine.geometry.comparisons(tuples), 1)
        return self

    def transform_rows(self, rows: np.ndarray) -> np.ndarray:
        """`transform_query` for checked rows, by the matrix as it is: nothing is copied or kept."""
        return rows @ self._fitted().matrix()

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        return self._item_cache().lists(self.preprocessor, tuples, self.n_relevant, dtype)

    # -- what was counted ---------------------------------------------------------------------

    @property
    def n_rounds_(self) -> int:
        """Lists seen."""
        return super().n_rounds_

    @property
    def average_loss_(self) -> float:
        """Mean softmax loss of all lists, each before its own update."""
        return super().average_loss_

    @property
    def mistake_rate_(self) -> float:
        """Share of lists where a negative was at least as similar as a relevant item, before the update."""
        return super().mistake_rate_

    @property
    def violation_rate_(self) -> float:
        """Share of lists whose loss was above log 2 before the update: less than half of the probability."""
        return super().violation_rate_


def _as_rows(items: Any, name: str) -> list[Any]:
    """The rows of some items given together, or the one vector that was given."""
    items = items if sp.issparse(items) else np.asarray(items)
    if items.ndim == 1:
        return [items]
    rows = check_items(items, name).values
    return [rows[place] for place in range(rows.shape[0])]
