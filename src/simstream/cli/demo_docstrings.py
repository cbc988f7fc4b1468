"""``simstream demo``: a search in docstrings learns from their authors' own "See Also" links.

Half of the functions and classes that link to others are learnt from; the links of the other half are held
out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .output import echo_json, echo_table, logger

if TYPE_CHECKING:
    import numpy as np

    from ..datasets import SeeAlso
    from ..metrics import Interval

#: From queries and items to the similarity of each query to each item.
Scorer = Callable[[Any, Any], Any]

#: Triplets to learn from, drawn from all judgements.
N_TRIPLETS = 16_000

MEASURES = ("nDCG@10", "P@1", "mAP", "recall@10")
#: The measure of the picture and of the choice of examples.
_MAIN = MEASURES[0]
#: Numbers of judgements after which the search is measured; the last measure is after all of them.
_STAGES = (100, 300, 1000)
#: The items are multiplied by the square root of this: learning starts from M = 3 I, so that the margin of 1
#: is about as large as the differences between similarities. The ranking of the unchanged items is the same.
_SCALE = 3.0
#: Share of negatives that are near the query by what was learnt so far, and how many count as near.
_NEAR_SHARE, _NEAR = 0.8, 20
_N_SHOWN = 5
_FILES = ("docstrings.npz", "learnt.safetensors")


def show(output_dir: Path, seed: int, n_triplets: int, as_json: bool) -> None:
    """Run the demo, write its files and print its results."""
    from ..data import write_items
    from ..plots import PlottingUnavailableError, save_figure

    outcome = run(seed, n_triplets)
    output_dir.mkdir(parents=True, exist_ok=True)
    data, model = (output_dir / name for name in _FILES)
    write_items(data, outcome.corpus.vectors, ids=outcome.corpus.names)
    outcome.model.save(model)
    written = [data, model]
    try:
        drawn = figure(outcome)
    except PlottingUnavailableError as error:
        logger.warning("no picture: %s", error)
    else:
        written.append(output_dir / "demo.png")
        save_figure(drawn, written[-1])
    found = examples(outcome)
    commands = commands_for(outcome, output_dir)
    files = list(map(str, written))
    if as_json:
        facts = {
            "seed": seed,
            "n_items": len(outcome.corpus.names),
            "n_judgements": outcome.stages[-1].n_judgements,
            "n_queries": len(outcome.queries),
            "n_triplets": n_triplets,
            "seconds": outcome.seconds,
            "versions": outcome.corpus.versions,
        }
        results = {
            measure: {
                "cosine": float(outcome.before[measure].mean()),
                "learnt": float(outcome.after[measure].mean()),
                "gain": outcome.gain(measure)._asdict(),
            }
            for measure in MEASURES
        }
        curve = [
            {"n_judgements": stage.n_judgements} | outcome.gain(_MAIN, stage)._asdict()
            for stage in outcome.stages
        ]
        told = {"results": results, "curve": curve, "examples": [e._asdict() for e in found]}
        echo_json(facts | told | {"files": files, "commands": commands})
        return
    rows = []
    for measure in MEASURES:
        gain = outcome.gain(measure)
        values = (outcome.before[measure].mean(), outcome.after[measure].mean())
        interval = f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        rows.append([measure, *(f"{value:.3f}" for value in values), interval])
    click.echo(about(outcome))
    echo_table(["", "cosine", "learnt", "gain, with its 95 % interval"], rows)
    click.echo("\n" + "\n\n".join(map(told_example, found)))
    click.echo("\n" + "\n".join(["To go on:", *(f"  {command}" for command in commands)]))
    click.echo("\nwritten: " + ", ".join(files))


# -- learning and measuring -----------------------------------------------------------------------


class Stage(NamedTuple):
    """The search after some judgements."""

    n_judgements: int
    #: Each measure of each held-out query.
    values: dict[str, np.ndarray]


class DocstringsOutcome(NamedTuple):
    """The whole comparison."""

    corpus: SeeAlso
    #: Rows of the held-out queries, and the links to find.
    queries: np.ndarray
    test_links: np.ndarray
    #: Each measure of each held-out query, by the cosine.
    before: dict[str, np.ndarray]
    stages: list[Stage]
    #: What was learnt from all judgements.
    model: Any
    #: Time spent on learning.
    seconds: float

    @property
    def after(self) -> dict[str, np.ndarray]:
        """Each measure of each held-out query, after all judgements."""
        return self.stages[-1].values

    def gain(self, measure: str, stage: Stage | None = None) -> Interval:
        """The mean gain over the cosine, with its interval."""
        from ..metrics import paired_interval

        after = self.after if stage is None else stage.values
        return paired_interval(after[measure] - self.before[measure])


def run(seed: int = 0, n_triplets: int = N_TRIPLETS) -> DocstringsOutcome:
    """Learn from one half of the queries, and measure on the other."""
    import numpy as np

    from ..datasets import load_see_also

    corpus = load_see_also()
    train, test = corpus.split(seed)
    queries = np.unique(test[:, 0])
    logger.info(
        "%d docstrings: learning from %d links, measuring on %d others",
        *(len(corpus.names), len(train), len(test)),
    )
    before = _measured(cosine, corpus, test)
    started, seconds = time.perf_counter(), 0.0
    stages = []
    for n_judgements, model in learn(corpus, train, seed, n_triplets):
        seconds += time.perf_counter() - started
        stages.append(Stage(n_judgements, _measured(model.score_items, corpus, test)))
        logger.info(
            "%d judgements: %s %.3f (cosine: %.3f)",
            *(n_judgements, _MAIN, stages[-1].values[_MAIN].mean(), before[_MAIN].mean()),
        )
        started = time.perf_counter()
    return DocstringsOutcome(corpus, queries, test, before, stages, model, seconds)


def learn(
    corpus: SeeAlso, links: np.ndarray, seed: int, n_triplets: int
) -> Iterator[tuple[int, Any]]:
    """Learn from links in their order of arrival; now and then, yield how many were seen, and the model."""
    import numpy as np

    from .. import OASIS

    rng = np.random.default_rng(seed)
    items = corpus.vectors * corpus.vectors.dtype.type(np.sqrt(_SCALE))
    model = OASIS(preprocessor=items)
    ends = [*(end for end in _STAGES if end < len(links)), len(links)]
    for end in ends:
        seen = links[:end]
        # What came last is learnt from most: before, there were fewer links to draw from.
        share = round(n_triplets * end / sum(ends))
        score = cosine if end == ends[0] else model.score_items
        model.partial_fit(_draw(score, items, seen, share, rng))
        yield end, model


def _draw(
    score: Scorer, items: Any, links: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Triplets (query, linked item, another item); most of the other items are near the query."""
    import numpy as np
    from scipy import sparse

    queries, row_of = np.unique(links[:, 0], return_inverse=True)
    linked = sparse.csr_matrix(
        (np.ones(len(links), bool), (row_of, links[:, 1])), shape=(len(queries), items.shape[0])
    ).toarray()
    linked[np.arange(len(queries)), queries] = True  # the query itself is no negative
    scores = np.array(score(items[queries], items))
    scores[linked] = -np.inf
    near = np.argpartition(-scores, _NEAR, axis=1)[:, :_NEAR]
    chosen = rng.integers(len(links), size=size)
    rows = row_of[chosen]
    negatives = np.where(
        rng.random(size) < _NEAR_SHARE,
        near[rows, rng.integers(_NEAR, size=size)],
        rng.integers(items.shape[0], size=size),
    )
    triplets = np.column_stack([links[chosen], negatives])
    return triplets[~linked[rows, negatives]]


def _measured(score: Scorer, corpus: SeeAlso, links: np.ndarray) -> dict[str, np.ndarray]:
    """The measures of every query: all other items are ranked."""
    from ..metrics import ranking_per_query

    queries, relevant, own = corpus.relevance(links)
    values = ranking_per_query(_scores(score, corpus, queries), relevant, exclude=own, k=(1, 10))
    return {measure: values[measure] for measure in MEASURES}


def _scores(score: Scorer, corpus: SeeAlso, queries: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.array(score(corpus.vectors[queries], corpus.vectors))


def cosine(queries: Any, items: Any) -> np.ndarray:
    """The inner products of sparse rows of length one."""
    return (queries @ items.T).toarray()


# -- showing it -----------------------------------------------------------------------------------


class BeforeAfter(NamedTuple):
    """A held-out query, and what is found for it before and after learning."""

    title: str
    query: str
    #: The items that its docstring links to.
    links: list[str]
    cosine: list[str]
    learnt: list[str]
    #: nDCG@10 before and after.
    values: tuple[float, float]


def examples(outcome: DocstringsOutcome) -> list[BeforeAfter]:
    """The query that gains most, the one in the middle, and the one that loses most."""
    import numpy as np

    before, after = outcome.before[_MAIN], outcome.after[_MAIN]
    by_gain = np.argsort(after - before, kind="stable")
    places = {
        "gains most": by_gain[-1],
        "median change": by_gain[len(by_gain) // 2],
        "loses most": by_gain[0],
    }
    chosen = np.array(list(places.values()))
    names = np.array(outcome.corpus.names)
    shown = []
    for score in (cosine, outcome.model.score_items):
        scores = _scores(score, outcome.corpus, outcome.queries[chosen])
        scores[np.arange(len(chosen)), outcome.queries[chosen]] = -np.inf
        shown.append(names[np.argsort(-scores, axis=1, kind="stable")[:, :_N_SHOWN]].tolist())
    found = []
    for number, (title, place) in enumerate(places.items()):
        query = outcome.queries[place]
        links = names[outcome.test_links[outcome.test_links[:, 0] == query, 1]].tolist()
        values = (float(before[place]), float(after[place]))
        found.append(
            BeforeAfter(title, str(names[query]), links, shown[0][number], shown[1][number], values)
        )
    return found


def about(outcome: DocstringsOutcome) -> str:
    """What was done, in one sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in outcome.corpus.versions.items())
    return (
        f"{len(outcome.corpus.names):,} docstrings ({versions}); learnt from "
        f"{outcome.stages[-1].n_judgements:,} See Also links in {outcome.seconds:.1f} s, measured on "
        f"{len(outcome.test_links):,} links of {len(outcome.queries)} other functions and classes.\n"
    )


def told_example(found: BeforeAfter) -> str:
    """An example as lines of text; what the authors link to has a star."""
    width = max(len(name) for name in (*found.cosine, *found.learnt)) + 2

    def starred(name: str) -> str:
        return f"{'*' if name in found.links else ' '} {name}"

    before, after = found.values
    lines = [f"{found.query} ({found.title}: {_MAIN} {before:.2f} -> {after:.2f})"]
    lines.append(f"  {'  cosine':<{width + 2}}  learnt")
    lines += [
        f"  {starred(old):<{width + 2}}{starred(new)}"
        for old, new in zip(found.cosine, found.learnt, strict=True)
    ]
    return "\n".join(lines)


def commands_for(outcome: DocstringsOutcome, folder: Path) -> list[str]:
    """Commands that use what was learnt, and one that learns from clicks."""
    data, model = (folder / name for name in _FILES)
    row = outcome.corpus.names.index(examples(outcome)[0].query)
    return [f"simstream query {model} {data} --row {row} -k 10", "simstream serve --demo"]


def figure(outcome: DocstringsOutcome) -> Any:
    """The gain by the number of judgements, and of every held-out query, as a matplotlib figure."""
    from ..plots import gain_figure

    return gain_figure(
        [(stage.n_judgements, *outcome.gain(_MAIN, stage)) for stage in outcome.stages],
        outcome.after[_MAIN] - outcome.before[_MAIN],
        measure=_MAIN,
        title=f"Search in docstrings, learnt from See Also links "
        f"(cosine: {outcome.before[_MAIN].mean():.3f})",
    )
