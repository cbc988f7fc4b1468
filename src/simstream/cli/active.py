"""``simstream active``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .algorithms import ASKING
from .options import (
    FILE,
    CommaSeparated,
    check_picture,
    debug_option,
    json_option,
    labels_options,
    on_error_option,
    params_option,
    quiet_option,
    tasks_option,
)


class _Stop(Exception):
    """A signal has arrived."""


@click.command(short_help="See what answers are worth: ask actively, at random, or all.")
@click.argument("items", type=FILE)
@labels_options
@tasks_option
@click.option(
    "--triplets",
    type=FILE,
    help="Recorded triplets with their answers (columns y and task) instead of labels.",
)
@click.option(
    "--algorithm",
    "-a",
    type=click.Choice(ASKING, case_sensitive=False),
    default=ASKING[0],
    show_default=True,
    help="What learns.",
)
@params_option
@click.option(
    "--deltas",
    type=CommaSeparated(click.FLOAT, "d,d,..."),
    default="0.001,0.01,0.03,0.1,0.3,1",
    show_default=True,
    help="Values of ask_delta: a question with margin p is asked with probability d / (d + |p|).",
)
@click.option(
    "--n-tuples",
    "--n-triplets",
    "-n",
    "n_tuples",
    type=click.IntRange(min=1),
    help="Questions to consider, drawn from labels (default: 20,000).",
)
@click.option(
    "--seeds",
    "n_seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Repetitions, each with its own split and stream.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed."
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Share of items (of triplets, with --triplets) held out to measure on.",
)
@click.option(
    "--n-test",
    type=click.IntRange(min=1),
    help="Held-out triplets drawn from labels (default: 10,000).",
)
@on_error_option
@click.option("--unit-norm", is_flag=True, help="Scale rows to length one.")
@json_option
@click.option("--plot", type=FILE, help="Draw the table into this file (.png, .svg, .pdf).")
@quiet_option
@debug_option
def active(
    params: tuple[tuple[str, Any], ...],
    n_tuples: int | None,
    n_test: int | None,
    as_json: bool,
    plot: Path | None,
    quiet: bool,
    **others: Any,
) -> None:
    """Simulate active learning: how good does the similarity get with how many answers?

    A stream of questions (is the anchor more like the first or the second candidate?) is shown to learners
    that ask for the answers where they are unsure (active, for each of --deltas), for as many at random, or
    for all. All strategies see the same stream. What they have learnt is measured on items, or recorded
    triplets, that were held out, task by task, and averaged over tasks. dot is the inner product, untrained.

    \b
    simstream active items.npz --plot active.png
    simstream active items.npz --tasks users.txt -p C=0.1 -n 20000 --seeds 5
    simstream active items.npy --triplets answers.csv --deltas 0.01,0.1,1 --json

    Ctrl-C shows what the finished seeds have given.
    """
    from .active_learning import ActiveOptions, Result, Study, summarise_results
    from .interruption import Interruption, stopping_at_once
    from .output import configure_logging, echo_json, echo_table, logger
    from .progress import work

    configure_logging(quiet)
    if plot is not None:
        check_picture(plot)
    if others["triplets"] is not None:
        for option, given in (
            ("--labels", others["labels_file"]),
            ("--tasks", others["tasks_file"]),
            ("--n-tuples", n_tuples),
            ("--n-test", n_test),
        ):
            if given is not None:
                raise click.UsageError(
                    f"{option} is about triplets drawn from labels: not with --triplets"
                )
    options = ActiveOptions(
        params=dict(params), n_tuples=n_tuples or 20_000, n_test=n_test or 10_000, **others
    )
    with stopping_at_once("interrupted before the first question: there is nothing to show"):
        study = Study(options)
    finished: list[Result] = []
    n_done = 0
    with Interruption() as interruption:
        total = len(study.seeds()) * study.n_runs * study.n_rounds
        with work(quiet, total, "questions") as report:

            def advance(n: int) -> None:
                report(n)
                if interruption.requested():
                    raise _Stop

            for seed in study.seeds():
                try:
                    finished += list(study.run(seed, advance))
                except _Stop:
                    break
                n_done += 1
    is_cut = n_done < options.n_seeds
    if not finished:
        if not as_json:
            logger.warning(
                "interrupted before the first of %d seeds was done: there is nothing to show",
                options.n_seeds,
            )
        click.get_current_context().exit(128 + (interruption.signal or 0))
    summary = summarise_results(finished)
    facts = {
        "items": str(options.items),
        "algorithm": options.algorithm,
        "parameters": options.params,
        "n_questions": study.n_rounds,
        "n_seeds": n_done,
        "interrupted": is_cut,
    }
    title = (
        f"{options.items.name}, {options.algorithm}, {study.n_rounds:,} questions, "
        f"{n_done} seed{'s' if n_done > 1 else ''}"
    )
    if as_json:
        strategies = [_as_json(one) for one in summary]
        echo_json(facts | {"strategies": strategies, "runs": [one._asdict() for one in finished]})
    else:
        header = ["strategy", "delta", "asked", *study.measures]
        what = ", mean \u00b1 deviation" if n_done > 1 else ""
        echo_table(header, [_cells(one) for one in summary], title=f"{title}{what}")
    if plot is not None:
        from ..plots import active_figure, save_figure

        save_figure(active_figure(_curves(summary, study.measures), title=title), plot)
        logger.info("picture written to %s", plot)
    if is_cut:
        logger.warning("interrupted; %d of %d seeds were done", n_done, options.n_seeds)
        click.get_current_context().exit(128 + (interruption.signal or 0))


def _as_json(one: Any) -> dict[str, Any]:
    measures = {
        name: {"mean": mean, "spread": spread} for name, (mean, spread) in one.measures.items()
    }
    return {
        "strategy": one.strategy,
        "delta": one.delta,
        "asked": {"mean": one.asked, "spread": one.asked_spread},
        **measures,
    }


def _cells(one: Any) -> list[str]:
    from .output import as_percent

    delta = "" if one.delta is None else f"{one.delta:g}"
    values = [
        f"{mean:.4f}" if spread is None else f"{mean:.4f} \u00b1 {spread:.4f}"
        for mean, spread in one.measures.values()
    ]
    return [one.strategy, delta, as_percent(one.asked), *values]


def _curves(summary: list[Any], measures: tuple[str, ...]) -> dict[str, dict[str, list[Any]]]:
    """Measure -> strategy -> points (share asked, mean, spread), as the picture wants them."""
    curves: dict[str, dict[str, list[Any]]] = {}
    for measure in measures:
        of_measure = curves.setdefault(measure, {})
        for one in sorted(summary, key=lambda one: one.asked):
            of_measure.setdefault(one.strategy, []).append((one.asked, *one.measures[measure]))
    return curves
