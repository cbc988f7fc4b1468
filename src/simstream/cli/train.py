"""``simstream train``: the command, and which of its options conflict; `training` does the work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click

from ..catalogue import Algorithm
from .learners import ALGORITHMS, DEFAULT_ALGORITHM, knows_tasks, names_of, refuse_tasks
from .options import (
    COUNT,
    FILE,
    NATURAL,
    check_writable,
    json_option,
    label_column_option,
    labels_option,
    on_error_option,
    params_option,
    quiet_option,
    refuse_options,
    tasks_option,
)
from .output import configure_logging


@click.command(short_help="Learn from labels, triplets, pairs or a stream.")
@click.argument("items", type=FILE)
@labels_option
@label_column_option
@tasks_option
@click.option(
    "--triplets",
    type=FILE,
    help="Triplets of row numbers, optionally with columns task and y: a file, or - for standard input.",
)
@click.option(
    "--pairs",
    type=FILE,
    help="Pairs of row numbers with +1 (similar) or -1: a file, or - for standard input.",
)
@click.option("--queries", type=FILE, help="Items of the anchors, if these are not rows of ITEMS.")
@click.option(
    "--algorithm",
    "-a",
    type=click.Choice(list(ALGORITHMS), case_sensitive=False),
    metavar="NAME",
    help=f"The learner; see simstream algorithms (default: {DEFAULT_ALGORITHM}, or that of --resume).",
)
@params_option
@click.option(
    "--tuples",
    type=click.Choice(["auto", "triplets", "pairs"]),
    default="auto",
    show_default=True,
    help="What to draw from labels; auto is what the algorithm is designed for.",
)
@click.option(
    "--n-tuples",
    "--n-triplets",
    "-n",
    "n_tuples",
    type=COUNT,
    help="Tuples to draw from labels, including those before --resume (default: 100,000, or that of "
    "--resume).",
)
@click.option("--seed", type=NATURAL, help="Seed of the tuples drawn from labels (default: 0).")
@click.option("--output", "-o", type=FILE, help="Model file to write (default: that of --resume).")
@click.option("--resume", type=FILE, help="Model file to continue from, where it stopped.")
@click.option(
    "--checkpoint-every", type=COUNT, help="Save a checkpoint to --output every N tuples."
)
@on_error_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    help="Precision (default: that of the items).",
)
@click.option(
    "--block-size",
    type=COUNT,
    help="Dense tuples learnt together (default: depends on the dimension).",
)
@click.option(
    "--unit-norm/--no-unit-norm",
    default=None,
    help="Scale rows to length one; evaluate and query will do the same.",
)
@json_option
@quiet_option
def train(**given: Any) -> None:
    """Learn a similarity of the rows of ITEMS from labels, triplets or pairs.

    \b
    simstream train items.svm -a sors -p lam=1e-6 -n 100000 -o model.safetensors
    simstream train items.npy --triplets judgements.csv -o model.safetensors
    simstream train items.npy -a pametric --pairs pairs.csv -o model.safetensors
    simstream train items.npz -a lmnn -o model.safetensors
    simstream train items.npz -a omtrsl --tasks users.txt -o model.safetensors
    tail -f events.jsonl | simstream train items.npz --triplets - \\
        --resume model.safetensors --checkpoint-every 1000

    simstream algorithms lists the algorithms and what each learns from.

    Several tasks (omtrsl, ostrsl, ogrsl, multitasklmnn): give triplets with a column task, or labels and
    --tasks; triplets are then drawn within tasks. A column y says whether the first candidate is nearer (+1)
    or the second (-1). With -p query=active the learner uses only the answers it asks for.

    Ctrl-C saves a checkpoint. The same command with --resume continues from there: labels with the same
    stream of tuples, the same file at the next record, another file from its beginning, standard input with
    whatever comes. Batch learners (ITML, LMNN, MCML, RCA) have no checkpoints: Ctrl-C stops them, and
    nothing is written.
    """
    from .training import train_model

    options = TrainOptions(**given)
    configure_logging(options.quiet)
    check_options(options)
    train_model(options)


class TrainOptions(SimpleNamespace):
    """The options of the command, under the names that click gives them, and what follows from them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.params = dict(given["params"])
        self.output = given["output"] or given["resume"]
        #: The file of triplets or pairs, None if tuples are drawn from labels.
        self.records = given["triplets"] or given["pairs"]
        #: What the input consists of.
        self.source = next((name for name in ("triplets", "pairs") if given[name]), "labels")

    def learnt_by(self, algorithm: Algorithm) -> str:
        """What a batch learner sees: the input, or the set of tuples drawn from labels."""
        is_drawn = self.records is None and algorithm.takes_a_set
        return algorithm.takes[0] if is_drawn else self.source


def check_options(options: TrainOptions) -> None:
    """Refuse conflicting options before anything is read."""
    if options.output is None:
        raise click.UsageError("expected --output (or --resume), got neither")
    if options.triplets is not None and options.pairs is not None:
        raise click.UsageError("expected --triplets or --pairs, got both")
    if options.records is not None:
        refuse_options(
            f"applies to tuples drawn from labels: not with --{options.source}",
            {
                "--labels": options.labels_file is not None,
                "--tasks": options.tasks_file is not None,
                "--n-tuples": options.n_tuples is not None,
                "--seed": options.seed is not None,
                "--tuples": options.tuples != "auto",
            },
        )
    elif options.queries is not None:
        raise click.UsageError("--queries requires --triplets or --pairs")
    if options.labels_file is not None and options.label_column is not None:
        raise click.UsageError("expected --labels or --label-column, got both")
    inputs = ("items", "labels_file", "tasks_file", "queries", "records")
    for path in filter(None, (getattr(options, name) for name in inputs)):
        if options.output.resolve() == path.resolve():
            raise click.BadParameter(
                f"{options.output}: expected a new file, got one of the inputs",
                param_hint="--output",
            )
    if str(options.output) == "-":
        raise click.BadParameter("expected a file name, got -", param_hint="--output")
    check_writable(options.output, "--output")


def check_algorithm(options: TrainOptions, algorithm: Algorithm) -> None:
    """Refuse an input that the algorithm does not learn from, and options it has no use for."""
    name = algorithm.name
    if options.tasks_file is not None and not knows_tasks(algorithm.cls()):
        raise refuse_tasks("--tasks", name)
    if options.records is not None and options.source not in algorithm.takes:
        others = names_of(lambda known: options.source in known.takes)
        raise click.UsageError(
            f"--{options.source}: {name} learns from {algorithm.input}; "
            f"expected --algorithm {others}"
        )
    if algorithm.is_batch:
        draws = algorithm.takes_a_set
        refuse_options(
            f"is for online learners: {name} learns from all {options.learnt_by(algorithm)} at once",
            {
                "--n-tuples (--n-triplets)": options.n_tuples is not None and not draws,
                "--checkpoint-every": options.checkpoint_every is not None,
                "--block-size": options.block_size is not None and not draws,
                "--tuples": options.tuples not in ("auto", algorithm.takes[0]),
            },
        )
    elif options.tuples not in ("auto", *algorithm.takes):
        raise click.UsageError(f"--tuples {options.tuples}: {name} learns from {algorithm.input}")
