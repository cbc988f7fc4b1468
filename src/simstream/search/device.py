"""Ranks of relevant items and nearest items on a device of torch: what `metrics.sweep` does on the CPU.

Scores are rounded otherwise than on the CPU, so that items that all but tie may change places. On one device
they are always the same: blocks have fixed edges here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..metrics.sweep import Call, Nearest, Pool, edges_of
from ..similarity.base import all_products
from ..validation import check_choice, check_features

#: Queries and items of one product.
_QUERIES, _ITEMS = 256, 2**15

#: Share of the free memory of a GPU that items may stay in between two passes.
_SHARE_FOR_ITEMS = 0.5


class DeviceRunner:
    """Scores items on a device of torch, for `search_rows` and `simstream.metrics.measure_ranking`.

    For similarities that are inner products: of learnt matrices without a centre, of factors, and cosines.

    Parameters
    ----------
    device : torch.device or str
        "cuda", or "cpu" for torch on the CPU.
    precision : "float32" or "tf32"
        How a GPU multiplies float32.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> from simstream.search import DeviceRunner, search_rows
    >>> items = np.array([[1.0, 0.0], [0.0, 5.0], [2.0, 1.0]])
    >>> runner = DeviceRunner("cpu")  # doctest: +SKIP
    >>> search_rows(Bilinear(np.eye(2)), [[1.0, 0.1]], items, k=2, runner=runner)  # doctest: +SKIP
    """

    def __init__(self, device: Any = "cuda", *, precision: str = "float32") -> None:
        try:
            import torch
        except ImportError:
            raise ImportError("a device needs torch: pip install 'simstream[gpu]'") from None
        self._device = torch.device(device)
        self._precision = check_choice("precision", precision, ("float32", "tf32"))

    @staticmethod
    def can_score(model: Any) -> bool:
        """Whether a similarity is an inner product, and can be computed on a device.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Bilinear, Mahalanobis
        >>> [DeviceRunner.can_score(one(np.eye(2))) for one in (Bilinear, Mahalanobis)]
        [True, False]
        """
        if not hasattr(model, "sides"):
            return False
        return bool(model.normalise) or model.sides(None).scores is all_products

    def parts(self, n_blocks: int) -> list[tuple[int, int]]:
        """All blocks are in one part."""
        return [(0, n_blocks)]

    def open(self, pool: Pool, note: Callable[[int], object]) -> Call:
        """Make the sweep of a pool."""
        sweep = DeviceSweep(pool, self._device, self._precision, note)
        return lambda name, arguments: [getattr(sweep, name)(*given) for given in arguments]


class DeviceSweep:
    """All items of a pool, scored block by block on a device; see `sweep.Sweep`."""

    def __init__(
        self, pool: Pool, device: Any, precision: str, note: Callable[[int], object]
    ) -> None:
        self._pool, self._device, self._note = pool, device, note
        self._tf32 = precision == "tf32"
        self._of_queries, self._of_items, self._dtype = _inner_product(pool)
        self._query_edges = edges_of(len(pool.queries), _QUERIES)
        self._item_edges = edges_of(len(pool.items), _ITEMS)
        self._kept: dict[int, Any] | None = {} if self._fits() else None

    def _fits(self) -> bool:
        """Whether the items may stay on the device."""
        import torch

        if self._device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self._device)
        n, width = self._pool.items.shape
        return n * width * np.dtype(self._dtype).itemsize <= _SHARE_FOR_ITEMS * free

    def is_small(self) -> bool:
        """Whether one block of queries is to be ranked at a time."""
        return False

    def relevant_scores(
        self, begin: int, end: int, offsets: np.ndarray, items: np.ndarray
    ) -> np.ndarray:
        """Scores of the items ``items[offsets[i]:offsets[i + 1]]`` of query begin + i."""
        import torch

        out = torch.empty(len(items), dtype=getattr(torch, self._dtype.name), device=self._device)
        rows = np.repeat(np.arange(begin, end), np.diff(offsets))
        for low, high, block, scores in self._scored(begin, end):
            first, last = block
            part = slice(offsets[max(first, begin) - begin], offsets[min(last, end) - begin])
            inside = part.start + np.flatnonzero((items[part] >= low) & (items[part] < high))
            where = self._tensor(inside)
            out[where] = scores[
                self._tensor(rows[inside] - first),
                self._tensor(items[inside].astype(np.int64) - low),
            ]
        return out.cpu().numpy()

    def count(
        self,
        begin: int,
        end: int,
        offsets: np.ndarray,
        ordered: np.ndarray,
        items: np.ndarray,
        n_nearest: int = 0,
    ) -> tuple[np.ndarray, int, Nearest]:
        """Count all items at their places among the relevant ones, and find the nearest."""
        import torch

        counts = torch.zeros(len(items) + 1, dtype=torch.int64, device=self._device)
        n, n_met = end - begin, 0
        best = torch.full((n, n_nearest), -torch.inf, device=self._device).to(
            getattr(torch, self._dtype.name)
        )
        found = torch.full((n, n_nearest), -1, dtype=torch.int64, device=self._device)
        relevant: Any = None
        for low, high, block, scores in self._scored(begin, end):
            first, last = max(block[0], begin), min(block[1], end)
            scores = scores[first - block[0] : last - block[0]]
            self._leave_out(scores, first, low, high)
            rows = slice(first - begin, last - begin)
            if n_nearest:
                best[rows], found[rows] = _nearer(best[rows], found[rows], scores, low, n_nearest)
            if offsets[rows.stop] > offsets[rows.start]:
                if relevant is None or relevant[0] != block:
                    lists = _padded(offsets[rows.start : rows.stop + 1], ordered, items)
                    relevant = block, tuple(self._tensor(one) for one in lists)
                keys, names, places = relevant[1]
                n_met += _count_places(scores, low, keys, names, places, counts)
        missing = torch.isinf(best)
        best[missing], found[missing] = torch.nan, -1
        nearest = Nearest(found.cpu().numpy(), best.cpu().numpy())
        return counts[:-1].cpu().numpy().astype(items.dtype), n_met, nearest

    def _leave_out(self, scores: Any, first_query: int, low: int, high: int) -> None:
        """Make the item that each query is no candidate for itself."""
        import torch

        if self._pool.own is None:
            return
        own = self._pool.own[first_query : first_query + len(scores)]
        rows = np.flatnonzero((own >= low) & (own < high))
        scores[self._tensor(rows), self._tensor(own[rows] - low)] = -torch.inf

    def _scored(self, begin: int, end: int) -> Iterator[tuple[int, int, tuple[int, int], Any]]:
        """Blocks of items, of queries, and their scores; blocks of queries are always whole."""
        import torch

        blocks = [(a, b) for a, b in pairwise(self._query_edges) if a < end and begin < b]
        queries = [self._mapped(self._pool.queries, self._of_queries, *block) for block in blocks]
        before = torch.backends.cuda.matmul.allow_tf32
        try:
            for low, high in pairwise(self._item_edges):
                items = self._items(low, high)
                for block, rows in zip(blocks, queries, strict=True):
                    torch.backends.cuda.matmul.allow_tf32 = self._tf32
                    scores = rows @ items.T
                    torch.backends.cuda.matmul.allow_tf32 = before
                    yield low, high, block, scores
                self._note(high - low)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _items(self, low: int, high: int) -> Any:
        if self._kept is None:
            return self._mapped(self._pool.items, self._of_items, low, high)
        if low not in self._kept:
            self._kept[low] = self._mapped(self._pool.items, self._of_items, low, high)
        return self._kept[low]

    def _mapped(self, source: Any, of_rows: Callable[[Any], Any], low: int, high: int) -> Any:
        return self._tensor(np.ascontiguousarray(of_rows(source.block(low, high, self._dtype))))

    def _tensor(self, array: np.ndarray) -> Any:
        import torch

        return torch.tensor(array, device=self._device)


def _inner_product(pool: Pool) -> tuple[Callable[[Any], Any], Callable[[Any], Any], np.dtype[Any]]:
    """What maps queries and items such that inner products are their similarities."""
    model = pool.model
    if pool.queries.is_sparse or pool.items.is_sparse:
        raise ValueError("device: expected dense queries and items, got sparse ones")
    if not DeviceRunner.can_score(model):
        raise ValueError(
            f"device: expected a similarity that is an inner product, got {type(model).__name__}, which is a "
            "distance, has a centre or is no similarity; score it on the CPU"
        )
    check_features(model.shape_, pool.queries, pool.items)
    if model.normalise:
        dtype = np.dtype(model.dtype_)
        return lambda rows: model.unit_vectors(rows, "queries"), model.unit_vectors, dtype
    sides = model.sides(None)
    return sides.queries, sides.items, sides.dtype


def _padded(
    offsets: np.ndarray, ordered: np.ndarray, items: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of relevant items side by side: negative scores, ascending; items; where their counts are.

    Lists end with infinity, no item, and the place of a count that nobody reads.
    """
    sizes = np.diff(offsets)
    longest = int(sizes.max(initial=0))
    keys = np.full((len(sizes), longest + 1), np.inf, ordered.dtype)
    names = np.full((len(sizes), longest + 1), -1, np.int64)
    places = np.full((len(sizes), longest + 1), len(items), np.int64)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.arange(offsets[0], offsets[-1]) - np.repeat(offsets[:-1], sizes)
    part = slice(offsets[0], offsets[-1])
    keys[rows, columns], names[rows, columns] = -ordered[part], items[part]
    places[rows, columns] = np.arange(offsets[0], offsets[-1])
    return keys, names, places


def _count_places(scores: Any, low: int, keys: Any, names: Any, places: Any, counts: Any) -> int:
    """Count each candidate at the first relevant item that does not rank before it: `ranking.count_above`."""
    import torch

    wanted = -scores
    at = torch.searchsorted(keys, wanted)
    row, column = torch.nonzero(keys.gather(1, at) == wanted, as_tuple=True)
    # Of equal scores the lower item ranks first.
    place, item = at[row, column], low + column
    while True:
        behind = (keys[row, place] == wanted[row, column]) & (names[row, place] < item)
        behind &= names[row, place] >= 0
        if not behind.any():
            break
        place = place + behind
    at[row, column] = place
    counts += torch.bincount(places.gather(1, at).ravel(), minlength=len(counts))
    return int((names[row, place] == item).sum())


def _nearer(best: Any, found: Any, scores: Any, low: int, k: int) -> tuple[Any, Any]:
    """The k nearest of those found before and of a block of later items; ties go to the lower item."""
    import torch

    n = min(k, scores.shape[1])
    top, columns = torch.topk(scores, n, dim=1)
    # Where more items tie with the last than fit, topk takes any of them.
    for row in torch.nonzero((scores >= top[:, -1:]).sum(1) > n).ravel().tolist():
        tied = torch.nonzero(scores[row] >= top[row, -1]).ravel()
        order = torch.argsort(-scores[row, tied], stable=True)[:n]
        columns[row] = tied[order]
        top[row] = scores[row, tied[order]]
    columns, order = torch.sort(columns, dim=1)
    top = top.gather(1, order)
    top = torch.cat([best, top], dim=1)
    columns = torch.cat([found, columns + low], dim=1)
    order = torch.argsort(-top, dim=1, stable=True)[:, :k]
    return top.gather(1, order), columns.gather(1, order)
