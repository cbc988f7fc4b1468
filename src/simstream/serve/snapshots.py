"""Saved states, and learning the log again: to verify them, or to try another learner."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .. import ModelFileError, load, read_header
from ..persistence import read_file
from .events import can_start_from
from .evidence import Publishing
from .log import Log, LogError, lock_folder, open_log
from .state import ItemStore, Learning, State, Tally

logger = logging.getLogger("simstream.serve")

_NAME = re.compile(r"model-(\d{12})\.safetensors")


class Snapshots:
    """Saved states, so that a restart need not read the whole log.

    The log alone is enough: a file that is damaged or was made with other settings is refused, and an older
    one or the log is used.
    """

    def __init__(
        self, folder: Path, learning: Learning, publishing: Publishing, *, is_mine: bool = True
    ) -> None:
        self._folder, self._learning, self._publishing = folder, learning, publishing
        #: Whether files may be written, renamed and deleted: not those of a service that is followed.
        self.is_mine = is_mine
        bound: dict[str, Any] = learning.as_json()
        if publishing.promote != "always":  # else nothing but what was learnt is saved
            bound["publishing"] = publishing.as_json()
        settings = json.dumps(bound, sort_keys=True)
        #: Of the settings that files are bound to.
        self.digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        if is_mine:
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(
                PermissionError
            ):  # another user's, who decides who may read it
                folder.chmod(0o700)  # earlier services made it for all to read
        #: Files refused so far.
        self.n_refused = 0

    def path(self, position: int) -> Path:
        """The file of a position."""
        return self._folder / f"model-{position:012d}.safetensors"

    def positions(self) -> list[int]:
        """Positions that have a file, ascending."""
        return list(snapshot_positions(self._folder))

    def save(self, state: State, log: Log) -> None:
        """Write a snapshot atomically."""
        extra = {
            "position": state.position,
            "log": log.hash_at(state.position),
            "learning": self.digest,
            "tally": asdict(state.tally),
        }
        if state.evidence is not None:
            extra["evidence"] = state.evidence.state()
            extra["has_reference"] = state.reference is not None
            if (
                state.reference is not None
            ):  # first: a snapshot is complete once its own file is there
                where = self._reference_path(state.position)
                state.reference.save(where, extra={"position": state.position})
        state.learner.save(self.path(state.position), extra=extra)

    def load(self, items: ItemStore, log: Log, position: int) -> State | None:
        """The state of a position; a file that cannot be trusted is renamed and gives None."""
        path = self.path(position)
        try:
            learner = load(path)  # verifies the checksum of header and arrays
            extra = read_header(path)["extra"]
            if extra["position"] != position or extra["learning"] != self.digest:
                raise ModelFileError(f"{path}: made at another position or with other settings")
            if not is_of(log, extra.get("log"), position):
                raise ModelFileError(f"{path}: made from another log, or from events that are gone")
            evidence, reference = self._publishing.new_evidence(), None
            if evidence is not None:
                evidence.restore(extra["evidence"])
                reference = self._load_reference(position) if extra["has_reference"] else None
            tally = Tally(**extra["tally"])
            what = self._learning, items, log, learner, tally, position, evidence, reference
            return State(*what)
        except (OSError, ModelFileError, KeyError, TypeError, ValueError) as error:
            self._refuse(position, error)
            return None

    def _refuse(self, position: int, reason: object) -> None:
        """Put a file aside that cannot be trusted."""
        self.n_refused += 1
        logger.warning("snapshot at position %d refused: %s", position, reason)
        path = self.path(position)
        if self.is_mine and path.exists():
            path.replace(path.with_suffix(".bad"))

    def refuse_after(self, last: int) -> None:
        """Put files aside that were made from events which the log does not have."""
        for position in self.positions():
            if position > last:
                self._refuse(position, f"the log ends at position {last}: events were lost")

    def _load_reference(self, position: int) -> Any:
        path = self._reference_path(position)
        reference = load(path)
        if read_header(path)["extra"]["position"] != position:
            raise ModelFileError(f"{path}: made at another position")
        return reference

    def _reference_path(self, position: int) -> Path:
        """The file of what events are measured by."""
        return self._folder / f"reference-{position:012d}.safetensors"

    def resume(self, items: ItemStore, log: Log, position: int) -> State | None:
        """The state after a position, continued from the newest usable snapshot; None without one."""
        controls = log.controls(position)
        for start in reversed(self.positions()):
            if can_start_from(controls, start, position):
                saved = self.load(items, log, start)
                if saved is not None:
                    return saved.read_on(position)
        return None

    def thin_out(self, keep: set[int]) -> None:
        """Delete files, never those to `keep`; their number grows with the logarithm of the log's length."""
        positions = self.positions()
        self._remove(set(positions) - to_keep(positions) - keep)

    def remove_all(self) -> None:
        """Delete all files."""
        self._remove(self.positions())

    def _remove(self, positions: Iterable[int]) -> None:
        for position in positions:
            self.path(position).unlink(missing_ok=True)
            self._reference_path(position).unlink(missing_ok=True)


def snapshot_positions(folder: Path) -> dict[int, Path]:
    """The snapshots of a folder by position, ascending."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = ((_NAME.fullmatch(path.name), path) for path in paths)
    return {int(match[1]): path for match, path in found if match}


def to_keep(positions: list[int]) -> set[int]:
    """The newest three positions, the first, and the fewer of those between the older they are.

    One is dropped if its neighbours are no further apart than the newer of them is from the end. So going
    back by n events never takes learning more than about n events again, however often this was applied.

    Examples
    --------
    >>> sorted(to_keep(list(range(0, 10_000, 1000))))
    [0, 4000, 6000, 7000, 8000, 9000]
    """
    newest = positions[-1] if positions else 0
    kept = positions[:1]
    for position, after in pairwise(positions[1:-2]):
        if after - kept[-1] > newest - after:
            kept.append(position)
    return {*kept, *positions[-3:]}


def is_of(log: Log, link: str | None, position: int) -> bool:
    """Whether a hash is that of the log at a position; None is right before the log had hashes."""
    if not log.has_digests:
        return link is None and position <= log.last
    if link is None:
        return position <= (log.setting("upgraded_at") or 0)
    return log.last >= position and log.hash_at(position) == link


# -- learning the log again -------------------------------------------------------------------

Choice = Callable[[Learning], Learning]
Publish = Callable[[Publishing], Publishing]


def _as_before(published: Publishing) -> Publishing:
    return published


def compare(
    folder: Path, choose: Choice, until: int | None = None, publish: Publish = _as_before
) -> tuple[dict[str, Any], Any]:
    """Replay a log with its own learner and with a chosen one; return a report and the chosen learner.

    Parameters
    ----------
    folder : of a service
    choose : takes how the log was learnt, returns how to learn it now
    until : position to stop at; None is the end
    publish : takes what was published, returns what to publish now
    """
    one_thread = threadpool_limits(
        1, user_api="blas"
    )  # as in a service: blocks depend on it, in last bits
    with one_thread, contextlib.closing(open_log(folder)) as log:
        kept, n_features, published = _stored_settings(log)
        position = log.last if until is None else min(until, log.last)
        items = ItemStore(log, n_features)
        items.catch_up(position)
        chosen, publishing = choose(kept), publish(published)
        first = second = _replayed(kept, published, items, log, position)
        if chosen != kept or publishing != published:
            second = _replayed(chosen, publishing, items, log, position)
        models = {
            _name(kept, "kept"): _described(first),
            _name(chosen, "rebuilt"): _described(second),
        }
        snapshots = Snapshots(folder / "snapshots", kept, published, is_mine=False)
        saved = snapshots.resume(items, log, position)
        identical = None
        if saved is not None:
            identical = (
                saved.tally == first.tally
                and _evidence_of(saved) == _evidence_of(first)
                and same_bits(saved.learner, first.learner)
                and (first.reference is None or same_bits(saved.reference, first.reference))
            )
        return {"position": position, "models": models, "identical": identical}, second.learner


def adopt_learning(folder: Path, choose: Choice, publish: Publish = _as_before) -> None:
    """Bind a log that no service uses to another way of learning or of publishing.

    Its old snapshots are of no use then and are deleted: the log is learnt again, and the evidence measured
    from its beginning.
    """
    with lock_folder(folder), contextlib.closing(open_log(folder, is_owner=True)) as log:
        kept, n_features, published = _stored_settings(log)
        chosen, publishing = choose(kept), publish(published)
        chosen.new_learner()  # raises if that is impossible
        settings = {"learning": chosen.as_json(), "n_features": n_features}
        log.set_setting("service", settings | {"publishing": publishing.as_json()})
        old, new = (
            Snapshots(folder / "snapshots", *how)
            for how in ((kept, published), (chosen, publishing))
        )
        if new.digest != old.digest:
            old.remove_all()


def _replayed(
    learning: Learning, publishing: Publishing, items: ItemStore, log: Log, position: int
) -> State:
    return State(learning, items, log, evidence=publishing.new_evidence()).read_on(position)


def _evidence_of(state: State) -> Any:
    return None if state.evidence is None else state.evidence.state()


def same_bits(first: Any, second: Any) -> bool:
    """Whether two learners or similarities hold the same numbers: what they save is equal, bit for bit."""
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


def _stored_settings(log: Log) -> tuple[Learning, int | None, Publishing]:
    settings = log.setting("service")
    if settings is None:
        raise LogError(f"{log.name}: expected the log of a service, got an empty one")
    learning = Learning(**settings["learning"])
    return learning, settings["n_features"], Publishing.stored_in(settings)


def _name(learning: Learning, role: str) -> str:
    params = "".join(f" {name}={value}" for name, value in learning.params.items())
    return f"{role}: {learning.algorithm.lower()}{params}"


def _described(state: State) -> dict[str, float | None]:
    learner, accuracy = state.learner, state.tally.accuracy()
    entries = None
    if learner is not None:
        rows, columns = learner.shape_
        entries = float(round((1.0 - learner.sparsity_) * rows * columns))
    return {
        "triplets": float(state.tally.triplets),
        "average loss": None if learner is None else learner.average_loss_,
        "mistake rate": None if learner is None else learner.mistake_rate_,
        "accuracy (random questions)": accuracy["learnt"]["accuracy"],
        "baseline accuracy": accuracy["baseline"]["accuracy"],
        "entries of M": entries,
        "trust": state.trust,
    }
