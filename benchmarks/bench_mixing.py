"""Parameter mixing beside learning in order, on bbc and sector; writes docs/mixing.md and docs/mixing.png.

SIMSTREAM_DATA=FOLDER python benchmarks/bench_mixing.py run [bbc sector] [--learners SORS AdaSORS AROMA]
python benchmarks/bench_mixing.py write

`run` appends what is missing to docs/mixing.jsonl, one line for each model; `write` makes the page's tables and the
picture of it. Everything runs in one process, one shard after the other: the time of a round is that of its longest
shard and of its longest part of the mixing (`Mixing.critical_seconds`), in CPU seconds, as if every shard had a
processor of its own and messages were free.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from bench_common import ROOT, machine

RECORDS = ROOT / "docs" / "mixing.jsonl"
PAGE = ROOT / "docs" / "mixing.md"
FIGURE = ROOT / "docs" / "mixing.png"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

#: Shards and rounds, and the other choices: more of them for SORS, whose models are the smallest.
MOST = tuple((n_shards, n_rounds) for n_rounds in (1, 2, 5, 10) for n_shards in (2, 4, 8))
SOME = ((4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2), (4, 5))
FEW = ((4, 1), (8, 1), (2, 1), (4, 2))
CELLS = {
    ("bbc", "SORS"): MOST,
    ("bbc", "AdaSORS"): SOME,
    ("bbc", "AROMA"): SOME,
    ("sector", "SORS"): ((4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2), (2, 5), (4, 5)),
    ("sector", "AdaSORS"): FEW,
    ("sector", "AROMA"): FEW,
}
#: The other choices, for four shards and two rounds (five for SORS).
VARIANTS = ({"step": "sqrt"}, {"step": "sum"}, {"weights": "updates"})
#: Shares of the stream after which the learner in order is measured.
STOPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)

#: Parameters of the published experiments (bbc), and those chosen in docs/repro/p0.md (sector).
DATA = {
    "bbc": {
        "n_triplets": 40_000,
        "learners": {
            "SORS": {"lam": 1e-6, "eta": 0.1},
            "AdaSORS": {"lam": 1e-6, "eta": 0.1, "delta": 0.1},
            "AROMA": {"r": 90.0, "covariance": "diagonal-drop"},
        },
    },
    "sector": {
        "n_triplets": 3_000,
        "learners": {
            "SORS": {"lam": 1e-6, "eta": 1.0, "head_bytes": 2**28},
            "AdaSORS": {"lam": 1e-6, "eta": 1.0, "delta": 0.1, "head_bytes": 2**28},
            "AROMA": {"r": 1.0, "covariance": "diagonal-drop", "head_bytes": 2**28},
        },
    },
}


def parts(name):
    """Training and test part, in float32: 70 % of every class, or as the set is distributed."""
    from simstream import datasets

    data = datasets.load(name)
    labels = np.asarray(data.labels)
    if data.splits:
        train, test = (np.asarray(data.splits[part]) for part in ("train", "test"))
    else:
        rng = np.random.default_rng(0)
        members = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
        train = np.sort(np.concatenate([rows[: round(0.7 * len(rows))] for rows in members]))
        test = np.setdiff1d(np.arange(len(labels)), train)
    items = data.items.astype("float32")
    return items[train], labels[train], items[test], labels[test]


def cells(name, learner):
    """What is measured: before learning, in order, by shards and rounds, with other choices."""
    yield {"n_shards": 0}
    yield {"n_shards": 1}
    for n_shards, n_rounds in CELLS[name, learner]:
        yield {"n_shards": n_shards, "n_rounds": n_rounds}
    if name == "bbc":
        for variant in VARIANTS:
            yield {"n_shards": 4, "n_rounds": 5 if learner == "SORS" else 2, **variant}


def key(record):
    """What makes a record another one."""
    given = (
        "data",
        "learner",
        "n_triplets",
        "n_shards",
        "n_rounds",
        "step",
        "weights",
        "parameters",
    )
    return json.dumps([record.get(name) for name in given])


def records():
    """All records there are."""
    if not RECORDS.exists():
        return []
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def run(name, learners):
    """Measure what is missing."""
    import simstream
    from simstream import TripletSampler
    from simstream.distributed import MixedLearner

    items, labels, test_items, test_labels = parts(name)
    n_triplets = DATA[name]["n_triplets"]
    triplets = TripletSampler(labels, 0).draw(n_triplets)
    known = {key(record) for record in records()}

    def measures(model):
        quality = simstream.metrics.mean_average_precision(model, test_items, test_labels)
        return {"mAP": round(quality, 5), "sparsity": round(model.sparsity_, 5)}

    for learner in learners:
        parameters = DATA[name]["learners"][learner]
        make = getattr(simstream, learner)
        MixedLearner(make(**parameters, preprocessor=items), n_shards=2, n_rounds=1).fit(
            triplets[:4]
        )  # compiles
        for cell in cells(name, learner):
            record = {
                "data": name,
                "learner": learner,
                "n_triplets": n_triplets,
                **cell,
                "parameters": parameters,
            }
            if key(record) in known:
                continue
            model = make(**parameters, preprocessor=items)
            if cell["n_shards"] == 0:
                model.prepare()
                record |= measures(model)
            elif cell["n_shards"] == 1:
                model.prepare()
                record["curve"], seconds, begin = [], 0.0, 0
                for end in (round(share * n_triplets) for share in STOPS):
                    started = time.process_time()
                    model.partial_fit(triplets[begin:end])
                    seconds += time.process_time() - started
                    begin = end
                    record["curve"].append(
                        {"n": end, "seconds": round(seconds, 3), **measures(model)}
                    )
                record |= record["curve"][-1]
            else:
                mixed = MixedLearner(model, **cell).fit(triplets)
                rounds = mixed.mixings_
                record |= measures(mixed)
                record["seconds"] = round(sum(one.critical_seconds for one in rounds), 3)
                record["learning"] = round(sum(max(one.learning) for one in rounds), 3)
                record["mixing"] = round(sum(max(one.mixing) for one in rounds), 3)
                del mixed
            record["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
            with RECORDS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print({k: v for k, v in record.items() if k != "curve"}, flush=True)
            del model


# -- the page -----------------------------------------------------------------------------------------------


def in_order_at(curve, seconds):
    """mAP of the learner in order after so many seconds, between its stops."""
    times, quality = [0.0], [None]
    times, quality = [p["seconds"] for p in curve], [p["mAP"] for p in curve]
    return float(np.interp(seconds, times, quality))


def table(found, name, learner):
    """Rows for shards and rounds of one learner on one set."""
    sequential = next(r for r in found if r["n_shards"] == 1)
    curve = sequential["curve"]
    lines = [
        "| shards | rounds | mAP | in order, same time | zeros | seconds | times as fast |",
        "|---|---|---|---|---|---|---|",
        f"| 1 (in order) | | {sequential['mAP']:.3f} | | {100 * sequential['sparsity']:.1f} % | "
        f"{sequential['seconds']:.1f} | |",
    ]
    rows = [r for r in found if r["n_shards"] > 1 and "step" not in r and "weights" not in r]
    for r in sorted(rows, key=lambda r: (r["n_shards"], r["n_rounds"])):
        beside = in_order_at(curve, r["seconds"])
        lines.append(
            f"| {r['n_shards']} | {r['n_rounds']} | {r['mAP']:.3f} | {beside:.3f} | {100 * r['sparsity']:.1f} % | "
            f"{r['seconds']:.1f} | {sequential['seconds'] / r['seconds']:.1f} |"
        )
    return "\n".join(lines)


def variants_table(everything):
    """The other choices, for four shards and five rounds."""
    names = ["mean", *(next(iter(v.values())) for v in VARIANTS)]
    lines = [
        "| | in order | mean | sum / sqrt(4) | sum | mean, weights by updates |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for (name, learner), found in everything.items():
        cells_of = {
            r.get("step", r.get("weights", "mean")): r
            for r in found
            if r.get("n_rounds") == 5 and r["n_shards"] == 4
        }
        sequential = next(r for r in found if r["n_shards"] == 1)
        shown = [sequential, *(cells_of.get(n) for n in names)]
        texts = [f"{r['mAP']:.3f} ({100 * r['sparsity']:.1f} %)" if r else "" for r in shown]
        lines.append(f"| {name}, {learner} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def picture(everything):
    """mAP against seconds: the learner in order as a line, mixed models as points, larger with more rounds."""
    from simstream.plots import new_figure, save_figure, tidy

    names = list(dict.fromkeys(name for name, _ in everything))
    learners = list(dict.fromkeys(learner for _, learner in everything))
    figure = new_figure(3.6 * len(learners), 3.2 * len(names))
    axes = figure.subplots(len(names), len(learners), squeeze=False)
    marks = {2: ("#E69F00", "o"), 4: ("#009E73", "s"), 8: ("#CC79A7", "^")}
    for (name, learner), found in everything.items():
        ax = axes[names.index(name), learners.index(learner)]
        curve = next(r["curve"] for r in found if r["n_shards"] == 1)
        ax.plot(
            [p["seconds"] for p in curve],
            [p["mAP"] for p in curve],
            color="#0072B2",
            label="in order",
        )
        for n, (colour, mark) in marks.items():
            some = sorted(
                (r for r in found if r["n_shards"] == n and "step" not in r and "weights" not in r),
                key=lambda r: r["n_rounds"],
            )
            x, y = [r["seconds"] for r in some], [r["mAP"] for r in some]
            ax.plot(
                x, y, color=colour, marker=mark, linewidth=0.8, markersize=5, label=f"{n} shards"
            )
            for r in some:
                ax.annotate(
                    str(r["n_rounds"]),
                    (r["seconds"], r["mAP"]),
                    fontsize=7,
                    xytext=(3, 3),
                    textcoords="offset points",
                )
        ax.set_title(f"{name}, {learner}", fontsize=10)
        ax.set_xlabel("seconds, a processor for every shard")
        ax.set_ylabel("mAP")
        tidy(ax, grid="both")
    axes[0, 0].legend(fontsize=8, frameon=False)
    save_figure(figure, FIGURE)


def write():
    """Put tables and picture into the page."""
    everything = {}
    for record in records():
        everything.setdefault((record["data"], record["learner"]), []).append(record)
    order = {
        (n, le): i for i, (n, le) in enumerate((n, le) for n in DATA for le in DATA[n]["learners"])
    }
    everything = dict(sorted(everything.items(), key=lambda item: order[item[0]]))
    text = [f"Measured in CPU seconds on: {machine()}."]
    for (name, learner), found in everything.items():
        given = ", ".join(
            f"{k}={v}" for k, v in found[0]["parameters"].items() if k != "head_bytes"
        )
        peak = max(r["peak_gb"] for r in found)
        title = f"### {name}, {learner} ({given}), {found[0]['n_triplets']:,} triplets"
        text += [title, table(found, name, learner), f"Peak memory of the process: {peak:.1f} GB."]
    text += [
        "### Steps and weights (4 shards, 5 rounds): mAP and zeros",
        variants_table(everything),
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    body = "\n\n".join(text)
    PAGE.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}")
    picture(everything)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "write"])
    parser.add_argument("data", nargs="*", choices=[*DATA, []], default=[])
    parser.add_argument("--learners", nargs="*", default=["SORS", "AdaSORS", "AROMA"])
    options = parser.parse_args()
    if options.what == "run":
        for one in options.data or DATA:
            run(one, options.learners)
    else:
        write()
