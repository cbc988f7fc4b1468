"""Measure speed and memory against eager NumPy, the best compiled loop and the machine's own limits.

    python benchmarks/bench.py            all cases, a table on the terminal
    python benchmarks/bench.py --write    the same, and docs/benchmarks.md

Every case runs in a process of its own, so that peak memory is its own. Ratios compare runs on this
machine minutes apart; published seconds come from other hardware and are shown as information. With
SIMSTREAM_DATA pointing to a folder with bbc.svm.gz, sector.svm.gz, letter.csv.gz and isolet.csv.gz the real
data are used, otherwise synthetic data of the same shape. The cases of `bench_certificates.py`,
`bench_tasks_low_rank.py`, `bench_listwise.py`, `bench_sampling.py` and `bench_streams.py` are run too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import bench_certificates
import bench_listwise
import bench_sampling
import bench_streams
import bench_tasks_low_rank
from bench_common import ROOT, in_place_oasis, machine, rows_of, table
from simstream_repro import reference

SHAPES = {  # items, features, classes, mean non-zeros in a row
    "bbc": (2225, 9635, 5, 129),
    "sector": (6412, 55197, 105, 163),
}


def peak_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def text(name):
    """Items (float32 CSR), labels, and where they come from."""
    folder = os.environ.get("SIMSTREAM_DATA")
    if folder and (Path(folder) / f"{name}.svm.gz").exists():
        from simstream.data import read_items

        data = read_items(
            Path(folder) / f"{name}.svm.gz", dtype="float32", n_features=SHAPES[name][1]
        )
        n = SHAPES[name][0]
        return data.items[:n], data.labels[:n], name
    return *zipf_text(*SHAPES[name]), f"synthetic text of the shape of {name}"


def zipf_text(n, d, n_classes, mean_length, seed=0):
    """Counts of Zipf-distributed words; a tenth of a text's words come from its class's own part."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    weights = 1.0 / np.arange(1, d + 1) ** 1.05
    cumulative = np.cumsum(weights / weights.sum())
    lengths = rng.lognormal(np.log(mean_length * 1.6), 0.5, n).astype(int) + 1
    rows = np.repeat(np.arange(n), lengths)
    words = np.searchsorted(cumulative, rng.random(len(rows)))
    own = rng.random(len(rows)) < 0.1
    words[own] = (words[own] * 7 + y[rows[own]] * 131) % d
    X = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, np.minimum(words, d - 1))), (n, d))
    X.sum_duplicates()
    norms = np.sqrt(X.multiply(X).sum(axis=1))
    return sp.csr_matrix(X / norms, dtype=np.float32), y


def in_place_sors(M, stream, lam, eta, off_diagonal):
    """The strongest eager NumPy version: float32, no temporary arrays, the gradient only where it is."""
    diagonal = np.einsum("ii->i", M)
    work = np.empty_like(M)
    for x, z in stream:
        if 1 - x @ M @ z > 0:
            M[np.ix_(x.nonzero()[0], z.nonzero()[0])] += eta * np.outer(x[x != 0], z[z != 0])
        kept = diagonal.copy()
        np.abs(M, out=work)
        work -= np.float32(lam * eta)
        np.maximum(work, 0, out=work)
        np.copysign(work, M, out=M)
        if off_diagonal:
            diagonal[:] = kept


def in_place_adasors(M, stream, lam, eta, delta, off_diagonal):
    diagonal = np.einsum("ii->i", M)
    scale, work = np.full_like(M, delta), np.empty_like(M)
    for x, z in stream:
        if 1 - x @ M @ z > 0:
            block = np.ix_(x.nonzero()[0], z.nonzero()[0])
            G = np.outer(x[x != 0], z[z != 0])
            scale[block] = delta + np.sqrt((scale[block] - delta) ** 2 + G**2)
            M[block] += eta * G / scale[block]
        kept = diagonal.copy()
        np.divide(np.float32(lam * eta), scale, out=work)
        np.subtract(np.abs(M), work, out=work)
        np.maximum(work, 0, out=work)
        np.copysign(work, M, out=M)
        if off_diagonal:
            diagonal[:] = kept


def learn_text(name, make, textbook, in_place, rounds, eager_steps):
    """Time our learner on `rounds` triplets, and the eager reference on a few of the same."""
    from simstream import TripletSampler

    X, y, source = text(name)
    T = TripletSampler(y, 0).draw(rounds)
    model = make(preprocessor=X)
    make(preprocessor=X[:50, :200]).fit(
        T[:1] % [[50, 50, 49]] * [[1, 0, 1]] + [[0, 49, 0]]
    )  # compile
    start = time.perf_counter()
    model.fit(T)
    seconds = time.perf_counter() - start
    out = {
        "source": source,
        "seconds": seconds,
        "rate": rounds / seconds,
        "peak_gb": peak_gb(),
        "sparsity": model.sparsity_,
        "loss": model.average_loss_,
    }
    if textbook is not None:
        stream = [
            (
                np.asarray(X[a].todense(), float).ravel(),
                np.asarray((X[p] - X[n]).todense(), float).ravel(),
            )
            for a, p, n in T[:eager_steps]
        ]
        del model
        for label, run, dtype in (
            ("eager", textbook, np.float64),
            ("in_place", in_place, np.float32),
        ):
            steps = [(x.astype(dtype), z.astype(dtype)) for x, z in stream]
            M = np.eye(X.shape[1], dtype=dtype)
            start = time.perf_counter()
            run(M, steps)
            per_step = (time.perf_counter() - start) / eager_steps
            out[f"{label}_seconds_per_step"] = per_step
            out["ratio" if label == "eager" else "ratio_in_place"] = per_step * rounds / seconds
    return out


def case_bbc_sors2():
    from simstream import SORS

    options = {"lam": 1e-6, "eta": 0.1, "off_diagonal": True}
    return learn_text(
        "bbc",
        lambda **k: SORS(**options, **k),
        lambda M, s: reference.sors.last(M, s, **options),
        lambda M, s: in_place_sors(M, s, **options),
        10**5,
        3,
    )


def case_bbc_adasors2():
    from simstream import AdaSORS

    options = {"lam": 1e-6, "eta": 0.1, "delta": 0.1, "off_diagonal": True}
    return learn_text(
        "bbc",
        lambda **k: AdaSORS(**options, **k),
        lambda M, s: reference.adasors.last(M, s, **options),
        lambda M, s: in_place_adasors(M, s, **options),
        10**5,
        3,
    )


def case_sector_sors1():
    from simstream import SORS

    out = learn_text("sector", lambda **k: SORS(lam=1e-6, eta=1.0, **k), None, None, 10**5, 0)
    return {**out, "published_seconds": 311_850, "ratio": 311_850 / out["seconds"]}


def case_sector_adasors1():
    from simstream import AdaSORS

    out = learn_text(
        "sector", lambda **k: AdaSORS(lam=1e-6, eta=0.1, delta=0.1, **k), None, None, 10**5, 0
    )
    return {**out, "published_seconds": 632_147, "ratio": 632_147 / out["seconds"]}


def best(function, repeats=3):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def dense_oasis(d):
    """Blocked OASIS against a NumPy loop, our one-at-a-time loop, and the machine's sgemm."""
    from simstream import OASIS

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    T = rng.integers(0, len(X), (20_000, 3))
    T = T[T[:, 1] != T[:, 2]]
    C = 0.01  # random comparisons and short steps: nearly every triplet stays violated

    def numpy_loop(n):
        stream = ((X[a], X[p] - X[q]) for a, p, q in T[:n])
        in_place_oasis(np.eye(d, dtype=np.float32), stream, C)

    few, some, many = 400 if d > 1000 else 1500, 4000, len(T)
    eager = best(lambda: numpy_loop(few), 2) / few
    single = OASIS(C=C, block_size=1, preprocessor=X)
    single.fit(T[:10])
    compiled = best(lambda: single.fit(T[:some]), 2) / some
    model = OASIS(C=C, preprocessor=X)
    model.fit(T[:600])
    blocked = best(lambda: model.fit(T), 3) / many
    violated = model.n_updates_ / model.n_rounds_

    from scipy.linalg.blas import sgemm

    n = 2048
    a = np.asfortranarray(rng.normal(size=(n, n)), np.float32)
    gemm = 2 * n**3 / best(lambda: sgemm(1.0, a, a), 5)
    return {
        "eager_per_s": 1 / eager,
        "compiled_per_s": 1 / compiled,
        "blocked_per_s": 1 / blocked,
        "ratio": eager / blocked,
        "ratio_compiled": compiled / blocked,
        "violated": violated,
        "sgemm_gflops": gemm / 1e9,
        "blocked_gflops": 4 * d * d / blocked / 1e9,
        "sgemm_share": 4 * d * d / blocked / gemm,
    }


def case_oasis_768():
    return dense_oasis(768)


def case_oasis_1536():
    return dense_oasis(1536)


FIRST_FIT = """
import time, numpy as np
from simstream import OASIS, SORS
rng = np.random.default_rng(0)
X = rng.normal(size=(100, {d})); T = np.array([[0, 1, 2], [3, 4, 5]])
{sparse}
start = time.perf_counter(); {model}(preprocessor=X).fit(T); print(time.perf_counter() - start)
"""


def case_start():
    """Import time, and the first fit with a cold and with a warm compile cache."""
    out = {}

    def run(code, cache):
        env = {**os.environ, "NUMBA_CACHE_DIR": cache}
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return float(result.stdout)

    with tempfile.TemporaryDirectory() as cache:
        code = (
            "import time; s = time.perf_counter(); import simstream; print(time.perf_counter() - s)"
        )
        run(code, cache)
        out["import"] = min(run(code, cache) for _ in range(3))
        code = code.replace("import simstream;", "from simstream import OASIS;")
        out["import_learner"] = min(run(code, cache) for _ in range(3))
    for label, values in {
        "dense blocked": {"d": 200, "sparse": "", "model": "OASIS"},
        "dense one at a time": {"d": 50, "sparse": "", "model": "SORS"},
        "sparse": {
            "d": 200,
            "sparse": "import scipy.sparse; X = scipy.sparse.csr_matrix(X)",
            "model": "SORS",
        },
    }.items():
        code = FIRST_FIT.format(**values)
        with tempfile.TemporaryDirectory() as cache:
            out[f"cold {label}"] = run(code, cache)
            out[f"warm {label}"] = min(run(code, cache) for _ in range(2))
    out["cold"] = max(v for k, v in out.items() if k.startswith("cold "))
    out["warm"] = max(v for k, v in out.items() if k.startswith("warm "))
    return out


CASES = {
    name[5:]: function for name, function in list(globals().items()) if name.startswith("case_")
}
#: Modules with cases of their own, each a section of the page.
MODULES = {
    "certificates": bench_certificates,
    "tasks": bench_tasks_low_rank,
    "lists": bench_listwise,
    "sampling": bench_sampling,
    "streams": bench_streams,
}
CASES |= {
    name: lambda function=function: {"lines": rows_of(function)}
    for module in MODULES.values()
    for name, function in module.CASES.items()
}


def rows(results):
    """Rows of the table: work, measured, must reach, reached."""
    r = results
    for name, label in (("bbc_sors2", "SORS-II"), ("bbc_adasors2", "AdaSORS-II")):
        if name in r:
            x = r[name]
            yield (
                f"{label}, {x['source']}, 10^5 triplets, against eager NumPy",
                f"{x['seconds']:.1f} s against {x['eager_seconds_per_step']:.2f} s a step: {x['ratio']:,.0f}x "
                f"(in-place float32 NumPy, {x['in_place_seconds_per_step']:.2f} s a step: "
                f"{x['ratio_in_place']:,.0f}x)",
                ">= 3,000x",
                x["ratio"] >= 3000,
            )
    for name, label, memory in (
        ("sector_sors1", "SORS-I", 5),
        ("sector_adasors1", "AdaSORS-I", 12),
    ):
        if name in r:
            x = r[name]
            yield (
                f"{label}, {x['source']}, 10^5 triplets, against the published {x['published_seconds']:,} s",
                f"{x['seconds']:.0f} s: {x['ratio']:,.0f}x; peak {x['peak_gb']:.1f} GB",
                f">= 3,000x; <= {memory} GB",
                x["ratio"] >= 3000 and x["peak_gb"] <= memory,
            )
    for name, d, eager, compiled in (("oasis_768", 768, 30, 1.5), ("oasis_1536", 1536, 40, 2.0)):
        if name in r:
            x = r[name]
            yield (
                f"OASIS dense, d = {d}, against the NumPy loop / the one-at-a-time compiled loop",
                f"{x['blocked_per_s']:,.0f} triplets/s: {x['ratio']:.0f}x / {x['ratio_compiled']:.1f}x",
                f">= {eager}x / {compiled}x",
                x["ratio"] >= eager and x["ratio_compiled"] >= compiled,
            )
    if "oasis_1536" in r:
        x = r["oasis_1536"]
        yield (
            f"OASIS dense, d = 1536, share of sgemm ({x['violated']:.0%} of triplets violated)",
            f"{x['blocked_gflops']:.0f} of {x['sgemm_gflops']:.0f} GFLOP/s: {x['sgemm_share']:.0%}",
            ">= 50%",
            x["sgemm_share"] >= 0.5,
        )
    if "start" in r:
        x = r["start"]
        yield (
            "`import simstream` (and with a learner)",
            f"{x['import']:.2f} s ({x['import_learner']:.2f} s)",
            "<= 1.5 s",
            x["import_learner"] <= 1.5,
        )
        yield (
            "first fit, cold compile cache (slowest kind)",
            f"{x['cold']:.1f} s",
            "<= 6 s",
            x["cold"] <= 6,
        )
        yield ("first fit, warm compile cache", f"{x['warm']:.2f} s", "<= 1 s", x["warm"] <= 1)


def earlier():
    """What the page holds already: cases that are not run again keep their numbers."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    return json.loads(page.partition("```json\n")[2].partition("```")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[], help="default: all")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/benchmarks.md; cases not named keep its numbers",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="run one case here and print JSON"
    )
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(CASES[options.cases[0]](), default=float))
        return
    results = earlier() if options.cases and options.write else {}
    for name in options.cases or CASES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, name, "--in-process"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"  {results[name]}", file=sys.stderr, flush=True)
    speed = table(rows(results))
    sections = {
        section: table(
            line for name in module.CASES if name in results for line in results[name]["lines"]
        )
        for section, module in MODULES.items()
    }
    print(speed, *sections.values(), sep="\n\n")
    if options.write:
        (ROOT / "docs" / "benchmarks.md").write_text(
            PAGE.format(
                speed=speed,
                **sections,
                machine=machine(),
                raw=json.dumps(results, indent=1, default=lambda v: round(float(v), 4)),
            )
        )


PAGE = """# Speed and memory

Written by `make bench`; single cases may have been measured again since (`python benchmarks/bench.py CASE --write`). Ratios
compare runs on the same machine in the same minutes. The eager reference is the textbook NumPy version of `simstream_repro.reference` (float64, a
few steps timed and extrapolated); beside it stands the strongest eager version we could write (float32, in
place, gradients only where they are not zero). "Published" seconds are from the papers' own hardware, shown as information.

{speed}

Machine: {machine}.

## Certificates

float64, one BLAS thread, CPU seconds. SDCA's time is that of the whole fit, with the duality gap after every
epoch; the eager version makes the same steps with the whole matrix, with and without adding up the iterates of
the second half, which it needs for the mean. The others draw from the same triplets until they have SDCA's
primal value, which is looked at after every 10^4 draws and costs them nothing; the fastest of a grid of step
sizes counts, and of the iterate and a mean (of all iterates, for SGD of those since the last power of two of
passes). Only SGD works on SDCA's objective; OASIS and OGD have no reason to reach its value.

{certificates}

## Many tasks, low rank

One BLAS thread, CPU seconds; the best of a few turns, ours and the references one after the other. "Violated" is
the share of steps that changed the model: eager references cost more there. What must be reached is a ratio to
the textbook version, as everywhere on this page; in-place NumPy stands beside it.

{tasks}

## Lists

One BLAS thread, CPU seconds, the best of a few turns, random items. Flops are those of M'q, of the change of M and
of the passes over the items of the list, two for each step.

{lists}

## Drawing triplets

One BLAS thread, CPU seconds, the best of three turns, float64. Half of the draws are near: the nearest of 8 random
candidates by the learner, unless said otherwise.

{sampling}

## One tuple at a time

One BLAS thread, CPU seconds, the best of five turns, random vectors of unit length, float64. Calls of `learn_one` with
vectors as they come, checked each time; the eager steps check nothing, but have to make CSR rows dense. Batches
(`partial_fit`) cost far less a tuple.

{streams}

## How far from the limit

* **Dense, blocked.** A triplet costs 4 d^2 flops in matrix products (margin and update), plus the Gram
  matrices of its block. The share of the machine's own single-precision matrix product rate is in the
  table; what is missing is mostly the Gram matrices (B/(2d) of the work) and gathering rows.
* **Lists.** Every step passes twice over the items of its list, which lie in the second-level cache: with many
  negatives its bandwidth is the limit, with few the matrix products of M'q and of the change of M are.
* **Sparse.** A triplet visits nnz(x) nnz(z) entries of M, and nearly every visit misses the caches: the
  cost is memory latency, a few nanoseconds per entry at the parallelism one core can keep in flight. The
  numbers of an entry lie side by side, and rare features keep their entries together, so that one miss
  brings as much as possible.

## Raw numbers

```json
{raw}
```
"""


if __name__ == "__main__":
    main()
