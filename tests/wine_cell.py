"""A small cell of an experiment, for tests of `simstream_repro` to change."""

from simstream_repro.records import Cell

WINE_CELL = Cell(
    study="test",
    protocol="retrieval",
    dataset="wine",
    data="wine",
    preprocessing="standardised",
    method="OASIS",
    learner="OASIS",
    parameters={"C": 0.1},
    grid={},
    seed=0,
    settings={"n_triplets": 400},
)
