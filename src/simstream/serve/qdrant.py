"""Items in a collection of Qdrant (extra ``qdrant``)."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import numpy as np

from ..extras import MissingExtraError
from .item_stores import IndexUnavailableError, Proposed

#: Seconds to wait for an answer.
_TIMEOUT = 10


def _connect(address: str) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise MissingExtraError("an index in Qdrant", "qdrant-client", "qdrant") from error
    return QdrantClient(
        address,
        api_key=os.environ.get("QDRANT_API_KEY"),
        timeout=_TIMEOUT,
        check_compatibility=False,
    )


class QdrantStore:
    """A collection of Qdrant whose distance is the inner product (Dot), or Cosine.

    With Cosine, Qdrant stores vectors of length one, and these are what is learnt from.

    Parameters
    ----------
    address : ``qdrant://HOST:PORT/COLLECTION``, or the same with ``http`` or ``https``; ``?vector=NAME``
        chooses one of several vectors of a point. The key is in the environment: QDRANT_API_KEY.
    """

    def __init__(self, address: str) -> None:
        if "@" in address:
            raise ValueError(
                "index: expected the key of Qdrant in QDRANT_API_KEY, not in the address"
            )
        try:
            parts = urlsplit(address)
            is_readable = bool(parts.hostname) and parts.port != 0
        except ValueError:  # whose text repeats some of it
            is_readable = False
        if not is_readable or not re.fullmatch("/[^/]+/?", unquote(parts.path)):
            raise ValueError(
                "index: expected qdrant://HOST:PORT/COLLECTION, got an address that cannot be read"
            )
        self._collection = unquote(parts.path.strip("/"))
        scheme = "http" if parts.scheme == "qdrant" else parts.scheme
        #: Name of the vector of a point; None if it has one without a name.
        self._using = dict(parse_qsl(parts.query)).get("vector")
        chosen = "" if self._using is None else f"?{urlencode({'vector': self._using})}"
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{chosen}"
        self._client = _connect(f"{scheme}://{parts.netloc}")
        try:
            with self._asking():
                if not self._client.collection_exists(self._collection):
                    raise ValueError(f"index: {self.address}: there is no such collection")
                vectors = self._client.get_collection(self._collection).config.params.vectors
            self.n_features, self._is_cosine = self._check(vectors)
        except BaseException:
            self.close()
            raise

    def _check(self, vectors: Any) -> tuple[int, bool]:
        """Length of the vectors, and whether they have length one."""
        if isinstance(vectors, dict):
            if self._using not in vectors:
                names = ", ".join(vectors)
                raise ValueError(
                    f"index: {self.address}: expected ?vector= with one of {names or 'no dense vectors'}, "
                    f"got {self._using}"
                )
            vectors = vectors[self._using]
        elif self._using is not None:
            raise ValueError(f"index: {self.address}: has no vector named {self._using!r}")
        distance = vectors.distance.value
        if distance not in ("Dot", "Cosine") or vectors.multivector_config is not None:
            raise ValueError(
                f"index: {self.address}: expected single vectors with the distance Dot or Cosine, got "
                f"{'several for each point' if vectors.multivector_config else distance}"
            )
        return int(vectors.size), distance == "Cosine"

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say that the database does not answer, whatever its client calls that."""
        from qdrant_client.http.exceptions import ApiException

        try:
            yield
        except (ApiException, OSError) as error:
            text = " ".join(str(error).split())[:200]
            raise IndexUnavailableError(
                f"index: {self.address}: does not answer ({text})"
            ) from error

    def vectors(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Vectors of those points that there are."""
        keys = [key for key in map(_key, names) if key is not None]
        with self._asking():
            points = self._client.retrieve(
                self._collection, keys, with_payload=False, with_vectors=self._wanted
            )
        return self._vectors_of(points)

    def sample(self, n: int) -> dict[str, np.ndarray]:
        """Vectors of n random points."""
        from qdrant_client import models

        with self._asking():
            points = self._client.query_points(
                self._collection,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                using=self._using,
                limit=n,
                with_payload=False,
                with_vectors=self._wanted,
            ).points
        return self._vectors_of(points)

    def search(
        self, queries: np.ndarray, k: int, *, effort: int, exact: bool, with_vectors: bool
    ) -> list[Proposed]:
        """Points with the largest inner products; see `Store`."""
        from qdrant_client import models

        requests = [
            models.QueryRequest(
                query=query.tolist(),
                using=self._using,
                limit=k,
                params=models.SearchParams(hnsw_ef=effort, exact=exact),
                with_payload=False,
                with_vector=self._wanted if with_vectors else False,
            )
            for query in queries
        ]
        with self._asking():
            answers = self._client.query_batch_points(self._collection, requests)
        # A cosine divides by the length of the query: the same order, another score.
        lengths = np.linalg.norm(queries, axis=1) if self._is_cosine else np.ones(len(queries))
        found: list[Proposed] = []
        for answer, length in zip(answers, lengths.tolist(), strict=True):
            hits = [(str(point.id), point.score * length) for point in answer.points]
            rows = list(self._vectors_of(answer.points).values()) if with_vectors else []
            found.append((hits, np.array(rows, np.float32) if with_vectors else None))
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def _wanted(self) -> bool | list[str]:
        return True if self._using is None else [self._using]

    def _vectors_of(self, points: Any) -> dict[str, np.ndarray]:
        found = {}
        for point in points:
            vector = point.vector if self._using is None else (point.vector or {}).get(self._using)
            if vector:  # a point may lack a named vector
                found[str(point.id)] = np.array(vector, np.float32)
        return found


def _key(name: str) -> int | str | None:
    """The id of a point: a number below 2^64 or a UUID; None for a text that is neither.

    Examples
    --------
    >>> _key("17"), _key("017"), _key("shoe")
    (17, None, None)
    """
    try:
        key: int | str = int(name) if name.isdecimal() else str(uuid.UUID(name))
    except ValueError:
        return None
    return key if str(key) == name and (isinstance(key, str) or key < 2**64) else None
