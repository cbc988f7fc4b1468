"""Reading models, items and labels as the options say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from .. import ModelFileError, load, read_header
from ..data import FormatError, ItemsFile, read_items, read_labels
from .checkpoint import TrainingRecord


class OpenedModel(NamedTuple):
    """A model file's content."""

    path: Path
    #: The estimator as it was saved: a learner, or `FromLabels` around one.
    saved: Any
    #: The learner itself.
    learner: Any
    header: dict[str, Any]
    #: How it was trained, as far as the command line trained it.
    record: TrainingRecord

    @property
    def shape(self) -> tuple[int, int]:
        """Features of a query and of an item."""
        return self.learner.shape_

    @property
    def dtype(self) -> str:
        """Precision of the learnt matrix."""
        return str(self.learner.dtype_)


def open_model(path: Path) -> OpenedModel:
    """Load a model; whatever is wrong is a `ModelFileError`."""
    try:
        header = read_header(path)
        saved = load(path)
    except OSError as error:
        text = str(error) if isinstance(error, FileNotFoundError) else f"{path}: {error}"
        raise ModelFileError(text) from error
    record = TrainingRecord.from_extra(header.get("extra", {}), path)
    return OpenedModel(path, saved, getattr(saved, "learner_", saved), header, record)


def read_rows(
    path: Path,
    *,
    unit_norm: bool,
    dtype: str | None = None,
    n_features: int | None = None,
    label_column: str | int | None = None,
) -> ItemsFile:
    """Read items, scaled to rows of length one where asked for (rows of zeros stay)."""
    found = read_items(path, dtype=dtype, n_features=n_features, label_column=label_column)
    if not unit_norm:
        return found
    from sklearn.preprocessing import normalize

    return found._replace(items=normalize(found.items))


def column_for(queries: Path, label_column: str | int | None) -> str | int | None:
    """The items' column of labels, if the queries are in a format that has columns too."""
    return label_column if ".csv" in [suffix.lower() for suffix in queries.suffixes] else None


def labels_of(path: Path, found: ItemsFile, labels_file: Path | None) -> np.ndarray | None:
    """The items' labels from their own file, else from the items' file, else None."""
    if labels_file is None:
        return found.labels
    labels = read_labels(labels_file)
    n_items = found.items.shape[0]
    if len(labels) != n_items:
        raise FormatError(
            f"{labels_file}: labels and items differ in number; expected {n_items}, as many as items "
            f"in {path}, got {len(labels)}"
        )
    return labels


class Comparison(NamedTuple):
    """Items to search, and the queries to search them for where these are other items."""

    items: ItemsFile
    queries: ItemsFile | None


def read_for_model(
    model: OpenedModel,
    items: Path,
    queries: Path | None,
    label_column: str | int | None = None,
) -> Comparison:
    """Read items (and queries) as the model wants them: dimension, precision, length of rows."""
    unit_norm, dtype = model.record.unit_norm, model.dtype
    found = read_rows(
        items,
        unit_norm=unit_norm,
        dtype=dtype,
        n_features=model.shape[1],
        label_column=label_column,
    )
    if queries is None:
        if model.shape[0] != model.shape[1]:
            raise click.UsageError(
                f"the model compares queries of {model.shape[0]} features with items of "
                f"{model.shape[1]}: expected --queries, got items only"
            )
        return Comparison(found, None)
    return Comparison(
        found,
        read_rows(
            queries,
            unit_norm=unit_norm,
            dtype=dtype,
            n_features=model.shape[0],
            label_column=column_for(queries, label_column),
        ),
    )
