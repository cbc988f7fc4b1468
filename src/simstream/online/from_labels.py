"""One wrapper that turns any learner from tuples into a scikit-learn estimator on labelled items."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .._engines.sparse import DEFAULT_HEAD_BYTES, head_widths
from ..data.comparisons import ItemCache
from ..data.samplers import PairSampler, TripletSampler
from ..metrics import knn_predict, knn_predict_proba, mean_average_precision
from ..persistence import (
    csr_arrays,
    csr_from_arrays,
    from_state,
    save_model,
    to_state,
    with_prefix,
)
from ..similarity.base import SearchResult, short_repr
from ..similarity.learner import new_generator, unchanged_on_error, validated
from ..validation import check_choice, check_integer, check_items, check_weights, stacked

#: The least share of touched entries that makes a larger dense head worth its memory: 8 bytes of 28.
_WORTH_IT = 8 / 28

#: Bytes of a dense head that are not worth saving.
_SMALL_HEAD = 2**26


def _has_space(model: Any) -> bool:
    """Whether the learner maps items into a space."""
    return hasattr(getattr(model, "learner_", model.learner), "transform")


def _transformer_with_space(cls: type[FromLabels]) -> type[FromLabels]:
    """Offer the methods of a transformer only where the learner has a space.

    They are replaced when the class is there: scikit-learn wraps `transform` for `set_output` while it is
    made, and would lose what `available_if` says.
    """
    for name in ("transform", "fit_transform", "get_feature_names_out", "set_output"):
        setattr(cls, name, available_if(_has_space)(getattr(cls, name)))
    return cls


def _accepted_types(X: Any) -> Any:
    """What scikit-learn converts items to: float16 to float32, all else that is not float32 to float64."""
    kinds = getattr(X, "dtypes", None)  # of a table's columns; a column of pandas has one here too
    if not isinstance(kinds, Iterable):
        kinds = [getattr(X, "dtype", None)]
    types = {str(kind) for kind in kinds}
    is_half = types <= {"float16", "torch.float16"}
    return np.float32 if is_half else [np.float64, np.float32]


def _head_bytes(X: Any, n_tuples: int) -> int | None:
    """Memory for a dense head of entries of frequent features; None where there is nothing to save.

    An entry of the head costs 8 bytes whether it is touched or not, one outside of it about 28 if it is. A
    tuple touches entry (i, j) if feature i is in its first item and j in one of the others.
    """
    d, n_bytes = X.shape[1], X.dtype.itemsize
    most = min(DEFAULT_HEAD_BYTES, d * d * n_bytes)
    if most <= _SMALL_HEAD:
        return None
    shares = np.sort(np.bincount(X.indices, minlength=d) / X.shape[0])[::-1]
    chosen, inside = _SMALL_HEAD, head_widths(d, d, _SMALL_HEAD // n_bytes)
    for size in np.geomspace(_SMALL_HEAD, most, 17)[1:].astype(int):
        widths = head_widths(d, d, size // n_bytes)
        added = widths - inside
        touched = 1 - np.exp(-2 * n_tuples * shares * shares[np.maximum(widths, 1) - 1])
        if added @ touched < _WORTH_IT * added.sum():
            break
        chosen, inside = int(size), widths
    return chosen


@_transformer_with_space
class FromLabels(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):
    """Learn a similarity from labelled items, as a scikit-learn classifier and transformer.

    `fit` draws tuples from the labels, triplets (an item, another of its class, one of another class), lists
    (several of other classes) or pairs, and lets the learner learn from them. `predict` is k-NN by the
    learnt similarity among the items seen in training, `predict_proba` the shares of the votes; `score` is
    the mean average precision of retrieval, the query itself excluded, so that ``GridSearchCV`` tunes the
    learner for ranking.

    Over a learner that maps items into a space (`PAMetric` and other learners of a distance, `OSLLRGS`) it
    also has `transform`, `fit_transform`, `get_feature_names_out` and `set_output`, and may stand before
    other steps of a pipeline.

    Parameters
    ----------
    learner : a learner from tuples
        For example ``OASIS()``; it is cloned, the original is left alone. If it has a `preprocessor`, X may
        be one-dimensional: the rows (or the keys of a function) to be looked up there.
    n_tuples : int
        Tuples drawn in every call of `fit` or `partial_fit`.
    random_state : None, int or RandomState
        Seed of the tuples, and of the learner if its own `random_state` is None. None draws a new stream each
        time.
    n_neighbors : int
        Neighbours that vote in `predict`.
    allow_self : bool
        Whether an item may be its own positive in a triplet; has no effect on pairs.
    tuples : "auto", "triplets" or "pairs"
        What to draw: "auto" is what the learner is made for. Learners from pairs and from lists also take
        triplets.
    similar_share : float between 0 and 1, optional
        Share of similar pairs among pairs; None draws uniformly from all pairs.
    n_negatives : int
        Negatives of every list, for learners that take lists (`ListwiseSoftmax`); as many as there are
        where an item has fewer. Triplets have one. How many relevant items a list has is a parameter of
        the learner.
    negatives, positives, share
        Which triplets are drawn, as in `TripletSampler`: "near" ones are chosen by the learner as it is
        after every 1,000 triplets, or by inner products if it learns from a whole set at once.
    normalise : "auto" or bool
        Whether `predict`, `score` and `search` use the cosine in the learnt space: the parameter of that name
        of the learner, set in `fit`. "auto" is True for learners of a bilinear similarity, whose inner
        products favour long vectors (on labels, the nearest neighbours are better with it), and leaves other
        learners as they are.

    Attributes
    ----------
    learner_ : the fitted learner
        On sparse items without `head_bytes` its dense head is as large as `n_tuples` tuples of the first
        items make use of.
    classes_ : array of the class labels
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from simstream import OASIS, FromLabels
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), FromLabels(OASIS(C=0.1), n_tuples=2000, random_state=0))
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True

    A learnt space before another estimator:

    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from simstream import PAMetric
    >>> metric = FromLabels(PAMetric(C=0.1), n_tuples=2000, random_state=0)
    >>> model = make_pipeline(StandardScaler(), metric, KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    __repr__ = short_repr
    learner_: Any
    classes_: np.ndarray
    _rng: np.random.Generator
    _labels: np.ndarray
    _references: Any
    _items: ItemCache | None = None

    def __init__(
        self,
        learner: Any,
        n_tuples: int = 10_000,
        random_state: Any = None,
        n_neighbors: int = 5,
        allow_self: bool = False,
        tuples: str = "auto",
        similar_share: float | None = 0.5,
        n_negatives: int = 50,
        negatives: Any = "random",
        positives: Any = "random",
        share: float = 0.5,
        normalise: Any = "auto",
    ) -> None:
        self.learner = learner
        self.n_tuples = n_tuples
        self.random_state = random_state
        self.n_neighbors = n_neighbors
        self.allow_self = allow_self
        self.tuples = tuples
        self.similar_share = similar_share
        self.n_negatives = n_negatives
        self.negatives = negatives
        self.positives = positives
        self.share = share
        self.normalise = normalise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # Neighbours by an inner product are not neighbours by distance: on blobs around the origin
        # that scikit-learn's checks use, a bilinear similarity is not a good classifier.
        tags.classifier_tags.poor_score = True
        if not _has_space(self):
            tags.transformer_tags = None
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FromLabels:
        """Draw `n_tuples` tuples from the labels and learn from them, from the beginning.

        Parameters
        ----------
        X : array or CSR matrix of shape (n_items, n_features)
        y : array of shape (n_items,)
        sample_weight : array of shape (n_items,), optional
            How often an item begins a tuple, in proportion; items of weight 0 are left out altogether. All
            learners take it, and the votes of neighbours in `predict` have no weights.
        """
        return self._fit(X, y, None, sample_weight, first=True)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> FromLabels:
        """Draw `n_tuples` more tuples from these items and go on learning.

        The items join those among which `predict` looks for neighbours.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`
        classes : array, optional
            All classes that will ever appear; only used in the first call, as in scikit-learn.
        """
        return self._fit(X, y, classes, sample_weight, first=not hasattr(self, "learner_"))

    def _fit(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> FromLabels:
        check_integer("n_tuples", self.n_tuples)
        check_integer("n_neighbors", self.n_neighbors)
        check_integer("n_negatives", self.n_negatives)
        check_choice("tuples", self.tuples, ("auto", "triplets", "pairs"))
        check_choice("normalise", self.normalise, ("auto", False, True))
        with unchanged_on_error(self):
            return self._fit_checked(X, y, classes, sample_weight, first)

    def _fit_checked(
        self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool
    ) -> FromLabels:
        X = self._looked_up(X)
        X, y = validated(self, X, y, accept_sparse="csr", dtype=_accepted_types(X), reset=first)
        check_classification_targets(y)
        weights = None
        if sample_weight is not None:
            weights = check_weights("sample_weight", sample_weight, len(y))
            used = np.flatnonzero(weights)
            X, y, weights = X[used], y[used], weights[used]
        rng = new_generator(self.random_state) if first else self._rng
        kind = getattr(self.learner, "natural_tuples", None)
        if kind not in ("triplets", "pairs"):
            raise TypeError(
                "learner: expected a learner from triplets or pairs, such as OASIS(), got "
                f"{type(self.learner).__name__}; batch learners take labels themselves"
            )
        if not first and not hasattr(self.learner, "partial_fit"):
            raise TypeError(
                f"learner: expected one that goes on learning, got {type(self.learner).__name__}, which has "
                "no partial_fit; use fit"
            )
        if self.tuples == "pairs" and kind != "pairs":
            raise ValueError(
                f"tuples: expected 'auto' or 'triplets' for {type(self.learner).__name__}, got 'pairs'"
            )
        learner = self._new_learner(rng) if first else self.learner_
        if first and sp.issparse(X):
            learner._head_hint = _head_bytes(X, int(self.n_tuples))
        sampler = self._sampler(learner, X, y, weights, rng)
        own_items = learner.preprocessor
        try:
            learner.set_params(preprocessor=X)
            self._learn(learner, sampler, first)
        finally:
            learner.set_params(preprocessor=own_items)
        self.learner_, self._rng = learner, rng
        seen = y if first else np.concatenate([self._labels, y])
        known = [seen] if first else [seen, self.classes_]
        self.classes_ = np.unique(np.concatenate(known if classes is None else [*known, classes]))
        self._labels = seen
        items = check_items(X, "X", dtype=learner.dtype_).values
        self._references = items if first else stacked([self._references, items])
        return self

    def _new_learner(self, rng: np.random.Generator) -> Any:
        """A clone of the learner, normalised as the parameter says, and seeded unless it has a seed."""
        learner = clone(self.learner)
        if learner.get_params(deep=False).get("random_state", 0) is None:
            (child,) = rng.spawn(1)  # the stream of tuples stays as it is
            learner.set_params(random_state=int(child.integers(2**31)))
        normalise = self.normalise
        if normalise == "auto":
            normalise = hasattr(learner, "get_bilinear_matrix") or None
        has_choice = "normalise" in learner.get_params(deep=False)
        if self.normalise is True and not has_choice:
            raise ValueError(
                f"normalise: expected 'auto' or False for {type(learner).__name__}, got True"
            )
        return (
            learner.set_params(normalise=normalise)
            if has_choice and normalise is not None
            else learner
        )

    def _sampler(
        self,
        learner: Any,
        X: Any,
        y: np.ndarray,
        weights: np.ndarray | None,
        rng: np.random.Generator,
    ) -> TripletSampler | PairSampler:
        kind = learner.natural_tuples if self.tuples == "auto" else self.tuples
        if kind == "pairs":
            return PairSampler(y, rng, similar_share=self.similar_share, weights=weights)
        return TripletSampler(
            y,
            rng,
            allow_self=self.allow_self,
            negatives=self.negatives,
            positives=self.positives,
            share=self.share,
            items=X,
            model=learner if hasattr(learner, "partial_fit") else None,
            weights=weights,
        )

    def _learn(self, learner: Any, sampler: TripletSampler | PairSampler, first: bool) -> None:
        """Learn everything at once, or, from near triplets, as many at a time as one model chooses."""
        n_left = int(self.n_tuples)
        is_online = hasattr(learner, "partial_fit")
        if isinstance(sampler, PairSampler):
            (learner.fit if first else learner.partial_fit)(*sampler.draw(n_left))
            return
        if first and sampler.is_mining and is_online:
            # So that the first triplets are near by the similarity it begins with: with init="lda", which
            # they decide, by inner products.
            learner.prepare()
            first = False
        while n_left:
            n = min(n_left, (is_online and sampler.until_refresh) or n_left)
            (learner.fit if first else learner.partial_fit)(self._draw(learner, sampler, n))
            n_left -= n
            first = False

    def _draw(self, learner: Any, sampler: TripletSampler, n: int) -> np.ndarray:
        """Triplets, or lists with as many relevant items as the learner takes."""
        n_relevant = getattr(learner, "n_relevant", None)
        if n_relevant is None or self.tuples == "triplets":
            return sampler.draw(n)
        lists = sampler.draw_lists(n, min(self.n_negatives, sampler.most_negatives))
        more = sampler.draw_positives(lists[:, 0], n_relevant - 1)
        return np.column_stack([lists[:, :2], more, lists[:, 2:]])

    def _looked_up(self, X: Any) -> Any:
        """Items as they were given, or those that a one-dimensional X names."""
        if self._items is None:
            self._items = ItemCache()
        return self._items.rows(getattr(self.learner, "preprocessor", None), X, None)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self, "learner_")
        X = self._looked_up(X)
        return validated(self, X, accept_sparse="csr", dtype=_accepted_types(X), reset=False)

    def transform(self, X: Any) -> np.ndarray:
        """Map items into the learnt space; only where the learner has a `transform`.

        Parameters
        ----------
        X : array or CSR matrix of shape (n_items, n_features)

        Returns
        -------
        array of shape (n_items, n_components)
        """
        return self.learner_.transform(self._checked(X))

    @property
    def _n_features_out(self) -> int:
        return self.learner_.transform(np.zeros((1, self.n_features_in_))).shape[1]

    def predict(self, X: Any) -> np.ndarray:
        """Class of each item: the majority among its nearest training items by learnt similarity."""
        X = self._checked(X)
        neighbors = min(self.n_neighbors, self._references.shape[0])
        return knn_predict(self.learner_, X, self._references, self._labels, n_neighbors=neighbors)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Share of each class among the nearest training items.

        Returns
        -------
        array of shape (n_items, n_classes)
            Columns are `classes_`. The largest share is that of the class that `predict` answers: where
            several classes have as many neighbours, it is larger by 10^-9.
        """
        X = self._checked(X)
        neighbors = min(self.n_neighbors, self._references.shape[0])
        known, codes = np.unique(self._labels, return_inverse=True)
        shares = np.zeros((X.shape[0], len(self.classes_)))
        shares[:, np.searchsorted(self.classes_, known)] = knn_predict_proba(
            self.learner_, X, self._references, codes, n_neighbors=neighbors
        )
        return shares

    def score(self, X: Any, y: Any) -> float:
        """Mean average precision when each item ranks all the others."""
        X = self._checked(X)
        return mean_average_precision(self.learner_, X, y)

    def search(self, X: Any, k: int = 10) -> SearchResult:
        """Training items most similar to each row of X (see `OASIS.search`)."""
        X = self._checked(X)
        return self.learner_.search(X, self._references, k)

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the model to a safetensors file, atomically; `simstream.load` reads it back.

        The items seen in training are saved with it: `predict` needs them.

        Parameters
        ----------
        path : file name
        extra : dict of JSON values kept with the model, for the caller's own use
        """
        save_model(self, path, extra)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        check_is_fitted(self, "learner_")
        inner, inner_arrays = to_state(self.learner_)
        arrays = {f"learner.{name}": array for name, array in inner_arrays.items()}
        if sp.issparse(self._references):
            arrays |= csr_arrays("reference_", self._references)
        else:
            arrays["references"] = self._references
        arrays["labels"] = np.searchsorted(self.classes_, self._labels)
        header = {
            "learner": inner,
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
            "n_features_in": int(self.n_features_in_),
            "generator": self._rng.bit_generator.state,
        }
        return header, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.learner_ = from_state(header["learner"], with_prefix("learner.", arrays))
        self.n_features_in_ = header["n_features_in"]
        self.classes_ = np.array(header["classes"], dtype=np.dtype(header["classes_dtype"]))
        self._labels = self.classes_[arrays["labels"]]
        if "references" in arrays:
            self._references = arrays["references"]
        else:
            shape = (len(self._labels), self.n_features_in_)
            self._references = csr_from_arrays("reference_", arrays, shape)
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = header["generator"]
