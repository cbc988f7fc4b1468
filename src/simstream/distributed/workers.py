"""Those who keep the shards: objects of this process, or actors of Ray that may die and come back."""

from __future__ import annotations

import secrets
import time
from typing import Any

from .cluster import Cluster, WorkerLostError
from .exchange import SILENT_SECONDS, Exchange, RestartedError
from .shard import Progress, Shard, after_restore

#: Seconds in which a worker answers that is there still: it may wait for a machine that fell silent, and
#: have a block to finish before.
_ANSWER_SECONDS = SILENT_SECONDS + 10.0


class SerialWorkers:
    """All shards in this process, one after the other: no faster than one, for trying things out."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._shards: list[Shard] = []
        self._parts: list[Any] = []

    def start(self, folder: str) -> None:
        """Make the shards of a run."""
        self._shards = [Shard(folder, k, self.n_workers) for k in range(self.n_workers)]

    def share(self, value: Any) -> Any:
        """What all shards are given."""
        return value

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all shards; their answers in order. All are called, whatever one raises."""
        answers, errors = [], []
        for shard in self._shards:
            try:
                answers.append(getattr(shard, method)(*args))
            except Exception as error:  # the others come to the same state
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def begin(self, *args: Any) -> list[Progress]:
        """Begin a call, as `Shard.begin` does."""
        self._parts = self.call("begin", *args)
        return self.call("progress")

    def learn(self, n_blocks: int) -> list[Progress]:
        """Learn the next block."""
        self._parts = self.call("advance", *self._parts)
        return self.call("progress")

    def close(self) -> None:
        """Forget the shards."""
        self._shards = []


class Actor(Shard):
    """A shard that sums its parts with those of other processes."""

    _exchange: Any = None
    _parts: Any = None

    @after_restore
    def listen(self, host: str | None) -> tuple[str, int]:
        """Where the others of the next call find this one: at this name of its machine, or that of Ray."""
        import ray

        if self._exchange is not None:
            self._exchange.close()
        self._exchange = Exchange(self._number, host or ray.util.get_node_ip_address())
        return self._exchange.address

    @after_restore
    def meet(self, addresses: list[tuple[str, int]], key: bytes) -> None:
        """Connect to the others."""
        self._exchange.meet(addresses, key)

    def begin(self, *args: Any) -> Progress:
        """Begin a call."""
        self._parts = super().begin(*args)
        return self.progress()

    def learn(self, n_blocks: int) -> Progress:
        """Learn some blocks, or as many as there are."""
        try:
            while n_blocks and self._parts is not None:
                self._parts = self.advance(self._exchange.sum(self._parts))
                n_blocks -= 1
        except BaseException:
            self._exchange.close()  # others may wait for this one
            raise
        return self.progress()


class RayWorkers:
    """An actor for each shard.

    An actor that dies is started again by Ray, at most `max_restarts` times; the call in which it died raises
    `RestartedError` when it is back, `WorkerLostError` when it does not come back within `restart_seconds`.
    The others have longer to answer, if that is short: they may wait for it.

    Parameters
    ----------
    cluster : Cluster, not entered yet
    max_restarts : int
    restart_seconds : float
    is_temporary : bool
        Whether the folder of the run is one of this machine alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        max_restarts: int,
        restart_seconds: float,
        *,
        is_temporary: bool = False,
    ) -> None:
        self._is_temporary = is_temporary
        self.n_workers = cluster.n_workers
        self._cluster, self._max_restarts = cluster, max_restarts
        self._restart_seconds = restart_seconds
        self._actors: list[Any] = []
        self._is_open = False

    def start(self, folder: str) -> None:
        """Start the actors of a run: they are told the folder and nothing else."""
        if not self._is_open:
            self._cluster.__enter__()
            self._is_open = True
        if self._is_temporary and not self._cluster.is_one_machine():
            raise ValueError(
                "folder: expected one that all machines of the cluster can reach, got None"
            )
        options = {"max_restarts": self._max_restarts, "max_task_retries": 0}
        self._actors = [
            self._cluster.start(Actor, folder, k, self.n_workers, **options)
            for k in range(self.n_workers)
        ]
        self._get([actor.ping.remote() for actor in self._actors])

    def share(self, value: Any) -> Any:
        """A reference to what all actors are given: it is stored once."""
        return self._cluster.put(value)

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all actors at the same time; their answers in order."""
        return self._get([getattr(actor, method).remote(*args) for actor in self._actors])

    def begin(self, *args: Any) -> list[Progress]:
        """Begin a call, as `Shard.begin` does; actors meet for it."""
        host = "127.0.0.1" if self._cluster.is_own else None  # nobody else need reach them
        try:
            self.call("meet", self.call("listen", host), secrets.token_bytes(16))
        except ConnectionError:
            self.call("progress")  # raises if one was lost just then
            raise
        return self.call("begin", *args)

    def learn(self, n_blocks: int) -> list[Progress]:
        """Learn some blocks, or as many as there are, without this process."""
        return self.call("learn", n_blocks)

    def close(self) -> None:
        """End the actors, and Ray if it was started for them."""
        if self._is_open:
            self._cluster.stop(self._actors)
            self._actors = []
            self._cluster.__exit__()
            self._is_open = False

    def _get(self, references: list[Any]) -> list[Any]:
        import ray

        gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
        try:
            return ray.get(references)
        except (ray.exceptions.RayTaskError, *gone) as error:
            reason: Exception = error
        begun, dead = time.monotonic(), set()
        # Whoever raises leaves the others, to whom it seems lost: all are heard, for the first error.
        ready, _ = ray.wait(references, num_returns=len(references), timeout=self._restart_seconds)
        for reference in ready:
            try:
                ray.get(reference)
            except gone:
                dead.add(references.index(reference))
            except ray.exceptions.RayTaskError as error:
                # A loss is also parts that were given by one that is gone, or a restart while it was idle.
                if isinstance(error.cause, (*gone, RestartedError)):
                    continue
                if error.cause is None:
                    raise
                raise error.cause from error
        for number in sorted(range(len(self._actors)), key=lambda number: number not in dead):
            seconds = self._restart_seconds
            if number not in dead:
                seconds = max(seconds, _ANSWER_SECONDS)
            self._wait_for(number, reason, begun, seconds)
        raise RestartedError from reason

    def _wait_for(self, number: int, reason: Exception, begun: float, seconds: float) -> None:
        """Wait until an actor answers again, so many seconds from then on at most."""
        import ray

        end = begun + seconds
        while True:
            left = max(1.0, end - time.monotonic())
            try:
                ray.get(self._actors[number].ping.remote(), timeout=left)
                return
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > end:
                    raise self._lost(number, reason, seconds) from reason
                time.sleep(0.1)
            except ray.exceptions.GetTimeoutError as error:
                raise self._lost(number, TimeoutError("no answer"), seconds) from error
            except ray.exceptions.RayActorError as error:
                raise self._lost(number, error, seconds) from error

    def _lost(self, number: int, error: Exception, seconds: float) -> WorkerLostError:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # Of an actor that could not be made the last line is its own error, below the traceback.
        text = lines[-1 if getattr(error, "actor_init_failed", False) else 0]
        return WorkerLostError(
            f"worker {number} of {self.n_workers} was lost and did not come back within "
            f"{seconds:g} s or {self._max_restarts} restarts ({text}): see that the machines "
            "of the cluster are up and have memory"
        )
