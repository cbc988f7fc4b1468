"""Draw the pictures of the site into docs/images: ``make figures`` (a minute).

The first shows what `simstream demo` does; the others explain how learning works.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle
from sklearn.datasets import load_digits

from simstream import OASIS, SORS, TripletSampler
from simstream.cli import demo_docstrings

FOLDER = Path(__file__).parents[1] / "images"
BLUE, ORANGE, GREEN, PINK, RED, FAINT = (
    *("#0072B2", "#E69F00", "#009E73"),
    *("#CC79A7", "#D55E00", "#666666"),
)


def main() -> None:
    """Draw all of them."""
    mpl.rcParams |= {
        "font.size": 11,
        "svg.hashsalt": "simstream",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    FOLDER.mkdir(exist_ok=True)
    pictures = (comparison, steps, penalty, stores, queries)
    for draw in (*pictures, before_and_after, before_and_after_narrow):
        name = draw.__name__.replace("_", "-")
        draw().savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        plt.close("all")


# -- before and after -------------------------------------------------------------------------


def before_and_after() -> Any:
    """One held-out search of the demo before and after learning, and the means of all of them.

    The search is the one at the 90th percentile of the gains among those with three links or more.
    """
    figure = plt.figure(figsize=(10.5, 4.3))
    grid = figure.add_gridspec(1, 3, width_ratios=[1, 1, 0.7], wspace=0.12)
    return _before_and_after(figure, grid, "Functions like {}")


def before_and_after_narrow() -> Any:
    """The same, one below the other: letters that can be read on a telephone."""
    figure = plt.figure(figsize=(5.2, 9))
    grid = figure.add_gridspec(3, 1, height_ratios=[1, 1, 0.7], hspace=0.2)
    return _before_and_after(figure, grid, "Functions like\n{}")


@cache
def _outcome() -> Any:
    return demo_docstrings.run(0)


def _before_and_after(figure: Any, grid: Any, title: str) -> Any:
    outcome = _outcome()
    names = np.array(outcome.corpus.names)
    gains = outcome.after["nDCG@10"] - outcome.before["nDCG@10"]
    n_links = np.array([(outcome.test_links[:, 0] == query).sum() for query in outcome.queries])
    places = np.flatnonzero(n_links >= 3)
    place = places[np.argsort(gains[places], kind="stable")[int(0.9 * len(places))]]
    query = outcome.queries[place]
    links = set(outcome.test_links[outcome.test_links[:, 0] == query, 1])

    kinds = {"before": demo_docstrings.cosine, "after": outcome.adapter.score_items}
    titles = {
        "before": "Before: cosine",
        "after": f"After {outcome.stages[-1].n_judgements:,} links from others",
    }
    for column, (kind, score) in enumerate(kinds.items()):
        scores = np.asarray(score(outcome.corpus.vectors[[query]], outcome.corpus.vectors))[0]
        scores[query] = -np.inf
        first = np.argsort(-scores, kind="stable")[:6]
        _results(figure.add_subplot(grid[column]), titles[kind], names, first, links)
    top = grid.get_grid_positions(figure)[1][0] + 0.5 / figure.get_figheight()
    text = title.format(names[query])
    figure.suptitle(text, x=0.125, ha="left", va="bottom", fontsize=14, weight="bold", y=top)
    _bars(figure.add_subplot(grid[2]), outcome)
    return figure


def _results(axes: Any, title: str, names: Any, first: Any, links: set[int]) -> None:
    axes.set_title(title, loc="left")
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(6, 0))
    for row, item in enumerate(first):
        is_right = item in links
        axes.add_patch(
            Rectangle(
                (0, row + 0.08), 0.97, 0.84, color=GREEN if is_right else "#EEEEEE", alpha=0.85
            )
        )
        axes.text(
            *(0.03, row + 0.5),
            f"{row + 1}  {_short(names[item])}",
            va="center",
            color="white" if is_right else FAINT,
            weight="bold" if is_right else "normal",
            fontsize=10.5,
        )


def _short(name: str) -> str:
    """The last two parts of a name."""
    return ".".join(name.split(".")[-2:])


def _bars(axes: Any, outcome: Any) -> None:
    measures = {"recall@10": "links among the first ten", "P@1": "first result is a link"}
    axes.set_title(f"All {len(outcome.queries)} held-out searches", loc="left")
    for row, (measure, words) in enumerate(measures.items()):
        axes.text(0, row - 0.45, words, fontsize=10.5)
        for offset, values, colour in (
            (-0.2, outcome.before, "#AAAAAA"),
            (0.15, outcome.after, GREEN),
        ):
            mean = values[measure].mean()
            axes.barh(row + offset, mean, 0.3, color=colour)
            axes.text(mean + 0.02, row + offset, f"{mean:.0%}", va="center", fontsize=11)
    axes.set(yticks=[], xlim=(0, 1.1), xticks=[], ylim=(-0.6, 1.6))
    axes.invert_yaxis()
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)


# -- how it works -----------------------------------------------------------------------------


def _digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 64, y


def comparison() -> Any:
    """A triplet of pictures, and the matrix that it adds to M."""
    X, y = _digits()
    anchor, positive, negative = (
        np.flatnonzero(y == 3)[0],
        np.flatnonzero(y == 3)[5],
        np.flatnonzero(y == 8)[2],
    )
    figure, axes = plt.subplots(1, 5, figsize=(10.5, 2.5), width_ratios=[1, 1, 1, 1, 1.3])
    z = X[positive] - X[negative]
    titles = ("x\nthis one ...", "b\n... is more like this", "c\n... than like this", "z = b - c")
    for axis, picture, title in zip(
        axes, (X[anchor], X[positive], X[negative], z), titles, strict=False
    ):
        is_difference = title.startswith("z")
        limit = abs(picture).max()
        axis.imshow(
            picture.reshape(8, 8),
            cmap="PuOr" if is_difference else "gray_r",
            vmin=-limit if is_difference else 0,
            vmax=limit,
        )
        axis.set_title(title, fontsize=11)
    outer = np.outer(X[anchor], z)
    axes[4].imshow(outer, cmap="PuOr", vmin=-abs(outer).max(), vmax=abs(outer).max())
    axes[4].set_title("x z'\nwhat M can be changed by", fontsize=11)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(True)
        axis.spines[:].set_color("#CCCCCC")
    return figure


def steps() -> Any:
    """Length of the step by the margin, for the step rules (||x|| = ||z|| = 1)."""
    margin = np.linspace(-1.5, 2, 400)
    loss = np.maximum(0, 1 - margin)
    figure, axes = plt.subplots(figsize=(6.5, 3.4))
    curves = {
        "PA: repair it at once": (loss, BLUE, "-"),
        "PA-I: ... but at most C": (np.minimum(0.8, loss), GREEN, "-"),
        "PA-II: ... or a part of it": (loss / (1 + 1 / (2 * 0.8)), ORANGE, "-"),
        "gradient: always the same": (np.where(loss > 0, 0.4, 0.0), PINK, "-"),
    }
    for name, (length, colour, line) in curves.items():
        axes.plot(margin, length, line, color=colour, label=name, lw=2)
    axes.axvline(1, color=FAINT, lw=1, ls=":")
    axes.axvline(0, color=FAINT, lw=1, ls=":")
    top = axes.get_ylim()[1]
    for position, text in ((-0.75, "ranked wrongly"), (0.5, "too close"), (1.5, "right: no step")):
        axes.text(position, top * 1.02, text, ha="center", color=FAINT)
    axes.set(xlabel="margin x'Mz of a triplet", ylabel="length of the step")
    axes.legend(frameon=False, loc="upper left", fontsize=10, bbox_to_anchor=(1, 0.95))
    return figure


def penalty() -> Any:
    """What a threshold does to an entry, and two learnt matrices."""
    X, y = _digits()
    triplets = TripletSampler(y, random_state=0).draw(20_000)
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2))
    entry = np.linspace(-1, 1, 201)
    axes[0].plot(entry, entry, color="#BBBBBB", label="no penalty")
    axes[0].plot(
        entry, np.sign(entry) * np.maximum(abs(entry) - 0.3, 0), color=BLUE, lw=2, label="l1"
    )
    axes[0].set(
        xlabel="entry after the step",
        ylabel="entry after the penalty",
        xticks=[-1, 0, 1],
        yticks=[-1, 0, 1],
    )
    axes[0].legend(frameon=False)
    learners = {"OASIS": OASIS(), "SORS, lam = 0.002": SORS(lam=2e-3)}
    for axis, (name, learner) in zip(axes[1:], learners.items(), strict=True):
        learner.set_params(preprocessor=X).fit(triplets)
        axis.imshow(learner.get_bilinear_matrix() != 0, cmap="Blues", vmin=0, vmax=1.3)
        axis.set_title(f"{name}: {learner.sparsity_:.0%} zeros", fontsize=11)
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    return figure


def stores() -> Any:
    """Where M is kept: four sketches."""
    figure, axes = plt.subplots(1, 4, figsize=(10.5, 2.9))
    titles = (
        "an array",
        "a dense head,\nhashed tails",
        "eigenvectors",
        "two thin factors",
    )
    texts = (
        "dense items;\nblocks of triplets at once",
        "sparse items; entries\ntake memory when touched",
        "distances that stay\npositive semi-definite",
        "low rank: small models,\nselected features",
    )
    for axis, title, text in zip(axes, titles, texts, strict=True):
        axis.set(xlim=(-0.5, 10.5), ylim=(10.5, -3.6), aspect="equal")
        axis.axis("off")
        axis.text(5, -1.2, title, ha="center", va="bottom", fontsize=11, weight="bold")
        axis.text(5, 11, text, ha="center", va="top", fontsize=9.5, color=FAINT)
    axes[0].add_patch(Rectangle((0, 0), 10, 10, color=BLUE))
    axes[1].add_patch(Rectangle((0, 0), 10, 10, fill=False, ec="#BBBBBB"))
    for row in range(10):  # entry (i, j) is in the head if i j <= 9
        axes[1].add_patch(Rectangle((0, row), 9 // (row + 1), 1, color=BLUE))
    rng = np.random.default_rng(3)
    for column, row in rng.uniform(0, 9.6, (70, 2)):
        if column > 9 // (int(row) + 1):
            axes[1].add_patch(Rectangle((column, row), 0.35, 0.35, color=BLUE))
    axes[2].add_patch(Rectangle((0.2, 0), 2.6, 10, color=BLUE))
    for place in range(4):
        axes[2].add_patch(Rectangle((3.7 + 0.65 * place, 0.65 * place), 0.65, 0.65, color=ORANGE))
    axes[2].add_patch(Rectangle((3.7, 0), 2.6, 2.6, fill=False, ec="#BBBBBB"))
    axes[2].add_patch(Rectangle((7.2, 0), 3, 2.6, color=BLUE, alpha=0.5))
    axes[3].add_patch(Rectangle((1.5, 0), 1.6, 10, color=BLUE))
    axes[3].add_patch(Rectangle((4.2, 0), 5.5, 1.6, color=BLUE, alpha=0.5))
    return figure


def queries() -> Any:
    """Only the query is changed."""
    figure, axis = plt.subplots(figsize=(9, 1.9))
    axis.set(xlim=(0, 18), ylim=(0, 4))
    axis.axis("off")
    boxes = {"query q": (0.2, ORANGE), "M'q": (6.6, GREEN), "your index,\nunchanged": (13, BLUE)}
    for text, (left, colour) in boxes.items():
        axis.add_patch(Rectangle((left, 0.6), 4.2, 2.6, color=colour))
        axis.text(left + 2.1, 1.9, text, ha="center", va="center", color="white", weight="bold")
    for left, text in ((4.4, "learnt"), (10.8, "inner product")):
        axis.add_patch(
            FancyArrowPatch((left, 1.9), (left + 2.2, 1.9), mutation_scale=18, color=FAINT)
        )
        axis.text(left + 1.1, 2.4, text, ha="center", fontsize=7.5, color=FAINT)
    return figure


if __name__ == "__main__":
    main()
