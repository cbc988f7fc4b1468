"""How well learners in closed form rank, and places of items without features; writes docs/batch-learners.md.

SIMSTREAM_DATA=... python benchmarks/bench_batch.py [labels] [others] [answers] [--data NAME ...] [--write]

Data sets are read from the folder SIMSTREAM_DATA (see docs/datasets.md). `others` needs metric-learn in an
environment of its own: make .venv-peers/.installed
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from bench_common import ROOT, check_marks, machine, put_between
from bench_peers import ask_peer

PAGE = ROOT / "docs" / "batch-learners.md"
CASES = ("labels", "others", "answers")
MARKS = {name: (f"<!-- {name} begin -->", f"<!-- {name} end -->") for name in CASES}

DATA = ("vehicle", "vowel", "satellite", "letter", "mfeat", "isolet")
SEEDS = (0, 1, 2)
WIDE = 500  # from so many features on, one seed: a tuple costs their square

#: The best in docs/repro/all.md of each kind: triplets, lists, pairs, low rank.
ONLINE = ("OASIS", "AROMA", "ListwiseSoftmax", "PAMetric", "LEGO", "Loreta")
N_TUPLES = 20_000
N_TEST = 1_500

#: Small enough for MMC and SCML.
SMALL = ("iris", "wine", "glass", "vehicle", "vowel")
#: What metric-learn has and simstream has not, with its defaults. Not SDML, which calls graphical_lasso with
#: an argument that scikit-learn 1.7 has not, nor MLKR, a regression that takes long for vehicle.
OTHERS = {
    "LFDA": ("LFDA", {}),
    "LSML": ("LSML_Supervised", {"random_state": 0}),
    "MMC": ("MMC_Supervised", {"random_state": 0}),
    "SCML": ("SCML_Supervised", {"random_state": 0}),
}


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


def scored(learner, A, a, B, b, seed):
    """MAP of the test items after learning from tuples that are drawn from labels, and CPU seconds."""
    from simstream import FromLabels

    n = 2_000 if "n_relevant" in learner.get_params(deep=False) else N_TUPLES  # lists say more
    begun = time.process_time()
    model = FromLabels(learner, n_tuples=n, random_state=seed).fit(A, a)
    return model.score(B, b), time.process_time() - begun


def labels(data):
    """One row of the table for every data set."""
    import simstream
    from simstream import LDA, NCA, OASIS, RCA, Mahalanobis
    from simstream.metrics import mean_average_precision

    closed = {
        "LDA": LDA(),
        "LDA, cosine": LDA(normalise=True),
        "LDA, equal weights": LDA(weights="equal"),
        "RCA": RCA(),
        "RCA, shrunk, between": RCA(shrinkage="auto", weights="between"),
        "NCA": NCA(random_state=0),
    }
    begun_there = 'OASIS, init="lda"'
    names = ["nothing learnt", "best online learner", "OASIS", begun_there, *closed]
    yield ["", *names, "seconds: LDA", "seconds: best online"]
    yield ["---"] * (len(names) + 3)
    for name in data:
        found = {key: [] for key in names}
        ranked, seconds = {}, {}
        for seed in SEEDS:
            A, a, B, b = split(name, seed)
            if seed and A.shape[1] >= WIDE:
                break
            found["nothing learnt"].append(
                mean_average_precision(Mahalanobis(np.eye(A.shape[1])), B, b)
            )
            for key in ONLINE:
                options = {"n_relevant": 10} if key == "ListwiseSoftmax" else {}
                learner = getattr(simstream, key)(**options)
                try:
                    value, took = scored(learner, A, a, B, b, seed)
                except simstream.DivergedError:
                    value, took = 0.0, np.nan  # never the best
                ranked.setdefault(key, []).append(value)
                seconds.setdefault(key, []).append(took)
            found["OASIS"] = ranked["OASIS"]
            found[begun_there].append(scored(OASIS(init="lda", centre="auto"), A, a, B, b, seed)[0])
            for key, learner in closed.items():
                n_classes = len(np.unique(a))
                model = clone(learner)
                if key == "NCA":
                    model.set_params(n_components=min(n_classes - 1, A.shape[1]))
                    if len(A) > 2_000:  # its cost is the square of that
                        continue
                begun = time.process_time()
                model.fit(A, a)
                seconds.setdefault(key, []).append(time.process_time() - begun)
                found[key].append(mean_average_precision(model, B, b))
        means = {key: float(np.mean(values)) for key, values in ranked.items()}
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


# -- learners of metric-learn -----------------------------------------------------------------------


def others(data):
    """One row for each learner: MAP and 3-NN error of held-out items."""
    from simstream import ITML, LDA, LMNN, NCA, Mahalanobis
    from simstream.metrics import mean_average_precision

    ours = {
        "nothing learnt": None,
        "LDA": LDA(),
        "ITML": ITML(random_state=0),
        "LMNN": LMNN(),
        "NCA": NCA(random_state=0),
    }

    def measured(learner, name):
        """MAP, 3-NN error and seconds of learning: means of the splits; None where one cannot be learnt."""
        found = []
        for seed in SEEDS:
            A, a, B, b = split(name, seed)
            codes = np.unique(a, return_inverse=True)[1]
            begun = time.process_time()
            if learner in OTHERS:
                peer, options = OTHERS[learner]
                answer = ask_peer(learner="supervised", name=peer, options=options, X=A, y=codes)
                if "error" in answer:
                    print(learner, name, answer["error"][:100], flush=True)
                    return None
                L, seconds = np.array(answer["components"]), answer["seconds"]
            else:
                model = ours[learner]
                L = np.eye(A.shape[1]) if model is None else clone(model).fit(A, a).components_
                seconds = time.process_time() - begun
            space = Mahalanobis(np.eye(len(L)))
            nearest = KNeighborsClassifier(3).fit(A @ L.T, a)
            ranked = mean_average_precision(space, B @ L.T, b)
            print(learner, name, seed, f"{ranked:.3f}", f"{seconds:.1f} s", flush=True)
            found.append((ranked, 1 - nearest.score(B @ L.T, b), seconds))
        return np.mean(found, axis=0)

    yield ["", *data, "seconds, all splits"]
    yield ["---"] * (len(data) + 2)
    table = {key: [measured(key, name) for name in data] for key in (*ours, *OTHERS)}
    for key, means in table.items():
        cells = []
        for column, value in enumerate(means):
            column = [row[column] for row in table.values() if row[column] is not None]
            cells.append("fails" if value is None else _marked(value, np.array(column)))
        took = sum(value[2] * len(SEEDS) for value in means if value is not None)
        yield [key, *cells, f"{took:.2g}" if ours.get(key, key) is not None else ""]


def _marked(value, column):
    """MAP and error, bold where no learner has a better one."""
    ranked, error = f"{value[0]:.3f}", f"{value[1]:.3f}"
    ranked = f"**{ranked}**" if ranked == f"{column[:, 0].max():.3f}" else ranked
    error = f"**{error}**" if error == f"{column[:, 1].min():.3f}" else error
    return f"{ranked} / {error}"


# -- answers ----------------------------------------------------------------------------------------


def answers(_):
    """One row for each learner: accuracy on held-out answers, by how many answers were learnt from."""
    from simstream import OASIS, ListwiseSoftmax, OrdinalEmbedding, datasets

    shoes = datasets.load("zappos")
    X = np.asarray(shoes.items, np.float64)
    X = X - X.mean(axis=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    u, lengths, _ = np.linalg.svd(X, full_matrices=False)
    X = (u * lengths)[:, lengths > 1e-9 * lengths[0]]  # the same inner products, fewer features
    T = np.asarray(shoes.triplets)
    order = np.random.default_rng(0).permutation(len(T))
    sizes = (1_000, 10_000, len(T) // 2)
    contenders = {
        "features as they are": None,
        "features, OASIS": OASIS(preprocessor=X),
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
            train, test = T[order[:n]], T[order[len(T) // 2 :]]
            begun = time.process_time()
            if model is None:
                anchor, near, far = test.T
                accuracy = np.mean((X @ X.T)[anchor, near] > (X @ X.T)[anchor, far])
            else:
                accuracy = clone(model).fit(train).score(test)
            cells.append(f"{accuracy:.3f}")
        print(name, *cells, flush=True)
        took = time.process_time() - begun
        yield [name, *cells, "" if model is None else f"{took:.2g}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them by default")
    parser.add_argument("--data", nargs="+", help="data sets instead of the usual ones")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    cases = {"labels": (labels, DATA), "others": (others, SMALL), "answers": (answers, None)}
    for name in arguments.cases or CASES:
        case, data = cases[name]
        if arguments.write:
            check_marks(parser, PAGE, MARKS[name])
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list(case(arguments.data or data))
        text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        print(text)
        if arguments.write:
            put_between(PAGE, MARKS[name], f"{text}\n\nMeasured on {machine()}.")


if __name__ == "__main__":
    main()
