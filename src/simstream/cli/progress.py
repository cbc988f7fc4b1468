"""Progress of learning: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .learning import Snapshot
from .output import as_count, as_rate, logger

_SECONDS_BETWEEN_LINES = 5.0

Report = Callable[[Snapshot], None]


@contextmanager
def progress(
    quiet: bool, total: int | None, done: int, tuples: str = "triplets"
) -> Iterator[Report | None]:
    """Show the progress of the block.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    total : int or None
        Tuples in all, None if nobody knows.
    done : int
        Tuples of earlier runs that are part of the total.
    tuples : "triplets" or "pairs"

    Yields
    ------
    function of a Snapshot, or None
    """
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(total, done, tuples) as report:
            yield report
    else:
        yield _lines(total, done, tuples)


@contextmanager
def _bar(total: int | None, done: int, tuples: str) -> Iterator[Report]:
    from rich import progress as rich_progress

    text = rich_progress.TextColumn("{task.description}", markup=False)
    # All of it fits into 80 columns.
    columns: tuple[rich_progress.ProgressColumn, ...] = (
        rich_progress.BarColumn(bar_width=10),
        text,
        rich_progress.TimeRemainingColumn(compact=True),
    )
    if total is None:
        columns = rich_progress.SpinnerColumn(), text
    with rich_progress.Progress(*columns, console=error_console()) as bar:
        task = bar.add_task(f"waiting for {tuples}", total=total, completed=done)

        def report(snapshot: Snapshot) -> None:
            n = done + snapshot.n_learnt
            so_far = f"{as_count(n)} {tuples}" if total is None else f"{n / total:.0%}"
            description = "  ".join([so_far, *_measurements(snapshot)])
            bar.update(task, completed=n, description=description)

        yield report


@contextmanager
def iterations(quiet: bool, name: str, reports: str) -> Iterator[Callable[[int, float], None]]:
    """Show the progress of a batch learner; yields what it wants as ``callback``.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    name : str
        What learns.
    reports : str
        What the number reported with an iteration is.
    """

    def describe(n: int, value: float) -> str:
        return f"{name}: iteration {as_count(int(n))}, {reports} {float(value):.6g}"

    if not quiet and sys.stderr.isatty():
        from rich import progress as rich_progress

        text = rich_progress.TextColumn("{task.description}", markup=False)
        columns = rich_progress.SpinnerColumn(), text, rich_progress.TimeElapsedColumn()
        with rich_progress.Progress(*columns, console=error_console()) as bar:
            task = bar.add_task(f"{name} begins", total=None)
            yield lambda n, value: bar.update(task, description=describe(n, value))
        return
    last = time.monotonic()

    def report(n: int, value: float) -> None:
        nonlocal last
        if not quiet and time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            logger.info("%s", describe(n, value))

    yield report


@contextmanager
def work(quiet: bool, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how much of a known amount of work is done, and how long the rest will take.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    total : int
    unit : str
        What is counted.

    Yields
    ------
    function of the amount done since it was last called
    """
    if quiet:
        yield lambda n: None
    elif sys.stderr.isatty():
        from rich import progress as rich_progress

        columns = (
            rich_progress.BarColumn(bar_width=20),
            rich_progress.TextColumn("{task.percentage:>3.0f} %  {task.description}", markup=False),
            rich_progress.TimeRemainingColumn(compact=True),
        )
        with rich_progress.Progress(*columns, console=error_console()) as bar:
            task = bar.add_task(f"{as_count(total)} {unit}", total=total)
            yield lambda n: bar.advance(task, n)
    else:
        yield _work_lines(total, unit)


def _work_lines(total: int, unit: str) -> Callable[[int], None]:
    started = last = time.monotonic()
    done = 0

    def report(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            left = (now - started) * (total - done) / done
            logger.info(
                "%s of %s %s, about %.0f s left", as_count(done), as_count(total), unit, left
            )

    return report


def error_console() -> Any:
    """A console on stderr that takes texts as they are."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def _lines(total: int | None, done: int, tuples: str) -> Report:
    """Log lines, rate limited: the first after a while, so that short runs stay silent."""
    last = time.monotonic()

    def report(snapshot: Snapshot) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            n = as_count(done + snapshot.n_learnt)
            so_far = f"{n} {tuples}" if total is None else f"{n} of {as_count(total)} {tuples}"
            logger.info("%s", ", ".join([so_far, *_measurements(snapshot)]))

    return report


def _measurements(snapshot: Snapshot) -> list[str]:
    parts = [
        as_rate(snapshot.rate),
        f"loss {snapshot.average_loss:.4f}",
        f"mistakes {100 * snapshot.mistake_rate:.1f} %",
    ]
    if snapshot.sparsity is not None:
        parts.append(f"sparsity {100 * snapshot.sparsity:.1f} %")
    if snapshot.n_bad:
        parts.append(f"{as_count(snapshot.n_bad)} bad records")
    return parts
