"""What commands show: tables and JSON on stdout, log lines and progress on stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

logger = logging.getLogger("simstream.cli")

#: Width of tables in files and pipes, which have no window to fit.
_WIDTH_WITHOUT_TERMINAL = 200

#: Up to this length, and from this width of the window on, names in the first column are not folded.
_LONGEST_NAME, _USUAL_WIDTH = 30, 80

_SECONDS_BETWEEN_LINES = 5.0


class _EchoHandler(logging.Handler):
    """Log records as plain lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        click.echo(f"simstream: {prefix}{record.getMessage()}", err=True)


def configure_logging(quiet: bool = False) -> None:
    """Send the command line's log to stderr, and that of workers: everything, or errors only."""
    for one in (logger, logging.getLogger("simstream.distributed")):
        one.handlers = [_EchoHandler()]
        one.propagate = False
        one.setLevel(logging.ERROR if quiet else logging.INFO)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show what libraries warn of in one line, like everything else."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        logger.warning("%s", " ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


# -- stdout ---------------------------------------------------------------------------------------


def echo_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def echo_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    left: Sequence[int] = (),
) -> None:
    """Print a table; the first column and those in ``left`` are left-aligned, the others right-aligned."""
    table, rows = _new_table(), list(rows)
    has_room = _screen().width >= _USUAL_WIDTH
    for place, column in enumerate(columns):
        justify: Any = "left" if place == 0 or place in left else "right"
        # Names are what one copies into the next command.
        is_name = has_room and place == 0 and all(len(row[0]) <= _LONGEST_NAME for row in rows)
        table.add_column(column, justify=justify, overflow="fold", no_wrap=is_name)
    for row in rows:
        table.add_row(*row)
    _print(table, title)


def echo_fields(fields: dict[str, str], *, title: str | None = None) -> None:
    """Print names and values, one pair per line."""
    table = _new_table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in fields.items():
        table.add_row(name, text)
    _print(table, title)


def _new_table(**options: Any) -> Any:
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), **options
    )


def _print(table: Any, title: str | None) -> None:
    console = _screen()
    if title is not None:
        # Above the table, not in it: there it would be wrapped to the table's width.
        console.print(title, style="bold")
    console.print(table)


def _screen() -> Any:
    """A console on stdout."""
    return _console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def _console(**options: Any) -> Any:
    """A console that takes texts as they are: file names may contain brackets and colons."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, **options)


def plural(n: int, thing: str) -> str:
    """A number of things with their name.

    Examples
    --------
    >>> plural(1, "bad record"), plural(1200, "bad record")
    ('1 bad record', '1,200 bad records')
    """
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def as_percent(share: float) -> str:
    """A share of one.

    Examples
    --------
    >>> as_percent(0.0567)
    '5.67 %'
    """
    return f"{100 * share:.2f} %"


def as_rate(per_second: float) -> str:
    """Triplets per second, to three digits.

    Examples
    --------
    >>> as_rate(192_345.6), as_rate(0.1234)
    ('192,000/s', '0.12/s')
    """
    if per_second >= 1000:
        digits = len(f"{per_second:.0f}") - 3
        return f"{round(per_second, -digits):,.0f}/s"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2f}/s"


# -- progress -------------------------------------------------------------------------------------


#: Takes how much is done, earlier runs included, and perhaps a function that returns further measurements as
#: texts, which is called only if they are shown.
Report = Callable[..., None]


@contextmanager
def progress(
    quiet: bool, unit: str, *, total: int | None = None, done: int = 0
) -> Iterator[Report]:
    """Show the progress of the block: a bar on a terminal, a line now and then elsewhere.

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
    """
    if quiet:
        yield lambda *_: None
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

        def report(n: int, measurements: Callable[[], Iterable[str]] = tuple) -> None:
            so_far = f"{n:,} {unit}" if total is None else f"{n / total:.0%}"
            bar.update(task, completed=n, description="  ".join([so_far, *measurements()]))

        yield report


def _lines(unit: str, total: int | None, done: int) -> Report:
    """Log lines, the first after a while, so that short runs stay silent."""
    started = last = time.monotonic()

    def report(n: int, measurements: Callable[[], Iterable[str]] = tuple) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        so_far = f"{n:,}" if total is None else f"{n:,} of {total:,}"
        parts = [f"{so_far} {unit}", *measurements()]
        if total is not None and done < n < total:
            parts.append(f"about {(now - started) * (total - n) / (n - done):.0f} s left")
        logger.info("%s", ", ".join(parts))

    return report


def error_console() -> Any:
    """A console on stderr."""
    return _console(stderr=True)
