"""Items in parquet files, read and written with pyarrow: ``pip install 'simstream[parquet]'``.

pyarrow could read CSV and JSONL too, about twice as fast as `items` does, but it does not say in which line
an error is: large files are better kept as parquet, ``.npy`` or ``.npz``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .files import FormatError, format_error, open_input, open_output
from .items import RawItems, special_columns
from .labels import as_labels

#: pandas writes an index as a column of such a name: it is not a feature.
_INDEX = "__index_level_"


def read_parquet(path: Path, label_column: str | int | None) -> RawItems:
    """Read a column ``features`` of vectors, or else one column per feature."""
    pa, pq = _pyarrow(path)
    with open_input(path) as handle:
        try:
            table = pq.read_table(handle)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise format_error(path, "damaged or truncated", "a parquet file", error) from None
    names = [name for name in table.column_names if not name.startswith(_INDEX)]
    special = {
        role: names[place] for role, place in special_columns(path, names, label_column).items()
    }
    features = ["features"] if "features" in names else names
    features = [name for name in features if name not in special.values()]
    for name in [*features, *special.values()]:
        if table.column(name).null_count:
            row = table.column(name).is_null().to_pylist().index(True)
            problem = f"null in column {name!r}, row {row} (counted from 0)"
            raise format_error(path, problem, "a value in every row", "null")
    if features == ["features"]:
        items = _vectors(path, pa, table.column("features"))
    else:
        items = np.empty((table.num_rows, len(features)))
        for k, name in enumerate(features):
            kind = table.column(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise format_error(path, f"bad column {name!r}", "numbers", kind)
            items[:, k] = table.column(name).to_numpy()
    found = {role: table.column(name).to_numpy() for role, name in special.items()}
    return RawItems(
        items,
        as_labels(found["label"]) if "label" in found else None,
        [str(name) for name in found["id"].tolist()] if "id" in found else None,
    )


def _vectors(path: Path, pa: Any, column: Any) -> np.ndarray:
    """Rows of a column of lists, which must all have the same length."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(column.type) for is_kind in lists):
        raise format_error(path, "bad column 'features'", "a vector in every row", column.type)
    rows = column.combine_chunks()
    values = rows.flatten().to_numpy(zero_copy_only=False)
    lengths = np.array(pa.compute.list_value_length(rows))
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        problem = f"ragged row {row} (counted from 0)"
        raise format_error(path, problem, f"{lengths[0]} features, as in row 0", lengths[row])
    return values.reshape(len(rows), -1) if len(rows) else np.empty((0, 0))


def write_parquet(
    path: Path, items: np.ndarray, labels: np.ndarray | None, ids: Sequence[str] | None
) -> None:
    """Write a column ``features`` of vectors of one length, and columns ``label`` and ``id``."""
    pa, pq = _pyarrow(path)
    columns = {} if ids is None else {"id": pa.array(ids)}
    columns["features"] = pa.FixedSizeListArray.from_arrays(pa.array(items.ravel()), items.shape[1])
    if labels is not None:
        columns["label"] = pa.array(labels.tolist())
    with open_output(path) as handle:
        pq.write_table(pa.table(columns), handle)


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise FormatError(
            f"{path}: parquet needs pyarrow; install it with: pip install 'simstream[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
