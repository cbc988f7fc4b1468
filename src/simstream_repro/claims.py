"""What papers claim, looked at in the records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plan import Claim, Paper, Study
from .ranks import rank_methods
from .records import Record, RecordStore, mean_curve, over_seeds
from .verdicts import records_of

#: Where a claim has more comparisons than this, only those that speak against it are listed.
_AT_MOST_TOLD = 4


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
    loser's value (negative: may be that much behind); ``against``: the study that has the losers' records;
    ``paired``: also says in how many seeds, which share their data, it is ahead.
    """
    check = claim.check
    study = paper.studies[check["study"]]
    means = _means(paper, study, check["measure"], store, check.get("where"))
    others = means
    if "against" in check:
        others = _means(paper, paper.studies[check["against"]], check["measure"], store)
    records = records_of(paper, study, store) if check.get("paired") else {}
    sign = 1 if check.get("better", "higher") == "higher" else -1
    if "pairs" in check:
        contests = [(winner, [loser]) for winner, loser in check["pairs"]]
    else:
        winners = check["winners"] if "winners" in check else [check["winner"]]
        others_of = [name for name in study.methods if name not in winners]
        contests = [(winner, check.get("losers", others_of)) for winner in winners]
    lines, exceptions, n_ahead, n = [], [], 0, 0
    for dataset in check.get("datasets", study.datasets):
        for winner, losers in contests:
            found = {name: others[dataset, name] for name in losers if (dataset, name) in others}
            if (dataset, winner) not in means or not found:
                continue
            best = max(found, key=lambda name: sign * found[name])
            gain = sign * (means[dataset, winner] - found[best])
            n += 1
            ahead = gain > check.get("by", 0.0) * abs(found[best])
            n_ahead += ahead
            who = f"{winner} " if len(contests) > 1 else ""
            word = "ahead of" if gain > 0 else "behind"
            share = f" ({gain / abs(found[best]):+.1%})" if "by" in check and found[best] else ""
            if check.get("paired"):
                both = (records.get((dataset, name), []) for name in (winner, best))
                seeds = _seeds_ahead(*both, measure=check["measure"], sign=sign)
                share += f", in {seeds[0]} of {seeds[1]} seeds"
            lines.append(
                f"{paper.datasets[dataset].label}: {who}{word} {best} by {abs(gain):.3g}{share}"
            )
            if not ahead:
                exceptions.append(lines[-1])
    if not n:
        return Finding(claim.text, "open", "not run")
    verdict = "holds" if n_ahead == n else "partly" if n_ahead else "does not hold"
    told = lines if n <= _AT_MOST_TOLD else exceptions
    if n_missing := _n_missing(paper, study, contests, check, {*means, *others}):
        verdict += " so far"
        told = [*told, f"not there: {n_missing} of the numbers that it is about"]
    return Finding(claim.text, verdict, "; ".join([f"in {n_ahead} of {n} comparisons", *told]))


def _n_missing(
    paper: Paper,
    study: Study,
    contests: list[tuple[str, list[str]]],
    check: dict[str, Any],
    found: set[tuple[str, str]],
) -> int:
    """How many numbers a claim is about that the plan has and nobody has run."""
    wanted = {name for winner, losers in contests for name in (winner, *losers)}
    return sum(
        (dataset, name) not in found and (dataset, name) not in study.skip
        for dataset in check.get("datasets", study.datasets)
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


def _rank(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """Whether a method has the best average rank over data sets, beside the published rank."""
    check = claim.check
    study = paper.studies[check["study"]]
    methods = check["methods"]
    records = [one for found in records_of(paper, study, store).values() for one in found]
    lower = check.get("better", "higher") == "lower"
    ranked = rank_methods(records, methods, check["measure"], lower_is_better=lower)
    if ranked is None:
        return Finding(claim.text, "open", "not run on enough data sets")
    ranks = dict(zip(methods, ranked[0].average_ranks, strict=True))
    best = min(ranks, key=lambda name: ranks[name])
    verdict = "holds" if best == check["winner"] else "does not hold"
    verdict += _so_far(paper, study.datasets, len(ranked[1]))
    text = f"{check['winner']} {ranks[check['winner']]:.2f}, best {best} {ranks[best]:.2f}"
    return Finding(claim.text, verdict, f"{text}, over {len(ranked[1])} data sets")


def _ratio(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """The ratio of a measure of two methods beside the published one; it holds within ``factor`` (2)."""
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
    factor = check.get("factor", 2.0)
    near = [theirs / factor <= ratio <= theirs * factor for ratio in ratios]
    verdict = "holds" if all(near) else "partly" if any(near) else "does not hold"
    datasets = check.get("datasets", paper.studies[check["study"]].datasets)
    verdict += _so_far(paper, datasets, len(ratios))
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
    verdict += _so_far(paper, check.get("datasets", study.datasets), len(lines))
    return Finding(claim.text, verdict, "; ".join(lines))


def _so_far(paper: Paper, datasets: Iterable[str], n_found: int) -> str:
    """What a verdict adds where not all data sets that are here were run."""
    return " so far" if n_found < sum(bool(paper.datasets[name].data) for name in datasets) else ""


def _text(paper: Paper, claim: Claim, store: RecordStore) -> Finding:
    """A finding written by hand, where no rule decides it."""
    return Finding(claim.text, claim.check["verdict"], claim.check["finding"])


_CHECKS: dict[str, Any] = {
    "beats": _beats,
    "rank": _rank,
    "ratio": _ratio,
    "reaches": _reaches,
    "text": _text,
}
