"""Our numbers beside the published ones, with a verdict on each.

A quality number on exactly the paper's data is *within* the uncertainty of the printed one, *above* it
(better) or *below* it (worse). The uncertainty is two standard errors of the difference where the spread of
both is known, and otherwise 0.01 (one point where the paper prints percent). Numbers on stand-ins, on parts
of the data and on bundled sets have no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from scipy.special import stdtrit

from .plan import Exhibit, Explanation, Paper, Study, TableMeasure, published
from .records import FINAL, Cell, Record, RecordStore, n_seeds_of, over_seeds, repeated, with_tuning

#: How far from the printed one a quality number may be, in units of one, where a spread is not known.
CLOSE = 0.01

COUNTED = ("within", "above", "below")
#: Why a number that could be compared is missing.
MISSING = ("over budget", "out of memory", "failed", "not run")


#: What is said of numbers that get no verdict: why, and then how many there are.
NO_VERDICT = {
    "data absent": "where the data is absent",
    "partial": "where we have a part of it",
    "stand-in": "where another data set stands in",
    "bundled": "on data bundled with scikit-learn",
    "does not apply": "that our runs do not have",
}


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
        self._planned: dict[str, list[Cell]] = {}

    def planned(self, study: Study) -> list[Cell]:
        """The cells of the plan, those that choose parameters included."""
        if study.id not in self._planned:
            self._planned[study.id] = list(with_tuning(self.paper.cells(study)).values())
        return self._planned[study.id]

    def table(self, study: Study) -> RecordTable:
        """Records of a study by (data set, method)."""
        return self.of(study).table

    def merged(self, names: Iterable[str]) -> RecordTable:
        """Records of several studies by (data set, method); of two with the same, those of the later one."""
        found: RecordTable = {}
        for name in names:
            found |= self.table(self.paper.studies[name])
        return found

    def of(self, study: Study) -> StudyRecords:
        """Records of a study."""
        if study.id not in self._studies:
            self._studies[study.id] = self._find(study)
        return self._studies[study.id]

    def _find(self, study: Study) -> StudyRecords:
        records = self.store.of_study(study.id)
        n_seeds = n_seeds_of(records)
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


class Outstanding(NamedTuple):
    """What is still to be run of a study, and what comes from other code."""

    study: str
    n_cells: int
    n_done: int
    n_missing: int
    #: None where no record tells how long such cells take.
    missing_hours: float | None
    n_stale: int
    stale_hours: float
    #: Records of the present code that replaced others, and how many of them came out as before.
    n_repeated: int
    n_same: int


def outstanding(paper: Paper, study: Study, store: RecordStore) -> Outstanding:
    """What has to be done about a study of a paper."""
    return outstanding_cells(study.id, paper.cells(study), paper.studies, store)


def outstanding_cells(
    study: str, planned: Iterable[Cell], like: Iterable[str], store: RecordStore
) -> Outstanding:
    """Cells of a plan, those that choose parameters included, by what has to be done about them.

    ``like`` names the studies whose records may say how long a cell without one takes.
    """
    cells = with_tuning(planned)
    records = {one.fingerprint: store.find(one) for one in cells.values()}
    done = {name: one for name, one in records.items() if one and one["status"] in FINAL}
    seconds: dict[tuple[str, ...], list[float]] = {}
    for name in like:
        for one in store.of_study(name):
            for key in _likeness(one["study"], one["protocol"], one["dataset"], one["method"]):
                seconds.setdefault(key, []).append(one.get("wall_seconds", 0.0))

    def expected(cell: Cell) -> float:
        keys = _likeness(cell.study, cell.protocol, cell.dataset, cell.method)
        known = next((seconds[key] for key in keys if key in seconds), [math.nan])
        return sum(known) / len(known) / 3600

    missing = [cell for name, cell in cells.items() if name not in done]
    missing_hours = math.fsum(map(expected, missing))
    stale = [one for one in done.values() if store.is_stale(one)]
    return Outstanding(
        study,
        len(cells),
        len(done),
        len(missing),
        None if math.isnan(missing_hours) else missing_hours,
        len(stale),
        sum(one.get("wall_seconds", 0.0) for one in stale) / 3600,
        *repeated(one for one in done.values() if not store.is_stale(one)),
    )


def _likeness(study: str, protocol: str, dataset: str, method: str) -> list[tuple[str, ...]]:
    """What cells may have in common that says how long one takes, the most telling first."""
    return [
        (study, dataset, method),
        (study, "", ""),
        (protocol, dataset, method),
        (protocol, dataset),
        (protocol,),
    ]


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
    their_std: str
    verdict: str
    #: Number of runs behind `their_std`.
    their_runs: int = 5
    #: What the paper calls the method; "" if as we do.
    printed_name: str = ""
    #: Why it is below the print.
    explanation: str = ""
    #: Whether a study with records tested the explanation.
    is_tested: bool = False
    #: Why it does not come from the paper's experiment, for a number above the print.
    another: str = ""
    #: Why agreement with the print is no independent evidence.
    fitted: str = ""
    #: The limit that a cell without a number exceeded, such as "60 seconds".
    limit: str = ""
    #: How the data relates to the paper's: "exact", "partial", "stand-in" ..
    standing: str = "exact"
    #: Whether the paper's table gives its data set another size.
    other_size: bool = False
    #: Number of seeds in the plan.
    planned: int = 0

    @property
    def published(self) -> float | None:
        """The printed value as a number, None if it is not a number."""
        return _number(self.theirs)

    @property
    def is_measured(self) -> bool:
        """Whether ours is a result: not of a method that was over its budget for some seeds, nor NaN."""
        return self.ours is not None and self.verdict not in MISSING

    @property
    def standard_error(self) -> float | None:
        """Of the difference between ours and the printed one; None where a spread is not known."""
        if self.our_error is None or self.their_error is None:
            return None
        return math.hypot(self.our_error, self.their_error)

    @property
    def our_error(self) -> float | None:
        """The standard error of our mean; None from a single run."""
        if self.ours is None or self.ours[2] < 2:
            return None
        _, std, n = self.ours
        return std / math.sqrt(n - 1)

    @property
    def their_error(self) -> float | None:
        """The standard error of the printed number; None where its spread is not printed."""
        return float(self.their_std) / math.sqrt(self.their_runs) if self.their_std else None

    @property
    def speed_up(self) -> float | None:
        """Their time over ours; None for other measures."""
        if self.measure.kind != "time" or self.ours is None or not self.published:
            return None
        return self.published / self.ours[0] if self.ours[0] > 0 else None

    def under(self, rule: str) -> str:
        """The verdict by one of `RULES`."""
        if self.verdict not in COUNTED or self.ours is None or self.published is None:
            return self.verdict
        return judge(self.ours[0], self.published, RULES[rule](self), better=self.measure.better)


def _uncertainty(one: JudgedNumber) -> float:
    """Two standard errors of the difference, or one point; at least what rounding hid from the print."""
    return _tolerance(one, 2.0)


def _by_students_t(one: JudgedNumber) -> float:
    """The same with the quantile of Student's t (degrees of freedom by Welch): more than two for few runs."""
    if one.ours is None or not one.standard_error:
        return _tolerance(one, 2.0)
    ours, theirs = (one.our_error or 0.0) ** 2, (one.their_error or 0.0) ** 2
    spread = ours**2 / (one.ours[2] - 1) + theirs**2 / max(one.their_runs - 1, 1)
    return _tolerance(one, float(stdtrit((ours + theirs) ** 2 / spread, 0.975)))


def _with_our_spread(one: JudgedNumber) -> float:
    """Two standard errors; where the print has no spread, its runs are taken to spread as ours do."""
    if one.standard_error is not None or one.ours is None or one.our_error is None:
        return _uncertainty(one)
    # A mean of k runs has sqrt(n / k) times the error of one of n.
    error = one.our_error * math.sqrt(1 + one.ours[2] / one.their_runs)
    return max(_rounding(one), 2 * error)


def _tolerance(one: JudgedNumber, times: float) -> float:
    """So many standard errors, or one point; at least what rounding hid from the print."""
    error = one.standard_error
    return max(_rounding(one), CLOSE * one.measure.scale if error is None else times * error)


def _rounding(one: JudgedNumber) -> float:
    """What rounding may have hidden from the print."""
    return 0.5 * 10.0 ** -len(one.theirs.partition(".")[2])


#: How far from the printed one a number may be to be within it; the first one decides.
RULES: dict[str, Callable[[JudgedNumber], float]] = {
    "two standard errors, or 0.01": _uncertainty,
    "95 % by Student's t, or 0.01": _by_students_t,
    "two standard errors, with our spread where the print has none": _with_our_spread,
    "0.005": lambda one: 0.005 * one.measure.scale,
    "5 % of the printed number": lambda one: 0.05 * abs(one.published or 0.0),
}
MAIN_RULE = next(iter(RULES))


def judge(ours: float, theirs: float, tolerance: float, *, better: str = "higher") -> str:
    """The verdict on one number: above means better, for an error too.

    Examples
    --------
    >>> judge(0.509, 0.5, 0.01), judge(0.52, 0.5, 0.01), judge(0.52, 0.5, 0.01, better="lower")
    ('within', 'above', 'below')
    """
    difference = ours - theirs
    if abs(difference) <= tolerance + 1e-9:
        return "within"
    return "above" if (difference > 0) == (better == "higher") else "below"


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
                theirs, std = printed.get((dataset, printed_name, measure.name), ("", ""))
                records = found.get((dataset, exhibit.records_of.get(method, method)), [])
                ours = _scaled(over_seeds(records, measure.ours), measure.scale)
                if ours is None and not theirs and not records:
                    continue
                state = "data absent"
                if study is not None:
                    state = _state(paper, dataset, measure, ours, theirs, records)
                limits = [one.get("error", "") for one in records if one["status"] == "over budget"]
                number = JudgedNumber(
                    dataset,
                    method,
                    measure,
                    ours,
                    theirs,
                    std,
                    state or "within",
                    their_runs=paper.printed_runs,
                    printed_name=printed_name,
                    limit=limits[-1].removeprefix("more than ") if limits else "",
                    standing=paper.datasets[dataset].standing if dataset in paper.datasets else "",
                    other_size=dataset in paper.datasets and paper.datasets[dataset].other_size,
                    planned=study.seeds_of(dataset) if study is not None else 0,
                )
                result.append(number if state else _judged(given, exhibit, number))
    return result


def _judged(given: PaperRecords, exhibit: Exhibit, number: JudgedNumber) -> JudgedNumber:
    """A number that can be compared, with its verdict and what explains it."""
    verdict = number.under(MAIN_RULE)
    names = (number.dataset, number.method, number.measure.name)
    because = [one for one in given.paper.explanations if _explains(one, exhibit, names)]

    def text(of: str) -> str:
        return " ".join(one.text for one in because if one.of == of)

    tests = (name for one in because if one.of == "below" for name in one.tested_by)
    return replace(
        number,
        verdict=verdict,
        explanation=text("below") if verdict == "below" else "",
        is_tested=any(given.of(given.paper.studies[name]).table for name in tests),
        another=text("another experiment") if verdict == "above" else "",
        fitted=text("fitted"),
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


def _state(
    paper: Paper,
    dataset: str,
    measure: TableMeasure,
    ours: tuple[float, float, int] | None,
    theirs: str,
    records: list[Record],
) -> str:
    """Why a number cannot be compared with the printed one, "" if it can."""
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
    if _number(theirs) is None:
        return "not printed"
    if given.standing != "exact":
        return given.standing
    return "" if measure.kind == "quality" else "not compared"


def _explains(explanation: Explanation, exhibit: Exhibit, names: tuple[str, str, str]) -> bool:
    """Whether it is about this number: empty fields match everything."""
    wanted = (explanation.dataset, explanation.method, explanation.measure)
    return explanation.exhibit in ("", exhibit.id) and all(
        not some or name in some for some, name in zip(wanted, names, strict=True)
    )


# -- how many ---------------------------------------------------------------------------------------------


def without_replaced(
    paper: Paper, numbers: dict[str, list[JudgedNumber]]
) -> dict[str, list[JudgedNumber]]:
    """Numbers by exhibit; those that an exhibit has in place of another (`instead_of`) only there."""

    def place(one: JudgedNumber) -> tuple[str, str, str]:
        return one.dataset, one.printed_name or one.method, one.measure.name

    taken: dict[str, set[tuple[str, str, str]]] = {}
    known = {}
    for name, found in numbers.items():
        known[name] = found
        if earlier := paper.exhibits[name].instead_of:
            known[name] = [one for one in found if one.is_measured]
            taken.setdefault(earlier, set()).update(map(place, known[name]))
    return {
        name: [one for one in found if place(one) not in taken.get(name, ())]
        for name, found in known.items()
    }


def is_comparable(one: JudgedNumber) -> bool:
    """Whether it is a quality number that the paper prints."""
    return one.measure.kind == "quality" and one.published is not None


class Tally(NamedTuple):
    """How many printed quality numbers came out how."""

    within: int
    #: Better than printed by the paper's experiment, and by another one.
    above_same: int
    above_other: int
    below: int
    #: Of all these, those whose agreement is no independent evidence; means of fewer runs than planned.
    fitted: int
    fewer_runs: int
    #: Of all these, those on files to which the paper's table gives another size.
    other_size: int
    #: On the paper's data, and missing.
    missing: int
    #: Key of `NO_VERDICT` -> how many there are besides.
    others: dict[str, int]
    #: Rule -> numbers within, above and below by it.
    rules: dict[str, tuple[int, int, int]]

    @property
    def above(self) -> int:
        """Better than printed."""
        return self.above_same + self.above_other

    @property
    def total(self) -> int:
        """Numbers with a verdict."""
        return self.within + self.above + self.below

    def share(self, n: int) -> str:
        """Percent of all with a verdict."""
        return f"{100 * n / self.total:.0f} %" if self.total else ""


def tally(numbers: Iterable[JudgedNumber]) -> Tally:
    """Count verdicts.

    Examples
    --------
    >>> measure = TableMeasure(name="map", ours="mAP", label="mAP")
    >>> one = JudgedNumber("d", "A", measure, (0.52, 0.0, 1), "0.5", "", "above", planned=2)
    >>> found = tally([one, replace(one, another="other pairs"), replace(one, verdict="failed")])
    >>> found.above_same, found.above_other, found.missing, found.fewer_runs
    (1, 1, 1, 2)
    >>> found.rules["5 % of the printed number"]
    (2, 0, 0)
    """
    known = [one for one in numbers if is_comparable(one)]
    judged = [one for one in known if one.verdict in COUNTED]
    verdicts = Counter(one.verdict for one in judged)
    other = sum(one.verdict == "above" and bool(one.another) for one in judged)
    is_missing = [one.verdict in MISSING and one.standing == "exact" for one in known]
    rest = (
        one.standing if one.verdict in MISSING else one.verdict
        for one, missing in zip(known, is_missing, strict=True)
        if not missing and one.verdict not in COUNTED
    )
    rules = {}
    for rule in RULES:
        by_rule = Counter(one.under(rule) for one in judged)
        rules[rule] = (by_rule["within"], by_rule["above"], by_rule["below"])
    return Tally(
        within=verdicts["within"],
        above_same=verdicts["above"] - other,
        above_other=other,
        below=verdicts["below"],
        fitted=sum(bool(one.fitted) for one in judged),
        fewer_runs=sum(one.ours is not None and one.ours[2] < one.planned for one in judged),
        other_size=sum(one.other_size for one in judged),
        missing=sum(is_missing),
        others=dict(sorted(Counter(rest).items())),
        rules=rules,
    )
