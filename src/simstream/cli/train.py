"""``simstream train``: the command and its options; `training` does the work."""

from __future__ import annotations

from typing import Any

import click

from .learners import ALGORITHMS, DEFAULT_ALGORITHM
from .options import (
    COUNT,
    FILE,
    NATURAL,
    SHARE,
    SHARE_OR_UNIFORM,
    PathType,
    Size,
    by_option,
    item_ids_option,
    json_option,
    label_column_option,
    labels_option,
    n_features_option,
    on_error_option,
    params_option,
    query_ids_option,
    quiet_option,
    tasks_option,
)
from .output import configure_logging


def _refuse_feedback(_: click.Context, option: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError(
            f"{option.opts[0]} is for simstream adapt, which learns from searches: from what was clicked or "
            "judged. simstream train learns from --triplets, --pairs or labels"
        )


@click.command(short_help="Learn from labels, triplets, pairs or a stream.")
@click.argument("items", type=FILE)
@labels_option
@label_column_option
@n_features_option
@tasks_option
@click.option(
    "--triplets",
    type=FILE,
    help="Triplets of ids or row numbers, optionally with columns task and y: a file, or - for standard "
    "input.",
)
@click.option(
    "--pairs",
    type=FILE,
    help="Pairs of ids or row numbers with +1 (similar) or -1 (or 0): a file, or - for standard input.",
)
@click.option("--clicks", hidden=True, expose_value=False, callback=_refuse_feedback)
@click.option("--relevance", hidden=True, expose_value=False, callback=_refuse_feedback)
@item_ids_option
@query_ids_option
@by_option
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
@click.option(
    "--negatives",
    type=click.Choice(["random", "near", "semi-hard"]),
    help="Negatives of the triplets drawn from labels: near ones are chosen by the model as it learns "
    "(default: random, or that of --resume).",
)
@click.option(
    "--positives",
    type=click.Choice(["random", "near"]),
    help="Positives of the triplets drawn from labels (default: random, or that of --resume).",
)
@click.option(
    "--near-share",
    type=SHARE,
    help="Share of triplets with near negatives or positives (default: 0.5, or that of --resume).",
)
@click.option(
    "--similar-share",
    type=SHARE_OR_UNIFORM,
    help="Share of similar pairs among pairs drawn from labels, or uniform: as many as there are among all "
    "pairs (default: 0.5, or that of --resume).",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Where to learn from dense items: cpu, cuda, cuda:N, or auto, which is a GPU if there is one "
    "(default: cpu, or that of --resume).",
)
@click.option("--output", "-o", type=FILE, help="Model file to write (default: that of --resume).")
@click.option(
    "--resume",
    type=FILE,
    help="Model file to continue from, where it stopped, or the folder of --checkpoint.",
)
@click.option(
    "--checkpoint-every", type=COUNT, help="Save a checkpoint to --output every N tuples."
)
@click.option(
    "--mix",
    type=COUNT,
    metavar="N",
    help="Learn N shards of the tuples side by side and average the models, in rounds: for SORS, AdaSORS and "
    "AROMA, or sparse items. The result is not the one of learning in order.",
)
@click.option(
    "--rounds", type=COUNT, help="With --mix: how often models are averaged (default: 1)."
)
@click.option(
    "--workers",
    type=COUNT,
    help="Divide the columns of the matrix over this many processes, with the same result: for dense items "
    "and learners that learn in blocks. With --mix: processes that learn the shards. Needs "
    "simstream[distributed].",
)
@click.option(
    "--address",
    metavar="RAY",
    help="A running Ray to use for --workers, such as ray://host:10001 (default: this machine).",
)
@click.option(
    "--checkpoint",
    type=PathType(file_okay=False),
    help="With --workers: a new folder for the columns of all workers, every minute. --resume FOLDER "
    "continues from there, whatever was killed.",
)
@on_error_option
@click.option(
    "--memory",
    type=Size(),
    default="512MB",
    show_default=True,
    help="Items of an .npy file that is larger stay in the file: the same result in little memory, but each "
    "tuple waits for its rows.",
)
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
@click.option(
    "--normalise/--no-normalise",
    default=None,
    help="Score by the cosine in the learnt space (default: where a bilinear similarity is learnt from "
    "labels, or as in --resume).",
)
@json_option
@quiet_option
def train(**given: Any) -> None:
    """Learn a similarity of the rows of ITEMS from labels, triplets or pairs.

    \b
    simstream train items.svm -a sors -p lam=1e-6 -n 100000 -o model.safetensors
    simstream train items.npz --negatives near -o model.safetensors
    simstream train items.npy --triplets judgements.csv -o model.safetensors
    simstream train docs.parquet --triplets by-id.jsonl -o model.safetensors
    simstream train items.npy -a pametric --pairs pairs.csv -o model.safetensors
    simstream train items.npz -a lmnn -o model.safetensors
    simstream train items.npz -a omtrsl --tasks users.txt -o model.safetensors
    simstream train items.npy --workers 8 --checkpoint run -o model.safetensors
    simstream train items.svm -a sors --mix 8 --workers 8 -o model.safetensors
    tail -f events.jsonl | simstream train items.npz --triplets - \\
        --resume model.safetensors --checkpoint-every 1000

    simstream algorithms lists the algorithms and what each learns from.

    Several tasks (omtrsl, ostrsl, ogrsl, multitasklmnn): give triplets with a column task, or labels and
    --tasks; triplets are then drawn within tasks. A column y says whether the first candidate is nearer (+1)
    or the second (-1). With -p query=active the learner uses only the answers it asks for.

    A bilinear similarity favours long vectors. Where it is learnt from labels, it is therefore read as the
    cosine in the learnt space, which finds better neighbours; --no-normalise leaves it as it was learnt.
    evaluate compares the two.

    Ctrl-C saves a checkpoint. The same command with --resume continues from there: labels with the same
    stream of tuples, the same file at the next record, another file from its beginning, standard input with
    whatever comes. Batch learners (ITML, LDA, LMNN, MCML, MultiTaskLMNN, NCA, RCA, SDCA) have no
    checkpoints: Ctrl-C stops them, and nothing is written.
    """
    from .training import TrainOptions, train_model

    configure_logging(given["quiet"])
    train_model(TrainOptions(**given))
