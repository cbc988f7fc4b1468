"""How a cell is run: each protocol has its settings, ``run`` and, where parameters can be chosen, ``tune``.

``run`` returns a dict with

* ``measures``: name -> number;
* ``curves``: name -> {"x": [...], "y": [...]}, where something is followed over time;
* ``parameters``: those used;
* ``seconds``: of training alone; anything else that explains the result.

``tune`` returns ``{"parameters": ..., "tried": [[parameters, value], ...]}``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ..records import Cell
from ..typed import read_table
from .common import ProtocolSettings

Result = dict[str, Any]


class Protocol(NamedTuple):
    """What a protocol may be told, and what it does."""

    settings: type[ProtocolSettings]
    run: Callable[[Cell, Any], Result]
    tune: Callable[[Cell, Any], Result] | None = None


#: Module, settings, what runs a cell and what chooses its parameters; imported when needed, since a record
#: keeps a digest of all that was imported.
_PLACES: dict[str, tuple[str, ...]] = {
    "retrieval": ("retrieval", "RetrievalSettings", "run", "tune"),
    "query_time": ("costs", "QueryTimeSettings", "run_queries", "tune"),
    "plain_numpy": ("costs", "PlainNumpySettings", "run_plain", "tune"),
    "online_loss": ("costs", "OnlineLossSettings", "run_losses", "tune"),
    "pair_metric": ("pair_metric", "PairMetricSettings", "run", "tune"),
    "step_length": ("pair_metric", "StepLengthSettings", "run_step_lengths"),
    "tasks": ("tasks", "TaskSettings", "run", "tune"),
    "selection": ("features", "SelectionSettings", "run_selection", "tune"),
    "low_rank": ("features", "LowRankSettings", "run_low_rank"),
    "places": ("places", "PlaceSettings", "run", "tune"),
    "describe": ("describe", "DescribeSettings", "run"),
    "questions": ("questions", "QuestionSettings", "run"),
    "adapt_search": ("adaptation.measuring", "SearchSettings", "run_search"),
    "adapt_labels": ("adaptation.measuring", "HeldOutSettings", "run_labels"),
    "adapt_triplets": ("adaptation.measuring", "HeldOutSettings", "run_triplets"),
}
PROTOCOL_NAMES = tuple(_PLACES)


@cache
def protocol(name: str) -> Protocol:
    """A protocol by its name.

    Examples
    --------
    >>> protocol("tasks").settings.__name__
    'TaskSettings'
    """
    module, *names = _PLACES[name]
    found = import_module(f".{module}", __package__)
    return Protocol(*(getattr(found, one) for one in names))


def run(cell: Cell) -> Result:
    """Run a cell with its protocol, or choose its parameters if it is a tuning cell."""
    known = protocol(cell.protocol)
    settings = read_table(cell.settings, known.settings, cell.name)
    if not cell.is_tuning:
        return known.run(cell, settings)
    if known.tune is None:
        raise ValueError(f"{cell.name}: the protocol {cell.protocol} cannot choose parameters")
    return known.tune(cell, settings)
