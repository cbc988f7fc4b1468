"""``simstream demo digits``: learn a similarity of bundled handwritten digits, compare it, look at it.

All learners run with their default parameters, read as cosines in the learnt space, except that SORS and
AdaSORS regularise strongly enough for zeros to show. The learner called best, and saved, is the one with the
highest mAP on the held-out half: read the differences between learners accordingly.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .output import as_percent, as_rate, echo_json, echo_table, logger

if TYPE_CHECKING:
    import numpy as np

#: Triplets that each method learns from.
N_TRIPLETS = 100_000

_TRIPLET_ACCURACY = "triplet accuracy"
_RANKING_MEASURES = ("mAP", "P@1", "P@10")
_MEASURES = (*_RANKING_MEASURES, _TRIPLET_ACCURACY)
_N_TEST_TRIPLETS = 20_000
_N_NEIGHBOURS = 8
#: Data and model, so that the printed commands work.
_FILES = ("digits-train.npz", "digits-test.npz", "digits-test-triplets.csv", "best.safetensors")


def show(output_dir: Path, seed: int, n_triplets: int, as_json: bool) -> None:
    """Run the demo, write its files and print its results."""
    from ..data import write_items, write_triplets
    from ..plots import PlottingUnavailableError, save_figure

    logger.info(
        "digits: learning from %s triplets of one half, measuring on the other", f"{n_triplets:,}"
    )
    outcome = run(seed, n_triplets)
    split = outcome.split
    output_dir.mkdir(parents=True, exist_ok=True)
    train, test, triplets, model = (output_dir / name for name in _FILES)
    write_items(train, split.train_items, labels=split.train_labels)
    write_items(test, split.test_items, labels=split.test_labels)
    write_triplets(triplets, outcome.test_triplets)
    outcome.best.model.save(model)
    written = [train, test, triplets, model]
    try:
        drawn = figure(outcome)
    except PlottingUnavailableError as error:
        logger.warning("no picture: %s", error)
    else:
        written.append(output_dir / "demo.png")
        save_figure(drawn, written[-1])
    commands = commands_for(outcome, output_dir)
    if as_json:
        results = {
            result.name: result.measures
            | {"sparsity": result.sparsity}
            | ({} if result.is_baseline else {"triplets_per_second": result.rate})
            for result in outcome.results
        }
        facts = {"seed": seed, "n_triplets": n_triplets, "best": outcome.best.name}
        files = list(map(str, written))
        echo_json(facts | {"results": results, "files": files, "commands": commands})
        return
    rows = [
        [
            result.name,
            *(f"{result.measures[measure]:.4f}" for measure in _MEASURES),
            as_percent(result.sparsity),
            "" if result.is_baseline else as_rate(result.rate),
        ]
        for result in outcome.results
    ]
    echo_table(["similarity", *_MEASURES, "zeros in M", "triplets"], rows)
    click.echo("\n".join(["", *findings(outcome), "", "To repeat it with commands:"]))
    click.echo("\n".join(f"  {command}" for command in commands))
    click.echo("\nwritten: " + ", ".join(map(str, written)))


# -- learning and measuring -----------------------------------------------------------------------


class Split(NamedTuple):
    """Digits of 8 x 8 pixels: half of each class to learn from, half held out."""

    train_items: np.ndarray
    train_labels: np.ndarray
    test_items: np.ndarray
    test_labels: np.ndarray


class MethodResult(NamedTuple):
    """One method: what it learnt and how good it is."""

    name: str
    model: Any
    measures: dict[str, float]
    sparsity: float
    #: Triplets learnt per second.
    rate: float
    is_baseline: bool


class DigitsOutcome(NamedTuple):
    """The whole comparison."""

    seed: int
    n_triplets: int
    split: Split
    test_triplets: np.ndarray
    results: list[MethodResult]

    @property
    def baseline(self) -> MethodResult:
        """The cosine, which is what most people use."""
        return next(result for result in self.results if result.name == "cosine")

    @property
    def best(self) -> MethodResult:
        """The learner with the highest mAP."""
        learnt = [result for result in self.results if not result.is_baseline]
        return max(learnt, key=lambda result: result.measures["mAP"])


def methods() -> dict[str, Any]:
    """The similarities to compare, not yet trained."""
    from .. import AROMA, OASIS, OGD, SORS, AdaSORS, Dot, Euclidean

    return {
        "Euclidean": Euclidean(),
        "cosine": Dot(),  # the inner product of rows of length one
        "OASIS": OASIS(normalise=True),
        "OGD": OGD(normalise=True),
        "SORS-I": SORS(lam=1e-4, normalise=True),
        "AdaSORS-I": AdaSORS(lam=1e-4, normalise=True),
        "AROMA": AROMA(normalise=True),
    }


def load_split(seed: int = 0) -> Split:
    """Digits, rows of length one, divided at random within each class."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import normalize

    items, labels = load_digits(return_X_y=True)
    items = normalize(items)
    rng = np.random.default_rng(seed)
    is_train = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        is_train[members[: len(members) // 2]] = True
    return Split(items[is_train], labels[is_train], items[~is_train], labels[~is_train])


def run(seed: int = 0, n_triplets: int = 100_000) -> DigitsOutcome:
    """Train every method on the same triplets, and measure it."""
    from .. import Dot, Euclidean, TripletSampler
    from ..metrics import ranking_report, triplet_accuracy

    split = load_split(seed)
    triplets = TripletSampler(split.train_labels, seed).draw(n_triplets)
    test_triplets = TripletSampler(split.test_labels, seed + 1).draw(_N_TEST_TRIPLETS)
    results = []
    for name, model in methods().items():
        logger.info("%s ...", name)
        model.set_params(preprocessor=split.train_items).fit(triplets[:10])  # compiles
        started = time.perf_counter()
        model.fit(triplets)
        rate = n_triplets / (time.perf_counter() - started)
        ranking = ranking_report(model, split.test_items, split.test_labels, k=(1, 10))
        measures = {measure: ranking[measure] for measure in _RANKING_MEASURES}
        model.set_params(preprocessor=split.test_items)
        measures[_TRIPLET_ACCURACY] = triplet_accuracy(model, test_triplets)
        is_baseline = isinstance(model, Dot | Euclidean)
        results.append(MethodResult(name, model, measures, model.sparsity_, rate, is_baseline))
    return DigitsOutcome(seed, n_triplets, split, test_triplets, results)


# -- showing it -----------------------------------------------------------------------------------


def findings(outcome: DigitsOutcome) -> list[str]:
    """What the numbers say, in sentences; also where the learnt similarity is worse."""
    best, baseline = outcome.best, outcome.baseline
    lines = [f"{best.name} has the highest mAP. Compared with the cosine:"]
    for measure in _MEASURES:
        before, after = baseline.measures[measure], best.measures[measure]
        verdict = "better" if after > before else "worse" if after < before else "the same"
        lines.append(
            f"  {measure:<17} {before:.3f} -> {after:.3f}  ({after - before:+.3f}, {verdict})"
        )
    lines.append("On rows of length one, Euclidean distance and cosine give the same ranking.")
    return lines


def commands_for(outcome: DigitsOutcome, folder: Path) -> list[str]:
    """Commands that train the best model again, measure it and use it."""
    train, test, triplets, _ = (folder / name for name in _FILES)
    model = outcome.best.model
    name = type(model).__name__.lower()
    defaults = type(model)().get_params()
    params = "".join(
        f" -p {key}={value}"
        for key, value in model.get_params().items()
        if key != "preprocessor" and value != defaults[key]
    )
    output = folder / f"{name}.safetensors"
    return [
        f"simstream train {train} -a {name}{params} -n {outcome.n_triplets} "
        f"--seed {outcome.seed} -o {output}",
        f"simstream evaluate {output} {test} --triplets {triplets} -k 1,10",
        f"simstream query {output} {test} --row 0 -k {_N_NEIGHBOURS}",
    ]


def figure(outcome: DigitsOutcome) -> Any:
    """The comparison as a matplotlib figure: mAP of all methods, and what example queries find."""
    from ..plots import retrieval_figure

    return retrieval_figure(
        {result.name: result.measures["mAP"] for result in outcome.results},
        examples(outcome),
        measure=f"mAP on {len(outcome.split.test_labels)} held-out digits (higher is better)",
        title="Learnt similarities and baselines",
        subtitle=f"The {_N_NEIGHBOURS} held-out digits most similar to a query, wrong ones framed;\n"
        "queries chosen by how much their average precision (AP) changes",
    )


def examples(outcome: DigitsOutcome) -> list[Any]:
    """The two queries that gain most (of different classes), a typical one, and the one that loses most."""
    import numpy as np

    from ..plots import Example, Ranking

    items, labels = outcome.split.test_items, outcome.split.test_labels
    images = items.reshape(-1, 8, 8)
    contestants = [outcome.baseline, outcome.best]
    precisions, orders = [], []
    for result in contestants:
        scores = np.array(result.model.score_items(items, items))
        np.fill_diagonal(scores, -np.inf)  # never the query itself
        order = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
        is_right = labels[order] == labels[:, None]
        precision = np.cumsum(is_right, axis=1) / np.arange(1, order.shape[1] + 1)
        orders.append(order)
        precisions.append((precision * is_right).sum(axis=1) / is_right.sum(axis=1))
    by_gain = np.argsort(precisions[1] - precisions[0], kind="stable")
    most = int(by_gain[-1])
    chosen = {
        "gains most": most,
        f"gains most (not a {labels[most]})": next(
            int(query) for query in by_gain[::-1] if labels[query] != labels[most]
        ),
        "median change": int(by_gain[len(by_gain) // 2]),
        "loses most": int(by_gain[0]),
    }
    found = []
    for title, query in chosen.items():
        rankings = tuple(
            Ranking(
                result.name,
                images[order[query, :_N_NEIGHBOURS]],
                labels[order[query, :_N_NEIGHBOURS]] == labels[query],
                float(precision[query]),
            )
            for result, order, precision in zip(contestants, orders, precisions, strict=True)
        )
        found.append(Example(f"a {labels[query]}: {title}", images[query], rankings))
    return found
