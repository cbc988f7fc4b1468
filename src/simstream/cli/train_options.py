"""The options of ``simstream train``, and which of them contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from ..catalogue import Algorithm
from . import algorithms
from .options import check_writable
from .tasks import knows_tasks, refuse_tasks

#: The name of standard input among files.
STANDARD_INPUT = "-"


class TrainOptions(NamedTuple):
    """The options of ``simstream train``; see its help."""

    items: Path
    queries: Path | None
    labels_file: Path | None
    label_column: str | int | None
    triplets: Path | None
    pairs: Path | None
    tasks_file: Path | None
    tuples: str
    algorithm: str | None
    params: dict[str, Any]
    n_tuples: int | None
    seed: int | None
    output: Path
    resume: Path | None
    checkpoint_every: int | None
    on_error: str
    dtype: str | None
    block_size: int | None
    unit_norm: bool | None
    quiet: bool

    @property
    def records(self) -> Path | None:
        """The file of triplets or pairs, None where labels are learnt from."""
        return self.triplets or self.pairs

    @property
    def source(self) -> str:
        """What the input consists of: "labels", "triplets" or "pairs"."""
        if self.records is None:
            return "labels"
        return "triplets" if self.pairs is None else "pairs"

    def learnt_by(self, algorithm: Algorithm) -> str:
        """What an algorithm that learns at once sees: the input, or the set of tuples drawn from labels."""
        is_drawn = self.records is None and algorithm.takes_a_set
        return algorithm.takes[0] if is_drawn else self.source


def check_options(options: TrainOptions) -> None:
    """Refuse options that contradict each other before anything is read."""
    if options.triplets is not None and options.pairs is not None:
        raise click.UsageError("expected --triplets or --pairs, got both")
    from_labels = options.records is None
    if not from_labels:
        for option, given in (
            ("--labels", options.labels_file is not None),
            ("--tasks", options.tasks_file is not None),
            ("--n-tuples", options.n_tuples is not None),
            ("--seed", options.seed is not None),
            ("--tuples", options.tuples != "auto"),
        ):
            if given:
                raise click.UsageError(
                    f"{option} is about tuples drawn from labels: not with --{options.source}"
                )
    if options.labels_file is not None and options.label_column is not None:
        raise click.UsageError("expected --labels or --label-column, got both")
    if from_labels and options.queries is not None:
        raise click.UsageError(
            "--queries: anchors of another item space need --triplets or --pairs"
        )
    read = (
        options.items,
        options.labels_file,
        options.tasks_file,
        options.queries,
        options.records,
    )
    for path in read:
        if path is not None and options.output.resolve() == path.resolve():
            raise click.BadParameter(
                f"{options.output}: expected a file of its own, got one of the inputs",
                param_hint="--output",
            )
    if str(options.output) == STANDARD_INPUT:
        raise click.BadParameter("expected a file name, got -", param_hint="--output")
    check_writable(options.output, "--output")


def check_algorithm(options: TrainOptions, algorithm: Algorithm) -> None:
    """Refuse an input that the algorithm does not learn from, and options it has no use for."""
    name = algorithm.name
    if options.tasks_file is not None and not knows_tasks(algorithm.cls()):
        raise refuse_tasks("--tasks", name)
    if options.records is not None and options.source not in algorithm.takes:
        others = algorithms.names_of(lambda known: options.source in known.takes)
        raise click.UsageError(
            f"--{options.source}: {name} learns from {algorithm.input}; "
            f"expected --algorithm {others}"
        )
    if algorithm.is_batch:
        for option, given in (
            (
                "--n-tuples (--n-triplets)",
                options.n_tuples is not None and not algorithm.takes_a_set,
            ),
            ("--checkpoint-every", options.checkpoint_every is not None),
            ("--block-size", options.block_size is not None and not algorithm.takes_a_set),
            ("--tuples", options.tuples not in ("auto", algorithm.takes[0])),
        ):
            if given:
                raise click.UsageError(
                    f"{option}: {name} learns from all {options.learnt_by(algorithm)} at once; "
                    "this is for online learners"
                )
    elif options.tuples not in ("auto", *algorithm.takes):
        raise click.UsageError(f"--tuples {options.tuples}: {name} learns from {algorithm.input}")
