"""Rows of items that are read block by block: of files larger than memory, and of arrays in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ..validation import Items, check_finite, float_type, stacked
from .files import PathLike, format_error, format_of, is_regular, open_input
from .item_formats import FORMATS, ParquetColumns, check_labels, load_pyarrow, opened_parquet

#: Formats that can be read from any row on.
BLOCK_FORMATS = ("npy", "parquet")

#: Rows of a parquet file that are decoded at a time: its row groups may be larger than memory.
_BATCH = 4096


class RowBlocks(ABC):
    """Rows of features that are read a block at a time, and only as often as they are asked for.

    `open_rows` opens a file, `ArrayBlocks` takes an array. The ranking measures of `simstream.metrics` accept
    one wherever they accept items.

    Attributes
    ----------
    shape : (int, int)
        Number of rows, and of features.
    """

    shape: tuple[int, int]

    #: Whether blocks are CSR matrices.
    is_sparse = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the features, where there are such."""
        return None

    @abstractmethod
    def blocks(self, edges: Iterable[tuple[int, int]], dtype: Any) -> Iterator[Any]:
        """Yield the rows from ``begin`` to ``end`` for each (begin, end), which ascend, in this precision.

        None keeps float32 and makes float64 of everything else. Raises if a number is not finite.
        """

    def block(self, begin: int, end: int, dtype: Any) -> Any:
        """One block."""
        return next(self.blocks([(begin, end)], dtype))

    def take(self, numbers: np.ndarray, dtype: Any) -> Any:
        """Some rows, in any order and as often as they are asked for."""
        wanted, places = np.unique(numbers, return_inverse=True)
        if not len(wanted):
            return self.block(0, 1, dtype)[:0]
        return stacked(list(self.blocks(_runs(wanted), dtype)))[places]

    def as_items(self, dtype: Any = None) -> Items:
        """The rows as items, which learners and similarities take: they are read when they are needed."""
        return StoredItems(self, dtype)


class StoredItems(Items):
    """Items of which only the rows that are needed are read, unless something needs all of them.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from simstream import OASIS
    >>> from simstream.data import open_rows
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "items.npy"
    >>> np.save(path, np.eye(4))
    >>> OASIS(preprocessor=open_rows(path)).fit([[0, 1, 2], [3, 1, 0]]).n_rounds_
    2
    """

    _all: Any = None

    def __init__(self, rows: RowBlocks, dtype: Any = None) -> None:
        self.blocks = rows
        self._dtype = rows.block(0, 1, dtype).dtype
        if rows.feature_names is not None:
            self.feature_names = np.array(rows.feature_names, dtype=object)

    @property
    def values(self) -> Any:  # type: ignore[override]
        """All rows."""
        if self._all is None:
            self._all = self.blocks.block(0, len(self.blocks), self._dtype)
        return self._all

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are CSR matrices."""
        return self.blocks.is_sparse

    @property
    def is_stored(self) -> bool:
        """Whether the rows are still in the file alone."""
        return self._all is None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of features."""
        return self.blocks.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision in which rows are given."""
        return self._dtype

    def with_dtype(self, dtype: Any, name: str = "items") -> Items:
        """The same rows in another precision."""
        if dtype is None or self._dtype == np.dtype(dtype):
            return self
        return self._named_as(StoredItems(self.blocks, dtype))

    def rows(self, index: np.ndarray) -> Any:
        """Some rows."""
        return self.blocks.take(index, self._dtype) if self.is_stored else self._all[index]

    def dense_rows(self, index: np.ndarray) -> np.ndarray:
        """Some rows as an array."""
        rows = self.rows(index)
        return rows.toarray() if self.is_sparse else rows


def _runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Edges of the runs of neighbours among rows that ascend."""
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    ends = np.append(starts[1:], len(numbers)) - 1
    return list(zip(numbers[starts].tolist(), (numbers[ends] + 1).tolist(), strict=True))


class ArrayBlocks(RowBlocks):
    """Rows of an array or a CSR matrix in memory, which somebody has checked already.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data.blocks import ArrayBlocks
    >>> ArrayBlocks(np.eye(3)).block(1, 2, "float64")
    array([[0., 1., 0.]])
    """

    def __init__(self, values: Any) -> None:
        self._values, self.shape = values, values.shape
        self.is_sparse = sparse.issparse(values)

    def blocks(self, edges: Iterable[tuple[int, int]], dtype: Any) -> Iterator[Any]:
        """Yield rows, without a copy where they are dense and of this precision."""
        for begin, end in edges:
            whole = (begin, end) == (0, len(self))
            rows = self._values if whole else self._values[begin:end]
            yield rows if dtype is None else rows.astype(dtype, copy=False)


class ChosenRows(RowBlocks):
    """Some rows of others, by their numbers, which ascend.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.data.blocks import ArrayBlocks, ChosenRows
    >>> ChosenRows(ArrayBlocks(np.eye(3)), np.array([0, 2])).block(1, 2, "float64")
    array([[0., 0., 1.]])
    """

    def __init__(self, rows: RowBlocks, numbers: np.ndarray) -> None:
        self._rows, self._numbers = rows, numbers
        self.shape, self.is_sparse = (len(numbers), rows.shape[1]), rows.is_sparse

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the features of the others."""
        return self._rows.feature_names

    def blocks(self, edges: Iterable[tuple[int, int]], dtype: Any) -> Iterator[Any]:
        """Yield rows, each run of neighbours read at once."""
        for begin, end in edges:
            runs = _runs(self._numbers[begin:end])
            yield stacked(list(self._rows.blocks(runs, dtype)))


class _FileBlocks(RowBlocks):
    """Rows of a file, checked as they are read, scaled to length one if asked for."""

    def __init__(self, path: Path, unit_norm: bool) -> None:
        self._path, self._unit_norm = path, unit_norm

    def _checked_shape(self, shape: tuple[int, ...], kind: object, is_number: bool) -> None:
        """Take over the shape, of rows that are numbers."""
        if len(shape) != 2 or 0 in shape or not is_number:
            expected = "at least one row and one column of real numbers"
            found = f"shape {shape}, type {kind}"
            raise format_error(self._path, "not rows of features", expected, found)
        self.shape = (int(shape[0]), int(shape[1]))

    @abstractmethod
    def _read(self, edges: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        """Yield rows as they are stored."""

    def blocks(self, edges: Iterable[tuple[int, int]], dtype: Any) -> Iterator[Any]:
        """Yield rows as arrays of their own."""
        edges = list(edges)
        for (begin, _), rows in zip(edges, self._read(edges), strict=True):
            yield self._finished(rows, dtype, begin.__add__)

    def _finished(self, rows: np.ndarray, dtype: Any, number: Callable[[int], int]) -> np.ndarray:
        """Rows as they are used, from rows as they are stored; `number` is that of a row in the file."""
        with np.errstate(over="ignore"):  # too large a number becomes an infinity: reported
            rows = np.ascontiguousarray(rows, dtype=dtype or float_type(rows.dtype))
        self._check(rows, number)
        if self._unit_norm:
            from sklearn.preprocessing import normalize

            rows = normalize(rows, copy=not rows.flags.writeable)
        return rows

    def _check(self, rows: np.ndarray, number: Callable[[int], int]) -> None:
        try:
            check_finite(rows, "items")
        except ValueError:
            row, column = np.argwhere(~np.isfinite(rows))[0]
            problem = f"not finite at row {number(int(row))}, column {column} (counted from 0)"
            expected = f"finite {rows.dtype} numbers"
            raise format_error(self._path, problem, expected, rows[row, column]) from None


class _NpyBlocks(_FileBlocks):
    """Rows of an .npy file, read with ordinary reads: no page of the file counts as memory of the process."""

    def __init__(self, path: Path, unit_norm: bool = False) -> None:
        super().__init__(path, unit_norm)
        with open_input(path) as handle:
            try:
                version = np.lib.format.read_magic(handle)
                known: Any = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }
                shape, self._by_column, self._stored = known[version](handle)
            except (KeyError, ValueError) as error:
                expected = "an .npy file of numbers"
                raise format_error(path, "damaged or truncated", expected, error) from None
            self._start = handle.tell()
        self._checked_shape(shape, self._stored, self._stored.kind in "biuf")
        n_bytes = self._start + int(np.prod(shape, dtype=np.int64)) * self._stored.itemsize
        if path.stat().st_size < n_bytes:
            expected, found = f"{n_bytes} bytes", path.stat().st_size
            raise format_error(path, "damaged or truncated", expected, found)

    def take(self, numbers: np.ndarray, dtype: Any) -> Any:
        """Some rows: read without a buffer, which would fetch more than is asked for, and checked at once."""
        if self._by_column:
            return super().take(numbers, dtype)
        wanted, places = np.unique(numbers, return_inverse=True)
        rows = np.empty((len(wanted), self.shape[1]), self._stored)
        size = rows.shape[1] * rows.itemsize
        view = memoryview(rows).cast("B") if len(rows) else memoryview(b"")
        with open_input(self._path) as handle:
            seek, read = handle.raw.seek, handle.raw.readinto  # type: ignore[attr-defined]
            for place, number in enumerate(wanted.tolist()):
                seek(self._start + number * size)
                if read(view[place * size : (place + 1) * size]) != size:
                    found = f"its end within row {number}"
                    raise format_error(self._path, "became shorter", "all rows", found)
        rows = self._finished(rows, dtype, lambda row: int(wanted[row]))
        return rows if np.array_equal(wanted, numbers) else rows[places]

    def _read(self, edges: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        if self._by_column:  # a block of rows lies in pieces all over the file
            mapped = np.memmap(self._path, self._stored, "r", self._start, self.shape, "F")
            for begin, end in edges:
                yield np.array(mapped[begin:end])
            return
        width = self.shape[1]
        with open_input(self._path) as handle:
            for begin, end in edges:
                handle.seek(self._start + begin * width * self._stored.itemsize)
                rows = np.empty((end - begin, width), self._stored)
                view = memoryview(rows).cast("B")
                while len(view):
                    n = handle.readinto(view)  # type: ignore[attr-defined]
                    if not n:
                        found = f"its end within rows {begin} to {end - 1}"
                        raise format_error(self._path, "became shorter", "all rows", found)
                    view = view[n:]
                yield rows


class _ParquetBlocks(_FileBlocks):
    """Rows of a parquet file: row groups that are not needed are skipped, the others decoded in batches."""

    def __init__(
        self, path: Path, unit_norm: bool = False, label_column: str | int | None = None
    ) -> None:
        super().__init__(path, unit_norm)
        with opened_parquet(path, mapped=True) as file:
            self._columns = ParquetColumns.of(path, file.schema_arrow, label_column)
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            self._edges = np.append(0, np.cumsum(sizes, dtype=np.int64)).tolist()
            n_rows = file.metadata.num_rows
            width = 0
            if n_rows:
                batch = next(file.iter_batches(1, columns=self._columns.features))
                width = self._columns.values(path, _table(path, batch)).shape[1]
        self._checked_shape((n_rows, width), "parquet", True)

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the features, where they are columns of their own."""
        return self._columns.feature_names

    def labels_and_ids(self) -> tuple[np.ndarray | None, list[str] | None]:
        """The columns that are not features, where there are such."""
        with opened_parquet(self._path) as file:
            found = self._columns.others(self._path, file.read(columns=self._columns.special))
        labels = found[0]
        return (None if labels is None else check_labels(self._path, labels)), found[1]

    def _read(self, edges: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        edges = list(edges)
        if not edges:
            return
        groups = [
            group
            for group, (first, last) in enumerate(pairwise(self._edges))
            if any(begin < last and first < end for begin, end in edges)
        ]
        # Mapped, so that a row group is not copied as a whole.
        with opened_parquet(self._path, mapped=True) as file:
            batches = self._batches(file, groups)
            first, rows = next(batches)
            for begin, end in edges:
                parts = []
                while True:
                    wanted = rows[max(0, begin - first) : max(0, end - first)]
                    if len(wanted):
                        parts.append(wanted)
                    if first + len(rows) >= end:
                        break
                    first, rows = next(batches)
                yield np.concatenate(parts)

    def _batches(self, file: Any, groups: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Batches of rows with the number of their first one."""
        columns = self._columns.features
        for group in groups:
            first = self._edges[group]
            for batch in file.iter_batches(_BATCH, row_groups=[group], columns=columns):
                rows = self._columns.values(self._path, _table(self._path, batch), first)
                if rows.shape[1] != self.shape[1]:
                    problem = f"ragged row {first} (counted from 0)"
                    expected = f"{self.shape[1]} features, as in row 0"
                    raise format_error(self._path, problem, expected, rows.shape[1])
                yield first, rows
                first += len(rows)


def _table(path: Path, batch: Any) -> Any:
    return load_pyarrow(path)[0].Table.from_batches([batch])


def open_rows(path: PathLike, *, unit_norm: bool = False) -> RowBlocks:
    """Open a file of items to be read block by block, so that it may be larger than memory.

    Parameters
    ----------
    path : str or os.PathLike
        An ``.npy`` file of a 2-d array, or a ``.parquet`` file of vectors; see `read_items`.
    unit_norm : bool, default=False
        Scale rows to length one as they are read; rows of zeros stay.

    Returns
    -------
    RowBlocks

    Raises
    ------
    FormatError
        If the file cannot be read or is empty; while it is read, if a number is not finite.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from simstream.data import open_rows
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "items.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> rows = open_rows(path)
    >>> rows.shape, rows.block(1, 3, "float32").tolist()
    ((3, 2), [[2.0, 3.0], [4.0, 5.0]])
    """
    path = Path(path)
    if format_of(path, FORMATS) == "npy":
        return _NpyBlocks(path, unit_norm)
    return open_parquet(path, unit_norm=unit_norm)


def can_open_rows(path: Path) -> bool:
    """Whether a file can be read block by block; whatever is wrong with it is found when it is read."""
    return path.suffix.lower().removeprefix(".") in BLOCK_FORMATS and (
        not path.exists() or is_regular(path)
    )


def open_parquet(
    path: Path, *, unit_norm: bool = False, label_column: str | int | None = None
) -> _ParquetBlocks:
    """Open a parquet file, one of whose columns holds labels."""
    if format_of(path, FORMATS) != "parquet":
        expected = ".npy or .parquet"
        raise format_error(path, "not to be read in blocks", expected, path.suffix)
    return _ParquetBlocks(path, unit_norm, label_column)
