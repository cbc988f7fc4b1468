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
from typing import Any, NamedTuple

from ..records import Cell
from ..typed import read_table
from . import costs, features, pair_metric, questions, retrieval, tasks
from .adaptation import measuring
from .common import ProtocolSettings

Result = dict[str, Any]


class Protocol(NamedTuple):
    """What a protocol may be told, and what it does."""

    settings: type[ProtocolSettings]
    run: Callable[[Cell, Any], Result]
    tune: Callable[[Cell, Any], Result] | None = None


PROTOCOLS = {
    "retrieval": Protocol(retrieval.RetrievalSettings, retrieval.run, retrieval.tune),
    "query_time": Protocol(costs.QueryTimeSettings, costs.run_queries, retrieval.tune),
    "plain_numpy": Protocol(costs.PlainNumpySettings, costs.run_plain, retrieval.tune),
    "online_loss": Protocol(costs.OnlineLossSettings, costs.run_losses, retrieval.tune),
    "pair_metric": Protocol(pair_metric.PairMetricSettings, pair_metric.run, pair_metric.tune),
    "step_length": Protocol(pair_metric.StepLengthSettings, pair_metric.run_step_lengths),
    "tasks": Protocol(tasks.TaskSettings, tasks.run, tasks.tune),
    "selection": Protocol(features.SelectionSettings, features.run_selection, features.tune),
    "low_rank": Protocol(features.LowRankSettings, features.run_low_rank),
    "questions": Protocol(questions.QuestionSettings, questions.run),
    "adapt_search": Protocol(measuring.SearchSettings, measuring.run_search),
    "adapt_labels": Protocol(measuring.HeldOutSettings, measuring.run_labels),
    "adapt_triplets": Protocol(measuring.HeldOutSettings, measuring.run_triplets),
}


def run(cell: Cell) -> Result:
    """Run a cell with its protocol, or choose its parameters if it is a tuning cell."""
    protocol = PROTOCOLS[cell.protocol]
    settings = read_table(cell.settings, protocol.settings, cell.name)
    if not cell.is_tuning:
        return protocol.run(cell, settings)
    if protocol.tune is None:
        raise ValueError(f"{cell.name}: the protocol {cell.protocol} cannot choose parameters")
    return protocol.tune(cell, settings)
