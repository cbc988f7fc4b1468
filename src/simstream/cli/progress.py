"""Progress of a command: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .output import as_count, logger

_SECONDS_BETWEEN_LINES = 5.0

#: Takes how much is done, and a function that says more about it; called only if that is shown.
Report = Callable[[int, Callable[[], Iterable[str]]], None]


def nothing_more() -> Iterable[str]:
    """There is no more to say than how much is done."""
    return ()


@contextmanager
def progress(
    quiet: bool, unit: str, *, total: int | None = None, done: int = 0
) -> Iterator[Report]:
    """Show the progress of the block.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    unit : str
        What is counted: "triplets", "iterations".
    total : int or None
        How many there are in all, None if that is not known.
    done : int
        How many of the total were done in earlier runs.

    Yields
    ------
    function
        To be called with the number done so far, earlier runs included, and a function that returns
        further measurements as texts.
    """
    if quiet:
        yield lambda n, measurements: None
    elif sys.stderr.isatty():
        with _bar(unit, total, done) as report:
            yield report
    else:
        yield _lines(unit, total, done)


@contextmanager
def _bar(unit: str, total: int | None, done: int) -> Iterator[Report]:
    from rich import progress as rich_progress

    text = rich_progress.TextColumn("{task.description}", markup=False)
    # All of it fits into 80 columns.
    columns: tuple[rich_progress.ProgressColumn, ...] = (
        rich_progress.BarColumn(bar_width=10),
        text,
        rich_progress.TimeRemainingColumn(compact=True),
    )
    if total is None:
        columns = rich_progress.SpinnerColumn(), text, rich_progress.TimeElapsedColumn()
    with rich_progress.Progress(*columns, console=error_console()) as bar:
        task = bar.add_task(f"waiting for {unit}", total=total, completed=done)

        def report(n: int, measurements: Callable[[], Iterable[str]]) -> None:
            so_far = f"{as_count(n)} {unit}" if total is None else f"{n / total:.0%}"
            bar.update(task, completed=n, description="  ".join([so_far, *measurements()]))

        yield report


def _lines(unit: str, total: int | None, done: int) -> Report:
    """Log lines, the first after a while, so that short runs stay silent."""
    started = last = time.monotonic()

    def report(n: int, measurements: Callable[[], Iterable[str]]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        parts = [f"{as_count(n)} {unit}", *measurements()]
        if total is not None:
            parts[0] = f"{as_count(n)} of {as_count(total)} {unit}"
            if done < n < total:
                parts.append(f"about {(now - started) * (total - n) / (n - done):.0f} s left")
        logger.info("%s", ", ".join(parts))

    return report


def error_console() -> Any:
    """A console on stderr that takes texts as they are."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False)
