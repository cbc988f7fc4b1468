"""Indexes for searching with a learnt similarity: only the query is transformed.

`Index` is the protocol. `ExactIndex` searches exactly, dense or sparse, and has snapshots for readers that
must not wait; `HnswIndex` searches approximately (extra ``index``); `recall` measures how much it finds.
`search_rows` searches a file that may be larger than memory; `DeviceRunner` does so on a GPU (extra ``gpu``).
"""

from ..ids import Id
from .base import Found, Index, item_vectors, query_vectors
from .device import DeviceRunner
from .exact import ExactIndex, ExactView, recall
from .hnsw import HnswIndex
from .rows import search_rows

__all__ = [
    "DeviceRunner",
    "ExactIndex",
    "ExactView",
    "Found",
    "HnswIndex",
    "Id",
    "Index",
    "item_vectors",
    "query_vectors",
    "recall",
    "search_rows",
]
