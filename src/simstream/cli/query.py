"""``simstream query`` finds similar items; ``simstream recall`` measures how many an index finds."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from .learners import similarity_of
from .options import (
    COUNT,
    FILE,
    NATURAL,
    Whole,
    address_option,
    item_ids_option,
    json_option,
    label_column_option,
    labels_option,
    memory_option,
    query_ids_option,
    refuse_options,
    scoring_device_option,
    workers_option,
)
from .output import echo_fields, echo_json, echo_table

if TYPE_CHECKING:
    from .inputs import Rows

#: At most this many queries are timed, one at a time.
_TIMED = 200

_COLUMNS = ("query", "rank", "item", "score")

#: Characters of a text that the table shows.
_TEXT_WIDTH = 60


@click.command(short_help="Find the most similar items.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@click.option("--queries", type=FILE, help="Find the ITEMS most similar to each row of this file.")
@click.option(
    "--row",
    "rows",
    type=NATURAL,
    multiple=True,
    help="Only this row of --queries, or this row of ITEMS (which is then left out of its own answers); "
    "may be repeated.",
)
@click.option(
    "--id", "names", multiple=True, help="The same by its id instead of its row; may be repeated."
)
@click.option("--task", help="Use this task's similarity (default: what all tasks share).")
@labels_option
@label_column_option
@item_ids_option
@query_ids_option
@click.option(
    "--texts",
    type=FILE,
    help="One text per item to show beside it (.txt), or JSON lines with id and text.",
)
@click.option("-k", type=COUNT, default=10, show_default=True, help="Items per query.")
@memory_option
@scoring_device_option
@workers_option
@address_option
@json_option
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Print query,rank,item,score as CSV, then label and text if there are some.",
)
def query(
    model: Path,
    items: Path,
    queries: Path | None,
    rows: tuple[int, ...],
    names: tuple[str, ...],
    task: str | None,
    labels_file: Path | None,
    label_column: str | int | None,
    item_ids: Path | None,
    query_ids: Path | None,
    texts: Path | None,
    k: int,
    memory: int,
    device: str,
    workers: int,
    address: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Find the ITEMS most similar to queries, using the similarity MODEL has learnt.

    Items are shown by id if they have ids, otherwise by row number (from 0); with their labels and texts, if
    there are some. Items in an .npy or .parquet file are read in blocks: the file may be larger than memory.

    \b
    simstream query model.safetensors items.npz --row 0 --row 7
    simstream query model.safetensors items.npz --queries new.npz -k 5 --csv
    simstream query model.safetensors docs.parquet --id doc-17 --texts docs.jsonl
    """
    from ..data import read_texts
    from ..search import search_rows
    from .inputs import open_model, read_collection
    from .sweeping import percents, runner_of

    if as_json and as_csv:
        raise click.UsageError("expected --json or --csv, got both")
    if queries is None and not rows and not names:
        raise click.UsageError("expected --queries, --row or --id, got none")
    if queries is None:
        refuse_options("requires --queries", {"--query-ids": query_ids is not None})
    opened = open_model(model)
    learner = similarity_of(opened.learner, task)
    data = read_collection(
        items,
        queries,
        model=opened,
        label_column=label_column,
        labels_file=labels_file,
        in_blocks=("npy", "parquet"),
    )
    if item_ids is not None or query_ids is not None or names:
        data = data.with_ids(item_ids, query_ids)
    asking, ids = data.asking, data.items.ids
    rows += _rows_called(asking, names)
    for row in rows:
        if row >= asking.n:
            raise click.BadParameter(
                f"expected a row number from 0 to {asking.n - 1} of {asking.path}, got {row}",
                param_hint="--row",
            )
    chosen = list(rows) if rows else list(range(asking.n))
    # One more if the item itself may be among the answers, from which it is then removed.
    is_own_item = queries is None
    asked = asking.take(chosen, learner.dtype_)
    with runner_of(workers, address, device) as runner, percents() as progress:
        found = search_rows(
            learner,
            asked,
            data.items.items,
            k + is_own_item,
            memory=memory,
            runner=runner,
            progress=progress,
        )
    extras = _extras(data.items, None if texts is None else read_texts(texts, ids or data.items.n))
    documents, cells = [], []
    for row, indices, scores in zip(chosen, found.indices, found.scores, strict=True):
        keep = (indices != row) if is_own_item else (indices >= 0)
        name = row if asking.ids is None else asking.ids[row]
        neighbours = []
        pairs = zip(indices[keep][:k].tolist(), scores[keep][:k].tolist(), strict=True)
        for rank, (item, score) in enumerate(pairs, 1):
            beside = {extra: values[item] for extra, values in extras.items()}
            cells.append((name, rank, item if ids is None else ids[item], score, *beside.values()))
            named = {} if ids is None else {"id": ids[item]}
            neighbours.append({"row": item, "score": score} | named | beside)
        documents.append({"query": name, "neighbours": neighbours})
    if as_json:
        echo_json(documents)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((*_COLUMNS, *extras))
        writer.writerows(cells)
    else:
        table = [
            [*map(str, cell[:3]), f"{cell[3]:.6g}", *(_shortened(extra) for extra in cell[4:])]
            for cell in cells
        ]
        echo_table((*_COLUMNS, *extras), table)


def _rows_called(asking: Rows, names: tuple[str, ...]) -> tuple[int, ...]:
    """Rows of the queries with these ids."""
    from ..ids import rows_called, some_of

    if names and asking.ids is None:
        raise click.UsageError(f"--id: {asking.path} has no ids; expected --row, or a file of ids")
    unknown: dict[Any, None] = {}
    rows_by_id = {name: row for row, name in enumerate(asking.ids or [])}
    found = rows_called(names, rows_by_id, unknown)
    if unknown:
        raise click.BadParameter(
            f"expected ids of {asking.path}, got {some_of(unknown)}", param_hint="--id"
        )
    return tuple(found)


def _extras(items: Rows, texts: list[str | None] | None) -> dict[str, list[Any]]:
    """What is shown beside items: labels, unless all are the same, and texts."""
    found: dict[str, list[Any]] = {}
    labels = items.label_list()
    if len(set(labels)) > 1:
        found["label"] = labels
    if texts is not None:
        found["text"] = texts
    return found


def _shortened(value: Any) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 3]}..."


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
@click.option("--expansion-add", type=COUNT, help="Candidates considered when an item is added.")
@click.option("--expansion-search", type=COUNT, help="Candidates considered in a search.")
@click.option("--seed", type=NATURAL, default=0, show_default=True, help="Seed of the draw.")
@json_option
def recall(
    model: Path,
    items: Path,
    queries: Path | None,
    n_queries: int,
    label_column: str | int | None,
    k: int,
    seed: int,
    as_json: bool,
    **graph: Any,
) -> None:
    """Measure how much an approximate index (HNSW, usearch) of ITEMS finds under MODEL's similarity.

    Prints recall@k (the share of the k best items by exact search that the index finds too) and the times to
    build the index and to answer one query, relative to exact search. The index holds the items unchanged;
    only queries are transformed (for a distance, and with normalise, items are mapped too).

    \b
    simstream recall model.safetensors items.npy -k 10
    simstream recall model.safetensors items.npy --expansion-search 200 --json
    """
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
    indices = ExactIndex(), HnswIndex(**graph)
    build = [_time(index.add, range(vectors.shape[0]), vectors) for index in indices]
    exact, approximate = indices
    found = recall_of(opened.learner, approximate, exact, asked, k)
    # One by one and in turns, so that whatever else the machine does affects both.
    transformed = query_vectors(opened.learner, asked[:_TIMED])
    times = [
        [_time(index.search, transformed[row : row + 1], k) for index in indices]
        for row in range(transformed.shape[0])
    ]
    compared = {
        name: {"exact_s": exact_s, "approximate_s": approximate_s, "ratio": approximate_s / exact_s}
        for name, (exact_s, approximate_s) in (
            ("build", build),
            ("query", np.median(times, axis=0).tolist()),
        )
    }
    if as_json:
        facts = {
            "model": str(model),
            "n_items": vectors.shape[0],
            "n_features": vectors.shape[1],
            "n_queries": asked.shape[0],
            "k": k,
            "graph": graph,
            "recall": found,
        }
        echo_json(facts | compared)
        return
    fields = {
        f"recall@{k}": f"{found:.4f}",
        "queries": f"{asked.shape[0]:,}",
        "items": f"{vectors.shape[0]:,} of {vectors.shape[1]} features",
    }
    for name, times_of in compared.items():
        text = f"{times_of['ratio']:.3g} times exact ({times_of['approximate_s']:.3g} s)"
        fields[f"{name} time"] = text
    echo_fields(fields, title=f"{model.name}: usearch against exact search")


def _time(work: Callable[..., Any], *arguments: Any) -> float:
    begin = perf_counter()
    work(*arguments)
    return perf_counter() - begin
