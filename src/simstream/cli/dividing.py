"""``simstream train --workers``: columns divided over workers, and runs that are continued from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from ..persistence import from_params
from .inputs import Collection, TrainingRecord
from .options import refuse_options


def check_workers(options: Any) -> None:
    """Refuse options that do not go together with several workers, or that need them."""
    is_folder = options.resume is not None and options.resume.is_dir()
    if options.workers is None and not is_folder:
        refuse_options(
            "requires --workers",
            {
                "--address": options.address is not None,
                "--checkpoint": options.checkpoint is not None,
            },
        )
        return
    near = {
        f"--{name} {options.sampling[name]}": options.sampling[name] not in (None, "random")
        for name in ("negatives", "positives")
    }
    refuse_options("needs the whole matrix in one process: not with --workers", near)
    if is_folder:
        reason = "is that of the run in the folder: not with --resume FOLDER"
        refuse_options(
            reason,
            {
                "--algorithm": options.algorithm is not None,
                "--param": bool(options.params),
                "--dtype": options.dtype is not None,
                "--block-size": options.block_size is not None,
                "--unit-norm": options.unit_norm is not None,
                "--checkpoint": options.checkpoint is not None,
            },
        )
        if options.output == options.resume:
            raise click.UsageError(
                "expected --output, a model file, with --resume FOLDER; got none"
            )


@contextmanager
def starting_workers() -> Iterator[None]:
    """Report workers that cannot be had as wrong usage: there is no Ray, or it has too few CPUs."""
    from ..distributed import WorkerLostError

    try:
        yield
    except WorkerLostError:
        raise
    except (ImportError, RuntimeError) as error:
        raise click.UsageError(f"--workers: {error}") from error


@contextmanager
def losing_workers() -> Iterator[None]:
    """Report the loss of workers as what it is."""
    from ..distributed import WorkerLostError

    try:
        yield
    except WorkerLostError as error:
        raise click.ClickException(str(error)) from error


class FoundRun(NamedTuple):
    """What the folder of a run says before it is continued."""

    #: The learner's class, and its precision.
    name: str
    dtype: str
    record: TrainingRecord
    #: The files of its items.
    items: list[dict[str, str]]


def find_run(options: Any) -> FoundRun:
    """Read the folder of --resume; nothing is started."""
    from ..distributed.folder import RunFolder

    folder = RunFolder(options.resume.resolve())
    record = TrainingRecord.from_extra(folder.read_run()["extra"], options.resume)
    content, arrays = folder.read_learner()
    files = content["items"]
    return FoundRun(type(from_params(content, arrays)).__name__, files[0]["dtype"], record, files)


def continue_run(options: Any, run: FoundRun, data: Collection) -> Any:
    """Continue a run with the items it began with; what was waiting when it ended is learnt."""
    from ..distributed import ShardedLearner
    from ..distributed.folder import RunFolder

    try:
        RunFolder(options.resume.resolve()).check_same(run.items, data.preprocessor)
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix("preprocessor: ")
        raise click.UsageError(f"--resume {options.resume}: {text}") from error
    with starting_workers():
        return ShardedLearner.resume(options.resume, options.workers, address=options.address)


def divide(options: Any, learner: Any, data: Collection) -> Any:
    """The learner with its columns divided; workers are started when it is prepared."""
    from ..distributed import ShardedLearner

    # A file that workers can map need not be written a second time.
    source = data.preprocessor
    if options.items.suffix == ".npy" and data.queries is None and not options.unit_norm:
        source = options.items
    try:
        divided = ShardedLearner(
            learner,
            options.workers,
            preprocessor=source,
            address=options.address,
            folder=options.checkpoint,
        )
        with starting_workers():
            divided.prepare()
    except TypeError as error:
        problem = str(error).partition(";")[0]
        raise click.UsageError(f"--workers: {problem}; use --mix N instead") from error
    except FileExistsError as error:
        text = str(error).removeprefix("folder: ")
        text = text.replace("ShardedLearner.resume", f"--resume {options.checkpoint}")
        raise click.UsageError(f"--checkpoint: {text}") from error
    return divided
