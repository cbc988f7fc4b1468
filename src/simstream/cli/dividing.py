"""``simstream train --workers``: columns divided over workers, and runs that are continued from a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from ..persistence import from_params
from .inputs import Collection, TrainingRecord
from .options import refuse_options
from .output import plural

#: More on one machine only wait for each other.
_WORKERS_PER_CPU = 4

#: Options by the names that errors of the library begin with.
_OPTIONS = {"n_workers": "--workers", "address": "--address", "folder": "--checkpoint"}


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
def starting_workers(n: int, address: str | None) -> Iterator[None]:
    """Report workers that cannot be had as wrong usage: too few CPUs, or a wrong option."""
    from ..distributed import WorkerLostError

    if address in (None, "local") and not os.environ.get("RAY_ADDRESS"):
        cpus = os.cpu_count() or 1
        if n > _WORKERS_PER_CPU * cpus:
            raise click.UsageError(
                f"--workers: expected at most {_WORKERS_PER_CPU * cpus} on this machine of "
                f"{plural(cpus, 'CPU')}, got {n}; --address names a cluster of several machines"
            )
    try:
        yield
    except WorkerLostError:
        raise
    except ValueError as error:
        option = _OPTIONS.get(str(error).partition(":")[0])
        if option is None:
            raise
        raise click.UsageError(f"{option}:{str(error).partition(':')[2]}") from error
    except RuntimeError as error:
        raise click.UsageError(f"--workers: {error}") from error


@contextmanager
def losing_workers(options: Any = None) -> Iterator[None]:
    """Report the loss of workers as what it is, and how to go on; the options are those of train."""
    from ..distributed import WorkerLostError

    try:
        yield
    except WorkerLostError as error:
        advice = "then begin again"
        if options is not None and options.mix is None:
            advice = _advice(options)
        raise click.ClickException(f"{error.problem}, {advice}") from error


def _advice(options: Any) -> str:
    """How a run whose workers are lost is continued."""
    if options.checkpoint is not None:
        how = f"--resume {options.checkpoint} in place of --checkpoint"
    elif options.resume is not None and options.resume.is_dir():
        how = f"the same --resume {options.resume}"
    else:
        return "then begin again, with --checkpoint FOLDER, from which a run can be continued"
    return (
        f"then repeat the command with {how}, and with fewer --workers if there are fewer machines"
    )


class FoundRun(NamedTuple):
    """What the folder of a run says before it is continued."""

    #: The learner's class, and its precision.
    name: str
    dtype: str
    record: TrainingRecord
    #: The files of its items.
    items: list[dict[str, str]]
    n_workers: int


def find_run(options: Any) -> FoundRun:
    """Read the folder of --resume; nothing is started."""
    from ..distributed.folder import RunFolder

    folder = RunFolder(options.resume.resolve())
    kept = folder.read_run()
    record = TrainingRecord.from_extra(kept["extra"], options.resume)
    content, arrays = folder.read_learner()
    files = content["items"]
    name = type(from_params(content, arrays)).__name__
    return FoundRun(name, files[0]["dtype"], record, files, kept["n_workers"])


def continue_run(options: Any, run: FoundRun, data: Collection) -> Any:
    """Continue a run with the items it began with; what was waiting when it ended is learnt."""
    from ..distributed import ShardedLearner
    from ..distributed.folder import RunFolder

    folder = RunFolder(options.resume.resolve())
    try:
        folder.check_same(run.items, data.preprocessor)
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix("preprocessor: ")
        raise click.UsageError(f"--resume {options.resume}: {text}") from error
    # Those that the run has mapped may have been moved: ITEMS says where they are now.
    is_there = all((folder.path / file["path"]).exists() for file in run.items)
    source = None if is_there else _source(options, data, run.record.unit_norm)
    with starting_workers(options.workers or run.n_workers, options.address):
        return ShardedLearner.resume(
            options.resume, options.workers, preprocessor=source, address=options.address
        )


def _source(options: Any, data: Collection, unit_norm: bool) -> Any:
    """The items: a file that workers can map need not be written a second time."""
    if options.items.suffix == ".npy" and data.queries is None and not unit_norm:
        return options.items
    return data.preprocessor


def divide(options: Any, learner: Any, data: Collection) -> Any:
    """The learner with its columns divided; workers are started when it is prepared."""
    from ..distributed import ShardedLearner

    try:
        divided = ShardedLearner(
            learner,
            options.workers,
            preprocessor=_source(options, data, bool(options.unit_norm)),
            address=options.address,
            folder=options.checkpoint,
        )
        with starting_workers(options.workers, options.address):
            divided.prepare()
    except TypeError as error:
        problem = str(error).partition(";")[0].removeprefix("preprocessor: ")
        raise click.UsageError(f"--workers: {problem}; use --mix N instead") from error
    except FileExistsError as error:
        text = str(error).removeprefix("folder: ")
        text = text.replace("ShardedLearner.resume", f"--resume {options.checkpoint}")
        raise click.UsageError(f"--checkpoint: {text}") from error
    return divided
