"""Every learner from pairs beside its eager reference."""

from typing import Any, NamedTuple

import numpy as np

import simstream_repro.reference as ref
from cases import items, triplets
from simstream import LEGO, POLA, RDML, OnlineITML, PAMetric


class PairCase(NamedTuple):
    name: str
    make: Any  # keyword arguments -> learner
    matrix: Any  # stream of (v, y) -> the matrix as it is read, in float64
    averages: bool = False
    blocks: bool = False  # learns several pairs together on dense items
    hashes: bool = False  # keeps sparse matrices in a dense block and hash tables
    kind: bool = True  # the first with its engine; others differ in the step alone


#: Squared distances of `items()` are around 16; these targets leave pairs of both kinds violated.
TARGETS = (8.0, 24.0)
SCALE = 0.08


def _pa(name, variant, every_step, C=0.01):
    def matrix(stream, d=16):
        M, _ = ref.pa_metric(np.zeros((d, d)), stream, C, variant, every_step)[-1]
        return ref.positive_part(M)

    projection = "every-step" if every_step else "end"

    def make(**more):
        return PAMetric(**{"C": C, "variant": variant, "projection": projection, **more})

    return PairCase(
        name,
        make,
        matrix,
        blocks=not every_step,
        hashes=not every_step,
        kind=variant == "PALS",
    )


def _pola(stream, d=16):
    return ref.pa_metric(np.zeros((d, d)), stream, np.inf, "PA", True)[-1][0]


def _rdml(exact):
    return lambda stream, d=16: ref.rdml(np.zeros((d, d)), stream, 0.05, exact)[-1]


def _lego(stream, d=16):
    return ref.lego(np.eye(d), stream, 0.02, TARGETS)[-1]


def _online_itml(stream, d=16):
    scaled = [(v * SCALE, y) for v, y in stream]
    targets = np.array(TARGETS) * SCALE**2
    return ref.online_itml(np.eye(d) / d, scaled, 0.3, targets)[-1]


_TARGETS = {"lower": TARGETS[0], "upper": TARGETS[1]}

PAIR_CASES = [
    _pa("pa-", "PA", False),
    _pa("pa1-", "PA-I", False),
    _pa("pa2-", "PA-II", False),
    _pa("pals-", "PALS", False),
    _pa("pa1+", "PA-I", True),
    _pa("pa2+", "PA-II", True),
    _pa("pals+", "PALS", True),
    PairCase("pola", lambda **more: POLA(**more), _pola),
    PairCase("rdml", lambda **more: RDML(**{"lam": 0.05, **more}), _rdml(False)),
    PairCase(
        "rdml-exact", lambda **more: RDML(**{"lam": 0.05, "exact": True, **more}), _rdml(True)
    ),
    PairCase("lego", lambda **more: LEGO(**{"eta": 0.02, **_TARGETS, **more}), _lego, blocks=True),
    PairCase(
        "online-itml",
        lambda **more: OnlineITML(**{"eta": 0.3, "scale": SCALE, **_TARGETS, **more}),
        _online_itml,
    ),
]


def pairs(seed=0, n=300, n_items=40):
    """Different random pairs (one seen again would be a tie), with labels that depend on the items."""
    rng = np.random.default_rng(seed + 2000)
    everything = np.array([(i, j) for i in range(n_items) for j in range(i)])
    index = rng.permutation(rng.choice(everything, n, replace=False), axis=0)
    X = items()
    first = (X[index[:, 0]] - X[index[:, 1]])[:, :6]
    noise = rng.normal(size=n)
    return index, np.where((first**2).sum(axis=1) + noise < 5, 1, -1)


def stream_of_pairs(X, index, y):
    X = np.asarray(X, np.float64)
    return [(X[i] - X[j], float(label)) for (i, j), label in zip(index, y, strict=True)]


def stream_of_triplets(X, T):
    """Each triplet as a similar and a dissimilar pair."""
    return [part for a, p, n in T for part in ((X[a] - X[p], 1.0), (X[a] - X[n], -1.0))]


__all__ = ["PAIR_CASES", "PairCase", "pairs", "stream_of_pairs", "stream_of_triplets", "triplets"]
