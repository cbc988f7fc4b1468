"""Parameter mixing beside learning in order, on bbc and sector; writes docs/mixing.md and docs/mixing.png.

SIMSTREAM_DATA=FOLDER python benchmarks/bench_mixing.py run [bbc sector] [--learners SORS AdaSORS AROMA] [--again]
python benchmarks/bench_mixing.py write

`run` appends what is missing to docs/mixing.jsonl, one line for each model, and with `--again` forgets first what is
there of these sets and learners; `write` makes the page's tables and the picture of it. Everything runs in one process, one shard after the other: the time of a round is that of its longest
shard and of its longest part of the mixing (`Mixing.critical_seconds`), in CPU seconds, as if every shard had a
processor of its own and messages were free.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

import numpy as np

from bench_common import ROOT, machine, put_between

RECORDS = ROOT / "docs" / "mixing.jsonl"
PAGE = ROOT / "docs" / "mixing.md"
FIGURE = ROOT / "docs" / "mixing.png"
MARKS = "<!-- measured: begin -->", "<!-- measured: end -->"

#: Shards and rounds, and the other choices: more of them for SORS, whose models are the smallest.
MOST = tuple((n_shards, n_rounds) for n_rounds in (1, 2, 5) for n_shards in (2, 4, 8))
SOME = ((4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2), (4, 5))
FEW = ((4, 1), (8, 1), (2, 1), (4, 2))
CELLS = {
    ("bbc", "SORS"): MOST,
    ("bbc", "AdaSORS"): SOME,
    ("bbc", "AROMA"): FEW,
    ("sector", "SORS"): ((4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2), (2, 5), (4, 5)),
    ("sector", "AdaSORS"): FEW,
    ("sector", "AROMA"): FEW,
}
#: The other choices, for four shards and two rounds (five for SORS).
VARIANTS = ({"step": "sqrt"}, {"step": "sum"}, {"weights": "updates"})
#: In order with these steps: whether mixing is just a way to take smaller ones.
SMALLER_STEPS = (0.03, 0.01)
#: Shares of the stream after which the learner in order is measured.
STOPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)

#: Parameters of the published experiments (bbc), and those chosen in docs/repro/p0.md (sector).
DATA = {
    "bbc": {
        "n_triplets": {"SORS": 40_000, "AdaSORS": 40_000, "AROMA": 10_000},
        "learners": {
            "SORS": {"lam": 1e-6, "eta": 0.1},
            "AdaSORS": {"lam": 1e-6, "eta": 0.1, "delta": 0.1},
            "AROMA": {"r": 90.0, "covariance": "diagonal-drop"},
        },
    },
    "sector": {
        "n_triplets": {"SORS": 3_000, "AdaSORS": 3_000, "AROMA": 3_000},
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
    if (name, learner) == ("bbc", "SORS"):
        for eta in SMALLER_STEPS:
            yield {"n_shards": 1, "eta": eta}
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
        "eta",
        "parameters",
    )
    return json.dumps([record.get(name) for name in given])


def records():
    """All records there are."""
    if not RECORDS.exists():
        return []
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def forget(name, learners):
    """Delete the records of these learners on a set."""
    kept = [r for r in records() if r["data"] != name or r["learner"] not in learners]
    RECORDS.write_text("".join(json.dumps(record) + "\n" for record in kept))


def run(name, learners):
    """Measure what is missing."""
    import simstream
    from simstream import TripletSampler
    from simstream.distributed import MixedLearner

    items, labels, test_items, test_labels = parts(name)
    known = {key(record) for record in records()}

    def measures(model):
        quality = simstream.metrics.mean_average_precision(model, test_items, test_labels)
        return {"mAP": round(quality, 5), "sparsity": round(model.sparsity_, 5)}

    for learner in learners:
        parameters = DATA[name]["learners"][learner]
        n_triplets = DATA[name]["n_triplets"][learner]
        triplets = TripletSampler(labels, 0).draw(n_triplets)
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
                "version": simstream.__version__,
            }
            if key(record) in known:
                continue
            own = {"eta": cell["eta"]} if "eta" in cell else {}
            model = make(**parameters | own, preprocessor=items)
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
            with RECORDS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print({k: v for k, v in record.items() if k != "curve"}, flush=True)
            del model
            gc.collect()


# -- the page -----------------------------------------------------------------------------------------------


def in_order_at(curve, seconds):
    """mAP of the learner in order after so many seconds, between its stops."""
    return float(np.interp(seconds, [p["seconds"] for p in curve], [p["mAP"] for p in curve]))


def averages(found):
    """Records of the plain average, by shards and rounds."""
    plain = (r for r in found if r["n_shards"] > 1 and "step" not in r and "weights" not in r)
    return sorted(plain, key=lambda r: (r["n_shards"], r["n_rounds"]))


def in_order(found):
    """The record of the learner in order."""
    return next(r for r in found if r["n_shards"] == 1 and "eta" not in r)


def quality(record):
    """mAP and share of zeros."""
    return f"{record['mAP']:.3f} ({100 * record['sparsity']:.1f} %)"


def table(found):
    """Rows for shards and rounds of one learner on one set."""
    one = in_order(found)
    lines = [
        "| shards | rounds | mAP | in order, same time | zeros | seconds | times as fast as in order |",
        "|---|---|---|---|---|---|---|",
        f"| in order | | {one['mAP']:.3f} | | {100 * one['sparsity']:.1f} % | {one['seconds']:.1f} | |",
    ]
    lines += [
        f"| in order, eta={r['eta']} | | {r['mAP']:.3f} | | {100 * r['sparsity']:.1f} % | {r['seconds']:.1f} | |"
        for r in found
        if "eta" in r
    ]
    for r in averages(found):
        beside = in_order_at(one["curve"], r["seconds"])
        lines.append(
            f"| {r['n_shards']} | {r['n_rounds']} | {r['mAP']:.3f} | {beside:.3f} | {100 * r['sparsity']:.1f} % | "
            f"{r['seconds']:.1f} | {one['seconds'] / r['seconds']:.1f} |"
        )
    return "\n".join(lines)


def variants_table(everything):
    """The other choices, for four shards."""
    lines = [
        "| | rounds | in order | average | sum / sqrt(4) | sum | average, weights by updates |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, learner), found in everything.items():
        others = {
            r.get("step", r.get("weights")): r for r in found if "step" in r or "weights" in r
        }
        if not others:
            continue
        n_rounds = next(iter(others.values()))["n_rounds"]
        plain = [r for r in averages(found) if (r["n_shards"], r["n_rounds"]) == (4, n_rounds)]
        shown = [in_order(found), *plain, *(others.get(way) for way in ("sqrt", "sum", "updates"))]
        texts = [quality(r) if r else "" for r in shown]
        lines.append(f"| {name}, {learner} | {n_rounds} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def picture(everything):
    """mAP against seconds: the learner in order as a line, mixed models as points with their rounds."""
    from simstream.plots import new_figure, save_figure, tidy

    names = list(dict.fromkeys(name for name, _ in everything))
    learners = list(dict.fromkeys(learner for _, learner in everything))
    figure = new_figure(3.6 * len(learners), 3.2 * len(names))
    axes = figure.subplots(len(names), len(learners), squeeze=False)
    marks = {2: ("#E69F00", "o"), 4: ("#009E73", "s"), 8: ("#CC79A7", "^")}
    for ax in axes.flat:
        ax.set_visible(False)
    for (name, learner), found in everything.items():
        ax = axes[names.index(name), learners.index(learner)]
        ax.set_visible(True)
        curve = in_order(found)["curve"]
        seconds = [p["seconds"] for p in curve]
        ax.plot(seconds, [p["mAP"] for p in curve], color="#0072B2", marker=".", label="in order")
        for n, (colour, mark) in marks.items():
            some = [r for r in averages(found) if r["n_shards"] == n]
            points = [r["seconds"] for r in some], [r["mAP"] for r in some]
            ax.plot(
                *points, color=colour, marker=mark, linewidth=0.8, markersize=5, label=f"{n} shards"
            )
            for r in some:
                place = {"xytext": (4, 3), "textcoords": "offset points", "fontsize": 7}
                ax.annotate(str(r["n_rounds"]), (r["seconds"], r["mAP"]), **place)
        ax.set_title(f"{name}, {learner}", fontsize=10)
        ax.set_xlabel("seconds, a processor for every shard")
        ax.set_ylabel("mAP")
        tidy(ax, grid="both")
    axes[0, 0].legend(fontsize=8, frameon=False)
    save_figure(figure, FIGURE)


def write():
    """Put tables and picture into the page."""
    given = records()
    groups = {(name, learner): [] for name in DATA for learner in DATA[name]["learners"]}
    for record in given:
        groups[record["data"], record["learner"]].append(record)
    everything = {k: found for k, found in groups.items() if any(r["n_shards"] == 1 for r in found)}
    text = [f"CPU seconds on: {machine()}."]
    for (name, learner), found in everything.items():
        parameters = ", ".join(
            f"{k}={v}" for k, v in found[0]["parameters"].items() if k != "head_bytes"
        )
        before = next(r["mAP"] for r in given if r["data"] == name and r["n_shards"] == 0)
        text += [
            f"### {name}, {learner} ({parameters})",
            f"{found[0]['n_triplets']:,} triplets; mAP before learning {before:.3f}.",
            table(found),
        ]
    text += ["### Longer steps, and weights: mAP and zeros, 4 shards", variants_table(everything)]
    body = "\n\n".join(text)
    put_between(PAGE, MARKS, f"\n{body}\n")
    picture(everything)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "write"])
    parser.add_argument("data", nargs="*", choices=[*DATA, []], default=[])
    parser.add_argument("--learners", nargs="*", default=["SORS", "AdaSORS", "AROMA"])
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    options = parser.parse_args()
    if options.what == "run":
        for one in options.data or DATA:
            if options.again:
                forget(one, options.learners)
            run(one, options.learners)
    else:
        write()
