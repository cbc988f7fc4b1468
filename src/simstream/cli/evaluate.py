"""``simstream evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .algorithms import BASELINES
from .options import (
    FILE,
    CommaSeparated,
    check_picture,
    debug_option,
    json_option,
    labels_options,
    on_error_option,
    tasks_option,
)

#: Model name -> measure -> value.
_Results = dict[str, dict[str, float]]

#: Tasks that have a column each.
_MOST_TASKS = 8


@click.command(short_help="Measure a model beside the baselines.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@labels_options
@click.option("--queries", type=FILE, help="Rank ITEMS for these queries, not for each other.")
@click.option("--query-labels", type=FILE, help="Labels of --queries (default: those in the file).")
@tasks_option
@click.option("--query-tasks", type=FILE, help="Tasks of --queries.")
@click.option(
    "--triplets",
    type=FILE,
    help="Triplets of row numbers to decide, perhaps with columns task and y.",
)
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
    simstream evaluate model.safetensors test.npz --tasks test-users.txt

    With --tasks, or triplets with a column task, every task is measured by itself, with its own matrix
    where the model has one (else with what all tasks have in common): items rank items of their own task.
    The table shows averages over tasks.
    """
    from .evaluation import EvaluateOptions, evaluate_model
    from .output import configure_logging, echo_json, echo_table, logger

    configure_logging(quiet=False)
    if plot is not None:
        check_picture(plot)
    named = tuple(name for name in baseline if name != "none")
    evaluation = evaluate_model(EvaluateOptions(baseline=named, **others))
    results, facts, by_task = evaluation
    if as_json:
        echo_json(facts | {"results": results} | ({"tasks": by_task} if by_task else {}))
    else:
        echo_table(*_table(results, by_task), title=_title(facts))
    if plot is not None:
        from ..plots import measures_figure, save_figure

        drawn = _drawn(results)
        parts = [_drawn(measures) for measures in by_task.values()]
        save_figure(measures_figure(drawn, title=_title(facts), parts=parts), plot)
        logger.info("picture written to %s", plot)


def _table(results: _Results, by_task: dict[str, _Results]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a measure each; tasks, where there are some, after the learnt model's average."""
    from .evaluation import LEARNT

    learnt, *others = results
    tasks = [part[LEARNT] for part in by_task.values()]
    in_full = len(tasks) <= _MOST_TASKS
    between = list(by_task) if in_full else ["lowest task", "highest task"]
    rows = []
    for measure in results[learnt]:
        values = [part.get(measure) for part in tasks]
        if not in_full:
            known = [value for value in values if value is not None]
            values = [min(known), max(known)]
        own = [results[learnt][measure], *values]
        row = [*own, *(results[name].get(measure) for name in others)]
        rows.append([measure, *("" if value is None else f"{value:.4f}" for value in row)])
    return ["measure", learnt, *between, *others], rows


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
    if "measured" in facts:
        parts.append(facts["measured"])
    if "n_tasks" in facts:
        parts.append(f"average over {facts['n_tasks']:,} tasks")
    return ", ".join(parts)
