"""What a service does before it is ready, so that the first request does not wait for it."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import DivergedError
from ..search import ExactIndex
from .settings import Settings
from .version import model_of


def warm_up(settings: Settings) -> None:
    """Compile what learning and searching need, so that the first request does not wait for it."""
    rows: Any = np.eye(3, 4, dtype=np.float32)
    if settings.n_features is not None:
        rows = sp.csr_matrix(rows)
    learner = settings.learning.new_learner().set_params(preprocessor=rows)
    with contextlib.suppress(DivergedError):
        for _ in range(2):
            learner.partial_fit(np.array([[0, 1, 2]]))
    index = ExactIndex()
    index.add([1, 2, 3], rows)
    model = model_of(0, learner, settings.learning.has_tasks)
    index.search(model.transform(rows[:1]), 2)
