"""``simstream datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import FILE, debug_option, json_option
from .output import echo_json, echo_table


@click.command("datasets", short_help="List data sets and how to get them.")
@click.option(
    "--data-dir",
    type=FILE,
    help="Folder of data sets (default: the environment variable SIMSTREAM_DATA).",
)
@json_option
@debug_option
def list_datasets(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets that simstream knows by name, with the papers that use them.

    The verdict compares the data with the paper's: exact; a variant; partial; a stand-in of the same kind.
    Data sets marked extra or bundled are in no paper. Other data sets of the folder's index.json are listed
    too.
    """
    from .. import datasets

    present = datasets.available(data_dir)
    known = [_as_json(datasets.facts(name), present.get(name)) for name in datasets.names()]
    own = [
        {"name": name, "verdict": "extra", "present": source}
        for name, source in present.items()
        if name not in datasets.names()
    ]
    if as_json:
        echo_json([*known, *own])
        return
    echo_table(
        ["name", "rows x features x classes", "verdict", "papers", "found in, or how to get it"],
        [_row(record) for record in [*known, *own]],
        left=(2, 3, 4),
    )
    n_here = sum(record["present"] is not None for record in [*known, *own])
    click.echo(f"\n{n_here} of {len(known) + len(own)} are available")


def _as_json(facts: Any, source: str | None) -> dict[str, Any]:
    return {
        "name": facts.name,
        "title": facts.title,
        "rows": facts.rows or None,
        "features": facts.features,
        "classes": facts.classes or None,
        "size": facts.size,
        "verdict": facts.verdict,
        "papers": {paper: list(names) for paper, names in facts.papers.items()},
        "note": facts.note,
        "present": source,
        "how_to_get": facts.how_to_get,
    }


def _row(record: dict[str, Any]) -> list[str]:
    papers = record.get("papers", {})
    return [
        record["name"],
        record.get("size", ""),
        record["verdict"],
        ", ".join(f"{paper} {name}" for paper, names in papers.items() for name in names),
        record["present"] or record["how_to_get"],
    ]
