"""Measure exact online learning on a CUDA device, beside minibatch SGD of torch and this library on the CPU.

    python benchmarks/bench_gpu.py            a table on the terminal
    python benchmarks/bench_gpu.py --write    the same, and docs/benchmarks-gpu.md

All columns of a row are measured in the same minute on the same machine. Items and triplets are random and lie
on the device before the clock starts, for SGD too; rates count everything after that, the copies of row
numbers to the device and of the counters back included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from bench_common import ROOT, machine
from simstream import OASIS, SDCA, Bilinear
from simstream.metrics import measure_ranking
from simstream.search import DeviceRunner, search_rows

N_ITEMS, N_TRIPLETS, N_EXACT, BATCH = 20_000, 2**20, 3_000, 1024
SIZES = (384, 768, 1536, 3072)


def problem(d, n, seed=0):
    """Items of length one on the device, and triplets of different rows."""
    generator = torch.Generator("cuda").manual_seed(seed)
    items = torch.randn(N_ITEMS, d, device="cuda", generator=generator)
    items /= items.norm(dim=1, keepdim=True)
    rng = np.random.default_rng(seed)
    triplets = rng.integers(0, N_ITEMS, (n, 3))
    same = (
        (triplets[:, 0] == triplets[:, 1])
        | (triplets[:, 0] == triplets[:, 2])
        | (triplets[:, 1] == triplets[:, 2])
    )
    triplets[same] = [0, 1, 2]
    return items, triplets


def rate(learn, n, repeats=3):
    """Triplets a second: the median of some runs, after one that compiles."""
    learn()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        learn()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return n / np.median(seconds)


def sgd(items, triplets):
    """Minibatch gradient descent on the same hinge loss, as one writes it with torch."""
    matrix = torch.nn.Parameter(torch.eye(items.shape[1], device="cuda"))
    optimiser = torch.optim.SGD([matrix], lr=0.1)
    index = torch.from_numpy(triplets).cuda()

    def learn():
        for begin in range(0, len(index), BATCH):
            part = index[begin : begin + BATCH]
            x, z = items[part[:, 0]], items[part[:, 1]] - items[part[:, 2]]
            loss = torch.relu(1 - ((x @ matrix) * z).sum(1)).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()

    return learn


def learner(items, triplets, **parameters):
    """OASIS, ready to go on: matrix, items and compiled kernels are in place."""
    model = OASIS(C=0.1, preprocessor=items, **parameters)
    model.partial_fit(triplets[:2048])
    return lambda: model.partial_fit(triplets)


def error(items, triplets, **parameters):
    """Largest difference to one-at-a-time learning in float64, relative to the largest entry of M."""
    host = items.cpu().numpy().astype(np.float64)
    exact = OASIS(C=0.1, block_size=1, preprocessor=host).fit(triplets).get_bilinear_matrix()
    model = OASIS(C=0.1, preprocessor=items, **parameters).fit(triplets)
    return np.abs(model.get_bilinear_matrix() - exact).max() / np.abs(exact).max()


def measure(d):
    items, triplets = problem(d, N_TRIPLETS)
    few = triplets[:N_EXACT]
    host = items.cpu().numpy()
    n_cpu = max(2048, int(2e9 / d / d))
    exact = rate(learner(items, triplets, device="cuda"), N_TRIPLETS)
    tf32 = rate(learner(items, triplets, device="cuda", precision="tf32"), N_TRIPLETS)
    batches = rate(sgd(items, triplets), N_TRIPLETS)
    cpu = rate(learner(host, triplets[:n_cpu]), n_cpu, repeats=1)
    return {
        "d": d,
        "exact, triplets/s": f"{exact / 1e6:.2f} M",
        "its error": f"{error(items, few, device='cuda'):.0e}",
        "TF32 products": f"{tf32 / 1e6:.2f} M",
        "their error": f"{error(items, few, device='cuda', precision='tf32'):.0e}",
        f"SGD of torch, minibatches of {BATCH}": f"{batches / 1e6:.2f} M",
        "exact / SGD": f"{exact / batches:.1f}x",
        "this library on the CPU": f"{cpu / 1e3:.1f} k",
        "exact / CPU": f"{exact / cpu:.0f}x",
    }


def seconds(work, repeats=2):
    """Least seconds of a call, after one that compiles."""
    work()
    least = np.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - begin)
    return least


def others():
    """Rows (work, seconds on the GPU, seconds on the CPU) of what is not online learning."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((1_000_000, 384), dtype=np.float32)
    queries, labels = items[:1000] + 0.5, rng.integers(0, 1000, len(items))
    model = Bilinear(np.eye(384, dtype=np.float32))
    runner = DeviceRunner("cuda")
    name = "1,000 queries, 1,000,000 items of 384 features"

    def search(where):
        return lambda: search_rows(model, queries, items, 10, runner=where)

    def evaluate(where):
        given = {"query_labels": labels[:1000], "item_labels": labels, "runner": where}
        return lambda: measure_ranking(model, queries, items, **given)

    yield f"search, {name}", seconds(search(runner)), seconds(search(None), 1)
    yield f"evaluate, {name}", seconds(evaluate(runner)), seconds(evaluate(None), 1)
    items, triplets = problem(768, 50_000)

    def ascend(device):
        model = SDCA(lam=1e-4, random_state=0, preprocessor=items.cpu().numpy(), device=device)
        return lambda: model.fit(triplets)

    name = "SDCA, an epoch of 50,000 draws and its certificate, 768 features"
    yield name, seconds(ascend("cuda")), seconds(ascend("cpu"), 1)


PAGE = """# On a GPU

OASIS in float32 from random unit vectors ({n} items, {t} triplets), learnt exactly: the same steps as one
triplet at a time, in blocks. Errors are the largest difference to one-at-a-time learning in float64 after {e}
triplets, relative to the largest entry of M. All columns of a row were measured in the same minute, by
`make bench-gpu` on: {machine}, {gpu}.

{table}

What is not online learning, in seconds, from arrays on the host and with everything that is copied:

{others}

SDCA's recursion runs on the CPU, and every block of 512 draws waits for it.
"""


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-gpu.md")
    parser.add_argument("--output", default=str(ROOT / "docs" / "benchmarks-gpu.md"))
    options = parser.parse_args()
    rows = []
    for d in SIZES:
        rows.append(measure(d))
        print(rows[-1], flush=True)
    text = markdown(list(rows[0]), [list(row.values()) for row in rows])
    print(text)
    more = [[work, f"{a:.2f}", f"{b:.2f}", f"{b / a:.0f}x"] for work, a, b in others()]
    rest = markdown(["", "GPU", "CPU", "CPU / GPU"], more)
    print(rest)
    if options.write:
        page = PAGE.format(
            n=f"{N_ITEMS:,}",
            t=f"{N_TRIPLETS:,}",
            e=f"{N_EXACT:,}",
            machine=machine(),
            gpu=torch.cuda.get_device_name(),
            table=text,
            others=rest,
        )
        with open(options.output, "w") as file:
            file.write(page)


if __name__ == "__main__":
    main()
