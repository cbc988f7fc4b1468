"""A cluster to run workers on: Ray on this machine, or one that is joined by its address."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from ..extras import MissingExtraError
from ..validation import check_integer, check_number

logger = logging.getLogger("simstream.distributed")

#: Shared memory of a Ray that is started here: what does not fit is kept on disk.
DEFAULT_STORE_BYTES = 512 * 2**20
_SMALLEST_STORE_BYTES = 80 * 2**20

#: How often Ray starts a lost worker again, and repeats the call that it was lost in.
_MAX_RESTARTS = 10

#: Seconds between two looks at whether the machines of the workers are still there.
_LOOK_SECONDS = 1.0

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerLostError(RuntimeError):
    """A worker is gone for good: it was started again too often, or its machine is lost.

    Parameters
    ----------
    problem : what happened
    advice : how to go on, in Python

    Attributes
    ----------
    problem : str
        The message without the advice.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem = problem


class Cluster:
    """Ray, started on this machine or joined; a context manager that ends only what it has started.

    Parameters
    ----------
    n_workers : int
        Workers that will be started with `start`; there must be CPUs for all of them.
    address : str, optional
        A running Ray: ``"ray://host:10001"`` from outside of the cluster, ``"host:6379"`` or ``"auto"`` on
        one of its machines. None uses the Ray that this process is connected to, or that of the environment
        variable RAY_ADDRESS, or else starts one on this machine; ``"local"`` ignores RAY_ADDRESS.
    num_cpus : int, optional
        CPUs of a Ray that is started here, as it counts them: one for each thread of the workers unless told
        otherwise, whatever this machine has.
    object_store_bytes : int
        Shared memory of a Ray that is started here, at least 80 MiB. What does not fit is kept on disk.
    threads : int
        Threads of BLAS in each worker, and CPUs that are reserved for it.
    patience : float
        Seconds to wait for a connection, for CPUs that are in use, and for others in place of a lost machine.

    Attributes
    ----------
    is_own : bool
        Whether this Ray was started here, and ends with the context.

    Examples
    --------
    ::

        with Cluster(2) as cluster:
            workers = [cluster.start(Counter) for _ in range(2)]
            counts = cluster.get([worker.count.remote() for worker in workers])

    >>> Cluster(2, threads=4).environment()["OMP_NUM_THREADS"]
    '4'
    """

    def __init__(
        self,
        n_workers: int,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        object_store_bytes: int = DEFAULT_STORE_BYTES,
        threads: int = 1,
        patience: float = 15.0,
    ) -> None:
        self.n_workers = check_integer("n_workers", n_workers)
        self.threads = check_integer("threads", threads)
        self.num_cpus = num_cpus if num_cpus is None else check_integer("num_cpus", num_cpus)
        self.object_store_bytes = check_integer(
            "object_store_bytes", object_store_bytes, minimum=_SMALLEST_STORE_BYTES
        )
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        check_number("patience", patience)
        self.patience = float(patience)
        self.is_own = False
        self._is_connected_here = False
        self._ray: Any = None

    def __enter__(self) -> Self:
        self._ray = ray = _import_ray()
        workers = "1 worker" if self.n_workers == 1 else f"{self.n_workers} workers"
        logger.info("starting %s, which takes 10 s or more", workers)
        if ray.is_initialized():
            self._check_same(ray)
        elif self.address in (None, "local"):
            self._start_here(ray)
        else:
            self._join(ray, self.address)
        try:
            self._check_cpus(ray)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_connected_here:
            self._ray.shutdown()  # of a Ray that was joined: ends the connection alone
        self.is_own = self._is_connected_here = False

    # -- connecting -----------------------------------------------------------------------------

    def _start_here(self, ray: Any) -> None:
        # By default it would send statistics over the net, and let all other work come before its workers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")
        wanted = self.n_workers * self.threads
        ray.init(
            address="local",
            num_cpus=wanted if self.num_cpus is None else self.num_cpus,
            object_store_memory=self.object_store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )
        self.is_own = self._is_connected_here = True

    def _join(self, ray: Any, address: str) -> None:
        what = f"address: expected a running Ray, got {address!r}"
        hint = "start one with ray start --head, or leave the address out to use this machine alone"
        _check_listens(address, what, hint, self.patience)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConnectionError(f"{what} ({reason}); {hint}") from error
        self._is_connected_here = True

    def _check_same(self, ray: Any) -> None:
        """Raise if another cluster is asked for than the one that this process is connected to."""
        known, address = ray.get_runtime_context().gcs_address, self.address
        if address in (None, "auto", known):
            return
        if address == "local":
            is_same = self.is_one_machine()
        elif address.startswith("ray://"):
            # From outside of the cluster its machines may have other names than among themselves.
            is_same = _is_client() or _host_of(address) in _own_hosts(ray)
        else:
            is_same = False
        if not is_same:
            raise ValueError(
                f"address: expected {known}, which this process is connected to, got {address!r}; "
                "ray.shutdown() ends that connection"
            )

    def is_one_machine(self) -> bool:
        """Whether Ray has this machine alone: its workers find the files of this process."""
        return not _is_client() and sum(node["Alive"] for node in self._ray.nodes()) == 1

    def _cpus(self) -> int:
        """CPUs of all machines that are there."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _check_cpus(self, ray: Any) -> None:
        """Raise if there are not enough CPUs: Ray itself would wait for them without a word."""
        wanted = self.n_workers * self.threads
        total = self._cpus()
        advice = "ask for fewer workers or threads"
        if total >= wanted:
            free, end = 0, time.monotonic() + self.patience
            while True:
                free = int(ray.available_resources().get("CPU", 0))
                if free >= wanted:
                    return
                if time.monotonic() > end:
                    break
                time.sleep(0.2)
            found = f"{free} free of {total}"
            advice += ", wait for the others, or add machines with ray start --address"
        elif self.is_own:
            found, advice = str(total), advice + ", or a larger num_cpus"
        else:
            found, advice = str(total), advice + ", or add machines with ray start --address"
        raise RuntimeError(
            f"n_workers: expected {wanted} CPUs for {self.n_workers} workers of {self.threads}, got {found}; "
            f"{advice}"
        )

    # -- workers --------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Environment variables of the workers: threads, and a place for compiled code."""
        variables = dict.fromkeys(_THREADS, str(self.threads))
        place = numba_cache_dir(is_local=self.is_own)
        return variables if place is None else variables | {"NUMBA_CACHE_DIR": place}

    def start(self, kind: type, *args: Any, **options: Any) -> Any:
        """Start a worker: an actor of this class.

        It is started again when its process dies, with the same arguments, and the call that was lost is
        repeated: its methods must be functions of their arguments and of what can be read again.
        """
        found = {
            "num_cpus": self.threads,
            "max_restarts": _MAX_RESTARTS,
            "max_task_retries": _MAX_RESTARTS,
            "runtime_env": {"env_vars": self.environment()},
        } | options
        return self._ray.remote(kind).options(**found).remote(*args)

    def stop(self, workers: list[Any]) -> None:
        """End workers for good; their CPUs are free again."""
        for worker in workers:
            self._ray.kill(worker)

    def put(self, value: Any) -> Any:
        """A reference to a value that workers read without a copy for each; arrays are read-only there."""
        return self._ray.put(value)

    def get(self, references: Any) -> Any:
        """Results of calls. An error of a worker is raised here as it was raised there, and at once."""
        exceptions = self._ray.exceptions
        try:
            if isinstance(references, list):
                return self._results(references)
            return self._results([references])[0]
        except exceptions.RayTaskError as error:
            if error.cause is None:
                raise
            raise error.cause from error
        except (exceptions.RayActorError, exceptions.ObjectLostError) as error:
            reason = str(error).strip().splitlines()[0]
            raise WorkerLostError(
                f"a worker was lost, and could not be started again ({reason}): see that the machines of the "
                "cluster are up and have memory"
            ) from error

    def _results(self, references: list[Any]) -> list[Any]:
        """Results of calls; raise if the cluster has too few CPUs: Ray waits for more without a word.

        Only the CPUs of all machines together are counted: calls still wait for CPUs that others use, or
        where every machine has fewer than a worker needs.
        """
        found: dict[Any, Any] = {}
        waiting, end = references, None
        while waiting:
            # `ray.get` with a time limit would begin to fetch a large result anew each time.
            ready, waiting = self._ray.wait(
                waiting, num_returns=1, timeout=_LOOK_SECONDS, fetch_local=False
            )
            if ready:
                found[ready[0]] = self._ray.get(ready[0])
                continue
            total, wanted = self._cpus(), self.n_workers * self.threads
            if total >= wanted:
                end = None
            elif end is None:
                end = time.monotonic() + self.patience
            elif time.monotonic() > end:
                raise WorkerLostError(
                    f"a machine of the cluster was lost (expected {wanted} CPUs for {self.n_workers} workers "
                    f"of {self.threads}, got {total}): add one with ray start --address, or use fewer workers"
                )
        return [found[reference] for reference in references]


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtraError("more than one worker", "Ray", "distributed") from error
    return ray


def _is_client() -> bool:
    """Whether this process is connected to a Ray from outside, and is on none of its machines perhaps."""
    from ray.util.client import ray as client

    return bool(client.is_connected())


def _host_of(address: str) -> str:
    """The number of a host of ray://host:port, or its name if nobody knows it."""
    host = address.removeprefix("ray://").rstrip("/").rpartition(":")[0].strip("[]")
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _own_hosts(ray: Any) -> set[str]:
    """The machines of a cluster that this process is in."""
    return {"127.0.0.1", "::1"} | {node["NodeManagerAddress"] for node in ray.nodes()}


def _check_listens(address: str, what: str, hint: str, patience: float) -> None:
    """Raise if nobody answers at host:port: Ray would try for half a minute or more."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(
            f"address: expected 'auto', 'local', 'host:port' or 'ray://host:port', got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=patience).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{what} ({error}); {hint}") from error


def numba_cache_dir(*, is_local: bool) -> str | None:
    """A folder for compiled code that workers may write to; None where they find one as this process does."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return given
    kernels = Path(__file__).parents[1] / "_kernels"
    if is_local and os.access(kernels, os.W_OK):
        return None  # next to the sources, where this process has put it already
    return str(Path(tempfile.gettempdir()) / f"simstream-numba-{getpass.getuser()}")
