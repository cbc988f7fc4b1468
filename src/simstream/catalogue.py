"""Available algorithms: one entry each, the only place where an algorithm is registered.

The public names of `simstream` come from here. Parameters and their defaults are read from the signature of
the class, what they mean and the paper from its docstring. `import simstream` imports this module: nothing
heavy here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

BILINEAR = "bilinear similarity"
DISTANCE = "Mahalanobis distance"


class Parameter(NamedTuple):
    """One argument of the constructor."""

    name: str
    default: Any
    #: Kind of values, and what it means, as in the docstring of the class.
    type: str
    text: str


class Algorithm(NamedTuple):
    """One algorithm.

    Examples
    --------
    >>> from simstream.catalogue import find
    >>> find("oasis").name, find("POLA").input
    ('OASIS', 'pairs or triplets')
    """

    #: Public class of `simstream`, and the module that defines it.
    name: str
    home: str
    #: What it learns from, the natural kind first: "triplets", "lists", "pairs", "labels".
    takes: tuple[str, ...]
    #: What is learnt.
    learns: str
    #: What one step does, or what is minimised.
    update: str
    #: What a batch learner reports after every iteration.
    reports: str = "objective"
    #: Whether it learns from a fixed set of tuples, all at once.
    takes_a_set: bool = False

    @property
    def input(self) -> str:
        """The kinds of input in words."""
        *others, last = self.takes
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def is_batch(self) -> bool:
        """Whether it learns from everything at once instead of from one tuple after the other."""
        return self.takes[0] == "labels" or self.takes_a_set

    def cls(self) -> Any:
        """The class itself."""
        return getattr(import_module(f".{self.home}", __package__), self.name)

    def _docstring(self) -> str:
        import inspect  # here, because it takes longer to import than the rest of this module

        return inspect.getdoc(self.cls()) or ""

    def summary(self) -> str:
        """The first line of the docstring."""
        return self._docstring().partition("\n")[0]

    @property
    def paper(self) -> str:
        """Reference of the publication, as in the docstring; empty for baselines."""
        return " ".join(_sections(self._docstring()).get("References", "").split()).rstrip(".")

    def parameters(self) -> tuple[Parameter, ...]:
        """Arguments of the constructor, in order."""
        import inspect

        signature = inspect.signature(self.cls())
        defaults = {name: given.default for name, given in signature.parameters.items()}
        texts = _parameter_texts(self._docstring(), set(defaults))
        return tuple(
            Parameter(name, default, *texts.get(name, ("", "")))
            for name, default in defaults.items()
        )


#: z = x+ - x- of a triplet (x, x+, x-); v the difference of the items of a pair with label y.
ALGORITHMS = (
    Algorithm(
        "OASIS",
        "online.triplets",
        ("triplets",),
        BILINEAR,
        "M += tau x z',  tau = min(C, [1 - x'Mz]+ / (||x||^2 ||z||^2))",
    ),
    Algorithm(
        "OGD",
        "online.triplets",
        ("triplets",),
        BILINEAR,
        "M += eta_t x z'  if x'Mz < 1",
    ),
    Algorithm(
        "SORS",
        "online.triplets",
        ("triplets",),
        BILINEAR,
        "M = soft(M + eta_t x z' [x'Mz < 1], eta_t lam)",
    ),
    Algorithm(
        "AdaSORS",
        "online.triplets",
        ("triplets",),
        BILINEAR,
        "H = sqrt(H^2 + G^2),  M = soft(M - eta G / (delta + H), eta lam / (delta + H)),  "
        "G = -x z' [x'Mz < 1]",
    ),
    Algorithm(
        "AROMA",
        "online.triplets",
        ("triplets",),
        BILINEAR,
        "argmin KL(N(M,S) || N(M_t,S_t)) + ([1 - x'Mz]+)^2 / (2r) + phi'S phi / (2r),  phi = vec(x z')",
    ),
    Algorithm(
        "ListwiseSoftmax",
        "online.listwise",
        ("triplets", "lists"),
        BILINEAR,
        "M += q (u - t)' / ||q||^2,  t = M'q,  u = t after n_steps of t += eta T ||q||^2 (x+ - sum p_j x_j), "
        "p_j ~ exp(t'x_j / T) over x+ and the negatives",
    ),
    Algorithm(
        "PAMetric",
        "online.pairs",
        ("pairs", "triplets"),
        DISTANCE,
        "M -= tau y v v',  b += tau y,  p = 1 - y (b - v'Mv),  K = 1 + ||v||^4;  PA: tau = [p]+ / K;  "
        "PA-I (Eq. 12): min(C, [p]+ / K);  PA-II (Eq. 13): [p]+ / (K + 1/(2C));  "
        "PALS (Eq. 16): p / (K + 1/(2C))",
    ),
    Algorithm(
        "POLA",
        "online.pairs",
        ("pairs", "triplets"),
        DISTANCE,
        "M = P+(M - tau y v v'),  b = max(1, b + tau y),  tau = [1 - y (b - v'Mv)]+ / (1 + ||v||^4)",
    ),
    Algorithm(
        "RDML",
        "online.pairs",
        ("pairs", "triplets"),
        DISTANCE,
        "M -= lam_t y v v'  if y (1 - v'Mv) <= margin,  lam_t = min(lam, 1 / (v'M^-1 v)) for similar pairs, "
        "else lam",
    ),
    Algorithm(
        "LEGO",
        "online.logdet",
        ("pairs", "triplets"),
        DISTANCE,
        "argmin D_ld(M, M_t) + eta/2 (v'Mv - target)^2,  target = lower (similar) or upper (dissimilar)",
    ),
    Algorithm(
        "OnlineITML",
        "online.logdet",
        ("pairs", "triplets"),
        DISTANCE,
        "M^-1 += c v v',  c = 2 eta_t (v'Mv - target),  eta_t <= eta so that 0 < M < I",
    ),
    Algorithm(
        "ITML",
        "batch.itml",
        ("labels", "pairs", "triplets"),
        DISTANCE,
        "min D_ld(M, M_0) + gamma D_ld(diag(xi), diag(xi_0))  s.t. v'Mv <= xi (similar), "
        "v'Mv >= xi (dissimilar)",
        reports="change of the dual variables",
    ),
    Algorithm(
        "LDA",
        "batch.lda",
        ("labels",),
        DISTANCE,
        "M = sum_k (1 - 1 / r_k) w_k w_k',  T w_k = r_k C w_k,  w'Cw = 1,  C covariance inside classes "
        "(shrunk), T of all items",
    ),
    Algorithm(
        "LMNN",
        "batch.lmnn",
        ("labels",),
        DISTANCE,
        "min (1 - mu) sum_ij d(i,j) + mu sum_ijl [1 + d(i,j) - d(i,l)]+,  j target neighbours of i, "
        "l of other classes",
    ),
    Algorithm(
        "MCML",
        "batch.mcml",
        ("labels",),
        DISTANCE,
        "min sum_i KL(p0(.|i) || p(.|i)),  p(j|i) ~ exp(-d(i,j)),  p0 uniform over the class of i",
    ),
    Algorithm(
        "MultiTaskLMNN",
        "batch.mtlmnn",
        ("labels",),
        DISTANCE,
        "min gamma0 ||M_0 - I||^2 + sum_t gamma ||M_t||^2 + d_t(i, j) + [1 + d_t(i, j) - d_t(i, l)]+,  "
        "d_t by M_0 + M_t, over neighbours j and items l of other classes of each task",
    ),
    Algorithm(
        "NCA",
        "batch.nca",
        ("labels",),
        DISTANCE,
        "max_L sum_i sum_{j of i's class} p(j|i),  p(j|i) ~ exp(-||Lx_i - Lx_j||^2),  M = L'L",
    ),
    Algorithm(
        "RCA",
        "batch.rca",
        ("labels", "pairs", "triplets"),
        DISTANCE,
        "M = (C + eps I)^-1,  C = 1/N sum_j sum_{x in H_j} (x - m_j)(x - m_j)',  m_j mean of chunklet H_j",
    ),
    Algorithm(
        "OSLLRGS",
        "online.low_rank",
        ("triplets",),
        BILINEAR,
        "W = XX',  X += eta_t (z x' + x z') X if x'Wz < 1,  "
        "then rows to norm clip(||X_k|| - eta_t gamma, 0, beta)",
    ),
    Algorithm(
        "OMLLR",
        "online.low_rank",
        ("triplets",),
        BILINEAR,
        "W = SVT(W + eta_t x z' [x'Wz < 1], eta_t lam): singular values lowered by eta_t lam",
    ),
    Algorithm(
        "Loreta",
        "online.low_rank",
        ("triplets",),
        BILINEAR,
        "W = AB' of rank k,  W = retraction of W + eta x z' projected on the tangent space,  if x'Wz < 1",
    ),
    Algorithm(
        "SDCA",
        "batch.sdca",
        ("triplets",),
        BILINEAR,
        "alpha_i += max((1 - x'Mz - alpha_i/2) / (1/2 + ||x||^2 ||z||^2 / (lam n)), -alpha_i),  "
        "M = 1/(lam n) sum alpha_i x_i z_i'",
        reports="duality gap",
        takes_a_set=True,
    ),
    Algorithm(
        "OMTRSL",
        "online.multitask",
        ("triplets",),
        BILINEAR,
        "M_j += y tau A_jk x z' for all tasks j,  tau = min(C, [1 - y x'M_k z]+ / (A_kk ||x||^2 ||z||^2)),  "
        "A_jk = (coupling + K [j = k]) / ((1 + coupling) K)",
    ),
    Algorithm(
        "OSTRSL",
        "online.multitask",
        ("triplets",),
        BILINEAR,
        "M_k += y tau x z',  tau = min(C, [1 - y x'M_k z]+ / (||x||^2 ||z||^2)) for the task k only",
    ),
    Algorithm(
        "OGRSL",
        "online.multitask",
        ("triplets",),
        BILINEAR,
        "M += y tau x z',  tau = min(C, [1 - y x'Mz]+ / (||x||^2 ||z||^2)) for all tasks alike",
    ),
    Algorithm(
        "Euclidean",
        "online.baselines",
        ("triplets",),
        "nothing: Euclidean distance",
        "s(q, x) = -||q - x||^2",
    ),
    Algorithm("Dot", "online.baselines", ("triplets",), "nothing: inner product", "s(q, x) = q'x"),
)


def find(name: str) -> Algorithm:
    """The algorithm of that name, ignoring case; KeyError if there is none."""
    by_name = {algorithm.name.lower(): algorithm for algorithm in ALGORITHMS}
    return by_name[name.lower()]


def _sections(docstring: str) -> dict[str, str]:
    """Texts of a numpy-style docstring by their headings."""
    import re

    _, *parts = re.split(r"^ *(\w[\w ]*)\n *-{3,} *$", docstring, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _parameter_texts(docstring: str, names: set[str]) -> dict[str, tuple[str, str]]:
    """Type and text of each parameter of a numpy-style docstring.

    Lines are told apart by the names that the signature has, not by their indentation: parts that classes
    share are pasted into docstrings, and how far these are indented depends on the version of Python.
    """
    found: dict[str, tuple[str, str]] = {}
    here: list[str] = []
    for line in _sections(docstring).get("Parameters", "").splitlines():
        before, colon, after = line.partition(" : ")
        listed = [part.strip() for part in before.split(",")]
        if colon and all(part in names for part in listed):
            here = listed
            found |= dict.fromkeys(here, (after.strip(), ""))
        elif line.strip():
            for name in here:
                kind, text = found[name]
                found[name] = kind, f"{text} {line.strip()}".strip()
    return found
