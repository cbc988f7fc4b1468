"""Position bias of clicks: how probable it is that the result at a rank is looked at.

A result at rank r is looked at with probability (1 / r)^p. A click there counts by the inverse of that, at
most `LARGEST_WEIGHT` times, because clicks far down are rare (Joachims, Swaminathan, Schnabel. Unbiased
learning-to-rank with biased feedback. WSDM 2017).

The power p is given, or estimated from randomised searches: two neighbouring results, at ranks k and k + 1,
are shown in either order with equal probability. Whichever items they are, each is then as often at rank k
as at rank k + 1, so the clicks at the two ranks are in proportion to the probabilities of being looked at
(the paper swaps ranks 1 and k instead, which people would notice).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.clicks import LARGEST_WEIGHT
from ..validation import check_number

#: Of so many pairs of neighbours one is randomised: clicks further down are too rare to tell anything.
MOST_RANDOMISED = 9

#: The propensity is estimated from swapped neighbours.
ESTIMATED = "swaps"

#: Clicks on randomised neighbours before the estimate is used, and the largest power it may have.
_FEWEST_CLICKS = 100
_LARGEST_POWER = 3.0


class Clicks:
    """Inverse propensities of clicks, with a given power or one that is estimated.

    Examples
    --------
    >>> Clicks(1.0).weights([1, 2, 40])
    array([ 1.,  2., 10.])
    >>> clicks = Clicks("swaps")
    >>> for clicked in ([1] * 100 + [2] * 50):
    ...     clicks.add(1, [clicked])
    >>> round(clicks.power, 2)
    1.0
    """

    def __init__(self, propensity: float | str = 0.0) -> None:
        self._is_estimated = propensity == ESTIMATED
        #: The power p.
        self.power = 0.0
        if not self._is_estimated:
            self.power = check_number("propensity", propensity, exclusive=False)
        #: Rank k -> clicks at k and at k + 1, in searches whose results there were in random order.
        self._swapped: dict[int, list[int]] = {}

    def weights(self, ranks: Sequence[int]) -> np.ndarray:
        """How often a click at each rank, from 1, counts."""
        return np.minimum(np.asarray(ranks, np.float64) ** self.power, LARGEST_WEIGHT)

    def add(self, rank: int, clicked: Sequence[int]) -> None:
        """Count the clicks (ranks) of a search whose results at `rank` and the next were in random order."""
        counts = self._swapped.setdefault(rank, [0, 0])
        for place in clicked:
            if place in (rank, rank + 1):
                counts[place - rank] += 1
        if self._is_estimated and self._n_clicks >= _FEWEST_CLICKS:
            self.power = self._likeliest()

    @property
    def _n_clicks(self) -> int:
        return sum(map(sum, self._swapped.values()))

    def _likeliest(self) -> float:
        """The power with the highest likelihood: a click is at k + 1 with odds (k / (k + 1))^p."""
        ratios = np.array([math.log((k + 1) / k) for k in self._swapped])
        counts = np.array(list(self._swapped.values()), np.float64)
        low, high = 0.0, _LARGEST_POWER
        for _ in range(30):
            power = (low + high) / 2
            expected = counts.sum(axis=1) / (1 + np.exp(power * ratios))  # clicks at k + 1
            # The derivative of the log likelihood falls with the power.
            if ratios @ (expected - counts[:, 1]) > 0:
                low = power
            else:
                high = power
        return (low + high) / 2

    def summary(self) -> dict[str, Any]:
        """JSON values for people to read."""
        how = ESTIMATED if self._is_estimated else "given"
        return {"power": self.power, "how": how, "swapped_clicks": self._n_clicks}

    def state(self) -> dict[str, Any]:
        """JSON values, enough to go on."""
        counts = [[rank, *pair] for rank, pair in self._swapped.items()]
        return {"power": self.power, "swapped": counts}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.power = float(saved["power"])
        self._swapped = {rank: [first, second] for rank, first, second in saved["swapped"]}
