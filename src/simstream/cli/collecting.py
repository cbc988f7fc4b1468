"""The file of ``simstream serve --collections``: a table for each collection, with options of serve.

[shoes]
data = "shoes-data"
items = "shoes.npz"
algorithm = "oasis"
params = { C = 0.5 }
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

#: What a collection decides for itself: parameters of the command.
OF_A_COLLECTION = (
    "items",
    "n_features",
    "folder",
    "address",
    "may_add",
    "follow",
    "index",
    "move_index",
    "candidates",
    "recall_share",
    "algorithm",
    "params",
    "block",
    "promote",
    "half_life",
    "propensity",
    "randomise",
    "delta",
    "near",
    "random_share",
    "rate",
    "snapshot_every",
)


def refuse_given(context: click.Context) -> None:
    """Refuse what was given for all collections but is for each of them to say."""
    names = (*OF_A_COLLECTION, "demo")
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") in (
            click.core.ParameterSource.COMMANDLINE,
            click.core.ParameterSource.ENVIRONMENT,
        )
        if parameter.name in names and is_given:
            what = (
                parameter.make_metavar(context) if parameter.name == "items" else parameter.opts[0]
            )
            raise click.UsageError(f"--collections: not with {what}; say it in the file")


def read_collections(path: Path, command: click.Command) -> dict[str, dict[str, Any]]:
    """The parameters of every collection, checked as those of the command; paths start at the file.

    Options are spelt as on the command line; `params` is a table.
    """
    from ..serve.collections import check_name

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected TOML, got {error}") from error
    if not tables:
        raise ValueError(f"{path}: expected a table for each collection, got none")
    for name, table in tables.items():
        check_name(name)
        if not isinstance(table, dict):
            raise ValueError(f"{path}: expected only tables, got {name} = {table!r}")
    told = {name: _parsed(path, name, table, command) for name, table in tables.items()}
    owners: dict[Path, str] = {}
    for name, given in told.items():
        if given["follow"] is True:  # what another one writes, perhaps one of these
            continue
        other = owners.setdefault(given["folder"].resolve(), name)
        if other != name:
            raise click.UsageError(
                f"{path}: expected a folder (data) for each collection, got {given['folder']} for both "
                f"{other} and {name}"
            )
    for folder, name in owners.items():
        for other in (owners[parent] for parent in folder.parents if parent in owners):
            raise click.UsageError(
                f"{path}: expected folders (data) beside each other, got that of {name} inside that of "
                f"{other}"
            )
    for name, given in told.items():
        folder = given["folder"]  # of one that follows, if it is not in `owners`
        if given["address"] is None and not folder.is_dir() and folder.resolve() not in owners:
            raise ValueError(f"collection {name}: follow: {folder}: no such folder")
    return told


def _parsed(path: Path, name: str, table: dict[str, Any], command: click.Command) -> dict[str, Any]:
    options = {
        one.opts[0].lstrip("-"): one for one in command.params if one.name in OF_A_COLLECTION
    }
    options["params"] = options.pop("param")
    arguments: list[str] = []
    for key, value in ({"data": name} | table).items():
        parameter = options.get(key)
        if parameter is None:
            near = "".join(f" (did you mean {one}?)" for one in get_close_matches(key, options, 1))
            raise click.UsageError(
                f"{path}: {name}: expected some of {', '.join(sorted(options))}, got {key}{near}"
            )
        if key in ("data", "items"):
            arguments += [*([] if key == "items" else ["--data"]), str(path.parent / str(value))]
        elif key == "params":
            if not isinstance(value, dict):
                raise click.UsageError(f"{path}: {name}: params: expected a table, got {value!r}")
            arguments += [f"--param={one}={_text(told)}" for one, told in value.items()]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            if not isinstance(value, bool):
                raise click.UsageError(
                    f"{path}: {name}: {key}: expected true or false, got {value!r}"
                )
            arguments += [parameter.opts[0]] * value
        elif key == "follow" and isinstance(value, bool):
            arguments += [f"{parameter.opts[0]}="] * value
        elif isinstance(value, str) and isinstance(
            parameter.type, click.IntRange | click.FloatRange
        ):
            raise click.UsageError(f"{path}: {name}: {key}: expected a number, got {value!r}")
        else:
            arguments.append(f"{parameter.opts[0]}={_text(value)}")
    try:
        context = command.make_context(command.name, arguments)
    except click.ClickException as error:
        raise click.UsageError(f"{path}: {name}: {error.format_message()}") from error
    return {key: context.params[key] for key in OF_A_COLLECTION}


def _text(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
