"""Folding a log again: to check the model, or to see what another learner would have made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .errors import LogError
from .events import CONTROL_KINDS
from .exclusions import can_start_from
from .fold import Fold
from .folder_lock import FolderLock
from .items import ItemStore
from .log import Log
from .settings import Learning
from .snapshots import Snapshots

Choice = Callable[[Learning], Learning]


def compare(folder: Path, choose: Choice, until: int | None = None) -> tuple[dict[str, Any], Any]:
    """Fold the log as it was learnt and as it might have been; return a report and the second learner.

    Parameters
    ----------
    folder : of a service
    choose : from how it was learnt to how it is to be learnt now
    until : position; None is the end
    """
    log = Log(folder / "log.sqlite")
    try:
        kept, n_features = _kept(log)
        position = log.last if until is None else min(until, log.last)
        items = ItemStore(log, n_features)
        items.catch_up(position)
        chosen = choose(kept)
        first = fold_whole(log, items, kept, position)
        second = first if chosen == kept else fold_whole(log, items, chosen, position)
        report = {
            "position": position,
            "models": {_name(kept, "kept"): _told(first), _name(chosen, "rebuilt"): _told(second)},
            "identical": _equals_snapshot(folder, log, kept, first),
        }
        return report, second.learner
    finally:
        log.close()


def fold_whole(log: Log, items: ItemStore, learning: Learning, until: int) -> Fold:
    """The state after a position, folded from the first event on without any snapshot."""
    controls = list(log.read(0, until, kinds=CONTROL_KINDS))
    return Fold(learning, items, log).read_on(controls, until)


def adopt_learning(folder: Path, choose: Choice) -> None:
    """Bind a log to another way of learning. Snapshots of the old way are refused from then on.

    Raises
    ------
    LogError
        If a service uses the folder. Nothing was changed.
    """
    with FolderLock(folder), contextlib.closing(Log(folder / "log.sqlite")) as log:
        kept, n_features = _kept(log)
        chosen = choose(kept)
        chosen.new_learner()
        log.set_setting("service", {"learning": chosen.as_json(), "n_features": n_features})


def same_bits(first: Any, second: Any) -> bool:
    """Whether two learners hold the very same numbers."""
    (header, arrays), (other_header, other_arrays) = first._get_state(), second._get_state()
    return (
        header == other_header
        and arrays.keys() == other_arrays.keys()
        and all(np.array_equal(arrays[name], other_arrays[name]) for name in arrays)
    )


def _kept(log: Log) -> tuple[Learning, int | None]:
    settings = log.setting("service")
    if settings is None:
        raise LogError(f"{log.path}: expected the log of a service, got an empty one")
    return Learning(**settings["learning"]), settings["n_features"]


def _equals_snapshot(folder: Path, log: Log, learning: Learning, fold: Fold) -> bool | None:
    """Whether the newest snapshot, folded on to the same position, is the very same; None without one."""
    snapshots = Snapshots(folder / "snapshots", learning)
    controls = list(log.read(0, fold.position, kinds=CONTROL_KINDS))
    for position in reversed(snapshots.positions()):
        if not can_start_from(controls, position, fold.position):
            continue
        found = snapshots.load(position)
        if found is None:
            continue
        rest = Fold(learning, fold.items, log, found.learner, found.tally, position)
        rest.read_on(controls, fold.position)
        return rest.tally == fold.tally and same_bits(rest.learner, fold.learner)
    return None


def _name(learning: Learning, role: str) -> str:
    params = "".join(f" {name}={value}" for name, value in learning.params.items())
    return f"{role}: {learning.algorithm.lower()}{params}"


def _told(fold: Fold) -> dict[str, float | None]:
    learner, accuracy = fold.learner, fold.tally.accuracy()
    matrix = None if learner is None else learner.get_bilinear_matrix()
    entries = None
    if matrix is not None:
        entries = float(matrix.nnz if sp.issparse(matrix) else np.count_nonzero(matrix))
    return {
        "triplets": float(fold.tally.triplets),
        "average loss": None if learner is None else learner.average_loss_,
        "mistake rate": None if learner is None else learner.mistake_rate_,
        "accuracy (random questions)": accuracy["learnt"]["accuracy"],
        "baseline accuracy": accuracy["baseline"]["accuracy"],
        "entries of M": entries,
    }
