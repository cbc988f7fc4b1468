"""Data sets by name, from a folder, scikit-learn or the network; preprocessing by name, for records.

Examples
--------
>>> from simstream import datasets
>>> wine = datasets.load("wine")
>>> train = range(0, 178, 2)
>>> items, recorded = datasets.prepare(wine.items, "standardised", fit_rows=train)
>>> items.shape, recorded, bool(abs(items[::2].mean()) < 1e-9)
((178, 13), 'standardised', True)
"""

from .docstrings import SeeAlso, load_see_also
from .facts import OUTSIDE, VERDICTS, Dataset, Facts, facts, names
from .loading import DatasetMissingError, available, load, make_low_rank
from .preprocessing import Prepared, prepare

__all__ = [
    "OUTSIDE",
    "VERDICTS",
    "Dataset",
    "DatasetMissingError",
    "Facts",
    "Prepared",
    "SeeAlso",
    "available",
    "facts",
    "load",
    "load_see_also",
    "make_low_rank",
    "names",
    "prepare",
]
