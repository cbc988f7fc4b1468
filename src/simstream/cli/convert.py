"""``simstream convert``."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FILE, debug_option, json_option, label_column_option, on_error_option

KINDS = ("items", "triplets", "pairs", "model")


@click.command(short_help="Convert items, triplets, pairs, or a model to its matrix.")
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=FILE, metavar="OUT")
@click.option(
    "--kind", type=click.Choice(KINDS), help="What IN holds (default: found out by looking at it)."
)
@click.option(
    "--task", help="Whose matrix, of a model of many tasks (default: what all have in common)."
)
@label_column_option
@on_error_option
@json_option
@debug_option
def convert(
    source: Path,
    target: Path,
    kind: str | None,
    task: str | None,
    label_column: str | int | None,
    on_error: str,
    as_json: bool,
) -> None:
    """Convert items, triplets or pairs to another format of them, a model to its matrix.

    \b
    simstream convert items.svm.gz items.npz
    simstream convert judgements.csv judgements.jsonl.gz
    simstream convert model.safetensors matrix.npy     (dense; .npz is CSR)
    simstream convert model.safetensors ann.npy --task ann
    """
    from .conversion import convert_file
    from .output import configure_logging, echo_json

    configure_logging(quiet=False)
    written = convert_file(source, target, kind, label_column, on_error, task)
    if as_json:
        echo_json(written)
    else:
        click.echo(f"{target}: {written['description']}")
