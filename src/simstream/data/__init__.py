"""The files the command line reads and writes: items, labels, triplets and pairs.

Everything that is wrong with a file is reported as a one-line `FormatError` that names the file,
the line where there are lines, what was expected and what was found. Files are written whole or not
at all.

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

from .files import FormatError, atomic_write
from .item_files import ItemsFile, read_items, write_items
from .labels import read_labels, read_tasks
from .tuple_readers import Batch, PairBatch, read_pairs, read_triplets
from .tuple_writers import write_pairs, write_triplets

__all__ = [
    "Batch",
    "FormatError",
    "ItemsFile",
    "PairBatch",
    "atomic_write",
    "read_items",
    "read_labels",
    "read_pairs",
    "read_tasks",
    "read_triplets",
    "write_items",
    "write_pairs",
    "write_triplets",
]
