"""Ranks of relevant items and nearest items on a device of torch: what `metrics.sweep` does on the CPU.

Scores are rounded otherwise than on the CPU, so that items that all but tie may change places. On one device
they are always the same: blocks have fixed edges here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..extras import MissingExtraError
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
            raise MissingExtraError("a device", "torch", "gpu") from None
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
            own = self._own(first, last, low, high)
            rows = slice(first - begin, last - begin)
            if n_nearest:
                nearest = best[rows], found[rows]
                best[rows], found[rows] = _nearer(*nearest, scores, low, n_nearest, own)
            if offsets[rows.stop] > offsets[rows.start]:
                if relevant is None or relevant[0] != block:
                    lists = _padded(offsets[rows.start : rows.stop + 1], ordered, items)
                    relevant = block, tuple(self._tensor(one) for one in lists)
                keys, names, places = relevant[1]
                n_met += _count_places(scores, low, keys, names, places, counts, own)
        best[found < 0] = torch.nan
        of_queries = Nearest(found.cpu().numpy(), best.cpu().numpy())
        return counts[:-1].cpu().numpy().astype(items.dtype), n_met, of_queries

    def _own(self, first: int, last: int, low: int, high: int) -> tuple[Any, Any]:
        """Rows and columns of a block that are a query and itself, which is no candidate."""
        rows = columns = np.empty(0, np.int64)
        if self._pool.own is not None:
            own = self._pool.own[first:last]
            rows = np.flatnonzero((own >= low) & (own < high))
            columns = own[rows] - low
        return self._tensor(rows), self._tensor(columns)

    def _scored(self, begin: int, end: int) -> Iterator[tuple[int, int, tuple[int, int], Any]]:
        """Blocks of items, of queries, and their scores; blocks of queries are always whole."""
        import torch

        from .._kernels.tensors import products

        blocks = [(a, b) for a, b in pairwise(self._query_edges) if a < end and begin < b]
        queries = [self._mapped(self._pool.queries, self._of_queries, *block) for block in blocks]
        for low, high in pairwise(self._item_edges):
            items = self._items(low, high)
            for block, rows in zip(blocks, queries, strict=True):
                with products(self._tf32):
                    scores = rows @ items.T
                n_bad = int(torch.isnan(scores).sum())
                if n_bad:
                    raise ValueError(f"scores: expected numbers, got {n_bad} NaN")
                yield low, high, block, scores
            self._note(high - low)

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

    Lists end with infinity, an item beyond all, and the place of a count that nobody reads.
    """
    sizes = np.diff(offsets)
    longest = int(sizes.max(initial=0))
    keys = np.full((len(sizes), longest + 1), np.inf, ordered.dtype)
    names = np.full((len(sizes), longest + 1), np.iinfo(np.int64).max)
    places = np.full((len(sizes), longest + 1), len(items), np.int64)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.arange(offsets[0], offsets[-1]) - np.repeat(offsets[:-1], sizes)
    part = slice(offsets[0], offsets[-1])
    keys[rows, columns], names[rows, columns] = -ordered[part], items[part]
    places[rows, columns] = np.arange(offsets[0], offsets[-1])
    return keys, names, places


def _count_places(
    scores: Any, low: int, keys: Any, names: Any, places: Any, counts: Any, own: tuple[Any, Any]
) -> int:
    """Count each candidate at the first relevant item that does not rank before it: `ranking.count_above`."""
    import torch

    wanted = -scores
    at = torch.searchsorted(keys, wanted)
    ties = keys.gather(1, at) == wanted
    ties[own] = False
    row, column = torch.nonzero(ties, as_tuple=True)
    # Of equal scores the lower item ranks first: look for it among those that tie.
    item, place = low + column, at[row, column]
    last = torch.searchsorted(keys, wanted, right=True)[row, column]
    while (place < last).any():
        middle = (place + last) // 2
        is_open, is_before = place < last, names[row, middle.clamp(max=names.shape[1] - 1)] < item
        place = torch.where(is_open & is_before, middle + 1, place)
        last = torch.where(is_open & ~is_before, middle, last)
    at[row, column] = place
    at[own] = keys.shape[1] - 1  # no candidate
    counts += torch.bincount(places.gather(1, at).ravel(), minlength=len(counts))
    return int((names[row, place] == item).sum())


def _nearer(
    best: Any, found: Any, scores: Any, low: int, k: int, own: tuple[Any, Any]
) -> tuple[Any, Any]:
    """The k nearest of those found before and of a block of later items; ties go to the lower item.

    What is no candidate, or was not found yet, has no number and comes last.
    """
    import torch

    n = min(k + 1, scores.shape[1])  # one of them may be no candidate
    top, columns = torch.topk(scores, n, dim=1)
    # Where more items tie with the last than fit, topk takes any of them.
    for row in torch.nonzero((scores >= top[:, -1:]).sum(1) > n).ravel().tolist():
        tied = torch.nonzero(scores[row] >= top[row, -1]).ravel()
        order = torch.argsort(-scores[row, tied], stable=True)[:n]
        columns[row] = tied[order]
    columns, _ = torch.sort(columns, dim=1)
    top = torch.cat([best, scores.gather(1, columns)], dim=1)
    self_column = torch.full((len(scores), 1), -1, dtype=torch.int64, device=scores.device)
    self_column[own[0], 0] = own[1]
    columns = torch.cat([found, torch.where(columns == self_column, -1, columns + low)], dim=1)
    order = torch.argsort(-top, dim=1, stable=True)
    order = order.gather(
        1, torch.argsort((columns.gather(1, order) < 0).byte(), dim=1, stable=True)
    )
    return top.gather(1, order[:, :k]), columns.gather(1, order[:, :k])
