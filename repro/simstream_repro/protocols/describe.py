"""Sizes of a data set, as papers list them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..records import Cell
from .common import ProtocolSettings, dataset, n_training_pairs, record


class DescribeSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `describe`."""


def run(cell: Cell, settings: DescribeSettings) -> dict[str, Any]:
    """Items, features, classes, the share of zeros among the values, training pairs of half of the items."""
    data = dataset(cell.data)
    n, d = data.items.shape
    c = len(np.unique(data.labels))
    n_nonzero = (
        data.items.count_nonzero() if sparse.issparse(data.items) else np.count_nonzero(data.items)
    )
    measures = {
        "items": float(n),
        "features": float(d),
        "classes": float(c),
        "zeros": 1 - float(n_nonzero) / (n * d),
        "pairs": float(n_training_pairs(n // 2, c)),
    }
    return record(cell, measures, {}, None)
