"""Every learner from triplets beside its eager reference: the matrix that the tests run over."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from numba import config

import simstream_repro.reference as ref
from simstream import AROMA, OASIS, OGD, SORS, AdaSORS, Dot, Euclidean, ListwiseSoftmax


class Case(NamedTuple):
    name: str
    make: Any  # keyword arguments -> learner
    reference: Any  # (first M, stream) -> all iterates
    needs_diagonal: bool = False
    averages: bool = False
    blocks: bool = False  # learns several triplets together on dense items
    hashes: bool = True  # keeps sparse matrices in a dense block and hash tables
    kind: bool = False  # the first with its entry rule and engine; others differ in the step alone


def _case(name, cls, params, reference, **flags):
    return Case(name, lambda **more: cls(**{**params, **more}), reference, **flags)


CASES = [
    _case(
        "oasis-pa1",
        OASIS,
        {"C": 0.3},
        lambda M, s: ref.oasis(M, s, 0.3),
        averages=True,
        blocks=True,
        kind=True,
    ),
    _case(
        "oasis-pa",
        OASIS,
        {"variant": "PA"},
        lambda M, s: ref.oasis(M, s, 1, "PA"),
        averages=True,
        blocks=True,
    ),
    _case(
        "oasis-pa2",
        OASIS,
        {"C": 0.5, "variant": "PA-II"},
        lambda M, s: ref.oasis(M, s, 0.5, "PA-II"),
        averages=True,
        blocks=True,
    ),
    _case("ogd", OGD, {"eta": 0.2}, lambda M, s: ref.ogd(M, s, 0.2), averages=True, blocks=True),
    _case(
        "ogd-inv-sqrt",
        OGD,
        {"eta": 0.7, "schedule": "inv-sqrt"},
        lambda M, s: ref.ogd(M, s, 0.7, "inv-sqrt"),
        averages=True,
        blocks=True,
        kind=True,
    ),
    _case("sors1", SORS, {"lam": 2e-3, "eta": 0.2}, lambda M, s: ref.sors(M, s, 2e-3, 0.2)),
    _case(
        "sors2",
        SORS,
        {"lam": 2e-3, "eta": 0.2, "off_diagonal": True},
        lambda M, s: ref.sors(M, s, 2e-3, 0.2, True),
        needs_diagonal=True,
    ),
    _case(
        "sors1-inv-sqrt",
        SORS,
        {"lam": 5e-3, "eta": 0.7, "schedule": "inv-sqrt"},
        lambda M, s: ref.sors(M, s, 5e-3, 0.7, schedule="inv-sqrt"),
        kind=True,
    ),
    _case(
        "sors2-inv-sqrt",
        SORS,
        {"lam": 5e-3, "eta": 0.7, "schedule": "inv-sqrt", "off_diagonal": True},
        lambda M, s: ref.sors(M, s, 5e-3, 0.7, True, "inv-sqrt"),
        needs_diagonal=True,
        kind=True,
    ),
    _case(
        "adasors1",
        AdaSORS,
        {"lam": 2e-3, "eta": 0.1, "delta": 0.5},
        lambda M, s: ref.adasors(M, s, 2e-3, 0.1, 0.5),
        kind=True,
    ),
    _case(
        "adasors2",
        AdaSORS,
        {"lam": 2e-3, "eta": 0.1, "delta": 0.5, "off_diagonal": True},
        lambda M, s: ref.adasors(M, s, 2e-3, 0.1, 0.5, True),
        needs_diagonal=True,
        kind=True,
    ),
    _case(
        "aroma",
        AROMA,
        {"r": 2.0},
        lambda M, s: ref.aroma_diagonal(M, s, 2.0),
        averages=True,
        kind=True,
    ),
    _case(
        "aroma-drop",
        AROMA,
        {"r": 2.0, "covariance": "diagonal-drop"},
        lambda M, s: ref.aroma_diagonal(M, s, 2.0, drop=True),
        averages=True,
        kind=True,
    ),
    _case(
        "aroma-factored",
        AROMA,
        {"r": 2.0, "covariance": "factored"},
        lambda M, s: ref.aroma_factored(M, s, 2.0),
        averages=True,
        blocks=True,
        hashes=False,
        kind=True,
    ),
]

#: Learners from lists; triplets are lists with one negative. Their losses are tested in test_listwise.py.
LIST_CASES = [
    _case(
        "listwise",
        ListwiseSoftmax,
        {"eta": 0.05, "temperature": 0.7, "n_steps": 3},
        lambda M, s: ref.listwise(M, _as_lists(s), 0.05, 0.7, 3),
        averages=True,
        blocks=True,
        kind=True,
    ),
]

BASELINES = [
    _case("dot", Dot, {}, None, hashes=False, kind=True),
    _case("euclidean", Euclidean, {}, None, hashes=False, kind=True),
]

#: How items are given: dense; sparse in one dense block; sparse with most entries in hash tables.
LAYOUTS = {
    "dense": (np.asarray, {}),
    "sparse": (sp.csr_matrix, {}),
    "hashed": (sp.csr_matrix, {"head_bytes": 8 * 5 * 5}),
}


def layouts_of(case):
    """The layouts that a learner treats differently."""
    return [layout for layout in LAYOUTS if case.hashes or layout != "hashed"]


def cells(cases, *, dtypes=None):
    """Parameters (case, layout), or (case, layout, dtype).

    As plain Python all of them are tested. Compiled, one case of each kind is tested on every layout and
    in every precision, the others on dense float64 items: their compiled code is the same.
    """
    found = [
        (case, layout, dtype)
        for case in cases
        for layout in layouts_of(case)
        for dtype in dtypes or [np.float64]
        if config.DISABLE_JIT or case.kind or (layout == "dense" and dtype is np.float64)
    ]
    names = "case, layout, dtype" if dtypes else "case, layout"
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *cell[: 3 if dtypes else 2],
                id="-".join([cell[0].name, cell[1], *([cell[2].__name__] if dtypes else [])]),
            )
            for cell in found
        ],
    )


def items(seed=0, n=40, d=16, dtype=np.float64, density=0.5):
    """Real values without ties; sparse enough that entries rest, dense enough that all are touched."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    X[np.arange(n), rng.integers(0, d, n)] = rng.normal(size=n)  # no empty rows
    return X.astype(dtype)


def triplets(seed=0, n=300, n_items=40, n_candidates=None):
    return _triplets(seed, n, n_items, n_candidates).copy()


@lru_cache
def _triplets(seed, n, n_items, n_candidates):
    rng = np.random.default_rng(seed + 1000)
    anchors = rng.integers(0, n_items, n)
    pairs = np.array([rng.choice(n_candidates or n_items, 2, replace=False) for _ in range(n)])
    return np.column_stack([anchors, pairs])


def stream(X, T, right=None):
    """The same triplets as (x, z) in float64, for the references."""
    X = np.asarray(X, np.float64)
    Y = X if right is None else np.asarray(right, np.float64)
    return [(X[a], Y[p] - Y[n]) for a, p, n in T]


def _as_lists(triplet_stream):
    """Softmax only sees differences of items: the negative may be moved to the origin."""
    return [(x, z[None], np.zeros((1, len(z)))) for x, z in triplet_stream]


def dense(matrix):
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix)
