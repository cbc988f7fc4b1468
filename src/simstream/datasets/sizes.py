"""How large a data set is, and whether that is what the table says."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from .facts import Facts

#: What the table and every index say of a data set.
COUNTS = ("rows", "features", "classes")


def sizes_of(items: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """Counts, under the names they have in an index.json."""
    counts = [] if labels is None else np.bincount(labels).tolist()
    sizes = {"rows": items.shape[0], "features": items.shape[1], "classes": len(counts)}
    stored = {"nnz": int(items.nnz)} if sparse.issparse(items) else {}
    return sizes | stored | {"class_counts": counts}


def differences(facts: Facts | None, items: Any, labels: np.ndarray | None) -> str:
    """How the data differ from the table's, whose 0 means "not stated"; empty if they do not."""
    if facts is None:
        return ""
    sizes = sizes_of(items, labels)
    return ", ".join(
        f"{sizes[key]} {key} instead of {getattr(facts, key)}"
        for key in COUNTS
        if getattr(facts, key) and getattr(facts, key) != sizes[key]
    )
