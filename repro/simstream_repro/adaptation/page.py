"""The page on adaptation: tables and a picture, from records alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstream.data import atomic_write
from simstream.plots import new_figure, tidy

from ..protocols.adaptation.contenders import CONTENDERS
from ..records import Record, RecordStore
from ..report import render, versions_of
from .plan import STUDIES, Part, Study

#: The first measure decides who is compared with whom.
_MEASURES: dict[Part, tuple[str, ...]] = {
    "retrieval": ("nDCG@10", "mAP", "P@1", "recall@10"),
    "items": ("nDCG@10", "mAP", "P@1", "recall@10"),
    "labels": ("mAP", "P@1"),
    "triplets": ("accuracy",),
}
_TITLES: dict[Part, str] = {
    "retrieval": "Search that learns from judged queries",
    "items": "Search where the relevant items are new",
    "labels": "Class labels",
    "triplets": "Triplets that people answered",
}
_NOTES: dict[Part, str] = {
    "retrieval": (
        "Test collections with vectors of a sentence encoder. 60 % of the queries train (or those that the "
        "collection itself names), the others rank all items."
    ),
    "items": (
        "The same, with half of the items unknown while learning. All items are ranked; only unknown ones "
        "count as relevant, and known ones that are relevant are no candidates."
    ),
    "labels": (
        "Half of every class trains; each item of the other half ranks the others of it. Preprocessing uses "
        "the training half alone."
    ),
    "triplets": (
        "Pictures of shoes; which of two is more like a third? Half of the answers train, accuracy is "
        "that on the other half. The shoes are the same in both."
    ),
}
#: The contender of simstream that is compared in the summary, whatever the others reach.
_ENTRANTS: dict[Part, str] = {
    "retrieval": "Adapter",
    "items": "Adapter",
    "labels": "RCA, then ListwiseSoftmax",
    "triplets": "RCA, then ListwiseSoftmax",
}
#: What is asked of them: seconds of the torch layer for one of theirs, and loss beside nothing learnt.
_TIMES_FASTER: dict[Part, float] = {
    "retrieval": 20.0,
    "items": 20.0,
    "labels": 5.0,
    "triplets": 5.0,
}
_MOST_LOSS = 0.005
#: Okabe and Ito's, by the order of contenders; what nothing was learnt for is grey.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#777777"
#: Not in the picture: far below the others, it would leave them no room.
_LEFT_OUT = "OASIS"


def write_page(store: RecordStore, output: str | Path) -> list[Path]:
    """Write the page, and its picture beside it.

    Parameters
    ----------
    store : RecordStore
    output : path of a Markdown file

    Returns
    -------
    list of Path
        What was written.
    """
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    curves = curve_tables(store)
    written = []
    picture = output.with_name(f"{output.stem}-curve.png")
    if curves:
        figure = _draw(curves)
        with atomic_write(picture) as temporary, open(temporary, "wb") as file:
            figure.savefig(file, format="png", dpi=110, facecolor="white")
        written.append(picture)
    records = [record for study in STUDIES.values() for record in _records(study, store)]
    context = {
        "parts": [
            {
                "id": part,
                "title": _TITLES[part],
                "note": _NOTES[part],
                "tables": tables,
            }
            for part in _MEASURES
            if (tables := part_tables(part, store))
        ],
        "short": summary(store),
        "curves": curves,
        "picture": picture.name,
        "contenders": {
            name: one.note
            for name, one in CONTENDERS.items()
            if any(record["method"] == name for record in records)
        },
        "n_records": len(records),
        "n_failed": sum(record["status"] != "done" for record in records),
        "hours": sum(record.get("wall_seconds", 0.0) for record in records) / 3600,
        "versions": versions_of(records),
    }
    with atomic_write(output) as temporary:
        temporary.write_text(render("adaptation.md.j2", context), "utf-8")
    return [output, *written]


def _records(study: Study, store: RecordStore) -> list[Record]:
    """Those of contenders as they are: with other parameters, a record is of an earlier plan."""
    found = store.of_study(study.id)
    seeds = sorted({record["seed"] for record in found})
    return [record for cell in study.cells(seeds) if (record := store.find(cell)) is not None]


# -- tables -------------------------------------------------------------------------------------------------


def part_tables(part: Part, store: RecordStore) -> list[dict[str, Any]]:
    """One table per data set: a row for each contender that has a record."""
    study, measures = STUDIES[part], _MEASURES[part]
    records = [record for record in _records(study, store) if record["status"] == "done"]
    return [
        _table(name, study, measures, mine)
        for name in study.data
        if (mine := [record for record in records if record["dataset"] == name])
    ]


def _table(
    name: str, study: Study, measures: Sequence[str], records: list[Record]
) -> dict[str, Any]:
    by_method = _by_method(study, records)
    is_fair = len({tuple(found) for found in by_method.values()}) == 1
    best = {key: max(_mean(found, key) for found in by_method.values()) for key in measures}
    baseline, opponent = _rivals(by_method, measures[0])
    is_search = "n_judgements" in records[0]
    rows = []
    for method, found in by_method.items():
        role = CONTENDERS[method].role
        row: dict[str, Any] = {
            "name": method,
            "cells": [
                {
                    "text": _seeds(found, key),
                    "best": is_fair and round(_mean(found, key), 3) == round(best[key], 3),
                }
                for key in measures
            ],
            "worst": "",
            "beside": "",
            "seconds": "" if role == "baseline" else f"{_mean(found, 'seconds'):.2g}",
            "each": "" if role == "baseline" or not is_search else f"{_milliseconds(found):.2g}",
            "megabytes": f"{_mean(found, 'process MB'):.0f}",
            "faster": "",
            "smaller": "",
        }
        if baseline is not None and role != "baseline":
            gains = _differences(found, by_method[baseline], measures[0])
            row["worst"] = f"{min(gains):+.3f}" if gains else ""
        if opponent is not None and role == "simstream":
            row |= _beside(found, by_method[opponent], measures[0])
        rows.append(row)
    return {
        "name": name,
        "facts": _facts(records[0]),
        "main": measures[0],
        "measures": measures,
        "is_search": is_search,
        "is_fair": is_fair,
        "baseline": baseline,
        "opponent": opponent,
        "rows": rows,
    }


#: Records of one contender on one data set, by seed.
BySeed = dict[int, Record]


def _by_method(study: Study, records: list[Record]) -> dict[str, BySeed]:
    by_method: dict[str, BySeed] = {}
    for method in study.methods():
        found = {record["seed"]: record for record in records if record["method"] == method}
        if found:
            by_method[method] = dict(sorted(found.items()))
    return by_method


def _rivals(by_method: dict[str, BySeed], main: str) -> tuple[str | None, str | None]:
    """What nothing was learnt for, and the best layer trained in batches, of those with most seeds."""
    baselines = [name for name in by_method if CONTENDERS[name].role == "baseline"]
    opponents = [name for name in by_method if CONTENDERS[name].role == "opponent"]
    return (
        baselines[0] if baselines else None,
        max(
            opponents,
            key=lambda name: (len(by_method[name]), _mean(by_method[name], main)),
            default=None,
        ),
    )


def _mean(found: BySeed, key: str, seeds: Iterable[int] | None = None) -> float:
    """Mean over all seeds, or over these."""
    chosen = found if seeds is None else seeds
    return float(np.mean([found[seed]["measures"][key] for seed in chosen]))


def _seeds(found: BySeed, key: str) -> str:
    """The mean, and the seeds it is of."""
    each = " ".join(f"{record['measures'][key]:.3f}" for record in found.values())
    return f"{_mean(found, key):.3f}" + (f" ({each})" if len(found) > 1 else "")


def _milliseconds(found: BySeed) -> float:
    """CPU time for each judgement."""
    return float(
        np.mean([1e3 * r["measures"]["seconds"] / r["n_judgements"] for r in found.values()])
    )


def _differences(found: BySeed, other: BySeed, key: str) -> list[float]:
    """Of every seed that both have."""
    return [
        record["measures"][key] - other[seed]["measures"][key]
        for seed, record in found.items()
        if seed in other
    ]


def _beside(found: BySeed, other: BySeed, key: str) -> dict[str, str]:
    """How far above, how many times faster and smaller than another, on the seeds that both have."""
    shared = [seed for seed in found if seed in other]
    if not shared:
        return {}
    return {
        "beside": f"{np.mean(_differences(found, other, key)):+.3f}",
        "faster": _ratio(_mean(other, "seconds", shared), _mean(found, "seconds", shared)),
        "smaller": _ratio(_mean(other, "process MB", shared), _mean(found, "process MB", shared)),
    }


# -- the summary --------------------------------------------------------------------------------------------


def summary(store: RecordStore) -> dict[str, Any]:
    """One line for each data set that simstream and torch were measured on, and what was reached."""
    rows, reached = [], []
    for part, entrant in _ENTRANTS.items():
        main = _MEASURES[part][0]
        done = [one for one in _records(STUDIES[part], store) if one["status"] == "done"]
        for name in STUDIES[part].data:
            mine = _by_method(STUDIES[part], [one for one in done if one["dataset"] == name])
            baseline, opponent = _rivals(mine, main)
            if baseline is None or opponent is None or entrant not in mine:
                continue
            seeds = [seed for seed in mine[entrant] if seed in mine[opponent]]
            gains = _differences(mine[entrant], mine[baseline], main)
            if not seeds or not gains:
                continue
            own, theirs = (_mean(mine[one], main, seeds) for one in (entrant, opponent))
            seconds = [_mean(mine[one], "seconds", seeds) for one in (opponent, entrant)]
            rows.append(
                {
                    "name": name + (", new items" if part == "items" else ""),
                    "main": main,
                    "entrant": entrant,
                    "opponent": opponent,
                    "before": f"{_mean(mine[baseline], main, seeds):.3f}",
                    "theirs": f"{theirs:.3f}",
                    "own": f"{own:.3f}",
                    "worst": f"{min(gains):+.3f}",
                    "n_seeds": len(seeds),
                    "faster": _ratio(*seconds),
                    "wanted": f"{_TIMES_FASTER[part]:.0f}x",
                    "smaller": _beside(mine[entrant], mine[opponent], main)["smaller"],
                }
            )
            reached.append(
                {
                    "as good": round(own, 3) >= round(theirs, 3),
                    "safe": min(gains) >= -_MOST_LOSS,
                    "fast": seconds[0] >= _TIMES_FASTER[part] * seconds[1],
                }
            )
    missed = {
        key: [row["name"] for row, one in zip(rows, reached, strict=True) if not one[key]]
        for key in ("as good", "safe", "fast")
    }
    return {"rows": rows, "missed": missed, "most_loss": _MOST_LOSS}


# -- numbers and words --------------------------------------------------------------------------------------


def _ratio(theirs: float, ours: float) -> str:
    """How many times ours theirs is.

    Examples
    --------
    >>> _ratio(40.0, 2.0), _ratio(1.0, 2.0), _ratio(1.0, 0.0)
    ('20x', '0.5x', '')
    """
    if not ours > 0:
        return ""
    return f"{theirs / ours:,.0f}x" if theirs >= 10 * ours else f"{theirs / ours:.2g}x"


def _facts(record: Record) -> str:
    words = {
        "n_train": "queries train" if "n_judgements" in record else "train",
        "n_judgements": "judgements",
        "n_test": "test",
        "n_items": "items are ranked",
    }
    named = [f"{record[key]:,} {word}" for key, word in words.items() if key in record]
    if record["preprocessing"] != "as-is":
        named.append(f"preprocessing: {record['preprocessing']}")
    return ", ".join(named)


# -- the curve ----------------------------------------------------------------------------------------------


def curve_tables(store: RecordStore) -> list[dict[str, Any]]:
    """For each collection nDCG@10 of every contender by number of judged queries, means over the seeds."""
    done = [
        record
        for part in ("curve", "retrieval")
        for record in _records(STUDIES[part], store)
        if record["status"] == "done"
    ]
    if not any(record["variant"] for record in done):
        return []
    tables = []
    for name in STUDIES["curve"].data:
        mine = [record for record in done if record["dataset"] == name]
        lines: dict[str, dict[int, dict[int, float]]] = {}
        for record in mine:
            n = record["n_train"]
            if record["variant"] and n < record["variant"]["n_queries"]:
                continue  # there are no more than so many: the same as the last point
            at = lines.setdefault(record["method"], {}).setdefault(n, {})
            at[record["seed"]] = record["measures"]["nDCG@10"]
        if not lines:
            continue
        places = sorted({n for line in lines.values() for n in line})
        means = _curve_means(lines, places)
        tables.append({"name": name, "places": places, "means": means, "rows": _curve_rows(means)})
    return tables


def _curve_means(
    lines: dict[str, dict[int, dict[int, float]]], places: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Means over the seeds that all contenders with a record at a place have.

    Examples
    --------
    >>> _curve_means({"a": {10: {0: 0.25, 1: 0.75}}, "b": {10: {0: 0.5}}}, [10])
    {'a': {10: 0.25}, 'b': {10: 0.5}}
    """
    means: dict[str, dict[int, float]] = {method: {} for method in lines}
    for n in places:
        there = {method: line[n] for method, line in lines.items() if n in line}
        shared = set.intersection(*(set(values) for values in there.values()))
        for method, values in there.items():
            if shared:
                means[method][n] = float(np.mean([values[seed] for seed in sorted(shared)]))
    return means


def _curve_rows(means: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    places = sorted({n for line in means.values() for n in line})
    best = {n: max(line[n] for line in means.values() if n in line) for n in places}
    return [
        {
            "name": method,
            "cells": [
                {
                    "text": f"{line[n]:.3f}" if n in line else "",
                    "best": n in line and round(line[n], 3) == round(best[n], 3),
                }
                for n in places
            ],
        }
        for method, line in means.items()
    ]


def _draw(curves: list[dict[str, Any]]) -> Any:
    figure = new_figure(4.0 * len(curves), 3.6)
    learners = [name for name, one in CONTENDERS.items() if one.role != "baseline"]
    all_axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, table in zip(all_axes, curves, strict=True):
        for method, line in table["means"].items():
            if method == _LEFT_OUT:
                continue
            x = sorted(line)
            is_baseline = CONTENDERS[method].role == "baseline"
            colour = _GREY if is_baseline else _COLOURS[learners.index(method) % len(_COLOURS)]
            axes.plot(
                x,
                [line[n] for n in x],
                color=colour,
                linestyle="--" if is_baseline else "-",
                marker=None if is_baseline else "o",
                markersize=4,
                label=method,
            )
        axes.set_xscale("log")
        axes.set_xticks(table["places"], [str(n) for n in table["places"]], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("judged queries")
        axes.set_title(table["name"])
        tidy(axes, grid="y")
    all_axes[0].set_ylabel("nDCG@10, test queries")
    all_axes[0].legend(frameon=False, fontsize=8)
    return figure
