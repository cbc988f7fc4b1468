"""The SORS paper's BBC row: mAP and sparsity of our learners beside the published values.

    SIMSTREAM_DATA=folder python benchmarks/bbc.py [--seeds 3] [--write]

Needs bbc.svm.gz (2,225 texts, 9,635 term counts, 5 classes). Per class 70 % of the texts train, 30 % test;
10^5 triplets from the training labels; each test text ranks the other test texts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from simstream import OASIS, SORS, AdaSORS, Dot, Euclidean, TripletSampler, metrics
from simstream.formats import read_items

ROUNDS = 10**5

#: name -> (learner, published mAP %, published sparsity %); each with (mean, standard deviation)
RUNS = {
    "Euclidean": (Euclidean(), (32.91, 0.01), (99.9, 0.0)),
    "Dot (not in the paper)": (Dot(), None, None),
    "OASIS, C = 0.01": (OASIS(C=0.01), (79.36, 0.41), (61.62, 0.24)),
    "SORS-I, eta = 0.1, lam = 1e-6": (SORS(lam=1e-6, eta=0.1), (91.03, 1.12), (78.67, 3.56)),
    "SORS-II, same": (SORS(lam=1e-6, eta=0.1, off_diagonal=True), (92.20, 1.28), (78.41, 3.21)),
    "AdaSORS-I, eta = 0.1, lam = 1e-6, delta = 0.1": (
        AdaSORS(1e-6, 0.1, 0.1),
        (92.43, 0.62),
        (82.15, 2.68),
    ),
    "AdaSORS-II, same": (AdaSORS(1e-6, 0.1, 0.1, off_diagonal=True), (94.09, 0.61), (81.24, 2.35)),
    "AdaSORS-II, unit-length rows": (AdaSORS(1e-6, 0.1, 0.1, off_diagonal=True), None, None),
}


def split(y, rng):
    """Row numbers of the training and test part, 70/30 in every class."""
    train = []
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        train.extend(members[: round(0.7 * len(members))])
    train = np.sort(train)
    return train, np.setdiff1d(np.arange(len(y)), train)


def prepared(name, X):
    if "unit-length" in name:
        return X.multiply(1 / np.sqrt(X.multiply(X).sum(axis=1))).tocsr().astype(np.float32)
    return X


def show(values, published):
    ours = f"{np.mean(values):.2f} ± {np.std(values):.2f}"
    if not published or published[0] is None:
        return ours, "-"
    spread = "" if published[1] is None else f" ± {published[1]:.2f}"
    return ours, f"{published[0]:.2f}{spread}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/bbc.md")
    options = parser.parse_args()
    folder = os.environ.get("SIMSTREAM_DATA")
    if not folder:
        sys.exit("SIMSTREAM_DATA: expected the folder that holds bbc.svm.gz, got nothing")
    data = read_items(Path(folder) / "bbc.svm.gz", dtype="float32", n_features=9635)
    lines = [
        "| method | mAP % | published | sparsity % | published | training s |",
        "|---|---|---|---|---|---|",
    ]
    for name, (learner, published_map, published_sparsity) in RUNS.items():
        X = prepared(name, data.items)
        found = []
        for seed in range(options.seeds):
            train, test = split(data.labels, np.random.default_rng(seed))
            T = TripletSampler(data.labels[train], seed).draw(ROUNDS)
            learner.set_params(preprocessor=X[train])
            start = time.perf_counter()
            learner.fit(T)
            seconds = time.perf_counter() - start
            quality = metrics.mean_average_precision(learner, X[test], data.labels[test])
            found.append((100 * quality, 100 * learner.sparsity_, seconds))
            print(name, seed, *np.round(found[-1], 2), file=sys.stderr, flush=True)
        quality, sparsity, seconds = np.transpose(found)
        cells = [*show(quality, published_map), *show(sparsity, published_sparsity)]
        lines.append(f"| {name} | {' | '.join(cells)} | {seconds.mean():.1f} |")
    table = "\n".join(lines)
    print(table)
    if options.write:
        page = Path(__file__).resolve().parent.parent / "docs" / "bbc.md"
        page.write_text(PAGE.format(table=table, seeds=options.seeds))


PAGE = """# BBC news: the SORS paper's row

Written by `SIMSTREAM_DATA=folder python benchmarks/bbc.py --write`: raw term counts, 70/30 split in every
class, 10^5 triplets, {seeds} seeds (mean ± standard deviation over seeds), float32.

{table}

What we read from it:

* SORS-I and SORS-II fall inside the published mean ± one standard deviation in both columns. OASIS is below
  the published mAP by less than two of its standard deviations; its sparsity, the share of entries that no
  triplet ever touched, is a little lower too and depends on the split, which the paper does not give.
* AdaSORS-II is inside the published spread; AdaSORS-I is better than published. In our runs the two are nearly
  the same matrix, as the mathematics says: over the whole stream the threshold on a diagonal entry adds up to
  lam * eta * 10^5 = 0.01, divided by delta + H.
* Euclidean is some two points below the published value. The pool is our choice (the paper does not say it):
  every test text ranks the other test texts.
* Scaling rows to length one, which the paper does not do, helps more than any choice of learner.
"""


if __name__ == "__main__":
    main()
