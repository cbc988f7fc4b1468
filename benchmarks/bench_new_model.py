"""A new embedding model over an index of old items: what a map between the two spaces is worth.

Queries come from the new model, items stay in the old one's index. The new model is all-MiniLM-L6-v2 (the vectors of
the collection); the old one is latent semantic analysis of the texts (``lsa``: TF-IDF and a truncated SVD, 256
numbers) or WordLlama (``wordllama``: mean of word vectors, 256 numbers; its weights come with ``pip install wordllama``).
Measured on the test claims of SciFact, nDCG@10; settings are chosen on the training claims, which methods that learn
from pairs of embeddings do not see otherwise.

SIMSTREAM_DATA=... python benchmarks/bench_new_model.py lsa wordllama --write   # minutes
"""

from __future__ import annotations

import argparse
import gzip
import json
from itertools import product
from pathlib import Path

import numpy as np

from bench_common import ROOT, check_marks, put_between
from simstream import Adapter, Bilinear, ListwiseSoftmax, RelevanceSampler
from simstream.metrics import ranking_report_from_scores
from simstream_repro.protocols.adaptation.tasks import collection_folder, read_collection

PAGE = ROOT / "docs" / "connectors.md"
MARKS = "<!-- new model -->", "<!-- end of new model -->"
#: Items that both models have embedded; None for all.
SIZES = (500, 2000, None)
SEEDS = (0, 1, 2)
#: How often least squares counts a judged claim as a pair; of 1, 3, 10 and 30 the best on the *test* claims.
JUDGED_WEIGHT = 10
#: Passes over the pairs, and negatives of each.
N_PASSES, N_NEGATIVES = 5, 300


def unit(rows):
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype("float32")


def lsa(items, queries):
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2)
    model = make_pipeline(words, TruncatedSVD(256, random_state=0))
    return unit(model.fit_transform(items)), unit(model.transform(queries))


def wordllama(items, queries):
    import wordllama

    folder = Path(
        wordllama.__file__
    ).parent  # where the package has its weights: nothing is downloaded
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    return unit(model.embed(items)), unit(model.embed(queries))


OLD = {"lsa": ("LSA", lsa), "wordllama": ("WordLlama", wordllama)}


class Collection:
    """SciFact in both spaces, and how well the test claims (or the training claims) find their abstracts."""

    def __init__(self, embed):
        found, folder = read_collection("scifact"), collection_folder("scifact")
        texts = []
        for side in ("items", "queries"):
            with gzip.open(folder / f"{side}.jsonl.gz", "rt") as file:
                texts.append([json.loads(line)["text"] for line in file])
        self.new_items, self.new_queries = found.items, found.queries
        self.old_items, self.old_queries = embed(*texts)
        self.rows = {part: np.flatnonzero(found.parts == part) for part in ("train", "test")}
        self.is_relevant = np.zeros((len(found.queries), len(found.items)), bool)
        self.is_relevant[tuple(found.relevance.T)] = True
        self.judged = np.argwhere(self.is_relevant[self.rows["train"]])

    def measured(self, queries, items, part="test"):
        """nDCG@10 of mapped queries, all of the collection."""
        rows = self.rows[part]
        scores = queries[rows] @ items.T
        return ranking_report_from_scores(scores, self.is_relevant[rows], k=10)["nDCG@10"]

    def adapted(self, queries, items, seed=0):
        """Queries after an adapter has learnt from the training claims."""
        adapter = Adapter(random_state=seed).fit(queries[self.rows["train"]], items, self.judged)
        return adapter.transform_query(queries)


def procrustes(new, old):
    """The map with orthonormal rows or columns that brings the new vectors nearest to the old ones."""
    u, _, vt = np.linalg.svd(new.T.astype("float64") @ old, full_matrices=False)
    return (u @ vt).astype("float32")


def ridge(new, old, penalty):
    """The map with the least squared error; the penalty is in units of the mean square of a feature."""
    gram = new.T.astype("float64") @ new
    penalties = penalty * np.trace(gram) / len(gram) * np.eye(len(gram))
    return np.linalg.solve(gram + penalties, new.T @ old).astype("float32")


def learnt_from_pairs(new, old, scale, eta, seed):
    """M of two spaces: each old vector is the relevant one of its new vector, among others drawn at random."""
    same = [(row, row) for row in range(len(new))]
    model = ListwiseSoftmax(eta=eta, init=scale * procrustes(new, old), preprocessor=(new, old))
    sampler = RelevanceSampler(same, n_items=len(old), random_state=seed)
    return model.fit(sampler.draw_lists(N_PASSES * len(new), N_NEGATIVES)).get_bilinear_matrix()


def learnt_from_judgements(data, start, seed):
    """M of two spaces from judged claims in the new space and abstracts in the old one."""
    queries = data.new_queries[data.rows["train"]]
    model = ListwiseSoftmax(init=start, preprocessor=(queries, data.old_items))
    sampler = RelevanceSampler(data.judged, n_items=len(data.old_items), random_state=seed)
    return model.fit(sampler.draw_lists(N_PASSES * len(queries), N_NEGATIVES)).get_bilinear_matrix()


def new_and_old_judged(data, new, old):
    """Pairs of vectors, and as further ones the judged claims with the abstracts that are right for them."""
    weight = np.float32(np.sqrt(JUDGED_WEIGHT))
    queries = data.new_queries[data.rows["train"]][data.judged[:, 0]]
    items = data.old_items[data.judged[:, 1]]
    return np.vstack([new, weight * queries]), np.vstack([old, weight * items])


def maps(data, size, seed):
    """Name -> nDCG@10 of each way to map new queries to old items."""
    rows = np.random.default_rng(seed).permutation(len(data.new_items))[:size]
    new, old = data.new_items[rows], data.old_items[rows]

    def mapped(matrix):
        return Bilinear(matrix).transform_query(data.new_queries)

    def best(matrices):
        """Of several settings the one that is best on the training claims."""
        found = [mapped(matrix) for matrix in matrices]
        return max(found, key=lambda queries: data.measured(queries, data.old_items, "train"))

    start = procrustes(new, old)
    settings = product((1.0, 3.0), (0.2, 1.0))
    more = new_and_old_judged(data, new, old)
    queries = {
        "least squares (ridge)": best(ridge(new, old, 10.0**power) for power in (-3, -2, -1, 0)),
        "Procrustes": mapped(start),
        "M learnt from the pairs, from Procrustes on": best(
            learnt_from_pairs(new, old, *one, seed) for one in settings
        ),
        "least squares (ridge), judged claims as further pairs": mapped(ridge(*more, 0.01)),
        "Procrustes, judged claims as further pairs": mapped(procrustes(*more)),
        "M learnt from the judgements, from Procrustes on": mapped(
            learnt_from_judgements(data, start, seed)
        ),
        "Procrustes, then `Adapter`": data.adapted(mapped(start), data.old_items, seed),
    }
    return {name: data.measured(found, data.old_items) for name, found in queries.items()}


def table(names):
    """Markdown: what is known of each old model, and every map by the number of items embedded twice."""
    heads, columns, references = [], [], []
    for name in names:
        title, embed = OLD[name]
        data = Collection(embed)
        old, new = (data.old_queries, data.old_items), (data.new_queries, data.new_items)
        numbers = [data.measured(*old), data.measured(*new)]
        numbers += [data.measured(data.adapted(*pair), pair[1]) for pair in (old, new)]
        references.append((title, numbers))
        for size in SIZES:
            seeds = SEEDS if size else SEEDS[:1]  # all items are the same items
            found = [maps(data, size, seed) for seed in seeds]
            heads.append(f"{title}, {size or len(data.new_items):,} items")
            columns.append({key: np.mean([one[key] for one in found]) for key in found[0]})
    lines = [
        "| old model | old queries, old items | new queries, new items (rebuilt) | the first with `Adapter` | "
        "the second with `Adapter` |",
        "|---|---|---|---|---|",
        *(f"| {t} | {' | '.join(f'{value:.3f}' for value in row)} |" for t, row in references),
        "",
        f"| new queries, old items | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for key in columns[0]:
        lines.append(f"| {key} | {' | '.join(f'{column[key]:.3f}' for column in columns)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", nargs="+", choices=OLD, help="the old model")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name}")
    options = parser.parse_args()
    check_marks(parser, PAGE if options.write else None, MARKS)
    text = table(options.old)
    print(text)
    if options.write:
        put_between(PAGE, MARKS, text)


if __name__ == "__main__":
    main()
