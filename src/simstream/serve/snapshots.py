"""Snapshots: models with their log position, so that a restart does not begin at the beginning.

They are a convenience: the log alone is enough. A file that is damaged, or was made with other settings, is
refused and an older one or the log is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

from .. import ModelFileError, load, read_header
from .settings import Learning
from .tally import Tally

logger = logging.getLogger("simstream.serve")

_NAME = re.compile(r"model-(\d{12})\.safetensors")


class Snapshot(NamedTuple):
    """A state that can be gone on from."""

    position: int
    learner: Any
    tally: Tally


class Snapshots:
    """The snapshots of a service in a folder.

    Parameters
    ----------
    folder : made if there is none
    learning : what they must have been made with
    """

    def __init__(self, folder: Path, learning: Learning) -> None:
        self._folder = folder
        self._digest = learning_digest(learning)
        folder.mkdir(parents=True, exist_ok=True)
        #: Files refused so far.
        self.n_refused = 0

    def path(self, position: int) -> Path:
        """File of a position."""
        return self._folder / f"model-{position:012d}.safetensors"

    def positions(self) -> list[int]:
        """Positions there are files of, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def save(self, position: int, learner: Any, tally: Tally) -> None:
        """Write a snapshot, whole or not at all."""
        extra = {"position": position, "learning": self._digest, "tally": tally.as_json()}
        learner.save(self.path(position), extra=extra)

    def load(self, position: int) -> Snapshot | None:
        """Read a snapshot; None, and the file is put aside, if it cannot be trusted."""
        path = self.path(position)
        try:
            learner = load(path)  # checks the sum over header and arrays
            extra = read_header(path)["extra"]
            if extra["position"] != position or extra["learning"] != self._digest:
                raise ModelFileError(f"{path}: made at another position or with other settings")
            return Snapshot(position, learner, Tally(**extra["tally"]))
        except (OSError, ModelFileError, KeyError, TypeError) as error:
            self.n_refused += 1
            logger.warning("snapshot at position %d refused: %s", position, error)
            if path.exists():
                path.replace(path.with_suffix(".bad"))
            return None

    def thin_out(self, keep: set[int]) -> None:
        """Remove files so that their number grows with the logarithm of the log's length.

        Parameters
        ----------
        keep : positions that stay whatever happens
        """
        positions = self.positions()
        wanted = to_keep(positions) | keep
        for position in positions:
            if position not in wanted:
                self.path(position).unlink(missing_ok=True)


def to_keep(positions: list[int]) -> set[int]:
    """The newest three, and of the older ones fewer the older they are.

    Examples
    --------
    >>> sorted(to_keep(list(range(0, 10_000, 1000))))
    [0, 3000, 6000, 7000, 8000, 9000]
    """
    kept = set(positions[-3:])
    newest = positions[-1] if positions else 0
    last_age = None
    for position in reversed(positions[:-3]):
        age = newest - position
        if last_age is None or age >= 2 * last_age:
            kept.add(position)
            last_age = age
    return kept | set(positions[:1])


def learning_digest(learning: Learning) -> str:
    """A short name for how was learnt."""
    text = json.dumps(learning.as_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
