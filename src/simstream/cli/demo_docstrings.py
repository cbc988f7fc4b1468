"""``simstream demo``: a search in docstrings learns from their authors' own "See Also" links.

Half of the functions and classes that link to others are learnt from; the links of the other half are held
out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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

MEASURES = ("nDCG@10", "P@1", "mAP", "recall@10")
#: The measure of the picture and of the choice of examples.
_MAIN = MEASURES[0]
#: Numbers of judgements after which the search is measured, with the rest of the last one's query; the last
#: measure is after all of them.
_STAGES = (100, 300, 1000)
_N_SHOWN = 5
_FILES = ("docstrings.npz", "links.tsv", "adapter.safetensors")


def show(output_dir: Path, seed: int, as_json: bool) -> None:
    """Run the demo, write its files and print its results."""
    from ..data import atomic_write, write_items
    from ..plots import PlottingUnavailableError, save_figure

    outcome = run(seed)
    output_dir.mkdir(parents=True, exist_ok=True)
    data, links, model = (output_dir / name for name in _FILES)
    write_items(data, outcome.corpus.vectors, ids=outcome.corpus.names)
    with atomic_write(links) as temporary:
        names = outcome.corpus.names
        lines = (f"{names[query]}\t{names[item]}\n" for query, item in outcome.train_links.tolist())
        Path(temporary).write_text("query\titem\n" + "".join(lines))
    outcome.adapter.save(model)
    written = [data, links, model]
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
            "verdict": outcome.adapter.report().verdict,
            "seconds": outcome.seconds,
            "versions": outcome.corpus.versions,
        }
        results = {
            measure: {
                "cosine": float(outcome.before[measure].mean()),
                "adapted": float(outcome.after[measure].mean()),
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
    echo_table(["", "cosine", "adapted", "gain, with its 95 % interval"], rows)
    verdict = outcome.adapter.report().verdict
    click.echo(
        f"\nOn the queries it learnt from, each measured before, the adapter says:\n  {verdict}"
    )
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
    #: Links learnt from, in their order.
    train_links: np.ndarray
    #: Rows of the held-out queries, and the links to find.
    queries: np.ndarray
    test_links: np.ndarray
    #: Each measure of each held-out query, by the cosine.
    before: dict[str, np.ndarray]
    stages: list[Stage]
    #: After all judgements.
    adapter: Any
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


def run(seed: int = 0) -> DocstringsOutcome:
    """Learn from one half of the queries, and measure on the other."""
    import numpy as np

    from .. import Adapter
    from ..datasets import load_see_also

    corpus = load_see_also()
    train, test = corpus.split(seed)
    parts = by_queries(train, _STAGES)
    queries = np.unique(test[:, 0])
    logger.info(
        "%d docstrings: learning from %d links, measuring on %d others",
        *(len(corpus.names), len(train), len(test)),
    )
    before = _measured(cosine, corpus, test)
    adapter = Adapter(random_state=seed).set_items(corpus.vectors)
    own = range(len(corpus.names))  # every query is an item
    seconds, n_judgements, stages = 0.0, 0, []
    for part in parts:
        started = time.perf_counter()
        adapter.partial_fit(corpus.vectors, part, own_items=own)
        seconds += time.perf_counter() - started
        n_judgements += len(part)
        stages.append(Stage(n_judgements, _measured(adapter.score_items, corpus, test)))
        logger.info(
            "%d judgements: %s %.3f (cosine: %.3f)",
            *(n_judgements, _MAIN, stages[-1].values[_MAIN].mean(), before[_MAIN].mean()),
        )
    links = np.concatenate(parts)
    return DocstringsOutcome(corpus, links, queries, test, before, stages, adapter, seconds)


def by_queries(links: np.ndarray, ends: tuple[int, ...]) -> list[np.ndarray]:
    """Links in parts of whole queries, queries in the order in which they first appear.

    A part ends with the query that reaches one of the numbers `ends` of links.

    Examples
    --------
    >>> import numpy as np
    >>> links = np.array([[5, 1], [2, 3], [5, 4], [7, 0]])
    >>> [part.tolist() for part in by_queries(links, (1,))]
    [[[5, 1], [5, 4]], [[2, 3], [7, 0]]]
    """
    import numpy as np

    _, first, query_of = np.unique(links[:, 0], return_index=True, return_inverse=True)
    ordered = links[np.argsort(first[query_of], kind="stable")]
    lasts = np.flatnonzero(np.append(np.diff(ordered[:, 0]) != 0, True)) + 1
    cuts = [int(lasts[np.searchsorted(lasts, end)]) for end in ends if end < len(links)]
    return [part for part in np.split(ordered, np.unique(cuts)) if len(part)]


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
    adapted: list[str]
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
    for score in (cosine, outcome.adapter.score_items):
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
    width = max(len(name) for name in (*found.cosine, *found.adapted)) + 2

    def starred(name: str) -> str:
        return f"{'*' if name in found.links else ' '} {name}"

    before, after = found.values
    lines = [f"{found.query} ({found.title}: {_MAIN} {before:.2f} -> {after:.2f})"]
    lines.append(f"  {'  cosine':<{width + 2}}  adapted")
    lines += [
        f"  {starred(old):<{width + 2}}{starred(new)}"
        for old, new in zip(found.cosine, found.adapted, strict=True)
    ]
    return "\n".join(lines)


def commands_for(outcome: DocstringsOutcome, folder: Path) -> list[str]:
    """Commands that use what was learnt, and one that learns from clicks."""
    data, links, model = (folder / name for name in _FILES)
    row = outcome.corpus.names.index(examples(outcome)[0].query)
    return [
        f"simstream query {model} {data} --row {row} -k 10",
        f"simstream adapt --items {data} --relevance {links} -o {folder / 'again.safetensors'}",
        "simstream serve --demo",
    ]


def figure(outcome: DocstringsOutcome) -> Any:
    """The gain by the number of judgements, and of every held-out query, as a matplotlib figure."""
    from ..plots import gain_figure

    return gain_figure(
        [(stage.n_judgements, *outcome.gain(_MAIN, stage)) for stage in outcome.stages],
        outcome.after[_MAIN] - outcome.before[_MAIN],
        measure=_MAIN,
        title=f"A search in docstrings learns from See Also links: {_MAIN} of the cosine "
        f"{outcome.before[_MAIN].mean():.3f}, after learning {outcome.after[_MAIN].mean():.3f}",
    )
