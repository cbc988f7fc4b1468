"""Learning with several BLAS threads beside other work: run it on your machine to see what threads are worth.

    python benchmarks/bench_threads.py                    # beside as many busy processes as there are cores
    python benchmarks/bench_threads.py --busy 0           # on an idle machine

Every number of threads has a process of its own, since a BLAS reads its environment when it is loaded.
"""

import argparse
import os
import subprocess
import sys

from simstream.cli.threads import VARIABLES, free_cpus

LEARN = """
import sys, time
import numpy as np
from simstream import OASIS

d, n = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
X = (rng.normal(size=(1000, d)) / np.sqrt(d)).astype(np.float32)
triplets = rng.integers(0, 300, (n, 3)) + [0, 300, 600]
learner = OASIS(preprocessor=X).fit(triplets[:500])
times = []
for _ in range(3):
    started = time.perf_counter()
    learner.partial_fit(triplets)
    times.append(time.perf_counter() - started)
print(n / sorted(times)[1])
"""


def rate(d, n, n_threads):
    """Triplets per second, the median of three."""
    environment = os.environ | dict.fromkeys(VARIABLES, str(n_threads))
    command = [sys.executable, "-c", LEARN, str(d), str(n)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def main():
    """Print a table."""
    cores = os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, default=cores, help="processes that do nothing but run")
    parser.add_argument("--threads", default=f"1,{cores}", help="numbers of threads to compare")
    parser.add_argument("-n", type=int, default=10_000, help="triplets")
    given = parser.parse_args()
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)
    ]
    threads = [int(number) for number in given.threads.split(",")]
    try:
        load = f"load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
        print(f"{cores} cores, {given.busy} busy processes, {load}; free: {free_cpus()}")
        print(
            "| features |"
            + "".join(f" {number} thread{'s' * (number > 1)} |" for number in threads)
        )
        print("|---:|" + "---:|" * len(threads))
        for d in (128, 512):
            rates = [rate(d, given.n, number) for number in threads]
            print(f"| {d} |" + "".join(f" {value:,.0f}/s |" for value in rates), flush=True)
    finally:
        for process in others:
            process.kill()


if __name__ == "__main__":
    main()
