"""What papers claim, checked against the records; ranks of methods over data sets.

A difference counts if it is larger than its uncertainty: two standard errors over the runs, which share their
data wherever the studies are the same. From a single run no uncertainty is known: there a difference counts
from 0.01 on (measures between 0 and 1) or from three tenths on (all others, such as times: those of two runs
of the same cell have differed by nearly as much). A claim is judged on exactly the paper's data where there
is some; what parts of it and stand-ins say is told beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from simstream.metrics.statistics import FriedmanResult, friedman

from .plan import (
    Beats,
    BestRank,
    Check,
    MeasureRatio,
    NoDifference,
    Paper,
    Reaches,
    Study,
    Trend,
    Where,
)
from .records import TUNING, Record, mean_curve, over_seeds
from .verdicts import PaperRecords, RecordTable

#: Where a claim has more comparisons than this, only those that speak against it are listed.
_MOST_LISTED = 4
#: The least difference that counts from a single run: of measures between 0 and 1, and as a share of others.
_LEAST, _LEAST_SHARE = 0.01, 0.3
#: Most parts of a finding that a page shows unfolded.
_MOST_SHOWN = 6
#: Level of tests.
_LEVEL = 0.05


@dataclass(frozen=True)
class Finding:
    """What became of a claim."""

    claim: str
    #: "holds", "holds where decided", "holds in part", "does not hold" or "open"; " so far" if what may
    #: change it is missing.
    verdict: str
    #: What it rests on: counts of comparisons, then the comparisons.
    parts: tuple[str, ...] = ()
    #: Whether any of its data sets is exactly the paper's; otherwise it says little of the paper.
    on_exact: bool = True

    @property
    def shown(self) -> tuple[str, ...]:
        """The parts that a page shows at once; a single one is not folded."""
        return self.parts[: _MOST_SHOWN if len(self.parts) > _MOST_SHOWN + 1 else None]

    @property
    def folded(self) -> tuple[str, ...]:
        """The others."""
        return self.parts[len(self.shown) :]


def check_claims(given: PaperRecords) -> list[Finding]:
    """Check every claim of a paper against the records."""
    findings = []
    for claim in given.paper.claims:
        names = _datasets(claim.check, given.paper)
        on_exact = any(_is_papers_own(given.paper, name) for name in names)
        findings.append(Finding(claim.text, *_check(claim.check, given), on_exact=on_exact))
    return findings


def _is_papers_own(paper: Paper, dataset: str) -> bool:
    """Whether a data set is exactly the paper's; any that we have where there is no paper to compare with."""
    return not paper.is_compared or paper.datasets[dataset].standing == "exact"


#: A verdict, and what it rests on.
_Judgement = tuple[str, tuple[str, ...]]


@singledispatch
def _check(check: Check, given: PaperRecords) -> _Judgement:
    """The verdict, and what it rests on."""
    raise TypeError(f"check: expected a kind with a rule, got {type(check).__name__}")


def _studies(check: Check) -> tuple[str, ...]:
    return (check.study, *check.also)


def _datasets(check: Check, paper: Paper) -> tuple[str, ...]:
    """The data sets that a claim is about."""
    if check.datasets:
        return check.datasets
    names = (name for study in _studies(check) for name in paper.studies[study].datasets)
    return tuple(dict.fromkeys(names))


# -- comparisons and what they add up to ------------------------------------------------------------------


class _Outcome(NamedTuple):
    """One comparison: 1 if it supports the claim, -1 if it speaks against it, 0 if it leaves it open."""

    dataset: str
    sign: int
    #: Whether the means alone support the claim.
    leans: bool
    text: str


def _summed_up(
    paper: Paper,
    outcomes: Sequence[_Outcome],
    missing: Sequence[str] = (),
    *,
    always: bool = False,
    list_all: bool = False,
) -> _Judgement:
    """The verdict on exact data if there is some, and the comparisons: all of a few, or those against.

    `missing` has the data set of each number that was not measured yet: the verdict is one "so far" if it
    rests on any of these.
    """
    if not outcomes:
        return "open", ("no numbers to compare",)  # nothing was run, or not within the budget
    exact = [one for one in outcomes if _is_papers_own(paper, one.dataset)]
    judged = exact or list(outcomes)
    parts = []
    if exact and len(exact) < len(outcomes):
        names = dict.fromkeys(paper.datasets[one.dataset].label for one in exact)
        parts = [
            f"on exact data ({'; '.join(names)}) {_counted(exact)}",
            f"on all data {_counted(outcomes)}",
        ]
    elif len(outcomes) > 1:
        parts = [_counted(outcomes)]
    list_all = list_all or len(outcomes) <= _MOST_LISTED
    listed = [one.text for one in outcomes if list_all or one.sign <= 0]
    signs = [one.sign for one in judged]
    is_refuted = always and -1 in signs
    verdict = "does not hold" if is_refuted else _verdict(signs)
    if missing:
        may_change = [one for one in missing if not exact or _is_papers_own(paper, one)]
        verdict += " so far" if may_change and not is_refuted else ""
        n = len(missing)
        parts.append(f"{n} of the numbers it compares {'is' if n == 1 else 'are'} missing")
    return verdict, (*parts, *listed)


def _counted(outcomes: Sequence[_Outcome]) -> str:
    signs = [one.sign for one in outcomes]
    text = f"in {signs.count(1)} of {len(signs)} comparisons"
    if 0 not in signs:
        return text
    by_means = sum(one.leans for one in outcomes)
    return f"{text} ({signs.count(0)} open; by the means alone, {by_means} of {len(signs)})"


def _verdict(signs: Sequence[int]) -> str:
    """What comparisons add up to.

    Examples
    --------
    >>> [_verdict(signs) for signs in ([1, 1], [1, 0], [1, -1], [0, -1], [0, 0])]
    ['holds', 'holds where decided', 'holds in part', 'does not hold', 'open']
    """
    if 1 in signs and -1 in signs:
        return "holds in part"
    if -1 in signs:
        return "does not hold"
    if 1 in signs:
        return "holds where decided" if 0 in signs else "holds"
    return "open"


def _sign(gain: float, error: float | None, values: tuple[float, float], measure: str) -> int:
    """Whether a gain is one, given its standard error or, without one, the two values it comes from."""
    largest = max(map(abs, values))
    if error is not None:
        least = 2 * error
    elif largest <= 1 and "seconds" not in measure:
        least = _LEAST
    else:
        least = _LEAST_SHARE * largest
    return 0 if abs(gain) <= least else (1 if gain > 0 else -1)


def difference(
    ours: Iterable[Record], theirs: Iterable[Record], measure: str, factor: float = 1.0
) -> tuple[float, float, float | None] | None:
    """Both means, and the standard error of ours - factor * theirs; None without two means.

    Runs of the same seed and swept values share their data. Where two seeds have such runs, the means are
    over those runs alone, and the error is that of their mean difference: a seed that only one side has would
    change a mean and not the error. Otherwise the means are over all runs, and the error is computed from
    both spreads. From a single run it is None, and what shares its data is compared, if anything does.

    Examples
    --------
    >>> def runs(*values):
    ...     return [{"seed": i, "variant": {}, "measures": {"mAP": x}} for i, x in enumerate(values)]
    >>> difference(runs(0.5, 0.7), runs(0.4, 0.6), "mAP")
    (0.6, 0.5, 0.0)
    >>> difference(runs(0.5, 0.7), runs(0.4, 0.6, 0.8), "mAP")
    (0.6, 0.5, 0.0)
    >>> difference(runs(0.5), runs(0.4, 0.6), "mAP")
    (0.5, 0.4, None)
    """
    ours, theirs = list(ours), list(theirs)
    a, b = over_seeds(ours, measure), over_seeds(theirs, measure)
    if a is None or b is None:
        return None
    pairs = _pairs(ours, theirs, measure)
    n, m = _n_seeds(ours, measure), _n_seeds(theirs, measure)
    if len(pairs) > 1 or (len(pairs) and min(n, m) < 2):
        mine, other = map(float, pairs.mean(axis=0))
        if len(pairs) < 2:
            return mine, other, None
        gains = pairs[:, 0] - factor * pairs[:, 1]
        # Equal differences have no error but that of rounding.
        return mine, other, round(float(np.std(gains, ddof=1)) / math.sqrt(len(gains)), 15)
    if min(n, m) < 2:
        return a[0], b[0], None
    return a[0], b[0], math.sqrt(a[1] ** 2 / (n - 1) + (factor * b[1]) ** 2 / (m - 1))


def _pairs(ours: Iterable[Record], theirs: Iterable[Record], measure: str) -> np.ndarray:
    """Rows with both values, one for each seed that both have: means over the swept values that both have."""
    first, second = (_by_run(records, measure) for records in (ours, theirs))
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for key in sorted(first.keys() & second.keys()):
        by_seed.setdefault(key[0], []).append((first[key], second[key]))
    return np.array([np.mean(found, axis=0) for found in by_seed.values()]).reshape(-1, 2)


def _n_seeds(records: Iterable[Record], measure: str) -> int:
    """How many seeds have a measure: a run that failed says nothing about its spread."""
    return len({one["seed"] for one in records if over_seeds([one], measure) is not None})


def _known_difference(
    ours: Iterable[Record], theirs: Iterable[Record], measure: str, factor: float = 1.0
) -> tuple[float, float, float | None]:
    """`difference` of records that are known to have the measure."""
    found = difference(ours, theirs, measure, factor)
    if found is None:
        raise ValueError(f"{measure}: expected records with it")
    return found


def _by_run(records: Iterable[Record], measure: str) -> dict[tuple[int, str], float]:
    """A measure by seed and swept values; empty for measures of mean curves."""
    return {
        (one["seed"], json.dumps(one.get("variant", {}), sort_keys=True)): value
        for one in records
        if (value := one.get("measures", {}).get(measure)) is not None
    }


# -- kinds of claims --------------------------------------------------------------------------------------


@_check.register
def _beats(check: Beats, given: PaperRecords) -> _Judgement:
    paper = given.paper
    whole = given.merged(_studies(check))
    table = _allowed(whole, check.where)
    others = given.table(paper.studies[check.against]) if check.against else table
    best_of = max if check.better == "higher" else min
    contests = _contests(check, paper.studies[check.study].methods)
    outcomes = []
    for dataset in _datasets(check, paper):
        for winner, losers in contests:
            rivals = {
                name: _each(others.get((dataset, name), []), check)
                for name in losers
                if (dataset, name) not in check.skip
            }
            for swept, mine in _each(table.get((dataset, winner), []), check).items():
                means = {
                    name: _mean(found[swept], check.measure)
                    for name, found in rivals.items()
                    if swept in found
                }
                if not means:
                    continue
                best = best_of(means, key=lambda name: means[name])
                place = f"{paper.datasets[dataset].label}: "
                place += f"{check.each.replace('_', ' ')} {swept}, " if swept else ""
                place += f"{paper.shown(winner)} " if len(contests) > 1 else ""
                rival = (paper.shown(best), rivals[best][swept])
                outcomes.append(_outcome(check, dataset, place, mine, rival))
    wanted = {name for winner, losers in contests for name in (winner, *losers)}
    # A record may have no number: a run that failed, or one without this measure.
    found = {
        key
        for records in (whole, others)
        for key, runs in records.items()
        if over_seeds(runs, check.measure) is not None
    }
    absent = [key for key in _planned(check, given, wanted) if key not in found]
    stopped = [key for key in absent if _is_over_budget(whole.get(key) or others.get(key, []))]
    missing = [dataset for dataset, name in absent if (dataset, name) not in stopped]
    verdict, parts = _summed_up(paper, outcomes, missing, always=check.always)
    parts += tuple(
        f"{paper.datasets[dataset].label}: {paper.shown(name)} is over its budget, and left out"
        for dataset, name in stopped
    )
    if check.by is not None and outcomes:
        least = check.better == "higher"
        share = 1 + check.by if least else 1 - check.by
        parts = (f"wanted: at {'least' if least else 'most'} {share:.0%} of the other", *parts)
    return verdict, parts


def _outcome(
    check: Beats, dataset: str, place: str, mine: list[Record], rival: tuple[str, list[Record]]
) -> _Outcome:
    """One contest, against the best of the others."""
    best, theirs = rival
    direction = 1 if check.better == "higher" else -1
    by = check.by or 0.0
    ours, other, error = _known_difference(mine, theirs, check.measure, 1 + direction * by)
    gain = (ours - other) * direction
    margin = gain - by * abs(other)
    if check.by is not None and other:
        text = f"{place}{ours / other:.1%} of {best}"
        text += _in_brackets(_limits(mine, theirs, check.measure), ".1%")
    else:
        how = "ahead of" if gain > 0 else "behind" if gain < 0 else "level with"
        text = f"{place}{how} {best}" + (f" by {abs(gain):.3g}" if gain else "")
        text += "" if error is None else f" ± {2 * error:.2g}"
        text += " s" if "seconds" in check.measure else ""
    sign = _sign(margin, error, (ours, other), check.measure)
    if sign == 0:
        pairs = _pairs(mine, theirs, check.measure)
        text += _open(direction * (pairs[:, 0] - (1 + direction * by) * pairs[:, 1]))
    return _Outcome(dataset, sign, margin > 0, text)


def _open(gains: np.ndarray) -> str:
    """What is said of a comparison that decides nothing: in how many runs the claim is true (a gain).

    Means of few runs decide nothing where one run is far from the others, even if all agree.

    Examples
    --------
    >>> _open(np.array([0.1, 5.0, -0.2])), _open(np.array([1.0, 0.0])), _open(np.array([1.0]))
    (' (open; true of 2 of 3 runs)', ' (open; true of 1 of 2 runs, level in 1)', ' (open)')
    """
    n, level = len(gains), np.count_nonzero(gains == 0)
    text = f"; true of {np.count_nonzero(gains > 0)} of {n} runs" if n > 1 else ""
    return f" (open{text}" + (f", level in {level})" if text and level else ")")


def _contests(check: Beats, methods: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Every winner with the methods it is to be ahead of."""
    if check.pairs:
        return [(winner, (loser,)) for winner, loser in check.pairs]
    winners = check.winners or (check.winner,)
    others = tuple(name for name in methods if name not in winners)
    return [(winner, check.losers or others) for winner in winners]


def _allowed(table: RecordTable, where: Where | None) -> RecordTable:
    """The records that a claim is about."""
    if where is None:
        return table
    return {
        key: [
            one
            for one in records
            if where.above < one.get("measures", {}).get(where.measure, np.nan) < where.below
        ]
        for key, records in table.items()
    }


def _each(records: list[Record], check: Beats) -> dict[str, list[Record]]:
    """Records with the measure, by the swept value that is compared one by one; else all together."""
    groups: dict[str, list[Record]] = {}
    for one in records:
        swept = str(one["variant"][check.each]) if check.each else ""
        groups.setdefault(swept, []).append(one)
    return {
        swept: found
        for swept, found in groups.items()
        if over_seeds(found, check.measure) is not None
    }


def _mean(records: list[Record], measure: str) -> float:
    """NaN without records."""
    found = over_seeds(records, measure)
    return math.nan if found is None else found[0]


def _is_over_budget(records: list[Record]) -> bool:
    """Whether it was tried, and stopped: no number is to come."""
    return any(one.get("status") == "over budget" for one in records)


def _planned(check: Beats, given: PaperRecords, wanted: set[str]) -> list[tuple[str, str]]:
    """The data sets and methods that a claim is about and that are to be run, in the order of the plan."""
    names = [*_studies(check), *([check.against] if check.against else [])]
    datasets = _datasets(check, given.paper)
    planned = (
        (dataset, name)
        for study in (given.paper.studies[one] for one in names)
        for dataset in study.datasets
        for name in study.methods
        if _is_planned(study, given.paper, dataset, name)
    )
    return [
        (dataset, name)
        for dataset, name in dict.fromkeys(planned)
        if dataset in datasets and name in wanted and (dataset, name) not in check.skip
    ]


@_check.register
def _best_rank(check: BestRank, given: PaperRecords) -> _Judgement:
    ranked = _exact_ranks(check, given)
    if ranked is None:
        return "open", ("not run on enough data sets",)
    result, used = ranked
    ranks = dict(zip(check.methods, result.average_ranks, strict=True))
    best = min(ranks, key=lambda name: ranks[name])
    text = f"{check.winner} {ranks[check.winner]:.2f}, best {best} {ranks[best]:.2f}"
    others = sorted((rank, name) for name, rank in ranks.items() if name != check.winner)
    p_value = adjusted_p_value(result, f"{check.winner} vs {others[0][1]}")
    if best == check.winner:
        text += f", next {others[0][1]} {others[0][0]:.2f} (their difference: adjusted p = {p_value:.2g})"
    verdict = "holds" if best == check.winner else "does not hold"
    if (
        p_value is None or p_value > _LEVEL
    ):  # of the winner and the next best: chance may have ordered them
        verdict = "open"
    return verdict + _so_far(check, given, used), (f"{text}, over {len(used)} data sets",)


@_check.register
def _no_difference(check: NoDifference, given: PaperRecords) -> _Judgement:
    ranked = _exact_ranks(check, given)
    if ranked is None:
        return "open", ("not run on enough data sets",)
    result, used = ranked
    verdict = "holds" if result.p_value > _LEVEL else "does not hold"
    text = f"Friedman over {len(used)} data sets and {len(check.methods)} methods: "
    text += f"chi2 = {result.chi2:.1f}, p = {result.p_value:.2g}"
    return verdict + _so_far(check, given, used), (text,)


def _exact_ranks(
    check: BestRank | NoDifference, given: PaperRecords
) -> tuple[FriedmanResult, list[str]] | None:
    """Ranks over the exact data sets of a claim."""
    wanted = _datasets(check, given.paper)
    records = [
        one
        for (dataset, _), found in given.merged(_studies(check)).items()
        for one in found
        if dataset in wanted and _is_papers_own(given.paper, dataset)
    ]
    lower = check.better == "lower"
    return rank_methods(records, check.methods, check.measure, lower_is_better=lower)


@_check.register
def _trend(check: Trend, given: PaperRecords) -> _Judgement:
    table = given.merged(_studies(check))
    direction = 1 if check.direction == "rises" else -1
    outcomes: list[_Outcome] = []
    missing: list[str] = []
    for dataset in _datasets(check, given.paper):
        groups: dict[float, list[Record]] = {}
        for one in table.get((dataset, check.method), []):
            if over_seeds([one], check.measure) is not None:
                groups.setdefault(float(one["variant"][check.along]), []).append(one)
        missing += [dataset] * len(_planned_places(check, given.paper, dataset) - groups.keys())
        means = {place: _mean(groups[place], check.measure) for place in sorted(groups)}
        ends = [min(means, default=0.0), max(means, default=0.0)]
        # Records of the two ends that agree in everything else pair up.
        low, high = (_without(groups.get(end, []), check.along) for end in ends)
        found = difference(high, low, check.measure)
        if found is None or ends[0] == ends[1]:
            continue
        change = direction * (found[0] - found[1])
        sign = _sign(change, found[2], found[:2], check.measure)
        means |= {ends[0]: found[1], ends[1]: found[0]}  # over the runs that both ends have
        best = max(means, key=lambda place: means[place])
        text = f"{found[1]:.3f} at {ends[0]:g}; {found[0]:.3f} at {ends[1]:g}"
        text += "" if found[2] is None else f" ({found[0] - found[1]:+.2g} ± {2 * found[2]:.2g})"
        label = given.paper.datasets[dataset].label
        text = f"{label}: {text}; highest {means[best]:.3f} at {best:g}"
        text += " (open)" if sign == 0 else ""
        outcomes.append(_Outcome(dataset, sign, change > 0, text))
    return _summed_up(given.paper, outcomes, missing)


def _planned_places(check: Trend, paper: Paper, dataset: str) -> set[float]:
    """The swept values that are to be run on a data set."""
    return {
        float(value)
        for study in (paper.studies[name] for name in _studies(check))
        if _is_planned(study, paper, dataset, check.method)
        for key, values in study.sweep.items()
        if key.endswith(f".{check.along}")
        for value in values
    }


def _is_planned(study: Study, paper: Paper, dataset: str, method: str) -> bool:
    """Whether a study runs a method on a data set that there is."""
    return (
        dataset in study.datasets
        and method in study.methods
        and (dataset, method) not in study.skip
        and bool(paper.datasets[dataset].data)
    )


def _without(records: list[Record], swept: str) -> list[Record]:
    return [
        one | {"variant": {k: v for k, v in one["variant"].items() if k != swept}}
        for one in records
    ]


@_check.register
def _ratio(check: MeasureRatio, given: PaperRecords) -> _Judgement:
    table = given.merged(_studies(check))
    least, most = _ratios_wanted(check)
    outcomes = []
    for dataset in _datasets(check, given.paper):
        above, below = (
            table.get((dataset, name), []) for name in (check.numerator, check.denominator)
        )
        found = difference(above, below, check.measure)
        if found is None and (stopped := _stopped(given.paper, check, dataset, above, below)):
            outcomes.append(stopped)
        if found is None or not found[1]:
            continue
        # It has to be on the right side of both ends.
        ends = [(end, side) for end, side in ((least, 1), (most, -1)) if 0 < end < math.inf]
        sign = min(_side(above, below, check.measure, end, side) for end, side in ends)
        ratio = found[0] / found[1]
        text = f"{given.paper.datasets[dataset].label}: {ratio:.3g}"
        text += _in_brackets(_limits(above, below, check.measure), ".3g")
        if sign == 0:
            ratios = np.divide(*_pairs(above, below, check.measure).T)
            text += _open(np.where((least <= ratios) & (ratios <= most), 1, -1))
        outcomes.append(_Outcome(dataset, sign, least <= ratio <= most, text))
    verdict, parts = _summed_up(given.paper, outcomes, list_all=True)
    if outcomes:
        verdict += _so_far(check, given, (one.dataset for one in outcomes))
        parts = (f"printed {check.published:g}, wanted: {_in_words(least, most)}", *parts)
    return verdict, parts


def _stopped(
    paper: Paper, check: MeasureRatio, dataset: str, above: list[Record], below: list[Record]
) -> _Outcome | None:
    """What is known of a ratio of times if the numerator was stopped: it is greater than that of the budget.

    The budget counts loading and measuring too, so what half of it shows is enough.
    """
    other = over_seeds(below, check.measure)
    spent = [
        one["budget"]["seconds"]
        for one in above
        if one.get("error", "").endswith(" seconds") and "budget" in one
    ]
    if "seconds" not in check.measure or other is None or not spent:
        return None
    least, most = _ratios_wanted(check)
    ratio = min(spent) / other[0]
    sign = -1 if ratio / 2 > most else 1 if most == math.inf and ratio / 2 > least else 0
    text = f"{paper.datasets[dataset].label}: about {ratio:.3g} or more (stopped after {min(spent):g} CPU s)"
    return _Outcome(dataset, sign, sign > 0, text + (" (open)" if sign == 0 else ""))


def _side(
    above: list[Record], below: list[Record], measure: str, end: float, direction: int
) -> int:
    """Whether a ratio is greater (direction 1) or less (-1) than an end; 0 if that is not decided."""
    numerator, denominator, error = _known_difference(above, below, measure, end)
    margin = direction * (numerator - end * denominator)
    return _sign(margin, error, (numerator, end * denominator), measure)


def _limits(ours: list[Record], theirs: list[Record], measure: str) -> tuple[float, float] | None:
    """The least and the greatest ratio of two means that two standard errors leave possible (Fieller).

    These are the factors by which the second differs from the first by no more than that. They are not
    symmetric about the ratio of the means, and there is no greatest one where the second mean may be zero.
    None from a single run.

    Examples
    --------
    >>> def runs(*values):
    ...     return [{"seed": i, "variant": {}, "measures": {"s": x}} for i, x in enumerate(values)]
    >>> [round(one, 3) for one in _limits(runs(0.5, 0.7), runs(0.5, 0.7), "s")]
    [1.0, 1.0]
    >>> [round(one, 3) for one in _limits(runs(1, 1, 1), runs(9, 10, 11), "s")]
    [0.09, 0.113]
    >>> [round(one, 3) for one in _limits(runs(1, 1, 1), runs(1, 1, 28), "s")]
    [0.036, inf]
    """
    mean, other, at_zero = _known_difference(ours, theirs, measure, 0.0)
    ratio = mean / other
    if at_zero is None or not mean:
        return None
    at_ratio, at_minus = (
        _known_difference(ours, theirs, measure, factor)[2] or 0.0 for factor in (ratio, -ratio)
    )
    # Variances of the first, of `ratio` times the second, and their covariance, times four, in units of the
    # first mean. A factor t * ratio is possible if (1 - t)^2 <= first - 2 t both + t^2 second.
    unit = 4 / mean**2
    first = unit * at_zero**2
    second = unit * ((at_ratio**2 + at_minus**2) / 2 - at_zero**2)
    both = unit * (at_minus**2 - at_ratio**2) / 4
    root = math.sqrt(max((1 - both) ** 2 - (1 - second) * (1 - first), 0.0))
    if second < 1:
        ends = [(1 - both + sign * root) / (1 - second) for sign in (-1, 1)]
        return ratio * max(ends[0], 0.0), ratio * ends[1]
    low = (1 - first) / (1 - both + root) if 1 - both + root > 0 else 0.0
    return ratio * min(max(low, 0.0), 1.0), math.inf


def _in_brackets(limits: tuple[float, float] | None, digits: str) -> str:
    """The ratios that are possible, for people.

    Examples
    --------
    >>> _in_brackets((0.5, 2.0), ".3g"), _in_brackets((0.047, math.inf), ".1%"), _in_brackets(None, "")
    (' [0.5 to 2]', ' [4.7% or more]', '')
    """
    if limits is None:
        return ""
    low, high = limits
    return f" [{low:{digits}} " + ("or more]" if high == math.inf else f"to {high:{digits}}]")


def _ratios_wanted(check: MeasureRatio) -> tuple[float, float]:
    """The least and the greatest ratio that supports a claim."""
    least = check.published / check.factor if check.wanted != "at most" else 0.0
    most = check.published * check.factor if check.wanted != "at least" else math.inf
    return least, most


def _in_words(least: float, most: float) -> str:
    """A range of ratios.

    Examples
    --------
    >>> _in_words(0.0, 1.5), _in_words(2.0, math.inf), _in_words(0.25, 1.0)
    ('at most 1.5', 'at least 2', '0.25 to 1')
    """
    if least == 0:
        return f"at most {most:.3g}"
    return f"at least {least:.3g}" if most == math.inf else f"{least:.3g} to {most:.3g}"


@_check.register
def _reaches(check: Reaches, given: PaperRecords) -> _Judgement:
    found = given.merged(_studies(check))
    outcomes = []
    for dataset in _datasets(check, given.paper):
        ours, theirs = (found.get((dataset, name), []) for name in (check.winner, check.loser))
        mine, other = (mean_curve(records, check.curve) for records in (ours, theirs))
        if mine is None or other is None:
            continue
        goal, end = other[1][-1], other[0][-1]
        reached = mine[0][mine[1] >= goal]
        when = f"at {reached[0]:,g} of {end:,g}" if len(reached) else "not reached"
        text = f"{given.paper.datasets[dataset].label}: {goal:.3f} {when}"
        earlier = mine[0] < end
        sign = -1  # nothing was measured before the end
        if earlier.any():
            best = mine[0][earlier][np.argmax(mine[1][earlier])]
            at_best, at_end = _at(ours, check.curve, best), _at(theirs, check.curve, end)
            highest, final, error = _known_difference(at_best, at_end, check.curve)
            sign = _sign(highest - final, error, (highest, final), check.curve)
            text += f"; the highest before the end, at {best:,g}: {highest - final:+.2g}"
            text += "" if error is None else f" ± {2 * error:.2g}"
            text += " (open)" if sign == 0 else ""
        outcomes.append(_Outcome(dataset, sign, bool((reached < end).any()), text))
    verdict, parts = _summed_up(given.paper, outcomes, list_all=True)
    return verdict + (
        _so_far(check, given, (one.dataset for one in outcomes)) if outcomes else ""
    ), parts


def _at(records: Iterable[Record], curve: str, place: float) -> list[Record]:
    """Records with the value of a curve at one place as a measure of the same name."""
    return [
        one | {"measures": {curve: points["y"][points["x"].index(place)]}}
        for one in records
        if (points := one.get("curves", {}).get(curve)) is not None
    ]


def _so_far(check: Check, given: PaperRecords, found: Iterable[str]) -> str:
    """What a verdict adds if data that decides it is here, and was not run: exact data if there is some."""
    here = [one for one in _datasets(check, given.paper) if given.paper.datasets[one].data]
    decide = {one for one in here if _is_papers_own(given.paper, one)} or set(here)
    return "" if decide <= set(found) else " so far"


# -- ranks of methods over data sets ----------------------------------------------------------------------


def rank_methods(
    records: Iterable[Record], methods: Sequence[str], measure: str, *, lower_is_better: bool
) -> tuple[FriedmanResult, list[str]] | None:
    """Rank methods by the mean of a measure, on the data sets where all of them were tried.

    A method that was over its budget comes last there.

    Returns the result and the names of these data sets; None with fewer than two of either.

    Examples
    --------
    >>> seconds = {"A": (1, 2), "B": (3, 3), "C": (2, 5)}
    >>> records = [
    ...     {"dataset": f"d{i}", "method": name, "seed": 0, "measures": {"seconds": values[i]}}
    ...     for name, values in seconds.items() for i in (0, 1)
    ... ]
    >>> result, used = rank_methods(records, ["A", "B", "C"], "seconds", lower_is_better=True)
    >>> result.average_ranks.tolist(), used
    ([1.0, 2.5, 2.5], ['d0', 'd1'])
    >>> adjusted_p_value(result, "B vs A") == adjusted_p_value(result, "A vs B") < 1
    True
    """
    groups: dict[str, dict[str, list[Record]]] = {}
    for one in records:
        if one["seed"] > TUNING:
            groups.setdefault(one["dataset"], {}).setdefault(one["method"], []).append(one)
    rows, used = [], []
    for name, found in groups.items():
        values = [_value(found.get(method, []), measure, lower_is_better) for method in methods]
        if not np.isnan(values).any():
            rows.append(values)
            used.append(name)
    if len(rows) < 2 or len(methods) < 2:
        return None
    return friedman(np.array(rows), lower_is_better=lower_is_better, names=methods), used


def _value(records: list[Record], measure: str, lower_is_better: bool) -> float:
    """The mean; the worst there is for a method over its budget, NaN for one that was not tried.

    Within the budget for some seeds only is over it, as in tables.
    """
    if _is_over_budget(records):
        return np.inf if lower_is_better else -np.inf
    found = over_seeds(records, measure)
    return np.nan if found is None else found[0]


def adjusted_p_value(result: FriedmanResult, pair: str) -> float | None:
    """Holm's adjusted p-value of a pair of methods "A vs B", in either order; None without such a pair."""
    wanted = set(pair.split(" vs "))
    for found in result.pairwise():
        if {found.first, found.second} == wanted:
            return found.adjusted_p_value
    return None
