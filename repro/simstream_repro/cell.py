"""A cell is one run of a study: a data set, a method, a seed, and a value of every swept quantity."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

#: In place of a seed: the cell chooses parameters on the data of seed 0 (of seed 1, 2 ..: -2, -3 ..).
TUNING = -1

#: Value of the setting "tuning" with which parameters are chosen anew for every seed, not once for all.
EVERY_RUN = "every run"


def data_seed(seed: int) -> int:
    """The seed whose data a cell with this number works on.

    Examples
    --------
    >>> data_seed(3), data_seed(TUNING), data_seed(TUNING - 3)
    (3, 0, 3)
    """
    return TUNING - seed if seed <= TUNING else seed


@dataclass(frozen=True)
class Cell:
    """One run, with everything that determines its result."""

    study: str
    protocol: str
    #: Name in the paper, and name for `simstream.datasets`.
    dataset: str
    data: str
    preprocessing: str
    #: Name in the paper, and class of simstream ("" where the protocol knows what to do).
    method: str
    learner: str
    parameters: dict[str, Any]
    #: Parameter -> values to choose from; empty if there is nothing to choose.
    grid: dict[str, list[Any]]
    seed: int
    #: As the paper's file has them: the protocol reads them into its own type.
    settings: dict[str, Any]
    #: Values of what is swept; they are part of the above too.
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def is_tuning(self) -> bool:
        """Whether the cell chooses parameters instead of measuring results."""
        return self.seed <= TUNING

    @property
    def data_seed(self) -> int:
        """The seed whose split and stream it works on."""
        return data_seed(self.seed)

    @property
    def name(self) -> str:
        """For people."""
        swept = "".join(f" {key}={value}" for key, value in self.variant.items())
        seed = ("tuning " if self.is_tuning else "") + f"seed {self.data_seed}"
        return f"{self.study} {self.dataset} {self.method}{swept} {seed}"

    @property
    def fingerprint(self) -> str:
        """The key of its record: it changes with anything in the plan that determines the result.

        It does not change with the code or the data: records keep versions and the stream's digest for that.

        Examples
        --------
        >>> cell = Cell("s", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {"C": 0.1}, {}, 0, {})
        >>> cell.fingerprint == replace(cell, seed=1).fingerprint
        False
        """
        text = json.dumps(self.__dict__, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tuning(self) -> Cell:
        """The cell that chooses the parameters of this one.

        All seeds share it, unless the setting "tuning" is "every run".

        Examples
        --------
        >>> cell = Cell("s", "pair_metric", "d", "d", "as-is", "PAI+", "PAMetric", {}, {"C": [1]}, 3, {})
        >>> cell.tuning().data_seed, replace(cell, settings={"tuning": "every run"}).tuning().data_seed
        (0, 3)
        """
        own = self.settings.get("tuning") == EVERY_RUN
        return replace(self, seed=TUNING - self.data_seed if own else TUNING)

    def with_parameters(self, chosen: dict[str, Any]) -> Cell:
        """The same cell with parameters that were chosen."""
        return replace(self, parameters=self.parameters | chosen, grid={})
