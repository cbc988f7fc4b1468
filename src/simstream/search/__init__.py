"""Indexes of items that a learnt similarity searches: only the query is transformed.

`Index` is the protocol. `ExactIndex` searches exactly, dense or sparse, and has views for readers that must
not wait; `HnswIndex` searches approximately (extra ``index``); `recall` measures one against the other.
"""

from .exact import ExactIndex, ExactView
from .hnsw import HnswIndex
from .protocol import Found, Id, Index
from .recall import recall
from .vectors import item_vectors, query_vectors

__all__ = [
    "ExactIndex",
    "ExactView",
    "Found",
    "HnswIndex",
    "Id",
    "Index",
    "item_vectors",
    "query_vectors",
    "recall",
]
