"""What ``simstream convert`` does: recognise what a file holds and write it in another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import ModelFileError
from ..formats import FormatError, read_items, read_triplets, write_items, write_triplets
from ..formats.files import load_arrays, open_input, text_lines
from ..formats.lines import NAMES
from .inputs import open_model
from .output import as_count, as_percent, logger

#: Formats that hold every entry of a matrix; the others get its non-zeros.
_DENSE_FORMATS = (".npy", ".csv")


def convert_file(
    source: Path,
    target: Path,
    kind: str | None = None,
    label_column: str | int | None = None,
    on_error: str = "fail",
) -> dict[str, Any]:
    """Convert one file; return what was written, as JSON values."""
    # Only items have a column of labels.
    kind = kind or ("items" if label_column is not None else kind_of(source))
    facts: dict[str, Any]
    match kind:
        case "items":
            facts = _convert_items(source, target, label_column)
        case "triplets":
            facts = _convert_triplets(source, target, on_error)
        case _:
            facts = _convert_model(source, target)
    return {"input": str(source), "output": str(target), "kind": kind, **facts}


def kind_of(path: Path) -> str:
    """Tell items, triplets and models apart by name and first record.

    Three integers a record are taken for a triplet.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".safetensors":
        return "model"
    if suffixes and suffixes[-1] in (".npy", ".npz"):
        arrays = load_arrays(path)
        array = arrays.get("triplets", arrays.get(""))
        is_triplets = (
            array is not None
            and array.dtype.kind in "iu"
            and array.ndim == 2
            and array.shape[1] == 3
        )
        return "triplets" if is_triplets else "items"
    if ".csv" in suffixes or ".jsonl" in suffixes:
        with open_input(path) as handle:
            first = next((text for _, text in text_lines(handle)), "").strip()
        looks_so = _is_json_triplet if ".jsonl" in suffixes else _is_csv_triplet
        return "triplets" if looks_so(first) else "items"
    return "items"


def _is_json_triplet(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, list) or any(
        isinstance(record, dict) and all(name in record for name in names) for names in NAMES
    )


def _is_csv_triplet(line: str) -> bool:
    cells = [cell.strip().strip('"').lower() for cell in line.split(",")]
    is_header = any(all(name in cells for name in names) for names in NAMES)
    return is_header or (len(cells) == 3 and all(cell.isdecimal() for cell in cells))


def _holds_zeros(target: Path) -> bool:
    return any(suffix.lower() in _DENSE_FORMATS for suffix in target.suffixes)


def _convert_items(source: Path, target: Path, label_column: str | int | None) -> dict[str, Any]:
    items, labels, ids = read_items(source, label_column=label_column)
    if sp.issparse(items) and _holds_zeros(target):
        logger.info("%s holds no sparse rows: zeros are written too", target)
        items = items.toarray()
    write_items(target, items, labels, ids)
    extras = [name for name, value in (("labels", labels), ("ids", ids)) if value is not None]
    with_extras = f", with {' and '.join(extras)}" if extras else ""
    form = "sparse" if sp.issparse(items) else "dense"
    n_rows, n_columns = items.shape
    return {
        "n_items": n_rows,
        "n_features": n_columns,
        "description": f"{n_rows:,} {form} items of {n_columns:,} features{with_extras}",
    }


def _convert_triplets(source: Path, target: Path, on_error: str) -> dict[str, Any]:
    batches = list(read_triplets(source, on_error=on_error))
    triplets = np.concatenate([np.empty((0, 3), np.int64), *(batch.triplets for batch in batches)])
    n_bad = sum(batch.n_skipped for batch in batches)
    if not len(triplets):
        raise FormatError(f"{source}: no good triplets; expected at least one, got none")
    write_triplets(target, triplets)
    skipped = f" ({as_count(n_bad)} bad records skipped)" if n_bad else ""
    return {
        "n_triplets": len(triplets),
        "n_bad_records": n_bad,
        "description": f"{as_count(len(triplets))} triplets{skipped}",
    }


def _convert_model(source: Path, target: Path) -> dict[str, Any]:
    learner = open_model(source).learner
    if not hasattr(learner, "get_bilinear_matrix"):
        raise ModelFileError(
            f"{source}: expected a bilinear model, got {type(learner).__name__}, which has no matrix"
        )
    matrix = learner.get_bilinear_matrix()
    dense = _holds_zeros(target)
    if dense and sp.issparse(matrix):
        matrix = matrix.toarray()
    elif not dense:
        matrix = sp.csr_matrix(matrix)
    write_items(target, matrix)
    form = "dense" if dense else "CSR"
    rows, columns = matrix.shape
    return {
        "shape": [rows, columns],
        "sparsity": learner.sparsity_,
        "description": f"{form} matrix, {rows:,} x {columns:,}, {as_percent(learner.sparsity_)} zeros",
    }
