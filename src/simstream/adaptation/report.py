"""What adapting has gained: measures of rankings, and a report of them for people and programs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .trust import FEWEST, Trust

#: Measures of one query's ranking, in the order in which they are kept.
MEASURES = ("nDCG@10", "mAP", "P@1", "recall@10")

#: Share of a normal distribution within so many standard errors: 95 %.
_TWO_SIDED = 1.959964

#: Parts of the stream in the curve, and queries shown that won or lost most.
_POINTS, _EXTREMES = 8, 5


def measures_of_ranks(ranks: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """All `MEASURES` from the ranks (from 1) of the relevant items.

    Parameters
    ----------
    ranks : integers of shape (..., n_relevant)
    grades : positive numbers of shape (n_relevant,), used by nDCG

    Returns
    -------
    array of shape (..., 4)

    Examples
    --------
    >>> measures_of_ranks(np.array([1, 3]), np.ones(2)).round(3).tolist()
    [0.92, 0.833, 1.0, 1.0]
    """
    n = ranks.shape[-1]
    gain = np.where(ranks <= 10, grades / np.log2(ranks + 1.0), 0.0).sum(axis=-1)
    best = np.sort(grades)[::-1][:10]
    ideal = float((best / np.log2(np.arange(2, len(best) + 2))).sum())
    ordered = np.sort(ranks, axis=-1)
    precision = (np.arange(1, n + 1) / ordered).mean(axis=-1)
    first = (ordered[..., 0] == 1).astype(float)
    recall = (ranks <= 10).mean(axis=-1)
    return np.stack([gain / ideal, precision, first, recall], axis=-1)


class History:
    """Measures of every query before it was learnt from: by the baseline, and as it was searched then."""

    def __init__(self) -> None:
        self.names: list[Hashable] = []
        self._rows: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.names)

    def add(
        self,
        name: Hashable,
        baseline: np.ndarray,
        used: np.ndarray,
        choice: int | None,
        is_new: bool,
    ) -> None:
        """Add one query: its measures, the option that was used, whether it had new relevant items."""
        self.names.append(len(self.names) if name is None else name)
        option = -1 if choice is None else choice
        self._rows.append(np.array([*baseline, *used, option, is_new], np.float32))

    def _column(self, begin: int, end: int) -> np.ndarray:
        if not self._rows:
            return np.empty((0, end - begin))
        return np.stack(self._rows)[:, begin:end].astype(np.float64)

    @property
    def baseline(self) -> np.ndarray:
        """Measures of the baseline, one row for each query."""
        return self._column(0, len(MEASURES))

    @property
    def used(self) -> np.ndarray:
        """Measures of what was used when the query came."""
        return self._column(len(MEASURES), 2 * len(MEASURES))

    def state(self) -> tuple[list[Hashable], dict[str, np.ndarray]]:
        """Names of the queries, and arrays."""
        width = 2 * len(MEASURES) + 2
        return self.names, {
            "rows": np.stack(self._rows) if self._rows else np.empty((0, width), np.float32)
        }

    @classmethod
    def restored(cls, names: list[Hashable], arrays: dict[str, np.ndarray]) -> History:
        """What `state` gave."""
        self = cls()
        self.names, self._rows = list(names), list(arrays["rows"])
        if len(self.names) != len(self._rows):
            raise ValueError(f"history: expected {len(self.names)} rows, got {len(self._rows)}")
        return self


class Comparison(NamedTuple):
    """Mean of a measure by the baseline and by the adapter, and a 95 % interval of the paired gain."""

    baseline: float
    adapted: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """Adapted less baseline."""
        return self.adapted - self.baseline

    @classmethod
    def of(cls, baseline: np.ndarray, adapted: np.ndarray) -> Comparison:
        """Of paired values, one for each query."""
        if not len(baseline):
            return cls(math.nan, math.nan, math.nan, math.nan)
        gain = adapted - baseline
        error = float(gain.std(ddof=1) / math.sqrt(len(gain))) if len(gain) > 1 else math.nan
        middle = float(gain.mean())
        reach = _TWO_SIDED * error
        return cls(float(baseline.mean()), float(adapted.mean()), middle - reach, middle + reach)


class JudgedQuery(NamedTuple):
    """One query, with the measure by the baseline and as it was searched when it came."""

    name: Hashable
    text: str | None
    baseline: float
    adapted: float

    @property
    def gain(self) -> float:
        """Adapted less baseline."""
        return self.adapted - self.baseline


class Choice(NamedTuple):
    """The candidate that is used, how far it is trusted, and what it is expected to gain."""

    candidate: int
    trust: float
    gain: float
    lower_bound: float
    #: The same on items that nothing was learnt about before; NaN if there were too few.
    new_item_gain: float
    new_item_lower_bound: float


@dataclass(frozen=True)
class AdaptationReport:
    """What adapting has gained, on queries that were searched before they were learnt from.

    Examples
    --------
    >>> from simstream import Adapter
    >>> items = np.random.default_rng(0).normal(size=(100, 8))
    >>> adapter = Adapter(random_state=0).fit(items[:50], items, [(n, n) for n in range(50)])
    >>> report = adapter.report()
    >>> report.is_adapted, report.n_queries
    (False, 50)
    >>> print(report.verdict)
    baseline kept: no candidate's gain in nDCG@10 is clear of chance over 50 queries
    """

    #: What candidates are chosen by.
    measure: str
    #: Queries measured, and those among them with items that nothing was learnt about before.
    n_queries: int
    n_new_item_queries: int
    #: Every measure over all these queries, each searched with what was published when it came.
    measures: dict[str, Comparison]
    #: The same for the measure candidates are chosen by, over successive parts of the stream, with the
    #: number of the last query of each part.
    curve: list[tuple[int, Comparison]]
    #: What is used from now on; None for the baseline.
    choice: Choice | None
    #: Queries for which the adapted search was better, and worse, and the extreme ones among them.
    n_won: int
    n_lost: int
    won: list[JudgedQuery]
    lost: list[JudgedQuery]
    #: Gain of every query in the measure candidates are chosen by, in order of arrival; only for pictures.
    gains: np.ndarray = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        history: History,
        trust: Trust,
        chosen: tuple[int, float] | None,
        option: int | None,
        measure: str,
        texts: Any = None,
    ) -> AdaptationReport:
        """Summarise the history of an adapter."""
        baseline, used = history.baseline, history.used
        column = MEASURES.index(measure)
        before, after = baseline[:, column], used[:, column]
        measures = {
            name: Comparison.of(baseline[:, i], used[:, i]) for i, name in enumerate(MEASURES)
        }
        ends = np.unique(np.linspace(0, len(history), _POINTS + 1).astype(int))
        curve = [
            (int(end), Comparison.of(before[begin:end], after[begin:end]))
            for begin, end in pairwise(ends)
        ]
        gain = after - before
        order = np.argsort(-gain, kind="stable")

        def some(numbers: Iterable[int]) -> list[JudgedQuery]:
            return [
                JudgedQuery(
                    name := history.names[n],
                    _text_of(name, texts),
                    float(before[n]),
                    float(after[n]),
                )
                for n in numbers
            ]

        return cls(
            measure,
            trust.n_queries,
            trust.n_new_item_queries,
            measures,
            curve,
            None if chosen is None or option is None else _choice_of(trust, chosen, option),
            int((gain > 0).sum()),
            int((gain < 0).sum()),
            some(n for n in order[:_EXTREMES].tolist() if gain[n] > 0),
            some(n for n in order[::-1][:_EXTREMES].tolist() if gain[n] < 0),
            gain,
        )

    @property
    def is_adapted(self) -> bool:
        """Whether something other than the baseline is used from now on."""
        return self.choice is not None

    @property
    def verdict(self) -> str:
        """One line for people in a hurry."""
        if self.choice is None and self.n_queries < FEWEST:
            count = "1 query is" if self.n_queries == 1 else f"{self.n_queries} queries are"
            return f"baseline kept: {count} too few to tell"
        if self.choice is None:
            return (
                f"baseline kept: no candidate's gain in {self.measure} is clear of chance over "
                f"{self.n_queries} queries"
            )
        whole = self.measures[self.measure]
        return (
            f"adapted: {self.measure} {whole.baseline:.3f} -> {whole.adapted:.3f} while learning from "
            f"{self.n_queries} queries, each measured before; about "
            f"{whole.baseline + self.choice.gain:.3f} from now on"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None stands for numbers that cannot be known."""

        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return value if math.isfinite(value) else None
            if hasattr(value, "_asdict"):
                extra = {"gain": value.gain} if isinstance(value, (Comparison, JudgedQuery)) else {}
                return plain(value._asdict() | extra)
            if isinstance(value, dict):
                return {key: plain(one) for key, one in value.items()}
            if isinstance(value, (list, tuple)):
                return [plain(one) for one in value]
            return value

        names = (name for name in self.__dataclass_fields__ if name != "gains")
        fields = {name: plain(getattr(self, name)) for name in names}
        fields["curve"] = [{"queries": end, **plain(part)} for end, part in self.curve]
        return {"verdict": self.verdict, "is_adapted": self.is_adapted, **fields}

    def to_markdown(self) -> str:
        """The report as a page."""
        lines = [
            "# Adaptation report",
            "",
            f"**{self.verdict[0].upper()}{self.verdict[1:]}.**",
            "",
            f"All numbers are from {self.n_queries} queries. Each was searched with what was published "
            "at that moment, and only then learnt from.",
            "",
            "| measure | baseline | adapted | gain | 95 % interval |",
            "|---|---|---|---|---|",
            *(_row(name, one) for name, one in self.measures.items()),
            "",
            f"Better for {self.n_won} queries, worse for {self.n_lost}, the same for the others.",
            "",
            "## What is used from now on",
            "",
            *self._choice_lines(),
            "",
            f"## {self.measure} over the stream",
            "",
            "| up to query | baseline | adapted | gain | 95 % interval |",
            "|---|---|---|---|---|",
            *(_row(str(end), part) for end, part in self.curve),
        ]
        for title, queries in (("won", self.won), ("lost", self.lost)):
            if queries:
                lines += ["", f"## Queries that {title} most", ""]
                lines += ["| query | baseline | adapted |", "|---|---|---|"]
                lines += [
                    f"| {_cell(one)} | {one.baseline:.3f} | {one.adapted:.3f} |" for one in queries
                ]
        return "\n".join(lines) + "\n"

    def _choice_lines(self) -> list[str]:
        held_out = (
            f"Held out: every query until it was measured. For {self.n_new_item_queries} of them also "
            "items: those that nothing had been learnt about, ranked among themselves."
        )
        if self.choice is None:
            return ["The baseline, unchanged.", "", held_out]
        one = self.choice
        lines = [
            f"{100 * one.trust:g} % of what candidate {one.candidate} would change: mean gain "
            f"{one.gain:+.3f}, lower bound {one.lower_bound:+.3f}.",
        ]
        if math.isfinite(one.new_item_gain):
            lines[0] += (
                f" On new items {one.new_item_gain:+.3f}, lower bound {one.new_item_lower_bound:+.3f}."
            )
        return [*lines, "", held_out]


def _choice_of(trust: Trust, chosen: tuple[int, float], option: int) -> Choice:
    new_gain = new_bound = math.nan
    if np.isfinite(trust.lower_bounds(new_items=True)).all():
        new_gain = float(trust.mean_gains(new_items=True)[option])
        new_bound = float(trust.lower_bounds(new_items=True)[option])
    return Choice(
        *chosen,
        float(trust.mean_gains()[option]),
        float(trust.lower_bounds()[option]),
        new_gain,
        new_bound,
    )


def _text_of(name: Hashable, texts: Any) -> str | None:
    if texts is None:
        return None
    if isinstance(texts, Mapping):
        return texts.get(name)
    return str(texts[name]) if isinstance(name, int) and 0 <= name < len(texts) else None


def _row(name: str, one: Comparison) -> str:
    interval = f"{one.low:+.3f} to {one.high:+.3f}" if math.isfinite(one.low) else ""
    return f"| {name} | {one.baseline:.3f} | {one.adapted:.3f} | {one.gain:+.3f} | {interval} |"


def _cell(query: JudgedQuery) -> str:
    text = str(query.name) if query.text is None else f"{query.name}: {query.text}"
    return " ".join(text.split()).replace("|", "\\|")[:160]
