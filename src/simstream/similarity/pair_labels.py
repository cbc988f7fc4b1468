"""The labels of pairs as they are given: -1 and +1, 0 and 1, or False and True."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import ClassifierTags

from ..data.comparisons import PairClasses
from ..validation import is_sign, plain_labels

#: What is answered where no label has been seen: dissimilar, similar.
SIGNS: PairClasses = (-1, 1)

_NUMBERS = (int, float, np.integer, np.floating, np.bool_)


def pair_classifier_tags(tags: Any) -> Any:
    """Tags of an estimator that tells similar pairs from dissimilar ones, so that ranking scorers take it."""
    tags.estimator_type = "classifier"
    tags.classifier_tags = ClassifierTags(multi_class=False)
    return tags


def given_classes(y: Any) -> PairClasses | None:
    """The two labels that checked labels of pairs are of; None for 1 alone, which all numbers have.

    Examples
    --------
    >>> given_classes([1, 0, 1]), given_classes([True, True]), given_classes([1, 1])
    ((0, 1), (False, True), None)
    """
    labels = plain_labels(y)
    if labels.dtype.kind == "b":
        return (False, True)
    lowest = int(labels.min())
    return None if lowest == 1 else (lowest, 1)


def known_classes(known: PairClasses | None, given: PairClasses | None) -> PairClasses | None:
    """The labels to answer in after further pairs: those known before, or the ones that were given.

    -1 and +1 are understood after all others: samplers and files have them. 0 and False mean the same. After
    -1, they are refused: who gives them would expect them as answers.
    """
    if known is None or given is None:
        return given if known is None else known
    if known == SIGNS != given:
        raise ValueError(f"y: expected labels -1 and +1, as before, got {given[0]}")
    return known


def is_label(y: Any, classes: PairClasses | None) -> bool:
    """Whether this is a number, and one of the labels; where they are not known, +1 or -1."""
    if classes is None:
        return is_sign(y)
    return isinstance(y, _NUMBERS) and (y == 1 or y == classes[0])


def saved_classes(header: dict[str, Any]) -> PairClasses | None:
    """The labels in the header of a file; None where it has none."""
    saved = header.get("classes")
    if saved is None:
        return None
    saved = tuple(saved) if isinstance(saved, (list, tuple)) else saved
    if saved not in (SIGNS, (0, 1)):  # which (False, True) equals
        raise ValueError(f"classes: expected the two labels of pairs, got {saved!r}")
    return saved
