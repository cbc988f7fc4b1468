"""``simstream datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import FILE, debug_option, json_option


@click.command("datasets", short_help="List data sets, and how to get those that are not here.")
@click.option(
    "--data-dir",
    type=FILE,
    help="Folder of data sets. Default: the environment variable SIMSTREAM_DATA.",
)
@json_option
@debug_option
def list_datasets(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets that simstream knows by name, with the papers that use them.

    The verdict says what the data are to the paper's: exact; a variant; partial; a stand-in of the same kind;
    extra and bundled ones are in no paper. Data sets of the folder's index.json that have no such record are
    listed too.
    """
    from .. import datasets
    from .output import echo_json, echo_table

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
        ["name", "rows x features x classes", "verdict", "papers", "here from, or how to get it"],
        [_row(record) for record in [*known, *own]],
        left=(2, 3, 4),
    )
    n_here = sum(record["present"] is not None for record in [*known, *own])
    click.echo(f"\n{n_here} of {len(known) + len(own)} are here")


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
