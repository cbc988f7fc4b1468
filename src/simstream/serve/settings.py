"""Settings of a service, and the part of them that its log is bound to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import catalogue
from ..asking import Asking


@dataclass(frozen=True)
class Learning:
    """How events become a model. Stored in the log, because other settings would give another model.

    Parameters
    ----------
    algorithm : name of an online learner of a bilinear similarity; case does not matter
    params : its parameters
    block : int
        Triplets are learnt together whenever the log position reaches a multiple of `block`. 1 learns every
        event as soon as it is read.

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
        """Whether every task has a similarity of its own."""
        return hasattr(catalogue.find(self.algorithm).cls(), "for_task")

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"algorithm": catalogue.find(self.algorithm).name.lower()}


@dataclass(frozen=True)
class Limits:
    """How much a request, a caller and the queues may hold.

    Parameters
    ----------
    body_bytes, vectors, k, batch : int
        Per request: largest body, most vectors in it, most items found, most judgements.
    rate, burst : float
        Requests per second of one key or address, and how many it may send at once; a rate of 0 means no
        limit.
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
    """Where a service keeps its files, how it learns, what it asks, and what it allows.

    Parameters
    ----------
    folder : holds the log, the snapshots and the keys
    learning, limits : see `Learning` and `Limits`
    asking : how questions are chosen, see `simstream.asking`
    n_features : int, optional
        Length of sparse vectors. None means dense vectors, whose length the first item determines.
    snapshot_every : int
        Events between two snapshots; fewer if learning them again would take long.
    measure : function, optional
        Extra status of a demo: takes the served `Model`, returns JSON values.
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
        """The folder of the snapshots."""
        return self.folder / "snapshots"

    @property
    def keys_path(self) -> Path:
        """The hashed keys of callers."""
        return self.folder / "keys.json"
