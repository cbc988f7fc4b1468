"""Speed of the service on loopback, each number beside the machine's own ceiling.

    python benchmarks/bench_serve.py [--items 100000] [--features 384] [--write [PAGE]]

- search: one client, exact, k = 10, against the bare matrix product of the same query and items
- the same while feedback is sent and learnt
- many clients at once, against one
- the same with one and two more processes that answer searches (--workers)
- durable feedback over HTTP in batches, against the bare SQLite group commit of the same rows
- the first start, which imports the items, and a restart after so many events, against loading the libraries alone
- search with --index usearch, against the exact service and its answers (recall)
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from bench_common import check_marks, put_between

K = 10
BATCH = 500
#: Triplets per second that are sent while searches are timed.
RATE = 1000
#: Clients that search at the same time.
CROWDS = (1, 8, 64)
#: Processes that answer searches beside the one that writes, and clients that search then.
WORKERS, WORKER_CLIENTS = (1, 2), 8
#: Times that what may be disturbed by other work on the machine is measured, in turns.
TURNS = 3
MARKS = "<!-- bench-serve -->", "<!-- end of bench-serve -->"
#: The same for a million items.
MARKS_OF_MANY = "<!-- bench-serve-many -->", "<!-- end of bench-serve-many -->"
MANY = 10**6
#: Items in the rows of usearch: a graph takes minutes to build.
MOST_IN_GRAPH = 50_000
PAGE = Path(__file__).parent.parent / "docs" / "service.md"


class Server:
    """The service in a process of its own."""

    def __init__(self, folder: Path, items: Path | None = None, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "simstream",
            "serve",
            "--data",
            str(folder),
            "--port",
            "0",
        ]
        command += [*options, *([] if items is None else [str(items)])]
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "ready at" in line:
                self.port = int(line.split("://")[1].split()[0].rsplit(":", 1)[1])
                break
        else:
            raise SystemExit("the service did not start")
        self.seconds = time.perf_counter() - started
        self.cpu_seconds = cpu_seconds(self.process.pid)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def stop(self) -> None:
        """End it in order."""
        self.process.terminate()
        self.process.wait()

    def kill(self) -> None:
        """End it without a last snapshot."""
        self.process.kill()
        self.process.wait()


def resident_mb(pid: int) -> float:
    """Memory of a process that is in use now (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """Computing time of a process so far; NaN where the system does not tell."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return float("nan")
    user, system = path.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def call(
    client: http.client.HTTPConnection, method: str, path: str, body=None, may_be_busy: bool = False
):
    """The answer; None if the service is busy, where that may be."""
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    client.request(method, path, data, {"Content-Type": "application/json"})
    response = client.getresponse()
    content = response.read()
    if response.status == 503 and may_be_busy:
        return None
    if response.status >= 300:
        raise SystemExit(f"{method} {path}: {response.status} {content[:200]!r}")
    return json.loads(content)


def search_times(server: Server, queries: np.ndarray, seconds: float) -> np.ndarray:
    client, times = server.client(), []
    bodies = [json.dumps({"vector": query.tolist(), "k": K}) for query in queries]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        call(client, "POST", "/v1/search", bodies[len(times) % len(bodies)])
        times.append(time.perf_counter() - started)
    return np.array(times)


def crowd(
    server: Server, queries: np.ndarray, seconds: float, n_clients: int
) -> tuple[float, np.ndarray, float]:
    """Searches per second of so many clients at once, all of their times, and CPU seconds of a search."""
    before, started = cpu_seconds(server.process.pid), time.perf_counter()
    with ThreadPoolExecutor(n_clients) as pool:
        parts = list(pool.map(lambda _: search_times(server, queries, seconds), range(n_clients)))
    times, wall = np.concatenate(parts), time.perf_counter() - started
    return len(times) / wall, times, (cpu_seconds(server.process.pid) - before) / len(times)


def product_times(items: np.ndarray, queries: np.ndarray, seconds: float) -> np.ndarray:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        query = queries[len(times) % len(queries)]
        started = time.perf_counter()
        items @ query
        times.append(time.perf_counter() - started)
    return np.array(times)


def batches(rng: np.random.Generator, n_items: int, n_batches: int) -> Iterator[list[dict]]:
    """Batches of triplets of three different items, drawn when they are wanted."""
    names = ("anchor", "positive", "negative")
    for _ in range(n_batches):
        anchors = rng.integers(0, n_items, BATCH)
        first = rng.integers(1, n_items, BATCH)
        second = (first + rng.integers(1, n_items - 1, BATCH) - 1) % (n_items - 1) + 1
        triplets = np.stack([anchors, (anchors + first) % n_items, (anchors + second) % n_items], 1)
        yield [dict(zip(names, map(str, triplet), strict=True)) for triplet in triplets.tolist()]


def feedback_rate(server: Server, sent: Iterable[list[dict]], n_clients: int = 2) -> float:
    """Triplets kept per second; a batch that is refused because too many wait is sent again."""
    todo = deque(json.dumps(batch) for batch in sent)
    total = BATCH * len(todo)

    def work() -> None:
        client = server.client()
        while True:
            try:
                batch = todo.popleft()
            except IndexError:
                return
            while call(client, "POST", "/v1/feedback", batch, may_be_busy=True) is None:
                time.sleep(0.2)

    started = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as pool:
        for done in [pool.submit(work) for _ in range(n_clients)]:
            done.result()
    return total / (time.perf_counter() - started)


@contextlib.contextmanager
def feedback_meanwhile(
    server: Server, rng: np.random.Generator, n_items: int
) -> Iterator[list[int]]:
    """Feedback at a fixed rate; yields a list with the number of triplets sent so far."""
    stop, sent = threading.Event(), [0]

    def keep_sending() -> None:
        client = server.client()
        for batch in batches(rng, n_items, 1_000_000):
            if stop.is_set():
                return
            started = time.perf_counter()
            call(client, "POST", "/v1/feedback", batch)
            sent[0] += BATCH
            time.sleep(max(0.0, BATCH / RATE - (time.perf_counter() - started)))

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        yield sent
    finally:
        stop.set()
        sender.join()
    wait_until_learnt(server)


def import_seconds() -> float:
    """Wall time of a Python that loads the libraries the service stands on, and nothing else."""
    started = time.perf_counter()
    code = "import sklearn.base, scipy.sparse, numba, fastapi, uvicorn"
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def bare_commit_rate(folder: Path, log: Path, n_rows: int) -> float:
    """Rows per second of SQLite alone: the same rows, the same number in a transaction."""
    source = sqlite3.connect(log)
    rows = source.execute(
        "SELECT position, at, kind, subject, vector, body FROM events WHERE kind = 'feedback' LIMIT ?",
        (n_rows,),
    ).fetchall()
    source.close()
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, at, kind, subject, vector, body)"
    )
    started = time.perf_counter()
    for begin in range(0, len(rows), BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows[begin : begin + BATCH]
        )
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return len(rows) / seconds


def wait_until_learnt(server: Server) -> float:
    client, started = server.client(), time.perf_counter()
    while call(client, "GET", "/readyz")["lag"]:
        time.sleep(0.05)
    return time.perf_counter() - started


def percentiles(times: np.ndarray) -> tuple[float, float]:
    return float(np.percentile(times, 50) * 1e3), float(np.percentile(times, 99) * 1e3)


def crowd_rows(crowds: dict[int, tuple[float, np.ndarray, float]]) -> Iterator[str]:
    alone, times, alone_cpu = crowds[1]
    one_50 = percentiles(times)[0]
    for n_clients, (rate, many, cpu) in crowds.items():
        if n_clients == 1:
            continue
        wanted = (">= 5", "<= 20") if n_clients == max(crowds) else ("", "")
        yield (
            f"| searches of {n_clients} clients at once | {rate:,.0f}/s, {cpu * 1e3:.1f} ms of CPU each | "
            f"{alone:,.0f}/s, {alone_cpu * 1e3:.1f} ms (one client) | {rate / alone:.1f} | {wanted[0]} |"
        )
        p99 = percentiles(many)[1]
        yield (
            f"| the same, p99 | {p99:.0f} ms | {one_50:.1f} ms (p50 of one client) | {p99 / one_50:.1f} | "
            f"{wanted[1]} |"
        )


def worker_rows(alone: float, rates: dict[int, float]) -> Iterator[str]:
    """Searches of one process and of several, by as many clients."""
    before = alone, "one process"
    for workers, rate in rates.items():
        yield (
            f"| searches of {WORKER_CLIENTS} clients, `--workers {workers}` | {rate:,.0f}/s | "
            f"{before[0]:,.0f}/s ({before[1]}) | {rate / before[0]:.2f} | |"
        )
        before = rate, f"`--workers {workers}`"


def metric(server: Server, name: str) -> float:
    client = server.client()
    client.request("GET", "/metrics")
    lines = client.getresponse().read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def index_rows(n_items: int, n_features: int, seconds: float) -> Iterator[str]:
    """Search with usearch: for vectors without structure, the hardest, and for some of few dimensions."""
    rng = np.random.default_rng(1)
    kinds = {"in all directions": n_features, "of 32 dimensions": 32}
    for about, rank in kinds.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            space = rng.normal(size=(rank, n_features)) if rank < n_features else np.eye(rank)
            items, queries = (
                (rng.normal(size=(n, rank)) @ space).astype(np.float32) for n in (n_items, 200)
            )
            items /= np.linalg.norm(items, axis=1, keepdims=True)
            np.save(folder / "items.npy", items)
            exact = Server(folder / "exact", folder / "items.npy")
            server = Server(folder / "data", folder / "items.npy", "--index", "usearch")
            started = time.perf_counter()
            while metric(server, "simstream_index_late"):
                time.sleep(0.1)
            built = time.perf_counter() - started
            client, hits = server.client(), 0
            for query in queries:
                answer = call(client, "POST", "/v1/search", {"vector": query.tolist(), "k": K})
                wanted = np.argpartition(-(items @ query), K)[:K]
                hits += len({int(hit["id"]) for hit in answer["results"]} & set(wanted.tolist()))
            times: dict[Server, list[np.ndarray]] = {exact: [], server: []}
            for _ in range(TURNS):
                for one, parts in times.items():
                    parts.append(search_times(one, queries, seconds / TURNS))
            (exact_50, _), (p50, p99) = (percentiles(np.concatenate(p)) for p in times.values())
            exact.kill()
            server.kill()
        recall = hits / (K * len(queries))
        print(
            f"usearch, {about}: recall {recall:.3f}, {p50:.1f} ms, built in {built:.0f} s",
            flush=True,
        )
        yield (
            f"| search, usearch, {n_items:,} vectors {about}, p50 | {p50:.1f} ms (p99 {p99:.1f} ms), recall@{K} {recall:.3f} | "
            f"{exact_50:.1f} ms (exact) | {p50 / exact_50:.2f} | |"
        )
        yield f"| until the last item is in that index | {built:.0f} s | | | |"


def measure(n_items: int, n_features: int, n_events: int, seconds: float) -> list[str]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        items = rng.normal(size=(n_items, n_features)).astype(np.float32)
        items /= np.linalg.norm(items, axis=1, keepdims=True)
        queries = rng.normal(size=(64, n_features)).astype(np.float32)
        np.save(folder / "items.npy", items)
        server = Server(folder / "data", folder / "items.npy")
        imported = server.seconds
        print(f"started with {n_items} items in {imported:.1f} s", flush=True)
        search_times(server, queries, 1.0)
        times: dict[str, list[np.ndarray]] = {"bare": [], "idle": [], "busy": []}
        n_sent = 0
        for _ in range(TURNS):
            with threadpool_limits(1, user_api="blas"):  # as a search has
                times["bare"].append(product_times(items, queries, seconds / TURNS))
            times["idle"].append(search_times(server, queries, seconds / TURNS))
            with feedback_meanwhile(server, rng, n_items) as sent:
                times["busy"].append(search_times(server, queries, seconds / TURNS))
                n_sent += sent[0]
        found = {name: percentiles(np.concatenate(parts)) for name, parts in times.items()}
        (bare_50, bare_99), (idle_50, idle_99), (busy_50, busy_99) = found.values()
        busy_rate = n_sent / seconds
        print(f"bare {bare_50:.1f} {bare_99:.1f}  idle {idle_50:.1f} {idle_99:.1f} ms", flush=True)
        print(f"busy {busy_50:.1f} {busy_99:.1f} ms at {busy_rate:.0f}/s", flush=True)

        crowds = {n: crowd(server, queries, seconds / 2, n) for n in CROWDS}
        for n_clients, (rate, many, cpu) in crowds.items():
            p50, p99 = percentiles(many)
            told = f"{rate:.0f}/s, {p50:.1f} {p99:.1f} ms, {cpu * 1e3:.1f} ms of CPU each"
            print(f"{n_clients} clients: {told}", flush=True)

        n_batches = max(1, n_events // BATCH)
        n_first = max(1, n_batches // 10)
        feedback_rate(server, batches(rng, n_items, n_first))
        wait_until_learnt(server)
        memory = resident_mb(server.process.pid)
        rate = feedback_rate(server, batches(rng, n_items, n_batches - n_first))
        behind = wait_until_learnt(server)
        grown = resident_mb(server.process.pid)
        print(
            f"{memory:.0f} MB after {n_first * BATCH} triplets, {grown:.0f} MB at the end",
            flush=True,
        )
        bare_rate = bare_commit_rate(folder, folder / "data" / "log.sqlite", n_events)
        print(
            f"feedback {rate:.0f}/s, bare {bare_rate:.0f}/s, learnt {behind:.1f} s later",
            flush=True,
        )
        server.kill()
        restarts, imports = [], []
        for _ in range(TURNS):
            imports.append(import_seconds())
            again = Server(folder / "data")
            restarts.append((again.seconds, again.cpu_seconds))
            position = call(again.client(), "GET", "/v1/status")["position"]
            again.kill()
        rates = {}
        for workers in WORKERS:
            several = Server(folder / "data", None, "--workers", str(workers))
            search_times(several, queries, 1.0)
            rates[workers] = crowd(several, queries, seconds / 2, WORKER_CLIENTS)[0]
            several.stop()
            print(f"{workers} workers: {rates[workers]:.0f} searches/s", flush=True)
        (wall, cpu), slowest = np.median(restarts, axis=0), max(restarts)[0]
        loading = float(np.median(imports))
        print(f"restart at {position} in {wall:.1f} s, {cpu:.1f} s of computing", flush=True)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    return [
        f"{n_items:,} x {n_features} items, one machine with {machine}; client, service and learner share it ({load}).",
        "",
        "| what | measured | the machine's own | ratio | wanted |",
        "|---|---|---|---|---|",
        f"| search, exact, k = {K}, p50 | {idle_50:.1f} ms | {bare_50:.1f} ms (matrix product, one thread) | {idle_50 / bare_50:.2f} | <= {1.3 if n_items == MANY else 2} |",
        f"| the same, p99 | {idle_99:.1f} ms | {bare_99:.1f} ms | {idle_99 / bare_99:.2f} | |",
        f"| search while {busy_rate:,.0f} triplets/s are learnt, p50 | {busy_50:.1f} ms | {idle_50:.1f} ms (idle) | {busy_50 / idle_50:.2f} | |",
        f"| the same, p99 | {busy_99:.1f} ms | {idle_99:.1f} ms (idle) | {busy_99 / idle_99:.2f} | <= 3 |",
        *crowd_rows(crowds),
        *worker_rows(crowds[WORKER_CLIENTS][0], rates),
        f"| durable feedback over HTTP, batches of {BATCH} | {rate:,.0f} triplets/s | {bare_rate:,.0f} rows/s (SQLite alone) | {rate / bare_rate:.2f} | >= 2,000 triplets/s |",
        f"| until the last of {n_batches * BATCH:,} is learnt | {behind:.1f} s | | | |",
        f"| first start: process start to ready, with the import of {n_items:,} items | {imported:.1f} s | {loading:.1f} s (loading the libraries) | {imported / loading:.2f} | {'<= 60 s' if n_items == MANY else ''} |",
        f"| restart after kill -9 at log position {position:,}: process start to ready, median of {TURNS} | {wall:.1f} s ({cpu:.1f} s of computing; slowest {slowest:.1f} s) | {loading:.1f} s (loading the libraries) | {wall / loading:.2f} | {'<= 10 s' if n_items == MANY else '<= 5 s'} |",
        f"| memory after {n_batches * BATCH:,} triplets | {grown:,.0f} MB | {memory:,.0f} MB (after {n_first * BATCH:,}) | {grown / memory:.2f} | |",
        *([] if n_items == MANY else index_rows(min(n_items, MOST_IN_GRAPH), n_features, seconds)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--events", type=int, default=10**6)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=PAGE,
        metavar="PAGE",
        help="put the table into a page, between its marks (docs/service.md)",
    )
    options = parser.parse_args()
    marks = MARKS_OF_MANY if options.items == MANY else MARKS
    check_marks(parser, options.write, marks)
    lines = measure(options.items, options.features, options.events, options.seconds)
    text = "\n".join(lines)
    print(text)
    if options.write is not None:
        put_between(options.write, marks, text)


if __name__ == "__main__":
    main()
