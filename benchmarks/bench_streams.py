"""Cases of streams that come one tuple at a time, `learn_one`; `bench.py` runs them and writes docs/benchmarks.md.

    python benchmarks/bench.py learn_one_16 learn_one_128

Random vectors of unit length, in float64. Short steps: nearly every tuple stays violated, so that both sides
change M in nearly every step. The eager reference is that of `simstream_repro.reference`, which copies M in
every step and checks nothing.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from bench_common import in_turns, row
from simstream_repro import reference

N_TUPLES, N_TASKS = 2000, 5

#: Largest time of `learn_one`, in eager steps.
MUST_REACH = 3.0


def triplet_streams(d):
    """Triplets of vectors, the same as CSR rows, and labels of pairs."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N_TUPLES, 3, d))
    sparse = np.where(rng.random(vectors.shape) < 8 / d, vectors, 0.0)
    sparse[..., 0] += 0.1  # none is empty
    for each in (vectors, sparse):
        each /= np.linalg.norm(each, axis=2, keepdims=True)
    rows = sp.csr_matrix(sparse.reshape(-1, d))
    rows = [tuple(rows[3 * t + k] for k in range(3)) for t in range(N_TUPLES)]
    return list(vectors), rows, np.where(rng.random(N_TUPLES) < 0.5, 1, -1)


def cases(d):
    """Name, new learner, what a call of `learn_one` is given, and the eager stream of each learner."""
    from simstream import LEGO, OASIS, OGD, OMTRSL, SORS, PAMetric

    triplets, rows, signs = triplet_streams(d)
    pairs = [(a, b, y) for (a, b, _), y in zip(triplets, signs, strict=True)]
    tasks = [(a, b, c, 1, t % N_TASKS) for t, (a, b, c) in enumerate(triplets)]
    eye, targets, C, lam = np.eye(d), (0.5, 2.0), 0.01, 1e-5

    def differences():
        return ((a, b - c) for a, b, c in triplets)

    def dense_rows():
        for a, b, c in rows:
            yield a.toarray()[0], (b - c).toarray()[0]

    def of_pairs():
        return ((a - b, y) for a, b, y in pairs)

    def of_tasks():
        return ((a, b - c, y, k) for a, b, c, y, k in tasks)

    run = reference
    yield "OASIS", OASIS(C), triplets, lambda: run.oasis.last(eye, differences(), C)
    yield "OGD", OGD(C), triplets, lambda: run.ogd.last(eye, differences(), C)
    yield "SORS", SORS(lam, C), triplets, lambda: run.sors.last(eye, differences(), lam, C)
    yield "SORS, CSR rows", SORS(lam, C), rows, lambda: run.sors.last(eye, dense_rows(), lam, C)
    yield "PAMetric", PAMetric(C), pairs, lambda: run.pa_metric.last(0 * eye, of_pairs(), C)
    lego = LEGO(C, lower=targets[0], upper=targets[1])
    yield "LEGO", lego, pairs, lambda: run.lego.last(eye, of_pairs(), C, targets)
    start = [eye] * N_TASKS
    omtrsl = OMTRSL(C, n_tasks=N_TASKS)
    yield "OMTRSL, 5 tasks", omtrsl, tasks, lambda: run.omtrsl.last(start, of_tasks(), C, 1.0)


def learn_one(d):
    """The time of a call, against one step of the eager loop."""
    from sklearn.base import clone

    for name, learner, stream, eager in cases(d):

        def ours(learner=learner, stream=stream):
            model = clone(learner)
            for given in stream:
                model.learn_one(*given)
            return model

        ours()  # compile
        (own, theirs), (model, _) = in_turns(ours, eager, turns=5)
        changed = model.n_updates_ / model.n_rounds_
        yield row(
            f"{name}, d = {d}, `learn_one` against a step of eager NumPy ({changed:.0%} change M)",
            f"{own / N_TUPLES * 1e6:.1f} against {theirs / N_TUPLES * 1e6:.1f} us: {own / theirs:.2f}x",
            f"<= {MUST_REACH:g}x",
            own <= MUST_REACH * theirs,
        )


CASES = {"learn_one_16": lambda: learn_one(16), "learn_one_128": lambda: learn_one(128)}
