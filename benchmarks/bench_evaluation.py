"""Evaluation over more items than memory: time, peak memory, and how far from what the machine can do.

    python benchmarks/bench_evaluation.py                        1,000,000 x 384, 1,000 queries, 1 and 2 workers
    python benchmarks/bench_evaluation.py -n 100000 --workers 1

Items are random and written to a temporary folder, which is deleted afterwards. Memory is the peak of anonymous
memory of the process and all its children (those of Ray among them), without pages of mapped files; CPU seconds are
those of all of them, and are the same on a busy machine. The limit is the time of all products at the rate of one large
matrix product on one core: twice for labels, where both passes need nearly all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def make(folder: Path, n: int, d: int, n_queries: int, n_classes: int) -> None:
    rng = np.random.default_rng(0)
    items = np.lib.format.open_memmap(folder / "items.npy", "w+", np.float32, (n, d))
    for first in range(0, n, 10_000):
        items[first : first + 10_000] = rng.standard_normal((min(10_000, n - first), d), np.float32)
    items.flush()
    np.save(folder / "labels.npy", rng.integers(n_classes, size=n))
    np.save(folder / "queries.npy", rng.standard_normal((n_queries, d), np.float32))
    np.save(folder / "query-labels.npy", rng.integers(n_classes, size=n_queries))
    pairs = np.column_stack([np.arange(n_queries), rng.integers(n, size=n_queries)])
    np.save(folder / "relevance.npy", pairs)
    from simstream import Bilinear

    M = np.eye(d) + 0.01 * rng.standard_normal((d, d))
    Bilinear(M.astype(np.float32)).save(folder / "model.safetensors")


def look(pid: int, cpu: dict[int, float]) -> list[int]:
    """Bytes of memory of a process and its children that belong to no file; notes their CPU seconds."""
    found = []
    for one in (pid, *children(pid)):
        try:
            status = Path(f"/proc/{one}/status").read_text().splitlines()
            times = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            continue
        found += [1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon")]
        cpu[one] = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return found


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            texts = task.read_text().split()
        except OSError:
            continue
        for text in texts:
            found += [int(text), *children(int(text))]
    return found


def run(*arguments: object) -> tuple[dict, float, float, int, int]:
    """Run a command: what it prints, seconds, CPU seconds, peak memory in all and of the largest process."""
    command = [sys.executable, "-m", "simstream", *map(str, arguments), "--json"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **_ONE_THREAD})
    peak = largest = 0
    cpu: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak, largest
        while not ended.wait(0.05):
            sizes = look(process.pid, cpu)
            peak, largest = max(peak, sum(sizes)), max([largest, *sizes])

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output), time.perf_counter() - begin, sum(cpu.values()), peak, largest


def limits(folder: Path, d: int) -> tuple[float, float]:
    """Products a second on one core (counting each addition and multiplication), and bytes read a second."""
    left, right = (np.random.default_rng(0).random((n, d), np.float32) for n in (2048, 8192))
    rates = []
    with threadpool_limits(1):
        for _ in range(5):
            begin = time.process_time()
            left @ right.T
            rates.append(2 * 2048 * 8192 * d / (time.process_time() - begin))
    block, size = bytearray(2**24), (folder / "items.npy").stat().st_size
    begin = time.perf_counter()
    with open(folder / "items.npy", "rb", buffering=0) as file:
        while file.readinto(block):
            pass
    return max(rates), size / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-n", type=int, default=1_000_000, help="items")
    parser.add_argument("-d", type=int, default=384, help="features")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", default="1,2", help="numbers of processes")
    parser.add_argument("--memory", default="512MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.n, options.d, options.queries, options.classes)
        ask = [
            "evaluate",
            folder / "model.safetensors",
            folder / "items.npy",
            "--queries",
            folder / "queries.npy",
        ]
        ask += ["--baseline", "none", "--memory", options.memory]
        by = {
            "labels": [
                "--labels",
                folder / "labels.npy",
                "--query-labels",
                folder / "query-labels.npy",
            ],
            "relevance": ["--relevance", folder / "relevance.npy"],
        }
        seen: dict[str, dict] = {}
        rate, reading = limits(folder, options.d)
        products = 2 * options.n * options.queries * options.d
        print(
            f"{options.n:,} x {options.d} float32, {options.queries:,} queries, {os.cpu_count()} cores"
        )
        print(
            f"one core: {rate / 1e9:.0f} GFLOP/s, all products once {products / rate:.1f} s; the file is read at "
            f"{reading / 1e9:.1f} GB/s\n"
        )
        print(
            "| relevance | workers | seconds | CPU seconds | limit | of the limit | peak MB | of one process |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for kind, given in by.items():
            for workers in map(int, options.workers.split(",")):
                found, seconds, cpu, peak, largest = run(*ask, *given, "--workers", workers)
                if seen.setdefault(kind, found["results"]) != found["results"]:
                    raise SystemExit(f"{kind}: another result with {workers} workers")
                limit = (2 if kind == "labels" else 1) * products / rate
                print(
                    f"| {kind} | {workers} | {seconds:.1f} | {cpu:.1f} | {limit:.1f} | {limit / cpu:.0%} "
                    f"| {peak / 1e6:.0f} | {largest / 1e6:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
