"""Protocols that measure times and losses: one small cell each."""

from dataclasses import replace

import numpy as np
import pytest

from simstream.repro.plan import Cell
from simstream.repro.protocols import online_loss, plain_numpy, query_time

CELL = Cell(
    study="test",
    protocol="",
    dataset="wine",
    data="wine",
    preprocessing="standardised+unit-norm",
    method="OASIS",
    learner="OASIS",
    parameters={"C": 0.1},
    grid={},
    seed=0,
    settings={"n_triplets": 400},
)


def test_query_time_uses_a_sparse_matrix_only_where_there_are_zeros():
    settings = CELL.settings | {"n_queries": [10, 20]}
    dense = query_time.run(replace(CELL, settings=settings))
    assert list(dense["curves"]) == ["query seconds, dense M", "query seconds"]
    assert dense["curves"]["query seconds"]["x"] == [10, 20]
    sors = replace(CELL, learner="SORS", parameters={"lam": 0.5, "eta": 0.1}, settings=settings)
    sparse = query_time.run(sors)
    assert sparse["measures"]["sparsity"] > 0.5
    assert "query seconds, sparse M" in sparse["curves"]


@pytest.mark.parametrize("learner", ["OASIS", "SDCA"])
def test_online_loss_is_a_mean_of_losses_so_far(learner):
    parameters = {"C": 0.1} if learner == "OASIS" else {"lam": 0.01, "random_state": 0}
    settings = CELL.settings | {"n_epochs": 2}
    found = online_loss.run(
        replace(CELL, learner=learner, parameters=parameters, settings=settings)
    )
    hinge, mistakes = (np.array(found["curves"][name]["y"]) for name in ("hinge", "mistake rate"))
    assert (hinge >= 0).all()
    assert ((mistakes >= 0) & (mistakes <= 1)).all()
    assert hinge[-1] < hinge[0]  # it learns


def test_plain_numpy_times_both():
    found = plain_numpy.run(replace(CELL, settings=CELL.settings | {"eager_steps": 20}))["measures"]
    assert found["seconds"] > 0
    assert found["speed-up"] == pytest.approx(found["eager seconds"] / found["seconds"])
