"""Our numbers beside the published ones, with a verdict on each.

A quality number is *reproduced* if it is within two published standard deviations of the printed one, or
within 0.01 (one point where the paper prints percent); otherwise it is *better* or *worse*. Only numbers on
exactly the paper's data count; those on stand-ins, parts of the data and bundled sets are shown, not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .cell import Cell, data_seed
from .plan import Exhibit, Explanation, Paper, Study, TableMeasure, published
from .records import Record, RecordStore, over_seeds

#: How far from the printed one a quality number may be, in units of one.
CLOSE = 0.01

COUNTED = ("reproduced", "better", "worse")
#: Why a number that could be compared is missing.
MISSING = ("over budget", "out of memory", "failed", "not run")


@dataclass(frozen=True)
class JudgedNumber:
    """One number of a table: ours, theirs, and the verdict."""

    dataset: str
    method: str
    measure: TableMeasure
    #: Mean, standard deviation and number of seeds, in the paper's unit; None if there is none.
    ours: tuple[float, float, int] | None
    #: As printed, "" if the paper has none.
    theirs: str
    their_std: float | None
    verdict: str
    explanation: str = ""
    #: Whether a study with records tested the explanation.
    is_tested: bool = False
    #: The limit that a cell without a number exceeded, such as "60 seconds".
    limit: str = ""
    #: How the data relates to the paper's: "exact", "partial", "stand-in" ..
    standing: str = "exact"
    #: Number of seeds in the plan.
    planned: int = 0

    @property
    def published(self) -> float | None:
        """The printed value as a number, None if it is not a number."""
        return _number(self.theirs)

    @property
    def speed_up(self) -> float | None:
        """Their time over ours; None for other measures."""
        if self.measure.kind != "time" or self.ours is None or not self.published:
            return None
        return self.published / self.ours[0] if self.ours[0] > 0 else None


def compare(paper: Paper, exhibit: Exhibit, store: RecordStore) -> list[JudgedNumber]:
    """All numbers of a table: those we have, and those the paper prints."""
    printed = published(exhibit.published) if exhibit.published else {}
    study = paper.study_of(exhibit.id)
    found = records_of(paper, study, store) if study is not None else {}
    datasets = exhibit.datasets or (study.datasets if study is not None else ())
    methods = exhibit.methods or (study.methods if study is not None else ())
    if study is None:  # it cannot be run: show what is printed, in its order
        datasets = tuple(dict.fromkeys(key[0] for key in printed))
        methods = tuple(dict.fromkeys(key[1] for key in printed))
    result = []
    for measure in exhibit.measures:
        for dataset in datasets:
            for method in methods:
                printed_name = exhibit.printed_as.get(method, method)
                theirs, std = printed.get((dataset, printed_name, measure.name), ("", None))
                records = found.get((dataset, method), [])
                ours = _scaled(over_seeds(records, measure.ours), measure.scale)
                if ours is None and not theirs and not records:
                    continue
                verdict = _verdict(paper, dataset, measure, ours, theirs, std, records)
                limit = _limit(records) if verdict == "over budget" else ""
                if verdict in COUNTED and _is_excepted(exhibit, dataset, method, measure):
                    verdict = "not counted"
                one = JudgedNumber(
                    dataset,
                    method,
                    measure,
                    ours,
                    theirs,
                    std,
                    verdict,
                    limit=limit,
                    standing=paper.datasets[dataset].standing if dataset in paper.datasets else "",
                    planned=study.seeds_of(dataset) if study is not None else 0,
                )
                result.append(_explained(one, exhibit, paper, store))
    return result


def _limit(records: list[Record]) -> str:
    found = [record["error"] for record in records if record["status"] == "over budget"]
    return found[-1].removeprefix("more than ")


def records_of(
    paper: Paper, study: Study, store: RecordStore
) -> dict[tuple[str, str], list[Record]]:
    """Records of the cells of a study by (data set, method), swept values together."""
    # The paper's parameters; parameters chosen from grids only where the paper's were not run: never both.
    chosen, named = _chosen_and_named(paper, study, store)
    return chosen | named


def tuned_instead(paper: Paper, study: Study, store: RecordStore) -> list[str]:
    """What was run with parameters from grids only, not with those the paper names: "OASIS on BBC"."""
    chosen, named = _chosen_and_named(paper, study, store)
    return [
        f"{method} on {dataset}" for dataset, method in chosen if (dataset, method) not in named
    ]


def _recorded_cells(paper: Paper, study: Study, store: RecordStore, tuning: str) -> list[Cell]:
    """Cells that may have records: of as many seeds as were run, be that fewer or more than planned."""
    seeds = [data_seed(record["seed"]) for record in store.of_study(study.id)]
    return list(paper.cells(study, seeds=max(seeds, default=0) + 1, tuning=tuning))


def tidy(paper: Paper, study: Study, store: RecordStore, *, only_look: bool = False) -> int:
    """Keep what pages show and runs resume from: finished cells of the plan, and their tuning.

    Returns how many records are kept.
    """
    cells = _cells_and_tuning(paper, study, store)
    if not only_look:
        store.compact(study.id, cells)
    return len(store.finished(cells))


def _cells_and_tuning(paper: Paper, study: Study, store: RecordStore) -> list[Cell]:
    """All cells that may have records, those that choose parameters included."""
    cells = [cell for how in ("paper", "cv") for cell in _recorded_cells(paper, study, store, how)]
    tuned = [cell.tuning() for cell in cells if cell.grid]
    return list({one.fingerprint: one for one in (*tuned, *cells)}.values())


def n_left_out(paper: Paper, study: Study, store: RecordStore) -> int:
    """How many records of a study belong to no cell of the plan: the plan has changed since."""
    known = {cell.fingerprint for cell in _cells_and_tuning(paper, study, store)}
    return sum(record["fingerprint"] not in known for record in store.of_study(study.id))


def _chosen_and_named(
    paper: Paper, study: Study, store: RecordStore
) -> tuple[dict[tuple[str, str], list[Record]], ...]:
    """Records by (data set, method): with parameters from grids, and with those the paper names."""
    both = []
    for tuning in ("cv", "paper"):
        known = {cell.fingerprint for cell in _recorded_cells(paper, study, store, tuning)}
        found: dict[tuple[str, str], list[Record]] = {}
        for record in store.of_study(study.id):
            if record["fingerprint"] in known:
                found.setdefault((record["dataset"], record["method"]), []).append(record)
        both.append(found)
    return tuple(both)


def _is_excepted(exhibit: Exhibit, dataset: str, method: str, measure: TableMeasure) -> bool:
    names = (dataset, method, measure.name)
    return any(
        all(want in ("", name) for want, name in zip(one, names, strict=True))
        for one in exhibit.not_counted
    )


def _scaled(
    found: tuple[float, float, int] | None, scale: float
) -> tuple[float, float, int] | None:
    return None if found is None else (found[0] * scale, found[1] * scale, found[2])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _verdict(
    paper: Paper,
    dataset: str,
    measure: TableMeasure,
    ours: tuple[float, float, int] | None,
    theirs: str,
    std: float | None,
    records: list[Record],
) -> str:
    given = paper.datasets.get(dataset)
    if given is None or not given.data:
        return "data absent"
    ends = {record["status"] for record in records}
    # Within the budget for some seeds only is over budget.
    if ours is None or "over budget" in ends:
        ended = next((word for word in MISSING if word in ends), "not run")
        return "does not apply" if ended == "not run" and "done" in ends else ended
    if not math.isfinite(ours[0]):
        return "failed"
    value = _number(theirs)
    if value is None:
        return "not printed"
    if given.standing != "exact":
        return given.standing
    if measure.kind != "quality":
        return "not compared"
    return judge(ours[0], value, std, close=CLOSE * measure.scale, better=measure.better)


def judge(
    ours: float, theirs: float, std: float | None, *, close: float = CLOSE, better: str = "higher"
) -> str:
    """The verdict on one number.

    Examples
    --------
    >>> judge(0.509, 0.5, None), judge(0.52, 0.5, None), judge(0.52, 0.5, None, better="lower")
    ('reproduced', 'better', 'worse')
    >>> judge(0.47, 0.5, 0.02)
    'reproduced'
    """
    difference = ours - theirs
    if abs(difference) <= max(close, 2 * (std or 0.0)) + 1e-9:
        return "reproduced"
    return "better" if (difference > 0) == (better == "higher") else "worse"


def _explained(
    one: JudgedNumber, exhibit: Exhibit, paper: Paper, store: RecordStore
) -> JudgedNumber:
    if one.verdict != "worse":
        return one
    found = [each for each in paper.explanations if _explains(each, one, exhibit)]
    is_tested = any(store.of_study(name) for each in found for name in each.tested_by)
    return replace(one, explanation=" ".join(each.text for each in found), is_tested=is_tested)


def _explains(explanation: Explanation, one: JudgedNumber, exhibit: Exhibit) -> bool:
    """Whether it is about this number: empty fields match everything."""
    return (
        explanation.exhibit in ("", exhibit.id)
        and (not explanation.dataset or one.dataset in explanation.dataset)
        and (not explanation.method or one.method in explanation.method)
        and (not explanation.measure or one.measure.name in explanation.measure)
    )


def count(comparisons: Iterable[JudgedNumber]) -> Counter[str]:
    """How many quality numbers have each verdict; missing ones count where the data is the paper's."""
    return Counter(
        one.standing if one.verdict in MISSING and one.standing != "exact" else one.verdict
        for one in comparisons
        if one.measure.kind == "quality" and _number(one.theirs) is not None
    )


def n_with_fewer_runs(comparisons: Iterable[JudgedNumber]) -> int:
    """How many of the counted numbers are means of fewer runs than planned."""
    return sum(
        one.verdict in COUNTED and one.ours is not None and one.ours[2] < one.planned
        for one in comparisons
        if one.measure.kind == "quality"
    )


def n_missing(counts: Counter[str]) -> int:
    """How many numbers could be compared and are missing."""
    return sum(counts[word] for word in MISSING)


def share_good(counts: Counter[str]) -> float | None:
    """Share of the counted numbers that are reproduced or better; None if nothing counts.

    Examples
    --------
    >>> share_good(Counter({"reproduced": 6, "better": 1, "worse": 3, "stand-in": 9}))
    0.7
    """
    counted = sum(counts[word] for word in COUNTED)
    return None if counted == 0 else (counts["reproduced"] + counts["better"]) / counted
