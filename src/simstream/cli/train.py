"""``simstream train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from .options import (
    FILE,
    debug_option,
    json_option,
    labels_options,
    on_error_option,
    params_option,
    quiet_option,
    tasks_option,
)


@click.command(short_help="Learn from labels, triplets, pairs or a stream.")
@click.argument("items", type=FILE)
@labels_options
@tasks_option
@click.option(
    "--triplets",
    type=FILE,
    help="Triplets of row numbers, perhaps with columns task and y: a file, or - for standard input.",
)
@click.option(
    "--pairs",
    type=FILE,
    help="Pairs of row numbers with +1 (similar) or -1: a file, or - for standard input.",
)
@click.option(
    "--queries", type=FILE, help="Items of the anchors, where these are not rows of ITEMS."
)
@click.option(
    "--algorithm",
    "-a",
    type=click.Choice(list(ALGORITHMS), case_sensitive=False),
    help=f"What learns (default: {DEFAULT_ALGORITHM}, or that of --resume).",
)
@params_option
@click.option(
    "--tuples",
    type=click.Choice(["auto", "triplets", "pairs"]),
    default="auto",
    show_default=True,
    help="What to draw from labels; auto is what the algorithm is made for.",
)
@click.option(
    "--n-tuples",
    "--n-triplets",
    "-n",
    "n_tuples",
    type=click.IntRange(min=1),
    help="Tuples to draw from labels, counting those before --resume (default: 100,000).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed of the tuples drawn from labels (default: 0).",
)
@click.option(
    "--output", "-o", type=FILE, help="Model file to write (default: the one of --resume)."
)
@click.option("--resume", type=FILE, help="Model file to go on from, where it stopped.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Save a checkpoint to --output every N tuples.",
)
@on_error_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    help="Precision (default: that of the items).",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    help="Dense tuples learnt together (default: chosen by dimension).",
)
@click.option(
    "--unit-norm/--no-unit-norm",
    default=None,
    help="Scale rows to length one; evaluate and query will do the same.",
)
@json_option
@quiet_option
@debug_option
def train(
    params: tuple[tuple[str, Any], ...],
    output: Path | None,
    resume: Path | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Learn a similarity of the rows of ITEMS, from labels, triplets or pairs.

    \b
    simstream train items.svm -a sors -p lam=1e-6 -p eta=0.1 -n 100000 -o model.safetensors
    simstream train items.npy --triplets judgements.csv -o model.safetensors
    simstream train items.npy -a pametric --pairs pairs.csv -o model.safetensors
    simstream train items.npz -a lmnn -o model.safetensors
    simstream train items.npz -a omtrsl --tasks users.txt -o model.safetensors
    tail -f events.jsonl | simstream train items.npz --triplets - \\
        --resume model.safetensors --checkpoint-every 1000

    Which algorithm learns from what: simstream algorithms.

    Many tasks (omtrsl, ostrsl, ogrsl, multitasklmnn): triplets with a column task, or labels and --tasks,
    from which triplets are drawn inside tasks. A column y says whether the first candidate is nearer (+1) or
    the second (-1). With -p query=active only the answers that the learner asks for are learnt.

    Ctrl-C finishes the piece at hand and saves a checkpoint. The same command with --resume goes on
    from there: labels with the same stream of tuples, the same file at the next record, another
    file from its beginning, standard input with what comes. Learners from all items at once (ITML,
    LMNN, MCML, RCA) have no checkpoints: Ctrl-C ends them, and nothing is written.
    """
    from .output import configure_logging, echo_fields, echo_json, logger
    from .train_options import TrainOptions
    from .training import train_model

    configure_logging(others["quiet"])
    target = output or resume
    if target is None:
        raise click.UsageError("expected --output (or --resume), got neither")
    trained = train_model(TrainOptions(params=dict(params), output=target, resume=resume, **others))
    if as_json:
        echo_json(trained.facts)
    elif not others["quiet"]:
        from .summary import summary_fields

        run = {"learnt": trained.describe_run()}
        echo_fields(run | summary_fields(trained.facts, trained.record))
    if trained.signal is not None:
        logger.warning(
            "interrupted; checkpoint saved to %s. To go on, repeat the command with --resume %s",
            target,
            target,
        )
        click.get_current_context().exit(128 + trained.signal)
