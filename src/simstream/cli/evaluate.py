"""``simstream evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .algorithms import BASELINES
from .options import (
    FILE,
    CommaSeparated,
    debug_option,
    json_option,
    labels_options,
    on_error_option,
)


@click.command(short_help="Measure a model beside the baselines.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@labels_options
@click.option("--queries", type=FILE, help="Rank ITEMS for these queries, not for each other.")
@click.option("--query-labels", type=FILE, help="Labels of --queries (default: those in the file).")
@click.option("--triplets", type=FILE, help="Triplets of row numbers to decide.")
@click.option("--pairs", type=FILE, help="Pairs of row numbers with +1 or -1 to decide.")
@click.option(
    "-k",
    type=CommaSeparated(click.IntRange(min=1), "k,k,..."),
    default="1,5,10",
    show_default=True,
    help="Lengths of the list for P@k, mAP@k, recall@k, nDCG@k and the k-NN error.",
)
@click.option(
    "--baseline",
    type=CommaSeparated(click.Choice([*BASELINES, "none"]), "name,name"),
    default=",".join(BASELINES),
    show_default=True,
    help="Similarities without training to compare with, or none.",
)
@on_error_option
@json_option
@click.option("--plot", type=FILE, help="Draw the table as bars into this file (.png, .svg, .pdf).")
@debug_option
def evaluate(baseline: tuple[str, ...], as_json: bool, plot: Path | None, **others: Any) -> None:
    """Measure MODEL on ITEMS beside the baselines.

    With labels, every item ranks all others (or --queries rank ITEMS), and items of its class are the
    relevant ones: mAP, MRR, nDCG, P@k, mAP@k, recall@k, and the error of k-NN. With --triplets, the
    share decided rightly. With --pairs, the share on the right side of the model's threshold (where
    it has one) and the area under the ROC curve.

    \b
    simstream evaluate model.safetensors test.svm -k 1,10 --plot report.png
    simstream evaluate model.safetensors items.npy --triplets held-out.csv --json
    simstream evaluate model.safetensors items.npy --pairs held-out-pairs.csv
    """
    from .evaluation import EvaluateOptions, evaluate_model
    from .output import configure_logging, echo_json, echo_table, logger

    configure_logging(quiet=False)
    if plot is not None:
        _check_picture(plot)
    named = tuple(name for name in baseline if name != "none")
    evaluation = evaluate_model(EvaluateOptions(baseline=named, **others))
    results, facts = evaluation
    if as_json:
        echo_json(facts | {"results": results})
    else:
        learnt = next(iter(results.values()))
        rows = [
            [
                measure,
                *(f"{one[measure]:.4f}" if measure in one else "" for one in results.values()),
            ]
            for measure in learnt
        ]
        echo_table(["measure", *results], rows, title=_title(facts))
    if plot is not None:
        from ..plots import measures_figure, save_figure

        drawn = _drawn(results)
        save_figure(measures_figure(drawn, title=_title(facts)), plot)
        logger.info("picture written to %s", plot)


def _drawn(results: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What can be drawn side by side: what all have, and of which more is better."""
    from .evaluation import is_error

    names = [
        measure
        for measure in next(iter(results.values()))
        if not is_error(measure) and all(measure in measures for measures in results.values())
    ]
    return {
        name: {measure: measures[measure] for measure in names}
        for name, measures in results.items()
    }


def _check_picture(path: Path) -> None:
    """Find out before measuring whether a picture can be drawn."""
    from ..plots import PlottingUnavailableError, check_extension

    try:
        check_extension(path)
    except PlottingUnavailableError as error:
        raise click.BadParameter(str(error), param_hint="--plot") from error


def _title(facts: dict[str, Any]) -> str:
    parts = [Path(facts["model"]).name]
    if "n_queries" in facts:
        left_out = (
            f" ({facts['n_left_out']:,} without a relevant item)" if facts["n_left_out"] else ""
        )
        parts.append(f"{facts['n_queries']:,} queries{left_out}")
    if "n_triplets" in facts:
        parts.append(f"{facts['n_triplets']:,} triplets")
    if "n_pairs" in facts:
        parts.append(f"{facts['n_pairs']:,} pairs ({facts['n_similar']:,} similar)")
    return ", ".join(parts)
