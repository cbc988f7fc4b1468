"""Addresses of PostgreSQL: of a log, and of a table of items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

#: How connections are made unless the address says otherwise: a server that is gone must be noticed.
_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "simstream",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_HOST = r"(\[[^\]]*\]|[^:,]*)(:\d*)?"

#: Parameters of libpq that say where a database is.
_PLACES = ("host", "hostaddr", "port", "dbname", "service")


def _url(parts: SplitResult, netloc: str, query: Mapping[str, str]) -> str:
    """An address; `urlunsplit` would leave out an empty host."""
    text = urlencode(query, safe="/", quote_via=quote)
    return f"postgresql://{netloc}{parts.path}{'?' if text else ''}{text}"


class Address(NamedTuple):
    """Where something is in PostgreSQL.

    Examples
    --------
    >>> text = "postgresql://me:secret@db.example.org/shop?sslmode=require&table=shoes"
    >>> address = Address.parsed(text, {"table": "items"}, what="index")
    >>> address.own, address.place
    ({'table': 'shoes'}, 'postgresql://db.example.org/shop?table=shoes')
    >>> address.shown
    'postgresql://me@db.example.org/shop?sslmode=require&table=shoes'
    """

    #: What is given to libpq, perhaps with a password.
    conninfo: str
    #: The parameters that are not libpq's.
    own: dict[str, str]
    #: Without a password: for messages and files.
    shown: str
    #: Without who connects, and how.
    place: str

    @classmethod
    def parsed(cls, text: str, own: Mapping[str, str], *, what: str) -> Address:
        """Read ``postgresql://[user@]host[:port]/database[?name=value&...]``.

        Parameters are those of libpq, and `own` ones with their defaults. Errors, which begin with `what`,
        never repeat the text: it may hold a password.
        """
        import psycopg

        try:
            parts = urlsplit(text)
            user, _, hosts = parts.netloc.rpartition("@")
            if (
                parts.scheme not in ("postgresql", "postgres")
                or "@" in user + parts.path
                or parts.fragment
            ):
                raise ValueError("not the address of a database")
            if not re.fullmatch(rf"{_HOST}(,{_HOST})*", hosts):
                raise ValueError("a port that is not a number")
            named = dict(parse_qsl(parts.query, keep_blank_values=True))
            chosen = {name: named.pop(name, default) for name, default in own.items()}
            conninfo = _url(parts, parts.netloc, named)
            known = psycopg.conninfo.conninfo_to_dict(conninfo)
        except (ValueError, psycopg.Error):
            parameters = "&".join(f"{name}=..." for name in own)
            raise ValueError(
                f"{what}: expected postgresql://[user@]host[:port]/database[?{parameters}], got an address "
                "that cannot be read (in a password, write @ as %40, / as %2F, : as %3A)"
            ) from None
        public = {
            name: value
            for name, value in named.items()
            if "password" not in name and "secret" not in name
        }
        netloc = f"{user.partition(':')[0]}@{hosts}" if user else hosts
        places = {name: value for name, value in named.items() if name in _PLACES}
        defaults = {name: value for name, value in _DEFAULTS.items() if name not in known}
        return cls(
            psycopg.conninfo.make_conninfo(conninfo, **defaults),
            chosen,
            _url(parts, netloc, public | chosen),
            _url(parts, hosts, places | chosen),
        )
