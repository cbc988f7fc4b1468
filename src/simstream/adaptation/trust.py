"""How far to trust what was learnt: statistics of gains measured before anything was learnt from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..validation import check_integer, check_number

#: Fewer queries than this say nothing about the spread of their gains.
_FEWEST = 5


class Trust:
    """Compare options with a baseline, by gains that were measured before they were learnt from.

    The baseline is always an option, and its gain is zero. `choice` is the option with the highest *lower
    bound* of its mean gain: the mean less `caution` standard errors. It is the baseline unless one of these
    bounds is positive. Options that may harm on new items (their bound there is below ``-tolerance``) are
    left out.

    Older gains count less: half as much after `half_life` queries. So the choice returns to the baseline when
    an option becomes worse than it.

    `weights` are exponential weights of the options and the baseline. An option drawn with them gains,
    whatever the stream, in expectation at most `regret_bound` less than the best option, or the baseline,
    would have gained in total (Cesa-Bianchi and Lugosi, Prediction, learning, and games, 2006, theorem 2.3).

    Parameters
    ----------
    n_options : int
        Number of options besides the baseline.
    caution : float
        Standard errors between a mean gain and its lower bound.
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
        tolerance: float = 0.005,
        half_life: float | None = 500,
    ) -> None:
        self.n_options = check_integer("n_options", n_options)
        self.caution = check_number("caution", caution, exclusive=False)
        self.tolerance = check_number("tolerance", tolerance, exclusive=False)
        self.half_life = None if half_life is None else check_number("half_life", half_life)
        # Sums of weights, squared weights, gains and squared gains: of all queries, and of new items.
        self._weight, self._squared_weight = np.zeros((2, 2))
        self._gain, self._squared_gain = np.zeros((2, 2, n_options))
        self._count = np.zeros(2, np.int64)
        self._total = np.zeros(
            n_options + 1
        )  # of all gains, nothing forgotten; the baseline is the last
        self._expected = 0.0

    def update(self, gains: Any, new_item_gains: Any = None, *, weight: float = 1.0) -> None:
        """Take the gains of one query, between -1 and 1: one of each option over the baseline.

        Parameters
        ----------
        gains : array of shape (n_options,)
        new_item_gains : array of shape (n_options,), optional
            Gains when only items count that nothing was learnt about before, if there are any.
        weight : float
            How often the query counts in means and bounds; `weights` count every query once.
        """
        checked = [self._checked(gains, "gains")]
        if new_item_gains is not None:
            checked.append(self._checked(new_item_gains, "new_item_gains"))
        weight = check_number("weight", weight)
        self._expected += float(self.weights()[:-1] @ checked[0])
        self._total[:-1] += checked[0]
        keep = 1.0 if self.half_life is None else 0.5 ** (1.0 / self.half_life)
        for kind, values in enumerate(checked):
            self._weight[kind] = keep * self._weight[kind] + weight
            self._squared_weight[kind] = keep**2 * self._squared_weight[kind] + weight**2
            self._gain[kind] = keep * self._gain[kind] + weight * values
            self._squared_gain[kind] = keep * self._squared_gain[kind] + weight * values**2
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
        return int(self._count[0])

    @property
    def n_new_item_queries(self) -> int:
        """Queries among them with items that nothing was learnt about before."""
        return int(self._count[1])

    def mean_gains(self, *, new_items: bool = False) -> np.ndarray:
        """Mean gain of each option, older gains counting less."""
        kind = int(new_items)
        return self._gain[kind] / max(self._weight[kind], 1e-300)

    def standard_errors(self, *, new_items: bool = False) -> np.ndarray:
        """Standard error of each mean gain; infinite where there are too few queries."""
        kind = int(new_items)
        if self._count[kind] < _FEWEST:
            return np.full(self.n_options, np.inf)
        mean = self.mean_gains(new_items=new_items)
        variance = np.maximum(self._squared_gain[kind] / self._weight[kind] - mean**2, 0.0)
        effective = self._weight[kind] ** 2 / self._squared_weight[kind]
        return np.sqrt(variance / max(effective - 1.0, 1.0))

    def lower_bounds(self, *, new_items: bool = False) -> np.ndarray:
        """Mean gain of each option less `caution` standard errors."""
        errors = self.standard_errors(new_items=new_items)
        if not np.isfinite(errors).all():
            return np.full(self.n_options, -np.inf)
        return self.mean_gains(new_items=new_items) - self.caution * errors

    @property
    def choice(self) -> int | None:
        """The option to use; None for the baseline."""
        bounds = self.lower_bounds()
        if self._count[1] >= _FEWEST:
            is_harmful = self.lower_bounds(new_items=True) < -self.tolerance
            bounds = np.where(is_harmful, -np.inf, bounds)
        best = int(np.argmax(bounds))
        return best if bounds[best] > 0 else None

    def weights(self) -> np.ndarray:
        """Exponential weights of the options and, last, of the baseline."""
        rounds = self._count[0] + 1
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
        return 2.0 * (2.0 * math.sqrt(self._count[0] * log / 2.0) + math.sqrt(log / 8.0))

    # -- saving -------------------------------------------------------------------------------

    _SAVED = ("_weight", "_squared_weight", "_gain", "_squared_gain", "_count", "_total")

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
