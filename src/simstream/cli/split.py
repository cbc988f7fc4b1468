"""``simstream split``: divide items, triplets or pairs to learn from one part and test on the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .convert import check_extension, is_header, kind_of, write_part
from .options import (
    FILE,
    NATURAL,
    SHARE,
    check_writable,
    json_option,
    label_column_option,
    labels_option,
    on_error_option,
)
from .output import echo_json

if TYPE_CHECKING:
    import numpy as np


@click.command(short_help="Divide a file into one to learn from and one to test on.")
@click.argument("source", type=FILE, metavar="IN")
@click.argument("train", type=FILE)
@click.argument("test", type=FILE)
@click.option(
    "--test-share", type=SHARE, default=0.25, show_default=True, help="Share of the rows for TEST."
)
@click.option("--seed", type=NATURAL, default=0, show_default=True, help="Seed of the draw.")
@click.option(
    "--stratify/--no-stratify",
    default=True,
    show_default=True,
    help="Take that share of every class, where items have labels; of pairs, of the similar and of the "
    "dissimilar ones.",
)
@click.option(
    "--kind",
    type=click.Choice(["items", "triplets", "pairs"]),
    help="What IN holds (default: recognised from its contents).",
)
@labels_option
@label_column_option
@on_error_option
@json_option
def split(
    source: Path,
    train: Path,
    test: Path,
    test_share: float,
    seed: int,
    stratify: bool,
    kind: str | None,
    labels_file: Path | None,
    label_column: str | int | None,
    on_error: str,
    as_json: bool,
) -> None:
    """Divide the items, triplets or pairs of IN at random into TRAIN and TEST.

    Every item is in one of the two files, with its label and its id, in the order of IN. A class of several
    items has at least one in each, and so have similar and dissimilar pairs. Triplets have no classes; items
    that are in triplets or pairs of TRAIN may be in TEST too. Lines of triplets and pairs are copied as they
    are where the three files have one text format, so that items may be named by ids. Judgements of searches
    are divided by simstream adapt --holdout.

    \b
    simstream split items.csv train.csv test.csv --label-column kind
    simstream split triplets.jsonl train.jsonl test.jsonl --test-share 0.1
    """
    import numpy as np

    from ..data.files import open_text_output

    has_labels = labels_file is not None or label_column is not None
    kind = kind or ("items" if has_labels else kind_of(source))
    if kind == "model":
        raise click.UsageError(f"{source}: expected items, triplets or pairs, got a model")
    if kind != "items" and has_labels:
        raise click.UsageError(f"--labels and --label-column are for items, got {kind}: {source}")
    if len({path.resolve() for path in (source, train, test)}) < 3:
        raise click.UsageError("IN, TRAIN and TEST: expected three different files")
    for path, name in ((train, "TRAIN"), (test, "TEST")):
        check_extension(path, kind, name)
        check_writable(path, name)
    header, names = None, None
    if kind != "items" and _are_one_text_format(source, train, test):
        header, lines = _lines(source)
        parts = [np.array(lines, object)]
        labels = _pair_labels(source, header, lines) if kind == "pairs" else None
    else:
        parts, labels, names = _read(source, kind, label_column, labels_file, on_error)
    n = parts[0].shape[0]
    is_test = _drawn(labels if stratify else None, n, test_share, np.random.default_rng(seed))
    if stratify and labels is not None and n > 1 and not is_test.any():
        raise click.BadParameter(
            f"expected a class of two or more {kind}, got {n} classes of one each; to divide them as if they "
            "had no labels: --no-stratify",
            param_hint="--stratify",
        )
    if not 0 < is_test.sum() < n:
        raise click.BadParameter(
            f"expected rows for TRAIN and for TEST, got {is_test.sum()} of {n} for TEST",
            param_hint="--test-share",
        )
    for path, rows in ((train, np.flatnonzero(~is_test)), (test, np.flatnonzero(is_test))):
        chosen = [None if part is None else part[rows] for part in parts]
        if header is None:
            write_part(path, kind, *chosen, feature_names=names)
        else:
            with open_text_output(path) as text:
                text.writelines([header, *chosen[0]])
    counts = {"n_train": int(n - is_test.sum()), "n_test": int(is_test.sum())}
    if as_json:
        echo_json({"input": str(source), "kind": kind, **counts})
    else:
        click.echo(f"{train}: {counts['n_train']:,} {kind}; {test}: {counts['n_test']:,}")


def _are_one_text_format(*paths: Path) -> bool:
    from ..data.files import format_of
    from ..data.records import FORMATS

    kinds = {format_of(path, FORMATS) for path in paths}
    return len(kinds) == 1 and not kinds & {"npy", "npz"}


def _lines(source: Path) -> tuple[str, list[str]]:
    """Header, empty if there is none, and lines of a text file of records."""
    from ..data.files import open_input, text_lines

    with open_input(source) as handle:
        lines = [text.rstrip("\r\n") + "\n" for _, text in text_lines(handle)]
    return (lines[0], lines[1:]) if lines and is_header(lines[0]) else ("", lines)


def _pair_labels(source: Path, header: str, lines: list[str]) -> np.ndarray:
    """The label of each line, whatever its items are called; those that cannot be read are a class."""
    from ..data.files import format_of
    from ..data.records import FORMATS, PAIRS, IdLookup, parser_for

    block = "".join([header, *lines]).encode()
    parser = parser_for(block, str(source), format_of(source, FORMATS), 1, PAIRS, IdLookup([], []))
    return parser.parse_lines([line.encode() for line in lines]).numbers[:, 2]


def _read(
    source: Path,
    kind: str,
    label_column: str | int | None,
    labels_file: Path | None,
    on_error: str,
) -> tuple[list[Any], np.ndarray | None, list[str] | None]:
    """The arrays that make up a file, None for what it does not have; labels, and columns of items."""
    import numpy as np

    from .inputs import read_records, read_rows

    if kind != "items":
        tuples, y, tasks = read_records(source, kind, on_error=on_error)[0]
        return [tuples, y, tasks], y if kind == "pairs" else None, None
    rows = read_rows(source, label_column=label_column, labels_file=labels_file)
    ids = None if rows.ids is None else np.array(rows.ids, object)
    return [rows.items, rows.labels, ids], rows.labels, rows.feature_names


def _drawn(labels: np.ndarray | None, n: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which rows are drawn: a share of all, or of every class, but of several neither none nor all."""
    import numpy as np

    is_drawn = np.zeros(n, bool)
    codes = np.zeros(n, np.int64) if labels is None else np.unique(labels, return_inverse=True)[1]
    order = rng.permutation(n)
    for rows in np.split(
        order[np.argsort(codes[order], kind="stable")], np.cumsum(np.bincount(codes))
    ):
        if len(rows) > 1:
            is_drawn[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return is_drawn
