"""Indexes of items that a learnt similarity searches: only the query is transformed.

`Index` is the protocol, `ExactIndex` searches exactly (dense or sparse).
"""

from .exact import ExactIndex, ExactView
from .protocol import Found, Id, Index

__all__ = ["ExactIndex", "ExactView", "Found", "Id", "Index"]
