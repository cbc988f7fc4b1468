"""``simstream demo``: what learning changes, on data that every installation has."""

from __future__ import annotations

from pathlib import Path

import click

from . import demo_digits, demo_docstrings
from .options import COUNT, NATURAL, PathType, check_folder, json_option, refuse_options


@click.command(short_help="A tour on bundled data, in seconds.")
@click.argument("corpus", type=click.Choice(["docstrings", "digits"]), default="docstrings")
@click.option(
    "--output-dir",
    type=PathType(file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for data, model and picture.",
)
@click.option("--seed", type=NATURAL, default=0, show_default=True)
@click.option(
    "--n-triplets",
    "-n",
    type=COUNT,
    help=f"digits: triplets that each method learns from (default: {demo_digits.N_TRIPLETS:,}).",
)
@json_option
def demo(corpus: str, output_dir: Path, seed: int, n_triplets: int | None, as_json: bool) -> None:
    """Learn a similarity from judgements and compare it with what most people use.

    docstrings: an adapter of a search in the docstrings of NumPy, SciPy and scikit-learn learns from the
    links that their authors wrote ("See Also"), and is measured on the links of other functions.

    digits: several learners on the pictures of handwritten digits that come with scikit-learn, half of each
    class to learn from, the other half held out.
    """
    check_folder(output_dir, output_dir, "--output-dir")
    if corpus == "digits":
        demo_digits.show(output_dir, seed, n_triplets or demo_digits.N_TRIPLETS, as_json)
        return
    refuse_options("is for digits", {"--n-triplets": n_triplets is not None})
    demo_docstrings.show(output_dir, seed, as_json)
