"""Cases of learning from lists; `bench.py` runs them and writes docs/benchmarks.md.

python benchmarks/bench.py listwise_dense
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from bench_common import in_turns, row
from simstream_repro import reference

ETA, TEMPERATURE, N_STEPS = 4.0, 0.05, 5


def in_place_listwise(M, stream):
    """The strongest eager NumPy version: float32, steps on M'q, no temporary matrix but one."""
    outer = np.empty_like(M)
    for q, relevant, negatives in stream:
        X, norm = np.concatenate([relevant, negatives]), q @ q
        first = X @ (q @ M)
        change, scores = np.zeros_like(q), first
        for _ in range(N_STEPS):
            p = np.exp((scores - scores.max()) / TEMPERATURE)
            p /= -p.sum()
            p[0] += 1
            change += ETA * TEMPERATURE * (p @ X)
            scores = first + norm * (X @ change)
        np.multiply.outer(q, change, out=outer)
        M += outer
    return M


def lists_of(n, n_items, k):
    """Random lists of a query, a relevant item and k negatives."""
    rng = np.random.default_rng(0)
    lists = rng.integers(0, n_items, (n, 2 + k))
    return lists[(lists[:, 2:] != lists[:, 1:2]).all(axis=1)]


def listwise_dense():
    """Blocks of lists against eager NumPy and our lists one at a time, with the dimension of small embeddings."""
    from simstream import ListwiseSoftmax

    rng = np.random.default_rng(0)
    d = 384
    X = rng.normal(size=(10_000, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for k in (10, 100):
        lists = lists_of(4000, len(X), k)
        some, few = lists[:400], lists[:40]
        options = {"eta": ETA, "temperature": TEMPERATURE, "n_steps": N_STEPS, "preprocessor": X}
        blocked, single = (ListwiseSoftmax(block_size=size, **options) for size in (None, 1))
        for model in (blocked, single):
            model.fit(few)
        stream = [(X[one[0]], X[one[1:2]], X[one[2:]]) for one in some]
        slow = [tuple(part.astype(np.float64) for part in one) for one in stream[: len(few)]]
        (ours, one, in_place, textbook), _ = in_turns(
            lambda lists=lists, model=blocked: model.fit(lists),
            lambda some=some, model=single: model.fit(some),
            lambda stream=stream: in_place_listwise(np.eye(d, dtype=np.float32), stream),
            lambda slow=slow: reference.listwise.last(np.eye(d), slow, ETA, TEMPERATURE, N_STEPS),
        )
        ours, one, in_place = ours / len(lists), one / len(some), in_place / len(some)
        textbook /= len(few)
        work = 2 * d * (2 * d + 2 * N_STEPS * (1 + k))
        yield row(
            f"ListwiseSoftmax dense, d = {d}, {k} negatives, {N_STEPS} steps, against the textbook / in-place "
            "float32 NumPy / one list at a time",
            f"{1 / ours:,.0f} lists/s, {work / ours / 1e9:.0f} GFLOP/s: {textbook / ours:.0f}x / "
            f"{in_place / ours:.1f}x / {one / ours:.1f}x",
            ">= 10x / 2x / 1x",
            textbook / ours >= 10 and in_place / ours >= 2 and one >= ours,
        )


def listwise_sparse():
    """Lists of sparse rows, against the textbook on the whole matrix."""
    from simstream import ListwiseSoftmax

    d, k = 5_000, 20
    X = sp.random(5_000, d, 0.01, "csr", np.float32, random_state=0)
    lists = lists_of(2000, X.shape[0], k)
    model = ListwiseSoftmax(ETA, TEMPERATURE, N_STEPS, preprocessor=X).fit(lists[:10])
    few = [reference.rows(X, one) for one in lists[:2]]
    stream = [(one[0], np.array(one[1:2]), np.array(one[2:])) for one in few]
    (ours, textbook), _ = in_turns(
        lambda: model.fit(lists),
        lambda: reference.listwise.last(np.eye(d), stream, ETA, TEMPERATURE, N_STEPS),
        turns=2,
    )
    ours, textbook = ours / len(lists), textbook / len(stream)
    yield row(
        f"ListwiseSoftmax sparse, d = {d:,}, 50 non-zeros in a row, {k} negatives, against the textbook",
        f"{1 / ours:,.0f} lists/s: {textbook / ours:,.0f}x",
        ">= 1,000x",
        textbook / ours >= 1000,
    )


#: Name -> function that gives rows (work, measured, must reach, reached) of the table.
CASES = {"listwise_dense": listwise_dense, "listwise_sparse": listwise_sparse}
