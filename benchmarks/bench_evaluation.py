"""Evaluation over more items than memory: time, peak memory, and how far from what the machine can do.

    python benchmarks/bench_evaluation.py                        1,000,000 x 384, 1,000 queries, 1 and 2 workers
    python benchmarks/bench_evaluation.py -n 100000 --workers 1

Items are random and written to a temporary folder, which is deleted afterwards. Memory is the peak of anonymous
memory of the process and all its children, without pages of mapped files. Limits: all products at the rate of
one matrix product that fills one core, twice, and reading the file at the rate at which it is read once.
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


def anonymous(pid: int) -> int:
    """Bytes of memory of a process and its children that belong to no file."""
    total = 0
    for one in (pid, *children(pid)):
        try:
            for line in Path(f"/proc/{one}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    total += 1024 * int(line.split()[1])
        except OSError:
            continue
    return total


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for text in task.read_text().split():
            found += [int(text), *children(int(text))]
    return found


def run(*arguments: object) -> tuple[dict, float, int]:
    """Run a command: what it prints, seconds, and peak memory."""
    command = [sys.executable, "-m", "simstream.cli", *map(str, arguments), "--json"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **_ONE_THREAD})
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            try:
                peak = max(peak, anonymous(process.pid))
            except OSError:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output), time.perf_counter() - begin, peak


def limits(folder: Path, d: int) -> tuple[float, float]:
    """Products a second on one core (counting each addition and multiplication), and bytes read a second."""
    left, right = (np.random.default_rng(0).random((n, d), np.float32) for n in (2048, 8192))
    rates = []
    with threadpool_limits(1):
        for _ in range(5):
            begin = time.perf_counter()
            left @ right.T
            rates.append(2 * 2048 * 8192 * d / (time.perf_counter() - begin))
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
            f"one core: {rate / 1e9:.0f} GFLOP/s, all products once {products / rate:.1f} s; file read at {reading / 1e9:.1f} GB/s"
        )
        print(
            f"{'relevance':<10} {'workers':>7} {'seconds':>8} {'peak MB':>8} {'of the limit':>12}"
        )
        for kind, given in by.items():
            for workers in map(int, options.workers.split(",")):
                found, seconds, peak = run(*ask, *given, "--workers", workers)
                if seen.setdefault(kind, found["results"]) != found["results"]:
                    raise SystemExit(f"{kind}: another result with {workers} workers")
                passes = 2 if kind == "labels" else 1
                limit = passes * products / rate / min(workers, os.cpu_count() or 1)
                print(
                    f"{kind:<10} {workers:>7} {seconds:>8.1f} {peak / 1e6:>8.0f} {limit / seconds:>12.0%}"
                )


if __name__ == "__main__":
    main()
