"""``simstream recall``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from .options import COUNT, FILE, NATURAL, Whole, debug_option, json_option, label_column_option
from .output import as_count, configure_logging, echo_fields, echo_json

#: At most this many queries are timed, one at a time.
_TIMED = 200


@click.command(short_help="Measure an approximate index against exact search.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@click.option("--queries", type=FILE, help="Rows to search for (default: ITEMS themselves).")
@click.option(
    "-n",
    "n_queries",
    type=COUNT,
    default=1000,
    show_default=True,
    help="Number of queries, drawn at random if there are more.",
)
@label_column_option
@click.option("-k", type=COUNT, default=10, show_default=True, help="Items per query.")
@click.option("--connectivity", type=Whole(min=2), help="Neighbours per node of the graph.")
@click.option(
    "--expansion-add",
    type=COUNT,
    help="Candidates considered when an item is added.",
)
@click.option("--expansion-search", type=COUNT, help="Candidates considered in a search.")
@click.option("--seed", type=NATURAL, default=0, show_default=True, help="Seed of the draw.")
@json_option
@debug_option
def recall(as_json: bool, **options: Any) -> None:
    """Measure how much an approximate index (HNSW, usearch) of ITEMS finds under MODEL's similarity.

    Prints recall@k (the share of the k best items by exact search that the index finds too) and the times to
    build the index and to answer one query, relative to exact search. The index holds the items unchanged;
    only queries are transformed (for a distance, items are mapped too).

    \b
    simstream recall model.safetensors items.npy -k 10
    simstream recall model.safetensors items.npy --expansion-search 200 --json
    """
    configure_logging(quiet=False)
    try:
        facts = _measure(**options)
    except ImportError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        echo_json(facts)
        return
    build, query = facts["build"], facts["query"]
    echo_fields(
        {
            f"recall@{facts['k']}": f"{facts['recall']:.4f}",
            "queries": as_count(facts["n_queries"]),
            "items": f"{as_count(facts['n_items'])} of {facts['n_features']} features",
            "build time": f"{build['ratio']:.3g} times exact ({build['approximate_s']:.3g} s)",
            "query time": f"{query['ratio']:.3g} times exact ({query['approximate_s']:.3g} s)",
        },
        title=f"{Path(facts['model']).name}: usearch against exact search",
    )


def _measure(
    model: Path,
    items: Path,
    queries: Path | None,
    n_queries: int,
    label_column: str | int | None,
    k: int,
    seed: int,
    **graph: Any,
) -> dict[str, Any]:
    import numpy as np

    from ..search import ExactIndex, HnswIndex, item_vectors, query_vectors
    from ..search import recall as recall_of
    from .inputs import open_model, read_collection

    opened = open_model(model)
    data = read_collection(items, queries, model=opened, label_column=label_column)
    vectors = item_vectors(opened.learner, data.items.items)
    asked = data.asking.items
    if asked.shape[0] > n_queries:
        drawn = np.random.default_rng(seed).choice(asked.shape[0], n_queries, replace=False)
        asked = asked[np.sort(drawn)]
    exact, approximate = ExactIndex(), HnswIndex(**graph)
    build = [_time(index.add, range(vectors.shape[0]), vectors) for index in (exact, approximate)]
    found = recall_of(opened.learner, approximate, exact, asked, k)
    # One by one and in turns, so that whatever else the machine does affects both.
    transformed = query_vectors(opened.learner, asked[:_TIMED])
    times = [
        [_time(index.search, query, k) for index in (exact, approximate)]
        for query in (transformed[row : row + 1] for row in range(transformed.shape[0]))
    ]
    return {
        "model": str(model),
        "n_items": vectors.shape[0],
        "n_features": vectors.shape[1],
        "n_queries": asked.shape[0],
        "k": k,
        "graph": graph,
        "recall": found,
        "build": _compared(*build),
        "query": _compared(*np.median(times, axis=0).tolist()),
    }


def _time(work: Callable[..., Any], *arguments: Any) -> float:
    begin = perf_counter()
    work(*arguments)
    return perf_counter() - begin


def _compared(exact: float, approximate: float) -> dict[str, float]:
    return {"exact_s": exact, "approximate_s": approximate, "ratio": approximate / exact}
