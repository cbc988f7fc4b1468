"""Approximate inner-product search with usearch's graph of neighbours (HNSW)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from ..extras import MissingExtraError
from ..ids import Id
from ..persistence import write_file
from ..validation import check_integer
from .base import (
    Found,
    as_dense,
    check_known_ids,
    check_new_ids,
    check_rows,
    decode_ids,
    encode_ids,
    read_index_file,
)

#: How a graph may store vectors.
_DTYPES = ("f32", "f16", "bf16")


class HnswIndex:
    """Approximate inner-product search (needs usearch: ``pip install "simstream[index]"``).

    The graph connects items by their own inner products, which differ from the learnt similarity: measure
    with `recall` how much is found. Scores are inner products in float32. One thread may use it at a time.

    Parameters
    ----------
    connectivity : int, optional
        Number of neighbours of an item in the graph. None means usearch's default, here and below.
    expansion_add, expansion_search : int, optional
        Number of candidates examined when adding an item, and in a search: higher finds more and is slower.
    dtype : {"f32", "f16", "bf16"}
        How the graph stores vectors. Half as many bits take half the memory and time, and scores are rounded.
    threads : int
        Threads for adding many items and searching many queries; 0 means all cores. With 1, the same calls
        build the same graph.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.search import HnswIndex
    >>> index = HnswIndex(threads=1)
    >>> index.add(["a", "b", "c"], np.eye(3))
    >>> index.search([[3.0, 2.0, 1.0]], k=2)
    Found(ids=array([['a', 'b']], dtype=object), scores=array([[3., 2.]], dtype=float32))
    """

    def __init__(
        self,
        *,
        connectivity: int | None = None,
        expansion_add: int | None = None,
        expansion_search: int | None = None,
        dtype: str = "f32",
        threads: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "connectivity": connectivity,
            "expansion_add": expansion_add,
            "expansion_search": expansion_search,
        }
        for name, value in options.items():
            if value is not None:
                check_integer(name, value)
        if dtype not in _DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
        self._options = options | {"dtype": dtype}
        self._threads = check_integer("threads", threads, minimum=0)
        self._graph: Any = None
        #: The graph knows items by number; numbers are never reused.
        self._number_of: dict[Id, int] = {}
        self._name_of: dict[int, Id] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._number_of)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, (int, str)) and name in self._number_of

    @property
    def ids(self) -> list[Id]:
        """Ids of all items."""
        return list(self._number_of)

    @property
    def n_features(self) -> int | None:
        """Length of the vectors; None before any were added."""
        return None if self._graph is None else int(self._graph.ndim)

    def add(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items with new ids and dense vectors."""
        names = check_new_ids(ids, self._number_of)
        if not names:
            return
        if sp.issparse(vectors):
            raise TypeError("vectors: expected an array, got a CSR matrix; use ExactIndex instead")
        values = check_rows(vectors, "vectors", n_features=self.n_features, n_rows=len(names))
        if self._graph is None:
            self._graph = graph_class()(ndim=values.shape[1], metric="ip", **self._options)
        numbers = range(self._next, self._next + len(names))
        self._graph.add(np.array(numbers, np.uint64), values, threads=self._threads)
        self._number_of.update(zip(names, numbers, strict=True))
        self._name_of.update(zip(numbers, names, strict=True))
        self._next += len(names)

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items."""
        names = check_known_ids(ids, self._number_of)
        if not names:
            return
        numbers = [self._number_of.pop(name) for name in names]
        self._graph.remove(np.array(numbers, np.uint64), threads=self._threads)
        for number in numbers:
            del self._name_of[number]

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find approximately the k items with the largest inner product with each query."""
        k = min(check_integer("k", k), len(self))
        asked = as_dense(check_rows(queries, "queries", n_features=self.n_features))
        ids = np.full((len(asked), k), None, object)
        scores = np.full((len(asked), k), -np.inf, np.float32)
        if k == 0:
            return Found(ids, scores)
        # usearch ranks by 1 - q'x, which loses the digits of q'x if q is small. The length of a query does
        # not change the order.
        norms = np.linalg.norm(asked, axis=1)
        norms[norms == 0] = 1.0
        matches = self._graph.search(asked / norms[:, None], k, threads=self._threads)
        keys, distances = np.atleast_2d(matches.keys), np.atleast_2d(matches.distances)
        counts = [len(matches)] if len(asked) == 1 else matches.counts
        for row, n_found in enumerate(counts):
            ids[row, :n_found] = [self._name_of[key] for key in keys[row, :n_found].tolist()]
            scores[row, :n_found] = (1 - distances[row, :n_found]) * norms[row]
        return Found(ids, scores)

    def save(self, path: str | Path) -> None:
        """Write the index to one safetensors file, atomically."""
        header = {"kind": "hnsw", "n": len(self), "next": self._next, "options": self._options}
        arrays = {
            "ids": encode_ids(self.ids),
            "numbers": np.array(list(self._number_of.values()), np.int64),
        }
        if self._graph is not None:
            arrays["graph"] = np.frombuffer(self._graph.save(), np.uint8)
        write_file(path, {"index": header | {"threads": self._threads}}, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an index written by ``save``."""
        header, arrays = read_index_file(path, "hnsw")
        index = cls(**header["options"], threads=header["threads"])
        names = decode_ids(arrays["ids"], header["n"])
        numbers = arrays["numbers"].tolist()
        index._number_of = dict(zip(names, numbers, strict=True))
        index._name_of = dict(zip(numbers, names, strict=True))
        index._next = header["next"]
        if "graph" in arrays:
            index._graph = graph_class().restore(arrays["graph"].tobytes())
            if header["options"]["expansion_search"] is not None:  # usearch does not save it
                index._graph.expansion_search = header["options"]["expansion_search"]
        return index


def graph_class() -> Any:
    """The graph of usearch, if it is installed."""
    try:
        from usearch.index import Index
    except ImportError as error:
        raise MissingExtraError("an approximate index", "usearch", "index") from error
    return Index
