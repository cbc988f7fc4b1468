"""A dense matrix that is learnt on a device of torch, and is copied to the host when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._kernels.entrywise import DIVERGED, DONE, Dense
from .._kernels.steps import ON_MISTAKE, Step
from ..data.comparisons import Comparisons
from ..extras import MissingExtraError
from ..validation import Items, check_choice

#: Names of devices: the CPU with NumPy, the CPU with torch, a CUDA device, the best there is.
DEVICES = ("cpu", "torch", "cuda", "cuda:N", "auto")

#: Block sizes with torch on the CPU and on a CUDA device, where larger blocks cost more in the recursion and
#: less in the products.
_CPU_BLOCK, _CUDA_BLOCK = 64, 512

#: Blocks between two checks for Ctrl-C, with torch on the CPU.
_CPU_BLOCKS = 32


def check_device(device: Any, precision: Any) -> None:
    """Raise if these are not the name of a device and a precision of products; nothing is looked for."""
    is_cuda = isinstance(device, str) and device.partition(":")[0] == "cuda"
    number = device.partition(":")[2] if is_cuda else ""
    if not (is_cuda and (device == "cuda" or number.isdecimal())):
        check_choice("device", device, DEVICES)
    check_choice("precision", precision, ("float32", "tf32"))


def find_device(device: str, *, is_sparse: bool = False) -> Any:
    """The device of torch with this name, None for NumPy on the CPU; raises where there is none.

    Sparse items are always learnt from on the CPU.
    """
    if is_sparse and device not in ("cpu", "auto"):
        raise ValueError(f"device: expected 'cpu' or 'auto' for sparse items, got {device!r}")
    if is_sparse or device == "cpu":
        return None
    try:
        import torch
    except ImportError:
        if device == "auto":
            return None
        raise MissingExtraError(f"device={device!r}", "torch", "gpu") from None
    if device == "torch":
        return torch.device("cpu")
    if device == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else None
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found <= (torch.device(device).index or 0):
        raise RuntimeError(
            f"device: expected a CUDA device that torch can use, got {device!r}, and torch sees {found}; "
            "use 'cpu', or 'auto' to take a GPU only where there is one"
        )
    return torch.device(device)


def device_block_size(device: Any, wanted: int | None) -> int:
    """The block size on a device: as wanted, on a CUDA device rounded up to whole tiles, at most a chunk."""
    if device.type == "cpu":
        return wanted or _CPU_BLOCK
    from .._kernels.cuda import LARGEST_BLOCK, TILE

    return min(LARGEST_BLOCK, -(-(wanted or _CUDA_BLOCK) // TILE) * TILE)


class OnDevice:
    """The arrays of a dense engine on a device, and what is kept there to learn.

    Parameters
    ----------
    device : torch.device
    precision : "float32" or "tf32"
    arrays : `Dense`, copied to the device
    """

    def __init__(self, device: Any, precision: str, arrays: Dense) -> None:
        import torch

        self.device, self.precision = device, precision
        self.u, self.acc = (torch.tensor(a, device=device) for a in (arrays.u, arrays.acc))
        #: Whether the arrays on the host are behind.
        self.is_ahead = False
        self._items: list[tuple[Items, Any]] = []
        self._blocks: tuple[tuple[Any, ...], Any] | None = None

    def copy_to(self, arrays: Dense) -> None:
        """Bring the arrays on the host up to date."""
        if self.is_ahead:
            arrays.u[...] = self.u.cpu().numpy()
            arrays.acc[...] = self.acc.cpu().numpy()
            self.is_ahead = False

    def chunk(self, block_size: int) -> int:
        """How many tuples to learn in a call: a multiple of the block size."""
        if self.device.type == "cpu":
            return _CPU_BLOCKS * block_size
        from .._kernels.cuda import CHUNK

        return max(1, CHUNK // block_size) * block_size

    def learn(
        self, step: Step, tuples: Comparisons, block_size: int, clock: np.ndarray
    ) -> tuple[int, int]:
        """Learn from at most `chunk` tuples; return (what happened, how many were learnt)."""
        self.is_ahead = True
        blocks = self._blocks_for(step, tuples, block_size)
        learnt = blocks.learn(tuples.index, tuples.sign, clock)
        return (DONE if learnt == len(tuples) else DIVERGED), learnt

    def draws(self, tuples: Comparisons) -> tuple[Any, Any, Callable[[Any], Any]]:
        """The operations of `_kernels.blocked`, the matrix, which will change, and a function for rows."""
        from .._kernels.tensors import TorchOps, rows_of

        self.is_ahead = True
        left, right = self._both(tuples)
        return (
            TorchOps(),
            self.u,
            lambda some: rows_of(left, right, self._index(tuples.index[some])),
        )

    def squared_hinges(self, tuples: Comparisons, index: np.ndarray, matrix: np.ndarray) -> float:
        """Sum of the squared hinge losses of triplets by a matrix on the host."""
        import torch

        from .._kernels.tensors import squared_hinges

        there = torch.from_numpy(np.ascontiguousarray(matrix)).to(self.device)
        return squared_hinges(*self._both(tuples), self._index(index), there)

    def _index(self, index: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(index)).to(self.device)

    def _both(self, tuples: Comparisons) -> tuple[Any, Any]:
        """The items on both sides, on the device."""
        needed = (tuples.left, tuples.right)
        self._items = [(items, t) for items, t in self._items if any(items is n for n in needed)]
        return self._tensor(tuples.left), self._tensor(tuples.right)

    def _blocks_for(self, step: Step, tuples: Comparisons, block_size: int) -> Any:
        """What learns with this step from these items, kept for the next call."""
        assert step.rule != ON_MISTAKE, step
        left, right = self._both(tuples)
        n_columns = tuples.index.shape[1]
        # A few vectors of their own are not worth the graph of a GPU.
        is_small = tuples.of_vectors and len(tuples) < block_size
        key = step, block_size, n_columns, id(left), id(right), is_small
        if self._blocks is None or self._blocks[0] != key:
            where = step, self.u, self.acc, left, right
            if self.device.type == "cpu" or is_small:
                from .._kernels.tensors import TorchBlocks

                blocks: Any = TorchBlocks(*where, block_size)
            else:
                from .._kernels.cuda import CudaBlocks

                blocks = CudaBlocks(*where, block_size, self.precision == "tf32", n_columns)
            self._blocks = key, blocks
        return self._blocks[1]

    def _tensor(self, items: Items) -> Any:
        """The items on the device; those of the last call are kept there."""
        for known, tensor in self._items:
            if known is items:
                return tensor
        tensor = items.tensor(self.device)
        self._items.append((items, tensor))
        return tensor
