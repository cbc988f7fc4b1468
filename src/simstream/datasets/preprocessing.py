"""Preprocessing steps by name, so that results can record what was done to the items.

A name is one step, or several joined by ``+`` and done from left to right:

=============== =========================================================================================
"as-is"         nothing
"unit-norm"     divide every row by its norm
"centred"       subtract the mean of every feature; dense only
"standardised"  subtract the mean of every feature and divide by its standard deviation; dense only
"[0,1]"         map every feature linearly from its minimum and maximum to 0 and 1; for sparse items the
                minimum must be 0
"log"           replace counts c by log(1 + c)
"tf-idf"        multiply counts by the (smoothed) logarithm of inverse document frequency, then unit norm
"top-terms:N"   keep the N features with the largest sums: for counts, the most frequent terms
"pca:S"         principal components: as many as explain the share S of the variance (S below 1), or S of
                them; dense only
"constant:V"    append a feature that is V for every item: from it, s(q, x) = q'Mx can learn what favours x
                for every q, which it cannot learn from centred items
"span"          coordinates in the span of all rows: at most as many features as rows and the same inner
                products, so the same results for whatever does not look at single features; dense only
=============== =========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ..validation import check_items

# scikit-learn is imported inside the steps: it takes a second, and most uses of this package need none of it.

#: From the items to transform, and those to take the statistics from, to the transformed items.
Step = Callable[[Any, Any], Any]


class Prepared(NamedTuple):
    """Items after preprocessing, and the name of what was done.

    Examples
    --------
    >>> from simstream.datasets import prepare
    >>> prepare([[3.0, 4.0]], "unit-norm").name
    'unit-norm'
    """

    items: Any
    name: str


def prepare(items: Any, how: str = "as-is", fit_rows: Any = None) -> Prepared:
    """Preprocess items by named steps, with statistics from the training rows only.

    Parameters
    ----------
    items : array-like or sparse matrix of shape (n_items, n_features)
        All rows, for training and for evaluation.
    how : str, default="as-is"
        "as-is", "unit-norm", "centred", "standardised", "[0,1]", "log", "tf-idf", "top-terms:N", "pca:S",
        "constant:V", "span", or several joined by "+", done from left to right.
    fit_rows : array of int, bool mask, range or slice, default=None
        Rows from which means, ranges, frequencies and components are computed: the training part.
        By default all rows.

    Returns
    -------
    Prepared
        The items, dense or sparse as given, and the name of what was done.

    Raises
    ------
    ValueError
        If a name is unknown, a step would fill a sparse matrix, or rows do not exist.

    Examples
    --------
    >>> from simstream.datasets import prepare
    >>> prepare([[0.0], [2.0], [4.0]], "[0,1]", fit_rows=[0, 1]).items.ravel().tolist()
    [0.0, 1.0, 2.0]
    >>> prepare([[1, 5, 2], [0, 1, 2]], "top-terms:2 + unit-norm").name
    'top-terms:2+unit-norm'
    """
    steps = _parse(how)
    items = check_items(items).values
    rows = _check_rows(fit_rows, items.shape[0])
    for _, step in steps:
        items = check_items(step(items, items if rows is None else items[rows])).values
    return Prepared(items, "+".join(name for name, _ in steps))


def _check_rows(fit_rows: Any, n_rows: int) -> np.ndarray | None:
    if fit_rows is None:
        return None
    try:
        rows = np.arange(n_rows)[fit_rows if isinstance(fit_rows, slice) else np.asarray(fit_rows)]
    except IndexError as error:
        raise ValueError(
            f"fit_rows: expected numbers of rows below {n_rows}, got {error}"
        ) from None
    if rows.ndim != 1 or not len(rows):
        raise ValueError("fit_rows: expected at least one row, got none")
    return rows


def _parse(how: str) -> list[tuple[str, Step]]:
    """The steps with their names, without spaces."""
    steps: list[tuple[str, Step]] = []
    for part in str(how).split("+"):
        name = part.strip()
        kind, colon, argument = name.partition(":")
        if not colon and name in _PLAIN:
            steps.append((name, _PLAIN[name]))
        elif colon and kind in _WITH_NUMBER:
            step, is_valid, expected = _WITH_NUMBER[kind]
            number = _as_number(argument)
            if not is_valid(number):
                raise ValueError(f"preprocessing: expected {expected}, got {name!r}")
            steps.append((name, partial(step, number=number)))
        else:
            known = ", ".join([*_PLAIN, "top-terms:N", "pca:S", "constant:V"])
            raise ValueError(
                f"unknown preprocessing; expected one of {known}, or several joined by '+', "
                f"got {name!r}"
            )
    if len(steps) > 1 and "as-is" in (name for name, _ in steps):
        raise ValueError(f"preprocessing: 'as-is' cannot be combined, got {how!r}")
    return steps


def _as_number(text: str) -> float:
    """An integer if it is written as one, else a float; NaN if it is not a number."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return np.nan


def _refuse_sparse(items: Any, name: str) -> None:
    if sparse.issparse(items):
        raise ValueError(
            f"{name} would fill a sparse matrix of {items.shape[0]} x {items.shape[1]}; "
            "expected dense items, or another step such as unit-norm or tf-idf"
        )


def _refuse_negative(items: Any, name: str) -> None:
    if items.min() < 0:
        raise ValueError(f"{name}: expected counts, which are not negative, got {items.min()}")


def _unit_norm(items: Any, fit: Any) -> Any:
    from sklearn.preprocessing import normalize

    return normalize(items)


def _centred(items: Any, fit: Any) -> Any:
    _refuse_sparse(items, "centred")
    return items - fit.mean(axis=0)


def _span(items: Any, fit: Any) -> Any:
    _refuse_sparse(items, "span")
    if items.shape[1] <= items.shape[0]:
        return items
    # X' = QR with orthonormal columns of Q: the rows of R' have the inner products of those of X.
    return np.asarray(np.linalg.qr(items.T, mode="r")).T


def _standardised(items: Any, fit: Any) -> Any:
    from sklearn.preprocessing import StandardScaler

    _refuse_sparse(items, "standardised")
    return StandardScaler().fit(fit).transform(items)


def _zero_to_one(items: Any, fit: Any) -> Any:
    from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler

    if not sparse.issparse(items):
        return MinMaxScaler().fit(fit).transform(items)
    if (fit.min(axis=0).toarray() != 0).any():
        _refuse_sparse(items, "[0,1] with features whose minimum is not 0")
    return MaxAbsScaler().fit(fit).transform(items)


def _log(items: Any, fit: Any) -> Any:
    _refuse_negative(items, "log")
    return np.log1p(items)


def _tf_idf(items: Any, fit: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfTransformer

    _refuse_negative(items, "tf-idf")
    weighted = TfidfTransformer().fit(fit).transform(items)
    return weighted if sparse.issparse(items) else weighted.toarray()


def _top_terms(items: Any, fit: Any, number: int) -> Any:
    name, n_features = f"top-terms:{number}", items.shape[1]
    _refuse_negative(items, name)
    if number > n_features:
        raise ValueError(f"{name}: expected N at most {n_features}, the number of features")
    sums = np.asarray(fit.sum(axis=0)).ravel()
    # Stable, so that the first of equally frequent terms are kept.
    return items[:, np.sort(np.argsort(-sums, kind="stable")[:number])]


def _pca(items: Any, fit: Any, number: float) -> Any:
    from sklearn.decomposition import PCA

    _refuse_sparse(items, f"pca:{number}")
    if number > min(fit.shape):
        raise ValueError(
            f"pca:{number}: expected at most {min(fit.shape)} components from {fit.shape[0]} rows "
            f"of {fit.shape[1]} features"
        )
    # Exact and deterministic, whatever the shape.
    return PCA(number, svd_solver="full").fit(fit).transform(items)


def _constant(items: Any, fit: Any, number: float) -> Any:
    column = np.full((items.shape[0], 1), number, dtype=items.dtype)
    if sparse.issparse(items):
        return sparse.hstack([items, column], format="csr")
    return np.hstack([items, column])


_PLAIN: dict[str, Step] = {
    "as-is": lambda items, fit: items,
    "unit-norm": _unit_norm,
    "centred": _centred,
    "standardised": _standardised,
    "[0,1]": _zero_to_one,
    "log": _log,
    "tf-idf": _tf_idf,
    "span": _span,
}

#: The step, which numbers it accepts, and what is expected.
_WITH_NUMBER: dict[str, tuple[Callable[..., Any], Callable[[float], bool], str]] = {
    "top-terms": (
        _top_terms,
        lambda number: isinstance(number, int) and number >= 1,
        "top-terms:N with N at least 1",
    ),
    "pca": (
        _pca,
        lambda number: 0 < number < 1 or (isinstance(number, int) and number >= 1),
        "pca:S with S a share between 0 and 1 or a whole number",
    ),
    "constant": (_constant, math.isfinite, "constant:V with a number V"),
}
