"""One check for each kind of input. Every error says what is wrong, what was expected and what was given."""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from . import frames
from .ids import Id, rows_by_id, rows_called, unknown_ids, usable_ids


class Items:
    """Rows of features, with ids: triplets, pairs and judgements may then name items by their ids.

    Give it wherever items or queries are expected: as `preprocessor`, or to `search`, whose result has `ids`
    too. Without ids items are called by their row numbers.

    Parameters
    ----------
    vectors : array, sparse matrix, or table or column of vectors of pandas, polars or pyarrow
        Shape (n_items, n_features). Tensors of torch and files opened by `simstream.data.open_rows` stay
        where they are. float16 becomes float32; what is neither becomes float64.
    ids : sequence of n_items different strings or integers, the name of a column, or False, optional
        By default the index of a table of pandas, where it is different strings or integers and does not
        only count the rows. False is no ids, whatever the index is.

    Attributes
    ----------
    values : array or CSR matrix
    ids : list, or None
    feature_names : array of strings, or None
        The names of the columns of a table.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS, Items
    >>> items = Items(np.eye(3), ids=["ant", "bee", "cat"])
    >>> model = OASIS(preprocessor=items).fit([["ant", "bee", "cat"]])
    >>> model.search(items.values[:1], items, k=2).ids.tolist()
    [['ant', 'bee']]
    >>> items
    <3 x 3 Items of float64, with ids>
    """

    values: Any
    feature_names: np.ndarray | None = None
    _rows_by_id: dict[Id, int] | None = None
    _renumbered: tuple[Any, Any] | None = None
    #: The items as CSR, what kernels read them by, and their longest row: see `_engines.sparse`.
    _reader: tuple[Any, Any, int] | None = None

    def __init__(self, vectors: Any, ids: Any = None) -> None:
        if isinstance(ids, str):
            if ids not in (frames.column_names(vectors) or []):
                raise ValueError(f"ids: expected the name of a column of the table, got {ids!r}")
            ids, vectors = frames.column(vectors, ids), frames.without(vectors, ids)
        elif ids is None:
            ids = usable_ids(frames.index_ids(vectors))
        elif ids is False:
            ids = None
        checked = check_items(vectors, "vectors")
        self.__class__ = type(checked)  # rows of a file or on a GPU are of a class of their own
        self.__dict__.update(checked.__dict__)
        if ids is not None:
            self._rows_by_id = rows_by_id(ids, self.shape[0])

    def __repr__(self) -> str:
        n_items, n_features = self.shape
        named = ", with ids" if self.has_ids else ""
        return f"<{n_items} x {n_features} {type(self).__name__} of {self.dtype}{named}>"

    @classmethod
    def _of(cls, values: Any) -> Items:
        """Items of what has been checked already."""
        items = object.__new__(Items)
        items.values = values
        return items

    @classmethod
    def with_feature_names(cls, vectors: Any, names: Sequence[str]) -> Items:
        """Items whose features have these names."""
        items = cls(vectors)
        items.feature_names = np.array(names, dtype=object)
        return items

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.is_sparse:
            raise TypeError("items: expected dense ones to make an array of, got a sparse matrix")
        return np.array(self.values, dtype, copy=copy)

    def __deepcopy__(self, memo: Any) -> Items:
        return self  # they never change: a clone of a learner shares them

    @property
    def ids(self) -> list[Id] | None:
        return None if self._rows_by_id is None else list(self._rows_by_id)

    @property
    def has_ids(self) -> bool:
        return self._rows_by_id is not None

    def without_ids(self) -> Items:
        """The same items, called by their row numbers; what was cached of them stays behind."""
        items = copy.copy(self)
        items._rows_by_id = items._renumbered = items._reader = None
        return items

    def rows_of(self, ids: Any, what: str = "ids") -> np.ndarray:
        """Row numbers of some ids; those that are not known make one error, which names the first three."""
        unknown: dict[Any, None] = {}
        rows = self._rows_called(np.asarray(ids, object), unknown)
        if unknown:
            raise unknown_ids(what, unknown)
        return rows

    def _rows_called(self, names: np.ndarray, unknown: dict[Any, None]) -> np.ndarray:
        assert self._rows_by_id is not None
        found = rows_called(names.ravel().tolist(), self._rows_by_id, unknown)
        return np.array(found, np.int64).reshape(names.shape)

    def with_dtype(self, dtype: Any, name: str = "items") -> Items:
        """The same items in another precision; the same object where they have it."""
        if dtype is None or self.dtype == np.dtype(dtype):
            return self
        return self._named_as(check_items(self.values, name, dtype=dtype))

    def _named_as(self, items: Items) -> Items:
        """Other items with the ids and the names of these."""
        items._rows_by_id, items.feature_names = self._rows_by_id, self.feature_names
        return items

    @property
    def is_sparse(self) -> bool:
        return sp.issparse(self.values)

    @property
    def is_stored(self) -> bool:
        """Whether rows are read from a file when they are asked for."""
        return False

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def rows(self, index: np.ndarray) -> Any:
        return self.values[index]

    def dense_rows(self, index: np.ndarray) -> np.ndarray:
        rows = self.values[index]
        return rows.toarray() if self.is_sparse else rows

    def count_features(self, counts: np.ndarray) -> None:
        """Add to each feature's number in `counts` that of the items in which it is not zero."""
        if self.is_sparse and self.values.nnz < len(
            counts
        ):  # few items: not a pass over all features
            np.add.at(counts, self.values.indices, 1)
        elif self.is_sparse:
            counts += np.bincount(self.values.indices, minlength=len(counts))
        else:
            counts += np.count_nonzero(self.values, axis=0)

    def csr_renumbered(self, rank: np.ndarray | None) -> Any:
        """The items as CSR with feature f as column ``rank[f]``; cached for the next call."""
        if rank is None and self.is_sparse:
            return self.values
        if self._renumbered is None or self._renumbered[0] is not rank:
            csr = _canonical(sp.csr_matrix(self.values))
            if rank is not None:
                columns = rank[csr.indices].astype(np.int32)
                csr = sp.csr_matrix((csr.data.copy(), columns, csr.indptr), csr.shape)
                csr.sort_indices()
                csr = _canonical(csr)
            self._renumbered = (rank, csr)
        return self._renumbered[1]

    def tensor(self, device: Any) -> Any:
        """The (dense) items as a tensor on a device of torch."""
        import torch

        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The given NumPy array is not writable"
            )  # nor written
            return torch.from_numpy(self.values).to(device)


class TensorItems(Items):
    """Checked rows of features on a GPU: a tensor of torch, copied to the host only if something needs it."""

    _copied: np.ndarray | None = None

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    @property
    def values(self) -> np.ndarray:  # type: ignore[override]
        """A copy on the host."""
        if self._copied is None:
            self._copied = self._rows.cpu().numpy()
        return self._copied

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self._rows.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self._rows.dtype).removeprefix("torch."))

    def with_dtype(self, dtype: Any, name: str = "items") -> Items:
        if dtype is None or self.dtype == np.dtype(dtype):
            return self
        return self._named_as(_check_tensor(self._rows, name, dtype))

    def tensor(self, device: Any) -> Any:
        return self._rows.to(device)


def _check_tensor(values: Any, name: str, dtype: Any) -> Items:
    """`check_items` for a tensor that is not on the CPU."""
    import torch

    if values.ndim != 2:
        raise ValueError(
            f"{name}: expected 2 dimensions (n_items, n_features), got shape {tuple(values.shape)}"
        )
    if 0 in values.shape:
        raise ValueError(
            f"{name}: expected at least one item and one feature, got {tuple(values.shape)}"
        )
    if values.is_complex() or values.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor of real numbers, got {values.dtype}")
    half = (torch.float16, torch.bfloat16, torch.float32)
    kept = torch.float32 if values.dtype in half else torch.float64
    rows = values.to(kept if dtype is None else getattr(torch, np.dtype(dtype).name)).contiguous()
    bad = torch.nonzero(~torch.isfinite(rows))
    if len(bad):
        row, column = bad[0].tolist()
        raise ValueError(
            f"{name}: expected finite numbers, got {rows[row, column].item()} at row {row}, column {column} "
            f"({len(bad)} NaN or infinity in all)"
        )
    return TensorItems(rows)


def check_items(values: Any, name: str = "items", *, dtype: Any = None) -> Items:
    """Check rows of features: finite numbers, two dimensions, dense or sparse.

    Parameters
    ----------
    values : array-like, sparse matrix, table, `Items` or rows of a file, of shape (n_items, n_features)
    name : str
        How errors call it.
    dtype : None, "float32" or "float64"
        None turns float16 and float32 into float32, and every other type into float64.
    """
    if isinstance(values, Items):
        return values.with_dtype(dtype, name)
    if hasattr(values, "as_items"):  # rows of a file, which are checked when they are read
        return values.as_items(dtype)
    if type(values).__module__.partition(".")[0] == "torch":
        values = values.detach()
        if values.device.type != "cpu":
            return _check_tensor(values, name, dtype)
        if str(values.dtype) == "torch.bfloat16":  # which numpy does not have
            values = values.float()
    feature_names = None
    if sp.issparse(values):
        if values.ndim == 2:
            values = values.tocsr()
        data = values.data
    else:
        columns = frames.column_names(values)
        if columns is not None:
            values, feature_names = frames.to_array(values, columns, name)
        values = _as_array(values, name)
        if values.ndim != 2:
            raise ValueError(
                f"{name}: expected 2 dimensions (n_items, n_features), got shape {values.shape}"
            )
        data = values
    if 0 in values.shape:
        raise ValueError(f"{name}: expected at least one item and one feature, got {values.shape}")
    if data.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected real numbers, got dtype {data.dtype}")
    target = np.dtype(dtype) if dtype is not None else float_type(data.dtype)
    # Checked as they will be used: a number may be finite in float64 and not in float32.
    with np.errstate(over="ignore"):
        if sp.issparse(values):
            values = _canonical(values, target)
        else:
            values = np.ascontiguousarray(values, dtype=target)
    check_finite(values, name)
    items = Items._of(values)
    items.feature_names = feature_names
    return items


def shape_of(values: Any) -> tuple[int, ...]:
    """The shape of an array, a sparse matrix, a table, or what NumPy makes an array of."""
    shape = getattr(values, "shape", None)
    return np.asarray(values).shape if shape is None else tuple(shape)


def check_features(
    expected: tuple[int, int], left: Any, right: Any, names: np.ndarray | None = None
) -> None:
    """Raise if items do not have as many features as a model, or not those with its names."""
    got = left.shape[1], right.shape[1]
    if got == tuple(expected):
        if names is not None:
            for side in (left, right):
                check_feature_names(names, side, "items")
        return
    if expected[0] == expected[1] and got[0] == got[1]:
        raise ValueError(f"items: expected {expected[0]} features, as in the model, got {got[0]}")
    wrong = [
        f"{name}: expected {wanted} features, as in the model, got {found}"
        for name, wanted, found in zip(("queries", "items"), expected, got, strict=True)
        if wanted != found
    ]
    raise ValueError("; ".join(wrong))


def check_feature_names(expected: np.ndarray | None, items: Any, name: str) -> None:
    """Raise if features are called otherwise, or come in another order, than those learnt from."""
    found = getattr(items, "feature_names", None)
    if expected is None or found is None or np.array_equal(expected, found):
        return
    place = int(np.argmax(expected != found))
    others = " (the same names in another order)" if set(expected) == set(found) else ""
    raise ValueError(
        f"{name}: expected the features of the items learnt from, in the same order: "
        f"{expected[place]!r} at place {place}, got {found[place]!r}{others}"
    )


def check_finite(values: Any, name: str) -> None:
    """Raise if there is a NaN or an infinity, and say where."""
    data = values.data if sp.issparse(values) else values
    with np.errstate(all="ignore"):
        total = data.sum(dtype=np.float64)  # one pass; look closer only if it is not finite
    if np.isfinite(total):
        return
    bad = np.argwhere(~np.isfinite(data))
    if len(bad):
        place = bad[0]
        value = data[tuple(place)]
        if sp.issparse(values):
            row = np.searchsorted(values.indptr, place[0], side="right") - 1
            place = np.array([row, values.indices[place[0]]])
        raise ValueError(
            f"{name}: expected finite numbers, got {value} at row {place[0]}, column {place[1]} "
            f"({len(bad)} NaN or infinity in all)"
        )


def refuse_masked(values: Any, name: str) -> None:
    """Raise if cells of a masked array are masked: NumPy would take the numbers below the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name}: expected no masked cells, got {np.ma.count_masked(values)}")


def _as_array(values: Any, name: str) -> np.ndarray:
    refuse_masked(values, name)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: expected a rectangular array of numbers ({error})") from None
    if array.dtype == object:
        try:
            # A column of vectors, or numbers.
            array = np.stack(list(array)) if array.ndim == 1 else array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name}: expected real numbers, got objects ({error})") from None
    return array


def float_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The precision in which numbers are kept: float16 and float32 as float32, others as float64.

    Examples
    --------
    >>> float_type(np.dtype("float16")), float_type(np.dtype("int8"))
    (dtype('float32'), dtype('float64'))
    """
    is_short = dtype.kind == "f" and dtype.itemsize <= 4
    return np.dtype(np.float32 if is_short else np.float64)


def _canonical(csr: Any, dtype: Any = None) -> Any:
    """CSR matrix with sorted unique columns; shares memory with its input where it can."""
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    data = csr.data.astype(dtype or csr.dtype, copy=False)
    return sp.csr_matrix((data, csr.indices, csr.indptr), shape=csr.shape)


#: What tuples of so many items are called.
TUPLE_KINDS = {2: "pairs", 3: "triplets", 4: "quadruplets"}


def columns_of_left(n_columns: int, are_quadruplets: bool) -> np.ndarray:
    """Which columns of tuples are items of the left: the first, and the third of quadruplets.

    Examples
    --------
    >>> columns_of_left(4, are_quadruplets=True)
    array([ True, False,  True, False])
    """
    columns = np.arange(n_columns)
    return columns % 2 == 0 if are_quadruplets else columns == 0


def tuples_by_rows(
    tuples: Any, left: Any, right: Any, what: str, array: np.ndarray | None = None
) -> np.ndarray:
    """Tuples with row numbers in place of ids, where items have ids.

    `what` they are says which columns are of `left`, see `columns_of_left`, and that "lists" may have None or
    -1 for no item. `array` are the tuples as an array, if that is known already.

    Examples
    --------
    >>> tuples_by_rows([["b", 1, 0]], Items(np.eye(2), ids=["a", "b"]), np.eye(2), "triplets")
    array([[1, 1, 0]])
    """
    array = np.asarray(tuples) if array is None else array
    columns = np.arange(array.shape[1]) if array.ndim == 2 else np.arange(0)
    of_left = columns_of_left(len(columns), what == TUPLE_KINDS[4])
    sides = (
        [(left, columns)]
        if left is right
        else [(left, columns[of_left]), (right, columns[~of_left])]
    )
    if array.ndim != 2 or not any(getattr(side, "has_ids", False) for side, _ in sides):
        return array
    # numpy would make texts of integers that stand beside texts.
    names = array if hasattr(tuples, "dtype") else np.array(tuples, object)
    unknown: dict[Any, None] = {}
    parts = [
        side._rows_called(names[:, part], unknown)
        if getattr(side, "has_ids", False)
        else _row_numbers(names[:, part], what)
        for side, part in sides
    ]
    if what == "lists":
        for no_item in (None, -1):
            unknown.pop(no_item, None)
    if unknown:
        raise unknown_ids(what, unknown)
    order = np.argsort(np.concatenate([part for _, part in sides]))
    return np.concatenate(parts, axis=1)[:, order]


def _row_numbers(rows: np.ndarray, what: str) -> np.ndarray:
    """Row numbers that stand beside ids as an array of their own type; None in lists is no item."""
    numbers = rows.tolist()
    if what == "lists":
        numbers = [[-1 if number is None else number for number in row] for row in numbers]
    return np.array(numbers)


def check_index_tuples(tuples: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> np.ndarray:
    """Check an (n, len(sizes)) array of row numbers; column c must stay below sizes[c]."""
    what = f"{TUPLE_KINDS[len(sizes)]} of row numbers"
    array = np.asarray(tuples)
    if array.ndim != 2 or array.shape[1] != len(sizes):
        raise ValueError(f"{what}: expected shape (n, {len(sizes)}), got {array.shape}")
    if len(array) == 0:
        raise ValueError(f"{what}: expected at least one, got none")
    if array.dtype.kind not in "iu":
        hint = "; for ids give Items(vectors, ids=...)" if array.dtype.kind in "OU" else ""
        raise TypeError(f"{what}: expected integers, got dtype {array.dtype}{hint}")
    if array.min() < 0 or array.max() >= min(sizes):  # else there is no need to look at each column
        for column, (size, name) in enumerate(zip(sizes, names, strict=True)):
            bad = np.flatnonzero((array[:, column] < 0) | (array[:, column] >= size))
            if len(bad):
                raise ValueError(
                    f"{what}: {name} of tuple {bad[0]} must be a row number from 0 to {size - 1}, "
                    f"got {array[bad[0], column]}"
                )
    if len(sizes) == 3:
        same = np.flatnonzero(array[:, 1] == array[:, 2])
        if len(same):
            raise ValueError(
                f"{what}: positive and negative of triplet {same[0]} are the same item "
                f"({array[same[0], 1]}); expected two different items"
            )
    return np.ascontiguousarray(array, dtype=np.int64)


def check_index_lists(lists: Any, sizes: tuple[int, int], n_relevant: int = 1) -> np.ndarray:
    """Check an (n, 1 + n_relevant + k) array of row numbers: query, relevant items, negatives.

    Queries must stay below sizes[0], items below sizes[1]; -1 stands for no item.
    """
    what = "lists of row numbers"
    array = np.asarray(lists)
    check_list_shape(what, array, n_relevant)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what}: expected integers, got dtype {array.dtype}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what}: expected row numbers, got {array.max()}")
    array = np.ascontiguousarray(array, dtype=np.int64)
    relevant, negatives = array[:, 1 : 1 + n_relevant], array[:, 1 + n_relevant :]
    columns = (
        ("query", array[:, :1], sizes[0], 0),
        ("relevant item", relevant, sizes[1], -1 if n_relevant > 1 else 0),
        ("negative", negatives, sizes[1], -1),
    )
    for name, part, size, lowest in columns:
        if part.min() < lowest or part.max() >= size:
            row, column = np.argwhere((part < lowest) | (part >= size))[0]
            padding = " (or -1, no item)" if lowest < 0 else ""
            raise ValueError(
                f"{what}: {name} of list {row} must be a row number from 0 to {size - 1}{padding}, "
                f"got {part[row, column]}"
            )
        empty = np.flatnonzero((part < 0).all(axis=1))
        if len(empty):
            raise ValueError(
                f"{what}: expected at least one {name} in list {empty[0]}, got only -1"
            )
    for own in relevant.T:
        same = np.flatnonzero(((negatives == own[:, None]) & (own >= 0)[:, None]).any(axis=1))
        if len(same):
            raise ValueError(
                f"{what}: relevant item {own[same[0]]} of list {same[0]} is also one of its negatives; "
                "expected different items"
            )
    return array


def check_list_shape(what: str, array: np.ndarray, n_relevant: int) -> None:
    """Check that an array holds at least one list with a query, relevant items and a negative."""
    if array.ndim not in (2, 3) or array.shape[1] < 2 + n_relevant:
        vectors = ", d" if array.ndim == 3 else ""
        raise ValueError(
            f"{what}: expected shape (n, {1 + n_relevant} + k{vectors}), a query, {n_relevant} relevant and "
            f"k >= 1 negatives (triplets have one of each), got {array.shape}"
        )
    if len(array) == 0:
        raise ValueError(f"{what}: expected at least one, got none")


def check_number(
    name: str, value: Any, *, minimum: float = 0.0, exclusive: bool = True, finite: bool = True
) -> float:
    """Check a real parameter that must be above (or at least) a minimum."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    number = float(value)
    too_small = number <= minimum if exclusive else number < minimum
    if math.isnan(number) or too_small or (finite and math.isinf(number)):
        sign = ">" if exclusive else ">="
        raise ValueError(f"{name}: expected a number {sign} {minimum:g}, got {value!r}")
    return number


def check_integer(name: str, value: Any, *, minimum: int = 1) -> int:
    """Check an integer parameter that must be at least a minimum."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value!r}")
    return int(value)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Check a parameter with a few legal values."""
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_centre(centre: Any, shape: tuple[int, int], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check a vector for both sides, or a pair of vectors (queries, items), of finite numbers."""
    if not isinstance(centre, tuple):
        if shape[0] != shape[1]:
            raise ValueError(
                f"centre: expected a pair of vectors for {shape[0]} features of queries and {shape[1]} of "
                "items, got one vector"
            )
        centre = (centre, centre)
    if len(centre) != 2:
        raise ValueError(f"centre: expected a pair (queries, items), got {len(centre)} parts")
    queries, items = (
        check_vector("centre", mean, size, dtype) for mean, size in zip(centre, shape, strict=True)
    )
    return queries, items


def check_vector(name: str, vector: Any, size: int, dtype: Any) -> np.ndarray:
    """Check a vector of finite numbers of a given size. Returns a copy."""
    array = np.asarray(vector)
    if array.dtype.kind not in "biuf" or array.shape != (size,):
        raise ValueError(
            f"{name}: expected {size} numbers, got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):
        array = np.array(array, dtype)
    check_finite(array[None], name)
    return array


_PAIR_LABELS = "+1 (similar) and -1 (dissimilar), or 1 and 0, or booleans"


def check_pair_labels(y: Any, n: int) -> np.ndarray:
    """Check labels of n pairs: +1 for similar, -1 (or 0, or False) for dissimilar. Returns +1 and -1."""
    if y is not None:
        y = array = plain_labels(y)
        if array.dtype.kind == "b" or (array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all()):
            y = np.where(array > 0, 1, -1)
        elif array.dtype.kind in "iuf" and (array == 0).any():
            others = array[~np.isin(array, (0, 1))]
            other = max(others, key=lambda label: label != -1)  # -1 only if there is nothing worse
            raise ValueError(f"y: expected {_PAIR_LABELS}, for every pair, got 0 and {other}")
    return _check_signs(y, n, _PAIR_LABELS, "label", "pair")


def plain_labels(y: Any) -> np.ndarray:
    """Labels as an array; objects of Python as the numbers or booleans that they are."""
    array = np.asarray(y)
    return np.array(array.tolist()) if array.dtype.kind == "O" else array


def check_answers(y: Any, n: int) -> np.ndarray:
    """Check answers to n triplets: +1 where the first candidate is nearer, else -1. Returns float64."""
    return _check_signs(y, n, "+1 (the first candidate is nearer) or -1", "answer", "triplet")


def _check_signs(y: Any, n: int, expected: str, name: str, what: str) -> np.ndarray:
    if y is None:
        raise ValueError(f"y: expected {expected} for every {what}, got None")
    array = np.asarray(y)
    if array.shape != (n,):
        raise ValueError(f"y: expected one {name} for each of {n} {what}s, got shape {array.shape}")
    wrong = ~np.isin(array, (-1, 1)) if array.dtype.kind in "iuf" else np.ones(n, bool)
    if wrong.any():
        got = array[wrong][0].item() if array.dtype.kind in "iuf" else array.dtype
        raise ValueError(f"y: expected {expected} for every {what}, got {got}")
    return array.astype(np.float64)


def is_sign(y: Any) -> bool:
    """Whether this is +1 or -1 as it is, a number that needs no conversion."""
    kinds = (int, float, np.integer, np.floating)
    return isinstance(y, kinds) and not isinstance(y, bool) and (y == 1 or y == -1)


def check_weights(name: str, weights: Any, n: int) -> np.ndarray:
    """Check importances of n tuples or items: finite, none negative, not all zero. Returns float64."""
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf" or array.shape != (n,):
        raise ValueError(f"{name}: expected {n} numbers, got {array.dtype} of shape {array.shape}")
    array = array.astype(np.float64)
    bad = array[~(np.isfinite(array) & (array >= 0))]
    if len(bad) or not array.any():
        got = bad[0] if len(bad) else "only zeros"
        raise ValueError(f"{name}: expected finite numbers >= 0, some of them positive, got {got}")
    return array


def check_tasks(tasks: Any, n: int, what: str) -> list[Hashable]:
    """Check the tasks of n triplets or items (``what``): one hashable value each, not NaN."""
    if isinstance(tasks, (str, bytes)) or sp.issparse(tasks):
        raise TypeError(f"tasks: expected one value per {what}, got {type(tasks).__name__}")
    plain = isinstance(tasks, np.ndarray) and tasks.ndim == 1 and tasks.dtype.kind in "biuUS"
    given = tasks.tolist() if plain else list(tasks)
    if len(given) != n:
        raise ValueError(f"tasks: expected one for each of {n} {what}s, got {len(given)}")
    if plain:  # numbers and texts are what they should be
        return given
    for place, value in enumerate(given):
        if not isinstance(value, Hashable):
            raise TypeError(f"tasks: expected hashable values, got {value!r}")
        if isinstance(value, (numbers.Number, np.generic)) and value != value:
            raise ValueError(f"tasks: expected names or numbers, got {value} for {what} {place}")
    return [value.item() if isinstance(value, np.generic) else value for value in given]


def check_unchanged(name: str, kept: Any, given: Any) -> None:
    """Raise if a parameter is another than the one that learning began with."""
    if kept != given:
        refuse_change(name, kept, given)


def refuse_change(name: str, kept: Any, given: Any) -> NoReturn:
    """Raise because a parameter cannot change any more."""
    raise ValueError(
        f"{name}: cannot change in the middle of a stream; expected {kept!r}, got {given!r}"
    )


def stacked(parts: Sequence[Any]) -> Any:
    """Rows below each other: an array, or a CSR matrix if some of them are sparse."""
    if any(map(sp.issparse, parts)):
        return sp.vstack(parts, "csr")
    return np.concatenate(parts)
