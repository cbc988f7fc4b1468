"""simstream: learn what *similar* means from a stream of comparisons, and put it to work.

Public names are loaded when they are first used, so that ``import simstream`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import datasets, metrics
    from ._engines import DivergedError
    from .batch import ITML, LMNN, MCML, RCA, MultiTaskLMNN
    from .batch.sdca import SDCA
    from .data.samplers import PairSampler, TaskTripletSampler, TripletSampler
    from .online.baselines import Dot, Euclidean
    from .online.from_labels import FromLabels
    from .online.low_rank import OMLLR, OSLLRGS, Loreta
    from .online.multitask import OGRSL, OMTRSL, OSTRSL
    from .online.pairs import LEGO, POLA, RDML, OnlineITML, PAMetric
    from .online.triplets import AROMA, OASIS, OGD, SORS, AdaSORS
    from .persistence import ModelFileError, load, read_header
    from .selection import CSFSResult, csfc, csfs, csfs_weights, mrmr
    from .sequences import smooth_labels
    from .similarity.bilinear import Bilinear
    from .similarity.mahalanobis import Mahalanobis
    from .similarity.scoring import SearchResult

#: Public name -> module that defines it (the module itself for submodules).
_HOME = {
    "AROMA": "online.triplets",
    "AdaSORS": "online.triplets",
    "DivergedError": "_engines",
    "Bilinear": "similarity.bilinear",
    "Dot": "online.baselines",
    "Euclidean": "online.baselines",
    "FromLabels": "online.from_labels",
    "ITML": "batch",
    "LEGO": "online.pairs",
    "LMNN": "batch",
    "MCML": "batch",
    "MultiTaskLMNN": "batch",
    "CSFSResult": "selection",
    "csfc": "selection",
    "csfs": "selection",
    "csfs_weights": "selection",
    "mrmr": "selection",
    "smooth_labels": "sequences",
    "Loreta": "online.low_rank",
    "Mahalanobis": "similarity.mahalanobis",
    "OMLLR": "online.low_rank",
    "OSLLRGS": "online.low_rank",
    "ModelFileError": "persistence",
    "OASIS": "online.triplets",
    "OGD": "online.triplets",
    "OGRSL": "online.multitask",
    "OMTRSL": "online.multitask",
    "OSTRSL": "online.multitask",
    "SDCA": "batch.sdca",
    "OnlineITML": "online.pairs",
    "PAMetric": "online.pairs",
    "POLA": "online.pairs",
    "PairSampler": "data.samplers",
    "RCA": "batch",
    "RDML": "online.pairs",
    "SORS": "online.triplets",
    "SearchResult": "similarity.scoring",
    "TaskTripletSampler": "data.samplers",
    "TripletSampler": "data.samplers",
    "datasets": "datasets",
    "load": "persistence",
    "metrics": "metrics",
    "read_header": "persistence",
}

__all__ = [
    "AROMA",
    "ITML",
    "LEGO",
    "LMNN",
    "MCML",
    "OASIS",
    "OGD",
    "OGRSL",
    "OMLLR",
    "OMTRSL",
    "OSLLRGS",
    "OSTRSL",
    "POLA",
    "RCA",
    "RDML",
    "SDCA",
    "SORS",
    "AdaSORS",
    "Bilinear",
    "CSFSResult",
    "DivergedError",
    "Dot",
    "Euclidean",
    "FromLabels",
    "Loreta",
    "Mahalanobis",
    "ModelFileError",
    "MultiTaskLMNN",
    "OnlineITML",
    "PAMetric",
    "PairSampler",
    "SearchResult",
    "TaskTripletSampler",
    "TripletSampler",
    "csfc",
    "csfs",
    "csfs_weights",
    "datasets",
    "load",
    "metrics",
    "mrmr",
    "read_header",
    "smooth_labels",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simstream' has no attribute {name!r}")
    module = import_module(f".{_HOME[name]}", __name__)
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
