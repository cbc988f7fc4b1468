"""What every estimator that learns a similarity shares: it has one, and is used through it."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ..data.comparisons import Comparisons, ItemCache
from ..persistence import save_model
from ..validation import check_choice, check_integer, refuse_masked
from .base import Similarity, clone_sharing_items, short_repr

_P = ParamSpec("_P")
_R = TypeVar("_R")


def documented(**texts: str) -> Callable[[type], type]:
    """Decorator that replaces ``{name}`` in a class's docstring by the text of that name.

    Examples
    --------
    >>> class Thing:
    ...     "A thing with a {seed}."
    >>> documented(seed="generator")(Thing).__doc__
    'A thing with a generator.'
    """

    def fill(cls: type) -> type:
        if cls.__doc__:  # not with python -OO
            # Newer versions of Python strip the indentation, older ones keep it: strip it always.
            doc = inspect.cleandoc(cls.__doc__)
            for name, text in texts.items():
                # Texts are indented as in a docstring of a class: by four, descriptions by eight.
                doc = doc.replace(f"{{{name}}}", re.sub(r"^ {4}", "", text, flags=re.MULTILINE))
            cls.__doc__ = doc
        return cls

    return fill


def delegated(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """A method of a learner that calls the same method of its similarity."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return getattr(self._similarity(), name)(*args, **kwargs)

    return call


def delegated_property(similarity: type[Similarity], name: str) -> Any:
    """A property of a learner that reads the same property of its similarity."""
    return property(
        lambda self: getattr(self._similarity(), name), doc=getattr(similarity, name).__doc__
    )


def new_generator(random_state: Any) -> np.random.Generator:
    """A generator whose seed follows scikit-learn's rules for `random_state`."""
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    return np.random.default_rng(seed)


def validated(estimator: Any, *data: Any, **options: Any) -> Any:
    """What scikit-learn's `validate_data` gives, as NumPy's arrays, which kernels and solvers read."""
    refuse_masked(data[0], "X")
    with config_context(array_api_dispatch=False):
        return validate_data(estimator, *data, **options)


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Restore all attributes if learning fails: scikit-learn's validation sets some before it."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


class Kept:
    """Something that was read last, and the key it was read for.

    It is an object of its own so that reading changes nothing in an estimator's ``__dict__``.
    """

    # One tuple, so that another thread never sees the key of one and the value of another.
    _pair: tuple[Any, Any] | None = None

    def get(self, key: Any) -> Any:
        """What was read for this key, None if it was another one."""
        pair = self._pair
        return pair[1] if pair is not None and pair[0] == key else None

    def put(self, key: Any, value: Any) -> None:
        """Keep this instead."""
        self._pair = (key, value)

    def clear(self) -> None:
        """Forget it."""
        self._pair = None


class Learner(BaseEstimator, ABC):
    """Base of all estimators that learn a similarity.

    Subclasses provide `_learnt` and `_similarity`, and say by `delegated` which methods of the similarity
    they offer besides those that every similarity has.
    """

    preprocessor: Any
    dtype: Any
    init: Any
    #: Whether the similarity is read as a cosine: it changes what is read, not what is learnt.
    normalise: Any = False
    #: Kind of tuples that the learner is made for: "triplets", "pairs" or "labels".
    natural_tuples: str
    _items: ItemCache | None = None
    _last_read: Kept | None = None
    #: Memory of the dense head where `head_bytes` is None, and it is known how much is made use of.
    _head_hint: int | None = None

    #: What must be called before the estimator can be used.
    _to_be_called = "fit, partial_fit or learn_one"

    __repr__ = short_repr

    @abstractmethod
    def _learnt(self) -> Any:
        """What was learnt, with a `shape` and a `dtype`; None if nothing was."""

    @abstractmethod
    def _similarity(self) -> Any:
        """The similarity as it is now; it may change when learning goes on."""

    def _fitted(self) -> Any:
        learnt = self._learnt()
        if learnt is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet: call {self._to_be_called} first"
            )
        return learnt

    def __sklearn_is_fitted__(self) -> bool:
        return self._learnt() is not None

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        rows, columns = self._fitted().shape
        return int(rows), int(columns)

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the learnt numbers, and of the items as they are used."""
        return np.dtype(self._fitted().dtype)

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal; `fit` does so too."""
        self._check_parameters()

    def _check_parameters(self) -> None:
        if self.dtype is not None:
            check_choice("dtype", str(np.dtype(self.dtype)), ("float32", "float64"))
        if self.normalise is not False:
            check_choice("normalise", self.normalise, (False, True))

    def _check_init(self, *names: str) -> None:
        if isinstance(self.init, str):
            check_choice("init", self.init, names)

    def _check_integers_or_none(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))

    __sklearn_clone__ = clone_sharing_items

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_last_read" in state:
            state["_last_read"] = Kept()  # of the copy alone
        return state

    # -- reading input ------------------------------------------------------------------------

    def _reads(self) -> Kept:
        """What was read last; with `_item_cache`, to be made when learning begins."""
        if self._last_read is None:
            self._last_read = Kept()
        return self._last_read

    def _item_cache(self) -> ItemCache:
        if self._items is None:
            self._items = ItemCache()
        return self._items

    def _read_tuples(self, tuples: Any, size: int, dtype: Any) -> Comparisons:
        """Checked tuples of `size` items, given as row numbers or as vectors; labels are not read."""
        return self._item_cache().tuples(self.preprocessor, tuples, size, dtype)

    @property
    def _feature_names(self) -> np.ndarray | None:
        """Names of the features learnt from, None if they had none."""
        return getattr(self, "feature_names_in_", None)

    def _name_features(self, tuples: Comparisons) -> None:
        """Keep the names of the features, which must be those of queries and of items alike."""
        left, right = tuples.left.feature_names, tuples.right.feature_names
        if left is not None and right is not None and np.array_equal(left, right):
            self.feature_names_in_ = left
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_  # they belong to the items of an earlier fit

    # -- using what was learnt ----------------------------------------------------------------

    @property
    def similarity_(self) -> Similarity:
        """What was learnt, as a similarity of its own: it stays as it is when learning goes on."""
        return self._similarity()._freeze()

    item_scale = delegated(Similarity.item_scale)
    unit_vectors = delegated(Similarity.unit_vectors)
    pair_score = delegated(Similarity.pair_score)
    triplet_margin = delegated(Similarity.triplet_margin)
    quadruplet_margin = delegated(Similarity.quadruplet_margin)
    score_items = delegated(Similarity.score_items)
    sides = delegated(Similarity.sides)
    search = delegated(Similarity.search)
    get_metric = delegated(Similarity.get_metric)

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the model to a safetensors file, atomically; `simstream.load` reads it back.

        The items (`preprocessor`) are not saved.

        Parameters
        ----------
        path : file name
        extra : dict of JSON values kept with the model, for the caller's own use
        """
        self._fitted()
        save_model(self, path, extra)

    @abstractmethod
    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What is saved besides the parameters: JSON values, and arrays by name."""

    @abstractmethod
    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take over what `_get_state` gave; raises if it does not fit together."""
