"""Ranks of relevant items and nearest items, over more items than there is memory for, and exactly.

Items are scored in blocks of a fixed grid, whose edges depend on the numbers of queries and items alone. A
matrix product of another shape may round the last bit otherwise, and where two items all but tie, that bit
decides which is ranked first. On the fixed grid the score of a pair is the same number in every pass, for any
division of the items among processes, and for any amount of memory. BLAS gets one thread, because its threads
divide a product in their own way; blocks go to plain threads instead.

A relevant item's rank is the number of items before it. A first pass takes the scores of the relevant items;
a second one counts every item at its place among those of its query; the counts of all parts are added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import config
from scipy import sparse
from threadpoolctl import ThreadpoolController

from .._kernels.ranking import (
    count_above,
    offer_nearest,
    ranks_of_counts,
    sort_lists,
    take_scores,
)
from ..data.blocks import ArrayBlocks, RowBlocks, StoredItems
from ..validation import check_feature_names, check_features, check_integer, check_items

#: Queries and items of one matrix product; the last block of either takes what is left over too.
QUERIES, ITEMS = 256, 1024

#: Blocks of items read and scored before the counting begins: enough work for all threads.
_BLOCKS_AT_A_TIME = 8

#: Scores of a function that are held at a time: 64 MB in float64.
_CHUNK = 2**23

#: Bytes of arrays at a time, in each process.
DEFAULT_MEMORY = 512 * 2**20

#: Bytes for a relevant item of a query: its score, its number, its count, and copies while they are sorted.
_PAIR_BYTES = 24

_DIFFERENT = "scores of the model: expected the same for the same rows, got others in a second pass"


def edges_of(n: int, step: int) -> list[int]:
    """Edges of blocks of n rows: all have `step` rows, and the last one at least as many if there are two.

    Examples
    --------
    >>> edges_of(10, 4), edges_of(3, 4)
    ([0, 4, 10], [0, 3])
    """
    return [*range(0, max(1, n // step) * step, step), n]


# -- what is scored -----------------------------------------------------------------------------


class Scorer(NamedTuple):
    """How pairs are scored: ``scores(queries(q), items(x))``; by several threads if it is `pure`."""

    queries: Callable[[Any], Any]
    items: Callable[[Any], Any]
    scores: Callable[[Any, Any], np.ndarray]
    is_pure: bool
    #: Precision of the rows; None for any.
    dtype: Any = None


class Pool(NamedTuple):
    """Queries and the items that are ranked for each of them: all that a process needs to know.

    The model is anything with a method ``sides`` (see `simstream.similarity.base.Similarity`) or
    ``score_items``, or a function; or a `Scorer`.
    """

    model: Any
    queries: RowBlocks
    items: RowBlocks
    #: The item that each query is, which is no candidate for itself; None if queries are no items.
    own: np.ndarray | None = None
    #: Rows of a block, and whether the last block of queries may have more.
    query_step: int = QUERIES
    item_step: int = ITEMS
    is_uneven: bool = True
    memory: int = DEFAULT_MEMORY

    @property
    def n_candidates(self) -> int:
        """Items that are ranked for each query."""
        return len(self.items) - (self.own is not None)

    @property
    def query_edges(self) -> list[int]:
        """Edges of the blocks of queries."""
        n, step = len(self.queries), self.query_step
        return edges_of(n, step) if self.is_uneven else [*range(0, n, step), n]

    @property
    def item_edges(self) -> list[int]:
        """Edges of the blocks of items."""
        return edges_of(len(self.items), self.item_step)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of items."""
        return len(self.item_edges) - 1

    def scorer(self) -> Scorer:
        """How to score blocks of these rows."""
        if isinstance(self.model, Scorer):
            return self.model
        if not has_sides(self.model):
            score = scoring_function(self.model)

            def of_function(queries: Any, items: Any) -> np.ndarray:
                scores = _scored(score, queries, items)
                return scores if self.own is None else scores.copy()  # it will be written to

            return Scorer(_same, _same, of_function, is_pure=False)
        near = None
        dtype = self.model.dtype_
        check_features(self.model.shape_, self.queries, self.items)
        if not (self.queries.is_sparse or self.items.is_sparse):
            near = self.queries.block(0, self.query_edges[1], dtype)
        sides = self.model.sides(near)

        def scores(queries: Any, items: Any) -> np.ndarray:
            return as_scores(sides.scores(queries, items))

        return Scorer(sides.queries, sides.items, scores, is_pure=True, dtype=dtype)


def has_sides(model: Any) -> bool:
    """Whether a model scores in three steps, and has not another way to do so of its own."""
    for kind in type(model).__mro__:
        if "sides" in vars(kind):
            return "score_items" not in getattr(model, "__dict__", {})
        if "score_items" in vars(kind):
            return False
    return False


def _same(rows: Any) -> Any:
    return rows


def scoring_function(model: Any) -> Callable[[Any, Any], Any]:
    """The function of a model, or the model itself, that scores all queries with all items."""
    score = getattr(model, "score_items", model)
    if not callable(score):
        raise TypeError(
            f"model: expected a method score_items or a function, got {type(model).__name__}"
        )
    return score


def _scored(score: Callable[[Any, Any], Any], queries: Any, items: Any) -> np.ndarray:
    scores = score(queries, items)
    scores = scores.toarray() if sparse.issparse(scores) else np.asarray(scores)
    expected = (queries.shape[0], items.shape[0])
    if scores.shape != expected:
        raise ValueError(f"scores of the model: expected shape {expected}, got {scores.shape}")
    return as_scores(scores)


def as_scores(scores: np.ndarray) -> np.ndarray:
    """Scores for the kernels: contiguous, float32 or float64, without NaN (infinity is allowed)."""
    scores = np.ascontiguousarray(scores)
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    if np.isnan(scores.min()):  # one NaN makes the minimum NaN: no second array is needed
        raise ValueError(f"scores: expected numbers, got {np.isnan(scores).sum()} NaN")
    return scores


def check_memory(memory: Any) -> int:
    """Check a number of bytes."""
    return check_integer("memory", memory, minimum=2**20)


def chunk_rows(chunk_size: int | None, n_items: int) -> int:
    """How many queries a function scores at a time."""
    if chunk_size is None:
        return max(1, _CHUNK // n_items)
    return check_integer("chunk_size", chunk_size)


def pool_of(
    model: Any,
    queries: Any,
    items: Any,
    chunk_size: int | None,
    memory: int = DEFAULT_MEMORY,
    *,
    exclude_self: bool = False,
) -> Pool:
    """Checked queries and items; without items, the queries are their own pool.

    `chunk_size` is the number of queries of a block, for functions.
    """
    is_ours = has_sides(model)
    if not is_ours:
        scoring_function(model)
    dtype = model.dtype_ if is_ours else None
    names = getattr(model, "_feature_names", None) if is_ours else None
    asking = _as_rows(queries, "queries", dtype, names)
    rows = asking if items is None else _as_rows(items, "items", dtype, names)
    n_items = len(rows)
    if exclude_self and len(asking) != n_items:
        raise ValueError(
            f"exclude_self: expected queries and items to be the same list, got {len(asking)} queries "
            f"and {n_items} items"
        )
    steps = (QUERIES, ITEMS)
    chunk = chunk_rows(chunk_size, n_items)
    if not is_ours and isinstance(rows, ArrayBlocks):
        # A function sees all items at once: it may do what it likes with them.
        steps = (chunk, n_items)
    own = np.arange(n_items) if items is None or exclude_self else None
    return Pool(model, asking, rows, own, *steps, is_ours, check_memory(memory))


def _as_rows(rows: Any, name: str, dtype: Any, feature_names: Any) -> RowBlocks:
    if isinstance(rows, RowBlocks | StoredItems):
        blocks = rows if isinstance(rows, RowBlocks) else rows.blocks
        if feature_names is not None and len(feature_names) == blocks.shape[1]:
            check_feature_names(feature_names, blocks, name)
        return blocks
    checked = check_items(rows, name, dtype=dtype)
    check_feature_names(feature_names, checked, name)
    return ArrayBlocks(checked.values)


# -- the blocks of one process ------------------------------------------------------------------


class _Tile(NamedTuple):
    first_item: int
    scores: np.ndarray


class Nearest(NamedTuple):
    """The highest scores of each query, best first, and the items that have them; -1 beyond the last."""

    items: np.ndarray
    scores: np.ndarray


class Sweep:
    """One part of the items, scored block by block.

    Parameters
    ----------
    pool : Pool
    part : (int, int), optional
        Numbers of the first block of items and of the one after the last; all by default.
    note : function, optional
        Called with a number of items, when they have been scored for all queries asked for.
    """

    def __init__(
        self,
        pool: Pool,
        part: tuple[int, int] | None = None,
        note: Callable[[int], object] | None = None,
    ) -> None:
        self._pool, self._scorer, self._note = pool, pool.scorer(), note
        self._query_edges, self._item_edges = pool.query_edges, pool.item_edges
        first, last = (0, len(self._item_edges) - 1) if part is None else part
        step = min(_BLOCKS_AT_A_TIME, self._blocks_in_memory())
        self._pieces = [range(b, min(last, b + step)) for b in range(first, last, step)]
        # What was computed last and may be asked for again: items, queries, and scores.
        self._items_kept: tuple[int, list[Any]] | None = None
        self._queries_kept: dict[int, Any] = {}
        self._tiles_kept: tuple[tuple[int, int], list[_Tile]] | None = None

    def _blocks_in_memory(self) -> int:
        """How many blocks of items may be held at a time."""
        pool = self._pool
        n_queries = max(e - b for b, e in pairwise(self._query_edges))
        height = max(e - b for b, e in pairwise(self._item_edges[-3:]))
        width, is_file = pool.items.shape[1], not isinstance(pool.items, ArrayBlocks)
        least = height * (12 * width + 8 * n_queries)  # in single precision
        if is_file and least > pool.memory:
            raise ValueError(
                f"memory: expected at least {least:,} bytes ({-(-least // 10**6)}MB) for items of {width:,} "
                f"features, got {pool.memory:,}"
            )
        # Rows as they are stored, as the model takes them and as it maps them; scores, and parts of them.
        return max(1, pool.memory // 2 // (height * (24 * width + 20 * n_queries)))

    def is_small(self) -> bool:
        """Whether all items are held at a time: then a second pass over a block of queries costs nothing."""
        return len(self._pieces) == 1

    def relevant_scores(
        self, begin: int, end: int, offsets: np.ndarray, items: np.ndarray
    ) -> np.ndarray:
        """Scores of the items ``items[offsets[i]:offsets[i + 1]]``, which ascend, of query begin + i."""
        out: np.ndarray | None = None
        # All scores, where those of this pass are kept for the next one.
        wanted = None if self.is_small() else self._wanted(begin, end, offsets, items)
        with closing(self._scored(begin, end, wanted)) as scored:
            for block, tiles in scored:
                if out is None:
                    out = np.empty(len(items), tiles[0].scores.dtype)
                rows, own = self._rows(block, begin, end)
                part = offsets[own.start : own.stop + 1]
                for first_item, scores in tiles:
                    take_scores(scores[rows], first_item, part, items, out)
        return np.empty(0, np.float32) if out is None else out

    def count(
        self,
        begin: int,
        end: int,
        offsets: np.ndarray,
        ordered: np.ndarray,
        items: np.ndarray,
        n_nearest: int = 0,
    ) -> tuple[np.ndarray, int, Nearest]:
        """Count all items at their places among the relevant ones, and find the nearest.

        Relevant items are in the order of their ranks, see `count_above`. Returns the counts, the number of
        relevant items that were met, and the nearest items of each query.
        """
        counts = np.zeros(len(items), items.dtype)
        n = end - begin
        best: np.ndarray | None = None
        found = np.full((n, n_nearest), -1, np.int64)
        sizes = np.zeros(n, np.int64)
        n_met = 0
        with closing(self._scored(begin, end, None)) as scored:
            for block, tiles in scored:
                if best is None:
                    best = np.full((n, n_nearest), np.nan, tiles[0].scores.dtype)
                rows, own = self._rows(block, begin, end)
                work = partial(
                    self._count_part,
                    begin + own.start,
                    [tile._replace(scores=tile.scores[rows]) for tile in tiles],
                    (offsets[own.start : own.stop + 1], ordered, items, counts),
                    tuple(one[own] for one in (best, found, sizes)),
                )
                n_met += sum(self._map(work, self._parts(own.stop - own.start)))
                self._tiles_kept = None  # what is no candidate has been taken out of the scores
        assert best is not None
        return counts, n_met, Nearest(found, best)

    def _count_part(
        self,
        first_query: int,
        tiles: list[_Tile],
        relevant: tuple[np.ndarray, ...],
        nearest: tuple[np.ndarray, ...],
        part: slice,
    ) -> int:
        """Do the work of `count` for some rows of a block of queries; different rows in different threads."""
        offsets, *others = relevant
        own, skip = self._pool.own, np.full(part.stop - part.start, -1)
        if own is not None:
            skip = own[first_query + part.start : first_query + part.stop]
        n_met = 0
        for first_item, all_scores in tiles:
            scores = all_scores[part]
            if nearest[0].shape[1]:
                offer_nearest(scores, first_item, skip, *(one[part] for one in nearest))
            if own is not None:
                _leave_out(scores, first_item, skip)
            edges = offsets[part.start : part.stop + 1]
            n_met += count_above(scores, first_item, edges, *others)
        return n_met

    # -- scores ---------------------------------------------------------------------------------

    def _wanted(
        self, begin: int, end: int, offsets: np.ndarray, items: np.ndarray
    ) -> dict[int, np.ndarray]:
        """Which blocks of items each block of queries has relevant items in."""
        n_blocks = len(self._item_edges) - 1
        wanted = {}
        for block in self._query_blocks(begin, end):
            _, own = self._rows(block, begin, end)
            some = items[offsets[own.start] : offsets[own.stop]]
            wanted[block] = np.zeros(n_blocks, bool)
            wanted[block][np.minimum(some // self._pool.item_step, n_blocks - 1)] = True
        return wanted

    def _query_blocks(self, begin: int, end: int) -> list[int]:
        return [
            b
            for b, (low, high) in enumerate(pairwise(self._query_edges))
            if low < end and begin < high
        ]

    def _rows(self, block: int, begin: int, end: int) -> tuple[slice, slice]:
        """Queries from begin to end that are in a block: their rows in it, and among all those queries."""
        low, high = self._query_edges[block : block + 2]
        first, last = max(low, begin), min(high, end)
        return slice(first - low, last - low), slice(first - begin, last - begin)

    @staticmethod
    def _parts(n: int) -> list[slice]:
        step = -(-n // _n_threads())
        return [slice(first, min(n, first + step)) for first in range(0, n, step)]

    def _scored(
        self, begin: int, end: int, wanted: dict[int, np.ndarray] | None
    ) -> Generator[tuple[int, list[_Tile]]]:
        """Scores of all wanted blocks: numbers of blocks of queries, and the scores of several of items."""
        blocks = self._query_blocks(begin, end)
        pieces = [
            piece
            for piece in range(len(self._pieces))
            if wanted is None or any(wanted[b][list(self._pieces[piece])].any() for b in blocks)
        ]
        with one_blas_thread(self._scorer.is_pure):
            self._map_queries(blocks)
            for piece, items in self._mapped_items(pieces):
                numbers = self._pieces[piece]
                for block in blocks:
                    places = [
                        place
                        for place, number in enumerate(numbers)
                        if wanted is None or wanted[block][number]
                    ]
                    if places:
                        yield block, self._tiles(piece, block, places, items)
                if self._note is not None:
                    first, last = self._item_edges[numbers.start], self._item_edges[numbers.stop]
                    self._note(last - first)

    def _tiles(self, piece: int, block: int, places: list[int], items: list[Any]) -> list[_Tile]:
        key, numbers = (piece, block), self._pieces[piece]
        if self._tiles_kept is not None and self._tiles_kept[0] == key:
            return self._tiles_kept[1]
        queries = self._queries_kept[block]

        def tile(place: int) -> _Tile:
            scores = self._scorer.scores(queries, items[place])
            return _Tile(self._item_edges[numbers[place]], scores)

        tiles = list(self._map_scores(tile, places))
        if len(places) == len(numbers):
            self._tiles_kept = (key, tiles) if self.is_small() else None
        return tiles

    def _map_queries(self, blocks: list[int]) -> None:
        """Map the queries of these blocks, and forget those of all others."""
        kept = {block: self._queries_kept[block] for block in blocks if block in self._queries_kept}
        new = [block for block in blocks if block not in kept]
        edges = [(self._query_edges[b], self._query_edges[b + 1]) for b in new]
        rows = list(self._pool.queries.blocks(edges, self._scorer.dtype)) if edges else []
        kept.update(zip(new, self._map_scores(self._scorer.queries, rows), strict=True))
        self._queries_kept = kept

    def _mapped_items(self, pieces: list[int]) -> Iterator[tuple[int, list[Any]]]:
        if self.is_small() and self._items_kept is not None:
            yield from ([self._items_kept] if pieces else [])
            return
        spans = [
            (self._item_edges[self._pieces[p].start], self._item_edges[self._pieces[p].stop])
            for p in pieces
        ]
        blocks = self._pool.items.blocks(spans, self._scorer.dtype)
        for piece, (first, _), rows in zip(pieces, spans, blocks, strict=True):
            edges = [
                (self._item_edges[n] - first, self._item_edges[n + 1] - first)
                for n in self._pieces[piece]
            ]
            parts = [rows] if len(edges) == 1 else [rows[low:high] for low, high in edges]
            mapped = list(self._map_scores(self._scorer.items, parts))
            if self.is_small():
                self._items_kept = (piece, mapped)
            yield piece, mapped

    def _map_scores(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        """Apply a part of the scorer, which other people's functions may not allow in several threads."""
        return self._map(work, list(parts)) if self._scorer.is_pure else map(work, parts)

    @staticmethod
    def _map(work: Callable[[Any], Any], parts: list[Any]) -> Iterable[Any]:
        if len(parts) < 2 or _n_threads() == 1:
            return map(work, parts)
        return _threads().map(work, parts)


def _leave_out(scores: np.ndarray, first_item: int, own: np.ndarray) -> None:
    """Make the item of each row that is the query itself no candidate."""
    places = own - first_item
    rows = np.flatnonzero((places >= 0) & (places < scores.shape[1]))
    scores[rows, places[rows]] = np.nan


def _n_threads() -> int:
    return int(config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as numba would use (NUMBA_NUM_THREADS, or the cores of this process).

    NumPy's products and the kernels release the GIL; unlike ``parallel=True``, plain threads are safe to use
    from several threads and after a fork.
    """
    return ThreadPoolExecutor(_n_threads())


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_threads.cache_clear)


class _BlasLimit:
    """Lets BLAS use one thread while anybody wants that, whoever is the first and the last to want it."""

    def __init__(self) -> None:
        self._lock, self._n_users = Lock(), 0
        self._limit: Any = None

    @contextmanager
    def __call__(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        with self._lock:
            if self._n_users == 0:
                self._limit = _libraries().limit(limits=1, user_api="blas")
                self._limit.__enter__()
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    self._limit.__exit__(None, None, None)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


one_blas_thread = _BlasLimit()


# -- relevance ----------------------------------------------------------------------------------


class Relevance(Protocol):
    """Which items are relevant to which queries."""

    #: Number of relevant items of each query.
    sizes: np.ndarray

    def lists(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Relevant items, ascending, of some queries: edges of their lists, all lists, their grades if any.

        The arrays are the caller's own.
        """


class RelevantLabels:
    """Items of the query's class are relevant, except the query itself if it is one of them."""

    def __init__(self, query_codes: np.ndarray, item_codes: np.ndarray, is_own: bool) -> None:
        self._codes, self._is_own = query_codes, is_own
        n_codes = int(max(query_codes.max(), item_codes.max())) + 1
        self._by_code = np.argsort(item_codes, kind="stable").astype(item_type(len(item_codes)))
        self._starts = np.searchsorted(item_codes[self._by_code], np.arange(n_codes + 1))
        self.sizes = np.diff(self._starts)[query_codes] - is_own

    def lists(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, None]:
        """Relevant items of some queries; see `Relevance`."""
        codes = self._codes[begin:end]
        sizes = self.sizes[begin:end] + self._is_own
        first = self._starts[codes] - edges_of_sizes(sizes)[:-1]
        items = self._by_code[np.repeat(first, sizes) + np.arange(sizes.sum())]
        if self._is_own:
            items = items[items != np.repeat(np.arange(begin, end), sizes)]
        return edges_of_sizes(self.sizes[begin:end]), items, None


class RelevantLists:
    """Relevant items as lists of all queries, one after the other."""

    def __init__(
        self, offsets: np.ndarray, items: np.ndarray, grades: np.ndarray | None = None
    ) -> None:
        self._offsets, self._items, self._grades = offsets, items, grades
        self.sizes = np.diff(offsets)

    def chosen(self, queries: np.ndarray) -> RelevantLists:
        """The lists of these queries, to which all relevant items belong."""
        return RelevantLists(edges_of_sizes(self.sizes[queries]), self._items, self._grades)

    def lists(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Relevant items of some queries; see `Relevance`."""
        offsets = self._offsets[begin : end + 1]
        part = slice(offsets[0], offsets[-1])
        grades = None if self._grades is None else self._grades[part].copy()
        return offsets - offsets[0], self._items[part].copy(), grades


def edges_of_sizes(sizes: np.ndarray) -> np.ndarray:
    """Where lists of these sizes begin and end, one after the other."""
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def item_type(n_items: int) -> Any:
    """The smallest type of numbers of items."""
    return np.int32 if n_items < 2**31 else np.int64


# -- all parts together -------------------------------------------------------------------------


class RankedQueries(NamedTuple):
    """Ranks of the relevant items of the queries from `begin` to `end`, and their nearest items."""

    begin: int
    end: int
    #: Where the ranks of each query begin and end; they ascend.
    offsets: np.ndarray
    ranks: np.ndarray
    #: The grades that belong to the ranks, if there are some.
    grades: np.ndarray | None
    nearest: Nearest


#: Calls a method of the `Sweep` of every part, each with its own arguments.
Call = Callable[[str, list[tuple[Any, ...]]], list[Any]]


class Runner(Protocol):
    """Where the parts of the items are swept: in this process, or in others."""

    def parts(self, n_blocks: int) -> list[tuple[int, int]]:
        """The blocks of items of each part."""

    def open(self, pool: Pool, note: Callable[[int], object]) -> Call:
        """Make the sweeps of a pool; `note` is called with numbers of items that are done."""


class Here:
    """The parts are swept in this process, one after the other.

    Parameters
    ----------
    n_parts : int
        One is enough; several find the same.
    """

    def __init__(self, n_parts: int = 1) -> None:
        self._n_parts = check_integer("n_parts", n_parts)

    def parts(self, n_blocks: int) -> list[tuple[int, int]]:
        """Parts of nearly the same size."""
        return parts_of(n_blocks, self._n_parts)

    def open(self, pool: Pool, note: Callable[[int], object]) -> Call:
        """Make the sweeps of a pool."""
        sweeps = [Sweep(pool, part, note) for part in self.parts(pool.n_blocks)]
        return lambda name, arguments: [
            getattr(sweep, name)(*given) for sweep, given in zip(sweeps, arguments, strict=True)
        ]


def parts_of(n_blocks: int, n_parts: int) -> list[tuple[int, int]]:
    """Divide blocks into parts of nearly the same size, at most one for each block.

    Examples
    --------
    >>> parts_of(5, 2), parts_of(2, 3)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    n_parts = min(n_parts, n_blocks)
    return list(pairwise(n_blocks * part // n_parts for part in range(n_parts + 1)))


class _Progress:
    """Counts items that are swept, over all passes, of which the first may leave some out."""

    def __init__(self, report: Callable[[int, int], object] | None, pass_size: int) -> None:
        self._report, self._pass_size = report, pass_size
        self._done, self._target, self.n_passes = 0, 0, 1

    def begin_pass(self) -> None:
        self._done = self._target
        self._target += self._pass_size

    def note(self, n_items: int) -> None:
        if self._report is not None and self._target:
            self._done = min(self._done + n_items, self._target)
            self._report(self._done, self.n_passes * self._pass_size)


def ranked_queries(
    pool: Pool,
    relevance: Relevance | None,
    *,
    n_nearest: int = 0,
    runner: Runner | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[RankedQueries]:
    """Rank the items of a pool for all queries: ranks of the relevant ones, and the nearest ones.

    `progress` is called with a number of items that are done and that of all; items count once for each pass.
    """
    runner = Here() if runner is None else runner
    n_queries, n_items = len(pool.queries), len(pool.items)
    item_edges, parts = pool.item_edges, runner.parts(pool.n_blocks)
    spans = [(item_edges[first], item_edges[last]) for first, last in parts]
    swept = _Progress(progress, n_items)
    call = runner.open(pool, swept.note)
    sizes = np.zeros(n_queries, np.int64) if relevance is None else relevance.sizes
    is_small = len(parts) == 1 and call("is_small", [()])[0]
    groups = list(_groups(pool, sizes, n_nearest, one_block=is_small))
    swept.n_passes = len(groups) * (1 if relevance is None else 2)
    for begin, end in groups:
        offsets, items, grades = np.zeros(end - begin + 1, np.int64), np.empty(0, np.int32), None
        ordered = np.empty(0, np.float32)
        if relevance is not None:
            offsets, items, grades = relevance.lists(begin, end)
            swept.begin_pass()
        if len(items):
            found = _relevant_scores(call, begin, end, offsets, items, spans)
            ordered = np.require(found, requirements="W")  # other processes give read-only arrays
            sort_lists(offsets, ordered, items, np.empty(0) if grades is None else grades)
        given = (begin, end, offsets, ordered, items, n_nearest)
        swept.begin_pass()
        counted = call("count", [given] * len(parts))
        counts = counted[0][0]
        for other, _, _ in counted[1:]:
            counts = counts + other
        if sum(n for _, n, _ in counted) != len(items):
            raise ValueError(_DIFFERENT)
        ranks = np.empty(len(items), item_type(n_items))
        ranks_of_counts(offsets, counts, ranks)
        nearest = _merged([one for _, _, one in counted], n_nearest)
        yield RankedQueries(begin, end, offsets, ranks, grades, nearest)


def _groups(
    pool: Pool, sizes: np.ndarray, n_nearest: int, one_block: bool
) -> Iterator[tuple[int, int]]:
    """Queries that are ranked together: as many as there is memory for their relevant items."""
    edges = pool.query_edges
    row_bytes = 24 * pool.queries.shape[1] + 48 * n_nearest + 16
    costs = np.append(0, np.cumsum(_PAIR_BYTES * sizes + row_bytes))
    begin = 0
    while begin < edges[-1]:
        fits = int(np.searchsorted(costs, costs[begin] + pool.memory // 2, side="right")) - 1
        end = max(begin + 1, fits)
        later = [edge for edge in edges[1:] if begin < edge <= end]
        if later:  # whole blocks, if at least one of them fits
            end = later[0] if one_block else later[-1]
        yield begin, end
        begin = end


def _relevant_scores(
    call: Call,
    begin: int,
    end: int,
    offsets: np.ndarray,
    items: np.ndarray,
    spans: list[tuple[int, int]],
) -> np.ndarray:
    """Scores of the relevant items, each by the part that it is in."""
    if len(spans) == 1:
        return call("relevant_scores", [(begin, end, offsets, items)])[0]
    chosen = [np.flatnonzero((items >= low) & (items < high)) for low, high in spans]
    found = call(
        "relevant_scores",
        [(begin, end, np.searchsorted(places, offsets), items[places]) for places in chosen],
    )
    scores = np.empty(len(items), np.result_type(*(one for one in found if len(one))))
    for places, one in zip(chosen, found, strict=True):
        scores[places] = one
    return scores


def _merged(parts: list[Nearest], n_nearest: int) -> Nearest:
    """The nearest of all parts, which are in the order of their items."""
    if len(parts) == 1 or not n_nearest:
        return parts[0]
    items, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n_nearest]  # NaN, no item, comes last
    return Nearest(*(np.take_along_axis(one, order, axis=1) for one in (items, scores)))
