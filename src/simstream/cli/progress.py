"""Progress of learning: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .learning import Snapshot
from .output import as_count, as_percent, as_rate, logger

_SECONDS_BETWEEN_LINES = 5.0

Report = Callable[[Snapshot], None]


@contextmanager
def progress(quiet: bool, total: int | None, done: int) -> Iterator[Report | None]:
    """Show the progress of the block.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    total : int or None
        Triplets in all, None if nobody knows.
    done : int
        Triplets of earlier runs that are part of the total.

    Yields
    ------
    function of a Snapshot, or None
    """
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(total, done) as report:
            yield report
    else:
        yield _lines(total, done)


@contextmanager
def _bar(total: int | None, done: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    text = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(bar_width=20), text, clock, console=console) as bar:
        task = bar.add_task("waiting for triplets", total=total, completed=done)

        def report(snapshot: Snapshot) -> None:
            completed = done + snapshot.n_learnt
            bar.update(task, completed=completed, description=_describe(snapshot, total, done))

        yield report


def _lines(total: int | None, done: int) -> Report:
    """Log lines, rate limited: the first after a while, so that short runs stay silent."""
    last = time.monotonic()

    def report(snapshot: Snapshot) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            logger.info("%s", _describe(snapshot, total, done))

    return report


def _describe(snapshot: Snapshot, total: int | None, done: int) -> str:
    n = as_count(done + snapshot.n_learnt)
    parts = [
        f"{n} triplets" if total is None else f"{n} of {as_count(total)} triplets",
        as_rate(snapshot.rate),
        f"loss {snapshot.average_loss:.4f}",
        f"mistakes {as_percent(snapshot.mistake_rate)}",
    ]
    if snapshot.sparsity is not None:
        parts.append(f"sparsity {as_percent(snapshot.sparsity)}")
    if snapshot.n_bad:
        parts.append(f"{as_count(snapshot.n_bad)} bad records")
    return ", ".join(parts)
