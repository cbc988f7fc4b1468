"""``simstream query``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from .options import FILE, debug_option, json_option, label_column_option


class _Answer(NamedTuple):
    """The most similar items of one query, best first."""

    query: int | str
    rows: list[int]
    names: list[int | str]
    scores: list[float]

    def as_json(self) -> dict[str, Any]:
        found = zip(self.rows, self.names, self.scores, strict=True)
        return {
            "query": self.query,
            "neighbours": [
                {"row": row, "score": score} | ({} if name == row else {"id": name})
                for row, name, score in found
            ],
        }

    def as_cells(self) -> list[tuple[Any, ...]]:
        ranked = enumerate(zip(self.names, self.scores, strict=True), 1)
        return [(self.query, rank, name, score) for rank, (name, score) in ranked]


_COLUMNS = ("query", "rank", "item", "score")


@click.command(short_help="Find the most similar items.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@click.option("--queries", type=FILE, help="Rows to find the most similar ITEMS for.")
@click.option(
    "--row",
    "rows",
    type=click.IntRange(min=0),
    multiple=True,
    help="Row of --queries, or of ITEMS (then the item itself is not an answer); may be repeated.",
)
@click.option(
    "--task", help="Whose similarity: a task of a model of many (default: what all share)."
)
@label_column_option
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Items wanted.")
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
    """Find the ITEMS most similar to queries, by the similarity that MODEL has learnt.

    Items are called by their id where the file has ids, else by their row number (from 0).

    \b
    simstream query model.safetensors items.npz --row 0 --row 7
    simstream query model.safetensors items.npz --queries new.npz -k 5 --csv > neighbours.csv
    """
    from .output import configure_logging, echo_json, echo_table

    configure_logging(quiet=False)
    if as_json and as_csv:
        raise click.UsageError("expected --json or --csv, got both")
    if queries is None and not rows:
        raise click.UsageError("expected --queries or --row, got neither")
    answers = _search(model, items, queries, rows, k, label_column, task)
    if as_json:
        echo_json([answer.as_json() for answer in answers])
        return
    cells = [cell for answer in answers for cell in answer.as_cells()]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(cells)
    else:
        echo_table(_COLUMNS, [[*map(str, cell[:3]), f"{cell[3]:.6g}"] for cell in cells])


def _search(
    path: Path,
    items: Path,
    queries: Path | None,
    rows: tuple[int, ...],
    k: int,
    label_column: str | int | None,
    task: str | None,
) -> list[_Answer]:
    from .inputs import open_model, read_for_model
    from .tasks import of_task, what_all_share

    model = open_model(path)
    learner = what_all_share(model.learner) if task is None else of_task(model.learner, task)
    data = read_for_model(model, items, queries, label_column)
    asked = data.items if data.queries is None else data.queries
    n_asked = asked.items.shape[0]
    for row in rows:
        if row >= n_asked:
            raise ValueError(
                f"--row: expected a row number from 0 to {n_asked - 1} of {queries or items}, got {row}"
            )
    chosen = list(rows) if rows else list(range(n_asked))
    # One more where the item itself may be among the answers and is taken out.
    leave_out_self = queries is None
    found = learner.search(asked.items[chosen], data.items.items, k + leave_out_self)
    answers = []
    for row, indices, scores in zip(chosen, found.indices, found.scores, strict=True):
        keep = (indices != row) if leave_out_self else (indices >= 0)
        numbers = indices[keep][:k].tolist()
        ids = data.items.ids
        names = numbers if ids is None else [ids[number] for number in numbers]
        asked_name = row if asked.ids is None else asked.ids[row]
        answers.append(_Answer(asked_name, numbers, names, scores[keep][:k].tolist()))
    return answers
