"""Whether what was learnt may be served: gains over the plain inner product, measured before learning.

Every measured event is predicted by the inner product and by similarities between it and the learnt one,
before anything is learnt from the event. Nothing here depends on time, threads or chance.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ..adaptation.trust import DEGREES, Trust
from ..validation import check_choice, check_number
from .clicks import Clicks

#: Degrees of trust: 0 serves the inner product, 1 what was learnt.
_ALL_DEGREES = np.array([0.0, *DEGREES])

#: A margin that outweighs any other.
_HUGE = 1e300

#: So many events are all measured; after them one in `_THINNING`, so that measuring costs little.
_ALL_MEASURED = 1000
_THINNING = 16

#: Events measured by the same reading of what was learnt: a sixteenth of all so far, but no more than this.
#: Reading a matrix of sparse items takes long.
_LONGEST = 256
_LONGEST_COSTLY = 1024

#: Queries learnt from last that are remembered.
_REMEMBERED = 4096

RULE = (
    "Of several degrees of trust in what was learnt, the one is served whose mean gain over the plain inner "
    "product has the highest lower bound, measured on events before learning from them, both over queries "
    "not learnt from before and over all queries; if no lower bound is positive, the plain inner product."
)


@dataclass(frozen=True)
class Publishing:
    """What is published. Stored in the log, because the evidence depends on it.

    Parameters
    ----------
    promote : "safe" or "always"
        Serve what was learnt as far as the evidence says that it is better than the inner product, or
        whatever was learnt.
    caution : float
        Standard errors between a mean gain and its lower bound.
    half_life : float or None
        Measured events after which an event counts half. None never forgets.
    propensity : float or "swaps"
        Power p of the probability (1 / rank)^p that a result is looked at; "swaps" estimates it. See
        `simstream.serve.clicks`.

    Examples
    --------
    >>> Publishing("always").new_evidence() is None
    True
    >>> Publishing("sometimes")
    Traceback (most recent call last):
    ...
    ValueError: promote: expected one of 'safe', 'always', got 'sometimes'
    """

    promote: str = "safe"
    caution: float = 2.5
    half_life: float | None = 500.0
    propensity: float | str = 0.0

    def __post_init__(self) -> None:
        check_choice("promote", self.promote, ("safe", "always"))
        check_number("caution", self.caution, exclusive=False)
        if self.half_life is not None:
            check_number("half_life", self.half_life)
        Clicks(self.propensity)

    @classmethod
    def stored_in(cls, settings: dict[str, Any]) -> Publishing:
        """As the settings of a log say; earlier versions published always."""
        return cls(**settings["publishing"]) if "publishing" in settings else cls("always")

    @classmethod
    def checked(cls, given: Publishing | None, params: Mapping[str, Any]) -> Publishing:
        """What is published of a learner with these parameters: what is given, or the default.

        Examples
        --------
        >>> Publishing.checked(None, {"normalise": True}).promote
        'always'
        """
        is_cosine = bool(params.get("normalise"))
        published = given or cls("always" if is_cosine else "safe")
        if is_cosine and published.promote == "safe":
            raise ValueError(
                "promote: expected 'always' for a learner that is read as a cosine (normalise), got 'safe': "
                "cosines and inner products cannot be mixed"
            )
        return published

    def as_json(self) -> dict[str, Any]:
        """JSON values; nothing but `promote` matters if it is "always"."""
        return {"promote": "always"} if self.promote == "always" else asdict(self)

    def new_evidence(self) -> Evidence | None:
        """Evidence of nothing yet; None if none is needed."""
        return None if self.promote == "always" else Evidence(self)


class Offered(NamedTuple):
    """What is to be done with an event before it is learnt from."""

    #: Whether nothing was learnt from its query before.
    is_new: bool
    is_measured: bool
    #: Whether what was learnt so far is to be read first.
    is_due: bool


class Evidence:
    """How well the inner product and what was learnt predicted events, each before learning from it.

    `trust` is the degree of trust that may be served, 0 for the inner product.

    Examples
    --------
    >>> evidence = Evidence(Publishing())
    >>> for query in range(20):
    ...     offered = evidence.offer(query)
    ...     evidence.add(np.array([-0.1]), np.array([0.2]), np.ones(1), is_new=offered.is_new)
    >>> evidence.trust, evidence.summary()["new_queries"]
    (0.35, 20)
    """

    def __init__(self, publishing: Publishing) -> None:
        #: What is known of the places of clicks.
        self.clicks = Clicks(publishing.propensity)
        self.trust = 0.0
        half_life = publishing.half_life
        # Gains over queries not learnt from before, and over all of them.
        self._new, self._all = (
            Trust(len(DEGREES), caution=publishing.caution, half_life=half_life) for _ in range(2)
        )
        keep = 1.0 if half_life is None else 0.5 ** (1.0 / half_life)
        self._keeps = np.array([keep, keep**2, keep, keep, keep])
        # Weights, their squares, and weighted shares predicted by inner product, learnt and served
        # similarity, over queries not learnt from before.
        self._shares = np.zeros(5)
        self._offered, self._next_reading = 0, 1
        #: Queries that were learnt from, the last one at the end: a set in order.
        self._known: dict[int, None] = {}

    def offer(self, query: int) -> Offered:
        """Hear of the next event and its query, given as a number; from now on that is not new."""
        is_new = query not in self._known
        self._known.pop(query, None)
        self._known[query] = None
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._offered += 1
        # Multiplied and cut, so that no regular pattern of the events decides which of them are measured.
        mixed = (self._offered * 2_654_435_769) % 2**32
        is_measured = self._offered <= _ALL_MEASURED or mixed < 2**32 // _THINNING
        return Offered(is_new, is_measured, self._offered >= self._next_reading)

    def was_read(self, *, is_costly: bool) -> None:
        """What was learnt so far was read, to measure the next events by it."""
        most = _LONGEST_COSTLY if is_costly else _LONGEST
        self._next_reading = self._offered + min(max(1, self._offered // 16), most)

    def add(
        self, baseline: np.ndarray, learnt: np.ndarray, weights: np.ndarray, *, is_new: bool
    ) -> None:
        """Take one event.

        Parameters
        ----------
        baseline, learnt : margins of its comparisons by the inner product, and by what was learnt
        weights : of its comparisons
        is_new : whether nothing was learnt from the query before
        """
        if not np.isfinite(
            learnt
        ).all():  # an overflow predicts nothing: with any trust it is wrong
            learnt = np.where(np.isfinite(learnt), learnt, -_HUGE)
        margins = baseline + _ALL_DEGREES[:, None] * (learnt - baseline)
        total = float(weights.sum())
        shares = 0.5 + 0.5 * (np.sign(margins) @ weights) / total
        gains, weight = shares[1:] - shares[0], total / len(weights)
        self._all.update(gains, weight=weight)
        if is_new:
            served = shares[_ALL_DEGREES.searchsorted(self.trust)]
            self._new.update(gains, weight=weight)
            taken = np.array([1.0, weight, shares[0], shares[-1], served])
            self._shares = self._keeps * self._shares + weight * taken
        bounds = self._bounds()
        best = int(np.argmax(bounds))
        self.trust = float(DEGREES[best]) if bounds[best] > 0 else 0.0

    def _bounds(self) -> np.ndarray:
        return np.minimum(self._new.lower_bounds(), self._all.lower_bounds())

    # -- telling ------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """What was measured, as JSON values: accuracies with 95 % intervals, gains and bounds."""
        bounds = self._bounds()
        best = int(np.argmax(bounds)) if self._new.n_queries else len(DEGREES) - 1
        gain, error = self._new.mean_gains()[best], self._new.standard_errors()[best]
        weight, squared, *sums = self._shares.tolist()
        effective = weight**2 / squared if squared else 0.0
        names = ("baseline", "learnt", "trusted")
        return {
            "trust": self.trust,
            "why": self._why(best, gain, bounds[best]),
            "rule": RULE,
            "events": self._all.n_queries,
            "new_queries": self._new.n_queries,
            **{
                n: _wilson(s / max(weight, 1e-300), effective)
                for n, s in zip(names, sums, strict=True)
            },
            "gain": {
                "trust": float(DEGREES[best]),
                "mean": _finite(gain) if self._new.n_queries else None,
                "low": _finite(gain - 1.96 * error),
                "high": _finite(gain + 1.96 * error),
                "lower_bound": _finite(bounds[best]),
            },
            "propensity": self.clicks.summary(),
        }

    def _why(self, best: int, gain: float, bound: float) -> str:
        if not math.isfinite(bound):
            count = self._new.n_queries
            return f"The inner product is served: {count} new queries are too few to tell."
        told = (
            f"trust {DEGREES[best]:g} gains {100 * gain:+.1f} points on new queries, lower bound "
            f"{100 * bound:+.1f}"
        )
        if self.trust:
            return f"What was learnt is served with trust {self.trust:g}: {told}."
        return f"The inner product is served, no lower bound is positive: {told}."

    # -- saving -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """JSON values, enough to go on bit for bit."""
        known = np.array(list(self._known), "<i8")
        return {
            "new": _trust_as_json(self._new),
            "all": _trust_as_json(self._all),
            "shares": self._shares.tolist(),
            "offered": self._offered,
            "next_reading": self._next_reading,
            "known": base64.b64encode(known.tobytes()).decode(),
            "trust": self.trust,
            "clicks": self.clicks.state(),
        }

    def restore(self, saved: dict[str, Any]) -> Evidence:
        """Take over a saved state; return self."""
        for trust, name in ((self._new, "new"), (self._all, "all")):
            arrays = {
                key: np.array(values, np.int64 if key == "count" else np.float64)
                for key, values in saved[name]["arrays"].items()
            }
            trust.restore(saved[name], arrays)
        self._shares = np.array(saved["shares"], np.float64)
        self._offered, self._next_reading = int(saved["offered"]), int(saved["next_reading"])
        self.trust = float(saved["trust"])
        known = np.frombuffer(base64.b64decode(saved["known"]), "<i8")
        self._known = dict.fromkeys(known.tolist())
        self.clicks.restore(saved["clicks"])
        return self


def _trust_as_json(trust: Trust) -> dict[str, Any]:
    scalars, arrays = trust.state()
    return {**scalars, "arrays": {name: array.tolist() for name, array in arrays.items()}}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _wilson(share: float, count: float) -> dict[str, float | None]:
    """A share with Wilson's 95 % interval; the number may be a fraction, older events counting less."""
    if not count:
        return {"accuracy": None, "low": None, "high": None}
    z = 1.959963984540054
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    spread = share * (1 - share) / count + (z / (2 * count)) ** 2
    reach = z / (1 + z**2 / count) * math.sqrt(max(0.0, spread))
    return {"accuracy": share, "low": max(0.0, centre - reach), "high": min(1.0, centre + reach)}
