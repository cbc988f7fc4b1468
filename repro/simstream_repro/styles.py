"""How methods look: the same colour and mark in every figure, and no two of a figure alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_GREY, _DARK, _BLACK = "#999999", "#555555", "#000000"
#: Colours of Okabe and Ito, and some more.
_BLUE, _RED, _GREEN = "#0072B2", "#D55E00", "#009E73"
_PINK, _ORANGE, _SKY = "#CC79A7", "#E69F00", "#56B4E9"
_OLIVE, _PURPLE, _LIME, _OCHRE, _BROWN = "#B59B00", "#7B3F9E", "#66A61E", "#8C6D1F", "#8C564B"

#: Family of methods -> colour, and marks of its members by their lines, in the order of `LINES`. No two
#: families share a colour and a mark.
_FAMILIES = {
    "Euclidean": (_GREY, "o"),
    "random": (_GREY, "X"),
    "1-NN": (_GREY, "D"),
    "5-NN": (_DARK, "^"),
    "Dot": (_DARK, "s"),
    "Cosine": (_DARK, "Dv"),
    "OASIS": (_BLUE, "^<"),
    "PAI": (_BLUE, "os"),
    "RDML": (_SKY, "<"),
    "OGD": (_SKY, "X"),
    "OGRSL": (_SKY, "s"),
    "mRMR": (_SKY, "P"),
    "SORS": (_GREEN, "sD"),
    "PAII": (_GREEN, "^v"),
    "OMLLR": (_GREEN, "PX"),
    "Active": (_GREEN, "o<>"),
    "AdaSORS": (_ORANGE, "<>"),
    "PALS": (_ORANGE, "DP"),
    "Random": (_ORANGE, "ov"),
    "Loreta": (_ORANGE, "X"),
    "AROMA": (_PINK, ">d^"),
    "OSTRSL": (_PINK, "v"),
    "ListwiseSoftmax": (_PINK, "P"),
    "SDCA": (_RED, "o"),
    "OMTRSL": (_RED, "s"),
    "OSLLR-GS": (_RED, "vD^P"),
    "LMNN": (_BLACK, "D"),
    "fastLMNN": (_BLACK, "s"),
    "mtLMNN": (_BLACK, "^"),
    "PA": (_BLACK, "X"),
    "POLA": (_BLACK, "P"),
    "all features": (_BLACK, "o"),
    "ITML": (_OLIVE, "s"),
    "CSFS": (_OLIVE, "o"),
    "OnlineITML": (_OCHRE, "o"),
    "LEGO": (_LIME, ">"),
    "MCML": (_BROWN, "v"),
    "RCA": (_PURPLE, "PX"),
    "IROS": (_PURPLE, "s"),
}
#: Colours of methods without a family, in the order in which they are listed, and marks that no family has.
_OTHERS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK)
_OTHER_MARKS = "ph8"
#: Lines of the members of a family.
LINES = ("-", "--", ":", "-.")
#: Lines by the end of the name, in every figure: PAI+ and PAI-, SORS-I and -II.
_LINE_OF = {
    "": "-",
    "+": "-",
    "-I": "-",
    "-": "--",
    "-II": "--",
    ", average X": "-",
    ", last X": ":",
    ", gradient as printed": "--",
    ", average W": "-",
    ", last W": "--",
    ", W-bar": "-",
    " (iter)": "--",
    ", neither bound nor penalty, last X": "-.",
    ", m 617": "-",
    ", m 126": "--",
    "(beta=inf)": "--",
    "(gamma=0)": ":",
    "(lambda=0)": "--",
    ", averaged": "--",
}
#: Lines of methods that lie on those of another family for a part of a figure.
_OWN_LINE = {"PALS": "--", "PA-I": "--"}
#: The mark of printed numbers, which no method has.
PRINTED_MARK = "*"


class Style(NamedTuple):
    """How a method looks in every figure."""

    colour: str
    line: str
    marker: str


def style_of(method: str, present: Sequence[str] = ()) -> Style:
    """Colour by family; line and mark by the end of the name, or by the place among those present.

    A method without a family has a colour and a mark by its place among those.

    Examples
    --------
    >>> style_of("SORS-I").colour == style_of("SORS-II").colour != style_of("AdaSORS-I").colour
    True
    >>> both = ("SORS-I", "SORS-II")
    >>> style_of("SORS-I", both)[1:] == style_of("SORS-II", both)[1:]
    False
    >>> style_of("PA-I-") == style_of("PAI-")
    True
    >>> others = ("this", "that")
    >>> style_of("this", others).colour == style_of("that", others).colour
    False
    """
    family = family_of(method)
    members = sorted({name for name in (*present, method) if family_of(name) == family})
    fixed = {name: line for name in members if (line := _LINE_OF.get(_end(name)))}
    free = [line for line in LINES if line not in fixed.values()] or list(LINES)
    others = [name for name in members if name not in fixed]
    line = fixed[method] if method in fixed else free[others.index(method) % len(free)]
    if family in _FAMILIES:
        colour, marks = _FAMILIES[family]
        mark = marks[LINES.index(line) % len(marks)]
        return Style(colour, _OWN_LINE.get(method, line), mark)
    strangers = [name for name in (*present, method) if family_of(name) not in _FAMILIES]
    number = strangers.index(method)
    mark = _OTHER_MARKS[number % len(_OTHER_MARKS)]
    return Style(_OTHERS[number % len(_OTHERS)], line, mark)


def family_of(method: str) -> str:
    """The longest family name that the method's name begins with; its own name if there is none.

    Examples
    --------
    >>> family_of("AdaSORS-II"), family_of("PA-II-"), family_of("Osiris")
    ('AdaSORS', 'PAII', 'Osiris')
    """
    fitting = [name for name in _FAMILIES if _plain(method).startswith(name)]
    return max(fitting, key=len, default=method)


def _end(method: str) -> str:
    """What follows the family in the name."""
    return _plain(method).removeprefix(family_of(method))


def _plain(method: str) -> str:
    """PA-I and PA-II are also written PAI and PAII."""
    return method.replace("PA-I", "PAI")
