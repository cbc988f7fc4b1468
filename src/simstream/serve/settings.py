"""What a service is told when it is started, and the part of it that a log is bound to."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import catalogue
from ..asking import Asking


@dataclass(frozen=True)
class Learning:
    """How events become a model. It is kept in the log: with anything else the model would be another.

    Parameters
    ----------
    algorithm : name of a learner of a bilinear similarity from triplets, in any case of letters
    params : its parameters
    block : int
        Triplets are learnt together at positions of the log that are multiples of it. 1 learns every event
        as soon as it is read.

    Examples
    --------
    >>> Learning("oasis", {"C": 0.1}).new_learner().C
    0.1
    >>> Learning("LMNN").new_learner()
    Traceback (most recent call last):
    ...
    ValueError: algorithm: expected an online learner of a bilinear similarity, got LMNN
    """

    algorithm: str = "oasis"
    params: dict[str, Any] = field(default_factory=dict)
    block: int = 1

    def new_learner(self) -> Any:
        """A learner that has seen nothing yet."""
        known = catalogue.find(self.algorithm)
        if known.is_batch or known.learns != catalogue.BILINEAR:
            raise ValueError(
                f"algorithm: expected an online learner of a bilinear similarity, got {known.name}"
            )
        given = {"dtype": "float32", **self.params}
        names = {parameter.name for parameter in known.parameters()}
        if "block_size" in names:
            given["block_size"] = self.block
        if "random_state" in names:
            given.setdefault("random_state", 0)
        learner = known.cls()(**given)
        learner.check_parameters()
        return learner

    @property
    def has_tasks(self) -> bool:
        """Whether there is one similarity for each task."""
        return hasattr(catalogue.find(self.algorithm).cls(), "for_task")

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"algorithm": catalogue.find(self.algorithm).name.lower()}


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Parameters
    ----------
    body_bytes, vectors, k, batch : int
        Largest body, most vectors in it, most items found, most judgements in one request.
    rate, burst : float
        Requests per second of one key or address, and how many may come at once; a rate of 0 is no limit.
    waiting : int
        Requests that may wait to be written.
    lag : int
        Events that may wait to be learnt from.
    """

    body_bytes: int = 8 * 2**20
    vectors: int = 10_000
    k: int = 1000
    batch: int = 10_000
    rate: float = 0.0
    burst: float = 100.0
    waiting: int = 1024
    lag: int = 200_000


@dataclass(frozen=True)
class Settings:
    """All of it.

    Parameters
    ----------
    folder : where the log, the snapshots and the keys are
    learning, limits : see there
    asking : see `simstream.asking`
    n_features : int, optional
        Length of sparse vectors; None for dense ones, whose length the first item decides.
    snapshot_every : int
        Events between two snapshots; fewer where folding them again would take long.
    measure : function, optional
        What a demo tells of a `Model` beside its status, as JSON values.
    """

    folder: Path
    learning: Learning = field(default_factory=Learning)
    asking: Asking = field(default_factory=Asking)
    limits: Limits = field(default_factory=Limits)
    n_features: int | None = None
    snapshot_every: int = 2000
    measure: Callable[[Any], dict[str, Any]] | None = None

    @property
    def log_path(self) -> Path:
        """The log."""
        return self.folder / "log.sqlite"

    @property
    def snapshot_folder(self) -> Path:
        """Where snapshots are."""
        return self.folder / "snapshots"

    @property
    def keys_path(self) -> Path:
        """Keys of callers, hashed."""
        return self.folder / "keys.json"


Task = Hashable
