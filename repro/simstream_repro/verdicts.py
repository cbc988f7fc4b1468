"""Our numbers beside the published ones, with a verdict on each.

A quality number is *reproduced* if it is within two published standard deviations of the printed one, or
within 0.01 (one point where the paper prints percent); otherwise it is *better* or *worse*. Only numbers on
exactly the paper's data count; those on stand-ins, parts of the data and bundled sets are shown, not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .plan import Exhibit, Explanation, Paper, Study, TableMeasure, published
from .records import Cell, Record, RecordStore, data_seed, over_seeds

#: How far from the printed one a quality number may be, in units of one.
CLOSE = 0.01

COUNTED = ("reproduced", "better", "worse")
#: Why a number that could be compared is missing.
MISSING = ("over budget", "out of memory", "failed", "not run")


#: Records by (data set, method), swept values together.
RecordTable = dict[tuple[str, str], list[Record]]


class StudyRecords(NamedTuple):
    """The records of a study that belong to cells of the plan, and what about them a page tells."""

    #: With the paper's parameters; with parameters chosen from grids only where the paper's were not run.
    table: RecordTable
    #: What was run with parameters from grids only, not with those the paper names: "OASIS on BBC".
    tuned_instead: list[str]
    #: Number of records that belong to no cell: the plan has changed since.
    n_left_out: int
    #: All cells that may have records, those that choose parameters first.
    cells: list[Cell]


class PaperRecords:
    """A paper with its records; the cells of a study are enumerated once, when it is first asked for."""

    def __init__(self, paper: Paper, store: RecordStore) -> None:
        self.paper, self.store = paper, store
        self._studies: dict[str, StudyRecords] = {}

    def table(self, study: Study) -> RecordTable:
        """Records of a study by (data set, method)."""
        return self.of(study).table

    def of(self, study: Study) -> StudyRecords:
        """Records of a study."""
        if study.id not in self._studies:
            self._studies[study.id] = self._find(study)
        return self._studies[study.id]

    def _find(self, study: Study) -> StudyRecords:
        records = self.store.of_study(study.id)
        # As many seeds as were run, be that fewer or more than planned.
        n_seeds = max((data_seed(one["seed"]) for one in records), default=0) + 1
        paper, grids = (
            {one.fingerprint: one for one in self.paper.cells(study, seeds=n_seeds, tuning=how)}
            for how in ("paper", "cv")
        )
        named, chosen = (_by_method(records, known) for known in (paper, grids))
        cells = paper | grids
        tuning = [cell.tuning() for cell in cells.values() if cell.grid]
        known = {one.fingerprint: one for one in tuning} | cells
        return StudyRecords(
            table=chosen | named,
            tuned_instead=[f"{key[1]} on {key[0]}" for key in chosen if key not in named],
            n_left_out=sum(one["fingerprint"] not in known for one in records),
            cells=list(known.values()),
        )


def _by_method(records: list[Record], known: dict[str, Cell]) -> RecordTable:
    """Records of known cells by (data set, method)."""
    found: RecordTable = {}
    for one in records:
        if one["fingerprint"] in known:
            found.setdefault((one["dataset"], one["method"]), []).append(one)
    return found


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


def compare(given: PaperRecords, exhibit: Exhibit) -> list[JudgedNumber]:
    """All numbers of a table: those we have, and those the paper prints."""
    paper = given.paper
    printed = published(exhibit.published) if exhibit.published else {}
    study = paper.study_of(exhibit.id)
    found = given.table(study) if study is not None else {}
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
                names = (dataset, method, measure.name)
                if verdict in COUNTED and _is_excepted(exhibit, names):
                    verdict = "not counted"
                because = [
                    one
                    for one in (paper.explanations if verdict == "worse" else ())
                    if _explains(one, exhibit, names)
                ]
                limits = [one["error"] for one in records if one["status"] == "over budget"]
                result.append(
                    JudgedNumber(
                        dataset,
                        method,
                        measure,
                        ours,
                        theirs,
                        std,
                        verdict,
                        explanation=" ".join(one.text for one in because),
                        is_tested=any(
                            given.store.of_study(name) for one in because for name in one.tested_by
                        ),
                        limit=limits[-1].removeprefix("more than ") if limits else "",
                        standing=paper.datasets[dataset].standing
                        if dataset in paper.datasets
                        else "",
                        planned=study.seeds_of(dataset) if study is not None else 0,
                    )
                )
    return result


def _is_excepted(exhibit: Exhibit, names: tuple[str, str, str]) -> bool:
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


def _explains(explanation: Explanation, exhibit: Exhibit, names: tuple[str, str, str]) -> bool:
    """Whether it is about this number: empty fields match everything."""
    wanted = (explanation.dataset, explanation.method, explanation.measure)
    return explanation.exhibit in ("", exhibit.id) and all(
        not some or name in some for some, name in zip(wanted, names, strict=True)
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
