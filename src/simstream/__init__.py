"""simstream: learn what *similar* means from a stream of comparisons, and put it to work.

Public names are loaded when they are first used, so that ``import simstream`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import datasets, metrics
    from .baselines import Dot, Euclidean
    from .batch import ITML, LMNN, MCML, RCA, MultiTaskLMNN
    from .bilinear import AROMA, OASIS, OGD, SORS, AdaSORS
    from .bilinear_model import Bilinear
    from .constraints import PairSampler, TaskTripletSampler, TripletSampler
    from .engines import DivergedError
    from .from_labels import FromLabels
    from .low_rank import OMLLR, OSLLRGS, Loreta
    from .mahalanobis import Mahalanobis
    from .multitask import OGRSL, OMTRSL, OSTRSL
    from .pairs import LEGO, POLA, RDML, OnlineITML, PAMetric
    from .persistence import ModelFileError, load, read_header
    from .sdca import SDCA
    from .selection import CSFSResult, csfc, csfs, csfs_weights, mrmr
    from .sequences import smooth_labels
    from .similarity import SearchResult

#: Public name -> module that defines it (the module itself for submodules).
_HOME = {
    "AROMA": "bilinear",
    "AdaSORS": "bilinear",
    "DivergedError": "engines",
    "Bilinear": "bilinear_model",
    "Dot": "baselines",
    "Euclidean": "baselines",
    "FromLabels": "from_labels",
    "ITML": "batch",
    "LEGO": "pairs",
    "LMNN": "batch",
    "MCML": "batch",
    "MultiTaskLMNN": "batch",
    "CSFSResult": "selection",
    "csfc": "selection",
    "csfs": "selection",
    "csfs_weights": "selection",
    "mrmr": "selection",
    "smooth_labels": "sequences",
    "Loreta": "low_rank",
    "Mahalanobis": "mahalanobis",
    "OMLLR": "low_rank",
    "OSLLRGS": "low_rank",
    "ModelFileError": "persistence",
    "OASIS": "bilinear",
    "OGD": "bilinear",
    "OGRSL": "multitask",
    "OMTRSL": "multitask",
    "OSTRSL": "multitask",
    "SDCA": "sdca",
    "OnlineITML": "pairs",
    "PAMetric": "pairs",
    "POLA": "pairs",
    "PairSampler": "constraints",
    "RCA": "batch",
    "RDML": "pairs",
    "SORS": "bilinear",
    "SearchResult": "similarity",
    "TaskTripletSampler": "constraints",
    "TripletSampler": "constraints",
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
