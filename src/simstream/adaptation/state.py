"""All that an adapter has learnt and counted, how it begins, and how it is saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..online.listwise import ListwiseSoftmax
from ..persistence import with_prefix
from ..similarity.base import all_products, row_products
from ..validation import Items
from .changes import DenseChanges, SparseChanges, typical_length
from .report import History
from .trust import Trust

#: Step lengths of the default candidates: one step raises the score of an item like the relevant one by about
#: so many temperatures.
_STEPS = (2.0, 4.0, 8.0)

#: The spread of scores: of so many items, compared with so many others, up to the neighbour of that number.
_SAMPLE, _COMPARED, _NEIGHBOUR = 256, 20_000, 32

_DIGEST_BYTES = 16


class AdapterState:
    """All that an adapter has learnt and counted."""

    def __init__(
        self,
        n_features: int,
        length: float,
        changes: DenseChanges | SparseChanges,
        trusts: tuple[Trust, Trust],
        rng: np.random.Generator,
        fixed: dict[str, Any],
    ) -> None:
        self.n_features = n_features
        #: Typical length of the first items: queries are learnt from as if they had it.
        self.length = length
        self.changes = changes
        #: Of queries when they came for the first time, and of all queries.
        self.trust, self.overall = trusts
        self.rng = rng
        #: Parameters that gains were measured with.
        self.fixed = fixed
        self.history = History()
        #: Digest of a query -> ids of the items known to be relevant.
        self.known: dict[bytes, set[Hashable]] = {}
        #: Ids of items that were relevant to some query.
        self.learnt: set[Hashable] = set()
        #: What was drawn last, where options are drawn.
        self.drawn: int | None = None
        self.n_queries = self.n_judgements = self.n_skipped = 0

    def rescaled(self, queries: Any) -> tuple[Any, np.ndarray]:
        """Queries as long as items are, and what to multiply them by to have them back."""
        lengths = np.sqrt(np.asarray(row_products(queries, queries), np.float64)) / self.length
        lengths = np.where(lengths > 0, lengths, 1.0)[:, None]
        if sp.issparse(queries):
            scaled = sp.csr_matrix(queries.multiply(1.0 / lengths)).astype(queries.dtype)
        else:
            scaled = (queries / lengths).astype(queries.dtype)
        return scaled, lengths.astype(queries.dtype)

    @property
    def is_sparse(self) -> bool:
        """Whether items are sparse."""
        return isinstance(self.changes, SparseChanges)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON values and arrays, enough to go on as if never saved."""
        header: dict[str, Any] = {
            "n_features": self.n_features,
            "length": self.length,
            "fixed": self.fixed,
            "generator": self.rng.bit_generator.state,
            "drawn": self.drawn,
            "counts": [self.n_queries, self.n_judgements, self.n_skipped],
            "parameters": [
                [one.eta, one.temperature, one.n_steps] for one in self.changes.learners
            ],
            "is_sparse": self.is_sparse,
        }
        header["changes"], own = self.changes.state()
        arrays = {f"changes.{name}": array for name, array in own.items()}
        for kind, trust in (("trust", self.trust), ("overall", self.overall)):
            header[kind], own = trust.state()
            arrays |= {f"{kind}.{name}": array for name, array in own.items()}
        header["names"], own = self.history.state()
        arrays |= {f"history.{name}": array for name, array in own.items()}
        keys = sorted(self.learnt, key=str)
        numbers = {key: number for number, key in enumerate(keys)}
        header["learnt"] = keys
        arrays["known.digests"] = np.frombuffer(b"".join(self.known), np.uint8).copy()
        arrays["known.counts"] = np.array([len(items) for items in self.known.values()], np.int64)
        flat = [numbers[key] for items in self.known.values() for key in sorted(items, key=str)]
        arrays["known.items"] = np.array(flat, np.int64)
        return header, arrays

    @classmethod
    def restored(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        new_trust: Callable[[int], Trust],
    ) -> AdapterState:
        """What `saved` gave; `new_trust` makes a trust for so many candidates."""
        learners = [
            ListwiseSoftmax(eta, temperature, n_steps)
            for eta, temperature, n_steps in header["parameters"]
        ]
        own, n_features = with_prefix("changes.", arrays), header["n_features"]
        changes: DenseChanges | SparseChanges
        if header["is_sparse"]:
            changes = SparseChanges.restored(learners, n_features, own)
        else:
            changes = DenseChanges.restored(learners, header["changes"], own)
        trust, overall = (
            new_trust(len(learners)).restore(header[kind], with_prefix(f"{kind}.", arrays))
            for kind in ("trust", "overall")
        )
        rng, length = np.random.default_rng(), float(header["length"])
        self = cls(n_features, length, changes, (trust, overall), rng, header["fixed"])
        self.rng.bit_generator.state = header["generator"]
        self.history = History.restored(header["names"], with_prefix("history.", arrays))
        self.learnt = set(header["learnt"])
        digests = arrays["known.digests"].reshape(-1, _DIGEST_BYTES)
        ends = np.cumsum(arrays["known.counts"])
        for digest, items in zip(digests, np.split(arrays["known.items"], ends), strict=False):
            self.known[digest.tobytes()] = {header["learnt"][number] for number in items}
        self.drawn = header["drawn"]
        self.n_queries, self.n_judgements, self.n_skipped = header["counts"]
        return self


def default_candidates(items: Items) -> list[Any]:
    """Learners for these items: their temperature is a quarter of the spread among the nearest neighbours.

    The spread is the difference between the score of the nearest item and that of the 32nd, on average over a
    sample of the items. Steps are such that they do not depend on the length of the vectors.
    """
    n_items = items.shape[0]
    order = np.random.default_rng(n_items).permutation(n_items)
    sample, others = order[:_SAMPLE], order[:_COMPARED]
    scores = all_products(items.rows(sample), items.rows(others))
    scores[np.arange(len(sample)), np.arange(len(sample))] = -np.inf  # not the items themselves
    scores.sort(axis=1)
    furthest = min(_NEIGHBOUR, n_items - 1)
    spread = float(np.mean(scores[:, -1] - scores[:, -furthest])) if furthest else 0.0
    squared = typical_length(items) ** 2
    if not spread > 0:
        spread = squared
    return [ListwiseSoftmax(eta=step / squared**2, temperature=spread / 4) for step in _STEPS]


def query_digest(query: Any) -> bytes:
    """What tells queries apart: their numbers."""
    parts = (query.indices, query.data) if sp.issparse(query) else (query,)
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hashed.update(np.ascontiguousarray(part).tobytes())
    return hashed.digest()
