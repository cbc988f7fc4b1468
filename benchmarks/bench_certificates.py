"""Cases of learners that come with a certificate; `bench.py` runs them and writes docs/benchmarks.md.

    python benchmarks/bench.py sdca_letter sdca_isolet gap_letter gap_isolet

Everything runs in float64 with one BLAS thread, and times are CPU seconds of this process: the same as
seconds on an idle machine, and still comparable on a busy one. With SIMSTREAM_DATA pointing to a folder
with letter.csv.gz and isolet.csv.gz the real data are used, otherwise Gaussian classes of the same shape.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

SHAPES = {"letter": (20_000, 16, 26), "isolet": (7_797, 617, 26)}  # items, features, classes
LAM = 0.005
N_TRIPLETS = 10**4
GAP = 1e-3


class Case(NamedTuple):
    """One measurement: `measure` returns numbers, `row` says them as (work, measured, reached)."""

    name: str
    must_reach: str
    measure: Callable[[], dict[str, Any]]
    row: Callable[[dict[str, Any]], tuple[str, str, bool]]


def items(name):
    """Items, labels, and where they come from."""
    folder = os.environ.get("SIMSTREAM_DATA")
    if folder and (Path(folder) / f"{name}.csv.gz").exists():
        from simstream.formats import read_items

        data = read_items(Path(folder) / f"{name}.csv.gz", label_column=-1, dtype="float64")
        return data.items, data.labels, name
    n, d, n_classes = SHAPES[name]
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    X = 0.4 * rng.normal(size=(n, d)) + 0.4 * rng.normal(size=(n_classes, d))[y]
    return np.clip(X, -1, 1), y, f"classes of the shape of {name}"


def seconds_of(function):
    start = time.process_time()
    function()
    return time.process_time() - start


# -- a step of SDCA against eager NumPy ------------------------------------------------------------------


def eager_sdca(X, triplets, draws, lam):
    """The textbook: the whole matrix in every step, the mean of the iterates of the second half beside it."""
    n, d = len(triplets), X.shape[1]
    M, alpha, total = np.zeros((d, d)), np.zeros(n), np.zeros((d, d))
    for t, i in enumerate(draws):
        if t >= len(draws) // 2:
            total += M
        anchor, positive, negative = triplets[i]
        x, z = X[anchor], X[positive] - X[negative]
        norm = (x @ x) * (z @ z)
        delta = max((1 - x @ M @ z - alpha[i] / 2) / (0.5 + norm / (lam * n)), -alpha[i])
        alpha[i] += delta
        M += delta / (lam * n) * np.outer(x, z)
    return M, total / (len(draws) - len(draws) // 2)


def sdca_steps(name, eager_steps, n_epochs=10, rounds=7):
    """SDCA and its eager version in turn; the whole of our fit counts, with its gap after every epoch."""
    from simstream import SDCA, TripletSampler

    X, y, source = items(name)
    T = TripletSampler(y, 0).draw(N_TRIPLETS)
    draws = np.random.default_rng(0).integers(0, len(T), eager_steps)
    model = SDCA(LAM, n_epochs=n_epochs, random_state=0, preprocessor=X)
    model.fit(T[:100])  # compile
    ours, eager = [], []
    with threadpool_limits(1):
        for _ in range(rounds):
            ours.append(seconds_of(lambda: model.fit(T)) / (n_epochs * len(T)))
            eager.append(seconds_of(lambda: eager_sdca(X, T, draws, LAM)) / eager_steps)
        singly = SDCA(LAM, block_size=1, random_state=0, preprocessor=X)
        compiled = min(seconds_of(lambda: singly.fit(T[:2000])) for _ in range(3)) / 2000
        a = np.asfortranarray(np.random.default_rng(0).normal(size=(1024, 1024)))
        from scipy.linalg.blas import dgemm

        gemm = 2 * 1024**3 / min(seconds_of(lambda: dgemm(1.0, a, a)) for _ in range(5))
    d = X.shape[1]
    per_draw = float(np.median(ours))
    return {
        "source": source,
        "features": d,
        "draws": n_epochs * len(T),
        "microseconds": 1e6 * per_draw,
        "eager_microseconds": 1e6 * float(np.median(eager)),
        "one_at_a_time_microseconds": 1e6 * compiled,
        "ratio": float(np.median(eager)) / per_draw,
        "dgemm_gflops": gemm / 1e9,
        "gflops": 4 * d * d / per_draw / 1e9,  # margin and update
    }


def sdca_row(x):
    return (
        f"SDCA, {x['source']} (d = {x['features']}), 10^4 triplets, {x['draws']:,} draws, against eager NumPy",
        f"{x['microseconds']:.2f} us a draw against {x['eager_microseconds']:.1f} us: {x['ratio']:.0f}x; "
        f"{x['gflops']:.1f} of dgemm's {x['dgemm_gflops']:.0f} GFLOP/s",
        x["ratio"] >= 20,
    )


# -- time to a primal value ------------------------------------------------------------------------------


def primal(M, X, triplets, lam):
    margins = np.einsum("ij,ij->i", X[triplets[:, 0]] @ M, X[triplets[:, 1]] - X[triplets[:, 2]])
    return np.mean(np.maximum(0, 1 - margins) ** 2) + lam / 2 * (M**2).sum()


def seconds_to_primal(make, X, triplets, goal, cap):
    """(CPU seconds of learning until the primal value first is at or below the goal or None, best value).

    Measuring the primal value, after every pass over the triplets, does not count.
    """
    rng = np.random.default_rng(0)
    model, seconds, lowest = make(), 0.0, np.inf
    while seconds < cap:
        drawn = triplets[rng.integers(0, len(triplets), len(triplets))]
        seconds += seconds_of(lambda drawn=drawn: model.partial_fit(drawn))
        lowest = min(lowest, primal(model.get_bilinear_matrix(), X, triplets, LAM))
        if lowest <= goal:
            return seconds, lowest
    return None, lowest


def time_to_gap(name, steps):
    """SDCA to its gap; OASIS and OGD, from zero, with every step size, last iterate and mean, to the same value."""
    from simstream import OASIS, OGD, SDCA, TripletSampler

    X, y, source = items(name)
    T = TripletSampler(y, 0).draw(N_TRIPLETS)
    out = {"source": source}
    model = SDCA(LAM, n_epochs=2000, tol=GAP, output="last", random_state=0, preprocessor=X)
    with threadpool_limits(1):
        model.fit(T[:100])  # compile
        out["sdca_seconds"] = seconds_of(lambda: model.fit(T))
        out |= {"gap": model.gap_, "primal": model.primal_, "epochs": model.n_iter_}
        out["converged"] = model.converged_
        cap = out["cap"] = max(2 * out["sdca_seconds"], 1.0)
        for learner, parameter in ((OASIS, "C"), (OGD, "eta")):
            found = []
            for step in steps:
                for average_from in (None, 1):
                    options = {parameter: step, "average_from": average_from, "init": "zeros"}
                    make = partial(learner, **options, preprocessor=X)
                    make().fit(T[:100])  # compile
                    found.append(seconds_to_primal(make, X, T, out["primal"], cap))
            reached = [seconds for seconds, _ in found if seconds is not None]
            out[f"{learner.__name__}_seconds"] = min(reached, default=None)
            out[f"{learner.__name__}_lowest"] = min(value for _, value in found)
    return out


def gap_row(x):
    others = []
    for name in ("OASIS", "OGD"):
        seconds = x[f"{name}_seconds"]
        others.append(
            f"{name} not reached in {x['cap']:.1f} s (lowest {x[name + '_lowest']:.4f})"
            if seconds is None
            else f"{name} {seconds:.2f} s"
        )
    first = all(
        x[f"{name}_seconds"] is None or x[f"{name}_seconds"] >= x["sdca_seconds"]
        for name in ("OASIS", "OGD")
    )
    return (
        f"SDCA, {x['source']}, to a duality gap of {GAP:g}; OASIS and OGD to the same primal value",
        f"{x['sdca_seconds']:.2f} s ({x['epochs']} epochs, primal {x['primal']:.4f}); {'; '.join(others)}",
        bool(x["converged"]) and first,
    )


CASES = [
    Case("sdca_letter", ">= 20x", lambda: sdca_steps("letter", 5000), sdca_row),
    Case("sdca_isolet", ">= 20x", lambda: sdca_steps("isolet", 300), sdca_row),
    Case(
        "gap_letter",
        "gap reached first",
        lambda: time_to_gap("letter", (1e-4, 1e-3, 1e-2, 1e-1)),
        gap_row,
    ),
    Case(
        "gap_isolet",
        "gap reached first",
        lambda: time_to_gap("isolet", (1e-5, 1e-4, 1e-3)),
        gap_row,
    ),
]


def rows(results: dict[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Lines of the table for the cases that were run."""
    for case in CASES:
        if case.name in results:
            work, measured, reached = case.row(results[case.name])
            yield work, measured, case.must_reach, reached
