"""Sizes of a data set, as papers list them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..records import Cell
from .common import ProtocolSettings, dataset, record


class DescribeSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `describe`."""


def run(cell: Cell, settings: DescribeSettings) -> dict[str, Any]:
    """Items, features, classes, the share of zeros among the values, and how many training pairs a run has.

    That is 40 c (c - 1) for c classes, but not more than there are among half of the items.
    """
    data = dataset(cell.data)
    n, d = data.items.shape
    c = len(np.unique(data.labels))
    n_train = n // 2
    n_nonzero = (
        data.items.count_nonzero() if sparse.issparse(data.items) else np.count_nonzero(data.items)
    )
    measures = {
        "items": float(n),
        "features": float(d),
        "classes": float(c),
        "zeros": 1 - float(n_nonzero) / (n * d),
        "pairs": float(min(40 * c * (c - 1), n_train * (n_train - 1) // 2)),
    }
    return record(cell, measures, {}, None)
