"""What commands that go through all items share: where they are scored, and how far that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .dividing import losing_workers, starting_workers
from .learners import find_wanted_device
from .output import progress

if TYPE_CHECKING:
    from ..metrics.sweep import Runner


@contextmanager
def runner_of(workers: int, address: str | None, device: str) -> Iterator[Runner | None]:
    """Where items are scored: None for this process, on the CPU."""
    where = find_wanted_device(device)
    if where is not None:
        from ..search import DeviceRunner

        if workers > 1 or address is not None:
            raise click.UsageError(f"expected --workers or --device {device}, got both")
        yield DeviceRunner(where)
        return
    if workers == 1 and address is None:
        yield None
        return
    from ..distributed import EvaluationWorkers

    runner = EvaluationWorkers(workers, address=address)
    with losing_workers():
        with starting_workers(workers, address):
            runner.__enter__()
        try:
            yield runner
        finally:
            runner.__exit__()


@contextmanager
def percents(quiet: bool = False) -> Iterator[Callable[[int, int], Any]]:
    """A function of what is done and what there is in all, which shows the share."""
    with progress(quiet, "percent", total=100) as report:
        yield lambda done, total: report(100 * done // total)
