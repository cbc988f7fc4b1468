"""A test collection that every installation has: the docstrings of NumPy, SciPy and scikit-learn.

Items are the public functions and classes; judgements are their authors' own "See Also" links, which are
removed from the texts. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy import sparse

from ..validation import check_integer, check_number

#: Modules of the three reference manuals. Named one by one: what is deprecated is as easy to find as the
#: rest, and warns when it is imported.
_MODULES = {
    "numpy": """char exceptions fft lib lib.array_utils lib.format lib.introspect lib.mixins lib.npyio
        lib.recfunctions lib.scimath lib.stride_tricks linalg ma polynomial polynomial.chebyshev
        polynomial.hermite polynomial.hermite_e polynomial.laguerre polynomial.legendre
        polynomial.polynomial polynomial.polyutils random rec strings testing""",
    "scipy": """cluster.hierarchy cluster.vq constants datasets differentiate fft fftpack integrate
        interpolate io io.arff io.wavfile linalg linalg.blas linalg.interpolative linalg.lapack ndimage
        optimize optimize.elementwise signal signal.windows sparse sparse.csgraph sparse.linalg spatial
        spatial.distance spatial.transform special stats stats.contingency stats.mstats stats.qmc
        stats.sampling""",
    "sklearn": """base calibration cluster compose covariance cross_decomposition datasets decomposition
        discriminant_analysis dummy ensemble exceptions feature_extraction feature_extraction.image
        feature_extraction.text feature_selection frozen gaussian_process gaussian_process.kernels impute
        inspection isotonic kernel_approximation kernel_ridge linear_model manifold metrics metrics.cluster
        metrics.pairwise mixture model_selection multiclass multioutput naive_bayes neighbors
        neural_network pipeline preprocessing random_projection semi_supervised svm tree utils
        utils.class_weight utils.discovery utils.extmath utils.graph
        utils.metadata_routing utils.metaestimators utils.multiclass utils.random utils.sparsefuncs
        utils.validation""",
}

#: Present only where something else in the process has asked for experimental features.
_EXPERIMENTAL = {"HalvingGridSearchCV", "HalvingRandomSearchCV", "IterativeImputer"}

#: What docstrings call the libraries.
_SHORT = {"np": "numpy", "sp": "scipy"}

#: A section of a docstring: a line that is underlined.
_HEADING = re.compile(r"^(?P<title>\S.*)\n(?:-{3,}|={3,})[ \t]*$", re.MULTILINE)
#: What else points at related functions: a Sphinx directive, and sentences such as "See also `foo`."
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. seealso::.*\n(?:\1[ \t]+\S.*\n|[ \t]*\n)*", re.MULTILINE)
_SENTENCE = re.compile(
    r"(?:\([ \t]*)?\bsee also\b(?:[^.\n]|\.(?=\w)|\n(?![ \t]*\n))*\.?", re.IGNORECASE
)
#: An entry of the section: names, with or without a role such as :func:, and perhaps what they do.
_ROLE_AND_NAME = r"(?::[\w:]+:)?`?~?[A-Za-z_][\w.]*`?"
_ENTRY = re.compile(
    rf"(?P<names>{_ROLE_AND_NAME}(?:\s*,\s*{_ROLE_AND_NAME})*)\s*,?\s*(?::(?:\s.*)?)?"
)
_NAME = re.compile(r"(?:^|[\s,`~])([A-Za-z_][\w.]*)")

#: Words, and the words within identifiers: three of "RandomForestClassifier", two of "lu_factor". Numbers are
#: left out: they say little, and the random ones in some docstrings are others in every process.
_WORD = re.compile(r"(?<!\d)(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)\d*")


@dataclass(frozen=True, eq=False)
class SeeAlso:
    """Docstrings as items, and the links between them as judgements.

    Attributes
    ----------
    names : tuple of str
        Full name of each item, such as "numpy.linalg.svd", in alphabetical order.
    texts : tuple of str
        Their docstrings without links.
    vectors : csr_matrix of shape (n_items, n_features)
        TF-IDF of names and texts, rows of length one.
    links : ndarray of int of shape (n_links, 2)
        Rows of an item and of one that its docstring recommends; in the order of items.
    versions : dict of str to str
        The libraries that the docstrings come from: other versions have others.

    Examples
    --------
    >>> from simstream.datasets import load_see_also
    >>> corpus = load_see_also()
    >>> query = corpus.names.index("numpy.linalg.cholesky")
    >>> [corpus.names[item] for item in corpus.links[corpus.links[:, 0] == query, 1]]
    ['scipy.linalg.cho_factor', 'scipy.linalg.cholesky', 'scipy.linalg.cholesky_banded']
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    vectors: Any
    links: np.ndarray
    versions: dict[str, str]

    def split(self, seed: int = 0, train_share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
        """Divide the links at random into those to learn from and those to measure with, by whole queries.

        Many links have a reverse. A link is left out of the second part if its reverse is in the first:
        finding it again would only show a good memory.

        Parameters
        ----------
        seed : int, default=0
        train_share : float, default=0.5
            Share of the items with links whose links are learnt from, between 0 and 1.

        Returns
        -------
        train, test : ndarrays of int of shape (n, 2)
            Rows of `links`: in random order, as they could arrive, and in their own order.

        Examples
        --------
        >>> from simstream.datasets import load_see_also
        >>> train, test = load_see_also().split(seed=0)
        >>> set(train[:, 0]) & set(test[:, 0])
        set()
        """
        share = check_number("train_share", train_share)
        if share >= 1:
            raise ValueError(f"train_share: expected a number between 0 and 1, got {share}")
        rng = np.random.default_rng(seed)
        queries = rng.permutation(np.unique(self.links[:, 0]))
        chosen = queries[: round(share * len(queries))]
        is_train = np.isin(self.links[:, 0], chosen)
        train, test = rng.permutation(self.links[is_train]), self.links[~is_train]
        n_items = len(self.names)
        # A link as one number, and its reverse.
        reverses = train @ (1, n_items)
        return train, test[~np.isin(test @ (n_items, 1), reverses)]

    def relevance(self, links: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the measures of `simstream.metrics` need to know about links.

        Parameters
        ----------
        links : ndarray of int of shape (n, 2)
            Some rows of `links`.

        Returns
        -------
        queries : ndarray of int of shape (n_queries,)
            Rows of the items that link to others.
        relevant, exclude : ndarrays of bool of shape (n_queries, n_items)
            The linked items, and the query itself.

        Examples
        --------
        >>> from simstream.datasets import load_see_also
        >>> corpus = load_see_also()
        >>> queries, relevant, exclude = corpus.relevance(corpus.links[:10])
        >>> int(relevant.sum()), bool(exclude[0, queries[0]])
        (10, True)
        """
        queries, rows = np.unique(links[:, 0], return_inverse=True)
        relevant = np.zeros((len(queries), len(self.names)), bool)
        relevant[rows, links[:, 1]] = True
        return queries, relevant, queries[:, None] == np.arange(len(self.names))


def load_see_also(n_features: int = 10_000, *, dtype: Any = np.float32) -> SeeAlso:
    """Read the docstrings of the installed NumPy, SciPy and scikit-learn, and the links between them.

    An object with several names is one item, under the shortest of them. Links to itself, to
    something that is not an item, and repeated links are left out. The text loses the section "See Also"
    and every other sentence that says "see also".

    Parameters
    ----------
    n_features : int, default=10_000
        Number of words to keep, the most frequent ones.
    dtype : dtype, default=float32
        Type of the vectors, float32 or float64.

    Returns
    -------
    SeeAlso
        The same names, links and vectors for the same versions of the three libraries.

    Raises
    ------
    RuntimeError
        If Python runs without docstrings (``python -OO``).

    Examples
    --------
    >>> from simstream.datasets import load_see_also
    >>> corpus = load_see_also()
    >>> len(corpus.names) > 2000, len(corpus.links) > 3000, corpus.vectors.shape[1]
    (True, True, 10000)
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    check_integer("n_features", n_features)
    if sys.flags.optimize >= 2:
        raise RuntimeError("docstrings: expected Python to keep them, got python -OO")
    names, docstrings, row_of = _public_objects()
    parted = [_without_links(text) for text in docstrings]
    links = sorted(
        {
            (row, item)
            for row, (_, mentioned) in enumerate(parted)
            for mention in mentioned
            if (item := _resolve(mention, names[row], row_of)) not in (None, row)
        }
    )
    texts = tuple(text for text, _ in parted)
    vectorizer = TfidfVectorizer(
        analyzer=_words, max_features=n_features, sublinear_tf=True, dtype=dtype
    )
    vectors = vectorizer.fit_transform(
        [f"{name}\n{text}" for name, text in zip(names, texts, strict=True)]
    )
    versions = {library: importlib.import_module(library).__version__ for library in _MODULES}
    return SeeAlso(
        names,
        texts,
        sparse.csr_matrix(vectors),
        np.array(links, dtype=np.int64).reshape(-1, 2),
        versions,
    )


# -- the objects ----------------------------------------------------------------------------------


def _public_objects() -> tuple[tuple[str, ...], list[str], dict[str, int]]:
    """Names and docstrings of the items, and the row of every name that an item has."""
    aliases_of: dict[str, list[tuple[int, bool, str]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is deprecated is not used, only read
        # All modules first: importing one of them may change docstrings of another.
        for module in list(_modules()):
            for name in _names_in(module):
                found = vars(module).get(name)
                if _is_documented(found):
                    # The shortest name comes first, and of those the one that the object has itself.
                    full = f"{module.__name__}.{name}"
                    alias = (full.count("."), name != found.__name__, full)
                    aliases_of.setdefault(inspect.getdoc(found) or "", []).append(alias)
    chosen = {
        min(aliases)[-1]: (docstring, [alias[-1] for alias in aliases])
        for docstring, aliases in aliases_of.items()
    }
    names = tuple(sorted(chosen))
    row_of = {alias: row for row, name in enumerate(names) for alias in chosen[name][1]}
    return names, [chosen[name][0] for name in names], row_of


def _modules() -> Iterator[Any]:
    """The modules that the installed versions have."""
    for library, submodules in _MODULES.items():
        yield importlib.import_module(library)
        for name in submodules.split():
            full = f"{library}.{name}"
            if find_spec(full) is not None:
                yield importlib.import_module(full)


def _names_in(module: Any) -> list[str]:
    """What the module lists as public; if it lists nothing, what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, found in vars(module).items()
            if getattr(found, "__module__", None) == module.__name__
        ]
    return [name for name in listed if name[0] != "_" and name not in _EXPERIMENTAL]


def _is_documented(found: Any) -> bool:
    """Whether it is a function or class with a docstring of its own, as opposed to a number or a module."""
    return (
        callable(found)
        and isinstance(getattr(found, "__name__", None), str)
        and isinstance(found.__doc__, str)
        and (isinstance(found, type) or found.__doc__ != type(found).__doc__)
    )


# -- the links ------------------------------------------------------------------------------------


def _without_links(docstring: str) -> tuple[str, list[str]]:
    """The text without links, and the names in its section "See Also"."""
    headings = list(_HEADING.finditer(docstring))
    ends = [*(heading.start() for heading in headings), len(docstring)][1:]
    kept, mentioned, start = [], [], 0
    for heading, end in zip(headings, ends, strict=True):
        if heading["title"].strip().lower() == "see also":
            kept.append(docstring[start : heading.start()])
            mentioned += _mentioned(docstring[heading.end() : end])
            start = end
    text = "".join([*kept, docstring[start:]])
    return _SENTENCE.sub("", _DIRECTIVE.sub("", text)), mentioned


def _mentioned(section: str) -> list[str]:
    """The names in a section: entries are not indented, what is said about them may be."""
    entries = map(_ENTRY.fullmatch, map(str.rstrip, section.splitlines()))
    return [
        name.rstrip(".") for entry in entries if entry for name in _NAME.findall(entry["names"])
    ]


def _resolve(mention: str, name: str, row_of: dict[str, int]) -> int | None:
    """The row of what a docstring mentions: seen from its own module, from those around it, or in full."""
    first, dot, rest = mention.partition(".")
    mention = _SHORT.get(first, first) + dot + rest
    module = name.rpartition(".")[0]
    while module:
        row = row_of.get(f"{module}.{mention}")
        if row is not None:
            return row
        module = module.rpartition(".")[0]
    return row_of.get(mention)


# -- the words ------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text) if len(word) > 1]
