"""``simstream convert``: recognise what a file holds and write it in another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .learners import is_distance, similarity_of, task_names
from .options import (
    FILE,
    check_writable,
    json_option,
    label_column_option,
    n_features_option,
    on_error_option,
    refuse_options,
)
from .output import as_percent, echo_json, logger, plural

#: Formats that hold every entry of a matrix; the others get its non-zeros.
_DENSE_FORMATS = (".npy", ".csv", ".parquet")


@click.command(short_help="Convert items, triplets or pairs, or a model to its matrix.")
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=FILE, metavar="OUT")
@click.option(
    "--kind",
    type=click.Choice(["items", "triplets", "pairs", "model"]),
    help="What IN holds (default: recognised from its contents).",
)
@click.option("--task", help="Write this task's matrix of a model (default: what all tasks share).")
@label_column_option
@n_features_option
@on_error_option
@json_option
def convert(
    source: Path,
    target: Path,
    kind: str | None,
    task: str | None,
    label_column: str | int | None,
    n_features: int | None,
    on_error: str,
    as_json: bool,
) -> None:
    """Convert items, triplets or pairs to another format, or a model to its matrix.

    \b
    simstream convert items.svm.gz items.npz
    simstream convert judgements.csv judgements.jsonl.gz
    simstream convert model.safetensors matrix.npy     (dense; .npz is CSR)
    simstream convert model.safetensors ann.npy --task ann
    """
    # Only items have a column of labels.
    kind = kind or ("items" if label_column is not None else kind_of(source))
    if task is not None and kind != "model":
        raise click.UsageError(f"--task: expected a model, got {kind}: {source}")
    if source.resolve() == target.resolve():
        raise click.UsageError("IN and OUT: expected two different files")
    refuse_options("is for items", {"--n-features": n_features is not None and kind != "items"})
    check_extension(target, kind, "OUT")
    check_writable(target, "OUT")
    facts: dict[str, Any]
    match kind:
        case "items":
            facts = _convert_items(source, target, label_column, n_features)
        case "triplets" | "pairs":
            facts = _convert_records(kind, source, target, on_error)
        case _:
            facts = _convert_model(source, target, task)
    if as_json:
        echo_json({"input": str(source), "output": str(target), "kind": kind, **facts})
    else:
        click.echo(f"{target}: {facts['description']}")


# -- recognising ----------------------------------------------------------------------------------


def kind_of(path: Path) -> str:
    """Tell items, triplets, pairs and models apart by name and first record.

    Three integers per record are taken for a triplet, or for a pair if the third one has a sign.
    """
    from ..data.files import load_arrays, open_input, text_lines
    from ..data.records import PAIRS, TRIPLETS

    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".safetensors":
        return "model"
    if suffixes and suffixes[-1] in (".npy", ".npz"):
        arrays = load_arrays(path)
        for kind in (TRIPLETS, PAIRS):
            if _is_records(arrays.get(kind.plural)):
                return kind.plural
        array: Any = arrays.get("")
        if not _is_records(array):
            return "items"
        return "pairs" if (array[:, 2] == -1).any() else "triplets"
    if {".csv", ".tsv", ".txt", ".jsonl"} & set(suffixes):
        with open_input(path) as handle:
            first = next((text for _, text in text_lines(handle)), "").strip()
        return _json_kind(first) if ".jsonl" in suffixes else _cells_kind(first)
    return "items"


def _is_records(array: Any) -> bool:
    return (
        array is not None and array.dtype.kind in "iu" and array.ndim == 2 and array.shape[1] == 3
    )


def _named_kind(names: Any) -> str | None:
    """The kind of records whose names are among these."""
    from ..data.records import PAIRS, TRIPLETS

    for kind in (TRIPLETS, PAIRS):
        if any(all(name in names for name in wanted) for wanted in kind.names):
            return kind.plural
    return None


def _json_kind(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return "items"
    if isinstance(record, list):
        return "pairs" if record[-1:] == [-1] else "triplets"
    return (_named_kind(record) if isinstance(record, dict) else None) or "items"


def _cells_of(line: str) -> list[str]:
    separator = next((separator for separator in ",\t" if separator in line), None)
    return [cell.strip().strip('"').lower() for cell in line.split(separator)]


def is_header(line: str) -> bool:
    """Whether a line of cells names the columns of records."""
    return _named_kind(_cells_of(line)) is not None


def _cells_kind(line: str) -> str:
    cells = _cells_of(line)
    if named := _named_kind(cells):
        return named
    if len(cells) != 3 or not all(cell.isdecimal() for cell in cells[:2]):
        return "items"
    return "triplets" if cells[2].isdecimal() else "pairs" if cells[2] in ("+1", "-1") else "items"


def check_extension(target: Path, kind: str, argument: str) -> None:
    """Refuse a name whose extension is of no format that can hold this kind; `argument` is for the error."""
    from ..data import FormatError, item_formats, records
    from ..data.files import format_of

    known = records if kind in ("triplets", "pairs") else item_formats
    try:
        format_of(target, known.FORMATS)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint=argument) from error


# -- converting -----------------------------------------------------------------------------------


def _holds_zeros(target: Path) -> bool:
    return any(suffix.lower() in _DENSE_FORMATS for suffix in target.suffixes)


def write_part(target: Path, kind: str, *parts: Any, feature_names: Any = None) -> None:
    """Write what a file of this kind consists of: items, labels and ids; or tuples, y and tasks."""
    import scipy.sparse as sp

    from ..data import write_items, write_pairs, write_triplets

    if kind == "pairs":
        write_pairs(target, *parts[:2])
    elif kind == "triplets":
        write_triplets(target, *parts)
    else:
        items, labels, ids = parts
        if sp.issparse(items) and _holds_zeros(target):
            logger.info("%s cannot hold sparse rows: zeros are written too", target)
            items = items.toarray()
        write_items(target, items, labels, ids, feature_names=feature_names)


def _convert_items(
    source: Path, target: Path, label_column: str | int | None, n_features: int | None
) -> dict[str, Any]:
    import scipy.sparse as sp

    from ..data import read_items

    found = read_items(source, label_column=label_column, n_features=n_features)
    items, labels, ids = found
    write_part(target, "items", items, labels, ids, feature_names=found.feature_names)
    extras = [name for name, value in (("labels", labels), ("ids", ids)) if value is not None]
    with_extras = f", with {' and '.join(extras)}" if extras else ""
    form = "sparse" if sp.issparse(items) and not _holds_zeros(target) else "dense"
    n_rows, n_columns = items.shape
    return {
        "n_items": n_rows,
        "n_features": n_columns,
        "description": f"{n_rows:,} {form} items of {n_columns:,} features{with_extras}",
    }


def _convert_records(kind: str, source: Path, target: Path, on_error: str) -> dict[str, Any]:
    from .inputs import read_records

    found, n_bad = read_records(source, kind, on_error=on_error)
    write_part(target, kind, *found)
    tuples = found[0]
    skipped = f" ({plural(n_bad, 'bad record')} skipped)" if n_bad else ""
    return {
        f"n_{kind}": len(tuples),
        "n_bad_records": n_bad,
        "description": f"{len(tuples):,} {kind}{skipped}",
    }


def _convert_model(source: Path, target: Path, task: str | None) -> dict[str, Any]:
    import scipy.sparse as sp

    from ..data import write_items
    from .inputs import open_model

    whole = open_model(source).learner
    learner = similarity_of(whole, task)
    if task is None and task_names(whole):
        logger.info("writing the matrix that all tasks share; --task NAME writes that of a task")
    is_metric = is_distance(learner)
    if not is_metric and not hasattr(learner, "get_bilinear_matrix"):
        raise click.UsageError(
            f"{source}: expected a model that is one matrix, got an {type(learner).__name__}; use its "
            "transform_query in Python"
        )
    if getattr(learner, "centre", None) is not None or getattr(learner, "item_term", None):
        logger.warning("writing the matrix alone: its centre and item term are only in the model")
    matrix = learner.get_mahalanobis_matrix() if is_metric else learner.get_bilinear_matrix()
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
