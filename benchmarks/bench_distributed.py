"""Measure learning with divided columns: two workers against one process, and the curve for many on paper.

    python benchmarks/bench_distributed.py [--turns 5] [--realtime] [--write [PAGE]]

Both have one BLAS thread a process and learn the same triplets in turns. What a block costs a worker that has
d / W columns is measured in this process, what it costs to swap and add sums with two actors of Ray on this
machine; each worker does so log2 W times, and the curve adds what the bytes take over the network every time.
`--write` puts the tables between the marks of docs/distributed.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from bench_common import ROOT, check_marks, machine, put_between
from simstream import OASIS
from simstream.distributed import Cluster, ShardedLearner
from simstream.distributed.exchange import Exchange
from simstream.distributed.shard import Shard

# Ray's workers give way to all other processes unless told otherwise: the comparison would not be fair.
os.environ.setdefault("RAY_worker_niceness", "0")

MARKS = "<!-- bench-distributed -->", "<!-- end of bench-distributed -->"
BLOCK = 512
WIDTHS = (1536, 3072)
PAPER = (1536, 8192, 65536)
WORKERS = (4, 8, 16, 32, 64)
NETWORKS = {"10 GbE": 1.25e9, "100 GbE": 12.5e9}


def data(d, n_blocks, n_items=4000):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n_items, d)) / np.sqrt(d)).astype(np.float32)
    third = n_items // 3
    triplets = rng.integers(0, third, (n_blocks * BLOCK, 3)) + np.array([0, third, 2 * third])
    return X, triplets


def learner():
    return OASIS(C=5.0, block_size=BLOCK)


# -- measured on this machine -----------------------------------------------------------------------


def cpu_seconds(pid):
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family():
    """All threads of this process, and of those that it has started."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return [int(task.name) for pid in found for task in Path(f"/proc/{pid}/task").glob("*")]


@contextmanager
def served_first(is_wanted):
    """Before all other processes of the machine, if that is wanted."""
    threads = family() if is_wanted else []

    def schedule(policy, priority):
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(priority))

    schedule(os.SCHED_FIFO, 5)
    try:
        yield
    finally:
        schedule(os.SCHED_OTHER, 0)


def measured(model, triplets, pids):
    """Seconds by the clock, and CPU seconds of this process and the slowest worker together.

    The driver takes its turn while workers wait: that sum is what the clock shows where nothing else runs.
    """
    before = [time.process_time(), *map(cpu_seconds, pids)]
    start = time.perf_counter()
    model.fit(triplets)
    seconds = time.perf_counter() - start
    own, *others = np.array([time.process_time(), *map(cpu_seconds, pids)]) - before
    return seconds, own + max(others, default=0.0)


def compare(d, n_blocks, turns, is_first):
    """Milliseconds a block of one process and of two workers in turns, and how far the results differ."""
    X, triplets = data(d, n_blocks)
    alone = learner().set_params(preprocessor=X)
    times = []
    with ShardedLearner(learner(), 2, preprocessor=X) as divided:
        alone.fit(triplets[: 2 * BLOCK])  # compiles
        divided.fit(triplets[: 2 * BLOCK])
        for _ in range(turns):
            pids = divided.pids()
            with served_first(is_first):
                one, two = measured(alone, triplets, []), measured(divided, triplets, pids)
            times.append(np.array([one, two]) / n_blocks * 1e3)
            print(f"d={d}: clock and CPU, ms a block {np.round(times[-1], 1).tolist()}", flush=True)
        found = divided.learner_.get_bilinear_matrix()
    expected = alone.get_bilinear_matrix()
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    return np.array(times), float(difference)


def block_of_worker(d, n_workers, n_blocks=4):
    """Seconds that a block takes a worker that has d / n_workers of the columns: the least of some blocks."""
    X, triplets = data(d, n_blocks + 1, n_items=1500)
    with tempfile.TemporaryDirectory() as folder:
        only = ShardedLearner(learner(), 1, preprocessor=X, folder=folder, backend="serial")
        only.prepare()
        shard = Shard(folder, 0, n_workers)
        shard.restore(None)
        parts = shard.begin({"index": triplets}, 0, BLOCK)
        times = []
        while parts is not None:
            start = time.process_time()  # what the sums are does not change what a block costs
            parts = shard.advance(parts)
            times.append(time.process_time() - start)
        only.close()
    return min(times[:-1])  # the last one has no next block


class Summing:
    """An actor that sums parts as large as those of a block, and works out nothing."""

    def __init__(self, number):
        np.ones(
            2**21
        )  # after larger arrays, as a worker has, memory of this size is kept and used again
        ones = np.ones(BLOCK, np.float32)
        self.parts = np.ones(BLOCK), ones, (np.ones((BLOCK, BLOCK), np.float32), ones)
        self.exchange = Exchange(number, "127.0.0.1")

    def address(self):
        return self.exchange.address

    def seconds(self, addresses, n):
        self.exchange.meet(addresses, b"summing")
        times = [time.perf_counter()]
        for _ in range(n):
            self.exchange.sum(self.parts)
            times.append(time.perf_counter())
        return float(np.median(np.diff(times)))


def swap(is_first, n=200):
    """Seconds in which two workers of this machine swap and add their parts: the median."""
    with Cluster(2, num_cpus=4) as cluster:
        actors = [cluster.start(Summing, number) for number in range(2)]
        addresses = cluster.get([actor.address.remote() for actor in actors])
        with served_first(is_first):
            return max(cluster.get([actor.seconds.remote(addresses, n) for actor in actors]))


# -- on paper ---------------------------------------------------------------------------------------


class Costs:
    """What a block costs: products in proportion to the work, the rest to d, and log2 W swaps of sums."""

    def __init__(self, is_first):
        self.measured = {(d, w): block_of_worker(d, w) for d in (1536, 8192) for w in (4, 64)}
        fixed, rates = [], []
        for d in (1536, 8192):
            few, many = self.measured[d, 4], self.measured[d, 64]
            rate = (work(d, 4) - work(d, 64)) / (few - many)
            rates.append(rate)
            fixed.append(max(0.0, many - work(d, 64) / rate))
        self.rates = dict(zip((1536, 8192), rates, strict=True))
        slope = max(0.0, (fixed[1] - fixed[0]) / (8192 - 1536))
        self.fixed = {d: fixed[0] + slope * (d - 1536) for d in PAPER}
        self.swap = swap(is_first)
        self.n_bytes = 4 * BLOCK**2 + 16 * BLOCK

    def rate(self, d):
        return self.rates[min(d, 8192)]

    def block(self, d, n_workers):
        return self.fixed[d] + work(d, n_workers) / self.rate(d)

    def speedup(self, d, n_workers, bandwidth):
        swaps = np.log2(n_workers) * (self.swap + self.n_bytes / bandwidth)
        return self.block(d, 1) / (self.block(d, n_workers) + swaps)


def work(d, n_workers):
    """Floating-point operations of a worker's products in a block."""
    columns = d / n_workers
    return 4 * BLOCK * d * columns + 2 * BLOCK**2 * columns


def report(turns, is_first):
    lines = [
        "| d | one process | two workers | speed | by the clock | largest difference |",
        "|---|---|---|---|---|---|",
    ]
    loads = []
    for d in WIDTHS:
        times, difference = compare(d, 40 if d < 2000 else 12, turns, is_first)
        loads.append(os.getloadavg()[0])
        one, two = times[:, :, 1].min(axis=0)
        by_clock = np.median(times[:, 0, 0] / times[:, 1, 0])
        lines.append(
            f"| {d:,} | {one:.0f} ms a block | {two:.0f} ms a block | {one / two:.2f}x | {by_clock:.2f}x | "
            f"{difference:.0e} |"
        )
    lines.append(
        f"\nBlocks of {BLOCK} triplets, float32, one BLAS thread a process, {turns} turns. Times are CPU times, the "
        "least of all turns; of two workers that of the slower one and of the driver together, which is what the "
        "clock shows where nothing else runs. By the clock: the median of the ratios, with a load of "
        f"{', '.join(f'{x:.1f}' for x in loads)} on {os.cpu_count()} cores"
        f"{', before other processes (--realtime)' if is_first else ''}. {machine()}.\n"
    )
    costs = Costs(is_first)
    head = " | ".join(f"{d:,}, {name}" for d in PAPER for name in NETWORKS)
    lines += [f"| workers | {head} |", "|---" * (1 + len(PAPER) * len(NETWORKS)) + "|"]
    for n_workers in WORKERS:
        cells = [
            f"{costs.speedup(d, n_workers, bandwidth):.1f}x"
            for d in PAPER
            for bandwidth in NETWORKS.values()
        ]
        lines.append(f"| {n_workers} | {' | '.join(cells)} |")
    measured = ", ".join(
        f"{1e3 * seconds:.0f} ms at d = {d:,} / {w}" for (d, w), seconds in costs.measured.items()
    )
    lines.append(
        f"\nMeasured for this curve, on one thread: a block of a worker takes {measured} columns, that is "
        f"{costs.rates[1536] / 1e9:.0f} and {costs.rates[8192] / 1e9:.0f} GFlop/s and "
        f"{1e3 * costs.fixed[1536]:.1f} and {1e3 * costs.fixed[8192]:.1f} ms that do not shrink with the columns; to "
        f"swap and add sums takes {1e3 * costs.swap:.1f} ms, log2 W times, and {costs.n_bytes / 1e6:.2f} MB travel "
        f"each way every time. d = 65,536 is worked out with the rate of d = 8,192."
    )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--realtime", action="store_true", help="before all other processes (needs root; Linux)"
    )
    parser.add_argument("--write", type=Path, nargs="?", const=ROOT / "docs" / "distributed.md")
    options = parser.parse_args()
    check_marks(parser, options.write, MARKS)
    with threadpool_limits(1):
        text = report(options.turns, options.realtime)
    print(text)
    if options.write is not None:
        put_between(options.write, MARKS, text)


if __name__ == "__main__":
    main()
