"""Cases of drawing triplets and lists; `bench.py` runs them and writes docs/benchmarks.md.

python benchmarks/bench.py near_triplets
"""

from __future__ import annotations

import numpy as np

from bench_common import in_turns, items, row

N_DRAWN = 5_000


def near_triplets():
    """Random and near draws, against learning what was drawn."""
    from simstream import OASIS, TripletSampler

    X, y, source = items("mnist-t10k")
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    learner = OASIS(preprocessor=X).fit(TripletSampler(y, 0).draw(2000))
    triplets = TripletSampler(y, 1).draw(N_DRAWN)
    ways = {
        "random": {},
        "near negatives": {"negatives": "near"},
        "semi-hard negatives": {"negatives": "semi-hard"},
        "near negatives and positives": {"negatives": "near", "positives": "near"},
        "near negatives, the nearest of 64": {"negatives": "near", "candidates": 64},
    }
    samplers = [TripletSampler(y, 0, items=X, model=learner, **ways[way]) for way in ways]
    (learning, *drawing), _ = in_turns(
        lambda: learner.partial_fit(triplets),
        *(lambda sampler=sampler: sampler.draw(N_DRAWN) for sampler in samplers),
    )
    scale = 1e3 / N_DRAWN * 1000  # milliseconds for 1,000
    for way, seconds in zip(ways, drawing, strict=True):
        yield row(
            f"drawing 1,000 triplets, {way}, {source}, by OASIS, refreshed every 1,000, against learning them",
            f"{seconds * scale:.2f} ms against {learning * scale:.0f} ms: {seconds / learning:.2f} times as long",
            "",
            True,
        )
    sampler = TripletSampler(y, 0, items=X, model=learner, negatives="near")
    plain = TripletSampler(y, 0)
    (near, random), _ = in_turns(
        lambda: sampler.draw_lists(1000, 32), lambda: plain.draw_lists(1000, 32)
    )
    yield row(
        f"drawing 1,000 lists of 32 negatives, half of them near, {source}",
        f"{near * 1e3:.0f} ms (all random: {random * 1e3:.1f} ms)",
        "",
        True,
    )


#: Name -> function that gives rows (work, measured, must reach, reached) of the table.
CASES = {"near_triplets": near_triplets}
