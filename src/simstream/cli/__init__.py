"""The command line: a command and all it does in one module, and what several share.

Shared are ``options``, ``inputs`` (reading), ``output`` (showing), ``learners`` (names of algorithms and
tasks) and ``exits``. Parsing imports nothing heavy, so that ``--help`` is instant: numpy and all that needs
it are imported when a command runs.
"""

from __future__ import annotations

import click

from .. import __version__
from .active import active
from .adapt import adapt
from .convert import convert
from .demo import demo
from .evaluate import evaluate
from .exits import ReportingGroup, exit_code_help
from .info import info
from .keys import keys
from .listings import list_algorithms, list_datasets
from .options import debug_option
from .output import configure_logging
from .query import query, recall
from .serve import replay, serve
from .split import split
from .train import train
from .upkeep import backup, check, erase, restore

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
    simstream train items.npz -o model.safetensors       learn from labels
    simstream split items.npz train.npz test.npz         keep some items apart
    simstream evaluate model.safetensors test.npz        measure beside baselines
    simstream query model.safetensors items.npz --row 0  most similar items
    simstream adapt --items items.npy ...                adapt a search safely
    simstream active items.npz                           what answers are worth
    simstream algorithms                                 available algorithms
    simstream datasets                                   available data sets
    simstream demo                                       a tour on bundled data
    simstream serve items.npz                            search that learns
    simstream repro list                                 published experiments

    Items: .svm/.libsvm, .npy, .npz, .csv, .jsonl, .parquet (pip install 'simstream[parquet]'); triplets and
    pairs: .csv, .tsv, .txt, .jsonl, .npy, .npz, or standard input. Text files may be compressed (.gz, .bz2).
    Columns, headers and an example of every format: docs/formats.md.
    """
    configure_logging()


for _command in (
    *(
        train,
        adapt,
        evaluate,
        query,
        recall,
        info,
        active,
        list_algorithms,
        list_datasets,
        convert,
        split,
        demo,
    ),
    *(serve, replay, keys),
    *(check, backup, restore, erase),
):
    main.add_command(debug_option(_command))
for _command in keys.commands.values():
    debug_option(_command)
