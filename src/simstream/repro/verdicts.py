"""Ours beside theirs: a verdict for every published number, and for what papers claim.

A quality number is *reproduced* if it is within two published standard deviations of the print, or within
0.01 (one point where the paper prints percent); otherwise it is *better* or *worse*. Only numbers on exactly
the paper's data count; stand-ins, parts of the data and bundled sets are shown, and not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plan import Cell, Claim, Exhibit, Explanation, Measure, Paper, Study, published
from .records import Record, RecordStore, mean_curve, over_seeds

#: How far from the print a quality number may be, in units of one.
CLOSE = 0.01

COUNTED = ("reproduced", "better", "worse")
VERDICTS = (
    *COUNTED,
    "over budget",
    "not run",
    "stand-in",
    "partial",
    "data absent",
    "not printed",
    "not compared",
)


@dataclass(frozen=True)
class Comparison:
    """One number of a table: ours, theirs, and what to think of it."""

    dataset: str
    method: str
    measure: Measure
    #: Mean, standard deviation and number of seeds, in the paper's unit; None if there is none.
    ours: tuple[float, float, int] | None
    #: As printed, "" if the paper has none.
    theirs: str
    their_std: float | None
    verdict: str
    explanation: str = ""

    @property
    def published(self) -> float | None:
        """The printed value as a number, None if it is none."""
        return _number(self.theirs)

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        if self.ours is None or self.published is None:
            return None
        return self.ours[0] - self.published

    @property
    def speed_up(self) -> float | None:
        """Their time over ours, for times."""
        if self.measure.kind != "time" or self.ours is None or not self.published:
            return None
        return self.published / self.ours[0] if self.ours[0] > 0 else None


def compare(paper: Paper, exhibit: Exhibit, store: RecordStore) -> list[Comparison]:
    """All numbers of a table: those we have, and those the paper prints."""
    printed = published(exhibit.published) if exhibit.published else {}
    study = paper.study_of(exhibit.id)
    found = records_of(paper, study, store) if study is not None else {}
    datasets = exhibit.datasets or (study.datasets if study is not None else ())
    methods = exhibit.methods or (study.methods if study is not None else ())
    if study is None:  # nothing of it can be run: what is printed, in its order
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
                if ours is None and not theirs:
                    continue
                verdict = _verdict(paper, dataset, measure, ours, theirs, std, records)
                one = Comparison(dataset, method, measure, ours, theirs, std, verdict)
                result.append(_explained(one, exhibit, paper.explanations))
    return result


def records_of(
    paper: Paper, study: Study, store: RecordStore
) -> dict[tuple[str, str], list[Record]]:
    """Records of the cells of a study by (data set, method), swept values together."""
    known = {cell.fingerprint for cell in _all_cells(paper, study)}
    found: dict[tuple[str, str], list[Record]] = {}
    for record in store.of_study(study.id):
        if record["fingerprint"] in known:
            found.setdefault((record["dataset"], record["method"]), []).append(record)
    return found


def _all_cells(paper: Paper, study: Study) -> Iterator[Cell]:
    """Cells of the plan, with either way of choosing parameters."""
    yield from paper.cells(study)
    yield from paper.cells(study, tuning="cv")


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
    measure: Measure,
    ours: tuple[float, float, int] | None,
    theirs: str,
    std: float | None,
    records: list[Record],
) -> str:
    given = paper.datasets.get(dataset)
    if given is None or not given.data:
        return "data absent"
    if ours is None:
        over = any(record["status"] == "over budget" for record in records)
        return "over budget" if over else "not run"
    value = _number(theirs)
    if value is None:
        return "not printed"
    if given.standing != "exact":
        return given.standing
    if measure.kind != "quality":
        return "not compared"
    return judge(
        ours[0],
        value,
        std,
        close=CLOSE * measure.scale,
        better=measure.better,
        digits=measure.digits,
    )


def judge(
    ours: float,
    theirs: float,
    std: float | None,
    *,
    close: float = CLOSE,
    better: str = "higher",
    digits: int = 12,
) -> str:
    """The verdict on one number; ours is rounded as it is printed first.

    Examples
    --------
    >>> judge(0.509, 0.5, None), judge(0.52, 0.5, None), judge(0.52, 0.5, None, better="lower")
    ('reproduced', 'better', 'worse')
    >>> judge(0.47, 0.5, 0.02)
    'reproduced'
    """
    difference = round(ours, digits) - theirs
    if abs(difference) <= max(close, 2 * (std or 0.0)) + 1e-9:
        return "reproduced"
    return "better" if (difference > 0) == (better == "higher") else "worse"


def _explained(one: Comparison, exhibit: Exhibit, known: Iterable[Explanation]) -> Comparison:
    if one.verdict not in ("worse", "better"):
        return one
    texts = [
        explanation.text
        for explanation in known
        if explanation.exhibit in ("", exhibit.id)
        and (not explanation.dataset or one.dataset in explanation.dataset)
        and (not explanation.method or one.method in explanation.method)
        and (not explanation.measure or one.measure.name in explanation.measure)
        and (not explanation.verdict or one.verdict in explanation.verdict)
    ]
    if not texts:
        return one
    return Comparison(**{**one.__dict__, "explanation": " ".join(texts)})


def count(comparisons: Iterable[Comparison]) -> Counter[str]:
    """How many of each verdict, of quality numbers only."""
    return Counter(one.verdict for one in comparisons if one.measure.kind == "quality")


def share_good(counts: Counter[str]) -> float | None:
    """Share of the counted numbers that are reproduced or better; None if nothing counts.

    Examples
    --------
    >>> share_good(Counter({"reproduced": 6, "better": 1, "worse": 3, "stand-in": 9}))
    0.7
    """
    counted = sum(counts[word] for word in COUNTED)
    return None if counted == 0 else (counts["reproduced"] + counts["better"]) / counted


# -- claims -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What became of a claim."""

    claim: str
    #: "holds", "partly", "does not hold" or "open".
    verdict: str
    text: str


def check_claims(paper: Paper, store: RecordStore) -> list[Finding]:
    """Look at every claim of a paper in the records."""
    return [_CHECKS[claim.check["kind"]](paper, claim, store) for claim in paper.claims]


def _means(
    paper: Paper,
    study: Study,
    measure: str,
    store: RecordStore,
    where: dict[str, Any] | None = None,
) -> dict[tuple[str, str], float]:
    """Mean over seeds and swept values by (data set, method), of records with a measure in some range."""
    found = {}
    for key, records in records_of(paper, study, store).items():
        if where is not None:
            low, high = where.get("above", -math.inf), where.get("below", math.inf)
            of = where["measure"]
            records = [
                one for one in records if low < one.get("measures", {}).get(of, math.nan) < high
            ]
        value = over_seeds(records, measure)
        if value is not None:
            found[key] = value[0]
    return found


def _beats(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """Whether a method is ahead of the best of others, or each of several of one other, by data set.

    ``where`` = {measure, above, below}: only records in that range; ``by``: the least gain, as a share of the
    loser's value (negative: may be that much behind); ``against``: the study that has the losers' records.
    """
    check = claim.check
    study = paper.studies[check["study"]]
    means = _means(paper, study, check["measure"], store, check.get("where"))
    others = means
    if "against" in check:
        others = _means(paper, paper.studies[check["against"]], check["measure"], store)
    sign = 1 if check.get("better", "higher") == "higher" else -1
    if "pairs" in check:
        contests = [(winner, [loser]) for winner, loser in check["pairs"]]
    else:
        winner = check["winner"]
        all_others = [name for name in study.methods if name != winner]
        contests = [(winner, check.get("losers", all_others))]
    lines, n_ahead, n = [], 0, 0
    for dataset in check.get("datasets", study.datasets):
        for winner, losers in contests:
            found = {name: others[dataset, name] for name in losers if (dataset, name) in others}
            if (dataset, winner) not in means or not found:
                continue
            best = max(found, key=lambda name: sign * found[name])
            gain = sign * (means[dataset, winner] - found[best])
            n += 1
            n_ahead += gain > check.get("by", 0.0) * abs(found[best])
            who = f"{winner} " if len(contests) > 1 else ""
            word = "ahead of" if gain > 0 else "behind"
            share = f" ({gain / abs(found[best]):+.1%})" if "by" in check and found[best] else ""
            lines.append(
                f"{paper.datasets[dataset].label}: {who}{word} {best} by {abs(gain):.3g}{share}"
            )
    if not n:
        return Finding(claim.text, "open", "not run")
    verdict = "holds" if n_ahead == n else "partly" if n_ahead else "does not hold"
    return Finding(claim.text, verdict, f"in {n_ahead} of {n} comparisons; " + "; ".join(lines))


def _ratio(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """The ratio of a measure of two methods beside the published one; it holds within a factor of two."""
    check = claim.check
    means = _means(paper, paper.studies[check["study"]], check["measure"], store)
    theirs = float(check["published"])
    lines, ratios = [], []
    for dataset in check.get("datasets", paper.studies[check["study"]].datasets):
        above, below = (dataset, check["numerator"]), (dataset, check["denominator"])
        if above in means and below in means and means[below]:
            ratios.append(means[above] / means[below])
            lines.append(f"{paper.datasets[dataset].label}: {ratios[-1]:.3g}")
    if not ratios:
        return Finding(claim.text, "open", "not run")
    near = [theirs / 2 <= ratio <= theirs * 2 for ratio in ratios]
    verdict = "holds" if all(near) else "partly" if any(near) else "does not hold"
    return Finding(claim.text, verdict, f"published {theirs:g}; " + "; ".join(lines))


def _reaches(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """Where the mean curve of one method first has what that of another has in the end.

    It holds where that is before the end.
    """
    check = claim.check
    study = paper.studies[check["study"]]
    found = records_of(paper, study, store)
    lines, n_before = [], 0
    for dataset in check.get("datasets", study.datasets):
        ours, theirs = (
            mean_curve(found.get((dataset, check[role]), []), check["curve"])
            for role in ("winner", "loser")
        )
        if ours is None or theirs is None:
            continue
        goal, end = theirs[1][-1], theirs[0][-1]
        there = np.flatnonzero(ours[1] >= goal)
        place = ours[0][there[0]] if len(there) else None
        n_before += place is not None and bool(place < end)
        when = "not reached" if place is None else f"at {place:,g} of {end:,g}"
        lines.append(f"{paper.datasets[dataset].label}: {goal:.3f} {when}")
    if not lines:
        return Finding(claim.text, "open", "not run")
    verdict = "holds" if n_before == len(lines) else "partly" if n_before else "does not hold"
    return Finding(claim.text, verdict, "; ".join(lines))


def _text(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """A finding written by hand, where no rule decides it."""
    return Finding(claim.text, claim.check["verdict"], claim.check["finding"])


_CHECKS: dict[str, Any] = {"beats": _beats, "ratio": _ratio, "reaches": _reaches, "text": _text}
