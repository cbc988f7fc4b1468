"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .exits import DEBUG

Command = Callable[..., Any]

#: Existence is checked by the readers, whose errors say more and have their own exit codes.
FILE = click.Path(path_type=Path)


def _remember_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def debug_option(command: Command) -> Command:
    """Add ``--debug``, which keeps the traceback of an error."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="Show the traceback of an error.",
    )(command)


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document, and nothing else, on stdout.",
    )(command)


def quiet_option(command: Command) -> Command:
    """Add ``--quiet``."""
    return click.option("--quiet", "-q", is_flag=True, help="Print errors only.")(command)


def params_option(command: Command) -> Command:
    """Add ``--param``, parameters of an algorithm as pairs (name, value)."""
    return click.option(
        "--param",
        "-p",
        "params",
        type=Assignment(),
        multiple=True,
        help="A parameter of the algorithm, such as C=0.1; may be repeated.",
    )(command)


def service_folder_option(command: Command) -> Command:
    """Add ``--data``, the folder of a service."""
    return click.option(
        "--data",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("simstream-data"),
        show_default=True,
        help="The folder of the service: its log, snapshots and keys.",
    )(command)


def on_error_option(command: Command) -> Command:
    """Add ``--on-error``."""
    return click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What to do at a bad record of a triplet or pair: stop, or count it and go on.",
    )(command)


def label_column_option(command: Command) -> Command:
    """Add ``--label-column``."""
    return click.option(
        "--label-column",
        type=_Column(),
        help="Column of labels in a CSV file: its name, or its number (-1 is the last).",
    )(command)


def labels_options(command: Command) -> Command:
    """Add ``--labels`` and ``--label-column``."""
    command = label_column_option(command)
    return click.option(
        "--labels",
        "labels_file",
        type=FILE,
        help="One label per item (.npy, .csv, .txt, .jsonl). Default: the labels in ITEMS.",
    )(command)


def tasks_option(command: Command) -> Command:
    """Add ``--tasks``."""
    return click.option(
        "--tasks",
        "tasks_file",
        type=FILE,
        help="One task name per item (.npy, .csv, .txt, .jsonl). Default: an array tasks or groups in an "
        ".npz file of ITEMS.",
    )(command)


def check_picture(path: Path) -> None:
    """Find out before measuring whether a picture can be drawn."""
    from ..plots import PlottingUnavailableError, check_extension

    try:
        check_extension(path)
    except PlottingUnavailableError as error:
        raise click.BadParameter(str(error), param_hint="--plot") from error
    check_writable(path, "--plot")


def check_writable(path: Path, option: str) -> None:
    """Find out now, rather than after an hour of work, whether a file can be written."""
    if path.is_dir() or not os.access(path.resolve().parent, os.W_OK | os.X_OK):
        raise click.BadParameter(
            f"{path}: expected a file name in a writable folder", param_hint=option
        )


class _Column(click.ParamType):
    """A column by name, or by number if it looks like one."""

    name = "name|number"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | int:
        """Parse the option's text."""
        try:
            return int(value)
        except ValueError:
            return str(value)


class Assignment(click.ParamType):
    """``name=value``, the value a number, true, false, none, or text."""

    name = "name=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Any]:
        """Parse the option's text."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name.strip(), parse_value(text.strip())


class CommaSeparated(click.ParamType):
    """A list such as ``1,5,10``, each part of the given type."""

    def __init__(self, part: click.ParamType, name: str) -> None:
        self.part = part
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Parse the option's text."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        return tuple(self.part.convert(part, param, ctx) for part in parts if part)


def parse_value(text: str) -> bool | int | float | str | None:
    """Read a parameter's value.

    Examples
    --------
    >>> [parse_value(text) for text in ("3", "1e-6", "true", "none", "PA-II")]
    [3, 1e-06, True, None, 'PA-II']
    """
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
