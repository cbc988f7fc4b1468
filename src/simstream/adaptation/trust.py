"""How far to trust what was learnt: statistics of gains measured before anything was learnt from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..validation import check_integer, check_number

#: Shares of what was learnt that are tried, where nothing else is said.
DEGREES = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)

#: Fewer queries than this say nothing about the spread of their gains.
FEWEST = 5

# What is summed up.
_GAINS, _EVIDENCE, _ON_NEW_ITEMS = 0, 1, 2


class Trust:
    """Compare options with a baseline, by gains that were measured before they were learnt from.

    The baseline is always an option, and its gain is zero. `choice` is the option whose mean gain has the
    highest lower bound, the mean less `caution` standard errors, among those that pass three tests: that
    bound is positive; the evidence is clear, its mean more than `clearance` standard errors above zero; and
    the lower bound of the gain on new items is not below ``-tolerance``. If none does, it is the baseline.

    Older gains count less: half as much after `half_life` queries. So the choice returns to the baseline
    when an option becomes worse than it.

    `weights` are exponential weights of the options and the baseline. Whatever the stream, an option drawn
    with them gains in expectation at most `regret_bound` less than the best option, the baseline included,
    gains in total (Cesa-Bianchi and Lugosi, Prediction, learning, and games, 2006, theorem 2.3).

    Parameters
    ----------
    n_options : int
        Number of options besides the baseline.
    caution : float
        Standard errors between a mean gain and its lower bound.
    clearance : float
        Standard errors by which the evidence must be above zero.
    tolerance : float
        Loss on new items that is accepted.
    half_life : float or None
        Queries after which a gain counts half. None never forgets.

    Examples
    --------
    >>> trust = Trust(2)
    >>> trust.choice is None
    True
    >>> for gain in (0.2, 0.1, 0.3, 0.2, 0.1, 0.3):
    ...     trust.update([gain, -gain])
    >>> trust.choice
    0
    """

    def __init__(
        self,
        n_options: int,
        *,
        caution: float = 1.0,
        clearance: float = 2.5,
        tolerance: float = 0.005,
        half_life: float | None = 500,
    ) -> None:
        self.n_options = check_integer("n_options", n_options)
        self.caution = check_number("caution", caution, exclusive=False)
        self.clearance = check_number("clearance", clearance, exclusive=False)
        self.tolerance = check_number("tolerance", tolerance, exclusive=False)
        self.half_life = None if half_life is None else check_number("half_life", half_life)
        # Sums of weights, squared weights, values and squared values: of gains, of evidence, on new items.
        self._weight, self._squared_weight = np.zeros((2, 3))
        self._sum, self._squared_sum = np.zeros((2, 3, n_options))
        self._count = np.zeros(3, np.int64)
        self._total = np.zeros(
            n_options + 1
        )  # of all gains, nothing forgotten; the baseline is the last
        self._expected = 0.0

    def update(
        self,
        gains: Any,
        evidence: Any = None,
        new_item_gains: Any = None,
        *,
        weight: float = 1.0,
    ) -> None:
        """Take the gains of one query over the baseline, one of each option, between -1 and 1.

        Parameters
        ----------
        gains : array of shape (n_options,)
        evidence : array of shape (n_options,), optional
            Other gains to tell chance from progress by: some that change with every query, where `gains` are
            mostly zero. By default the gains themselves.
        new_item_gains : array of shape (n_options,), optional
            Gains if only items count that nothing was learnt about before, where there are any.
        weight : float
            How often the query counts in means and bounds; `weights` count every query once.
        """
        values = [self._checked(gains, "gains")]
        values.append(values[0] if evidence is None else self._checked(evidence, "evidence"))
        if new_item_gains is not None:
            values.append(self._checked(new_item_gains, "new_item_gains"))
        weight = check_number("weight", weight)
        self._expected += float(self.weights()[:-1] @ values[0])
        self._total[:-1] += values[0]
        keep = 1.0 if self.half_life is None else 0.5 ** (1.0 / self.half_life)
        for kind, value in enumerate(values):
            self._weight[kind] = keep * self._weight[kind] + weight
            self._squared_weight[kind] = keep**2 * self._squared_weight[kind] + weight**2
            self._sum[kind] = keep * self._sum[kind] + weight * value
            self._squared_sum[kind] = keep * self._squared_sum[kind] + weight * value**2
            self._count[kind] += 1

    def _checked(self, gains: Any, name: str) -> np.ndarray:
        values = np.asarray(gains, np.float64)
        if values.shape != (self.n_options,):
            raise ValueError(f"{name}: expected shape ({self.n_options},), got {values.shape}")
        if not (np.abs(values) <= 1.0 + 1e-9).all():  # also refuses NaN
            raise ValueError(f"{name}: expected numbers between -1 and 1, got {values.tolist()}")
        return values

    @property
    def n_queries(self) -> int:
        """Queries whose gains were taken."""
        return int(self._count[_GAINS])

    @property
    def n_new_item_queries(self) -> int:
        """Queries among them with items that nothing was learnt about before."""
        return int(self._count[_ON_NEW_ITEMS])

    def mean_gains(self, *, new_items: bool = False) -> np.ndarray:
        """Mean gain of each option, older gains counting less."""
        return self._means(_ON_NEW_ITEMS if new_items else _GAINS)

    def lower_bounds(self, *, new_items: bool = False) -> np.ndarray:
        """Mean gain of each option less `caution` standard errors; -inf where there are too few queries."""
        kind = _ON_NEW_ITEMS if new_items else _GAINS
        return self._means(kind) - self.caution * self._standard_errors(kind)

    def standard_errors(self, *, new_items: bool = False) -> np.ndarray:
        """Standard error of each mean gain; infinite where there are too few queries."""
        return self._standard_errors(_ON_NEW_ITEMS if new_items else _GAINS)

    def _means(self, kind: int) -> np.ndarray:
        return self._sum[kind] / self._weight[kind] if self._weight[kind] else self._sum[kind]

    def _standard_errors(self, kind: int) -> np.ndarray:
        if self._count[kind] < FEWEST:
            return np.full(self.n_options, np.inf)
        mean = self._means(kind)
        variance = np.maximum(self._squared_sum[kind] / self._weight[kind] - mean**2, 0.0)
        effective = self._weight[kind] ** 2 / self._squared_weight[kind]
        return np.sqrt(variance / max(effective - 1.0, 1.0))

    @property
    def choice(self) -> int | None:
        """The option to use; None for the baseline."""
        return self.best()

    def best(self, allowed: Any = True) -> int | None:
        """The same, among the options that are allowed: a truth value for each."""
        is_good = self.passing() & allowed
        if not is_good.any():
            return None
        return int(np.argmax(np.where(is_good, self.lower_bounds(), -np.inf)))

    def passing(self) -> np.ndarray:
        """Whether each option passes the three tests."""
        if self._count[_GAINS] < FEWEST:
            return np.zeros(self.n_options, bool)
        is_clear = self._means(_EVIDENCE) > self.clearance * self._standard_errors(_EVIDENCE)
        passes = is_clear & (self.lower_bounds() > 0)
        if self._count[_ON_NEW_ITEMS] >= FEWEST:
            passes &= self.lower_bounds(new_items=True) >= -self.tolerance
        return passes

    def weights(self) -> np.ndarray:
        """Exponential weights of the options and, last, of the baseline."""
        rounds = self._count[_GAINS] + 1
        # Gains between -1 and 1 are losses between 0 and 1, halved.
        rate = math.sqrt(8.0 * math.log(self.n_options + 1) / rounds) / 2.0
        weights = np.exp(rate * (self._total - self._total.max()))
        return weights / weights.sum()

    @property
    def expected_total_gain(self) -> float:
        """Expected sum of gains of options drawn with `weights`, each before the query's own update."""
        return self._expected

    @property
    def best_total_gain(self) -> float:
        """Sum of the gains of the best option, or 0 if that is the baseline."""
        return float(self._total.max())

    @property
    def regret_bound(self) -> float:
        """Most that `expected_total_gain` can be below `best_total_gain`."""
        log = math.log(self.n_options + 1)
        return 2.0 * (2.0 * math.sqrt(self._count[_GAINS] * log / 2.0) + math.sqrt(log / 8.0))

    # -- saving -------------------------------------------------------------------------------

    _SAVED = ("_weight", "_squared_weight", "_sum", "_squared_sum", "_count", "_total")

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON values and arrays, enough to go on."""
        return {"expected": self._expected}, {name[1:]: getattr(self, name) for name in self._SAVED}

    def restore(self, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trust:
        """Take over a saved state; raises if it does not fit the number of options."""
        for name in self._SAVED:
            array, mine = arrays[name[1:]], getattr(self, name)
            if array.shape != mine.shape or array.dtype != mine.dtype:
                raise ValueError(
                    f"{name[1:]}: expected {mine.dtype} of shape {mine.shape}, got {array.dtype} "
                    f"{array.shape}"
                )
            setattr(self, name, array.copy())
        self._expected = float(scalars["expected"])
        return self
