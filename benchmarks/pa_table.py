"""The passive-aggressive paper's Table 2: k-NN error of our learners beside the published values.

    SIMSTREAM_DATA=folder python benchmarks/pa_table.py [--datasets wine iono] [--runs 10] [--jobs 2]
                                                        [--records cells.jsonl] [--quick] [--write]

Every finished cell (data set, run, algorithm) is appended to the file of records; a run with the same file
goes on where the last one stopped, and may add data sets or runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from simstream import ITML, Euclidean, PairSampler, PAMetric, metrics
from simstream.formats import read_items

ROOT = Path(__file__).resolve().parent.parent

#: Name in the paper -> file. Art100 is not public.
DATASETS = {
    "soyS": "soybean2",
    "wine": "wine",
    "glass": "glass",
    "ecoli": "ecoli",
    "malaysia": "malaysia",
    "iono": "ionosphere",
    "balance": "balance-scale",
    "breast": "breast",
    "chromo": "chromo",
    "mor": "mfeat-mor",
    "spam": "spambase",
    "satellite": "satellite",
    "soyL": "soybean1",
    "nist16": "nist16",
}
LEARNERS = {
    f"{short}{sign}": {"variant": variant, "projection": projection}
    for short, variant in (("PAI", "PA-I"), ("PAII", "PA-II"), ("PALS", "PALS"))
    for sign, projection in (("+", "every-step"), ("-", "end"))
}
ALGORITHMS = ["Euclidean", "ITML", *LEARNERS]
GRID = [10.0**e for e in range(-4, 3)]
QUICK_GRID = [0.01, 1.0]
K = range(1, 26)
CLOSE = 0.02

#: Where the order of classes by name is not the file's: ionosphere's "b" is the second class there.
REVERSED = {"iono"}

#: Table 2, error and its k, in the order of ALGORITHMS.
PUBLISHED_ERRORS = """
soyS       0.158/1   0.119/2   0.133/14  0.125/13  0.136/12  0.121/15  0.125/9   0.126/12
wine       0.027/13  0.033/3   0.018/5   0.017/6   0.016/3   0.017/9   0.024/7   0.019/3
glass      0.510/1   0.513/1   0.523/1   0.506/1   0.518/1   0.527/1   0.507/1   0.518/1
ecoli      0.064/3   0.077/5   0.075/3   0.075/17  0.076/15  0.075/7   0.076/17  0.070/9
malaysia   0.301/1   0.298/1   0.281/1   0.289/1   0.281/1   0.289/1   0.327/1   0.318/1
iono       0.153/2   0.155/2   0.129/2   0.136/2   0.140/2   0.139/2   0.143/2   0.138/2
balance    0.335/6   0.263/3   0.219/3   0.219/2   0.258/3   0.234/2   0.312/6   0.258/6
breast     0.033/3   0.037/3   0.025/9   0.026/11  0.027/17  0.025/11  0.028/9   0.030/9
chromo     0.467/1   0.489/1   0.470/1   0.489/1   0.467/1   0.488/1   0.476/1   0.481/1
mor        0.277/9   0.273/12  0.296/12  0.299/10  0.294/10  0.297/8   0.269/11  0.279/10
spam       0.115/1   0.109/3   0.118/5   0.120/3   0.119/5   0.121/3   0.120/3   0.121/1
satellite  0.119/3   0.118/3   0.137/4   0.132/3   0.132/3   0.127/3   0.132/3   0.127/3
soyL       0.136/1   0.086/1   0.107/1   0.100/1   0.099/1   0.097/1   0.098/1   0.083/1
nist16     0.057/1   0.057/1   0.057/1   0.059/1   0.057/1   0.060/1   0.066/1   0.056/1
"""

#: Table 3, CPU seconds, in the order of ALGORITHMS without Euclidean.
PUBLISHED_SECONDS = """
soyS       10.56    0.30     0.11     0.30     0.10     0.49     0.11
wine       0.72     0.18     0.10     0.15     0.10     0.29     0.10
glass      0.53     0.26     0.08     0.25     0.09     0.32     0.11
ecoli      0.85     0.24     0.05     0.28     0.05     0.32     0.06
malaysia   4.02     1.25     1.15     1.24     1.10     2.06     1.09
iono       2.15     0.80     0.28     0.84     0.29     1.37     0.34
balance    2.11     0.46     0.28     0.46     0.28     0.58     0.30
breast     0.29     0.57     0.26     0.63     0.27     0.83     0.35
chromo     6.39     1.99     1.71     1.96     1.80     2.65     1.86
mor        4.08     4.77     3.76     4.72     3.81     8.00     4.23
spam       0.73     12.51    0.54     12.68    0.50     17.69    0.60
satellite  3.99     39.86    2.12     34.93    2.07     99.60    2.46
soyL       26.93    4.48     0.86     4.55     0.85     26.47    1.07
nist16     86.09    480.23   10.13    500.55   10.81    2007.20  34.06
"""

#: Table 4, average ranks of the CPU times over 15 data sets.
PUBLISHED_RANKS = {
    "PAI-": 1.49,
    "PAII-": 1.77,
    "PALS-": 2.87,
    "PAII+": 4.86,
    "PAI+": 4.93,
    "ITML": 5.67,
    "PALS+": 6.40,
}


# -- one cell ---------------------------------------------------------------------------------------------


@functools.cache
def data(name):
    file = Path(os.environ["SIMSTREAM_DATA"]) / f"{DATASETS[name]}.csv.gz"
    found = read_items(file, label_column=-1, dtype="float64")
    return found.items, np.unique(found.labels, return_inverse=True)[1]


def halves(name, run):
    """Training and test half, scaled to [0, 1] by the training half, and the shared stream of pairs."""
    X, y = data(name)
    n, c = len(X), y.max() + 1
    rng = np.random.default_rng(run)
    train, test = np.split(rng.permutation(n), [n // 2])
    low, high = X[train].min(axis=0), X[train].max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    pairs, signs = PairSampler(y[train], rng).draw_distinct(40 * c * (c - 1))  # in random order
    r = len(pairs)
    steps = max(2 * r, min(n * (n - 2) // 40, 50 * r))
    return (X[train], y[train]), (X[test], y[test]), (pairs, signs, steps)


def measured(fit):
    """CPU seconds of a fit; short ones are repeated, and the median taken."""
    seconds = []
    while len(seconds) < 5 and sum(seconds) < 0.2:
        start = time.process_time()
        model = fit()
        seconds.append(time.process_time() - start)
    return model, float(np.median(seconds))


def train(algorithm, items, labels, pairs, signs, steps, grid, run):
    """The learnt model and what is recorded of it; parameters are chosen on the training half only."""
    if algorithm == "Euclidean":
        model = Euclidean(preprocessor=items)
        model.prepare()
        return model, {}
    start = time.process_time()
    if algorithm == "ITML":
        # The price is tuned on the labels, the metric learnt from the pairs that everybody sees.
        auto = ITML("auto", n_constraints=len(pairs), random_state=run).fit(items, labels)
        tuning = time.process_time() - start
        learner = ITML(auto.gamma_, preprocessor=items)
        model, seconds = measured(lambda: learner.fit_pairs(pairs, signs))
        found = {"parameter": auto.gamma_, "curve": auto.tuning_.tolist(), "sweeps": model.n_iter_}
    else:
        learner = PAMetric(preprocessor=items, **LEARNERS[algorithm])
        curve = []
        for C in grid:
            one_pass = learner.set_params(C=C).fit(pairs, signs)
            error, k = metrics.knn_error_best_k(
                one_pass, items, labels, items, labels, K, class_averaged=True, exclude_self=True
            )
            curve.append((error, C, k))
        tuning = time.process_time() - start
        learner.set_params(C=min(curve)[1])  # the smallest of equals
        stream = np.resize(pairs, (steps, 2)), np.resize(signs, steps)
        model, seconds = measured(lambda: learner.fit(*stream))
        found = {"parameter": learner.C, "curve": curve, "updates": model.n_updates_}
    rank = model.effective_dimension_
    return model, {**found, "seconds": seconds, "tuning_seconds": tuning, "rank": rank}


def errors_with_ties(model, queries, truth, items, labels):
    """Class-averaged curves if a tied vote goes to the first or the last class instead of the nearest."""
    a, b = queries @ model.components_.T, items @ model.components_.T
    distances = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1) - 2 * a @ b.T
    near = labels[np.argsort(distances, axis=1, kind="stable")[:, : max(K)]]
    curves = []
    for direction in (1, -1):
        order = np.arange(labels.max() + 1)[::direction]
        votes = np.cumsum(near[:, :, None] == order, axis=1)
        wrong = order[votes.argmax(axis=2)] != truth[:, None]
        curves.append([wrong[truth == one].mean(axis=0) for one in np.unique(truth)])
    return np.mean(curves, axis=1)


def cell(task):
    name, run, algorithm, grid = task
    known, (queries, truth), (pairs, signs, steps) = halves(name, run)
    model, record = train(algorithm, *known, pairs, signs, steps, grid, run)
    for key, averaged in (("class_averaged", True), ("plain", False)):
        curve = metrics.knn_error_curve(model, queries, truth, *known, K, class_averaged=averaged)
        record[key] = curve.tolist()
    first, last = errors_with_ties(model, queries, truth, *known)
    record |= {"ties_first": first.tolist(), "ties_last": last.tolist()}
    sizes = {"n": len(known[1]) + len(truth), "r": len(pairs), "steps": steps}
    return {"data": name, "run": run, "algorithm": algorithm, "grid": grid, **sizes, **record}


# -- all of them ------------------------------------------------------------------------------------------


def read_records(path):
    """Finished cells by (data set, run, algorithm, grid); a line cut by an interruption is left out."""
    cells = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        cells[one["data"], one["run"], one["algorithm"], tuple(one["grid"])] = one
    return cells


def compute(tasks, path, jobs):
    """Work on the cells that are not in the file of records yet, and append them to it."""
    done = read_records(path)
    left = [task for task in tasks if (*task[:3], tuple(task[3])) not in done]
    print(f"{len(tasks) - len(left)} cells found, {len(left)} to do", file=sys.stderr, flush=True)
    start = time.monotonic()
    # One thread each, for training times that compare. NumPy reads it when imported: fresh processes.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, path.open("a") as file:
        if file.tell() and not path.read_text().endswith("\n"):
            file.write("\n")
        for i, one in enumerate(pool.imap_unordered(cell, left), 1):
            file.write(json.dumps(one) + "\n")
            file.flush()
            error = min(one["class_averaged"])
            print(
                f"{i}/{len(left)} after {time.monotonic() - start:.0f} s: {one['data']} run {one['run']} "
                f"{one['algorithm']}: {error:.3f}, parameter {one.get('parameter')}, "
                f"{one.get('seconds', 0):.3g} s of training, {one.get('tuning_seconds', 0):.3g} s of tuning",
                file=sys.stderr,
                flush=True,
            )


def published(text, algorithms):
    """{(data set, algorithm): numbers} of a table of the paper."""
    found = {}
    for name, *row in map(str.split, text.strip().splitlines()):
        for algorithm, numbers in zip(algorithms, row, strict=True):
            found[name, algorithm] = tuple(map(float, numbers.split("/")))
    return found


# -- the page ---------------------------------------------------------------------------------------------


def complete_runs(cells, name, grid):
    """Per algorithm the records of the runs that have all algorithms."""
    table = {a: {} for a in ALGORITHMS}
    for (data_name, run, algorithm, its_grid), one in cells.items():
        if data_name == name and its_grid == tuple(grid):
            table[algorithm][run] = one
    runs = sorted(set.intersection(*(set(one) for one in table.values())))
    return {algorithm: [found[run] for run in runs] for algorithm, found in table.items()}


def best(records, key):
    """Smallest mean error over k, that k, and the standard deviation over runs at it."""
    curves = np.array([one[key] for one in records])
    place = int(np.argmin(curves.mean(axis=0)))
    return curves[:, place].mean(), K[place], curves[:, place].std()


def verdict(ours, theirs):
    ours = round(ours, 3)  # as printed
    if abs(ours - theirs) <= CLOSE + 1e-9:
        return "within"
    return "better" if ours < theirs else "**worse**"


def error_rows(results):
    """One row for each data set and algorithm."""
    theirs = published(PUBLISHED_ERRORS, ALGORITHMS)
    rows = []
    for name, table in results.items():
        first = "ties_last" if name in REVERSED else "ties_first"
        for algorithm, records in table.items():
            ours, paper = best(records, "class_averaged"), theirs[name, algorithm]
            ties = best(records, first)
            rows.append(
                {
                    "data": name,
                    "algorithm": algorithm,
                    "runs": len(records),
                    "ours": ours,
                    "plain": best(records, "plain"),
                    "ties": ties,
                    "published": paper,
                    "verdict": verdict(ours[0], paper[0]),
                    "ties_verdict": verdict(ties[0], paper[0]),
                    "chosen": sorted(one["parameter"] for one in records if "parameter" in one),
                }
            )
    return rows


def error_table(rows):
    lines = [
        "| data (runs) | algorithm | error, k | published, k | difference | verdict | ties to the first "
        "class, k | verdict | plain error, k | C or gamma, median |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        error, k, spread = row["ours"]
        there, there_k = row["published"]
        chosen = f"{row['chosen'][len(row['chosen']) // 2]:g}" if row["chosen"] else "-"
        cells = [
            f"{row['data']} ({row['runs']})",
            row["algorithm"],
            f"{error:.3f}, {k}" if row["runs"] == 1 else f"{error:.3f} ± {spread:.3f}, {k}",
            f"{there:.3f}, {there_k:.0f}",
            f"{error - there:+.3f}",
            row["verdict"],
            f"{row['ties'][0]:.3f}, {row['ties'][1]}",
            row["ties_verdict"],
            f"{row['plain'][0]:.3f}, {row['plain'][1]}",
            chosen,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_table(rows):
    """Per algorithm: counts of verdicts, and the mean change against Euclidean, ours and theirs."""
    lines = [
        "| algorithm | within 0.02 | better | worse | the same with ties to the first class | mean error "
        "minus Euclidean's | published |",
        "|---" * 7 + "|",
    ]
    baseline = {row["data"]: row for row in rows if row["algorithm"] == "Euclidean"}
    for algorithm in ALGORITHMS:
        mine = [row for row in rows if row["algorithm"] == algorithm]
        counts = {
            key: [
                sum(row[key] == word for row in mine) for word in ("within", "better", "**worse**")
            ]
            for key in ("verdict", "ties_verdict")
        }
        gains = [
            np.mean([row[key][0] - baseline[row["data"]][key][0] for row in mine])
            for key in ("ours", "published")
        ]
        cells = [
            algorithm,
            *map(str, counts["verdict"]),
            ", ".join(map(str, counts["ties_verdict"])),
            *(f"{gain:+.3f}" for gain in gains),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_seconds(results):
    timed = ALGORITHMS[1:]
    return timed, np.array(
        [
            [np.mean([one["seconds"] for one in table[algorithm]]) for algorithm in timed]
            for table in results.values()
        ]
    )


def time_table(results):
    timed, seconds = mean_seconds(results)
    theirs = published(PUBLISHED_SECONDS, timed)
    head = [*timed, *(f"{name}+/{name}-" for name in ("PAI", "PAII", "PALS"))]
    lines = [f"| data | steps | {' | '.join(head)} |", "|---" * (len(head) + 2) + "|"]
    for row, (name, table) in zip(seconds, results.items(), strict=True):
        paper = [theirs[name, algorithm][0] for algorithm in timed]
        for values, label, form in ((row, name, "{:.3g}"), (paper, "published", "{:g}")):
            found = dict(zip(timed, values, strict=True))
            cells = [form.format(value) for value in values]
            cells += [f"{found[p + '+'] / found[p + '-']:.1f}" for p in ("PAI", "PAII", "PALS")]
            steps = table["PAI+"][0]["steps"] if label == name else ""
            lines.append(f"| {label} | {steps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rank_text(results):
    """Friedman's ranks of the training times, and all pairs by Holm."""
    timed, seconds = mean_seconds(results)
    if len(seconds) < 2:
        return "(Needs at least two data sets.)"
    result = metrics.friedman(seconds, lower_is_better=True, names=timed)
    lines = [
        f"Friedman over {result.n_datasets} data sets and {len(timed)} algorithms: "
        f"chi2 = {result.chi2:.1f}, p = {result.p_value:.2g} (Iman and Davenport: {result.f_p_value:.2g}).",
        "",
        "| algorithm | average rank | published (15 sets) |",
        "|---|---|---|",
    ]
    for place in np.argsort(result.average_ranks, kind="stable"):
        name = timed[place]
        ranks = f"{result.average_ranks[place]:.2f} | {PUBLISHED_RANKS[name]:.2f}"
        lines.append(f"| {name} | {ranks} |")
    pairs = result.pairwise()
    clear = [pair for pair in pairs if pair.adjusted_p_value < 0.05]
    lines += [
        "",
        f"Of the {len(pairs)} pairs, {len(clear)} differ at Holm-adjusted p < 0.05; the ten clearest:",
        "",
        "| faster | slower | z | p | adjusted p |",
        "|---|---|---|---|---|",
    ]
    for pair in pairs[:10]:
        names = (pair.first, pair.second)[:: 1 if pair.z <= 0 else -1]
        lines.append(
            f"| {names[0]} | {names[1]} | {abs(pair.z):.2f} | {pair.p_value:.2g} "
            f"| {pair.adjusted_p_value:.2g} |"
        )
    return "\n".join(lines)


def page(results):
    rows = error_rows(results)

    def good(key):
        return f"{sum(row[key] != '**worse**' for row in rows)} of {len(rows)}"

    def worse(key):
        found = [
            f"{row['data']} {row['algorithm']} {row[source][0] - row['published'][0]:+.3f}"
            for row in rows
            for source in ["ours" if key == "verdict" else "ties"]
            if row[key] == "**worse**"
        ]
        return ", ".join(found) or "none"

    return PAGE.format(
        errors=error_table(rows),
        summary=summary_table(rows),
        good=good("verdict"),
        good_ties=good("ties_verdict"),
        worse=worse("verdict"),
        worse_ties=worse("ties_verdict"),
        runs=", ".join(f"{name} {len(table['ITML'])}" for name, table in results.items()),
        missing=", ".join(name for name in [*DATASETS, "Art100"] if name not in results),
        times=time_table(results),
        ranks=rank_text(results),
        machine=f"{platform.machine()}, {os.cpu_count()} cores shared with other work",
    )


PAGE = """# The passive-aggressive paper's Table 2

Written by `SIMSTREAM_DATA=folder python benchmarks/pa_table.py --write` from several runs with one file of
`--records` (the tables and counts are computed, the reading of them is not). Perez-Suay, Ferri,
Arevalillo-Herraez, "Passive-aggressive online distance metric learning and extensions", 2013: the k-NN error of
six online learners, of ITML and of the Euclidean distance, each beside what the paper prints. `+` projects on
the metrics after every step (`PAMetric(projection="every-step")`), `-` once at the end (`projection="end"`).

## Protocol

* Runs: {runs}.
  Not run: {missing}.
* Run i draws everything from `numpy.random.default_rng(i)`: the halves, then the pairs. All algorithms see the
  same halves, and the same pairs in the same order.
* Features are scaled to [0, 1] by the training half.
* r = 40 c (c - 1) different pairs of the training half of a data set with c classes (all pairs, if there are
  fewer), presented in the same random order again and again: max(2r, min(n(n - 2)/40, 50r)) steps, n the size
  of the whole data set.
* C is chosen anew for every algorithm and run from 10^-4, 10^-3 .. 10^2: one pass over the r pairs, and the
  smallest leave-one-out error on the training half over k = 1 .. 25 (the smallest C of equals). ITML's gamma is
  chosen by `gamma="auto"` from the labels of the training half; the metric is then learnt from the r pairs.
* Error: the mean over classes of the error within the class, on the test half, for k = 1 .. 25; averaged over
  the runs, and the smallest taken with its k. **k is thus chosen on the test half**: an optimistic measure,
  reproduced as such. ± is the standard deviation over our runs at that k (the paper prints none). Plain error:
  all test items count the same, best k of its own.
* Verdict: "within" 0.02 of the printed value, else "better" or "worse". A tied vote goes to the class of the
  nearest of the tied, our rule. The column "ties to the first class" has the same models with a tied vote
  going to the first class (in the file's order; ionosphere: see below), and its own verdict. C was not tuned
  again.

## Errors

{errors}

{summary}

## What we read from it

* {good} cells are within 0.02 of the published error or better. The others: {worse}.
* With ties to the first class it is {good_ties}. The others: {worse_ties}.
* **A rule for ties may explain ionosphere.** The paper's best k is 2 in all eight cells of that row. With our
  rule two neighbours never decide otherwise than one, so k = 2 cannot win. If ties go to "b", the first class by
  name (126 items, the second class in our file), k = 2 is the best for all eight algorithms here too, and all
  eight errors are within 0.02. This was found after the fact: three rules were compared on the test errors
  (nearest, first, last class in the file's order), and ionosphere is the one set whose order was turned round
  to fit. On balance scale the first class ("B", the small one) brings all seven cells that were worse closer,
  and ITML further off. On the other eleven sets (without glass) the rule makes no difference that counts: the
  mean distance to the print is 0.0073 for nearest, 0.0078 for first, 0.0077 for last. So it is a guess that fits
  two data sets; the paper says nothing, and the first verdict is the one that follows the protocol.
* On balance scale the choice of C matters as much. Class B has some 24 items in a half and a third of the
  weight. In a side experiment (ties to the first class) we chose C by four criteria. After one pass,
  leave-one-out with either rule for ties, or the mean loss, gave 0.22 to 0.32; leave-one-out after all steps gave
  0.17 to 0.31, below the print for each of the six. The paper tunes in one pass, so the table stays as it is.
* **glass does not fit, and "better" is no merit there**: the Euclidean distance alone is 0.1 below the print.
  Raw values, standardised, [0, 1], unit-length and logarithmic ones, with PRTools' four classes or UCI's six, all
  gave 1-NN errors from 0.35 to 0.43 (20 halves); the paper has 0.510. We do not know why.
* nist16 is a single run, which says little (its ITML, tuning included, and PALS+ take five to six minutes each).
  chromo, spam and satellite have three. soyL, malaysia and mor were first run three times and then brought to the
  protocol's ten: after three, soyL's ITML, PAI+, PAII+ and PALS+ were worse by 0.021 to 0.033, after ten all are
  within. Verdicts of three runs are that uncertain.
* The six online learners were compared on the streams of wine, balance scale and ionosphere (run 0, three values
  of C) with a plain NumPy implementation that takes the eigenvectors anew in every step: M differs by at most
  3e-13 of its largest entry. So the differences on these sets do not come from their arithmetic. ITML, and
  larger dimensions, were not part of that check.

What the paper leaves open, and may differ: the scaling of features and the measure of error (class-averaged
and [0, 1] were inferred from its Euclidean row, so that row is no independent test), ties, the halves, the grid
of C between its ends, how the error for the choice of C was measured, ITML's tuning, and which pairs ITML saw.

## Training time

CPU seconds of the training loop, mean over the runs: all steps with the C chosen, without tuning (ITML: the
gamma chosen). One thread, on {machine}, which was
overloaded at the time; fits below 0.2 s were repeated up to five times and the median taken. Some 0.5 ms of each
fit are reading and checking, a third of the `-` times on the smallest sets. The published seconds are from the
authors' machine and language: only ratios and ranks compare.

{times}

{ranks}

The paper does not say whether ITML's time includes its tuning. With it (and the others
without theirs), ours would be the slowest on every data set.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--datasets", nargs="+", choices=DATASETS, default=["wine", "iono", "balance", "nist16"]
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--records", type=Path, help="JSON lines, one for each finished cell")
    parser.add_argument("--quick", action="store_true", help="wine only, one run, two values of C")
    parser.add_argument(
        "--write", action="store_true", help="write docs/pa-table.md from all records"
    )
    options = parser.parse_args()
    if not os.environ.get("SIMSTREAM_DATA"):
        sys.exit(
            "SIMSTREAM_DATA: expected the folder that holds wine.csv.gz and others, got nothing"
        )
    grid = GRID
    if options.quick:
        options.datasets, options.runs, grid = ["wine"], 1, QUICK_GRID
    path = options.records or Path(tempfile.mkdtemp(prefix="pa-table-")) / "cells.jsonl"
    print(f"records: {path}", flush=True)
    tasks = [
        (name, run, algorithm, grid)
        for name in options.datasets
        for run in range(options.runs)
        for algorithm in ALGORITHMS
    ]
    compute(tasks, path, options.jobs)
    cells = read_records(path)
    results = {name: complete_runs(cells, name, grid) for name in DATASETS}
    results = {name: table for name, table in results.items() if table["ITML"]}
    print(error_table(error_rows(results)))
    if options.write:
        (ROOT / "docs" / "pa-table.md").write_text(page(results))


if __name__ == "__main__":
    main()
