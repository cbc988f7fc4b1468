"""Commands on items with ids: files that name items by ids, labels and texts in answers, a divided file."""

import json

import numpy as np
import pytest

import simstream
from commands import fail, succeed
from simstream import OASIS, TripletSampler
from simstream.data import read_items, read_pairs, read_triplets, write_items, write_triplets

N, D = 60, 8
rng = np.random.default_rng(0)
Y = np.arange(N) % 3
X = rng.normal(size=(N, D)) + 2 * np.eye(3, D)[Y]
IDS = [f"doc-{row}" for row in rng.permutation(N)]
KINDS = [("ant", "bee", "cat")[label] for label in Y]
TRIPLETS = TripletSampler(Y, 0).draw(200)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_items("docs.jsonl", X, KINDS, IDS)
    np.save("docs.npy", X)
    (tmp_path / "ids.txt").write_text("\n".join(IDS))
    write_triplets("rows.csv", TRIPLETS)
    lines = ["anchor,positive,negative", *(",".join(IDS[row] for row in t) for t in TRIPLETS)]
    (tmp_path / "named.csv").write_text("\n".join(lines))
    (tmp_path / "named.jsonl").write_text(
        "\n".join(json.dumps([IDS[row] for row in t]) for t in TRIPLETS)
    )
    np.save("named.npy", np.array(IDS)[TRIPLETS])
    return tmp_path


def matrix(*arguments):
    succeed("train", *arguments, "-o", "model.safetensors", "-q")
    return simstream.load("model.safetensors").get_bilinear_matrix()


def test_triplets_by_id_are_triplets_by_row(folder):
    expected = OASIS(preprocessor=X)
    expected.prepare()
    expected = expected.partial_fit(TRIPLETS).get_bilinear_matrix()
    for arguments in (
        ("docs.jsonl", "--triplets", "named.csv"),
        ("docs.jsonl", "--triplets", "named.jsonl"),
        ("docs.jsonl", "--triplets", "named.npy"),
        ("docs.jsonl", "--triplets", "rows.csv", "--by", "rows"),
        ("docs.npy", "--triplets", "rows.csv"),
        ("docs.npy", "--triplets", "named.csv", "--item-ids", "ids.txt"),
        ("docs.npy", "--triplets", "rows.csv", "--memory", "1kB"),
    ):
        np.testing.assert_array_equal(matrix(*arguments), expected, err_msg=str(arguments))
    by_id, by_row = (
        json.loads(
            succeed("evaluate", "model.safetensors", items, "--triplets", file, "--json").stdout
        )["results"]["learnt"]["triplet accuracy"]
        for items, file in (("docs.jsonl", "named.csv"), ("docs.npy", "rows.csv"))
    )
    assert by_id == by_row > 0.8


def test_queries_have_ids_of_their_own(folder):
    asked = [f"how to {row}?" for row in range(N)]
    write_items("queries.jsonl", X, ids=asked)
    lines = [json.dumps([asked[a], IDS[b], IDS[c]]) for a, b, c in TRIPLETS.tolist()]
    (folder / "by-query.jsonl").write_text("\n".join(lines))
    given = ("--queries", "queries.jsonl", "--triplets", "by-query.jsonl")
    expected = OASIS(preprocessor=(X, X))
    expected.prepare()
    expected.partial_fit(TRIPLETS)
    np.testing.assert_array_equal(matrix("docs.jsonl", *given), expected.get_bilinear_matrix())


def test_unknown_ids_are_one_error(folder):
    bad = ["anchor,positive,negative", f"{IDS[0]},{IDS[1]},{IDS[2]}", f"{IDS[0]},x,y", "z,x,w"]
    (folder / "bad.csv").write_text("\n".join(bad))
    train = ("train", "docs.jsonl", "-o", "new.safetensors")
    message = fail(1, *train, "--triplets", "bad.csv")
    assert "bad.csv, line 3: unknown items; expected ids of the items, got 4 unknown" in message
    assert "ids: 'x', 'y', 'z', ..." in message
    message = fail(1, *train, "--triplets", "rows.csv")
    assert "expected ids of the items, not row numbers, got 60 unknown ids" in message
    facts = succeed(*train, "--triplets", "bad.csv", "--on-error", "skip", "--json").stdout
    assert json.loads(facts)["n_bad_records"] == 2
    assert "has no ids" in fail(
        2, "train", "docs.npy", "-o", "m", "--triplets", "rows.csv", "--by", "ids"
    )
    assert "--item-ids requires" in fail(
        2, "train", "docs.jsonl", "-o", "m", "--item-ids", "ids.txt"
    )
    write_items("twice.jsonl", X, ids=["a", *IDS[1:-1], "a"])
    given = ("--triplets", "named.csv", "-o", "m")
    assert "an id twice; expected different ids, got 'a'" in fail(1, "train", "twice.jsonl", *given)
    write_items("twice.jsonl", X, KINDS, ids=[*IDS[:30], *IDS[:30]])  # learning from labels too
    message = fail(1, "train", "twice.jsonl", "-o", "m")
    assert (
        f"twice.jsonl: an id twice; expected different ids, got {IDS[0]!r}, {IDS[1]!r}," in message
    )
    message = fail(1, "train", "docs.npy", "--triplets", "named.csv", "-o", "m")
    assert "named.csv, line 2: not a triplet: ids, but the items have no ids" in message
    assert "--item-ids" in message


@pytest.mark.parametrize("option", ["--clicks", "--relevance"])
def test_train_says_which_command_learns_from_searches(folder, option):
    message = fail(2, "train", "docs.npy", option, "clicks.jsonl", "-o", "m")
    assert f"{option} is for simstream adapt" in message
    assert option not in succeed("train", "--help").stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "first,second,y\nb,a,1\na,c,-1\nc,b,+1\n"),
        ("p.csv", "a_b,y,first\n".replace("a_b", "second") + "a,1,b\nc,0,a\nb,1,c\n"),
        ("p.txt", "b a true\na c False\nc b 1\n"),
        ("p.jsonl", '["b", "a", true]\n["a", "c", false]\n["c", "b", 1]\n'),
        ("p.jsonl", '{"i": "b", "j": "a", "y": 1}\n{"i": "a", "j": "c", "y": 0}\n["c", "b", 1]\n'),
    ],
)
def test_pairs_by_id_and_their_labels(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (batch,) = read_pairs(tmp_path / name, ids=["a", "b", "c"])
    assert batch.pairs.tolist() == [[1, 0], [0, 2], [2, 1]]
    assert batch.y.tolist() == [1, -1, 1]


def test_ids_that_look_like_anything(tmp_path):
    """Integers, spaces, commas, and what numbers would not allow."""
    ids = [7, "1_000", "a b", 'x, "y"', "ü"]
    (tmp_path / "t.csv").write_text('7,1_000,a b\n"x, ""y""",7, ü \n', encoding="utf-8")
    (batch,) = read_triplets(tmp_path / "t.csv", ids=ids)
    assert batch.triplets.tolist() == [[0, 1, 2], [3, 0, 4]]
    (tmp_path / "t.jsonl").write_text('{"anchor": 7, "near": "7", "far": "a b"}\n')
    (batch,) = read_triplets(tmp_path / "t.jsonl", ids=ids)
    assert batch.triplets.tolist() == [[0, 0, 2]]
    (batch,) = read_triplets(tmp_path / "t.csv", ids=ids, start=1)
    assert batch.triplets.tolist() == [[3, 0, 4]]


def test_a_query_shows_ids_labels_and_texts(folder):
    matrix("docs.jsonl", "--triplets", "named.csv")
    texts = [{"id": name, "text": f"all about {name}"} for name in reversed(IDS)]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    given = ("query", "model.safetensors", "docs.jsonl", "-k", 2, "--texts", "texts.jsonl")
    (found,) = json.loads(succeed(*given, "--id", IDS[5], "--json").stdout)
    assert found["query"] == IDS[5]
    expected = simstream.load("model.safetensors").search(X[5:6], X, k=3).indices[0]
    rows = [int(row) for row in expected if row != 5][:2]
    assert [one["row"] for one in found["neighbours"]] == rows
    for one in found["neighbours"]:
        assert one["id"] == IDS[one["row"]]
        assert one["label"] == KINDS[one["row"]]
        assert one["text"] == f"all about {one['id']}"
    lines = succeed(*given, "--row", 5, "--csv").stdout.splitlines()
    assert lines[0] == "query,rank,item,score,label,text"
    assert lines[1].startswith(f"{IDS[5]},1,{IDS[rows[0]]},")
    assert lines[1].endswith(f",{KINDS[rows[0]]},all about {IDS[rows[0]]}")
    assert f"all about {IDS[rows[1]]}" in succeed(*given, "--id", IDS[5]).stdout
    plain = succeed("query", "model.safetensors", "docs.npy", "--row", 5, "--csv").stdout
    assert plain.startswith("query,rank,item,score\n5,1,")
    message = fail(2, *given, "--id", "x", "--id", "y")
    assert "expected ids of docs.jsonl, got 2 unknown ids: 'x', 'y'" in message


def test_judgements_by_id(folder):
    asked = [f"how to {row}" for row in range(N)]
    np.save("queries.npy", np.roll(X, 4, axis=1) + 0.5 * X)
    (folder / "asked.txt").write_text("\n".join(asked))
    lines = [{"query": q, "clicked": name} for q, name in zip(asked, IDS, strict=True)]
    lines[3]["clicked"] = [IDS[3], IDS[6]]
    (folder / "feedback.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = ("--queries", "queries.npy", "--query-ids", "asked.txt", "--relevance")
    adapt = ("adapt", "--items", "docs.jsonl", *given)
    told = json.loads(succeed(*adapt, "feedback.jsonl", "-o", "a.safetensors", "--json").stdout)
    assert told["n_learnt"] == N
    lines[0]["clicked"], lines[1]["clicked"] = "x", ["y", "z", "w"]
    (folder / "bad.jsonl").write_text("\n".join(map(json.dumps, lines)))
    message = fail(1, *adapt, "bad.jsonl", "-o", "b.safetensors")
    assert "bad.jsonl: 4 unknown items; expected a known id for each" in message
    assert "got 'x' in line 1, 'y' in line 2, 'z' in line 2, ..." in message


# -- split ------------------------------------------------------------------------------------------


def test_items_are_divided_by_class(folder):
    told = succeed("split", "docs.jsonl", "train.npz", "test.jsonl", "--test-share", 0.2, "--json")
    assert json.loads(told.stdout) == {
        "input": "docs.jsonl",
        "kind": "items",
        "n_train": 48,
        "n_test": 12,
    }
    train, test = read_items("train.npz"), read_items("test.jsonl")
    assert sorted(train.ids + test.ids) == sorted(IDS)
    assert np.unique(test.labels, return_counts=True)[1].tolist() == [4, 4, 4]
    for part in (train, test):
        rows = [IDS.index(name) for name in part.ids]
        assert rows == sorted(rows)
        np.testing.assert_array_equal(part.items, X[rows])
        assert part.labels.tolist() == [KINDS[row] for row in rows]
    drawn = []
    for seed in (0, 0, 1):
        succeed("split", "docs.jsonl", "a.jsonl", "b.jsonl", "--seed", seed)
        drawn.append(read_items("b.jsonl").ids)
    assert drawn[0] == drawn[1] != drawn[2]


def test_records_are_divided_and_mistakes_refused(folder):
    succeed("split", "rows.csv", "train.npy", "test.csv", "--test-share", 0.1)
    parts = [next(iter(read_triplets(name))).triplets for name in ("train.npy", "test.csv")]
    assert [len(part) for part in parts] == [180, 20]
    assert sorted(np.concatenate(parts).tolist()) == sorted(TRIPLETS.tolist())
    for name in ("named.csv", "named.jsonl"):
        suffix = name.partition(".")[2]
        succeed("split", name, f"a.{suffix}", f"b.{suffix}", "--test-share", 0.1)
        parts = [(folder / f"{part}.{suffix}").read_text().splitlines() for part in "ab"]
        whole = (folder / name).read_text().splitlines()
        n_header = int(suffix == "csv")
        assert [len(part) - n_header for part in parts] == [180, 20]
        assert [part[:n_header] for part in parts] == [whole[:n_header]] * 2
        records = parts[0][n_header:] + parts[1][n_header:]
        assert sorted(records) == sorted(whole[n_header:])
        found = [t for part in "ab" for t in read_triplets(f"{part}.{suffix}", ids=IDS)]
        assert sum(len(batch.triplets) for batch in found) == len(TRIPLETS)
    assert "three different files" in fail(2, "split", "docs.npy", "a.npy", "a.npy")
    assert "unknown extension" in fail(2, "split", "docs.npy", "a.npy", "b.doc")
    assert "are for items" in fail(
        2, "split", "rows.csv", "a.csv", "b.csv", "--kind", "triplets", "--labels", "ids.txt"
    )
    np.save("one.npy", X[:1])
    assert "got 0 of 1 for TEST" in fail(2, "split", "one.npy", "a.npy", "b.npy")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npy"])
def test_pairs_are_divided_by_class(folder, suffix):
    y = np.repeat([1, -1], [8, 192])
    if suffix == "npy":
        np.save("pairs.npy", np.column_stack([TRIPLETS[:, :2], y]))
    else:
        records = [
            (IDS[a], IDS[b], label) for (a, b, _), label in zip(TRIPLETS, y.tolist(), strict=True)
        ]
        lines = ["first,second,y", *(f"{a},{b},{label}" for a, b, label in records)]
        if suffix == "jsonl":
            lines = [json.dumps(record) for record in records]
        (folder / f"pairs.{suffix}").write_text("\n".join(lines))
    for seed in range(5):
        command = ("split", f"pairs.{suffix}", f"a.{suffix}", f"b.{suffix}", "--seed", seed)
        succeed(*command, "--kind", "pairs")
        ids = None if suffix == "npy" else IDS
        labels = [next(iter(read_pairs(f"{part}.{suffix}", ids=ids))).y for part in "ab"]
        assert [np.count_nonzero(part == 1) for part in labels] == [6, 2]
        assert [len(part) for part in labels] == [150, 50]


def test_nothing_is_written_where_a_split_is_refused(folder):
    (folder / "is-a-folder.npy").mkdir()
    (folder / "plain").mkdir()
    for test, reason in (
        ("none/b.npy", "no such folder"),
        ("is-a-folder.npy", "is a folder"),
        ("plain", "expected a file, got a folder"),
    ):
        message = " ".join(fail(2, "split", "docs.npy", "train.npy", test).split())
        assert "TEST" in message
        assert reason in message
        assert not (folder / "train.npy").exists()
    (folder / "own.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n5,6,z\n")
    own = ["split", "own.csv", "train.csv", "test.csv", "--label-column", "kind"]
    message = " ".join(fail(2, *own).split())
    assert "--stratify: expected a class of two or more items, got 3 classes of one each" in message
    assert not (folder / "train.csv").exists()
    succeed(*own, "--no-stratify")
    assert read_items("test.csv", label_column="label").items.shape == (1, 2)


# -- parquet ----------------------------------------------------------------------------------------


def test_a_parquet_file_with_a_column_of_vectors_of_any_name(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    short = X.astype(np.float32)
    columns = {"text": KINDS, "id": IDS, "vec": short.tolist()}
    types = pa.schema([("text", pa.string()), ("id", pa.string()), ("vec", pa.list_(pa.float32()))])
    pq.write_table(pa.table(columns, types), "docs.parquet")
    found = read_items("docs.parquet", label_column="text")
    assert (found.ids, found.labels.tolist(), found.items.dtype) == (IDS, KINDS, np.float32)
    np.testing.assert_array_equal(found.items, short)
    by_column = {f"f{n}": short[:, n].astype(np.float16) for n in range(D)}
    pq.write_table(pa.table(by_column), "columns.parquet")
    assert read_items("columns.parquet").items.dtype == np.float32
    pq.write_table(pa.table({"a": short.tolist(), "b": short.tolist()}), "two.parquet")
    message = fail(1, "train", "two.parquet", "--triplets", "rows.csv", "-o", "m.safetensors")
    assert "two.parquet: several columns of vectors; expected one" in message
    assert matrix("docs.parquet", "--triplets", "named.csv").dtype == np.float32


def test_the_index_of_a_table_of_pandas_is_ids(folder):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(X, index=IDS, columns=[f"f{n}" for n in range(D)]).to_parquet("docs.parquet")
    found = read_items("docs.parquet")
    assert (found.ids, found.feature_names) == (IDS, [f"f{n}" for n in range(D)])
    np.testing.assert_array_equal(found.items, X)
    pandas.DataFrame({"v": list(X)}, index=pandas.Index(IDS, name="doc")).to_parquet("docs.parquet")
    found = read_items("docs.parquet")
    assert (found.ids, found.feature_names) == (IDS, None)
    # Numbers are more likely to be what filtering has left: items are called by row numbers.
    table = pandas.DataFrame(X, columns=[f"f{n}" for n in range(D)])
    table.iloc[5:].to_parquet("docs.parquet")
    found = read_items("docs.parquet")
    assert (found.ids, found.items.shape) == (None, (N - 5, D))
    for index, ids in ((IDS, IDS), (None, None)):
        pandas.DataFrame(X, index=index, columns=table.columns).to_csv("docs.csv")
        with pytest.warns(UserWarning, match="the first column has no name: taken as"):
            found = read_items("docs.csv")
        assert (found.ids, found.feature_names) == (ids, list(table.columns))
        np.testing.assert_array_equal(found.items, X)


# -- names of features --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["oasis", "pametric", "rca"])
@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_a_table_with_other_columns_is_refused(folder, algorithm, extension):
    names = [f"feature {n}" for n in range(D)]
    orders = {"right": range(D), "swapped": [1, 0, *range(2, D)]}
    if extension == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        for name, order in orders.items():
            columns = {names[n]: X[:, n] for n in order} | {"label": KINDS}
            pq.write_table(pa.table(columns), f"{name}.parquet")
    else:
        for name, order in orders.items():
            lines = [",".join([*(names[n] for n in order), "label"])]
            lines += [
                ",".join([*(repr(X[row, n].item()) for n in order), KINDS[row]]) for row in range(N)
            ]
            (folder / f"{name}.csv").write_text("\n".join(lines))
    train = ("train", f"right.{extension}", "-a", algorithm)
    n_tuples = () if algorithm == "rca" else ("-n", 500)
    succeed(*train, *n_tuples, "-o", "model.safetensors", "-q")
    assert simstream.load("model.safetensors").feature_names_in_.tolist() == names
    succeed("evaluate", "model.safetensors", f"right.{extension}", "-k", 1)
    succeed("query", "model.safetensors", "docs.npy", "--row", 0)  # without names
    for command in (("evaluate",), ("query", "--row", 0)):
        message = fail(1, command[0], "model.safetensors", f"swapped.{extension}", *command[1:])
        assert f"swapped.{extension}: expected the features of the items learnt from" in message
        assert (
            "'feature 0' at place 0, got 'feature 1' (the same names in another order)" in message
        )


def test_split_and_convert_keep_the_names_of_columns(tmp_path):
    rows = "".join(f"d{n},{n}.5,{n * n},{n % 2}\n" for n in range(8))
    source = tmp_path / "items.csv"
    source.write_text("id,height,width,label\n" + rows)
    succeed("split", source, tmp_path / "train.csv", tmp_path / "test.csv", "--test-share", "0.5")
    for name in ("train.csv", "test.csv"):
        assert (tmp_path / name).read_text().startswith("id,height,width,label\n")
    succeed("convert", source, tmp_path / "copy.csv")
    assert (tmp_path / "copy.csv").read_text().startswith("id,height,width,label\n")
    pytest.importorskip("pyarrow")
    succeed("convert", source, tmp_path / "copy.parquet")
    assert read_items(tmp_path / "copy.parquet").feature_names == ["height", "width"]
    before = source.read_text()
    assert "two different files" in fail(2, "convert", source, source)
    assert source.read_text() == before
