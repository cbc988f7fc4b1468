"""``simstream query``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click

from .options import COUNT, FILE, NATURAL, debug_option, json_option, label_column_option
from .output import configure_logging, echo_json, echo_table
from .tasks import similarity_of

_COLUMNS = ("query", "rank", "item", "score")


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
@click.option("--task", help="Use this task's similarity (default: what all tasks share).")
@label_column_option
@click.option("-k", type=COUNT, default=10, show_default=True, help="Items per query.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print query,rank,item,score as CSV.")
@debug_option
def query(
    model: Path,
    items: Path,
    queries: Path | None,
    rows: tuple[int, ...],
    task: str | None,
    label_column: str | int | None,
    k: int,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Find the ITEMS most similar to queries, using the similarity MODEL has learnt.

    Items are shown by id if the file has ids, otherwise by row number (from 0).

    \b
    simstream query model.safetensors items.npz --row 0 --row 7
    simstream query model.safetensors items.npz --queries new.npz -k 5 --csv
    """
    from .inputs import open_model, read_collection

    configure_logging(quiet=False)
    if as_json and as_csv:
        raise click.UsageError("expected --json or --csv, got both")
    if queries is None and not rows:
        raise click.UsageError("expected --queries or --row, got neither")
    opened = open_model(model)
    learner = similarity_of(opened.learner, task)
    data = read_collection(items, queries, model=opened, label_column=label_column)
    asking, ids = data.asking, data.items.ids
    for row in rows:
        if row >= asking.n:
            raise ValueError(
                f"--row: expected a row number from 0 to {asking.n - 1} of {asking.path}, got {row}"
            )
    chosen = list(rows) if rows else list(range(asking.n))
    # One more if the item itself may be among the answers, from which it is then removed.
    is_own_item = queries is None
    found = learner.search(asking.items[chosen], data.items.items, k + is_own_item)
    documents, cells = [], []
    for row, indices, scores in zip(chosen, found.indices, found.scores, strict=True):
        keep = (indices != row) if is_own_item else (indices >= 0)
        name = row if asking.ids is None else asking.ids[row]
        neighbours = []
        pairs = zip(indices[keep][:k].tolist(), scores[keep][:k].tolist(), strict=True)
        for rank, (item, score) in enumerate(pairs, 1):
            cells.append((name, rank, item if ids is None else ids[item], score))
            neighbours.append(
                {"row": item, "score": score} | ({} if ids is None else {"id": ids[item]})
            )
        documents.append({"query": name, "neighbours": neighbours})
    if as_json:
        echo_json(documents)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(cells)
    else:
        echo_table(_COLUMNS, [[*map(str, cell[:3]), f"{cell[3]:.6g}"] for cell in cells])
