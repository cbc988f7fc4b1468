"""Writing for people and for machines: tables and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

logger = logging.getLogger("simstream.cli")

#: Width of tables in files and pipes, which have no window to fit.
_WIDTH_WITHOUT_TERMINAL = 200


class _EchoHandler(logging.Handler):
    """Log records as plain lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        click.echo(f"simstream: {prefix}{record.getMessage()}", err=True)


def configure_logging(quiet: bool) -> None:
    """Send the command line's log to stderr: everything, or errors only."""
    logger.handlers = [_EchoHandler()]
    logger.propagate = False
    logger.setLevel(logging.ERROR if quiet else logging.INFO)


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
    table = _new_table()
    for place, column in enumerate(columns):
        justify: Any = "left" if place == 0 or place in left else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print(table, title)


def echo_fields(fields: dict[str, str], *, title: str | None = None) -> None:
    """Print names and values, one pair per line."""
    table = _new_table()
    table.show_header = False
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in fields.items():
        table.add_row(name, text)
    _print(table, title)


def _new_table() -> Any:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False)


def _print(table: Any, title: str | None) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    # No markup: file names may contain brackets and colons.
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    if (
        title is not None
    ):  # above the table, not in it: there it would be wrapped to the table's width
        console.print(title, style="bold")
    console.print(table)


def as_count(n: int) -> str:
    """A number of things.

    Examples
    --------
    >>> as_count(1234567)
    '1,234,567'
    """
    return f"{n:,}"


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


def as_bytes(n: int) -> str:
    """Size of a file.

    Examples
    --------
    >>> as_bytes(34_500)
    '34.5 kB'
    """
    size = float(n)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
