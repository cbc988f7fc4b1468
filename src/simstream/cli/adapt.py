"""``simstream adapt``: the command and its options; `adapting` does the work."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    FILE,
    NATURAL,
    SHARE,
    item_ids_option,
    json_option,
    n_features_option,
    parse_value,
    query_ids_option,
    quiet_option,
)
from .output import configure_logging

#: What a gain can be measured by: those of `simstream.adaptation.report`, which takes a while to import.
MEASURES = ("nDCG@10", "mAP", "P@1", "recall@10")


def _half_life(ctx: click.Context, _: click.Parameter, text: str | None) -> Any:
    """A number, or None for "none"; ``...`` stands for an option that is not given."""
    if text is None:
        return ...
    value = parse_value(text)
    if isinstance(value, (bool, str)):
        raise click.BadParameter(f"expected a number of queries or none, got {text!r}")
    return value


@click.command(short_help="Adapt a search to judgements or clicks, if that is safe.")
@click.option("--items", type=FILE, required=True, help="Vectors of the items that are searched.")
@click.option(
    "--queries",
    type=FILE,
    help="Vectors of the queries (default: items look for items, in --relevance).",
)
@click.option(
    "--relevance",
    type=FILE,
    help="Judgements: query, item and maybe a grade, above 0 if relevant (.tsv, .csv, .txt, .jsonl, .npy, "
    ".npz, .parquet).",
)
@click.option(
    "--clicks",
    type=FILE,
    help="A log of searches: JSON lines with query, shown and clicked. The query may be a vector.",
)
@n_features_option
@item_ids_option
@query_ids_option
@click.option(
    "--propensity",
    metavar="none|POWER|FILE",
    default="none",
    show_default=True,
    help="How likely an item was looked at: (1/rank)^POWER, or a file with one number per rank. A click "
    "counts by its inverse, at most 10 times.",
)
@click.option(
    "--texts",
    type=FILE,
    help="One text per query (.txt), or JSON lines with id and text: shown in the report.",
)
@click.option("--output", "-o", type=FILE, help="Model file to write (default: that of --resume).")
@click.option("--resume", type=FILE, help="Model file to go on with.")
@click.option("--report", type=FILE, help="Write a report to this file (.md or .json).")
@click.option("--plot", type=FILE, help="Draw the report to this file (.png, .svg, .pdf).")
@click.option(
    "--measure",
    type=click.Choice(MEASURES, case_sensitive=False),
    help=f"What a gain is measured by (default: {MEASURES[0]}).",
)
@click.option(
    "--caution",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Standard errors by which a gain must exceed 0 (default: 1).",
)
@click.option(
    "--clearance",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Standard errors by which relevant items must have risen (default: 2.5).",
)
@click.option(
    "--half-life",
    metavar="N|none",
    callback=_half_life,
    help="Queries after which a gain counts half (default: 500).",
)
@click.option(
    "--holdout",
    type=SHARE,
    help="Never learn from this share of the judged queries, and measure the outcome on them.",
)
@click.option("--seed", type=NATURAL, help="Seed of the random negatives (default: 0).")
@click.option(
    "--unit-norm/--no-unit-norm",
    default=None,
    help="Scale rows to length one, so that the baseline is the cosine; evaluate and query will do the same.",
)
@json_option
@quiet_option
def adapt(**given: Any) -> None:
    """Adapt the ranking of a vector search to feedback; never worse than the baseline, as far as can be
    measured.

    \b
    simstream adapt --items items.npy --queries queries.npy \\
        --relevance relevance.tsv -o model.safetensors --report report.md
    simstream adapt --items items.npz --queries queries.npz \\
        --clicks clicks.jsonl --propensity 1.0 -o model.safetensors
    simstream query model.safetensors items.npy --queries queries.npy

    The baseline is the inner product of query and item. Every query is searched before it is learnt from;
    what was learnt is used as far as these searches show a gain that is not chance. Where there is none, the
    model is the baseline, and the exit code is 0 all the same. The index of the items stays as it is: only
    queries are transformed.

    Feedback names items and queries by their ids if they have some, else by row number (from 0). An .npz file
    may hold both, as arrays items and queries.

    The gain in the report is measured on every query before it is learnt from. --holdout measures the
    finished model too, on queries that are kept apart; which ones depends on their names alone.

    Ctrl-C saves what was learnt so far. The same command with --resume continues from there, and reads on
    where a file of feedback has grown.
    """
    from .adapting import AdaptOptions, adapt_search

    configure_logging(given["quiet"])
    adapt_search(AdaptOptions(**given))
