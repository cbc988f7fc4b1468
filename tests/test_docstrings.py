"""The test collection of docstrings: what is an item, what is a link, what is left in the texts."""

import hashlib
import importlib
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

from simstream.datasets import load_see_also
from simstream.datasets.docstrings import _mentioned, _resolve, _without_links, _words


@pytest.fixture(scope="module")
def corpus():
    return load_see_also()


def named(name):
    """The object of that full name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def links_of(corpus, name):
    row = corpus.names.index(name)
    return {corpus.names[item] for item in corpus.links[corpus.links[:, 0] == row, 1]}


def test_size(corpus):
    assert 2200 < len(corpus.names) < 4000
    assert 3500 < len(corpus.links) < 8000
    assert len(corpus.texts) == corpus.vectors.shape[0] == len(corpus.names)
    assert corpus.vectors.shape[1] == 10_000
    assert set(corpus.versions) == {"numpy", "scipy", "sklearn"}


def test_an_object_is_one_item_under_its_shortest_name(corpus):
    assert list(corpus.names) == sorted(set(corpus.names))
    objects = [named(name) for name in corpus.names]
    assert len({id(one) for one in objects}) == len(objects)
    assert len({inspect.getdoc(one) for one in objects}) == len(objects)
    assert "numpy.absolute" in corpus.names  # not numpy.abs, which is the same function
    assert "numpy.abs" not in corpus.names
    assert not [name for name in corpus.names if "._" in name or ".tests." in name]


def test_links_are_what_the_authors_wrote(corpus):
    assert links_of(corpus, "numpy.linalg.qr") == {"scipy.linalg.qr", "scipy.linalg.rq"}
    assert {"scipy.linalg.lu", "scipy.linalg.lu_solve"} <= links_of(
        corpus, "scipy.linalg.lu_factor"
    )
    assert "sklearn.linear_model.RidgeCV" in links_of(corpus, "sklearn.linear_model.Ridge")
    absolute = links_of(corpus, "numpy.fabs")
    assert absolute == {"numpy.absolute"}  # written as "absolute"
    for query, item in corpus.links[:: len(corpus.links) // 200]:
        docstring = inspect.getdoc(named(corpus.names[query]))
        section = re.split(r"\nsee also\n", docstring, maxsplit=1, flags=re.IGNORECASE)[1]
        words = {word.rpartition(".")[2] for word in re.findall(r"[\w.]+", section)}
        target = named(corpus.names[item])
        own_names = {target.__name__, corpus.names[item].rpartition(".")[2]}
        aliases = {name for name in words if vars(np).get(name) is target}
        assert words & (own_names | aliases), (corpus.names[query], corpus.names[item])


def test_links_are_different_and_never_to_itself(corpus):
    assert (corpus.links[:, 0] != corpus.links[:, 1]).all()
    assert len(np.unique(corpus.links, axis=0)) == len(corpus.links)
    assert corpus.links.min() >= 0
    assert corpus.links.max() < len(corpus.names)


def test_texts_hold_no_links(corpus):
    assert not [text for text in corpus.texts if "see also" in text.lower() or "seealso" in text]
    text = corpus.texts[corpus.names.index("scipy.linalg.lu_factor")]
    assert text.startswith("Compute pivoted LU decomposition")
    assert "lu_solve" not in text.split("Examples")[0]


def test_what_is_removed_from_a_docstring():
    docstring = """One line.

Text that stays, (see also `gone.one`). More of it. See also
`gone_two` and `gone.three` for that. And this.

.. seealso:: gone_four
    gone_five

Parameters
----------
x : array

See Also
--------
numpy.first, second : Something.
    With a note about third.
:func:`~scipy.fourth`: More.
fifth
fifth_and_a_half,
Prose without a name: about sixth.

Notes
-----
The end."""
    text, mentioned = _without_links(docstring)
    assert mentioned == ["numpy.first", "second", "scipy.fourth", "fifth", "fifth_and_a_half"]
    for word in ("gone", "first", "second", "third", "fourth", "fifth", "sixth", "See Also"):
        assert word not in text
    for part in (
        "One line.",
        "Text that stays",
        "More of it.",
        "And this.",
        "x : array",
        "The end.",
    ):
        assert part in text
    assert _without_links("No sections.") == ("No sections.", [])
    assert _mentioned("\n") == []


def test_names_are_looked_up_from_the_inside_out():
    rows = {
        "numpy.a": 0,
        "numpy.linalg.a": 1,
        "scipy.linalg.a": 2,
        "numpy.linalg.b": 3,
        "numpy.c": 4,
    }
    assert _resolve("a", "numpy.linalg.b", rows) == 1
    assert _resolve("a", "numpy.c", rows) == 0
    assert _resolve("c", "numpy.linalg.b", rows) == 4
    assert _resolve("linalg.a", "numpy.linalg.b", rows) == 1
    assert _resolve("np.linalg.a", "scipy.linalg.a", rows) == 1
    assert _resolve("b", "scipy.linalg.a", rows) is None


def test_identifiers_are_words():
    assert _words("RandomForestClassifier lu_factor FFTs x2 svd 12 1e05 a") == [
        *("random", "forest", "classifier", "lu", "factor"),
        *("ff", "ts", "x2", "svd"),
    ]


def test_vectors_have_length_one_and_a_given_type(corpus):
    assert corpus.vectors.dtype == np.float32
    np.testing.assert_allclose(corpus.vectors.multiply(corpus.vectors).sum(axis=1), 1, rtol=1e-5)
    small = load_see_also(500, dtype=np.float64)
    assert small.vectors.shape == (len(corpus.names), 500)
    assert small.vectors.dtype == np.float64
    with pytest.raises(ValueError, match="n_features"):
        load_see_also(0)


@pytest.mark.parametrize("seed", [0, 7])
def test_split_is_by_queries_and_forgets_reverses(corpus, seed):
    train, test = corpus.split(seed, 0.6)
    all_links = set(map(tuple, corpus.links.tolist()))
    learnt, asked = set(map(tuple, train.tolist())), set(map(tuple, test.tolist()))
    assert learnt | asked <= all_links
    assert not set(train[:, 0].tolist()) & set(test[:, 0].tolist())
    assert not {(b, a) for a, b in learnt} & asked
    missing = all_links - learnt - asked
    assert missing
    assert missing <= {(b, a) for a, b in learnt}
    share = len(set(train[:, 0].tolist())) / len(np.unique(corpus.links[:, 0]))
    assert share == pytest.approx(0.6, abs=0.001)
    again, _ = corpus.split(seed, 0.6)
    assert np.array_equal(again, train)
    assert not np.array_equal(corpus.split(seed + 1, 0.6)[0], train)


@pytest.mark.parametrize("share", [0, 1, -1, 2, float("nan")])
def test_split_refuses_shares_that_are_none(corpus, share):
    with pytest.raises(ValueError, match="train_share"):
        corpus.split(0, share)


def test_the_same_in_another_process(corpus):
    code = (
        "import hashlib; from simstream.datasets import load_see_also; c = load_see_also();"
        "print(hashlib.sha256(repr(c.names).encode() + c.links.tobytes() + c.vectors.data.tobytes()"
        " + c.vectors.indices.tobytes()).hexdigest())"
    )
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    parts = (corpus.links, corpus.vectors.data, corpus.vectors.indices)
    own = hashlib.sha256(repr(corpus.names).encode() + b"".join(p.tobytes() for p in parts))
    assert told.stdout.strip() == own.hexdigest()


def test_without_docstrings_a_clear_error():
    code = "from simstream.datasets import load_see_also; load_see_also()"
    told = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert told.returncode != 0
    assert "docstrings: expected Python to keep them, got python -OO" in told.stderr
