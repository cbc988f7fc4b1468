"""How long queries take with a learnt M, sparse or dense.

Learns as the protocol `retrieval` does, then scores so many queries (test items, repeated) against the pool
of test items. M is used in the form that suits it: CSR if more than half of it is zero, else dense. Settings:
those of `retrieval`, and ``n_queries``, a list of numbers of queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from simstream import metrics

from ..clock import working_seconds
from ..plan import Cell
from .common import digest, make, teach, triplet_stream
from .retrieval import parts
from .retrieval import tune as tune

_AT_A_TIME = 1000


def run(cell: Cell) -> dict[str, Any]:
    """Train, then time the scoring of 1000 queries at a time."""
    train, test = parts(cell, cell.seed)
    triplets = triplet_stream(train.labels, cell.settings["n_triplets"], cell.seed)
    model = make(cell)
    seconds = teach(model, train, triplets)
    matrix = model.get_bilinear_matrix()
    zeros = metrics.sparsity(matrix)
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    forms = {"dense M": dense}
    if zeros > 0.5:
        forms["sparse M"] = sp.csr_matrix(matrix)
    rng = np.random.default_rng(cell.seed)
    curves: dict[str, Any] = {}
    for name, form in forms.items():
        curve = curves[f"query seconds, {name}"] = {"x": [], "y": []}
        for n in cell.settings["n_queries"]:
            rows = rng.integers(len(test.labels), size=n)
            begin = working_seconds()
            for start in range(0, n, _AT_A_TIME):
                queries = test.items[rows[start : start + _AT_A_TIME]]
                transformed = queries @ form
                transformed @ test.items.T
            curve["x"].append(n)
            curve["y"].append(working_seconds() - begin)
    best = "query seconds, " + ("sparse M" if "sparse M" in forms else "dense M")
    return {
        "measures": {"sparsity": zeros, "query seconds": curves[best]["y"][-1], "seconds": seconds},
        "curves": curves | {"query seconds": curves[best]},
        "parameters": cell.parameters,
        "seconds": seconds,
        "stream": digest(triplets),
    }
