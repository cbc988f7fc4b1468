"""Exact search against the bare matrix product and against plain NumPy, interleaved; ratios of medians.

``python benchmarks/bench_index.py`` (1 GB of memory, about a minute; OPENBLAS_NUM_THREADS=1 for one core)
"""

import time

import numpy as np

from simstream.search import ExactIndex

N_ITEMS, N_FEATURES, K = 100_000, 384, 10


def bare_product(items, queries):
    return items @ queries[0] if len(queries) == 1 else queries @ items.T


def plain_numpy(items, queries):
    scores = bare_product(items, queries).reshape(len(queries), -1)
    rows = np.argpartition(scores, -K, axis=1)[:, -K:]
    order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1)
    return np.take_along_axis(rows, order, axis=1)


def timed(work, *arguments):
    begin = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - begin, result


def main():
    rng = np.random.default_rng(0)
    items = rng.standard_normal((N_ITEMS, N_FEATURES), dtype=np.float32)
    index = ExactIndex()
    index.add(range(N_ITEMS), items)
    index.search(items[:1], K)  # compiled
    print(
        "| queries | removed | of bare product | of product and argpartition |\n|---|---|---|---|"
    )
    for n_removed in (0, 20_000):
        if n_removed:
            index.remove(range(n_removed))
        for n_queries, n_repeats in ((1, 60), (10, 12), (100, 8)):
            times = []
            for _ in range(n_repeats):
                queries = rng.standard_normal((n_queries, N_FEATURES), dtype=np.float32)
                ours, found = timed(index.search, queries, K)
                numpy, rows = timed(plain_numpy, items, queries)
                bare, _ = timed(bare_product, items, queries)
                times.append((ours, numpy, bare))
                if not n_removed:
                    assert (found.ids.astype(int) == rows).all()
            ours, numpy, bare = np.median(times, axis=0)
            print(f"| {n_queries} | {n_removed:,} | {ours / bare:.2f} | {ours / numpy:.2f} |")


if __name__ == "__main__":
    main()
