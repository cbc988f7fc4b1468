"""How well learners in closed form rank, and places of items without features; writes docs/batch-learners.md.

SIMSTREAM_DATA=... python benchmarks/bench_batch.py [labels] [answers] [--write]

Data sets are read from the folder SIMSTREAM_DATA (see docs/datasets.md).
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from bench_common import ROOT, check_marks, machine, put_between

PAGE = ROOT / "docs" / "batch-learners.md"
MARKS = {name: (f"<!-- {name} begin -->", f"<!-- {name} end -->") for name in ("labels", "answers")}

DATA = ("vehicle", "vowel", "satellite", "letter", "mfeat", "isolet")
SEEDS = (0, 1, 2)
N_TUPLES = 20_000
N_TEST = 1_500


# -- class labels -----------------------------------------------------------------------------------


def split(name, seed):
    """Items and labels to learn from and to rank: 70 and 30 % of each class, standardised, of length one."""
    from simstream import datasets

    data = datasets.load(name)
    X, y = np.asarray(data.items, np.float64), np.asarray(data.labels)
    rng = np.random.default_rng(seed)
    train = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        train[rows[: round(0.7 * len(rows))]] = True
    test = np.sort(rng.permutation(np.flatnonzero(~train))[:N_TEST])
    scaler = StandardScaler().fit(X[train])

    def prepared(rows):
        rows = scaler.transform(rows)
        return rows / np.maximum(1e-12, np.linalg.norm(rows, axis=1, keepdims=True))

    return prepared(X[train]), y[train], prepared(X[test]), y[test]


def online():
    """Every online learner of dense items that takes triplets or pairs, with its defaults."""
    from simstream.catalogue import ALGORITHMS

    left_out = ("OMTRSL", "OSTRSL", "OGRSL", "Dot", "Euclidean")  # tasks; nothing is learnt
    return [a.cls() for a in ALGORITHMS if not a.is_batch and a.name not in left_out]


def scored(learner, A, a, B, b, seed):
    """MAP of the test items after learning from tuples that are drawn from labels, and CPU seconds."""
    from simstream import FromLabels

    n = 2_000 if "n_relevant" in learner.get_params(deep=False) else N_TUPLES  # lists say more
    begun = time.process_time()
    model = FromLabels(learner, n_tuples=n, random_state=seed).fit(A, a)
    return model.score(B, b), time.process_time() - begun


def labels():
    """One row of the table for every data set."""
    from simstream import LDA, NCA, OASIS, RCA, ListwiseSoftmax, Mahalanobis
    from simstream.metrics import mean_average_precision

    closed = {
        "LDA": LDA(),
        "LDA, cosine": LDA(normalise=True),
        "LDA, equal weights": LDA(weights="equal"),
        "RCA": RCA(),
        "RCA, shrunk, between": RCA(shrinkage="auto", weights="between"),
        "NCA": NCA(random_state=0),
    }
    started = {"OASIS": OASIS(), 'OASIS, init="lda"': OASIS(init="lda", centre="auto")}
    names = ["nothing learnt", "best online learner", *started, *closed]
    yield ["", *names, "seconds: LDA", "seconds: best online"]
    yield ["---"] * (len(names) + 3)
    for name in DATA:
        found = {key: [] for key in names}
        ranked, seconds = {}, {}
        for seed in SEEDS:
            A, a, B, b = split(name, seed)
            found["nothing learnt"].append(
                mean_average_precision(Mahalanobis(np.eye(A.shape[1])), B, b)
            )
            for cls in online():
                learner = cls(n_relevant=10) if cls is ListwiseSoftmax else cls()
                try:
                    value, took = scored(learner, A, a, B, b, seed)
                except (ValueError, ArithmeticError) as error:
                    print(f"{name}: {cls.__name__}: {error}")
                    continue
                ranked.setdefault(cls.__name__, []).append(value)
                seconds.setdefault(cls.__name__, []).append(took)
            for key, learner in started.items():
                found[key].append(scored(clone(learner), A, a, B, b, seed)[0])
            for key, learner in closed.items():
                n_classes = len(np.unique(a))
                model = clone(learner)
                if key == "NCA":
                    model.set_params(n_components=min(n_classes - 1, A.shape[1]))
                    if len(A) > 5_000:  # its cost is the square of that
                        continue
                begun = time.process_time()
                model.fit(A, a)
                seconds.setdefault(key, []).append(time.process_time() - begun)
                found[key].append(mean_average_precision(model, B, b))
        means = {key: np.mean(values) for key, values in ranked.items() if len(values) == 3}
        best = max(means, key=means.get)
        found["best online learner"] = [means[best]]
        values = {key: np.mean(values) if values else np.nan for key, values in found.items()}
        top = np.nanmax(list(values.values()))
        cells = []
        for key, value in values.items():
            text = "" if np.isnan(value) else f"{value:.3f}"
            text = f"**{text}**" if value > top - 0.0005 else text
            cells.append(f"{text} ({best})" if key == "best online learner" else text)
        print(name, *cells, {k: round(v, 3) for k, v in means.items()}, flush=True)
        yield [
            f"{name} ({len(A):,} x {A.shape[1]}, {len(np.unique(a))} classes)",
            *cells,
            f"{np.mean(seconds['LDA']):.2g}",
            f"{np.mean(seconds[best]):.2g}",
        ]


# -- answers ----------------------------------------------------------------------------------------


def answers():
    """One row for each learner: accuracy on held-out answers, by how many answers were learnt from."""
    from simstream import OASIS, ListwiseSoftmax, OrdinalEmbedding, datasets

    data = datasets.load("zappos")
    X = np.asarray(data.items, np.float64)
    X = X - X.mean(axis=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    u, lengths, _ = np.linalg.svd(X, full_matrices=False)
    X = (u * lengths)[:, lengths > 1e-9 * lengths[0]]  # the same inner products, fewer features
    T = np.asarray(data.triplets)
    sizes = (1_000, 10_000, len(T) // 2)
    contenders = {
        "features as they are": None,
        "features, OASIS": OASIS(preprocessor=X, normalise=True),
        "features, ListwiseSoftmax": ListwiseSoftmax(preprocessor=X, normalise=True),
    } | {
        f"no features, {method}, {k} dimensions": OrdinalEmbedding(k, method, random_state=0)
        for method in ("soe", "t-ste")
        for k in (2, 5, 12)
    }
    yield ["", *(f"{n:,} answers" for n in sizes), "CPU seconds, all answers"]
    yield ["---"] * 5
    for name, model in contenders.items():
        cells = []
        for n in sizes:
            accuracy, took = [], []
            for seed in SEEDS:
                order = np.random.default_rng(seed).permutation(len(T))
                train, test = T[order[:n]], T[order[len(T) // 2 :]]
                if model is None:
                    scores = X @ X.T
                    accuracy.append(
                        np.mean(scores[test[:, 0], test[:, 1]] > scores[test[:, 0], test[:, 2]])
                    )
                    continue
                begun = time.process_time()
                accuracy.append(clone(model).fit(train).score(test))
                took.append(time.process_time() - begun)
            cells.append(f"{np.mean(accuracy):.3f}")
        print(name, *cells, flush=True)
        yield [name, *cells, f"{np.mean(took):.2g}" if model is not None else ""]


CASES = {"labels": labels, "answers": answers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them by default")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    for name in arguments.cases or CASES:
        if arguments.write:
            check_marks(parser, PAGE, MARKS[name])
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list(CASES[name]())
        text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        print(text)
        if arguments.write:
            put_between(PAGE, MARKS[name], f"{text}\n\nMeasured on {machine()}.")


if __name__ == "__main__":
    main()
