"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ..extras import MissingExtraError
from .exits import DEBUG


class PathType(click.Path):
    """A path; an empty text, such as that of a variable that is not set, is not the current folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty text."""
        if value == "":
            self.fail("expected a path, got an empty text", param, ctx)
        return super().convert(value, param, ctx)


#: Existence is checked by the readers, whose errors say more and have their own exit codes.
FILE = PathType()


#: What blocks of items need at least.
_LEAST_BYTES = 2**20


class Whole(click.IntRange):
    """A whole number within bounds, shown as N in the help."""

    name = "n"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the option's text; click's own message would call an integer by the name above."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not an integer", param, ctx)
        return super().convert(value, param, ctx)


class Share(click.FloatRange):
    """A number from 0 to 1, or the word that stands for none at all, where there is such a word."""

    name = "share"

    def __init__(self, word: str | None = None) -> None:
        super().__init__(min=0, max=1)
        self._word = word

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse the option's text: a float, or the word itself."""
        return value if value == self._word else super().convert(value, param, ctx)


class Size(click.ParamType):
    """A number of bytes, such as 512MB or 2GiB."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the option's text."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9.]+)\s*([kmgt]?)(i?)b?", value.strip().lower())
        try:
            assert found is not None
            number = float(found[1])
        except (AssertionError, ValueError):
            self.fail(f"{value!r} is not a size such as 512MB or 2GiB", param, ctx)
        base = 1024 if found[3] else 1000
        size = int(number * base ** " kmgt".index(found[2] or " "))
        if size < self._least:
            self.fail(f"{value!r} is less than {self._least} bytes", param, ctx)
        return size


COUNT = Whole(min=1)
NATURAL = Whole(min=0)
SHARE = Share()
#: In place of a share of similar pairs: as many as there are among all pairs.
UNIFORM = "uniform"
SHARE_OR_UNIFORM = Share(UNIFORM)


def _column(text: str) -> str | int:
    """A column by name, or by number if it looks like one."""
    try:
        return int(text)
    except ValueError:
        return text


def _assignment(text: str) -> tuple[str, Any]:
    """``name=value``, the value a number, true, false, none, or text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form name=value")
    return name.strip(), parse_value(value.strip())


class CommaSeparated(click.ParamType):
    """A list such as ``1,5,10``, each part of the given type."""

    def __init__(self, part: click.ParamType, name: str) -> None:
        self.part = part
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Parse the option's text."""
        parts = [part.strip() for part in value.split(",")]
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


def _remember_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_remember_debug,
    help="Show the full traceback if there is an error.",
)

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print machine-readable output: one JSON document on stdout.",
)

quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print errors only.")

params_option = click.option(
    "--param",
    "-p",
    "params",
    type=_assignment,
    metavar="NAME=VALUE",
    multiple=True,
    help="A parameter of the algorithm, such as C=0.1; may be repeated.",
)

service_folder_option = click.option(
    "--data",
    "folder",
    type=PathType(file_okay=False),
    default=Path("simstream-data"),
    show_default=True,
    help="The service's folder: its log, snapshots and keys.",
)


def _checked_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if find_spec("psycopg") is None:
        raise MissingExtraError("--log", "psycopg", "postgres")
    from ..serve.postgres_store import address_of

    try:
        address_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("log: ")) from None
    return value


log_option = click.option(
    "--log",
    "address",
    metavar="ADDRESS",
    callback=_checked_address,
    help="A PostgreSQL database for the log, postgresql://[user@]host[:port]/database[?schema=name] "
    "(default: a file in the service's folder). Give the password in PGPASSFILE, which others do not see.",
)

on_error_option = click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="At a bad triplet or pair: stop, or skip and count it.",
)

label_column_option = click.option(
    "--label-column",
    type=_column,
    metavar="NAME|NUMBER",
    help="Column of labels in a CSV or parquet file: its name, or its number (-1 is the last).",
)

n_features_option = click.option(
    "--n-features",
    type=COUNT,
    help="Number of features, where items are sparse (default: up to the last one in the file, unless that "
    "is improbably large).",
)

labels_option = click.option(
    "--labels",
    "labels_file",
    type=FILE,
    help="One label per item (.npy, .csv, .txt, .jsonl). Default: the labels in ITEMS.",
)

tasks_option = click.option(
    "--tasks",
    "tasks_file",
    type=FILE,
    help="One task name per item (.npy, .csv, .txt, .jsonl). Default: the array tasks or groups of ITEMS, "
    "if it is an .npz file.",
)


item_ids_option = click.option(
    "--item-ids",
    type=FILE,
    help="One id per item (.txt, .csv, .jsonl, .npy). Default: those in the file of items, else row numbers.",
)

query_ids_option = click.option(
    "--query-ids",
    type=FILE,
    help="One id per query. Default: those in --queries, else row numbers.",
)

by_option = click.option(
    "--by",
    type=click.Choice(["ids", "rows"]),
    help="How triplets and pairs name items (default: by ids if the items have ids, else by row number).",
)

memory_option = click.option(
    "--memory",
    type=Size(_LEAST_BYTES),
    default="512MB",
    show_default=True,
    help="How much of the items and their scores is in memory at a time, in each process. Files that are "
    "read in blocks (.npy, .parquet) may be larger; the result is the same.",
)

workers_option = click.option(
    "--workers",
    type=COUNT,
    default=1,
    show_default=True,
    help="Processes that share the items; more than one needs simstream[distributed].",
)

address_option = click.option(
    "--address", metavar="RAY", help="A running Ray to use for --workers, such as ray://host:10001."
)


scoring_device_option = click.option(
    "--device",
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    help="Where dense items are scored: cpu, cuda, cuda:N, or auto, which is a GPU if there is one.",
)


def refuse_options(reason: str, is_given: dict[str, bool]) -> None:
    """Refuse the first option that is given although it has no meaning here."""
    for option, given in is_given.items():
        if given:
            raise click.UsageError(f"{option} {reason}")


def check_writable(path: Path, option: str) -> None:
    """Find out now, rather than after an hour of work, whether a file can be written."""
    folder = path.resolve().parent
    if path.is_dir():
        reason = "is a folder; expected the name of a file"
    elif not folder.exists():
        reason = f"no such folder: {folder}"
    else:
        check_folder(folder, path, option)
        return
    raise click.BadParameter(f"{path}: {reason}", param_hint=option)


def check_folder(folder: Path, path: Path, option: str) -> None:
    """Refuse a path whose folder, or the one that missing folders will be made in, is not writable."""
    found = existing_folder(folder, path, option)
    if not os.access(found, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{path}: {found} is not writable", param_hint=option)


def existing_folder(folder: Path, path: Path, option: str) -> Path:
    """The folder, or the one that missing folders will be made in; refuse a path where that is a file."""
    folder = folder.resolve()
    found = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    if not found.is_dir():
        raise click.BadParameter(f"{path}: {found} is not a folder", param_hint=option)
    return found


def unfinished_file(output: Path, resume: Path | None) -> Path:
    """Where a run that is not finished saves what it has learnt: never over another model.

    That is the output itself where there is no file yet, or where it is the model that the run continues.
    """
    is_continued = resume is not None and resume.resolve() == output.resolve()
    if is_continued or not output.is_file():
        return output
    return output.with_name(f"{output.stem}.unfinished{output.suffix}")


def check_picture(path: Path) -> None:
    """Find out before measuring whether a picture can be drawn."""
    from ..data import FormatError
    from ..plots import check_extension

    try:
        check_extension(path)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--plot") from error
    check_writable(path, "--plot")
