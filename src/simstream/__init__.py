"""simstream: learn what *similar* means from a stream of comparisons, and put it to work.

Public names are loaded when they are first used, so that ``import simstream`` is instant.
"""

# ruff: noqa: F403
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .catalogue import ALGORITHMS

__version__ = "0.2.0"

if TYPE_CHECKING:  # for type checkers and editors; at run time names come from the table below
    from . import datasets as datasets
    from . import metrics as metrics
    from ._engines import *
    from .adaptation.adapter import *
    from .adaptation.trust import *
    from .batch import *
    from .batch.ordinal import *
    from .batch.sdca import *
    from .data.clicks import *
    from .data.relevance import *
    from .data.samplers import *
    from .online.baselines import *
    from .online.from_labels import *
    from .online.listwise import *
    from .online.logdet import *
    from .online.low_rank import *
    from .online.multitask import *
    from .online.pairs import *
    from .online.triplets import *
    from .persistence import *
    from .selection import *
    from .sequences import *
    from .similarity.base import *
    from .similarity.bilinear import *
    from .similarity.low_rank import *
    from .similarity.mahalanobis import *
    from .similarity.tasks import *
    from .validation import Items as Items

#: Public name -> module that defines it (the module itself for submodules).
_HOME = {algorithm.name: algorithm.home for algorithm in ALGORITHMS} | {
    "Adapter": "adaptation.adapter",
    "Bilinear": "similarity.bilinear",
    "CSFSResult": "selection",
    "DivergedError": "_engines",
    "FromLabels": "online.from_labels",
    "Items": "validation",
    "LowRank": "similarity.low_rank",
    "Mahalanobis": "similarity.mahalanobis",
    "ModelFileError": "persistence",
    "OrdinalEmbedding": "batch.ordinal",
    "PairSampler": "data.samplers",
    "RelevanceSampler": "data.relevance",
    "SearchResult": "similarity.base",
    "TaskTripletSampler": "data.samplers",
    "Tasks": "similarity.tasks",
    "Trust": "adaptation.trust",
    "TripletSampler": "data.samplers",
    "csfc": "selection",
    "csfs": "selection",
    "csfs_weights": "selection",
    "datasets": "datasets",
    "load": "persistence",
    "metrics": "metrics",
    "mrmr": "selection",
    "read_header": "persistence",
    "smooth_labels": "sequences",
    "triplets_from_clicks": "data.clicks",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simstream' has no attribute {name!r}")
    module = import_module(f".{_HOME[name]}", __name__)
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
