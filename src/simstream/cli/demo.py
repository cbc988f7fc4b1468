"""``simstream demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import debug_option, json_option


@click.command(short_help="All of it on bundled digits, in seconds.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where to put data, model and picture.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--n-triplets",
    "-n",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Triplets each method learns from.",
)
@json_option
@debug_option
def demo(output_dir: Path, seed: int, n_triplets: int, as_json: bool) -> None:
    """Learn the similarity of handwritten digits and compare with plain distances.

    Uses scikit-learn's bundled digits: half of each class to learn from, half to measure on.
    """
    from . import digits_demo as digits
    from .output import as_count, configure_logging, echo_json, logger

    configure_logging(quiet=False)
    logger.info(
        "digits: learning from %s triplets of one half, measuring on the other",
        as_count(n_triplets),
    )
    outcome = digits.run(seed, n_triplets, report=lambda name: logger.info("%s ...", name))
    written = digits.write_files(outcome, output_dir)
    picture = _draw(outcome, output_dir)
    written += [] if picture is None else [picture]
    commands = digits.commands(outcome, output_dir)
    if as_json:
        echo_json(
            digits.as_json(outcome) | {"files": list(map(str, written)), "commands": commands}
        )
        return
    _print_table(outcome)
    click.echo("\n".join(["", *digits.findings(outcome), "", "The same by commands:"]))
    click.echo("\n".join(f"  {command}" for command in commands))
    click.echo("\nwritten: " + ", ".join(map(str, written)))


def _draw(outcome: Any, folder: Path) -> Path | None:
    from ..plots import PlottingUnavailableError, save_figure
    from . import digits_demo as digits
    from .output import logger

    try:
        figure = digits.figure(outcome)
    except PlottingUnavailableError as error:
        logger.warning("no picture: %s", error)
        return None
    save_figure(figure, folder / "demo.png")
    return folder / "demo.png"


def _print_table(outcome: Any) -> None:
    from .output import as_percent, as_rate, echo_table

    rows = [
        [
            result.name,
            *(f"{result.measures[measure]:.4f}" for measure in outcome.measures),
            as_percent(result.sparsity),
            "" if result.is_baseline else as_rate(result.rate),
        ]
        for result in outcome.results
    ]
    echo_table(["similarity", *outcome.measures, "zeros in M", "learnt at"], rows)
