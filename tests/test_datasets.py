"""Data sets by name: where they come from, what is checked, and which rows preprocessing may use."""

import gzip
import hashlib
import json
import os
from urllib.error import URLError

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse
from sklearn.utils import Bunch

from simstream import OASIS, datasets
from simstream.cli import main
from simstream.data import FormatError
from simstream.datasets import DatasetMissingError, prepare

WINE = "wine.csv.gz"
NEWS = "tiny.svm.gz"


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch, request):
    if "real_folder" not in request.fixturenames:
        monkeypatch.delenv("SIMSTREAM_DATA", raising=False)


def write(folder, name, text):
    (folder / name).write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def folder(tmp_path):
    """One dense set that the table knows, a sparse one of its own, one without labels but triplets."""
    write(tmp_path, WINE, "1,2,0\n3,4,1\n5,6,1\n7,8,0\n")
    write(tmp_path, NEWS, "0 1:2 4:1\n2 2:1.5\n1 1:1\n")  # the last feature used is 4 of 6
    write(tmp_path, "zappos-cnn.csv.gz", "1,0\n0,1\n1,1\n")
    write(tmp_path, "judged.csv.gz", "0,2,1\n1,2,0\n")
    (tmp_path / "who.txt").write_text("7\n7\n9\n9\n")
    index = {
        WINE: {
            "rows": 4,
            "features": 2,
            "classes": 2,
            "class_counts": [2, 2],
            "class_labels": ["red", "white"],
            "splits": {"train": [0, 3], "test": [3, 4]},
            "groups_file": "who.txt",
            "feature_ranges": {"acids": [1, 2]},
        },
        NEWS: {
            "rows": 3,
            "features": 6,
            "classes": 3,
            "class_groups": {"sci": [0, 2]},
        },
        "zappos-cnn.csv.gz": {"rows": 3, "features": 2, "classes": 0},
        "judged.csv.gz": {"rows": 2, "items_file": "zappos-cnn.csv.gz"},
    }
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def change_index(folder, file, **facts):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index[file] |= facts
    path.write_text(json.dumps(index))


# -- a folder -------------------------------------------------------------------------------------


def test_a_dense_set_with_all_that_its_index_says(folder):
    wine = datasets.load("wine", data_dir=folder)
    assert wine.items.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert wine.items.dtype == np.float64
    assert wine.labels.tolist() == [0, 1, 1, 0]
    assert wine.class_names == ("red", "white")
    assert wine.n_classes == 2
    assert {name: rows.tolist() for name, rows in wine.splits.items()} == {
        "train": [0, 1, 2],
        "test": [3],
    }
    assert wine.groups.tolist() == [7, 7, 9, 9]
    assert wine.tasks().tolist() == ["7", "7", "9", "9"]
    assert wine.tasks([9]).tolist() == ["", "", "9", "9"]
    assert wine.feature_ranges == {"acids": (1, 2)}
    assert wine.digest == hashlib.sha256((folder / WINE).read_bytes()).hexdigest()
    assert wine.source == "folder"


def test_a_set_that_is_not_the_listed_one_says_so(folder):
    wine = datasets.load("wine", data_dir=folder)
    assert wine.verdict == "variant"
    assert "4 rows instead of 178, 2 features instead of 13, 2 classes instead of 3" in wine.note


def test_a_sparse_set_of_the_folder_alone_has_all_its_features(folder):
    tiny = datasets.load("tiny", data_dir=folder, dtype="float32")
    assert sparse.issparse(tiny.items)
    assert tiny.items.shape == (3, 6)
    assert tiny.items.dtype == np.float32
    assert tiny.items.toarray()[0].tolist() == [2, 0, 0, 1, 0, 0]
    assert tiny.verdict == "extra"
    assert tiny.class_names == ("0", "1", "2")
    assert tiny.tasks().tolist() == ["sci", "sci", ""]
    with pytest.raises(ValueError, match=r"expected some of sci, got \['rec'\]"):
        tiny.tasks(["rec"])


def test_groups_of_rows_by_ranges(folder):
    change_index(folder, NEWS, groups={"amazon": [0, 1], "dslr": [1, 3]})
    assert datasets.load("tiny", data_dir=folder).tasks().tolist() == ["amazon", "dslr", "dslr"]


def test_triplets_without_labels(folder):
    shoes = datasets.load("zappos", data_dir=folder)
    assert shoes.labels is None
    assert shoes.n_classes == 0
    assert shoes.items.shape == (3, 2)
    assert shoes.triplets.tolist() == [[0, 2, 1], [1, 2, 0]]
    assert shoes.tasks() is None


def test_the_variable_names_the_folder(folder, monkeypatch):
    assert datasets.load("wine").source == "sklearn"
    monkeypatch.setenv("SIMSTREAM_DATA", str(folder))
    assert datasets.load("wine").source == "folder"
    present = datasets.available()
    assert present["wine"] == present["tiny"] == present["zappos"] == "folder"
    assert present["iris"] == "sklearn"
    assert "judged" not in present
    assert "isolet" not in present
    monkeypatch.setenv("SIMSTREAM_DATA", str(folder / "absent"))
    with pytest.raises(FileNotFoundError, match="SIMSTREAM_DATA: expected a folder"):
        datasets.load("wine")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"rows": 5}, "does not match index.json: rows 4 instead of 5"),
        ({"classes": 3, "rows": 9}, "rows 4 instead of 9; classes 2 instead of 3"),
        ({"class_counts": [3, 1]}, r"class_counts \[2, 2\] instead of \[3, 1\]"),
        ({"features": "two"}, "expected a whole number of features for wine.csv.gz, got 'two'"),
        ({"splits": {"train": [0, 5]}}, "bad range 'train'.* up to 4, got"),
        ({"class_labels": ["red"]}, "expected 2 class names in index.json, got 1"),
        ({"features": 3}, "features 2 instead of 3"),
    ],
)
def test_a_file_that_is_not_what_its_index_says(folder, facts, message):
    change_index(folder, WINE, **facts)
    with pytest.raises(FormatError, match=message):
        datasets.load("wine", data_dir=folder)


def test_features_beyond_the_index(folder):
    change_index(folder, NEWS, features=3)
    with pytest.raises(FormatError, match="n_features=3, got 3"):
        datasets.load("tiny", data_dir=folder)


def test_labels_with_a_gap(folder):
    write(folder, NEWS, "0 1:2\n3 2:1.5\n1 1:1\n")
    with pytest.raises(FormatError, match=r"every integer from 0 to 2, got \[0, 1, 3\]"):
        datasets.load("tiny", data_dir=folder)


def test_groups_and_triplets_of_the_wrong_number(folder):
    (folder / "who.txt").write_text("7\n7\n")
    with pytest.raises(FormatError, match="each of 4 rows, got 2"):
        datasets.load("wine", data_dir=folder)
    change_index(folder, "judged.csv.gz", rows=7)
    with pytest.raises(FormatError, match="rows 2 instead of 7"):
        datasets.load("zappos", data_dir=folder)


def test_an_index_that_is_none(folder):
    (folder / "index.json").write_text("{")
    with pytest.raises(FormatError, match="expected JSON"):
        datasets.load("wine", data_dir=folder)
    (folder / "index.json").write_text("[1]")
    with pytest.raises(FormatError, match="expected an object of objects"):
        datasets.load("wine", data_dir=folder)


def test_without_an_index_the_table_gives_the_features(tmp_path):
    rows = "".join(f"{label} 1:1\n" for label in (0, 1, 2))
    write(tmp_path, "protein-val.svm.gz", rows)
    protein = datasets.load("protein-val", data_dir=tmp_path)
    assert protein.items.shape == (3, 357)
    assert "3 rows instead of 2871" in protein.note


# -- what is not here -----------------------------------------------------------------------------


def test_a_missing_set_says_how_to_get_it(tmp_path):
    with pytest.raises(DatasetMissingError) as raised:
        datasets.load("isolet")
    for part in ("isolet.csv.gz", "SIMSTREAM_DATA", "fetch_openml(name='isolet'", "download=True"):
        assert part in str(raised.value)
    with pytest.raises(DatasetMissingError) as raised:
        datasets.load("chromo", data_dir=tmp_path, download=True)
    assert str(tmp_path) in str(raised.value)
    assert "download" not in str(raised.value)


def test_an_unknown_name_and_type(folder):
    with pytest.raises(ValueError, match=r"no such data set; expected isolet .*got 'isolett'"):
        datasets.load("isolett")
    with pytest.raises(ValueError, match="expected tiny"):
        datasets.load("tinyy", data_dir=folder)
    with pytest.raises(ValueError, match="no such data set"):
        datasets.facts("xxxxxxxx")
    with pytest.raises(ValueError, match="dtype: expected float32 or float64, got int64"):
        datasets.load("wine", dtype=int)


# -- bundled and generated ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer", "iris"])
def test_bundled_sets_are_as_listed(name):
    found, facts = datasets.load(name, dtype="float32"), datasets.facts(name)
    assert found.items.shape == (facts.rows, facts.features)
    assert found.items.dtype == np.float32
    assert np.unique(found.labels).tolist() == list(range(facts.classes))
    assert len(found.class_names) == facts.classes
    assert (found.source, found.verdict) == ("sklearn", facts.verdict)


@pytest.mark.parametrize("kind", ["projected", "embedded"])
def test_low_rank_data(kind):
    made = datasets.make_low_rank(kind, seed=3)
    assert made.items.shape == (400, 20)
    assert np.bincount(made.labels).tolist() == [200, 200]
    train, test = made.splits["train"], made.splits["test"]
    assert np.bincount(made.labels[train]).tolist() == [60, 60]
    assert sorted([*train, *test]) == list(range(400))
    assert np.array_equal(made.items, datasets.make_low_rank(kind, seed=3).items)
    assert not np.array_equal(made.items, datasets.make_low_rank(kind, seed=4).items)
    assert np.array_equal(
        datasets.load(f"synthetic-{kind}").items, datasets.make_low_rank(kind, seed=0).items
    )


def test_only_the_informative_features_tell_the_classes_apart():
    """The means are 3 apart; noise of 200 points a class moves a difference by about 0.1."""
    for seed in range(5):
        made = datasets.make_low_rank("embedded", seed)
        difference = made.items[made.labels == 1].mean(0) - made.items[made.labels == 0].mean(0)
        others = np.setdiff1d(np.arange(20), made.informative)
        assert np.linalg.norm(difference[made.informative]) == pytest.approx(3, abs=0.7)
        assert np.abs(difference[others]).max() < 0.5
        assert made.items[:, others].std() == pytest.approx(1, abs=0.05)
    projected = datasets.make_low_rank("projected", 0)
    assert np.linalg.matrix_rank(projected.items) == 5


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="kind"):
        datasets.make_low_rank("flat")


# -- fetchers, without the network ----------------------------------------------------------------


def test_openml_drops_nominal_features_and_orders_classes_by_value(monkeypatch):
    asked = {}

    def fetch_openml(**arguments):
        asked.update(arguments)
        return Bunch(
            data=np.column_stack([np.zeros(990), np.arange(9900.0).reshape(990, 10)]),
            target=np.array([str(row % 11) for row in range(990)], dtype=object),
            feature_names=["Sex", *(f"Feature_{k}" for k in range(10))],
            categories={"Sex": ["Male", "Female"]},
        )

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    vowel = datasets.load("vowel", download=True)
    assert (asked["name"], asked["version"]) == ("vowel", 2)
    assert vowel.items[1].tolist() == list(range(10, 20))
    assert vowel.class_names == tuple(map(str, range(11)))
    assert vowel.labels[:12].tolist() == [*range(11), 0]
    assert (vowel.source, vowel.verdict) == ("openml", "variant")


def test_openml_leaves_out_incomplete_rows_and_refuses_another_set(monkeypatch):
    items = np.ones((699, 9))
    items[:16, 3] = np.nan
    target = np.array(["benign", "malignant"] * 349 + ["benign"], dtype=object)
    monkeypatch.setattr(
        "sklearn.datasets.fetch_openml", lambda **_: Bunch(data=items, target=target, categories={})
    )
    breast = datasets.load("breast", download=True)
    assert breast.items.shape == (683, 9)
    assert breast.verdict == "exact"
    items[16, 0] = np.nan
    with pytest.raises(FormatError, match="682 rows instead of 683"):
        datasets.load("breast", download=True)


def test_openml_keeps_the_rows_asked_for(monkeypatch):
    rows = np.arange(70000)
    monkeypatch.setattr(
        "sklearn.datasets.fetch_openml",
        lambda **_: Bunch(
            data=sparse.csr_matrix((rows + 1.0, rows % 784, np.arange(70001)), (70000, 784)),
            target=(rows % 10).astype(str).astype(object),
        ),
    )
    digits = datasets.load("mnist-t10k", download=True)
    assert digits.items.shape == (10000, 784)
    assert digits.items[0].data.tolist() == [60001]
    assert digits.note == ""


def test_newsgroups_have_splits_and_tasks(monkeypatch):
    groups = ["alt.atheism", *(f"comp.{k}" for k in range(5)), "misc.forsale"]
    groups += [*(f"rec.{k}" for k in range(4)), *(f"sci.{k}" for k in range(4))]
    groups += ["soc.religion.christian", *(f"talk.{k}" for k in range(4))]

    def fetch(subset, normalize):
        assert not normalize
        n = {"train": 40, "test": 20}[subset]
        return Bunch(
            data=sparse.csr_matrix(np.full((n, 3), n)),
            target=np.arange(n) % 20,
            target_names=groups,
        )

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups_vectorized", fetch)
    news = datasets.load("20news", download=True)
    assert news.items.shape == (60, 3)
    assert news.items[news.splits["test"]].toarray().min() == 20
    top = [groups[label].partition(".")[0] for label in news.labels]
    expected = [name if name in ("comp", "rec", "sci", "talk") else "" for name in top]
    assert news.tasks().tolist() == expected
    assert news.source == "sklearn"
    assert "60 rows instead of 18821" in news.note


def test_rcv1_keeps_documents_of_one_second_level_topic(monkeypatch):
    topics = ["C15", "C151", "C1511", "CCAT", "E12", "ECAT", "GCAT", "GSPO"]
    target = np.array(
        [
            [1, 1, 1, 1, 0, 0, 0, 0],  # C15, by three levels
            [0, 1, 0, 1, 0, 0, 0, 0],  # C15, by its child alone
            [1, 0, 0, 1, 1, 1, 0, 0],  # two topics
            [0, 0, 0, 1, 0, 0, 0, 0],  # none of the second level
            [0, 0, 0, 0, 0, 0, 1, 1],  # GSPO
        ]
    )
    monkeypatch.setattr(
        "sklearn.datasets.fetch_rcv1",
        lambda subset: Bunch(
            data=sparse.csr_matrix(np.arange(1.0, 6)[:, None]),
            target=sparse.csr_matrix(target),
            target_names=np.array(topics, dtype=object),
        ),
    )
    rcv1 = datasets.load("rcv1", download=True)
    assert rcv1.items.toarray().ravel().tolist() == [1, 2, 5]
    assert [rcv1.class_names[label] for label in rcv1.labels] == ["C15", "C15", "GSPO"]
    assert rcv1.verdict == "variant"


def test_a_download_that_fails(monkeypatch):
    def offline(**_):
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    message = r"isolet: download with fetch_openml.* failed: .*no network"
    with pytest.raises(DatasetMissingError, match=message):
        datasets.load("isolet", download=True)


# -- the table ------------------------------------------------------------------------------------


def test_the_table_is_consistent():
    assert len(datasets.names()) == len(set(datasets.names()))
    for name in datasets.names():
        facts = datasets.facts(name)
        assert facts.verdict in datasets.VERDICTS, name
        assert facts.file or facts.bundled or facts.generated, name
        assert facts.how_to_get, name
        assert facts.features > 0, name
        assert facts.note or facts.verdict not in ("variant", "partial", "stand-in"), name
        assert set(facts.papers) <= {"P0", "P1", "P2", "P3", "P4"}, name
        if facts.fetch is not None:
            assert facts.fetch["verdict"] in datasets.VERDICTS, name
            assert facts.fetch.get("note") or facts.fetch["verdict"] in ("exact", "extra"), name


# -- preprocessing --------------------------------------------------------------------------------

ITEMS = np.random.default_rng(0).normal(3.0, 2.0, (40, 6))
COUNTS = sparse.random(50, 12, 0.4, format="csr", random_state=0)
COUNTS.data = np.ceil(COUNTS.data * 5)


@pytest.mark.parametrize(
    "how", ["centred", "standardised", "[0,1]", "pca:0.9", "pca:3", "top-terms:3"]
)
def test_statistics_come_from_the_training_rows_only(how):
    """Other rows may be anything at all: the training rows are transformed as if they were alone."""
    train = np.arange(0, 40, 2)
    items = np.abs(ITEMS)
    changed = items.copy()
    changed[1::2] *= 1000
    alone = prepare(items[train], how).items
    np.testing.assert_allclose(prepare(changed, how, fit_rows=train).items[train], alone)
    assert not np.allclose(prepare(changed, how).items[train][:, :3], alone[:, :3])


def test_tf_idf_takes_document_frequencies_from_the_training_rows_only():
    train = np.arange(25)
    changed = sparse.vstack([COUNTS[:25], sparse.csr_matrix(np.eye(25, 12))], format="csr")
    alone = prepare(COUNTS[:25], "tf-idf").items.toarray()
    np.testing.assert_allclose(prepare(changed, "tf-idf", train).items[:25].toarray(), alone)
    assert not np.allclose(prepare(changed, "tf-idf").items[:25].toarray(), alone)


def test_standardised_and_range_mean_what_they_say():
    rows = slice(0, 20)
    items = prepare(ITEMS, "standardised", rows).items
    np.testing.assert_allclose(items[rows].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(items[rows].std(0), 1)
    items = prepare(ITEMS, "[0,1]", np.arange(40) < 20).items
    assert items[rows].min(0).tolist() == [0] * 6
    np.testing.assert_allclose(items[rows].max(0), 1)
    assert items.min() < 0  # a row that was not fitted may leave the range


def test_constant_features_do_no_harm():
    items = np.column_stack([ITEMS, np.full(40, 7.0)])
    assert prepare(items, "[0,1]").items[:, -1].tolist() == [0] * 40
    assert prepare(items, "standardised").items[:, -1].tolist() == [0] * 40


def test_tf_idf_by_hand():
    """Terms in 1 and in 2 of 2 documents: idf log(3/2)+1 and 1; then length one."""
    row = np.array([2 * (np.log(1.5) + 1), 1.0])
    items = prepare(np.array([[2.0, 1.0], [0.0, 1.0]]), "tf-idf").items
    np.testing.assert_allclose(items, [row / np.linalg.norm(row), [0, 1]])


def test_top_terms_keeps_the_order_of_features():
    items = np.array([[1, 9, 0, 4, 4], [1, 0, 0, 0, 0]])
    assert prepare(items, "top-terms:2").items.tolist() == [[9, 4], [0, 0]]
    assert prepare(items, "top-terms:3").items.tolist() == [[9, 4, 4], [0, 0, 0]]


@pytest.mark.parametrize(
    "how", ["unit-norm", "[0,1]", "tf-idf", "top-terms:5", "as-is", "constant:-2"]
)
def test_sparse_stays_sparse_and_equals_dense(how):
    found = prepare(COUNTS, how, range(30))
    assert found.items.format == "csr"
    dense = prepare(COUNTS.toarray(), how, range(30)).items
    assert isinstance(dense, np.ndarray)
    np.testing.assert_allclose(found.items.toarray(), dense)


def test_pca_explains_the_share_asked_for():
    kept = prepare(ITEMS, "pca:0.8").items
    explained = kept.var(0).sum() / ITEMS.var(0).sum()
    assert explained >= 0.8
    assert kept[:, :-1].var(0).sum() / ITEMS.var(0).sum() < 0.8


def test_a_constant_is_one_more_feature():
    items = prepare(ITEMS, "constant:0.3").items
    np.testing.assert_array_equal(items[:, :-1], ITEMS)
    assert items[:, -1].tolist() == [0.3] * 40


def test_the_span_keeps_inner_products_and_what_is_learnt_from_them():
    wide = prepare(np.random.default_rng(1).normal(size=(7, 30)), "centred+unit-norm").items
    narrow = prepare(wide, "span").items
    assert narrow.shape == (7, 7)
    np.testing.assert_allclose(narrow @ narrow.T, wide @ wide.T, atol=1e-12)
    np.testing.assert_array_equal(prepare(ITEMS, "span").items, ITEMS)  # narrow already
    triplets = np.random.default_rng(2).permuted(np.tile(np.arange(7), (50, 1)), axis=1)[:, :3]
    margins = [
        OASIS(preprocessor=rows).fit(triplets).triplet_margin(triplets) for rows in (wide, narrow)
    ]
    np.testing.assert_allclose(*margins, atol=1e-9)
    assert np.abs(margins[0]).max() > 0.1


def test_steps_are_done_in_order_and_recorded():
    both = prepare(COUNTS, " top-terms:4 + unit-norm ", range(30))
    assert both.name == "top-terms:4+unit-norm"
    by_hand = prepare(prepare(COUNTS, "top-terms:4", range(30)).items, "unit-norm").items
    np.testing.assert_allclose(both.items.toarray(), by_hand.toarray())
    lengths = np.linalg.norm(both.items.toarray(), axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1)


def test_the_items_given_are_not_changed():
    dense, counts = ITEMS.copy(), COUNTS.copy()
    for how in ("unit-norm", "centred", "standardised", "[0,1]", "pca:2", "constant:1", "span"):
        prepare(dense, how)
    for how in ("unit-norm", "[0,1]", "tf-idf", "top-terms:3"):
        prepare(counts, how)
    assert np.array_equal(dense, ITEMS)
    assert (counts != COUNTS).nnz == 0


@pytest.mark.parametrize(
    ("items", "how", "message"),
    [
        (COUNTS, "standardised", "standardised would fill a sparse matrix of 50 x 12"),
        (COUNTS, "pca:2", "pca:2 would fill"),
        (COUNTS, "centred", "centred would fill"),
        (COUNTS, "span", "span would fill"),
        (ITEMS, "constant:x", "a number V, got 'constant:x'"),
        (ITEMS, "constant:inf", "a number V"),
        (-COUNTS, "[0,1]", "minimum is not 0 would fill"),
        (ITEMS, "tf-idf", "expected counts, which are not negative"),
        (ITEMS, "top-terms:2", "expected counts, which are not negative"),
        (COUNTS, "top-terms:13", "expected N at most 12"),
        (COUNTS, "top-terms:0", "N at least 1"),
        (COUNTS, "top-terms", "unknown preprocessing"),
        (ITEMS, "pca:1.5", "share between 0 and 1"),
        (ITEMS, "pca:x", "share between 0 and 1"),
        (ITEMS, "pca:7", "at most 6 components"),
        (ITEMS, "whitened", "expected one of as-is, unit-norm"),
        (ITEMS, "", "unknown preprocessing"),
        (ITEMS, "as-is+unit-norm", "'as-is' cannot be combined"),
    ],
)
def test_what_preprocessing_refuses(items, how, message):
    with pytest.raises(ValueError, match=message):
        prepare(items, how)


@pytest.mark.parametrize("rows", [[], [40], np.zeros(40, bool), np.ones(39, bool)])
def test_rows_that_do_not_exist(rows):
    with pytest.raises(ValueError, match="fit_rows"):
        prepare(ITEMS, "standardised", rows)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_lists_what_is_here_and_how_to_get_the_rest(folder):
    runner = CliRunner()
    text = runner.invoke(main, ["datasets", "--data-dir", str(folder)], catch_exceptions=False)
    assert text.exit_code == 0
    words = " ".join(text.stdout.split())
    assert "wine 178 x 13 x 3 exact P1 wine folder" in words
    assert "sector 9,619 x 55,197 x 105 exact P0 Sector put sector.svm.gz into" in words
    assert "tiny" in words
    done = runner.invoke(main, ["datasets", "--json"], catch_exceptions=False)
    listed = {record["name"]: record for record in json.loads(done.stdout)}
    assert set(listed) == set(datasets.names())
    assert listed["iris"]["present"] == "sklearn"
    assert listed["isolet"]["present"] is None
    assert "fetch_openml(name='isolet', version=1)" in listed["isolet"]["how_to_get"]
    wrong = runner.invoke(main, ["datasets", "--data-dir", str(folder / "absent")])
    assert wrong.exit_code == 2
    assert "does not exist" in wrong.stderr


def test_the_command_says_where_it_looked(folder, tmp_path):
    def last(*given, variable=""):
        env = {"SIMSTREAM_DATA": str(variable)}
        done = CliRunner().invoke(main, ["datasets", *map(str, given)], env=env)
        return done.stdout.splitlines()[-1].partition("; ")[2]

    assert last() == "looked in no folder: set SIMSTREAM_DATA or give --data-dir"
    assert last(variable=folder) == f"looked in {folder}"
    assert last("--data-dir", tmp_path, variable=folder) == f"looked in {tmp_path}"


# -- the real data --------------------------------------------------------------------------------


@pytest.fixture
def real_folder():
    given = os.environ.get("SIMSTREAM_DATA")
    if not given:
        pytest.skip("SIMSTREAM_DATA is not set")
    return given


def test_every_set_of_the_data_folder_is_what_the_table_says(real_folder):
    here = [name for name, source in datasets.available().items() if source == "folder"]
    assert here
    for name in here:
        found, facts = datasets.load(name), datasets.facts(name)
        assert found.items.shape == (facts.rows, facts.features), name
        assert found.n_classes == facts.classes, name
        assert found.verdict == facts.verdict, name
        assert found.note == facts.note, name
        for rows in found.splits.values():
            assert 0 <= rows.min() <= rows.max() < facts.rows
        assert found.groups is None or len(found.groups) == facts.rows
        if name in ("news20", "20news"):
            tasks = found.tasks()
            for row in range(0, facts.rows, 97):
                top = found.class_names[found.labels[row]].partition(".")[0]
                assert tasks[row] == (top if top in ("comp", "rec", "sci", "talk") else "")
