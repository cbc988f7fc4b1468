"""What papers claim, checked against the records; ranks of methods over data sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from simstream.metrics.statistics import FriedmanResult, friedman

from .plan import Beats, BestRank, Check, MeasureRatio, Paper, Reaches, Study, Where
from .records import TUNING, Record, mean_curve, over_seeds
from .verdicts import PaperRecords

#: Where a claim has more comparisons than this, only those that speak against it are listed.
_MOST_LISTED = 4


@dataclass(frozen=True)
class Finding:
    """What became of a claim."""

    claim: str
    #: "holds", "partly", "does not hold" (with " so far" where numbers are missing), or "open".
    verdict: str
    text: str


def check_claims(given: PaperRecords) -> list[Finding]:
    """Check every claim of a paper against the records."""
    return [Finding(claim.text, *_check(claim.check, given)) for claim in given.paper.claims]


@singledispatch
def _check(check: Check, given: PaperRecords) -> tuple[str, str]:
    """The verdict, and what it rests on."""
    raise TypeError(f"check: expected a kind with a rule, got {type(check).__name__}")


@_check.register
def _beats(check: Beats, given: PaperRecords) -> tuple[str, str]:
    paper, study = given.paper, given.paper.studies[check.study]
    means = _means(given, study, check.measure, check.where)
    others = means
    if check.against:
        others = _means(given, paper.studies[check.against], check.measure)
    records = given.table(study) if check.paired else {}
    sign = 1 if check.better == "higher" else -1
    contests = _contests(check, study)
    lines, exceptions = [], []
    for dataset in check.datasets or study.datasets:
        for winner, losers in contests:
            found = {name: others[dataset, name] for name in losers if (dataset, name) in others}
            if (dataset, winner) not in means or not found:
                continue
            best = max(found, key=lambda name: sign * found[name])
            gain = sign * (means[dataset, winner] - found[best])
            line = f"{paper.datasets[dataset].label}: " + (
                f"{winner} " if len(contests) > 1 else ""
            )
            line += f"{'ahead of' if gain > 0 else 'behind'} {best} by {abs(gain):.3g}"
            if check.by is not None and found[best]:
                line += f" ({gain / abs(found[best]):+.1%})"
            if check.paired:
                both = (records.get((dataset, name), []) for name in (winner, best))
                seeds = _seeds_ahead(*both, measure=check.measure, sign=sign)
                line += f", in {seeds[0]} of {seeds[1]} seeds"
            lines.append(line)
            if not gain > (check.by or 0.0) * abs(found[best]):
                exceptions.append(line)
    if not lines:
        return "open", "not run"
    n, n_ahead = len(lines), len(lines) - len(exceptions)
    told = lines if n <= _MOST_LISTED else exceptions
    verdict = _verdict(n_ahead, n)
    if n_missing := _n_missing(paper, study, contests, check, {*means, *others}):
        verdict += " so far"
        are = "is" if n_missing == 1 else "are"
        told = [*told, f"{n_missing} of the numbers it compares {are} missing"]
    return verdict, "; ".join([f"in {n_ahead} of {n} comparisons", *told])


def _contests(check: Beats, study: Study) -> list[tuple[str, tuple[str, ...]]]:
    """Every winner with the methods it is to be ahead of."""
    if check.pairs:
        return [(winner, (loser,)) for winner, loser in check.pairs]
    winners = check.winners or (check.winner,)
    others = tuple(name for name in study.methods if name not in winners)
    return [(winner, check.losers or others) for winner in winners]


def _means(
    given: PaperRecords, study: Study, measure: str, where: Where | None = None
) -> dict[tuple[str, str], float]:
    """Mean over seeds and swept values by (data set, method), of the records `where` allows."""
    found = {}
    for key, records in given.table(study).items():
        if where is not None:
            records = [
                one
                for one in records
                if where.above < one.get("measures", {}).get(where.measure, np.nan) < where.below
            ]
        value = over_seeds(records, measure)
        if value is not None:
            found[key] = value[0]
    return found


def _n_missing(
    paper: Paper,
    study: Study,
    contests: list[tuple[str, tuple[str, ...]]],
    check: Beats,
    found: set[tuple[str, str]],
) -> int:
    """How many numbers that a claim is about are planned, and missing."""
    wanted = {name for winner, losers in contests for name in (winner, *losers)}
    return sum(
        (dataset, name) not in found and (dataset, name) not in study.skip
        for dataset in check.datasets or study.datasets
        if paper.datasets[dataset].data
        for name in wanted
    )


def _seeds_ahead(
    winner: list[Record], loser: list[Record], *, measure: str, sign: int
) -> tuple[int, int]:
    """In how many of the seeds that both have one is ahead of the other."""
    ours, theirs = (
        {
            one["seed"]: value
            for one in records
            if (value := one["measures"].get(measure)) is not None
        }
        for records in (winner, loser)
    )
    gains = [sign * (ours[seed] - theirs[seed]) for seed in ours.keys() & theirs.keys()]
    return sum(gain > 0 for gain in gains), len(gains)


@_check.register
def _best_rank(check: BestRank, given: PaperRecords) -> tuple[str, str]:
    paper, study = given.paper, given.paper.studies[check.study]
    records = [one for found in given.table(study).values() for one in found]
    lower = check.better == "lower"
    ranked = rank_methods(records, check.methods, check.measure, lower_is_better=lower)
    if ranked is None:
        return "open", "not run on enough data sets"
    result, used = ranked
    ranks = dict(zip(check.methods, result.average_ranks, strict=True))
    best = min(ranks, key=lambda name: ranks[name])
    verdict = _verdict(best == check.winner, 1) + _so_far(paper, study.datasets, len(used))
    text = f"{check.winner} {ranks[check.winner]:.2f}, best {best} {ranks[best]:.2f}"
    return verdict, f"{text}, over {len(used)} data sets"


@_check.register
def _ratio(check: MeasureRatio, given: PaperRecords) -> tuple[str, str]:
    paper, study = given.paper, given.paper.studies[check.study]
    datasets = check.datasets or study.datasets
    means = _means(given, study, check.measure)
    ratios = {}
    for dataset in datasets:
        above, below = (dataset, check.numerator), (dataset, check.denominator)
        if above in means and below in means and means[below]:
            ratios[paper.datasets[dataset].label] = means[above] / means[below]
    if not ratios:
        return "open", "not run"
    least, most = check.published / check.factor, check.published * check.factor
    n_near = sum(least <= ratio <= most for ratio in ratios.values())
    verdict = _verdict(n_near, len(ratios)) + _so_far(paper, datasets, len(ratios))
    found = "; ".join(f"{label}: {ratio:.3g}" for label, ratio in ratios.items())
    return verdict, f"published {check.published:g}; {found}"


@_check.register
def _reaches(check: Reaches, given: PaperRecords) -> tuple[str, str]:
    paper, study = given.paper, given.paper.studies[check.study]
    found = given.table(study)
    lines, n_before = [], 0
    for dataset in check.datasets or study.datasets:
        ours, theirs = (
            mean_curve(found.get((dataset, method), []), check.curve)
            for method in (check.winner, check.loser)
        )
        if ours is None or theirs is None:
            continue
        goal, end = theirs[1][-1], theirs[0][-1]
        reached = ours[0][ours[1] >= goal]
        n_before += bool(len(reached) and reached[0] < end)
        when = f"at {reached[0]:,g} of {end:,g}" if len(reached) else "not reached"
        lines.append(f"{paper.datasets[dataset].label}: {goal:.3f} {when}")
    if not lines:
        return "open", "not run"
    so_far = _so_far(paper, check.datasets or study.datasets, len(lines))
    return _verdict(n_before, len(lines)) + so_far, "; ".join(lines)


def _verdict(n_good: int, n: int) -> str:
    return "holds" if n_good == n else "partly" if n_good else "does not hold"


def _so_far(paper: Paper, datasets: Iterable[str], n_found: int) -> str:
    """What a verdict adds where not all data sets that are here were run."""
    return " so far" if n_found < sum(bool(paper.datasets[name].data) for name in datasets) else ""


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
    """The mean; the worst there is for a method over its budget, NaN for one that was not tried."""
    found = over_seeds(records, measure)
    if found is not None:
        return found[0]
    if any(record.get("status") == "over budget" for record in records):
        return np.inf if lower_is_better else -np.inf
    return np.nan


def adjusted_p_value(result: FriedmanResult, pair: str) -> float | None:
    """Holm's adjusted p-value of a pair of methods "A vs B", in either order; None without such a pair."""
    wanted = set(pair.split(" vs "))
    for found in result.pairwise():
        if {found.first, found.second} == wanted:
            return found.adjusted_p_value
    return None
