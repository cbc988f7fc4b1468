"""Measure the pair and batch learners against metric-learn, eager NumPy and the papers' own ratios.

    python benchmarks/bench_peers.py                 all cases, a table on the terminal
    python benchmarks/bench_peers.py itml pa_end     these cases only
    python benchmarks/bench_peers.py --write         the same, and docs/benchmarks-peers.md
    python benchmarks/bench_peers.py --quick         a smoke run: every case, small, nothing judged

metric-learn runs in an environment of its own (`make bench-peers` builds it). Every case runs in a process
of its own, and so does every fit of metric-learn. What is compared takes turns on one machine, three times
or more; ratios are those of medians, in CPU seconds: the same as seconds on an idle machine, and still
comparable on a busy one. All sides use as many BLAS threads as --threads says, one by default:
on a shared machine two threads that wait for each other make small products many times slower, which would
be noise on both sides. With SIMSTREAM_DATA pointing to a folder with nist16.csv.gz the real data are used,
otherwise synthetic data of the same shape.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from bench_common import ROOT, machine, table
from simstream_repro import reference

PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

PUBLISHED = {"PA-I": (480.23, 10.13), "PALS": (2007.20, 34.06)}  # seconds on nist16: + and -
LOW_RANK = 85  # a third of nist16's features


# -- measuring -------------------------------------------------------------------------------------


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def seconds_of(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def taking_turns(functions, repeats):
    """Seconds of every function in every round; a function may return its own seconds."""
    seconds = {name: [] for name in functions}
    for number in range(1, repeats + 1):
        for name, function in functions.items():
            start = time.process_time()
            own = function()
            seconds[name].append(time.process_time() - start if own is None else own)
        say(f"round {number} of {repeats}: " + _last(seconds))
    return seconds


def _last(seconds):
    return ", ".join(f"{name} {values[-1]:.4g} s" for name, values in seconds.items())


def relative_difference(a, b):
    """Largest difference of two arrays, relative to the largest number of the second."""
    return float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())


def ask_peer(**request):
    """What metric-learn says; arrays may be part of the request."""
    listed = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in request.items()}
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(listed))
        script = ROOT / "benchmarks" / "peer_metric_learn.py"
        subprocess.run([PEER_PYTHON, "-W", "ignore", script, question, answer], check=True)
        return json.loads(answer.read_text())


# -- data ------------------------------------------------------------------------------------------


def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16, y


def nist16():
    """Items, labels, and where they come from."""
    folder = os.environ.get("SIMSTREAM_DATA")
    if folder and (Path(folder) / "nist16.csv.gz").exists():
        from simstream.data import read_items

        data = read_items(Path(folder) / "nist16.csv.gz", label_column=-1)
        return data.items, data.labels, "nist16"
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 200)
    strokes = rng.normal(size=(40, 256)) / 4  # ink lies along few directions, noise everywhere
    X = rng.normal(size=(10, 40))[y] @ strokes + rng.normal(size=(2000, 40)) @ strokes
    return np.clip(X + rng.normal(size=X.shape) / 4, -3, 3), y, "synthetic data (nist16's shape)"


class Stream:
    """The protocol of the PA paper: a training half, features to [0, 1], r pairs over and over."""

    def __init__(self):
        items, labels, self.source = nist16()
        rng = np.random.default_rng(0)
        half = rng.permutation(len(items))[: len(items) // 2]
        X, y = np.asarray(items, float)[half], np.asarray(labels)[half]
        low, high = X.min(axis=0), X.max(axis=0)
        self.X = (X - low) / np.where(high > low, high - low, 1)

        from simstream import PairSampler

        n, c = len(items), len(np.unique(y))
        self.r = 40 * c * (c - 1)
        pairs, labels = PairSampler(y, 0, similar_share=None).draw_distinct(self.r)
        order = rng.permutation(self.r)
        self.steps = max(2 * self.r, min(n * (n - 2) // 40, 50 * self.r))
        cycle = order[np.arange(self.steps) % self.r]
        self.pairs, self.y = pairs[cycle], labels[cycle]

    def vectors(self, begin, end):
        """What eager loops read: a list of (v, y)."""
        V = self.X[self.pairs[begin:end, 0]] - self.X[self.pairs[begin:end, 1]]
        return [(v, float(y)) for v, y in zip(V, self.y[begin:end], strict=True)]

    def part(self, begin, end):
        return self.pairs[begin:end], self.y[begin:end]


# -- eager NumPy -----------------------------------------------------------------------------------


def in_place_pa(M, b, stream, C, variant):
    """The strongest eager loop we could write: lengths known beforehand, M changed in place by BLAS."""
    from scipy.linalg.blas import dger

    M = np.array(M, order="F")
    inverse = {"PA-I": 0.0, "PA-II": 1 / (2 * C), "PALS": 1 / (2 * C)}[variant]
    longest, any_sign = (C if variant == "PA-I" else np.inf), variant == "PALS"
    V = np.array([v for v, _ in stream])
    K = (1 + np.einsum("ij,ij->i", V, V) ** 2 + inverse).tolist()
    for (v, y), k in zip(stream, K, strict=True):
        p = 1 - y * (b - v @ M @ v)
        if p > 0 or any_sign:
            tau = min(longest, p / k)
            dger(-tau * y, v, v, a=M, overwrite_a=1)
            b += tau * y
    return M, b


# -- cases -----------------------------------------------------------------------------------------


def case_itml(quick):
    """The same sweeps over the same constraints. metric-learn visits similar pairs first: so do we."""
    from simstream import ITML, PairSampler

    X, y = digits()
    sweeps, repeats, gamma = (3, 1, 1.0) if quick else (100, 3, 1.0)
    pairs, labels = PairSampler(y, 0, similar_share=None).draw_distinct(3600)
    order = np.argsort(-labels, kind="stable")
    pairs, labels = pairs[order], labels[order]
    V = X[pairs[:, 0]] - X[pairs[:, 1]]
    bounds = np.percentile(np.einsum("ij,ij->i", V, V), (5, 95))

    def ours(n):
        model = ITML(gamma, lower=bounds[0], upper=bounds[1], max_iter=n, tol=0, preprocessor=X)
        return model.fit_pairs(pairs, labels)

    ours(1)  # compile
    answers = []

    def theirs():
        answers.append(
            ask_peer(
                learner="itml",
                X=X,
                pairs=pairs,
                labels=labels,
                bounds=bounds,
                gamma=gamma,
                sweeps=sweeps,
            )
        )
        return answers[-1]["seconds"]

    seconds = taking_turns(
        {"ours": lambda: seconds_of(lambda: ours(sweeps)), "metric-learn": theirs}, repeats
    )
    model = ours(sweeps)
    assert model.n_iter_ == answers[-1]["sweeps"] == sweeps
    visits = sweeps * len(pairs)
    return {
        "seconds": seconds,
        "pairs": len(pairs),
        "sweeps": sweeps,
        "gamma": gamma,
        "ours_us_a_visit": 1e6 * median(seconds["ours"]) / visits,
        "theirs_us_a_visit": 1e6 * median(seconds["metric-learn"]) / visits,
        "ratio": median(seconds["metric-learn"]) / median(seconds["ours"]),
        "difference": relative_difference(
            model.get_mahalanobis_matrix(), np.array(answers[-1]["matrix"])
        ),
        "peer": answers[-1]["versions"],
    }


class _Reached(Exception):
    pass


def lmnn_case(learn_rate, quick, repeats):
    """Time until our solver reaches our objective at metric-learn's solution."""
    from simstream import LMNN
    from simstream.batch.lmnn import lmnn_objective_and_gradient, target_neighbors

    X, y = digits()
    if quick:
        X, y, repeats = X[:500], y[:500], 1
    targets = target_neighbors(X, y, 3)
    LMNN(max_iter=3).fit(X[:300], y[:300])  # compile
    goal, answers, iterations = [np.nan], [], []

    def theirs():
        answers.append(
            ask_peer(
                learner="lmnn",
                X=X,
                y=y,
                k=3,
                learn_rate=learn_rate,
                max_iter=30 if quick else 1000,
            )
        )
        L = np.array(answers[-1]["components"])
        goal[0] = lmnn_objective_and_gradient(L, X, targets, y, 0.5)[0]
        return answers[-1]["seconds"]

    def ours():
        def watch(iteration, objective):
            if objective <= goal[0]:
                iterations.append(iteration)
                raise _Reached

        try:
            LMNN(3, 0.5, max_iter=20_000, tol=0, patience=20_000, callback=watch).fit(X, y)
        except _Reached:
            return
        raise AssertionError("the objective of metric-learn was not reached")

    seconds = taking_turns({"metric-learn": theirs, "ours": ours}, repeats)
    return {
        "seconds": seconds,
        "learn_rate": learn_rate,
        "objective": goal[0],
        "ratio": median(seconds["metric-learn"]) / median(seconds["ours"]),
        "iterations": {"ours": iterations[-1], "metric-learn": answers[-1]["iterations"]},
        "peer": answers[-1]["versions"],
    }


def case_lmnn(quick):
    return lmnn_case(4e-4, quick, 3)


def case_lmnn_default(quick):
    return lmnn_case(1e-7, quick, 1)


def pa(stream, C, variant, projection):
    from simstream import PAMetric

    return PAMetric(C, variant=variant, projection=projection, preprocessor=stream.X)


def case_pa_end(quick):
    """The - versions: the first two passes, and the whole stream. Learning only, without the projection."""
    stream = Stream()
    d = stream.X.shape[1]
    out = {"source": stream.source, "steps": stream.steps, "r": stream.r, "runs": []}
    pa(stream, 0.1, "PA-I", "end").fit(*stream.part(0, 600))  # compile
    for C in (0.1,) if quick else (0.1, 0.001):
        for variant in ("PA-I", "PA-II", "PALS"):
            run = {"variant": variant, "C": C}
            for label, n in (("passes", 2 * stream.r), ("whole", stream.steps)):
                n = n // 24 if quick else n
                say(f"{variant}-, C = {C}, {n} steps")
                steps, results = stream.vectors(0, n), {}

                def ours(n=n, C=C, variant=variant, results=results):
                    results["ours"] = pa(stream, C, variant, "end").fit(*stream.part(0, n))

                def textbook(steps=steps, C=C, variant=variant, results=results):
                    results["textbook"] = reference.pa_metric.last(
                        np.zeros((d, d)), steps, C, variant
                    )

                def in_place(steps=steps, C=C, variant=variant):
                    in_place_pa(np.zeros((d, d)), 0.0, steps, C, variant)

                repeats = 5 if label == "passes" else 3
                if quick or (label == "whole" and variant == "PALS"):
                    repeats = 1  # every step changes M: half a minute
                seconds = taking_turns(
                    {"ours": ours, "textbook": textbook, "in place": in_place}, repeats
                )
                middle = {k: median(v) for k, v in seconds.items()}
                model = results["ours"]
                run[label] = {
                    "seconds": seconds,
                    "us_a_step": {k: 1e6 * v / n for k, v in middle.items()},
                    "updates": model.n_updates_ / n,
                    "ratio": middle["textbook"] / middle["ours"],
                    "ratio_in_place": middle["in place"] / middle["ours"],
                    "difference": relative_difference(
                        model.get_mahalanobis_matrix(),
                        reference.positive_part(results["textbook"][0]),
                    ),
                }
            out["runs"].append(run)
    return out


def gemm_seconds(rank, d, repeats=7):
    """Seconds of the product of a (rank x rank) with a (rank x d) matrix, the median of several."""
    rng = np.random.default_rng(rank)
    left, right, product = rng.random((rank, rank)), rng.random((rank, d)), np.empty((rank, d))
    few = max(1, int(2e6 / (rank * rank * d / 8 + 1e4)))
    times = [
        seconds_of(lambda: [np.dot(left, right, out=product) for _ in range(few)]) / few
        for _ in range(repeats)
    ]
    return median(times)


def case_pa_every_step(quick):
    """The + versions against a full eigendecomposition after every change."""
    stream = Stream()
    d, C, repeats = stream.X.shape[1], 0.1, 1 if quick else 5
    warm_up, later = (800, 20) if quick else (2 * stream.r, 200)
    out = {"source": stream.source, "C": C, "runs": []}
    pa(stream, C, "PA-I", "every-step").fit(*stream.part(0, 20))  # compile
    for variant in ("PA-I", "PALS"):
        say(f"{variant}+, C = {C}")
        # A walk, not timed: the rank after every pair, until it reaches a third of the features.
        walker, ranks, changed = pa(stream, C, variant, "every-step"), [0], []
        while ranks[-1] < (20 if quick else LOW_RANK) and len(ranks) < 4000:
            t, before = len(ranks) - 1, walker.n_updates_ if len(ranks) > 1 else 0
            walker.partial_fit(*stream.part(t, t + 1))
            changed.append(walker.n_updates_ > before)
            ranks.append(walker.effective_dimension_)
        n = len(changed)
        product = sum(gemm_seconds(max(ranks[t], ranks[t + 1]), d) for t in range(n) if changed[t])
        state = pa(stream, C, variant, "every-step").fit(*stream.part(0, warm_up))
        M, b = state.get_mahalanobis_matrix(), state.threshold_
        run = {"variant": variant, "parts": {}}

        def start(part, state=state, variant=variant):
            if part[0]:
                return copy.deepcopy(state)
            learner = pa(stream, C, variant, "every-step")
            learner.prepare()
            return learner

        for label, part in (("low rank", (0, n)), ("full rank", (warm_up, warm_up + later))):
            eager_steps, results = stream.vectors(*part), {}

            def ours(part=part, start=start, results=results):
                learner = results["ours"] = start(part)
                results["before"] = learner.n_updates_
                return seconds_of(lambda: learner.partial_fit(*stream.part(*part)))

            first = (M, b) if part[0] else (np.zeros((d, d)), 0.0)

            def eager(first=first, steps=eager_steps, results=results, variant=variant):
                results["eager"] = reference.pa_metric.last(
                    first[0], steps, C, variant, every_step=True, b=first[1]
                )

            def needed(first=first, steps=eager_steps, variant=variant):
                reference.pa_metric.last(
                    first[0], steps, C, variant, every_step=True, b=first[1], only_down=True
                )

            seconds = taking_turns(
                {"ours": ours, "eigh": eager, "eigh where needed": needed}, repeats
            )
            learner = results["ours"]
            updates = learner.n_updates_ - results["before"]
            rank = learner.effective_dimension_
            bound = product if label == "low rank" else updates * gemm_seconds(rank, d)
            middle = {k: median(v) for k, v in seconds.items()}
            run["parts"][label] = {
                "seconds": seconds,
                "steps": part[1] - part[0],
                "updates": updates,
                "rank": rank,
                "us_a_change": {k: 1e6 * v / updates for k, v in middle.items()},
                "product_us_a_change": 1e6 * bound / updates,
                "ratio": middle["eigh"] / middle["ours"],
                "ratio_needed": middle["eigh where needed"] / middle["ours"],
                "difference": relative_difference(
                    learner.get_mahalanobis_matrix(), results["eager"][0]
                ),
            }
        run["idle"] = idle_steps(stream, start, warm_up, 300, d, M, b, repeats)
        out["runs"].append(run)
    return out


def idle_steps(stream, start, begin, n, d, M, b, repeats):
    """Microseconds of a step at full rank that changes nothing (PALS has none), ours and eager."""
    steps = stream.vectors(begin, begin + n)
    chosen = [t for t, (v, y) in enumerate(steps) if 1 - y * (b - v @ M @ v) <= -1e-6]
    learner = start((begin, begin + n))
    if learner.variant == "PALS" or not chosen:
        return None
    pairs, y = (array[chosen] for array in stream.part(begin, begin + n))
    before = learner.n_updates_
    few = [steps[t] for t in chosen]
    seconds = taking_turns(
        {
            "ours": lambda: learner.partial_fit(pairs, y) and None,
            "eager": lambda: reference.pa_metric.last(M, few, 0.1, "PA-I", b=b) and None,
        },
        repeats,
    )
    assert learner.n_updates_ == before
    return {k: 1e6 * median(v) / len(chosen) for k, v in seconds.items()}


def case_plus_minus(quick):
    """What + costs over -, each with all it does until its metric can be read."""
    stream = Stream()
    C, repeats, n = 0.1, 1 if quick else 3, 500 if quick else 2 * stream.r
    out = {"source": stream.source, "C": C, "steps": stream.steps, "n": n, "runs": []}

    def learn(variant, projection, n):
        def run():
            pa(stream, C, variant, projection).fit(*stream.part(0, n)).get_mahalanobis_matrix()

        return run

    for projection in ("end", "every-step"):
        learn("PA-I", projection, 200)()  # compile
    for variant in ("PA-I", "PALS"):
        say(f"{variant}+ and {variant}-, C = {C}, {n} steps")
        seconds = taking_turns(
            {"-": learn(variant, "end", n), "+": learn(variant, "every-step", n)}, repeats
        )
        run = {
            "variant": variant,
            "seconds": seconds,
            "ratio": median(seconds["+"]) / median(seconds["-"]),
            "published_ratio": PUBLISHED[variant][0] / PUBLISHED[variant][1],
        }
        if not quick:
            say(f"{variant}: the whole stream, {stream.steps} steps (minutes)")
            whole = taking_turns(
                {
                    "-": learn(variant, "end", stream.steps),
                    "+": learn(variant, "every-step", stream.steps),
                },
                1,
            )
            run["whole"] = {k: v[0] for k, v in whole.items()}
            run["whole_ratio"] = run["whole"]["+"] / run["whole"]["-"]
        out["runs"].append(run)
    return out


def case_lego(quick):
    """Blocks, one at a time, and eager NumPy."""
    from simstream import LEGO

    stream = Stream()
    repeats, n, eta = (1, 600, 0.1) if quick else (5, stream.r, 0.1)
    few = stream.vectors(0, n)
    squared = np.array([v @ v for v, _ in few])
    targets = np.percentile(squared, (5, 95))
    results = {}

    def ours(block_size):
        model = LEGO(
            eta, lower=targets[0], upper=targets[1], block_size=block_size, preprocessor=stream.X
        )
        return model.fit(*stream.part(0, n))

    def eager():
        start = np.eye(stream.X.shape[1])
        results["eager"] = reference.lego.last(start, few, eta, targets)

    ours(None), ours(1)  # compile
    seconds = taking_turns(
        {
            "blocks": lambda: ours(None) and None,
            "singly": lambda: ours(1) and None,
            "eager": eager,
        },
        repeats,
    )
    model = ours(None)
    return {
        "source": stream.source,
        "seconds": seconds,
        "steps": n,
        "updates": model.n_updates_ / n,
        "us_a_step": {k: 1e6 * median(v) / n for k, v in seconds.items()},
        "ratio": median(seconds["eager"]) / median(seconds["blocks"]),
        "ratio_singly": median(seconds["singly"]) / median(seconds["blocks"]),
        "difference": relative_difference(model.get_mahalanobis_matrix(), results["eager"]),
    }


def case_rca(quick):
    """The same chunklets: the classes. Pixels that never vary inside a class are left out on both sides."""
    from simstream import RCA

    X, y = digits()
    inside = X - np.array([X[y == c].mean(axis=0) for c in range(10)])[y]
    X = np.ascontiguousarray(X[:, inside.std(axis=0) > 1e-6])
    answers = []

    def theirs():
        answers.append(ask_peer(learner="rca", X=X, chunks=y, repeats=5))
        return answers[-1]["seconds"]

    def ours():
        model = RCA(regularization=0)
        return min(seconds_of(lambda: model.fit_chunklets(X, y)) for _ in range(5))

    seconds = taking_turns({"ours": ours, "metric-learn": theirs}, 1 if quick else 3)
    matrix = RCA(regularization=0).fit_chunklets(X, y).get_mahalanobis_matrix()
    return {
        "seconds": seconds,
        "features": X.shape[1],
        "ratio": median(seconds["metric-learn"]) / median(seconds["ours"]),
        "difference": relative_difference(matrix, np.array(answers[-1]["matrix"])),
        "peer": answers[-1]["versions"],
    }


def case_mcml(quick):
    """metric-learn has no MCML: objective and gradient against whole matrices in NumPy."""
    from simstream import MCML
    from simstream.batch.mcml import mcml_objective_and_gradient

    X, y = digits()
    if quick:
        X, y = X[:500], y[:500]
    A, results = np.eye(X.shape[1]), {}

    def ours():
        results["ours"] = mcml_objective_and_gradient(A, X, y)

    def eager():
        results["eager"] = reference.mcml(A, X, y)

    seconds = taking_turns({"ours": ours, "eager": eager}, 1 if quick else 5)
    fit = MCML(max_iter=10 if quick else 100)
    fit_seconds = seconds_of(lambda: fit.fit(X, y))
    return {
        "seconds": seconds,
        "ratio": median(seconds["eager"]) / median(seconds["ours"]),
        "difference": relative_difference(results["ours"][1], results["eager"][1]),
        "objectives": [results["ours"][0], results["eager"][0]],
        "fit_seconds": fit_seconds,
        "fit_iterations": fit.n_iter_,
        "fit_objective": [float(fit.history_[0]), float(fit.objective_)],
    }


CASES = {
    name[5:]: function for name, function in list(globals().items()) if name.startswith("case_")
}
WITH_PEER = ("itml", "lmnn", "lmnn_default", "rca")


# -- the table -------------------------------------------------------------------------------------


def rows(results):
    """Lines of the table: work, measured, must reach, reached (None: information)."""
    r = results
    if "itml" in r:
        x = r["itml"]
        yield (
            f"ITML, digits, {x['pairs']:,} pairs, {x['sweeps']} sweeps, against metric-learn",
            f"{x['ours_us_a_visit']:.2f} against {x['theirs_us_a_visit']:.1f} us a visit of a pair: "
            f"{x['ratio']:.1f}x; matrices differ by {x['difference']:.0e}",
            ">= 10x",
            x["ratio"] >= 10 and x["difference"] < 1e-8,
        )
    for name in ("lmnn", "lmnn_default"):
        if name in r:
            x = r[name]
            n = x["iterations"]
            ours, theirs = (median(x["seconds"][k]) for k in ("ours", "metric-learn"))
            note = "" if name == "lmnn" else " (its default; one run)"
            yield (
                f"LMNN, digits, k = 3, to the same objective, against metric-learn with "
                f"learn_rate = {x['learn_rate']:g}{note}",
                f"{ours:.2f} s ({n['ours']} iterations) against {theirs:.1f} s ({n['metric-learn']}): "
                f"{x['ratio']:.1f}x; objective {x['objective']:,.1f}",
                ">= 5x" if name == "lmnn" else "",
                x["ratio"] >= 5 if name == "lmnn" else None,
            )
    if "pa_end" in r:
        x = r["pa_end"]
        for run in x["runs"]:
            p, w = run["passes"], run["whole"]
            yield (
                f"{run['variant']}-, {x['source']}, C = {run['C']:g}, against textbook NumPy: the whole "
                f"stream of {x['steps']:,} steps (its first two passes)",
                f"{w['us_a_step']['ours']:.1f} against {w['us_a_step']['textbook']:.0f} us a step: "
                f"{w['ratio']:.1f}x ({p['us_a_step']['ours']:.1f} against "
                f"{p['us_a_step']['textbook']:.0f}: {p['ratio']:.1f}x); in place with BLAS: "
                f"{w['ratio_in_place']:.1f}x ({p['ratio_in_place']:.1f}x); {w['updates']:.0%} "
                f"({p['updates']:.0%}) of steps change M; matrices differ by {w['difference']:.0e}",
                ">= 10x",
                w["ratio"] >= 10,
            )
    if "pa_every_step" in r:
        x = r["pa_every_step"]
        for run in x["runs"]:
            for label, p in run["parts"].items():
                low = label == "low rank"
                where = f"until rank {p['rank']}" if low else f"at rank {p['rank']}"
                us, bound = p["us_a_change"]["ours"], p["product_us_a_change"]
                yield (
                    f"{run['variant']}+, {x['source']}, C = {x['C']:g}, {where}, against `eigh` "
                    "after every change",
                    f"{us:,.0f} against {p['us_a_change']['eigh']:,.0f} us a change: {p['ratio']:.1f}x "
                    f"(`eigh` only where it is needed: {p['ratio_needed']:.1f}x); the product alone "
                    f"takes {bound:,.0f} us, {us / bound:.1f} times less",
                    ">= 8x" if low else "",
                    p["ratio"] >= 8 if low else None,
                )
    if "plus_minus" in r:
        x = r["plus_minus"]
        for run in x["runs"]:
            plus, minus = (median(run["seconds"][k]) for k in "+-")
            whole = ""
            if "whole" in run:
                w = run["whole"]
                whole = (
                    f"; all {x['steps']:,} steps, once: {w['+']:.0f} against {w['-']:.2f} s, "
                    f"{run['whole_ratio']:.0f}x"
                )
            seconds = PUBLISHED[run["variant"]]
            yield (
                f"{run['variant']}+ against {run['variant']}-, {x['source']}, C = {x['C']:g}, "
                f"{x['n']:,} steps",
                f"{plus:.2f} against {minus:.3f} s: {run['ratio']:.0f}x{whole} (published: "
                f"{seconds[0]:,.0f} against {seconds[1]:.0f} s, {run['published_ratio']:.0f}x)",
                "",
                None,
            )
    if "lego" in r:
        x = r["lego"]
        us = x["us_a_step"]
        yield (
            f"LEGO, {x['source']}, {x['steps']:,} steps: blocks against one at a time / textbook NumPy",
            f"{us['blocks']:.1f} against {us['singly']:.1f} / {us['eager']:.0f} us a step: "
            f"{x['ratio_singly']:.1f}x / {x['ratio']:.1f}x; {x['updates']:.0%} of steps change M; "
            f"matrices differ by {x['difference']:.0e}",
            "",
            None,
        )
    if "rca" in r:
        x = r["rca"]
        ours, theirs = (1e3 * median(x["seconds"][k]) for k in ("ours", "metric-learn"))
        yield (
            f"RCA, digits ({x['features']} pixels that vary), against metric-learn",
            f"{ours:.1f} against {theirs:.1f} ms: {x['ratio']:.1f}x; matrices differ by "
            f"{x['difference']:.0e}",
            "",
            None,
        )
    if "mcml" in r:
        x = r["mcml"]
        ours, theirs = (median(x["seconds"][k]) for k in ("ours", "eager"))
        yield (
            "MCML, digits, objective and gradient, against whole matrices in NumPy (metric-learn has none)",
            f"{ours:.2f} against {theirs:.2f} s: {x['ratio']:.1f}x; gradients differ by "
            f"{x['difference']:.0e}; a fit: {x['fit_seconds']:.1f} s, {x['fit_iterations']} iterations",
            "",
            None,
        )


def timed_rows(results):
    """The same lines, each with the clock it was timed by; records that name none are of seconds on the wall."""
    for name, found in results.items():
        clock = found.get("clock", "wall")
        for work, *others in rows({name: found}):
            yield (f"{work}, {clock} seconds", *others)


def limits(results):
    """What limits each, with the numbers of this run."""
    r = results
    if "itml" in r:
        x = r["itml"]
        flops = 6 * 64**2 / x["ours_us_a_visit"] / 1e3
        yield (
            "**ITML.** A visit of a pair reads and writes the (64 x 64) matrix, which stays in the nearest "
            f"cache: {flops:.0f} GFLOP/s. metric-learn pays NumPy's price of about a dozen calls, and a "
            "new (d x d) array, per visit. It visits similar pairs first, so the pairs were given to both "
            "in that order: the two run the same steps, and its bounds, which are percentiles of plain "
            "distances by default, were set to the same squared ones."
        )
    if "lmnn" in r:
        yield (
            "**LMNN.** Both take gradient steps on L, halved when the objective rises. Ours starts with a step "
            "of the gradient's own scale, and looks for impostors among a list of near pairs that stays "
            "valid for several steps; metric-learn searches all pairs, and counts edges in a Python "
            "dictionary, at every step. Compiling is not part of the time. The objective is ours, at "
            "metric-learn's L; its `regularization` of 0.5 weighs pull and push alike, as mu = 0.5 does."
        )
    if "pa_end" in r:
        runs = r["pa_end"]["runs"]
        shares = [run["whole"]["updates"] for run in runs if run["variant"] != "PALS"]
        yield (
            "**PA-.** In blocks a step costs 2 d^2 flops for its distance, a share of the block's Gram matrix, "
            "and as much again only if it changes M. A textbook step that changes nothing makes one product "
            "of M and v and no array, and over the whole stream PA-I and PA-II come to rest: "
            f"{min(shares):.0%} to {max(shares):.0%} of the steps change M. What is left to gain there is the "
            "difference between a matrix-vector product in cache and a matrix product, a few times, and not "
            "the allocation of three (d x d) arrays that a textbook change costs; PALS changes M at every "
            "step. Learning only: neither side's time has the projection at the end."
        )
    if "pa_every_step" in r:
        x = r["pa_every_step"]["runs"]
        p = x[-1]["parts"]["full rank"]
        idle = x[0]["idle"]
        text = (
            "**PA+.** Up to a third of d the matrix is kept in its eigenvectors: a step that changes M solves a "
            "secular equation and makes one product of (rank x rank) with (rank x d). Beyond, it is kept in full: "
            "a step up costs rank-one updates, a step down some tens of products of a matrix and a vector, where "
            f"that one product would take {p['product_us_a_change']:,.0f} us a step. `eigh` is not needed for "
            "changes that add a positive part: the ratio in brackets is against a loop that knows."
        )
        if idle:
            text += (
                f" A step that changes nothing takes {idle['ours']:.0f} us at full rank (eager NumPy: "
                f"{idle['eager']:.0f} us): one product of M and v."
            )
        yield text
    if "plus_minus" in r:
        text = "**+ against -.** In blocks the steps of - are cheap, while + must go one pair at a time."
        gains = [
            f"{run['variant']}+ {PUBLISHED[run['variant']][0] / run['whole']['+']:.0f}x and "
            f"{run['variant']}- {PUBLISHED[run['variant']][1] / run['whole']['-']:.0f}x"
            for run in r["plus_minus"]["runs"]
            if "whole" in run
        ]
        if gains:
            text += (
                " Against the published seconds (other hardware, the paper's own C) the whole stream takes "
                f"fewer: {', '.join(gains)}."
            )
        yield text
    if "lego" in r:
        yield (
            "**LEGO.** A block's recursion costs B^3 besides its products; one at a time, a step that changes "
            "nothing costs one product of M and v."
        )
    if "rca" in r:
        yield "**RCA.** Sums over chunklets and two small eigendecompositions: milliseconds on both sides."
    if "mcml" in r:
        yield (
            "**MCML.** (n x n) exponentials and three products of (n x n) with (n x d); ours goes by "
            "slices instead of whole matrices."
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[], help="default: all")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/benchmarks-peers.md; cases not named keep its numbers",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: small, nothing judged")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of all sides")
    parser.add_argument(
        "--save",
        type=Path,
        help="keep raw results in this JSON file; cases it has are not run again",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="run one case here and print JSON"
    )
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write: a smoke run is not worth a page, leave out --quick")
    if options.in_process:
        print(json.dumps(CASES[options.cases[0]](options.quick), default=float))
        return
    # lmnn_default differs from lmnn in one number: not worth a smoke run's seconds
    everything = [name for name in CASES if not (options.quick and name == "lmnn_default")]
    cases = options.cases or everything
    if not PEER_PYTHON.exists() and any(name in WITH_PEER for name in cases):
        parser.error(
            f"{PEER_PYTHON.relative_to(ROOT)} is missing, expected an environment with metric-learn: run "
            f"`make {PEER_PYTHON.relative_to(ROOT).parts[0]}/.installed`, or choose other cases than "
            f"{', '.join(WITH_PEER)}"
        )
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(options.threads))}
    results = earlier() if options.cases and options.write else {}
    for name in options.cases:
        results.pop(name, None)
    if options.save and options.save.exists():
        results = json.loads(options.save.read_text())
    for name in cases:
        if name in results:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.perf_counter()
        command = [sys.executable, __file__, name, "--in-process"]
        command += ["--quick"] if options.quick else []
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
        results[name] = {**json.loads(done.stdout.splitlines()[-1]), "clock": "CPU"}
        say(f"{name}: done in {time.perf_counter() - start:.0f} s")
        if options.save:
            options.save.write_text(json.dumps(results))
    results = {name: results[name] for name in CASES if name in results}
    text = table(timed_rows(results), judged=not options.quick)
    print(text)
    if options.write:
        write_page(results, text, options.threads)


def earlier():
    """What the page holds already: cases that are not run again keep their numbers."""
    page = (ROOT / "docs" / "benchmarks-peers.md").read_text()
    return json.loads(page.partition("```json\n")[2].partition("```")[0])


def write_page(results, text, threads):
    peers = {x["peer"] for x in results.values() if "peer" in x}
    page = PAGE.format(
        table=text,
        machine=f"{machine()}; {threads} BLAS thread{'s' if threads > 1 else ''} on all sides",
        peer="; ".join(sorted(peers)) or "not measured",
        limits="\n".join(f"* {line}" for line in limits(results)),
        raw=json.dumps(rounded(results), indent=1),
    )
    (ROOT / "docs" / "benchmarks-peers.md").write_text(page)


def rounded(value):
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


PAGE = """# Speed against other implementations

Written by `make bench-peers`, or case by case (`python benchmarks/bench_peers.py itml --write`). What is compared took turns on the same
machine, three times or more; once only: LMNN with metric-learn's default step, the whole streams of PALS- and
of + against -, and the fit of MCML. Ratios are those of medians. "Textbook" is the float64 loop of `simstream_repro.reference`;
"in place" is the strongest eager loop we could write (lengths known beforehand, M changed in place by BLAS).
Kernels were compiled before the clock started. Each row says its clock: CPU seconds, or seconds on the
wall, in which the other work of a busy machine is included. Microseconds "a change" are the time of a part of the stream
over its changes of M: the steps between them that change nothing are in it, on both sides. Rows without a
must-reach are information.

The stream is that of the PA paper: a random half of the items, features brought to [0, 1], r = 40 c (c - 1)
different pairs shuffled and presented over and over. Published seconds are from the paper's hardware.

{table}

Machine: {machine}.
Peer: {peer}.

## What limits each

{limits}

## Raw numbers

```json
{raw}
```
"""


if __name__ == "__main__":
    main()
