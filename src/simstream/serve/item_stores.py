"""Items in the user's own vector database: the service learns from them and maps queries; they stay there.

A query is mapped by what was learnt, and the database searches by inner product. Feedback names items by the
ids they have there: the vectors that they have at that moment are read and written to the log before the
feedback, so the log alone still gives the model. It has no other items, but for a sample at the first start,
by which a learner measures its centre and scale.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ..search import ExactIndex
from .access import BadRequestError, ServiceError
from .engine import Version, hits_of
from .schemas import LARGEST_NUMBER
from .searching import Hits


class IndexUnavailableError(ServiceError):
    """The database that holds the items does not answer; see Retry-After."""

    status = 503
    retry_after = 5


#: What a database found for one query, best first, and the vectors of it if asked for.
Proposed = tuple[Hits, np.ndarray | None]


class Store(Protocol):
    """A collection of items in a database.

    All methods raise `IndexUnavailableError` if the database does not answer. Ids are texts.
    """

    #: Where it is, without passwords.
    address: str
    #: Length of the vectors.
    n_features: int

    def vectors(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Vectors of those items that there are."""

    def sample(self, n: int) -> dict[str, np.ndarray]:
        """Vectors of n random items, or of all if there are fewer."""

    def search(
        self, queries: np.ndarray, k: int, *, effort: int, exact: bool, with_vectors: bool
    ) -> list[Proposed]:
        """Ids and inner products of the k items with the largest ones, best first, for each query.

        An approximate index examines `effort` candidates; with `exact` it is not used. `with_vectors` gives
        the vectors of what was found, too.
        """

    def close(self) -> None:
        """Close all connections."""


#: Of addresses; the last two are those of PostgreSQL.
_SCHEMES = ("qdrant", "http", "https", "postgresql", "postgres")


def is_store(index: str) -> bool:
    """Whether an index is a database of its own.

    Examples
    --------
    >>> is_store("usearch"), is_store("qdrant://localhost:6333/items")
    (False, True)
    """
    return "://" in index


def check_index(index: str) -> str:
    """Check the name or the address of an index. Errors do not repeat an address: it may hold a password.

    Examples
    --------
    >>> check_index("faiss")
    Traceback (most recent call last):
    ...
    ValueError: index: expected exact, usearch, qdrant://HOST:PORT/COLLECTION or postgresql://..., got 'faiss'
    """
    if index not in ("exact", "usearch") and _scheme(index) not in _SCHEMES:
        raise ValueError(
            "index: expected exact, usearch, qdrant://HOST:PORT/COLLECTION or postgresql://..., got "
            f"{'another address' if is_store(index) or '@' in index else repr(index)}"
        )
    return index


def _scheme(address: str) -> str:
    return address.partition("://")[0].lower() if is_store(address) else ""


def open_store(address: str) -> Store:
    """Connect to a database; raises if it does not answer, or has no collection of dense vectors there."""
    if _scheme(check_index(address)) in _SCHEMES[-2:]:
        from .pgvector import PgvectorStore

        return PgvectorStore(address)
    from .qdrant import QdrantStore

    return QdrantStore(address)


class StoreIndex:
    """Searches in a database, as what was learnt ranks.

    A similarity that is a cosine in the learnt space (``normalise``) has a number for every item, which the
    database does not know: it proposes candidates with their vectors, and they are scored again.

    Parameters
    ----------
    store : Store
    candidates : items that are examined for a search
    """

    def __init__(self, store: Store, candidates: int) -> None:
        self.store, self._candidates = store, candidates
        #: Searches that the database did not answer.
        self.n_failed = 0

    def search(
        self,
        version: Version,
        rows: Any,
        k: int,
        task: Hashable = None,
        *,
        learnt: bool = True,
        exact: bool = False,
    ) -> list[Hits]:
        """Ids and scores of the most similar items, by the rows of the queries."""
        queries, _ = version.asked(rows, task, learnt=learnt)
        again = version.model.common if learnt and version.model.is_normalised else None
        effort = max(self._candidates, 2 * k)
        try:
            found = self.store.search(
                np.asarray(queries, np.float32),
                k if again is None else effort,
                effort=effort,
                exact=exact,
                with_vectors=again is not None,
            )
        except IndexUnavailableError:
            self.n_failed += 1
            raise
        if again is None:
            return [hits for hits, _ in found]
        return [
            _scored_again(again, queries[number : number + 1], hits, vectors, k)
            for number, (hits, vectors) in enumerate(found)
        ]

    def exact(
        self, version: Version, rows: Any, k: int, task: Hashable = None, *, learnt: bool = True
    ) -> list[Hits]:
        """The same without the database's approximate index."""
        return self.search(version, rows, k, task, learnt=learnt, exact=True)

    def close(self) -> None:
        """Close the connections."""
        self.store.close()


def _scored_again(model: Any, query: Any, hits: Hits, vectors: Any, k: int) -> Hits:
    if not hits:
        return []
    index = ExactIndex()
    index.add([name for name, _ in hits], vectors)
    return hits_of(index.view().scaled(model).search(query, k))[0]


def vectors_of(store: Store, names: Iterable[str]) -> dict[str, np.ndarray | None]:
    """Vectors of items by id; None for those that are not there."""
    wanted = list(dict.fromkeys(names))
    found = store.vectors(wanted) if wanted else {}
    for name, vector in found.items():
        if not can_be_learnt(vector):
            raise BadRequestError(
                f"item: expected numbers up to {LARGEST_NUMBER:g}, got others in the vector of {name!r}"
            )
    return {name: found.get(name) for name in wanted}


def can_be_learnt(vector: np.ndarray) -> bool:
    """Whether all numbers of a vector are small enough, as those of requests must be.

    Examples
    --------
    >>> can_be_learnt(np.ones(3)), can_be_learnt(np.array([np.nan, 0.0]))
    (True, False)
    """
    return bool((np.abs(vector) <= LARGEST_NUMBER).all())
