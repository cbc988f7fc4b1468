"""Reading and writing items, labels, triplets, pairs and feedback; drawing triplets and pairs from labels.

Whatever is wrong with a file is reported as a one-line `FormatError` that names the file, the line if there
is one, what was expected and what was found. Files are written completely or not at all.

Examples
--------
>>> import pathlib, tempfile
>>> import numpy as np
>>> from simstream.data import read_items, read_triplets, write_items, write_triplets
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> write_items(folder / "items.jsonl.gz", np.eye(3), labels=["cat", "cat", "dog"])
>>> read_items(folder / "items.jsonl.gz").labels.tolist()
['cat', 'cat', 'dog']
>>> write_triplets(folder / "triplets.csv", [[0, 1, 2], [1, 0, 2]])
>>> [batch.triplets.tolist() for batch in read_triplets(folder / "triplets.csv", n_items=3)]
[[[0, 1, 2], [1, 0, 2]]]
"""

from .blocks import RowBlocks, open_rows
from .feedback import ClickedSearch, read_clicks, read_relevance
from .files import FormatError, atomic_write
from .items import ItemsFile, read_items, read_labels, read_tasks, write_items
from .names import read_ids, read_texts
from .record_files import (
    Batch,
    PairBatch,
    read_pairs,
    read_triplets,
    write_pairs,
    write_triplets,
)

__all__ = [
    "Batch",
    "ClickedSearch",
    "FormatError",
    "ItemsFile",
    "PairBatch",
    "RowBlocks",
    "atomic_write",
    "open_rows",
    "read_clicks",
    "read_ids",
    "read_items",
    "read_labels",
    "read_pairs",
    "read_relevance",
    "read_tasks",
    "read_texts",
    "read_triplets",
    "write_items",
    "write_pairs",
    "write_triplets",
]
