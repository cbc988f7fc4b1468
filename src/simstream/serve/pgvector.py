"""Items in a table of PostgreSQL with pgvector (extra ``pgvector``)."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..extras import MissingExtraError
from .item_stores import IndexUnavailableError, Proposed
from .postgres_address import Address

#: Parameters of an address that are not PostgreSQL's.
_DEFAULTS = {"table": "items", "id": "id", "vector": "embedding"}

#: The most candidates that pgvector examines.
_MOST_EFFORT = 1000

_T = TypeVar("_T")


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.sql
    except ImportError as error:
        raise MissingExtraError("an index in PostgreSQL", "psycopg", "pgvector") from error
    return psycopg


class PgvectorStore:
    """A table with a column of type ``vector`` or ``halfvec``, searched by inner product (``<#>``).

    Parameters
    ----------
    address : ``postgresql://USER@HOST:PORT/DATABASE``
        Parameters beside those of PostgreSQL: ``table`` (``items``; ``SCHEMA.TABLE``), ``id`` and ``vector``,
        the columns (``id``, ``embedding``). The password may be in the environment: PGPASSWORD.
    """

    def __init__(self, address: str) -> None:
        self._module = _psycopg()
        read = Address.parsed(address, _DEFAULTS, what="index")
        table, name, vector = read.own.values()
        self._conninfo, self.address = read.conninfo, read.place
        self._idle: list[Any] = []
        identifier = self._module.sql.Identifier
        self._parts = {
            "table": identifier(*table.split(".")),
            "id": identifier(name),
            "vector": identifier(vector),
        }
        try:
            types = self._columns(table, name, vector)
            self._id_type = types[name][0]
            self._parts["id_type"] = self._module.sql.SQL(self._id_type)
            self._parts["type"] = self._module.sql.SQL(types[vector][0].partition("(")[0])
            self.n_features = self._length(vector, types[vector][1])
        except BaseException:
            self.close()
            raise

    def _columns(self, table: str, name: str, vector: str) -> dict[str, tuple[str, int]]:
        """Type and modifier of both columns."""
        query = """
            SELECT attname, format_type(atttypid, atttypmod), atttypmod FROM pg_attribute
            WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
        """
        regclass = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
        rows = self._do(lambda connection: connection.execute(query, [regclass]).fetchall())
        found = {column: (kind, modifier) for column, kind, modifier in rows}
        if not found:
            raise ValueError(f"index: {self.address}: there is no such table")
        for column in (name, vector):
            if column not in found:
                raise ValueError(
                    f"index: {self.address}: expected a column {column!r}, got {', '.join(found)}"
                )
        kind = found[vector][0]
        if kind.rpartition(".")[2].partition("(")[0] not in ("vector", "halfvec"):
            raise ValueError(
                f"index: {self.address}: expected {vector!r} to be a vector or halfvec, got {kind}"
            )
        return found

    def _length(self, vector: str, modifier: int) -> int:
        if modifier > 0:
            return modifier
        rows = self._rows("SELECT {vector}::text FROM {table} WHERE {vector} IS NOT NULL LIMIT 1")
        if not rows:
            raise ValueError(
                f"index: {self.address}: expected {vector!r} to have a length, as vector(384), or an item"
            )
        return len(json.loads(rows[0][0]))

    # -- connections --------------------------------------------------------------------------

    def _do(self, work: Callable[[Any], _T]) -> _T:
        """Do something with a connection; once more with a new one if an idle one has been closed."""
        while True:
            connection = idle = None
            with contextlib.suppress(IndexError):
                idle = self._idle.pop()
            try:
                connection = idle or self._connect()
                done = work(connection)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                module = self._module
                if isinstance(error, module.OperationalError) and idle is not None:
                    continue
                if isinstance(error, module.Error) and not isinstance(error, module.DataError):
                    raise self._unavailable(error) from error
                raise
            self._idle.append(connection)
            return done

    def _unavailable(self, error: Exception) -> IndexUnavailableError:
        text = " ".join(str(error).split())[:200]
        return IndexUnavailableError(f"index: {self.address}: does not answer ({text})")

    def _connect(self) -> Any:
        # Nothing is prepared: a plan that is kept would use the index in exact searches, too.
        return self._module.connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def _sql(self, query: str) -> Any:
        return self._module.sql.SQL(query).format(**self._parts)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._do(lambda connection: connection.execute(self._sql(query), values).fetchall())

    # -- reading ------------------------------------------------------------------------------

    def vectors(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Vectors of those rows that there are."""
        return self._vectors([name for name in names if can_be_id(name, self._id_type)])

    def _vectors(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        query = (
            "SELECT {id}::text, {vector}::text FROM {table} "
            "WHERE {id} = ANY(%s::text[]::{id_type}[]) AND {vector} IS NOT NULL"
        )
        try:
            return _vectors_of(self._rows(query, [names])) if names else {}
        except self._module.DataError:  # one of them can be no id
            half = len(names) // 2
            return self._vectors(names[:half]) | self._vectors(names[half:]) if half else {}

    def sample(self, n: int) -> dict[str, np.ndarray]:
        """Vectors of n random rows."""
        query = (
            "SELECT {id}::text, {vector}::text FROM {table} WHERE {id} IN (SELECT {id} FROM {table} "
            "WHERE {vector} IS NOT NULL ORDER BY random() LIMIT %s)"
        )
        return _vectors_of(self._rows(query, [n]))

    def search(
        self, queries: np.ndarray, k: int, *, effort: int, exact: bool, with_vectors: bool
    ) -> list[Proposed]:
        """Rows with the largest inner products; see `Store`."""
        columns = "{id}::text, -({vector} <#> %s::{type})" + ", {vector}::text" * with_vectors
        query = self._sql(
            f"SELECT {columns} FROM {{table}} WHERE {{vector}} IS NOT NULL "
            "ORDER BY {vector} <#> %s::{type} LIMIT %s"
        )
        # Of the transaction only. The first is read by pgvector; the other keeps its indexes from being used.
        setting = (
            "SET LOCAL enable_indexscan = off"
            if exact
            else f"SET LOCAL hnsw.ef_search = {min(effort, _MOST_EFFORT)}"
        )

        def look(connection: Any) -> list[list[Any]]:
            with connection.transaction():
                connection.execute(setting)
                texts = [_text(row) for row in queries]
                return [connection.execute(query, [one, one, k]).fetchall() for one in texts]

        try:
            answers = self._do(look)
        except self._module.DataError as error:  # vectors of another length
            raise self._unavailable(error) from error
        found: list[Proposed] = []
        for rows in answers:
            vectors = [json.loads(row[2]) for row in rows] if with_vectors else []
            hits = [(row[0], float(row[1])) for row in rows]
            found.append((hits, np.array(vectors, np.float32) if with_vectors else None))
        return found

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()


#: Bits of the types of whole numbers.
_BITS = {"smallint": 15, "integer": 31, "bigint": 63}


def can_be_id(name: str, id_type: str) -> bool:
    """Whether a text can be how PostgreSQL writes a value of a type; of most types it is not known.

    Examples
    --------
    >>> can_be_id("17", "bigint"), can_be_id("017", "bigint"), can_be_id("shoe", "uuid")
    (True, False, False)
    """
    if id_type in _BITS:
        limit = 2 ** _BITS[id_type]
        is_number = re.fullmatch("0|-?[1-9][0-9]{0,18}", name)
        return bool(is_number) and -limit <= int(name) < limit
    if id_type == "uuid":
        with contextlib.suppress(ValueError):
            return str(uuid.UUID(name)) == name
        return False
    return "\0" not in name


def _text(vector: np.ndarray) -> str:
    """A vector as pgvector reads it.

    Examples
    --------
    >>> _text(np.array([0.5, -1.25], np.float32))
    '[0.5, -1.25]'
    """
    return str(vector.tolist())


def _vectors_of(rows: list[Any]) -> dict[str, np.ndarray]:
    return {name: np.array(json.loads(text), np.float32) for name, text in rows}
