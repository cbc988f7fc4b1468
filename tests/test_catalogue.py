"""The catalogue: complete, and in agreement with the classes it is about."""

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

import simstream
from simstream import catalogue
from simstream.catalogue import ALGORITHMS, BILINEAR, DISTANCE, find

NAMES = [algorithm.name for algorithm in ALGORITHMS]


def test_every_public_estimator_that_learns_is_listed_and_nothing_else():
    public = {name: getattr(simstream, name) for name in simstream.__all__}
    learners = [
        name
        for name, found in public.items()
        # FromLabels draws for another learner, Adapter trusts others, Mahalanobis is given.
        if inspect.isclass(found) and hasattr(found, "natural_tuples")
    ]
    assert sorted(NAMES) == sorted(learners)
    assert len(set(NAMES)) == len(NAMES)
    for name, found in public.items():
        if inspect.isclass(found) and hasattr(found, "fit") and name not in NAMES:
            assert name in ("Adapter", "FromLabels", "OrdinalEmbedding")


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_what_is_said_is_what_the_class_does(algorithm):
    cls = algorithm.cls()
    assert cls.__name__ == algorithm.name
    assert algorithm.takes[0] == cls.natural_tuples
    assert algorithm.is_batch == (not hasattr(cls, "partial_fit"))
    if algorithm.is_batch:
        assert ("pairs" in algorithm.takes) == hasattr(cls, "fit_pairs")
    assert (algorithm.learns == BILINEAR) == (
        hasattr(cls, "get_bilinear_matrix") and algorithm.name != "Dot"
    )
    assert (algorithm.learns == DISTANCE) == (
        hasattr(cls, "pair_distance") and algorithm.name != "Euclidean"
    )
    assert algorithm.summary() == cls.__doc__.strip().splitlines()[0]
    assert "\n" not in algorithm.update


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_it_takes_the_tuples_that_are_listed(algorithm):
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    items = rng.normal(size=(30, 4)) + labels[:, None]
    drawn = {
        "labels": (items, labels),
        "triplets": (simstream.TripletSampler(labels, 0).draw(50),),
        "lists": (simstream.TripletSampler(labels, 0).draw_lists(50, 4),),
        "pairs": simstream.PairSampler(labels, 0).draw(50),
    }
    for kind in algorithm.takes:
        learner = algorithm.cls()(preprocessor=items)
        fit = (
            learner.fit_pairs if hasattr(learner, "fit_pairs") and kind != "labels" else learner.fit
        )
        fit(*drawn[kind])
        assert learner.score_items(items[:2], items).shape == (2, 30)
    if "triplets" in algorithm.takes and "pairs" not in algorithm.takes:
        with pytest.raises(ValueError, match="triplets"):
            algorithm.cls()(preprocessor=items).fit(*drawn["pairs"])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_papers_are_those_of_the_docstrings(algorithm):
    text = " ".join(inspect.getdoc(algorithm.cls()).split())
    assert algorithm.paper in text
    if algorithm.name in ("Dot", "Euclidean"):
        assert algorithm.paper == ""
    else:  # authors, title, where and when
        assert re.fullmatch(r"[A-Z].*\. .+\. .+ (19|20)\d\d", algorithm.paper)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_every_parameter_has_its_default_and_its_text(algorithm):
    signature = inspect.signature(algorithm.cls()).parameters
    found = algorithm.parameters()
    assert [parameter.name for parameter in found] == list(signature)
    for parameter in found:
        assert parameter.default == signature[parameter.name].default
        documented = f"{parameter.name} : " in algorithm.cls().__doc__ or parameter.name in (
            "lower",
            "upper",
        )
        assert bool(parameter.type) == documented


def test_texts_of_parameters():
    lego = {parameter.name: parameter for parameter in find("lego").parameters()}
    assert lego["eta"].text == "Step size."
    assert lego["lower"].text == lego["upper"].text != ""
    assert "5th and the 95th percentile" in lego["upper"].text
    assert lego["dtype"].type == '"float32" or "float64", optional'
    assert lego["preprocessor"].text == (
        "Items that row numbers refer to. A function gets an array of keys, each once, and "
        "returns their rows."
    )


def test_indentation_does_not_matter():
    """From Python 3.13 on the compiler strips it, before the shared parts are pasted in."""
    text = "One.\n\nParameters\n----------\na : int\n    First: of two\n    lines.\n"
    text += "    b, c : int\n        Both.\n        Not : a name.\n\n"
    text += "Attributes\n----------\nd : int\n    Learnt.\n"
    found = catalogue._parameter_texts(text, {"a", "b", "c", "d"})
    assert found == {
        "a": ("int", "First: of two lines."),
        "b": ("int", "Both. Not : a name."),
        "c": ("int", "Both. Not : a name."),
    }


def test_find():
    assert find("OnlineITML") is find("onlineitml")
    assert find("itml").input == "labels, pairs or triplets"
    assert find("oasis").input == "triplets"
    with pytest.raises(KeyError):
        find("unheard")


def test_importing_it_is_light():
    code = "import sys, simstream.catalogue; assert not {'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
