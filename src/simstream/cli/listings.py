"""``simstream algorithms`` and ``simstream datasets``: what is available."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..catalogue import ALGORITHMS as KNOWN
from ..catalogue import Algorithm, find
from .learners import ALGORITHMS, ELSEWHERE
from .options import PathType, json_option
from .output import echo_fields, echo_json, echo_table


@click.command("algorithms", short_help="List the available algorithms.")
@click.argument(
    "name",
    type=click.Choice(list(ALGORITHMS), case_sensitive=False),
    required=False,
    metavar="[NAME]",
)
@json_option
def list_algorithms(name: str | None, as_json: bool) -> None:
    """List the algorithms with their inputs, parameters, papers and updates; or show one in detail.

    \b
    simstream algorithms
    simstream algorithms pametric
    simstream algorithms --json

    In updates, x, x+, x- are a triplet and z = x+ - x-; v is the difference of the two items of a pair, y its
    label (+1 similar, -1 dissimilar); [a]+ is max(0, a); soft(a, t) shrinks entries by t towards 0; P+
    projects onto the positive semi-definite matrices; d(i,j) is the squared distance.
    """
    chosen = KNOWN if name is None else (find(name),)
    if as_json:
        documents = [_algorithm_as_json(algorithm) for algorithm in chosen]
        echo_json(documents if name is None else documents[0])
        return
    for place, algorithm in enumerate(chosen):
        if place:
            click.echo()
        title = f"{algorithm.name.lower()} ({algorithm.name})"
        echo_fields(_algorithm_fields(algorithm, in_detail=name is not None), title=title)
    if name is None:
        click.echo("\nDetails of one algorithm: simstream algorithms NAME")


def _given_by(parameter: str) -> str:
    return ELSEWHERE.get(parameter, f"--param {parameter}=...")


def _algorithm_as_json(algorithm: Algorithm) -> dict[str, Any]:
    return {
        "name": algorithm.name.lower(),
        "class": algorithm.name,
        "summary": algorithm.summary(),
        "input": list(algorithm.takes),
        "learns": algorithm.learns,
        "update": algorithm.update,
        "paper": algorithm.paper,
        "parameters": [
            parameter._asdict() | {"given_by": _given_by(parameter.name)}
            for parameter in algorithm.parameters()
        ],
    }


def _algorithm_fields(algorithm: Algorithm, in_detail: bool) -> dict[str, str]:
    parameters = algorithm.parameters()
    own = [parameter for parameter in parameters if parameter.name not in ELSEWHERE]
    fields = {
        "input": algorithm.input,
        "learns": algorithm.learns,
        "update": algorithm.update,
        "paper": algorithm.paper or "none",
    }
    if not in_detail:
        text = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in own)
        return fields | {"parameters": text or "none"}
    fields = {"about": algorithm.summary(), **fields}
    for parameter in parameters:
        given_by = f" [{_given_by(parameter.name)}]" if parameter.name in ELSEWHERE else ""
        text = f"{parameter.text} " if parameter.text else ""
        fields[f"{parameter.name}={parameter.default!r}"] = f"{text}({parameter.type}){given_by}"
    return fields


@click.command("datasets", short_help="List data sets and how to get them.")
@click.option(
    "--data-dir",
    type=PathType(exists=True, file_okay=False),
    help="Folder of data sets (default: the environment variable SIMSTREAM_DATA).",
)
@json_option
def list_datasets(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets that simstream knows by name, with the papers that use them.

    The verdict compares the data with the paper's: exact; a variant; partial; a stand-in of the same kind.
    Data sets marked extra or bundled are in no paper. Other data sets of the folder's index.json are listed
    too.
    """
    from .. import datasets
    from ..datasets.loading import VARIABLE

    present = datasets.available(data_dir)
    known = [_dataset_as_json(datasets.facts(name), present.get(name)) for name in datasets.names()]
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
        [_dataset_row(record) for record in [*known, *own]],
        left=(2, 3, 4),
    )
    n_here = sum(record["present"] is not None for record in [*known, *own])
    folder = data_dir or os.environ.get(VARIABLE)
    where = f"in {folder}" if folder else f"in no folder: set {VARIABLE} or give --data-dir"
    click.echo(f"\n{n_here} of {len(known) + len(own)} are available; looked {where}")


def _dataset_as_json(facts: Any, source: str | None) -> dict[str, Any]:
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


def _dataset_row(record: dict[str, Any]) -> list[str]:
    papers = record.get("papers", {})
    return [
        record["name"],
        record.get("size", ""),
        record["verdict"],
        ", ".join(f"{paper} {name}" for paper, names in papers.items() for name in names),
        record["present"] or record["how_to_get"],
    ]
