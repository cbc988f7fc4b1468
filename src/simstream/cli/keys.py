"""``simstream keys``."""

from __future__ import annotations

from pathlib import Path

import click

from .options import debug_option, service_folder_option


@click.group(short_help="Make and list keys of a service.")
@debug_option
def keys() -> None:
    """Keys for callers of a service. A running service must be restarted to notice a change."""


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
    """Make a key for NAME and print it: it is kept only as a hash and cannot be shown again."""
    from ..serve.keys import KeyRing

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    click.echo(KeyRing(folder / "keys.json").add(name, scopes))


@keys.command("list")
@service_folder_option
@debug_option
def list_keys(folder: Path) -> None:
    """Print id, name and scopes of every key."""
    from ..serve.keys import KeyRing

    for identity, name, scopes in KeyRing(folder / "keys.json").names():
        click.echo(f"{identity}\t{name}\t{','.join(scopes)}")


@keys.command("remove")
@click.argument("identity")
@service_folder_option
@debug_option
def remove(identity: str, folder: Path) -> None:
    """Forget the key with this id."""
    from ..serve.keys import KeyRing

    KeyRing(folder / "keys.json").remove(identity)
