"""A few numbers to follow from commit to commit with asv: `make bench-track`.

They are small (seconds each) and on made-up items; the measurements of docs/benchmarks.md are those of `make bench`.
"""

import numpy as np
import scipy.linalg  # noqa: F401  its BLAS must be there to be limited
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import simstream

N_ITEMS, N_TRIPLETS = 5000, 20_000


def dense(d):
    rng = np.random.default_rng(0)
    items = rng.normal(size=(N_ITEMS, d)).astype(np.float32)
    return items / np.linalg.norm(items, axis=1, keepdims=True)


def sparse(d, n_entries):
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(N_ITEMS), n_entries)
    columns = rng.integers(0, d, len(rows))
    values = rng.random(len(rows), np.float32)
    return sp.coo_matrix((values, (rows, columns)), (N_ITEMS, d)).tocsr()


def triplets(n=N_TRIPLETS):
    rng = np.random.default_rng(1)
    anchors = rng.integers(0, N_ITEMS, n)
    return np.column_stack(
        [anchors, *((anchors + rng.integers(1, N_ITEMS // 2, n) * s) % N_ITEMS for s in (1, -1))]
    )


class OneThread:
    """Benchmarks on one BLAS thread, compiled before they are timed."""

    timeout = 300

    def setup(self, *_):
        self.limits = threadpool_limits(1)

    def teardown(self, *_):
        self.limits.unregister()


class Dense(OneThread):
    """Triplets of dense items."""

    params = [[64, 768], ["OASIS", "AROMA", "SORS"]]
    param_names = ["d", "learner"]

    def setup(self, d, learner):
        super().setup()
        n = N_TRIPLETS if d < 100 or learner == "OASIS" else N_TRIPLETS // 20
        self.items, self.triplets = dense(d), triplets(n)
        self.learner = getattr(simstream, learner)
        self.learner(preprocessor=self.items).fit(self.triplets[:100])

    def time_fit(self, d, learner):
        self.learner(preprocessor=self.items).fit(self.triplets)


class Sparse(OneThread):
    """Triplets of sparse items, 50,000 features."""

    params = ["OASIS", "SORS", "AdaSORS"]
    param_names = ["learner"]

    def setup(self, learner):
        super().setup()
        self.items = sparse(50_000, 50)
        self.triplets = triplets(5000)
        self.learner = getattr(simstream, learner)
        self.learner(preprocessor=self.items, head_bytes=100_000_000).fit(self.triplets[:100])

    def time_fit(self, learner):
        self.learner(preprocessor=self.items, head_bytes=100_000_000).fit(self.triplets)

    def peakmem_fit(self, learner):
        self.learner(preprocessor=self.items, head_bytes=100_000_000).fit(self.triplets)


class Stream(OneThread):
    """One comparison at a time."""

    def setup(self):
        super().setup()
        self.items, self.triplets = dense(16).astype(np.float64), triplets(1000)
        self.model = simstream.OASIS().learn_one(*self.items[self.triplets[0]])

    def time_learn_one(self):
        for anchor, positive, negative in self.items[self.triplets]:
            self.model.learn_one(anchor, positive, negative)


class Use(OneThread):
    """What a fitted model does."""

    def setup(self):
        super().setup()
        self.items = dense(128)
        self.model = simstream.OASIS(preprocessor=self.items).fit(triplets(2000))

    def time_search(self):
        self.model.search(self.items[:200], self.items, k=10)

    def time_triplet_margin(self):
        self.model.triplet_margin(triplets())


def timeraw_import():
    """`import simstream` in a new process."""
    return "import simstream"


def timeraw_import_learner():
    """The same with a learner."""
    return "from simstream import OASIS"
