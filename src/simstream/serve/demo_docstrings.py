"""The demo on docstrings: a search that learns from clicks.

The simulated user reads the docstring of a function, searches for similar ones, and clicks on the first that
the authors of the docstring recommend ("See Also").
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from ..asking import Asking
from ..data.clicks import pairs_from_clicks
from ..datasets import SeeAlso, load_see_also
from ..metrics import ranking_per_query
from .engine import Model
from .import_export import import_items
from .service import Service, digest_of
from .state import Learning
from .writer import Judgement, Ledger, Write

LEARNING = Learning("oasis", {"C": 0.02})
ASKING = Asking(delta=0.1, near=24)

#: The first question, with a clear answer.
OPENING = ("numpy.argmax", "scipy.linalg.solve", "numpy.argmin")

ABOUT = (
    "Functions and classes of NumPy, SciPy and scikit-learn. On Explore, choose one: a click on a neighbour "
    "in the right column teaches that it belongs there."
)

#: The most frequent words: so few that every click can be followed by a new version of the whole matrix.
_N_WORDS = 1000

#: Neighbours that the measure considers, and that the simulated user looks at.
NEIGHBOURS = 10
_LOOKED_AT = 20

#: Held-out queries of the measure: few enough to measure every published model.
_N_MEASURED = 300

#: The items are multiplied by the square root of this, so that learning starts from similarities up to 3: the
#: margin of 1 is about as large as the differences between them. The inner product ranks as the cosine does.
_SCALE = 3.0

_SIGNATURE = re.compile(r"\w+\(.*\)")

#: Longest text that is shown of an item.
_LONGEST = 120


@cache
def corpus() -> SeeAlso:
    """The docstrings, read once."""
    return load_see_also(_N_WORDS)


@cache
def rows() -> np.ndarray:
    """The served vectors."""
    return (corpus().vectors * np.float32(np.sqrt(_SCALE))).toarray()


def add_docstrings(service: Service) -> int:
    """Add the docstrings unless they are there already; return how many were added."""
    names = list(corpus().names)
    payloads = [
        {"text": _shortened(f"{name}: {_summary(text)}")}
        for name, text in zip(names, corpus().texts, strict=True)
    ]
    digest = digest_of([names, corpus().versions])
    return import_items(service, names, rows(), payloads, digest).added


def _summary(docstring: str) -> str:
    """The first paragraph in one line; compiled functions have their signature before it.

    Examples
    --------
    >>> _summary("add(x1, x2, /, out=None)\\n\\nAdd arguments\\nelement-wise.")
    'Add arguments element-wise.'
    """
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", docstring.strip())]
    return next((part for part in paragraphs if not _SIGNATURE.match(part)), paragraphs[0])


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


class LinkMeasure:
    """Share of the authors' links that are among the first neighbours, for docstrings never searched for.

    Examples
    --------
    >>> measure = LinkMeasure()
    >>> told = measure(Model(0))
    >>> told["learnt"] == told["baseline"] > 0.5
    True
    """

    def __init__(self) -> None:
        _, links = corpus().split(seed=0)
        queries = np.random.default_rng(0).permutation(np.unique(links[:, 0]))[:_N_MEASURED]
        self._judged = corpus().relevance(links[np.isin(links[:, 0], queries)])
        self._baseline = self._recall(Model(0))
        #: Position and trust of the last measured model; recall of what was learnt, and of what is served.
        self._last = (-1, 0.0, self._baseline, self._baseline)

    def __call__(self, model: Model) -> dict[str, Any]:
        """The recall of what was learnt, of what is served and of the inner product, as JSON values."""
        position, trust, recall, served = self._last
        if (position, trust) != (model.position, model.trust):
            recall = self._recall(model.learnt)
            served = recall if model.trust == 1 else self._recall(model)
            self._last = (model.position, model.trust, recall, served)
        n_queries = len(self._judged[0])
        return {
            "about": ABOUT,
            "what": f'"See Also" links among the {NEIGHBOURS} nearest neighbours',
            "how": f"Measured on {n_queries} docstrings that the simulated user never searches for.",
            "clicks": True,
            "neighbours": NEIGHBOURS,
            "items": n_queries,
            "learnt": recall,
            "trusted": served,
            "baseline": self._baseline,
        }

    def _recall(self, model: Model) -> float:
        queries, relevant, own = self._judged
        scores = model.transform(rows()[queries]) @ rows().T
        values = ranking_per_query(scores, relevant, exclude=own, k=NEIGHBOURS)
        return float(values[f"recall@{NEIGHBOURS}"].mean())


class Reader:
    """A simulated user who searches for docstrings and clicks on what their authors recommend.

    Never searches for the docstrings of the measure.
    """

    def __init__(self, seed: int = 0) -> None:
        links, _ = corpus().split(seed=0)
        self._links: dict[str, set[str]] = {}
        for query, item in links.tolist():
            self._links.setdefault(corpus().names[query], set()).add(corpus().names[item])
        self._queries = list(self._links)
        self._rng = np.random.default_rng(seed)

    def __call__(self, service: Service) -> None:
        """Search, and click on the links among the first results; they beat what is above them."""
        query = self._queries[self._rng.integers(len(self._queries))]
        shown = [name for name, _ in service.search(query, _LOOKED_AT)]
        clicked = [name for name in shown if name in self._links[query]]
        pairs = pairs_from_clicks(shown, clicked)
        if not pairs:
            return
        judgement = Judgement(query, pairs, None, "clicks")
        (receipt,) = service.submit([Write(Ledger.judge, (judgement,))]).result()
        service.wait_for(receipt)


def progress(service: Service, measure: LinkMeasure) -> str:
    """One line about the progress of learning."""
    version = service.version
    told = measure(version.model)
    return (
        f"{version.tally.triplets} comparisons: {told['trusted']:.0%} of the links of held-out docstrings "
        f"are among the {NEIGHBOURS} nearest neighbours (inner product: {told['baseline']:.0%})"
    )
