"""Keys of a service's clients: ``simstream keys``."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from .options import json_option, service_folder_option
from .output import echo_json


@click.group(short_help="Create, list and remove keys of a service.")
def keys() -> None:
    """Manage the keys of a service's clients. A running service notices changes within a second."""


@keys.command("add")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["read", "write", "admin", "follow"]),
    multiple=True,
    required=True,
    help="What the key allows; may be repeated. follow: to copy the log (serve --follow URL), and no more.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="Days until it expires (default: never).",
)
@service_folder_option
def add(name: str, scopes: tuple[str, ...], days: float | None, folder: Path) -> None:
    """Create a key for NAME and print it. Only its hash is stored: it cannot be shown again.

    The folder is made if it is missing, for a service that is to be started there.
    """
    if not name.strip():
        raise click.BadParameter(f"expected a name, got {name!r}", param_hint="NAME")
    ring = _keys_of(folder, may_make=True)
    if name in {other for _, other, _, _ in ring.names()}:
        click.echo(f"another key is named {name}: both are one caller (serve --rate)", err=True)
    click.echo(ring.add(name, scopes, days))


@keys.command("list")
@service_folder_option
@json_option
def list_keys(folder: Path, as_json: bool) -> None:
    """List the id, name and scopes of every key, and when it expires."""
    listed = [
        {
            "id": identity,
            "name": name,
            "scopes": scopes,
            "expires": None if expires is None else _local_time(expires),
            "is_expired": expires is not None and expires <= time.time(),
        }
        for identity, name, scopes, expires in _keys_of(folder).names()
    ]
    if as_json:
        echo_json({"keys": listed})
        return
    for key in listed:
        end = f"\t{'expired' if key['is_expired'] else 'until'} {key['expires']}"
        scopes = ",".join(key["scopes"])
        click.echo(f"{key['id']}\t{key['name']}\t{scopes}{end if key['expires'] else ''}")
    if not listed:
        click.echo(f"{folder} has no keys: only this machine may use the service", err=True)


def _local_time(seconds: float) -> str:
    """Seconds since 1970 in the time zone of this machine, which is named by its offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


@keys.command("remove")
@click.argument("identity")
@service_folder_option
def remove(identity: str, folder: Path) -> None:
    """Remove the key with this id."""
    click.echo(f"removed the key of {_keys_of(folder).remove(identity)}")


def _keys_of(folder: Path, *, may_make: bool = False) -> Any:
    """The keys of a service, or of a file of collections; `may_make`: of one that is to be started there."""
    from ..serve.access import KeyRing

    needed = folder.absolute().parent if may_make else folder
    if not needed.is_dir():
        raise click.BadParameter(f"{needed}: no such folder", param_hint="--data")
    if not folder.exists():
        folder.mkdir(mode=0o700)
        click.echo(f"made the folder {folder}", err=True)
    found = {one.name for one in folder.iterdir() if one.name != "lost+found"}
    known = {"log.sqlite", "log.address", "keys.json", "snapshots", "lock"}
    known |= {name for name in found if name.endswith(".toml") and name != "pyproject.toml"}
    is_empty = all(name.startswith(".") for name in found)
    if not (found & known or (may_make and is_empty)):
        raise click.BadParameter(
            f"expected the folder of a service, or of a file of collections, got {folder}",
            param_hint="--data",
        )
    return KeyRing(folder / "keys.json")
