"""Blocks of tuples on a CUDA device, without waiting for the host.

What `blocked.learn_block` asks for is a handful of launches: the product of the rows with M and its row sums,
one kernel for the recursion, one product of rank B. The recursion takes one warp of one multiprocessor. While
it runs, a second stream gathers the rows of the next block and works out their Gram matrices, which do not
depend on M. Two blocks are one CUDA graph that is replayed: launches cost more than many of the kernels.

The recursion: 32 tuples are one tile, a tuple a lane. First the tile takes over what earlier tiles change for
it. Then 32 times the step of one lane is broadcast by a shuffle, and changes the losses of the later lanes:
four operations and a shuffle for a tuple, all else is outside that chain.

Signs are multiplied into z: a tuple that belongs below the threshold is one with -z above its negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .blocked import UNKNOWN, alone, learn_block
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

#: Tuples of a tile of the recursion: the lanes of a warp.
TILE = 32

#: Largest block: the recursion's time grows with the square of it.
LARGEST_BLOCK = 2048

#: Earlier tuples that a tile takes over at a time: as many loads wait for memory together.
_EARLIER = 64

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
    tl.store(inverse + b, inv.to(x.dtype.element_ty))
    tl.store(sign + b, side)
    if b == 0:
        tl.store(n_here, n - at)


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
    B: tl.constexpr,
    T: tl.constexpr,
    J: tl.constexpr,
):
    """Steps of one-at-a-time processing: `blocked.rank_one_recursion`.

    A tuple whose numbers overflow sets `diverged`; neither it nor any later tuple changes anything.
    """
    kind = value.dtype.element_ty
    eta, bias = tl.load(numbers + _ETA), tl.load(numbers + _BIAS)
    C, tolerance = tl.load(numbers + _C).to(kind), tl.load(numbers + _TOLERANCE).to(kind)
    largest = tl.load(numbers + _LARGEST).to(kind)
    lane = tl.arange(0, T)
    earlier = tl.arange(0, J)
    n = tl.load(n_here)
    going = tl.where(tl.load(diverged) == 0, 1, 0)
    rounds = tl.load(clock + _T_ROUNDS)
    threshold = tl.load(clock + _T_THRESHOLD)
    seen = tl.zeros((T,), tl.float64)
    updates = tl.zeros((T,), tl.float64)
    skipped = tl.zeros((T,), tl.float64)
    mistakes = tl.zeros((T,), tl.float64)
    losses = tl.zeros((T,), tl.float64)
    violations = tl.zeros((T,), tl.float64)
    lowered = tl.zeros((T,), tl.float64)
    for k in range(0, B, T):
        mine = k + lane
        side = tl.load(sign + mine)
        inv = tl.load(inverse + mine)
        loss = 1.0 - tl.load(value + mine) + side * threshold.to(kind)
        rate = tl.zeros((T,), kind) + eta.to(kind)
        if DECAY:
            rate = (eta / tl.sqrt(rounds + mine.to(tl.float64) + 1.0)).to(kind)
        change = tl.zeros((J, T), kind)
        for j in range(0, k, J):
            rows = j + earlier
            c = tl.load(coefficient + rows, mask=rows < k, other=0.0)
            places = gram + rows[:, None] * B + mine[None, :]
            change += c[:, None] * tl.load(places, mask=(rows < k)[:, None], other=0.0)
        loss -= tl.sum(change, 0)
        for s in tl.static_range(T):
            row = tl.load(gram + (k + s) * B + mine)
            c = _length(loss, inv, rate, C, tolerance, RULE, TOLERANT)
            c = tl.gather(c, tl.full((T,), s, tl.int32), 0)
            loss = tl.where(lane > s, loss - c * row, loss)
        c = _length(loss, inv, rate, C, tolerance, RULE, TOLERANT)
        fits = (tl.abs(loss) < _T_HOPELESS) & (tl.abs(c) < largest) & (inv == inv)
        first = tl.min(tl.where(fits | (mine >= n), T, lane))
        counts = (going > 0) & (lane < first) & (mine < n)
        c = tl.where(counts, c, 0.0)
        going = tl.where(first == T, going, 0)
        tl.store(coefficient + mine, c)
        weight = tl.maximum(rounds + mine.to(tl.float64) + 2.0 - average_from, 0.0)
        tl.store(weighted + mine, (c.to(tl.float64) * weight).to(kind))
        loss = loss.to(tl.float64)
        seen += counts.to(tl.float64)
        updates += (c != 0.0).to(tl.float64)
        skipped += (counts & (inv == 0.0)).to(tl.float64)
        mistakes += (counts & (loss >= 1.0)).to(tl.float64)
        violations += (counts & (loss > 0.0)).to(tl.float64)
        losses += tl.where(counts, tl.maximum(loss, 0.0), 0.0)
        lowered += c.to(tl.float64) * side.to(tl.float64) * bias
        tl.debug_barrier()
    tl.store(clock + _T_ROUNDS, rounds + tl.sum(seen))
    tl.store(clock + _T_UPDATES, tl.load(clock + _T_UPDATES) + tl.sum(updates))
    tl.store(clock + _T_SKIPPED, tl.load(clock + _T_SKIPPED) + tl.sum(skipped))
    tl.store(clock + _T_MISTAKES, tl.load(clock + _T_MISTAKES) + tl.sum(mistakes))
    tl.store(clock + _T_VIOLATIONS, tl.load(clock + _T_VIOLATIONS) + tl.sum(violations))
    tl.store(clock + _T_LOSS, tl.load(clock + _T_LOSS) + tl.sum(losses))
    tl.store(clock + _T_THRESHOLD, threshold - tl.sum(lowered))
    tl.store(diverged, tl.where(going > 0, 0, 1))


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
        device, integers = m.device, {"dtype": torch.int64, "device": m.device}
        self._index = torch.zeros((CHUNK, n_columns), **integers)
        self._sign = torch.zeros(CHUNK, dtype=m.dtype, device=device)
        self._position, self._count = torch.zeros((), **integers), torch.zeros((), **integers)
        self._clock = torch.zeros(CLOCK_SIZE, dtype=torch.float64, device=device)
        self._diverged = torch.zeros((), dtype=torch.int32, device=device)
        soft = step.bias + (0.5 / step.C if step.rule in (PA_II, PALS) else 0.0)
        largest = torch.finfo(m.dtype).max
        numbers = [step.eta, step.C, step.tolerance, step.bias, soft, largest]
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=device)
        self._blocks = [_Block(self, block_size) for _ in range(2)]
        self._aside = torch.cuda.Stream(device)
        self._graph = self._captured()

    def learn(self, index: np.ndarray, sign: np.ndarray, clock: np.ndarray) -> int:
        """Learn from at most `CHUNK` tuples of row numbers, in order; return how many were learnt."""
        n, before = len(index), clock[ROUNDS]
        with torch.cuda.device(self._m.device), _products(self._tf32):
            self._index[:n].copy_(torch.from_numpy(np.ascontiguousarray(index)))
            self._sign[:n].copy_(torch.from_numpy(np.asarray(sign, np.float64)))
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
        with torch.cuda.device(self._m.device), _products(self._tf32):
            self._begin(0)
            self._learn_two()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._learn_two()
        return graph

    def _learn_two(self) -> None:
        for here, after in (self._blocks, self._blocks[::-1]):
            main = torch.cuda.current_stream()
            here.meanwhile = lambda after=after: self._prepare_aside(after)  # type: ignore[misc]
            alone(
                learn_block(
                    here, self._step, self._m, self._acc, here.x, here.z, here.sign, self._clock
                )
            )
            main.wait_stream(self._aside)

    def _prepare_aside(self, block: _Block) -> None:
        with torch.cuda.stream(self._aside):
            self._prepare(block)

    def _prepare(self, block: _Block) -> None:
        """Gather the rows of the next block, and work out what does not depend on M."""
        dx, dz = self._m.shape
        _gather[(self._size,)](
            self._left, self._right, self._index, self._sign, self._position, self._count,
            block.x, block.z, block.inverse, block.sign, block.n_here, self._numbers, dx, dz,
            PAIRS=self._index.shape[1] == 2, W=_width(max(dx, dz)),
        )  # fmt: skip
        self._position.add_(self._size)
        block.multiply_grams(self._step.bias)


class _Block:
    """The buffers of one block: the `ops` of `blocked.learn_block`."""

    #: What to launch beside the recursion.
    meanwhile: Callable[[], None]

    def __init__(self, of: CudaBlocks, size: int) -> None:
        (dx, dz), like = of._m.shape, {"dtype": of._m.dtype, "device": of._m.device}
        self._of, self._size = of, size
        # Side by side where they are equally wide: one call then works out both Gram matrices.
        self._both = torch.zeros((2, size, dx), **like) if dx == dz else None
        if self._both is not None:
            self.x, self.z = self._both
        else:
            self.x, self.z = torch.zeros((size, dx), **like), torch.zeros((size, dz), **like)
        self._grams = torch.zeros((2, size, size), **like)
        self._gram = torch.zeros((size, size), **like)
        self.inverse, self.sign = torch.zeros((2, size), **like)
        self.n_here = torch.zeros((), dtype=torch.int64, device=of._m.device)
        self._product, self._scaled = torch.zeros((size, dz), **like), torch.zeros_like(self.x)
        self._value, self._coefficient, self._weighted = torch.zeros((3, size), **like)

    def multiply_grams(self, bias: float) -> None:
        """Work out the product of both Gram matrices, entry by entry."""
        if self._both is not None:
            torch.bmm(self._both, self._both.transpose(1, 2), out=self._grams)
        else:
            torch.mm(self.x, self.x.T, out=self._grams[0])
            torch.mm(self.z, self.z.T, out=self._grams[1])
        torch.mul(self._grams[0], self._grams[1], out=self._gram)
        if bias:
            self._gram.addr_(self.sign, self.sign, alpha=bias)

    def margins(self, x: Any, m: Any, z: Any) -> Any:
        """x_t' M z_t for the rows of x and z."""
        torch.mm(x, m, out=self._product)
        _row_sums[(self._size,)](self._product, z, self._value, z.shape[1], W=_width(z.shape[1]))
        return self._value

    def is_directed(self, x: Any, z: Any) -> Any:
        """Nothing: `inverse` tells."""
        return UNKNOWN

    def grams_if_many(self, step: Any, value: Any, sign: Any, clock: Any, x: Any, z: Any) -> Any:
        """The product of both Gram matrices, which was prepared."""
        return self._gram

    def triangles(self, grams: Any) -> Any:
        """The product, as it is."""
        return grams

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
        of = self._of
        of._aside.wait_stream(torch.cuda.current_stream())
        _recursion[(1,)](
            value, grams, self.inverse, sign, self.n_here, self._coefficient, self._weighted, clock,
            of._diverged, of._numbers, step.average_from, RULE=step.rule, DECAY=bool(step.decay),
            TOLERANT=step.tolerance > 0, B=self._size, T=TILE, J=_EARLIER, num_warps=1,
        )  # fmt: skip
        self.meanwhile()
        return self._coefficient, self._weighted, self._size

    def update(self, m: Any, acc: Any, x: Any, z: Any, coefficient: Any, weighted: Any) -> None:
        """Add the steps c_t x_t z_t' to M, and weighted ones to the average's sum if it has columns."""
        torch.mul(x, coefficient[:, None], out=self._scaled)
        m.addmm_(self._scaled.T, z)
        if acc.shape[1]:
            torch.mul(x, weighted[:, None], out=self._scaled)
            acc.addmm_(self._scaled.T, z)


def _width(d: int) -> int:
    return min(_WIDEST, triton.next_power_of_2(d))


@contextmanager
def _products(tf32: bool) -> Iterator[None]:
    """Whether products of float32 may use TF32: a setting of the whole process, put back afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
