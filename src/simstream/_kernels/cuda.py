"""Blocks of tuples on a CUDA device, without waiting for the host.

What `blocked.learn_block` asks for is a handful of launches: the product of the rows with M and its row sums,
one kernel for the recursion, one product of rank B. The recursion takes one multiprocessor.
Meanwhile a second stream gathers the rows of the next block and works out their Gram matrices, which do not
depend on M. Two blocks are one CUDA graph that is replayed: launches cost more than many of the kernels.

The recursion: 32 tuples are one tile, a tuple a lane. First the tile takes over what earlier tiles change for
it. Then 32 times the step of one lane is broadcast by a shuffle, and changes the losses of the later lanes:
four operations and a shuffle for a tuple, all else is outside that chain. Gram matrices of float32 are three
products of TF32, which are as exact and leave more of the device to the products with M.

Signs are multiplied into z: a tuple that belongs below the threshold is one with -z above its negative.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .blocked import alone, learn_block
from .steps import (
    CLOCK_SIZE,
    CONSTANT,
    HOPELESS,
    LARGEST_NORM,
    LOSS,
    MISTAKES,
    PA_I,
    PA_II,
    PALS,
    ROUNDS,
    SKIPPED,
    THRESHOLD,
    UPDATES,
    VIOLATIONS,
)
from .tensors import TorchOps, products

#: Tuples of a tile of the recursion: the lanes of a warp.
TILE = 32

#: Largest block: the recursion's time grows with the square of it.
LARGEST_BLOCK = 2048

#: Earlier tuples that a tile takes over at a time, and warps that share them: that many loads wait for memory
#: together. All warps repeat the chain of steps.
_EARLIER, _WARPS = 512, 8

#: Tuples on the device at a time; between two of these the host looks for Ctrl-C.
CHUNK = 2**17

#: Columns that one program reads at a time.
_WIDEST = 1024

# Parameters of the step, in float64: numbers that a kernel is given directly are float32.
_ETA, _C, _TOLERANCE, _BIAS, _SOFT, _LARGEST = (tl.constexpr(n) for n in range(6))

# Kernels read global numbers only as constants of the compiler.
_T_CONSTANT, _T_PA_I, _T_PALS = tl.constexpr(CONSTANT), tl.constexpr(PA_I), tl.constexpr(PALS)
_T_HOPELESS, _T_LARGEST_NORM = tl.constexpr(HOPELESS), tl.constexpr(LARGEST_NORM)
_T_ROUNDS, _T_UPDATES, _T_SKIPPED = (tl.constexpr(n) for n in (ROUNDS, UPDATES, SKIPPED))
_T_MISTAKES, _T_LOSS, _T_VIOLATIONS = (tl.constexpr(n) for n in (MISTAKES, LOSS, VIOLATIONS))
_T_THRESHOLD = tl.constexpr(THRESHOLD)


@triton.jit
def _gather(
    left,
    right,
    index,
    signs,
    position,
    count,
    x,
    z,
    inverse,
    sign,
    n_here,
    numbers,
    dx,
    dz,
    PAIRS: tl.constexpr,
    W: tl.constexpr,
):
    """Rows x and sign * z of one tuple of the block at `position`, and 1 / (||x||^2 ||z||^2 + soft).

    That is zero for a tuple without a direction and for places beyond the last tuple, NaN where it overflows.
    """
    b = tl.program_id(0)
    at = tl.load(position) + b
    n = tl.load(count)
    is_there = at < n
    if PAIRS:
        first = tl.load(index + 2 * at, mask=is_there, other=0)
        second = tl.load(index + 2 * at + 1, mask=is_there, other=0)
        third = second
    else:
        first = tl.load(index + 3 * at, mask=is_there, other=0)
        second = tl.load(index + 3 * at + 1, mask=is_there, other=0)
        third = tl.load(index + 3 * at + 2, mask=is_there, other=0)
    side = tl.load(signs + at, mask=is_there, other=0.0)
    columns = tl.arange(0, W)
    xx = tl.zeros((W,), x.dtype.element_ty)
    zz = tl.zeros((W,), x.dtype.element_ty)
    if PAIRS:
        for k in range(0, dx, W):
            inside = k + columns < dx
            mask = inside & is_there
            a = tl.load(left + first * dx + k + columns, mask=mask, other=0.0)
            a -= tl.load(right + second * dx + k + columns, mask=mask, other=0.0)
            tl.store(x + b * dx + k + columns, a, mask=inside)
            tl.store(z + b * dx + k + columns, side * a, mask=inside)
            xx += a * a
        zz = xx
    else:
        for k in range(0, dx, W):
            inside = k + columns < dx
            a = tl.load(left + first * dx + k + columns, mask=inside & is_there, other=0.0)
            tl.store(x + b * dx + k + columns, a, mask=inside)
            xx += a * a
        for k in range(0, dz, W):
            inside = k + columns < dz
            mask = inside & is_there
            a = tl.load(right + second * dz + k + columns, mask=mask, other=0.0)
            a -= tl.load(right + third * dz + k + columns, mask=mask, other=0.0)
            tl.store(z + b * dz + k + columns, side * a, mask=inside)
            zz += a * a
    norm = tl.sum(xx).to(tl.float64) * tl.sum(zz).to(tl.float64)
    inv = tl.where(norm != 0.0, 1.0 / (norm + tl.load(numbers + _SOFT)), 0.0)
    inv = tl.where(norm < _T_LARGEST_NORM, inv, float("nan"))
    if (norm < _T_LARGEST_NORM) == 0:  # it ends the learning; infinite rows would make all of M NaN
        nothing = tl.zeros((W,), x.dtype.element_ty)
        for k in range(0, dx, W):
            tl.store(x + b * dx + k + columns, nothing, mask=k + columns < dx)
        for k in range(0, dz, W):
            tl.store(z + b * dz + k + columns, nothing, mask=k + columns < dz)
    tl.store(inverse + b, inv.to(x.dtype.element_ty))
    tl.store(sign + b, side)
    if b == 0:
        tl.store(n_here, n - at)


@triton.jit
def _products_of_rows(a, i, j, d, PRECISION: tl.constexpr, T: tl.constexpr):
    """a_i'a_j for the rows i and j of a."""
    inner = tl.arange(0, T)
    total = tl.zeros((T, T), tl.float32)
    for k in range(0, d, T):
        inside = k + inner < d
        u = tl.load(a + i[:, None] * d + (k + inner)[None, :], mask=inside[None, :], other=0.0)
        v = tl.load(a + j[None, :] * d + (k + inner)[:, None], mask=inside[:, None], other=0.0)
        total = tl.dot(u, v, total, input_precision=PRECISION)
    return total


@triton.jit
def _gram(
    x, z, sign, gram, numbers, dx, dz, PRECISION: tl.constexpr, B: tl.constexpr, T: tl.constexpr
):
    """A tile of the upper triangle of the products x_s'x_t z_s'z_t, where the threshold is a feature too."""
    tile = tl.program_id(0)
    # Tiles are numbered column after column: column j has j + 1 of them.
    j = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) / 2.0).to(tl.int32)
    j = tl.where(j * (j + 1) // 2 > tile, j - 1, j)
    j = tl.where((j + 1) * (j + 2) // 2 <= tile, j + 1, j)
    rows = (tile - j * (j + 1) // 2) * T + tl.arange(0, T)
    columns = j * T + tl.arange(0, T)
    total = _products_of_rows(x, rows, columns, dx, PRECISION, T)
    total *= _products_of_rows(z, rows, columns, dz, PRECISION, T)
    sides = tl.load(sign + rows)[:, None] * tl.load(sign + columns)[None, :]
    total += tl.load(numbers + _BIAS).to(tl.float32) * sides
    tl.store(gram + rows[:, None] * B + columns[None, :], total)


@triton.jit
def _row_sums(a, b, out, d, W: tl.constexpr):
    """Sum of a * b over one row, in float64."""
    t = tl.program_id(0)
    columns = tl.arange(0, W)
    total = tl.zeros((W,), tl.float64)
    for k in range(0, d, W):
        inside = k + columns < d
        u = tl.load(a + t * d + k + columns, mask=inside, other=0.0).to(tl.float64)
        total += u * tl.load(b + t * d + k + columns, mask=inside, other=0.0).to(tl.float64)
    tl.store(out + t, tl.sum(total).to(a.dtype.element_ty))


@triton.jit
def _length(loss, inverse, rate, C, tolerance, RULE: tl.constexpr, TOLERANT: tl.constexpr):
    """Length of the step for a loss; see `steps.step_length`."""
    if RULE == _T_CONSTANT:
        return tl.where((loss > 0) & (inverse > 0), rate, 0.0)
    length = loss * inverse
    if RULE != _T_PALS:
        length = tl.maximum(length, 0.0)
    if RULE == _T_PA_I:
        length = tl.minimum(length, C)
    if TOLERANT:
        length = tl.where(tl.abs(length) < tolerance, 0.0, length)
    return length


@triton.jit
def _recursion(
    value,
    gram,
    inverse,
    sign,
    n_here,
    coefficient,
    weighted,
    clock,
    diverged,
    numbers,
    average_from,
    RULE: tl.constexpr,
    DECAY: tl.constexpr,
    TOLERANT: tl.constexpr,
    BIASED: tl.constexpr,
    B: tl.constexpr,
    WHOLE: tl.constexpr,
    T: tl.constexpr,
    J: tl.constexpr,
):
    """Steps of one-at-a-time processing: `blocked.rank_one_recursion`. Values become losses.

    A tuple whose numbers overflow sets `diverged`; neither it nor any later tuple changes anything.
    """
    kind = value.dtype.element_ty
    eta = tl.load(numbers + _ETA)
    C, tolerance = tl.load(numbers + _C).to(kind), tl.load(numbers + _TOLERANCE).to(kind)
    rounds, threshold = tl.load(clock + _T_ROUNDS), tl.load(clock + _T_THRESHOLD)
    lane, earlier = tl.arange(0, T), tl.arange(0, J)
    rate = tl.zeros((T,), kind) + eta.to(kind)
    for k in range(0, B, T):
        mine = k + lane
        inv = tl.load(inverse + mine)
        loss = 1.0 - tl.load(value + mine)
        if BIASED:
            loss += tl.load(sign + mine) * threshold.to(kind)
        if DECAY:
            rate = (eta / tl.sqrt(rounds + mine.to(tl.float64) + 1.0)).to(kind)
        tile = ()  # loaded at once, before it is needed
        for s in tl.static_range(T):
            tile = tile + (tl.load(gram + (k + s) * B + mine),)  # type: ignore  # noqa
        change = tl.zeros((J, T), kind)
        for j in range(0, k, J):
            rows = j + earlier
            # First all of these, so that they wait for memory together.
            places = gram + rows[:, None] * B + mine[None, :]
            above = tl.load(places, mask=(rows < k)[:, None], other=0.0)
            c = tl.load(coefficient + rows, mask=rows < k, other=0.0)
            change += c[:, None] * above
        loss -= tl.sum(change, 0)
        for s in tl.static_range(T):
            c = _length(loss, inv, rate, C, tolerance, RULE, TOLERANT)
            c = tl.gather(c, tl.full((T,), s, tl.int32), 0)
            loss = tl.where(lane > s, loss - c * tile[s], loss)
        tl.store(value + mine, loss)
        tl.store(coefficient + mine, _length(loss, inv, rate, C, tolerance, RULE, TOLERANT))
        tl.debug_barrier()
    _count(
        value, inverse, sign, n_here, coefficient, weighted, clock, diverged, numbers,
        average_from, rounds, threshold, B, WHOLE,
    )  # fmt: skip


@triton.jit
def _count(
    losses,
    inverse,
    sign,
    n_here,
    coefficient,
    weighted,
    clock,
    diverged,
    numbers,
    average_from,
    rounds,
    threshold,
    B: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Take back the steps from the first tuple on that overflowed, count all others, weigh their steps."""
    kind = losses.dtype.element_ty
    t = tl.arange(0, WHOLE)  # a power of two
    inside = t < B
    n, before = tl.load(n_here), tl.load(diverged)
    loss = tl.load(losses + t, mask=inside, other=0.0)
    inv = tl.load(inverse + t, mask=inside, other=0.0)
    c = tl.load(coefficient + t, mask=inside, other=0.0)
    side = tl.load(sign + t, mask=inside, other=0.0)
    largest = tl.load(numbers + _LARGEST).to(kind)
    fits = (tl.abs(loss) < _T_HOPELESS) & (tl.abs(c) < largest) & (inv == inv)
    end = tl.min(tl.where(fits | (t >= n), n, t.to(tl.int64)))
    end = tl.where(before == 0, end, 0)
    counts = (t < end) & inside
    c = tl.where(counts, c, 0.0)
    tl.store(coefficient + t, c, mask=inside)
    weight = tl.maximum(rounds + t.to(tl.float64) + 2.0 - average_from, 0.0)
    tl.store(weighted + t, (c.to(tl.float64) * weight).to(kind), mask=inside)
    lowered = c.to(tl.float64) * side.to(tl.float64) * tl.load(numbers + _BIAS)
    hinge = tl.where(counts, tl.maximum(loss, 0.0), 0.0).to(tl.float64)
    tl.store(clock + _T_ROUNDS, rounds + tl.sum(counts.to(tl.int32)))
    tl.store(clock + _T_THRESHOLD, threshold - tl.sum(lowered))
    _add(clock + _T_UPDATES, (c != 0.0).to(tl.int32))
    _add(clock + _T_SKIPPED, (counts & (inv == 0.0)).to(tl.int32))
    _add(clock + _T_MISTAKES, (counts & (loss >= 1.0)).to(tl.int32))
    _add(clock + _T_VIOLATIONS, (counts & (loss > 0.0)).to(tl.int32))
    _add(clock + _T_LOSS, hinge)
    tl.store(diverged, tl.where(end < tl.minimum(n, B), 1, before))


@triton.jit
def _add(place, numbers):
    tl.store(place, tl.load(place) + tl.sum(numbers))


class CudaBlocks:
    """Learns from tuples of items on a CUDA device, block after block; see `tensors.TorchBlocks`.

    Parameters
    ----------
    step : `steps.Step`
    m, acc : tensors, the matrix and the average's sum, which has no columns where there is none
    left, right : tensors of items
    block_size : int, a multiple of `TILE`
    tf32 : bool
        Whether products may use TF32.
    n_columns : int
        2 for pairs, 3 for triplets.
    """

    def __init__(
        self,
        step: Any,
        m: Any,
        acc: Any,
        left: Any,
        right: Any,
        block_size: int,
        tf32: bool,
        n_columns: int,
    ) -> None:
        self._m, self._acc, self._left, self._right = m, acc, left, right
        self._step, self._tf32, self._size = step, tf32, block_size
        integer = {"dtype": torch.int64, "device": m.device}
        double = {"dtype": torch.float64, "device": m.device}
        self._index = _Staged((CHUNK, n_columns), torch.int64, m.device)
        self._sign = _Staged((CHUNK,), m.dtype, m.device)
        self._position, self._count = torch.zeros((), **integer), torch.zeros((), **integer)
        self._clock = torch.zeros(CLOCK_SIZE, **double)
        self._diverged = torch.zeros((), dtype=torch.int32, device=m.device)
        soft = step.bias + (0.5 / step.C if step.rule in (PA_II, PALS) else 0.0)
        largest = torch.finfo(m.dtype).max
        numbers = [step.eta, step.C, step.tolerance, step.bias, soft, largest]
        self._numbers = torch.tensor(numbers, **double)
        self._blocks = [_Block(m, block_size) for _ in range(2)]
        self._aside = torch.cuda.Stream(m.device)
        self._graph = self._captured()

    def learn(self, index: np.ndarray, sign: np.ndarray, clock: np.ndarray) -> int:
        """Learn from at most `CHUNK` tuples of row numbers, in order; return how many were learnt."""
        n, before = len(index), clock[ROUNDS]
        with torch.cuda.device(self._m.device):
            self._index.fill(index)
            self._sign.fill(sign)
            self._clock.copy_(torch.from_numpy(clock))
            self._diverged.zero_()
            self._begin(n)
            for _ in range(0, n, 2 * self._size):
                self._graph.replay()
            clock[...] = self._clock.cpu().numpy()
        return int(clock[ROUNDS] - before)

    def _begin(self, n: int) -> None:
        self._position.zero_()
        self._count.fill_(n)
        self._prepare(self._blocks[0])

    def _captured(self) -> Any:
        """Two blocks as one graph; nothing is learnt yet, since the blocks are empty."""
        with torch.cuda.device(self._m.device), products(self._tf32):
            self._begin(0)
            self._learn_two()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device, but no graph may be freed meanwhile.
            with _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._learn_two()
        return graph

    def _learn_two(self) -> None:
        main = torch.cuda.current_stream()
        for here, after in (self._blocks, self._blocks[::-1]):
            ops = _Ops(self, here, after)
            where = self._m, self._acc, here.x, here.z, here.sign, self._clock
            alone(learn_block(ops, self._step, *where))
            main.wait_stream(self._aside)

    def _prepare(self, block: _Block) -> None:
        """Gather the rows of the next block, and work out what does not depend on M."""
        dx, dz = self._m.shape
        _gather[(self._size,)](
            self._left, self._right, self._index.there, self._sign.there, self._position, self._count,
            block.x, block.z, block.inverse, block.sign, block.n_here, self._numbers, dx, dz,
            PAIRS=self._index.there.shape[1] == 2, W=_width(max(dx, dz)),
        )  # fmt: skip
        self._position.add_(self._size)
        if self._m.dtype == torch.float64:
            torch.mul(block.x @ block.x.T, block.z @ block.z.T, out=block.gram)
            block.gram.addr_(block.sign, block.sign, alpha=self._step.bias)
            return
        n_tiles = self._size // TILE
        precision = "tf32" if self._tf32 else "tf32x3"
        _gram[(n_tiles * (n_tiles + 1) // 2,)](
            block.x, block.z, block.sign, block.gram, self._numbers, dx, dz,
            PRECISION=precision, B=self._size, T=TILE, num_warps=2, num_stages=4,
        )  # fmt: skip


class _Staged:
    """An array on the device that the host fills through memory that the device reads by itself."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        self.there = torch.zeros(shape, dtype=dtype, device=device)
        self._here = torch.zeros(shape, dtype=dtype, pin_memory=True)

    def fill(self, values: np.ndarray) -> None:
        """Copy values to its beginning; what was copied before must have been used."""
        n = len(values)
        self._here.numpy()[:n] = values
        self.there[:n].copy_(self._here[:n], non_blocking=True)


class _Block:
    """The rows of a block, what does not depend on M, and room for what does."""

    def __init__(self, m: Any, size: int) -> None:
        (dx, dz), like = m.shape, {"dtype": m.dtype, "device": m.device}
        self.x, self.z = torch.zeros((size, dx), **like), torch.zeros((size, dz), **like)
        self.gram = torch.zeros((size, size), **like)
        self.inverse, self.sign = torch.zeros((2, size), **like)
        self.n_here = torch.zeros((), dtype=torch.int64, device=m.device)
        self.product, self.scaled = torch.zeros((size, dz), **like), torch.zeros((size, dx), **like)
        self.value, self.coefficient, self.weighted = torch.zeros((3, size), **like)


class _Ops(TorchOps):
    """The operations of `blocked.learn_block` on one block; with the first of them the next is prepared."""

    def __init__(self, blocks: CudaBlocks, here: _Block, after: _Block) -> None:
        self._blocks, self._here, self._after = blocks, here, after

    def margins(self, x: Any, m: Any, z: Any) -> Any:
        """x_t' M z_t for the rows of x and z."""
        here, blocks = self._here, self._blocks
        blocks._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(blocks._aside):
            blocks._prepare(self._after)
        torch.mm(x, m, out=here.product)
        _row_sums[(len(x),)](here.product, z, here.value, z.shape[1], W=_width(z.shape[1]))
        return here.value

    def grams_if_many(self, step: Any, value: Any, sign: Any, clock: Any, x: Any, z: Any) -> Any:
        """The product of both Gram matrices, which was prepared."""
        return self._here.gram

    def recursion(
        self,
        step: Any,
        value: Any,
        sign: Any,
        coins: Any,
        directed: Any,
        x: Any,
        z: Any,
        grams: Any,
        clock: Any,
    ) -> tuple[Any, Any, int]:
        """Steps of the tuples and the same weighted for the average; the clock knows how many were learnt."""
        here, blocks = self._here, self._blocks
        whole = triton.next_power_of_2(len(x))
        _recursion[(1,)](
            value, grams, here.inverse, sign, here.n_here, here.coefficient, here.weighted, clock,
            blocks._diverged, blocks._numbers, step.average_from, RULE=step.rule,
            DECAY=bool(step.decay), TOLERANT=step.tolerance > 0, BIASED=step.bias != 0,
            B=len(x), WHOLE=whole, T=TILE, J=min(_EARLIER, whole), num_warps=_WARPS,
        )  # fmt: skip
        return here.coefficient, here.weighted, len(x)

    def update(self, m: Any, acc: Any, x: Any, z: Any, coefficient: Any, weighted: Any) -> None:
        """Add the steps c_t x_t z_t' to M, and weighted ones to the average's sum if it has columns."""
        scaled = self._here.scaled
        torch.mul(x, coefficient[:, None], out=scaled)
        m.addmm_(scaled.T, z)
        if acc.shape[1]:
            torch.mul(x, weighted[:, None], out=scaled)
            acc.addmm_(scaled.T, z)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the collector of garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _width(d: int) -> int:
    return min(_WIDEST, triton.next_power_of_2(d))
