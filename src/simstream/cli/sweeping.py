"""What commands that go through all items share: where they are scored, and how far that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .output import progress

if TYPE_CHECKING:
    from ..metrics.sweep import Runner


@contextmanager
def runner_of(workers: int, address: str | None) -> Iterator[Runner | None]:
    """Where items are scored: None for this process."""
    if workers == 1 and address is None:
        yield None
        return
    from ..distributed import EvaluationWorkers, WorkerLostError

    runner = EvaluationWorkers(workers, address=address)
    try:
        runner.__enter__()
    except (ImportError, RuntimeError) as error:
        raise click.UsageError(f"--workers: {error}") from error
    try:
        yield runner
    except WorkerLostError as error:
        raise click.ClickException(str(error)) from error
    finally:
        runner.__exit__()


@contextmanager
def percents(quiet: bool = False) -> Iterator[Callable[[int, int], Any]]:
    """A function of what is done and what there is in all, which shows the share."""
    with progress(quiet, "percent", total=100) as report:
        yield lambda done, total: report(100 * done // total)
