"""The command line: ``simstream train | evaluate | query | recall | info | active | algorithms | datasets |
convert | demo | repro | serve | replay | keys``.

Commands only parse; modules with numpy or rich behind them are imported when a command runs, so that
``simstream --help`` is instant.
"""

from __future__ import annotations

import click

from .. import __version__
from .active import active
from .convert import convert
from .datasets import list_datasets
from .demo import demo
from .evaluate import evaluate
from .exits import ReportingGroup, exit_code_help
from .info import info
from .keys import keys
from .listing import list_algorithms
from .options import debug_option
from .query import query
from .recall import recall
from .replay import replay
from .serve import serve
from .train import train

__all__ = ["main"]


@click.group(
    cls=ReportingGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_code_help(),
)
@click.version_option(__version__, prog_name="simstream")
@debug_option
def main() -> None:
    """Learn what *similar* means from comparisons, and put it to work.

    \b
    simstream train items.npz -o model.safetensors       learn from the items' labels
    simstream evaluate model.safetensors test.npz        measure it beside the baselines
    simstream query model.safetensors items.npz --row 0  most similar items
    simstream active items.npz                           ask only what is open: what is it worth?
    simstream algorithms                                 what there is to learn with
    simstream datasets                                   what there is to learn from
    simstream demo                                       all of it on bundled data
    simstream serve items.npz                            search that learns from feedback
    simstream repro list                                 published experiments, to run again

    Items: .svm/.libsvm, .npy, .npz, .csv, .jsonl; triplets and pairs: .csv, .tsv, .txt, .jsonl, .npy,
    .npz, or standard input. Text may be compressed (.gz, .bz2).
    """


for _command in (
    *(train, evaluate, query, recall, info, active, list_algorithms, list_datasets, convert, demo),
    *(serve, replay, keys),
):
    main.add_command(_command)
