"""Computing the model from the log again: to verify it, or to see what another learner would have learnt."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..persistence import read_file
from .items import ItemStore
from .log import Log, LogError, lock_folder
from .settings import Learning
from .state import Snapshots, State

Choice = Callable[[Learning], Learning]


def compare(folder: Path, choose: Choice, until: int | None = None) -> tuple[dict[str, Any], Any]:
    """Replay a log with its own learner and with a chosen one; return a report and the chosen learner.

    Parameters
    ----------
    folder : of a service
    choose : takes how the log was learnt, returns how to learn it now
    until : position to stop at; None is the end
    """
    with contextlib.closing(Log(folder / "log.sqlite")) as log:
        kept, n_features = _stored_settings(log)
        position = log.last if until is None else min(until, log.last)
        items = ItemStore(log, n_features)
        items.catch_up(position)
        chosen = choose(kept)
        first = State(kept, items, log).read_on(position)
        second = first if chosen == kept else State(chosen, items, log).read_on(position)
        models = {
            _name(kept, "kept"): _described(first),
            _name(chosen, "rebuilt"): _described(second),
        }
        saved = Snapshots(folder / "snapshots", kept).resume(items, log, position)
        identical = None
        if saved is not None:
            identical = saved.tally == first.tally and same_bits(saved.learner, first.learner)
        return {"position": position, "models": models, "identical": identical}, second.learner


def adopt_learning(folder: Path, choose: Choice) -> None:
    """Bind a log to another way of learning. Its old snapshots are refused from then on.

    Raises
    ------
    LogError
        If a service uses the folder. Nothing was changed.
    """
    with lock_folder(folder), contextlib.closing(Log(folder / "log.sqlite")) as log:
        kept, n_features = _stored_settings(log)
        chosen = choose(kept)
        chosen.new_learner()  # raises if that is impossible
        log.set_setting("service", {"learning": chosen.as_json(), "n_features": n_features})


def same_bits(first: Any, second: Any) -> bool:
    """Whether two learners hold exactly the same numbers: what they save is equal, bit for bit."""
    saved = []
    with tempfile.TemporaryDirectory() as folder:
        for learner in (first, second):
            path = Path(folder) / "model.safetensors"
            learner.save(path)
            saved.append(read_file(path))
    (header, arrays), (other_header, other_arrays) = saved
    return (
        header == other_header
        and arrays.keys() == other_arrays.keys()
        and all(np.array_equal(arrays[name], other_arrays[name]) for name in arrays)
    )


def _stored_settings(log: Log) -> tuple[Learning, int | None]:
    settings = log.setting("service")
    if settings is None:
        raise LogError(f"{log.path}: expected the log of a service, got an empty one")
    return Learning(**settings["learning"]), settings["n_features"]


def _name(learning: Learning, role: str) -> str:
    params = "".join(f" {name}={value}" for name, value in learning.params.items())
    return f"{role}: {learning.algorithm.lower()}{params}"


def _described(state: State) -> dict[str, float | None]:
    learner, accuracy = state.learner, state.tally.accuracy()
    matrix = None if learner is None else learner.get_bilinear_matrix()
    entries = None
    if matrix is not None:
        entries = float(matrix.nnz if sp.issparse(matrix) else np.count_nonzero(matrix))
    return {
        "triplets": float(state.tally.triplets),
        "average loss": None if learner is None else learner.average_loss_,
        "mistake rate": None if learner is None else learner.mistake_rate_,
        "accuracy (random questions)": accuracy["learnt"]["accuracy"],
        "baseline accuracy": accuracy["baseline"]["accuracy"],
        "entries of M": entries,
    }
