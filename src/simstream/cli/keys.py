"""``simstream keys``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import debug_option, service_folder_option


@click.group(short_help="Create, list and remove keys of a service.")
@debug_option
def keys() -> None:
    """Manage the keys of a service's clients. A running service notices changes only after a restart."""


@keys.command("add")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["read", "write", "admin"]),
    multiple=True,
    required=True,
    help="What the key allows; may be repeated.",
)
@service_folder_option
@debug_option
def add(name: str, scopes: tuple[str, ...], folder: Path) -> None:
    """Create a key for NAME and print it. Only its hash is stored: it cannot be shown again."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    click.echo(_keys_of(folder).add(name, scopes))


@keys.command("list")
@service_folder_option
@debug_option
def list_keys(folder: Path) -> None:
    """List the id, name and scopes of every key."""
    for identity, name, scopes in _keys_of(folder).names():
        click.echo(f"{identity}\t{name}\t{','.join(scopes)}")


@keys.command("remove")
@click.argument("identity")
@service_folder_option
@debug_option
def remove(identity: str, folder: Path) -> None:
    """Remove the key with this id."""
    _keys_of(folder).remove(identity)


def _keys_of(folder: Path) -> Any:
    from ..serve.access import KeyRing

    return KeyRing(folder / "keys.json")
