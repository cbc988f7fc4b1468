"""States of engines by columns: cut out of a whole one, and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import State


def _has_columns(kind: str, name: str) -> bool:
    """Whether an array of an engine's state has a column for each column of the matrix."""
    if kind == "dense":
        return name in ("u", "aux", "acc")
    return name in ("shared", "z") or name.startswith("full.")


def cut_state(kind: str, state: State, columns: slice) -> State:
    """The state of an engine of some of the columns."""
    scalars, arrays = dict(state[0]), dict(state[1])
    for name, array in arrays.items():
        if _has_columns(kind, name) and array.shape[1]:
            arrays[name] = np.ascontiguousarray(array[:, columns])
    return _with_width(scalars, len(range(*columns.indices(_width(kind, state))))), arrays


def joined_state(kind: str, states: list[State]) -> State:
    """The state of an engine of all columns, from those of engines of some, in order."""
    scalars, arrays = dict(states[0][0]), dict(states[0][1])
    for name in arrays:
        if _has_columns(kind, name):
            arrays[name] = np.concatenate([some[name] for _, some in states], axis=1)
    return _with_width(scalars, sum(_width(kind, state) for state in states)), arrays


def _width(kind: str, state: State) -> int:
    return int(state[1]["u" if kind == "dense" else "shared"].shape[1])


def _with_width(scalars: dict[str, Any], width: int) -> dict[str, Any]:
    if "shape" in scalars:
        scalars["shape"] = [scalars["shape"][0], width]
    return scalars
