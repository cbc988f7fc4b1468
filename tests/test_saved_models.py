"""Models saved in file format version 1 load, score and go on learning as they did when they were written.

`tests/models` has a file of every kind of model, the data they were learnt from (data.npz), and what they
scored (expected.json): right after loading, and after learning from the rest of the stream.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors import safe_open
from safetensors.numpy import save_file

import simstream
from simstream import persistence

FOLDER = Path(__file__).parent / "models"
DATA = np.load(FOLDER / "data.npz", allow_pickle=False)
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
ONLINE = [name for name, case in EXPECTED.items() if case["learns"] in ("triplets", "pairs")]
WRAPPERS = [name for name, case in EXPECTED.items() if case["learns"] == "labels"]


def load(name):
    items = sp.csr_matrix(DATA["S"]) if EXPECTED[name]["sparse"] else DATA["X"]
    path = FOLDER / f"{name}.safetensors"
    return simstream.load(path, preprocessor=None if name in WRAPPERS else items)


def go_on(name, model):
    """Learn from the part of the stream that came after saving."""
    case = EXPECTED[name]
    if case["learns"] == "pairs":
        return model.partial_fit(DATA["pairs"][250:], DATA["labels"][250:])
    triplets, tasks = DATA["triplets"][250:], case["tasks"][250:]
    return model.partial_fit(triplets, tasks=tasks) if tasks else model.partial_fit(triplets)


def scores(name, model):
    if name in WRAPPERS:
        return model.learner_.score_items(DATA["X"][:2], DATA["X"][:10]).ravel()
    return model.pair_score(DATA["pairs"][:20])


def close(name, got, expected):
    """Equal to rounding: BLAS sums in another order on another machine."""
    tolerance = 1e-3 if "float32" in name else 1e-6
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


def content(path):
    """Header and arrays of a file, the version of the library left out."""
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["simstream"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if (
        "state.numbers" in arrays and "state.indptr" in arrays
    ):  # hash tables keep the entries of a row in no order
        rows = np.repeat(
            np.arange(len(arrays["state.indptr"]) - 1), np.diff(arrays["state.indptr"])
        )
        order = np.lexsort((arrays["state.indices"], rows))
        arrays |= {name: arrays[name][order] for name in ("state.indices", "state.numbers")}
    return header["model"], arrays


def same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


#: The algorithms of the release that wrote the files; later ones have no file of version 1.
RELEASED = {
    "AROMA",
    "AdaSORS",
    "Dot",
    "Euclidean",
    "ITML",
    "LEGO",
    "LMNN",
    "Loreta",
    "MCML",
    "MultiTaskLMNN",
    "OASIS",
    "OGD",
    "OGRSL",
    "OMLLR",
    "OMTRSL",
    "OSLLRGS",
    "OSTRSL",
    "OnlineITML",
    "PAMetric",
    "POLA",
    "RCA",
    "RDML",
    "SDCA",
    "SORS",
}


def test_there_is_a_file_of_every_kind():
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == set(EXPECTED)
    saved = {content(FOLDER / f"{name}.safetensors")[0]["class"] for name in EXPECTED}
    given = {"Bilinear", "Mahalanobis", "FromLabels"}
    assert saved == given | RELEASED


@pytest.mark.parametrize("name", EXPECTED)
def test_a_saved_model_scores_as_it_did(name):
    case, model = EXPECTED[name], load(name)
    close(name, scores(name, model), case["before"])
    if "threshold" in case:
        close(name, model.threshold_, case["threshold"])
    if "predict" in case:
        assert model.predict(DATA["X"][:20]).tolist() == case["predict"]


@pytest.mark.parametrize("name", ONLINE)
def test_a_saved_model_goes_on_learning_as_it_did(name):
    close(name, scores(name, go_on(name, load(name))), EXPECTED[name]["after"])


@pytest.mark.parametrize("name", EXPECTED)
def test_saving_again_loses_nothing(name, tmp_path):
    """Written in today's format, loaded and written once more: the same bits, and the same future."""
    model = load(name)
    model.save(tmp_path / "once")
    again = simstream.load(tmp_path / "once", preprocessor=getattr(model, "preprocessor", None))
    again.save(tmp_path / "twice")
    (first, arrays), (second, others) = content(tmp_path / "once"), content(tmp_path / "twice")
    assert first == second
    same_bits(arrays, others)
    if name in ONLINE:
        model, again = go_on(name, model), go_on(name, again)
    np.testing.assert_array_equal(scores(name, model), scores(name, again))


def version_1(name, path, **params):
    """A copy of a file with other parameters."""
    source = FOLDER / f"{name}.safetensors"
    with safe_open(source, framework="np") as file:
        header = json.loads(file.metadata()["simstream"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert header["format_version"] == 1
    header["model"]["params"] |= params
    text = json.dumps(header)
    metadata = {"simstream": text, "simstream_crc32": persistence._checksum(text, arrays)}
    save_file(arrays, path, metadata)
    return path


def test_a_block_size_that_had_no_effect_becomes_one(tmp_path):
    for given, kept in ((None, None), (1, 1), (64, 1)):
        model = simstream.load(version_1("sors-dense", tmp_path / "m", block_size=given))
        assert model.block_size == kept
    model = simstream.load(version_1("oasis-dense", tmp_path / "m", block_size=64))
    assert model.block_size == 64


def test_a_model_goes_on_with_the_gradient_it_was_made_with(tmp_path):
    """The gradient was a parameter in version 1; "printed" is what the paper has."""
    exact = load("osllrgs-avg-x")
    assert not hasattr(exact, "gradient")
    printed = simstream.load(
        version_1("osllrgs-avg-x", tmp_path / "m", gradient="printed"), preprocessor=DATA["X"]
    )
    np.testing.assert_array_equal(scores("osllrgs-avg-x", printed), scores("osllrgs-avg-x", exact))
    printed.save(tmp_path / "again")
    again = simstream.load(tmp_path / "again", preprocessor=DATA["X"])
    wrong = DATA["triplets"][:, [0, 2, 1]]  # the other way round: all of them are violated
    futures = [scores("", model.partial_fit(wrong)) for model in (printed, again, exact)]
    np.testing.assert_array_equal(futures[0], futures[1])
    assert not np.allclose(futures[0], futures[2])


LABELLED = DATA["X"][:20, :4], DATA["y"][:20]


@pytest.mark.parametrize(
    ("name", "block_size"), [("sors", 1), ("adasors", 1), ("aroma", 1), ("ogd", 7)]
)
def test_the_learner_of_labels_can_be_fitted_again(name, block_size):
    """They were saved with block_size=7, which only OGD heeds, after a `fit` with the same seed."""
    model = simstream.load(FOLDER / "labels" / f"{name}.safetensors")
    assert model.learner.block_size == model.learner_.block_size == block_size
    before = model.learner_.get_bilinear_matrix()
    after = model.fit(*LABELLED).learner_.get_bilinear_matrix()
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-9)
    assert np.abs(before - np.eye(len(before))).max() > 0.01, "something was learnt"


def test_the_printed_gradient_is_not_lost_without_a_word(tmp_path):
    with pytest.warns(UserWarning, match="exact gradient") as warned:
        model = simstream.load(FOLDER / "labels" / "osllrgs.safetensors")
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert not model.learner_._exact_gradient
    assert not model.partial_fit(*LABELLED).learner_._exact_gradient
    model.save(tmp_path / "again")
    assert not simstream.load(tmp_path / "again").learner_._exact_gradient
    assert model.fit(*LABELLED).learner_._exact_gradient


def test_files_that_do_not_say_how_pairs_are_drawn_go_on_drawing_from_all(tmp_path):
    for name in ("fromlabels-pametric", "itml"):
        model = load(name)
        assert model.similar_share is None
        model.save(tmp_path / name)
        assert simstream.load(tmp_path / name).similar_share is None
    X, y = DATA["X"], np.arange(len(DATA["X"])) % 2
    for share in (0.5, 0.3):
        model = simstream.ITML(similar_share=share, random_state=0, tol=10).fit(X, y)
        model.save(tmp_path / "itml")
        assert simstream.load(tmp_path / "itml").similar_share == share
