"""Files of items, labels and triplets: what is written is read back, and what is wrong is said."""

import gzip
import importlib.util
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from commands import fail
from simstream import data as formats
from simstream.data import (
    FormatError,
    atomic_write,
    files,
    open_rows,
    read_items,
    read_labels,
    read_pairs,
    read_relevance,
    read_tasks,
    read_triplets,
    write_items,
    write_pairs,
    write_triplets,
)
from simstream.data.records import CellParser, JsonParser

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
PARQUET = [".parquet"] if HAS_PYARROW else []
LIBSVM = [".svm", ".libsvm", ".svmlight.gz", ".LIBSVM.bz2"]
DENSE = [".csv", ".csv.bz2", ".jsonl", ".jsonl.gz", ".npy", ".npz", *PARQUET]
SPARSE = [*LIBSVM, ".jsonl", ".npz"]
RECORDS = [".csv", ".csv.gz", ".tsv", ".txt", ".jsonl", ".jsonl.bz2", ".npy", ".npz"]

# tmp_path is shared by the examples of one test, which overwrite the same file: that is intended.
few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 4))
finite = st.floats(allow_nan=False, allow_infinity=False)
matrices = hnp.arrays(np.float64, shapes, elements=finite)
words = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029"), min_size=1
).filter(lambda text: not _is_number(text))


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse(message, function, *arguments, **options):
    """Assert that a call raises a one-line FormatError that matches."""
    with pytest.raises(FormatError, match=message) as caught:
        function(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert ("expected " in text) == (", got " in text)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return text


def read_all(source, read=read_triplets, **options):
    """All records, as lists of three, and all batches."""
    batches = list(read(source, **options))
    return [row for batch in batches for row in np.column_stack(batch.tuples).tolist()], batches


def read_all_pairs(source, **options):
    return read_all(source, read_pairs, **options)


# -- atomic_write --------------------------------------------------------------------------------


def test_atomic_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write_half():
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_atomic_write_replaces_at_the_end_only(tmp_path):
    path = tmp_path / "model.v1.csv.gz"
    path.write_text("old")
    with atomic_write(path) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.endswith(".csv.gz")
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == [path.name]


def test_atomic_write_follows_links_umask_and_permissions(tmp_path):
    real = tmp_path / "real.txt"
    link = tmp_path / "link.txt"
    (tmp_path / "plain.txt").write_text("")
    with atomic_write(real) as temporary:
        temporary.write_text("one")
    plain_mode = (tmp_path / "plain.txt").stat().st_mode
    assert real.stat().st_mode == plain_mode
    real.chmod(0o600)
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("two")
    assert link.is_symlink()
    assert real.read_text() == "two"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_atomic_write_refuses_what_cannot_be_written(tmp_path):
    reasons = {
        tmp_path / "absent" / "file.txt": f"no such folder: {tmp_path / 'absent'}$",
        tmp_path: "it is a folder$",
        tmp_path.root: "it is a folder$",
    }
    if os.path.isdir("/proc"):  # there, but no file can be made in it
        reasons["/proc/file.txt"] = "(?!no such folder)"
    for path, reason in reasons.items():
        with pytest.raises(FormatError, match=f"cannot be written: {reason}"), atomic_write(path):
            pass


def test_a_failed_write_of_items_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "items.jsonl"
    write_items(path, np.eye(2))
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(OSError, match="disk full"):
        write_items(path, np.eye(3))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["items.jsonl"]


def test_compressed_files_depend_on_their_content_only(tmp_path):
    for name in ("one.csv.gz", "two.csv.gz"):
        write_triplets(tmp_path / name, [[0, 1, 2]])
    first = (tmp_path / "one.csv.gz").read_bytes()
    assert first == (tmp_path / "two.csv.gz").read_bytes()
    assert first[4:8] == bytes(4)  # RFC 1952: the time, 0 for none


# -- items: round trips --------------------------------------------------------------------------


@pytest.mark.parametrize("extension", DENSE)
@few
@given(items=matrices, data=st.data())
def test_dense_round_trip(tmp_path, extension, items, data):
    path = tmp_path / f"items{extension}"
    labels = ids = None
    if extension != ".npy":
        n = len(items)
        kinds = [st.integers(-(2**60), 2**60), words, st.floats(0.1, 0.9), st.booleans()]
        kind = data.draw(st.sampled_from(kinds))
        labels = data.draw(st.none() | st.lists(kind, min_size=n, max_size=n))
        ids = data.draw(st.none() | st.lists(words, min_size=n, max_size=n))
    write_items(path, items, labels, ids)
    back = read_items(path)
    assert back.items.dtype == np.float64
    assert back.items.flags.c_contiguous
    np.testing.assert_array_equal(back.items, items)
    assert back.ids == ids
    assert (back.labels is None) == (labels is None)
    if labels is not None:
        assert back.labels.tolist() == labels


@pytest.mark.parametrize("extension", SPARSE)
@few
@given(items=matrices, data=st.data())
def test_sparse_round_trip(tmp_path, extension, items, data):
    path = tmp_path / f"items{extension}"
    n, d = items.shape
    kinds = [st.integers(-100, 100), st.floats(0.1, 0.9)]
    if extension not in LIBSVM:
        kinds.append(words)
    labels = data.draw(st.lists(data.draw(st.sampled_from(kinds)), min_size=n, max_size=n))
    matrix = data.draw(st.sampled_from([sparse.csr_matrix, sparse.csc_matrix, sparse.coo_array]))(
        items
    )
    write_items(path, matrix, labels)
    back = read_items(path, n_features=d)
    assert isinstance(back.items, sparse.csr_matrix)
    assert back.items.has_canonical_format
    np.testing.assert_array_equal(back.items.toarray(), items)
    assert back.labels.tolist() == labels


@pytest.mark.parametrize("extension", [".npy", ".npz", *PARQUET])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_keep_their_type(tmp_path, extension, dtype):
    path = tmp_path / f"items{extension}"
    write_items(path, np.eye(3, dtype=dtype))
    assert read_items(path).items.dtype == dtype
    assert read_items(path, dtype="float32").items.dtype == np.float32


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".svm"])
@few
@given(
    items=hnp.arrays(
        np.float32, shapes, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_float32_is_exact_through_text(tmp_path, extension, items):
    path = tmp_path / f"items{extension}"
    write_items(path, items)
    back = read_items(
        path, dtype=np.float32, n_features=items.shape[1] if extension == ".svm" else None
    )
    dense = back.items.toarray() if sparse.issparse(back.items) else back.items
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense, items)


def test_dense_items_in_libsvm_and_no_labels(tmp_path):
    path = tmp_path / "items.svm"
    write_items(path, np.eye(3))
    back = read_items(path)
    np.testing.assert_array_equal(back.items.toarray(), np.eye(3))
    assert back.labels.tolist() == [0, 0, 0]


def test_foreign_arrays(tmp_path):
    matrix = sparse.random(6, 5, 0.5, random_state=0)
    path = tmp_path / "items.npz"
    for layout in ("csr", "csc", "coo", "dia", "bsr"):
        sparse.save_npz(path, matrix.asformat(layout))
        np.testing.assert_array_equal(read_items(path).items.toarray(), matrix.toarray())
    csr = matrix.tocsr()
    np.savez(
        path, data=csr.data, indices=csr.indices, indptr=csr.indptr, shape=csr.shape, y=np.arange(6)
    )
    back = read_items(path)
    np.testing.assert_array_equal(back.items.toarray(), matrix.toarray())
    assert back.labels.tolist() == list(range(6))
    for key in ("items", "X"):
        np.savez(path, **{key: np.arange(6).reshape(3, 2, order="F"), "labels": ["a", "b", "c"]})
        back = read_items(path)
        assert back.items.flags.c_contiguous
        np.testing.assert_array_equal(back.items, np.arange(6.0).reshape(3, 2, order="F"))
        assert back.labels.tolist() == ["a", "b", "c"]
    np.save(tmp_path / "big.npy", np.eye(2, dtype=">f4"))
    assert read_items(tmp_path / "big.npy").items.dtype == np.dtype("=f4")


def test_scipy_reads_our_sparse_files_and_the_caller_keeps_his(tmp_path):
    path = tmp_path / "items.npz"
    unsorted = sparse.csr_matrix((np.array([1.0, 2, 3]), [1, 0, 1], [0, 3]), shape=(1, 2))
    before = unsorted.indices.copy()
    write_items(path, unsorted, labels=["x"])
    np.testing.assert_array_equal(unsorted.indices, before)
    np.testing.assert_array_equal(sparse.load_npz(path).toarray(), [[2.0, 4.0]])


# -- items: what the text formats allow ----------------------------------------------------------


def text_file(tmp_path, name, text):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_libsvm_index_base_comments_and_width(tmp_path):
    ones = text_file(tmp_path, "one.svm", "# made by hand\n\n+1 1:5 3:7 # first\r\n-1 2:1e3\n")
    assert read_items(ones).items.toarray().tolist() == [[5, 0, 7], [0, 1000, 0]]
    assert read_items(ones).labels.tolist() == [1, -1]
    zeros = text_file(tmp_path, "zero.svm", "1.5 0:5 2:7\n2 1:1\n")
    assert read_items(zeros, n_features=5).items.toarray().tolist() == [
        [5, 0, 7, 0, 0],
        [0, 1, 0, 0, 0],
    ]
    assert read_items(zeros).labels.tolist() == [1.5, 2]


@pytest.mark.parametrize("extension", [".csv", ".csv.gz"])
def test_csv_headers_and_label_columns(tmp_path, extension):
    bare = text_file(tmp_path, f"bare{extension}", "1,2,cat\n\n3,4,dog\n")
    for column in (-1, 2):
        items, labels, ids = read_items(bare, label_column=column)
        assert items.tolist() == [[1, 2], [3, 4]]
        assert labels.tolist() == ["cat", "dog"]
        assert ids is None
    named = text_file(
        tmp_path, f"named{extension}", '\ufeffid,"x, y",kind,z\r\nu1,1,7,2\r\n"a ""b""",3,8,4\r\n'
    )
    for column in ("kind", 2, -2):
        items, labels, ids = read_items(named, label_column=column)
        assert items.tolist() == [[1, 2], [3, 4]]
        assert labels.tolist() == [7, 8]
        assert ids == ["u1", 'a "b"']
    assert read_items(named).labels is None
    assert read_items(named).items.shape == (2, 3)
    numbers = text_file(tmp_path, f"numbers{extension}", "1,2\n3,4")
    assert read_items(numbers).items.tolist() == [[1, 2], [3, 4]]
    auto = text_file(tmp_path, f"auto{extension}", "label,f\n1.0,5\n2.0,6\n")
    assert read_items(auto).labels.dtype.kind == "i"


def test_jsonl_rows(tmp_path):
    path = text_file(
        tmp_path,
        "items.jsonl",
        '{"id": 5, "features": {"3": 1, "0": 2.5}, "label": "x"}\n\n'
        '{"id": "b", "features": {}, "label": "1"}\n',
    )
    items, labels, ids = read_items(path)
    assert items.toarray().tolist() == [[2.5, 0, 0, 1], [0, 0, 0, 0]]
    assert items.has_canonical_format
    assert labels.tolist() == ["x", "1"]
    assert ids == ["5", "b"]


def test_foreign_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "items.parquet"

    def written(**columns):
        pa.parquet.write_table(pa.table(columns), path)
        return path

    kinds = pa.array(["cat", "dog"])
    for column in (kinds, kinds.dictionary_encode()):
        columns = {"a": [1, 2], "id": [7, 8], "label": column, "b": [0.5, 1.5]}
        items, labels, ids = read_items(written(**columns, __index_level_0__=[3, 4]))
        assert items.tolist() == [[1, 0.5], [2, 1.5]]
        assert (labels.tolist(), ids) == (["cat", "dog"], ["7", "8"])
    for column in ("kind", -1):
        items, labels, _ = read_items(written(a=[1, 2], kind=kinds), label_column=column)
        assert (items.tolist(), labels.tolist()) == ([[1], [2]], ["cat", "dog"])
    chunks = pa.chunked_array([[[1.0, 2.0]], [[3.0, 4.0]]])
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)):
        items = read_items(written(features=chunks.cast(kind), other=[1, None])).items
        assert items.tolist() == [[1, 2], [3, 4]]
    refuse("ragged row 1 .*2 features.*got 1", read_items, written(features=[[1.0, 2.0], [3.0]]))
    refuse("null in column 'a', row 1", read_items, written(a=[1.0, None]))
    refuse("not finite at row 0, column 1", read_items, written(features=[[1.0, np.inf]]))
    refuse("bad column 'features'; expected a vector", read_items, written(features=[1.0]))
    refuse("bad column 'kind'; expected numbers", read_items, written(a=[1, 2], kind=kinds))
    refuse("no label column 'x'", read_items, path, label_column="x")
    refuse("not rows of features", read_items, written(label=kinds))
    refuse("not rows of features", read_items, written(features=pa.array([], pa.list_(pa.int8()))))


def damaged_parquet(path):
    """A file of several row groups, the first of which cannot be decoded."""
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    write_items(path, rng.normal(size=(2000, 8)), labels=rng.integers(0, 3, 2000))
    pq.write_table(pq.read_table(path), path, row_group_size=500)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(255 - byte for byte in content[4:2000])
    path.write_bytes(content)


@pytest.mark.skipif(not HAS_PYARROW, reason="needs pyarrow")
def test_threads_of_pyarrow_read_no_file_of_python(tmp_path, monkeypatch):
    """They may still do so when an error ends the interpreter, and that aborts the process."""
    path = tmp_path / "items.parquet"
    damaged_parquet(path)
    readers = set()

    class Watched(io.BufferedReader):
        def read(self, *arguments):
            readers.add(threading.current_thread())
            return super().read(*arguments)

        def readinto(self, *arguments):
            readers.add(threading.current_thread())
            return super().readinto(*arguments)

    monkeypatch.setattr(files, "open", lambda path, _: Watched(io.FileIO(path)), raising=False)
    read = partial(read_relevance, queries=3, items=3)
    for function in (read_items, read, open_rows):
        refuse("items.parquet: damaged or truncated; expected a parquet file", function, path)
    assert readers <= {threading.main_thread()}


@pytest.mark.skipif(not HAS_PYARROW, reason="needs pyarrow")
def test_a_damaged_parquet_file_ends_a_process_with_its_error(tmp_path):
    damaged_parquet(tmp_path / "items.parquet")
    code = "from simstream.cli import main; main(['convert', 'items.parquet', 'items.npz'])"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "items.parquet: damaged or truncated; expected a parquet file" in done.stderr


def test_parquet_without_pyarrow_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = text_file(tmp_path, "items.parquet", "PAR1")
    for function, arguments in ((read_items, ()), (write_items, (np.eye(2),))):
        refuse(r"items.parquet: .*pip install 'simstream\[parquet\]'", function, path, *arguments)
    message = f"{path}: parquet needs pyarrow; install with: pip install 'simstream[parquet]'"
    assert fail(2, "convert", path, tmp_path / "items.npz") == f"simstream: error: {message}"


# -- items: errors -------------------------------------------------------------------------------

SPARSE_LINE = '{"features": {"%d": 1}}\n'
BAD_ITEMS = [
    ("ragged.csv", "a,b\n1,2\n\n3\n", "ragged.csv, line 4: ragged.*2 cells.*got 1"),
    ("long.csv", "1,2\n1,2,3\n", "long.csv, line 2: ragged row.*got 3"),
    ("header.csv", "a,label\n1,2,x\n3,4,y\n", "header.csv, line 2: ragged row.*2 cells.*got 3"),
    ("names.csv", "a,b,label\n\n1,2\n", "names.csv, line 3: ragged row.*3 cells.*got 2"),
    ("comma.csv", "1,5,a\n2,25,b,c\n", "comma.csv, line 2: ragged row.*3 cells.*got 4"),
    ("cell.csv", "a,b\n1,x\n", r"cell.csv, line 2: .*column 1 .*\(b\).*a number, got 'x'"),
    ("score.csv", "a,b\n1,1_0\n", "score.csv, line 2: .*'1_0'"),
    ("gap.csv", "1,2\n1,\n", "gap.csv, line 2: .*got ''"),
    ("nan.csv", "1,2\n\n3,nan\n", "nan.csv, line 3: not finite at row 1, column 1.*nan"),
    ("huge.csv", "1,2\n1e999,1\n", "huge.csv, line 2: not finite at row 1, column 0.*inf"),
    ("label.csv", "label,b\n,1\n", "label.csv, line 2: .*column 0.*expected a label"),
    ("head.csv", "a,b\n", "head.csv: no rows"),
    ("blank.csv", "\n\n", "blank.csv: no rows"),
    ("only.csv", "label\n1\n", "only.csv: not rows of features"),
    ("bytes.csv", b"a,b\n1,\xff\n", "bytes.csv: not text.*UTF-8"),
    ("word.svm", "1 1:2\n# c\nx 1:2\n", "word.svm, line 3: .*'x 1:2'"),
    ("order.svm", "1 1:2\n1 1:2\n1 2:1 1:1\n1 1:1\n", "order.svm, line 3: .*increasing"),
    ("value.svm.gz", "1 1:\n", "value.svm.gz, line 1: not a LIBSVM line"),
    ("index.svm", "1 99999999999:1\n", "index.svm, line 1"),
    ("nan.svm", "# c\n1 1:2\n1 2:nan\n", "nan.svm, line 3: not finite at row 1, column 1"),
    ("label.svm", "nan 1:2\n", "label.svm: label 0 .* is not finite"),
    ("none.svm", "# nothing\n", "none.svm: not rows of features"),
    ("json.jsonl", '{"features": [1]}\n{"features": [1}\n', "json.jsonl, line 2: not JSON"),
    ("deep.jsonl", "[" * 100_000, "deep.jsonl, line 1: not JSON"),
    ("list.jsonl", "[1, 2]\n", "list.jsonl, line 1: .*a list or a mapping"),
    ("mixed.jsonl", '{"features": [1]}\n{"features": {"0": 1}}\n', "mixed.jsonl, line 2: .*a list"),
    ("ragged.jsonl", '{"features": [1]}\n\n{"features": [1, 2]}\n', "jsonl, line 3: ragged"),
    ("text.jsonl", '{"features": [1, "2"]}\n', "text.jsonl, line 1: .*place 1.*'2'"),
    ("bool.jsonl", '{"features": [true]}\n', "bool.jsonl, line 1: .*True"),
    ("nan.jsonl", '{"features": [NaN]}\n', "nan.jsonl, line 1: .*finite number, got nan"),
    ("big.jsonl", '{"features": [1%s]}\n' % ("0" * 400), "big.jsonl, line 1: .*finite number"),
    ("key.jsonl", '{"features": {"-1": 1}}\n', "key.jsonl, line 1: bad feature number.*'-1'"),
    ("twice.jsonl", '{"features": {"1": 1, "01": 1}}\n', "twice.jsonl, line 1: .*distinct"),
    ("some.jsonl", '{"features": [1], "label": 1}\n{"features": [1]}\n', "line 2: label missing"),
    ("ids.jsonl", '{"features": [1]}\n{"features": [1], "id": 1}\n', "line 2: id missing"),
    ("kind.jsonl", '{"features": [1], "label": 1}\n{"features": [1], "label": "1"}\n', "line 2"),
    ("none.jsonl", "\n", "none.jsonl: not rows of features"),
    ("empty.csv", "", "empty.csv: empty file"),
    ("empty.svm", "", "empty.svm: empty file"),
    ("empty.npy", "", "empty.npy: empty file"),
    (
        "file.xls",
        "1",
        r"file.xls: unknown extension.*\.svm.*\.csv.*\.jsonl.*\.npz, \.parquet, got '.xls'",
    ),
    ("file.npy.gz", "1", "file.npy.gz: unknown extension"),
    ("damaged.parquet", "PAR1 but no more", "damaged.parquet: damaged or truncated"),
    ("damaged.npz", "PK but no archive", "damaged.npz: damaged or truncated"),
    ("pickle.npy", pickle.dumps([1]), "pickle.npy: damaged or truncated"),
    ("text.csv.gz", None, "text.csv.gz: damaged or truncated"),
    ("text.csv.bz2", b"1,2\n", "text.csv.bz2: damaged or truncated"),
]


@pytest.mark.parametrize(
    ("name", "text", "message"), BAD_ITEMS, ids=[case[0] for case in BAD_ITEMS]
)
def test_bad_items(tmp_path, name, text, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    if text is None:
        path.write_bytes(b"not compressed")
    else:
        path = text_file(tmp_path, name, text)
    assert name in refuse(message, read_items, path)


def test_arrays_of_objects(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([[1, "a"], [2, None]], dtype=object))
    np.savez(tmp_path / "objects.npz", items=np.eye(2), labels=np.array(["a", "b"], dtype=object))
    for name in ("objects.npy", "objects.npz"):
        message = f"{name}: holds Python objects; expected numbers"
        refuse(message, read_items, tmp_path / name)


def test_missing_files_and_folders(tmp_path):
    for function in (read_items, read_labels, read_triplets):
        refuse("absent.csv: no such file$", function, tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    for folder in (tmp_path / "folder.csv", tmp_path):
        refuse(f"{folder.name}: expected a file, got a folder", read_items, folder)
    refuse(
        "folder.csv: expected a file, got a folder", list, read_triplets(tmp_path / "folder.csv")
    )


def test_a_label_that_is_half_of_a_number_is_refused(tmp_path):
    """Semicolons between cells and commas in numbers: 1,5;0 is 1.5 of class 0, not 1 of class "5;0"."""
    path = tmp_path / "items.csv"
    path.write_text("1,5;0\n2,5;1\n")
    refuse("items.csv, line 1: semicolons.*'1,5;0'", read_items, path, label_column=-1)
    path.write_text("1,cat;dog\n2,cat\n")
    assert read_items(path, label_column=-1).labels.tolist() == ["cat;dog", "cat"]


def test_semicolons_in_labels_and_names_are_part_of_them(tmp_path):
    path = text_file(tmp_path, "items.csv", "drama;comedy;crime,0.5\ncrime,1.5\n")
    found = read_items(path, label_column=0)
    assert found.labels.tolist() == ["drama;comedy;crime", "crime"]
    path = text_file(tmp_path, "items.csv", '"a;b;c",label\n0.5,x\n')
    found = read_items(path)
    assert (found.feature_names, found.labels.tolist()) == (["a;b;c"], ["x"])


@pytest.mark.parametrize(
    "text",
    [
        "a;b;kind\n1;2;cat\n",
        "1;2\n3;4\n",
        "0,1;0,2;0,3\n0,4;0,5;0,6\n",
        "0,1;0,2\n",
        "a,b\n1;2,3\n",
        "a0;0.5;1.5\na1;2;3\n",
    ],
)
def test_an_error_about_semicolons_or_tabs_names_them(tmp_path, text):
    path = text_file(tmp_path, "items.csv", text)
    refuse("items.csv, line [12]: semicolons between cells; expected commas", read_items, path)
    path = text_file(tmp_path, "items.csv", text.replace(";", "\t"))
    refuse("items.csv, line [12]: tabs between cells; expected commas", read_items, path)
    for line in ("anchor;positive;negative", "0;1;2"):
        records = text_file(tmp_path, "triplets.csv", f"{line}\n1;2;3\n")
        refuse("triplets.csv, line 1: .*semicolons between cells", list, read_triplets(records))
    judged = text_file(tmp_path, "relevance.csv", "query;item\n0;1\n")
    message = "relevance.csv, line 1: not judgements: semicolons between cells"
    refuse(message, read_relevance, judged, queries=2, items=2)


@pytest.mark.parametrize(
    ("index", "meaning", "ids"),
    [
        (["0", "1", "2"], "row numbers", None),
        (["a", "b", "c"], "ids", ["a", "b", "c"]),
        (["5", "6", "9"], "row numbers", None),  # what filtering has left
        (["0.0", "1.0", "2.0"], "row numbers", None),
        ([" 0", "-1 ", "2"], "row numbers", None),
        (["5", "b", "0.5"], "ids", ["5", "b", "0.5"]),
    ],
)
@pytest.mark.parametrize("name", ["", '""', "Unnamed: 0"])
def test_an_index_that_pandas_wrote_is_no_feature(tmp_path, index, meaning, ids, name):
    rows = [f"{cell},{n}.5,{n}" for n, cell in enumerate(index)]
    path = text_file(tmp_path, "items.csv", "\n".join([f"{name},x,label", *rows]))
    with pytest.warns(UserWarning, match=f"the first column has no name: taken as {meaning}, not"):
        found = read_items(path)
    assert found.items.tolist() == [[0.5], [1.5], [2.5]]
    assert (found.ids, found.labels.tolist(), found.feature_names) == (ids, [0, 1, 2], ["x"])


def test_a_first_column_without_a_name_may_be_a_feature_or_useless(tmp_path):
    path = text_file(tmp_path, "items.csv", ",x\n0.5,1\n0.5,2\n")
    with pytest.warns(UserWarning, match="the first column has no name: taken as a feature"):
        found = read_items(path)
    assert found.items.tolist() == [[0.5, 1], [0.5, 2]]
    assert (found.ids, found.feature_names) == (None, ["", "x"])
    path = text_file(tmp_path, "twice.csv", ",x\n0,1\n1,2\n0,3\n")
    refuse("twice.csv: the first column has no name.*expected different row.*'0'", read_items, path)
    path = text_file(tmp_path, "named.csv", ",id,x\nz,a,1\nz,b,2\n")
    with pytest.warns(UserWarning, match="taken as another index"):
        found = read_items(path)
    assert (found.items.tolist(), found.ids) == ([[1.0], [2.0]], ["a", "b"])
    with pytest.warns(UserWarning, match="taken as row numbers"):
        other = read_items(
            text_file(tmp_path, "labels.csv", ",y,x\n0,1,1\n1,2,2\n"), label_column=1
        )
    assert (other.items.tolist(), other.labels.tolist()) == ([[1.0], [2.0]], [1, 2])
    first = read_items(path, label_column=0)
    assert (first.labels.tolist(), first.ids) == (["z", "z"], ["a", "b"])


def test_wrong_label_columns(tmp_path):
    path = text_file(tmp_path, "items.csv", "a,b\n1,2\n")
    refuse(
        r"items.csv: no label column 'kind'.*\['a', 'b'\]", read_items, path, label_column="kind"
    )
    refuse("items.csv: no label column 2.*-2 to 1", read_items, path, label_column=2)
    refuse("no label column -3", read_items, path, label_column=-3)
    write_items(tmp_path / "items.npy", np.eye(2))
    refuse(
        "label_column is for CSV and parquet", read_items, tmp_path / "items.npy", label_column=0
    )


def test_wrong_number_of_features(tmp_path):
    lines = text_file(tmp_path, "items.svm", "# c\n1 1:1\n2 4:1\n")
    refuse("items.svm, line 3: .*row 1.*below n_features=3, got 3", read_items, lines, n_features=3)
    rows = text_file(tmp_path, "items.jsonl", '\n{"features": {"7": 1}}\n')
    refuse("items.jsonl, line 2: .*n_features=7, got 7", read_items, rows, n_features=7)
    write_items(tmp_path / "items.npz", sparse.eye(3))
    refuse("items.npz: .*row 2.*got 2", read_items, tmp_path / "items.npz", n_features=2)
    write_items(tmp_path / "items.npy", np.eye(3))
    refuse("wrong number.*expected 4, got 3", read_items, tmp_path / "items.npy", n_features=4)


@pytest.mark.parametrize(("name", "line"), [("i.svm", "1 1:1 %d:1\n"), ("i.jsonl", SPARSE_LINE)])
def test_one_mistyped_feature_number_does_not_take_gigabytes(tmp_path, name, line):
    path = text_file(tmp_path, name, line % 7 + line % 100_000_000)
    first = 100_000_000 - name.endswith(".svm")  # numbered from 1 there
    message = (
        f"{name}, line 2: improbably large feature number in row 1 .*n_features.*, got {first}"
    )
    refuse(message, read_items, path)
    assert read_items(path, n_features=100_000_001).items.shape == (2, 100_000_001)
    wide = text_file(tmp_path, name, line % 16_000_000)
    assert read_items(wide).items.shape[1] == 16_000_000 + (not name.endswith(".svm"))


def test_bad_arrays(tmp_path):
    path = tmp_path / "items.npy"
    for array in (
        np.zeros(3),
        np.zeros((0, 2)),
        np.zeros((2, 0)),
        np.array([["a"]]),
        np.eye(2) * 1j,
    ):
        np.save(path, array)
        refuse("items.npy: not rows of features", read_items, path)
    for value in (np.nan, np.inf):
        np.save(path, np.array([[1, 2, 3], [4, value, 5]]))
        refuse(f"items.npy: not finite at row 1, column 1.*got {value}", read_items, path)
    np.save(path, np.array([[1e300]]))
    refuse("finite float32.*inf", read_items, path, dtype=np.float32)
    with pytest.raises(ValueError, match="expected float32 or float64, got int64"):
        read_items(path, dtype=np.int64)

    path = tmp_path / "items.npz"
    np.savez(path, points=np.eye(2))
    refuse("items.npz: no items.*items or X.*got points", read_items, path)
    np.savez(path, items=np.eye(2), labels=[1, 2, 3])
    refuse("expected 2 labels, got 3", read_items, path)
    np.savez(path, items=np.eye(2), ids=["a"])
    refuse("expected 2 ids, got 1", read_items, path)
    np.savez(path, X=np.eye(2), y=[1, np.nan])
    refuse("label 1 .* is not finite", read_items, path)
    good = {"data": [1.0], "indices": [0], "indptr": [0, 1], "shape": [1, 1]}
    for part, value in [("indices", [9]), ("indices", [-1]), ("indptr", [0, 2]), ("shape", [1])]:
        np.savez(path, **{**good, part: value})
        refuse("items.npz: not a sparse matrix", read_items, path)
    np.savez(path, **{**good, "data": [np.nan]})
    refuse("not finite at row 0, column 0", read_items, path)


@pytest.mark.parametrize(
    "extension", [".csv.gz", ".svm.gz", ".svm.bz2", ".jsonl.gz", ".npy", ".npz"]
)
def test_cut_off_files(tmp_path, extension):
    path = tmp_path / f"items{extension}"
    write_items(path, np.random.default_rng(0).normal(size=(40, 3)))
    whole = path.read_bytes()
    for length in (len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        refuse(f"items{extension}: damaged or truncated", read_items, path)


@pytest.mark.parametrize("extension", [".npy", ".npz", ".csv", ".jsonl.gz", ".svm"])
@few
@given(place=st.integers(0), value=st.integers(0, 255))
def test_damaged_files_never_show_a_foreign_error(tmp_path, extension, place, value):
    path = tmp_path / f"items{extension}"
    write_items(path, sparse.eye(3) if extension == ".npz" else np.eye(3))
    data = bytearray(path.read_bytes())
    data[place % len(data)] = value
    path.write_bytes(data)
    # Any other exception, or a message of several lines, fails the test.
    try:
        message = f"{read_items(path).items.ndim} dimensions"
    except FormatError as error:
        message = str(error)
    assert "\n" not in message


CANNOT_HOLD = [
    (".npy", sparse.eye(2), None, None, "sparse items"),
    (".csv", sparse.eye(2), None, None, "sparse items"),
    (".parquet", sparse.eye(2), None, None, "sparse items"),
    (".npy", np.eye(2), [1, 2], None, "labels"),
    (".svm", np.eye(2), ["a", "b"], None, "string labels"),
    (".svm", np.eye(2), None, ["a", "b"], "ids"),
    (".csv", np.eye(2), ["a\nb", "c"], None, "several lines"),
    (".csv", np.eye(2), None, ["", "c"], "empty"),
    (".csv", np.eye(2), [1], None, "expected 2 labels, got 1"),
    (".csv", np.eye(2), None, ["a"], "expected 2 ids, got 1"),
    (".csv", np.eye(2), [[1], [2]], None, "1-d array"),
    (".csv", np.eye(2), [1, None], None, "type object"),
    (".csv", [[1.0, np.nan]], None, None, "not finite at row 0, column 1"),
    (".csv", [1.0], None, None, "at least one row"),
    (".xls", np.eye(2), None, None, "unknown extension"),
]


@pytest.mark.parametrize(("extension", "items", "labels", "ids", "message"), CANNOT_HOLD)
def test_what_cannot_be_written(tmp_path, extension, items, labels, ids, message):
    path = tmp_path / f"items{extension}"
    refuse(f"items{extension}: .*{message}", write_items, path, items, labels, ids)
    assert not path.exists()


def test_labels_held_as_objects(tmp_path):
    path = tmp_path / "items.npz"
    write_items(path, np.eye(2), labels=np.array(["a", "b"], dtype=object))
    assert read_items(path).labels.tolist() == ["a", "b"]


# -- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "cat\ndog, big\n", ["cat", "dog, big"]),
        ("b.txt", "label\n1\n2\n\n", [1, 2]),
        ("c.csv", 'Label\n"a,b"\nc\n', ["a,b", "c"]),
        ("d.csv.gz", "1.5\r\n2\r\n", [1.5, 2.0]),
        ("e.csv", "1\n2.0\n", [1, 2]),
        ("f.jsonl", '"1"\n"b"\n', ["1", "b"]),
        ("g.jsonl", '{"label": 3, "id": 1}\n\n{"label": 4}\n', [3, 4]),
        ("h.txt", "9007199254740993\n1\n", [9007199254740993, 1]),
    ],
)
def test_labels(tmp_path, name, text, expected):
    labels = read_labels(text_file(tmp_path, name, text))
    assert labels.tolist() == expected
    assert [type(label) for label in labels.tolist()] == [type(label) for label in expected]


def test_labels_from_an_array(tmp_path):
    for labels in (np.array([3, 1, 2]), np.array(["x", "yy"])):
        np.save(tmp_path / "labels.npy", labels)
        np.testing.assert_array_equal(read_labels(tmp_path / "labels.npy"), labels)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gap.txt", "a\n\nb\n", "gap.txt, line 2: blank line"),
        ("two.csv", "a\nb,c\n", "two.csv, line 2: not a label.*one label per line"),
        ("head.txt", "label\n", "head.txt: no labels"),
        ("empty.txt", "", "empty.txt: empty file"),
        ("nan.txt", "1\nnan\n", "nan.txt: label 1 .*not finite"),
        ("kind.jsonl", '1\n"a"\n', "kind.jsonl, line 2: .*a number, like the first"),
        ("null.jsonl", "null\n", "null.jsonl, line 1: .*a string or a number, got None"),
        ("bad.jsonl", "1\n{\n", "bad.jsonl, line 2: not JSON"),
        ("huge.csv", "x" * 200_000, "huge.csv, line 1: not CSV"),
        ("labels.svm", "1", "labels.svm: unknown extension"),
    ],
)
def test_bad_labels(tmp_path, name, text, message):
    refuse(message, read_labels, text_file(tmp_path, name, text))


# -- triplets: formats ---------------------------------------------------------------------------

numbers = st.integers(0, 2**63 - 1) | st.integers(0, 30)
triplets = st.tuples(numbers, numbers, numbers).filter(lambda t: t[1] != t[2])
pairs = st.tuples(numbers, st.integers(31, 99), st.sampled_from([1, -1])).filter(
    lambda pair: pair[0] != pair[1]
)


@pytest.mark.parametrize("kind", ["triplets", "pairs"])
@pytest.mark.parametrize("extension", RECORDS)
@few
@given(batch_size=st.integers(1, 12), data=st.data())
def test_records_round_trip_and_resume(tmp_path, kind, extension, batch_size, data):
    path = tmp_path / f"{kind}{extension}"
    records = data.draw(
        st.lists(triplets if kind == "triplets" else pairs, min_size=1, max_size=90)
    )
    expected = [list(record) for record in records]
    array = np.array(expected)
    if kind == "triplets":
        write_triplets(path, array)
    else:
        write_pairs(path, array[:, :2], array[:, 2])
    read = read_triplets if kind == "triplets" else read_pairs
    rows, batches = read_all(path, read, batch_size=batch_size)
    assert rows == expected
    n_read = 0
    for batch in batches:
        for part in batch.tuples:
            assert 1 <= len(part) <= batch_size
            assert part.dtype == np.int64
            assert part.flags.c_contiguous
        n_read += len(batch.tuples[0])
        assert (batch.position, batch.n_skipped) == (n_read, 0)
    start = data.draw(st.integers(0, len(records)))
    rows, batches = read_all(path, read, batch_size=batch_size, start=start)
    assert rows == expected[start:]
    assert not batches or batches[-1].position == len(records)


@pytest.mark.parametrize("names", formats.records.TRIPLETS.names[:3], ids=",".join)
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_names_in_any_order_among_other_columns(tmp_path, names, order):
    triplet = [10, 20, 30]
    header = [names[k] for k in order]
    row = [str(triplet[k]) for k in order]
    for lead, value in (([], []), (["puid"], ["user 7"])):
        text = ",".join(lead + header).title() + "\n" + ",".join(value + row) + "\n"
        assert read_all(text_file(tmp_path, "t.csv", text))[0] == [triplet]
    record = {name: triplet[k] for name, k in zip(header, order, strict=True)}
    for extra in ({}, {"time": 1.5, "note": "{"}):
        path = text_file(tmp_path, "t.jsonl", json.dumps(record | extra) + "\n")
        assert read_all(path)[0] == [triplet]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "1,2,3\n4,5,6"),
        ("crlf.csv", "anchor,positive,negative\r\n1,2,3\r\n4,5,6\r\n"),
        ("mark.csv", "\ufeffanchor,positive,negative\n1,2,3\n4,5,6\n"),
        ("blank.csv", "\n\n1,2,3\n \n\n4,5,6\n\n"),
        ("space.csv", " 1, 2, 3\n 4, 5, 6\n"),
        ("quote.csv", '"anchor","positive","negative"\n"1","2","3"\n"4","5","6"\n'),
        ("zero.csv", "01,2,3\n4,+5,006\n"),
        ("gz.csv.gz", "1,2,3\n4,5,6\n"),
        ("tabs.tsv", "1\t2\t3\n4\t5\t6\n"),
        ("head.tsv", '"negative"\tanchor\tnote\tpositive\n3\t1\ta b\t2\n6\t4\t\t5\n'),
        ("white.txt", "  1 2   3\n4\t5 6\r\n"),
        ("head.txt", "anchor positive negative\n1 2 3\n4 5 6\n"),
        ("commas.txt", "1,2,3\n4, 5,6\n"),
        ("tabs.txt", "1\t2\t3\n4\t5\t6\n"),
        ("array.jsonl", "[1,2,3]\n[4, 5, 6]\n"),
        ("mixed.jsonl", '[1,2,3]\n{"winner": 5, "loser": 6, "head": 4}\n'),
    ],
)
def test_ways_to_write_the_same(tmp_path, name, text):
    assert read_all(text_file(tmp_path, name, text))[0] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "text",
    ["1,2,3\n", "1\t2\t3\n", "1 2 3\n", "[1,2,3]\n", '\n{"anchor":1,"near":2,"far":3}'],
)
def test_streams_tell_their_format_by_the_first_line(text):
    for stream in (
        io.StringIO(text),
        io.BytesIO(text.encode()),
        io.TextIOWrapper(io.BytesIO(text.encode())),
    ):
        assert read_all(stream)[0] == [[1, 2, 3]]


def test_an_empty_stream_is_no_error():
    assert read_all(io.BytesIO(b""))[1] == []
    assert read_all(io.BytesIO(b"anchor,positive,negative\n"))[1] == []


def test_a_file_given_as_a_stream(tmp_path):
    path = text_file(tmp_path, "t.csv", "1,2,3\n" * 10)
    for buffering in (0, -1):
        with open(path, "rb", buffering=buffering) as stream:
            _, batches = read_all(stream, batch_size=4)
        assert [len(batch.triplets) for batch in batches] == [4, 4, 2]


# -- triplets: streaming -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["buffered", "unbuffered", "text", "non-blocking", "named pipe"])
def test_lines_of_a_pipe_arrive_before_it_is_closed(tmp_path, mode):
    """The writer goes on only after the reader has got what was written: waiting would deadlock."""
    answered = threading.Event()
    got = []

    def write(descriptor):
        with open(descriptor, "wb", buffering=0) as writer:
            for piece in (b"anchor,positive,negative\n0,1,2\n", b"3,4,5\n6,7", b",8\n", b"9,10,11"):
                writer.write(piece)
                if b"\n" in piece:
                    in_time.append(answered.wait(10))
                    answered.clear()

    in_time = []
    if mode == "named pipe":
        source = tmp_path / "pipe"
        os.mkfifo(source)
        thread = threading.Thread(target=write, args=(source,))
        stream = None
    else:
        reading, writing = os.pipe()
        os.set_blocking(reading, mode != "non-blocking")
        options = {"text": {"mode": "r"}, "unbuffered": {"mode": "rb", "buffering": 0}}
        stream = source = os.fdopen(reading, **options.get(mode, {"mode": "rb"}))
        thread = threading.Thread(target=write, args=(writing,))
    thread.start()
    for batch in read_triplets(source):
        got.append((batch.triplets.tolist(), batch.position))
        answered.set()
    thread.join()
    if stream is not None:
        stream.close()
    assert got == [([[0, 1, 2]], 1), ([[3, 4, 5]], 2), ([[6, 7, 8]], 3), ([[9, 10, 11]], 4)]
    assert in_time == [True, True, True]


def test_a_full_pipe_is_cut_into_batches_and_resumed():
    reading, writing = os.pipe()
    with open(writing, "wb") as writer:
        writer.write(b"".join(b"%d,%d,%d\n" % (k, k + 1, k + 2) for k in range(100)))
    with open(reading, "rb") as stream:
        rows, batches = read_all(stream, batch_size=30, start=15)
    assert rows == [[k, k + 1, k + 2] for k in range(15, 100)]
    assert [batch.position for batch in batches] == [45, 75, 100]


# -- triplets: bad records -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "anchor,positive,negative\na,b,c\n"),
        ("t.csv", "a,b,c\n"),
        ("t.jsonl", '{"anchor": "a", "positive": "b", "negative": "c"}\n'),
        ("t.jsonl", '["a", "b", "c"]\n'),
    ],
)
def test_ids_of_items_that_have_none(tmp_path, name, text):
    path = text_file(tmp_path, name, text)
    refuse("ids, but the items have no ids.*--item-ids", list, read_triplets(path))
    assert read_all(path, ids=["c", "b", "a"])[0] == [[2, 1, 0]]


def test_ids_of_pairs_and_of_arrays_whose_items_have_none(tmp_path):
    path = text_file(tmp_path, "p.csv", "first,second,y\na,b,1\n")
    refuse("not a pair: ids, but the items have no ids", list, read_pairs(path))
    np.save(tmp_path / "t.npy", np.array([["a", "b", "c"]]))
    refuse("not triplets: ids, but the items", list, read_triplets(tmp_path / "t.npy"))


BAD_LINES = [
    ("1,2", "not a triplet; expected three integers, got '1,2'"),
    ("1,2,3,4", "not a triplet"),
    ("1,2,x", "not a triplet"),
    ("1,2,", "not a triplet"),
    ("1,2,3.0", "not a triplet"),
    ("1,2,1_0", "not a triplet"),
    ("1,2,\u0663", "not a triplet"),
    ('"1,2,3', "not a triplet"),
    (f"1,2,{2**63}", "not a triplet"),
    ("1,2," + "9" * 5000, "not a triplet"),
    ("1,-2,3", "negative item number; expected numbers from 0"),
    ("1,2,2", "positive equals negative; expected two different items"),
    ("10,2,3", "item number too large; expected anchor < 10, positive and negative < 10"),
    ("1,2,10", "item number too large"),
]
BAD_JSON = [
    ("[1,2]", "not a triplet"),
    ('[1,2,"3"]', "not a triplet"),
    ("[1,2,3.0]", "not a triplet"),
    ("[1,2,true]", "not a triplet"),
    ("[1,2,03]", "not a triplet"),
    ("[1,2,3", "not a triplet"),
    ("{}", "not a triplet"),
    ('{"anchor":1,"positive":2,"far":3}', "not a triplet"),
    ("5", "not a triplet"),
    ("[" * 100_000, "not a triplet"),
    ("[1,2,2]", "positive equals negative"),
    ("[1,2,-3]", "negative item number"),
    ("[1,2,99]", "item number too large"),
]


@pytest.mark.parametrize(
    ("bad", "problem", "extension"),
    [(*case, "csv") for case in BAD_LINES] + [(*case, "jsonl") for case in BAD_JSON],
    ids=lambda value: value[:12],
)
def test_bad_records(tmp_path, bad, problem, extension):
    good = ["1,2,3", "4,5,6"] if extension == "csv" else ["[1,2,3]", "[4,5,6]"]
    text = "\n".join([good[0], "", bad, good[1], bad, good[0]]) + "\n"
    path = text_file(tmp_path, f"t.{extension}", text)

    batches = read_triplets(path, n_items=10)
    first = next(batches)
    assert (first.triplets.tolist(), first.position) == ([[1, 2, 3]], 1)
    refuse(f"t.{extension}, line 3: {problem}", next, batches)

    rows, batches = read_all(path, n_items=10, on_error="skip")
    assert rows == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]
    assert [(batch.position, batch.n_skipped) for batch in batches] == [(5, 2)]
    for start in range(6):
        rows, batches = read_all(path, n_items=10, on_error="skip", start=start, batch_size=2)
        assert rows == [[1, 2, 3], [4, 5, 6], [1, 2, 3]][[0, 1, 1, 2, 2, 3][start] :]
        assert sum(batch.n_skipped for batch in batches) == [2, 2, 1, 1, 0, 0][start]
        assert not batches or batches[-1].position == 5
    with pytest.raises(FormatError, match="line 5"):
        read_all(path, n_items=10, start=2)


def test_bad_lines_far_into_a_file_and_their_numbers(tmp_path):
    lines = [f"{k},{k + 1},{k + 2}" for k in range(10_000)]
    bad = [17, 4095, 4096, 9_999]
    for k in bad:
        lines[k] = "oops,1,2"
    path = text_file(tmp_path, "t.csv", "anchor,positive,negative\n" + "\n".join(lines))
    rows, batches = read_all(path, on_error="skip")
    assert rows == [[k, k + 1, k + 2] for k in range(10_000) if k not in bad]
    assert sum(batch.n_skipped for batch in batches) == len(bad)
    for k in bad:  # the header is line 1
        refuse(f"t.csv, line {k + 2}: not a triplet", list, read_triplets(path, start=k))


def test_bad_records_of_streams_and_arrays(tmp_path):
    refuse("<stream>, line 2: not a triplet", read_all, io.BytesIO(b"1,2,3\nx,1,2\n"))
    path = tmp_path / "t.npy"
    np.save(path, np.array([[0, 1, 2], [3, 4, 4], [5, 6, 7]], dtype=np.uint8))
    refuse(r"t.npy: positive equals negative in row 1 .*got \[3, 4, 4\]", read_all, path)
    rows, batches = read_all(path, on_error="skip", n_items=7, start=1)
    assert rows == []
    assert [(batch.position, batch.n_skipped) for batch in batches] == [(3, 2)]


def test_two_item_spaces(tmp_path):
    path = text_file(tmp_path, "t.csv", "1,7,8\n2,7,8\n")
    refuse("line 2: .*anchor < 2, positive and negative < 9", read_all, path, n_items=(2, 9))
    assert read_all(path, n_items=(3, 9))[0] == [[1, 7, 8], [2, 7, 8]]
    refuse("line 1: .*anchor < 3, positive and negative < 8", read_all, path, n_items=(3, 8))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "head.csv",
            "a,b,c\n1,2,3\n",
            "head.csv, line 1: unknown header.*head,winner,loser.*'a,b,c'",
        ),
        ("part.csv", "\nanchor,positive,loser\n", "part.csv, line 2: unknown header"),
        ("none.csv", "anchor,positive,negative\n", "none.csv: no triplets"),
        ("blank.jsonl", "\n \n", "blank.jsonl: no triplets"),
        ("empty.csv", "", "empty.csv: empty file"),
        ("float.csv", "1.0,2.0,3.0\n", "float.csv, line 1: not a triplet"),
        ("t.dat", "1,2,3\n", r"t.dat: unknown extension.*\.csv, \.jsonl"),
        ("bad.npy", "no array", "bad.npy: damaged or truncated"),
    ],
)
def test_bad_files_of_triplets(tmp_path, name, text, message):
    refuse(message, read_all, text_file(tmp_path, name, text))


def test_bad_arrays_of_triplets(tmp_path):
    for array in (np.zeros((2, 2), int), np.zeros(3, int), np.zeros((2, 3))):
        np.save(tmp_path / "t.npy", array)
        refuse("t.npy: not triplets.*shape", read_all, tmp_path / "t.npy")
    np.save(tmp_path / "t.npy", np.zeros((0, 3), int))
    refuse("t.npy: no triplets", read_all, tmp_path / "t.npy")
    np.savez(tmp_path / "t.npz", pairs=[[1, 2]])
    refuse("t.npz: not triplets.*'triplets'.*got pairs", read_all, tmp_path / "t.npz")


def test_a_start_beyond_the_end(tmp_path):
    for extension in (".csv", ".npy"):
        path = tmp_path / f"t{extension}"
        write_triplets(path, [[0, 1, 2]])
        assert read_all(path, start=1)[1] == []
        refuse(
            "too short to resume; expected at least start=2 records, got 1", read_all, path, start=2
        )


def test_a_cut_off_file_gives_what_it_has(tmp_path):
    path = tmp_path / "t.csv.gz"
    rng = np.random.default_rng(0)
    triplets = rng.integers([0, 0, 1000], [1000, 500, 2000], size=(50_000, 3))
    write_triplets(path, triplets)
    path.write_bytes(path.read_bytes()[:-1000])
    batches = read_triplets(path)
    assert next(batches).triplets.tolist() == triplets[: 4096 - 1].tolist()
    refuse("t.csv.gz: damaged or truncated", list, batches)


def test_wrong_options(tmp_path):
    path = text_file(tmp_path, "t.csv", "1,2,3\n")
    with pytest.raises(ValueError, match="on_error: expected one of 'fail', 'skip', got 'ignore'"):
        read_triplets(path, on_error="ignore")
    with pytest.raises(ValueError, match="batch_size: expected an integer >= 1, got 0"):
        read_triplets(path, batch_size=0)
    with pytest.raises(ValueError, match="start: expected an integer >= 0, got -1"):
        read_triplets(path, start=-1)


def test_only_triplets_are_written(tmp_path):
    path = tmp_path / "t.csv"
    refuse("t.csv: not triplets.*shape", write_triplets, path, [[1, 2]])
    refuse("t.csv: not triplets.*float64", write_triplets, path, [[1.0, 2.0, 3.0]])
    refuse("t.csv: positive equals negative in row 1", write_triplets, path, [[1, 2, 3], [1, 2, 2]])
    refuse("t.csv: negative item number in row 0", write_triplets, path, [[-1, 2, 3]])
    refuse("t.dat: unknown extension", write_triplets, tmp_path / "t.dat", [[1, 2, 3]])
    assert os.listdir(tmp_path) == []


def test_an_anchor_among_the_others_is_bad_where_asked_for(tmp_path):
    path = text_file(tmp_path, "t.csv", "1,2,3\n4,4,5\n6,7,6\n")
    assert len(read_all(path)[0]) == 3
    refuse("line 2: anchor compared with itself", read_all, path, distinct=True)
    assert read_all(path, distinct=True, on_error="skip")[0] == [[1, 2, 3]]


TASKS = ["ann", "a b", "c,d", 'say "x"', "\u00fc", "7"]


@pytest.mark.parametrize("extension", RECORDS)
@pytest.mark.parametrize("has_answers", [True, False])
def test_answers_and_tasks_round_trip(tmp_path, extension, has_answers):
    path = tmp_path / f"t{extension}"
    one_word = extension == ".txt"
    tasks = [task for task in TASKS if not one_word or len(task.split()) == 1]
    triplets = np.arange(3 * len(tasks)).reshape(-1, 3)
    y = np.where(np.arange(len(tasks)) % 2, 1, -1) if has_answers else None
    if extension == ".npy":
        refuse("npy cannot hold", write_triplets, path, triplets, y, tasks)
        return
    write_triplets(path, triplets, y, tasks)
    batches = list(read_triplets(path, batch_size=3))
    assert np.concatenate([batch.triplets for batch in batches]).tolist() == triplets.tolist()
    assert np.concatenate([batch.tasks for batch in batches]).tolist() == tasks
    answers = np.concatenate([batch.tuples[1] for batch in batches])
    assert answers.tolist() == (y.tolist() if has_answers else [1] * len(tasks))
    assert (batches[0].y is None) == (not has_answers)


# -- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "1,2,1\n4,5,-1"),
        ("plus.csv", "1,2,+1\n4,5,-1\n"),
        ("head.csv", "y,second,when,first\n1,2,5,1\n-1,5,6,4\n"),
        ("tabs.tsv", "left\tright\ty\n1\t2\t+1\n4\t5\t-1\n"),
        ("white.txt", "1  2 +1\n4 5  -1\n"),
        ("array.jsonl", "[1,2,1]\n[4, 5, -1]\n"),
        ("object.jsonl", '{"i": 1, "j": 2, "y": 1}\n{"y": -1, "i": 4, "j": 5, "who": "-"}\n'),
    ],
)
def test_ways_to_write_the_same_pairs(tmp_path, name, text):
    path = text_file(tmp_path, name, text)
    assert read_all_pairs(path)[0] == [[1, 2, 1], [4, 5, -1]]
    if not name.endswith(".tsv"):
        assert read_all_pairs(io.BytesIO(text.encode()))[0] == [[1, 2, 1], [4, 5, -1]]


BAD_PAIRS = [
    ("1,2", "not a pair; expected two item numbers and \\+1 or -1, got '1,2'"),
    ("1,2,x", "not a pair"),
    ("1,2,1.0", "not a pair"),
    ("1,2,--1", "not a pair"),
    (
        "1,2,3",
        "bad label of a pair; expected \\+1 \\(similar\\), -1 or 0, got '1,2,3'",
    ),
    ("1,2,2", "bad label"),
    ("1,2,-2", "bad label"),
    ("1,2,888888881", "bad label"),
    ("-1,2,1", "negative item number"),
    ("1,-1,1", "negative item number"),
    ("3,3,1", "an item paired with itself"),
    ("10,2,1", "item number too large; expected first < 10, second < 10"),
    ("1,10,-1", "item number too large"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD_PAIRS, ids=[bad for bad, _ in BAD_PAIRS])
@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_bad_pairs(tmp_path, bad, problem, extension):
    lines = ["1,2,1", "4,5,-1", bad, "1,2,1"]
    if extension == "jsonl":
        problem = problem.partition(",")[0]
        lines = [f"[{line}]" for line in lines]
    path = text_file(tmp_path, f"p.{extension}", "\n".join(lines))
    batches = read_pairs(path, n_items=10)
    first = next(batches)
    assert (first.pairs.tolist(), first.y.tolist(), first.position) == (
        [[1, 2], [4, 5]],
        [1, -1],
        2,
    )
    refuse(f"p.{extension}, line 3: {problem}", next, batches)
    rows, batches = read_all_pairs(path, n_items=10, on_error="skip")
    assert rows == [[1, 2, 1], [4, 5, -1], [1, 2, 1]]
    assert sum(batch.n_skipped for batch in batches) == 1


@pytest.mark.parametrize("batch_size", [1, 4096])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("p.csv", ["1,2,1", "4,5,-1", "1,3,1", "3,4,0", "4,2,-1"]),
        ("p.csv", ["1,2,1", "4,5,0", "1,3,1", "3,4,-1", "4,2,0"]),
        ("p.csv", ["1,2,true", "4,5,false", "1,3,1", "3,4,-1", "4,2,0"]),
        ("p.jsonl", ["[1,2,true]", "[4,5,false]", "[1,3,1]", "[3,4,-1]", "[4,2,0]"]),
        ("p.npy", [[1, 2, 1], [4, 5, 0], [1, 3, 1], [3, 4, -1], [4, 2, 0]]),
    ],
)
def test_labels_0_and_minus_1_of_pairs_do_not_mix(tmp_path, name, lines, batch_size):
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, lines)
    else:
        text_file(tmp_path, name, "\n".join(lines))
    place = "in row 3" if name.endswith("npy") else "line 4"
    message = f"{place}.*labels 0 and -1|labels 0 and -1 of pairs in one input {place}"
    refuse(message, read_all_pairs, path, batch_size=batch_size)
    rows, batches = read_all_pairs(path, batch_size=batch_size, on_error="skip")
    assert rows == [[1, 2, 1], [4, 5, -1], [1, 3, 1], [4, 2, -1]]
    assert sum(batch.n_skipped for batch in batches) == 1


def test_json_has_no_plus_sign(tmp_path):
    path = text_file(tmp_path, "p.jsonl", "[1,2,+1]\n" * 100)
    refuse("p.jsonl, line 1: not a pair", read_all_pairs, path)


def test_equal_numbers_are_different_items_in_two_spaces(tmp_path):
    path = text_file(tmp_path, "p.csv", "3,3,1\n")
    assert read_all_pairs(path, n_items=(4, 4))[0] == [[3, 3, 1]]
    refuse("paired with itself", read_all_pairs, path, n_items=4)
    refuse("paired with itself", read_all_pairs, path)
    refuse("first < 3, second < 9", read_all_pairs, path, n_items=(3, 9))


def test_bad_files_of_pairs(tmp_path):
    for name, text, message in (
        ("head.csv", "a,b,c\n1,2,1\n", "line 1: unknown header; expected first,second,y or"),
        ("triplets.csv", "anchor,positive,negative\n1,2,3\n", "line 1: unknown header"),
        ("none.csv", "first,second,y\n", "none.csv: no pairs"),
        ("empty.jsonl", "", "empty.jsonl: empty file"),
    ):
        refuse(message, read_all_pairs, text_file(tmp_path, name, text))
    np.save(tmp_path / "p.npy", np.zeros((2, 2), int))
    refuse(r"p.npy: not pairs.*\(n, 3\), got shape \(2, 2\)", read_all_pairs, tmp_path / "p.npy")
    np.save(tmp_path / "p.npy", [[0, 1, 1], [0, 2, 7]])
    refuse("p.npy: bad label of a pair in row 1", read_all_pairs, tmp_path / "p.npy")
    np.savez(tmp_path / "p.npz", triplets=[[0, 1, 2]])
    refuse("p.npz: not pairs.*'pairs'.*got triplets", read_all_pairs, tmp_path / "p.npz")


def test_only_pairs_are_written(tmp_path):
    path = tmp_path / "p.csv"
    refuse("p.csv: not pairs.*shape", write_pairs, path, [[1, 2, 3]], [1])
    refuse("p.csv: not pairs.*float64", write_pairs, path, [[1.0, 2.0]], [1])
    refuse("p.csv: bad labels of pairs.*for each of 1", write_pairs, path, [[1, 2]], [2])
    refuse("p.csv: bad labels of pairs", write_pairs, path, [[1, 2]], [1, -1])
    refuse("p.csv: bad labels", write_pairs, path, [[1, 2], [1, 3], [2, 3]], [1, -1, 0])
    refuse("p.csv: negative item number in row 0", write_pairs, path, [[-1, 2]], [1])
    assert os.listdir(tmp_path) == []
    write_pairs(path, [[1, 2]], np.array([-1.0]))  # labels as the library's own floats
    assert path.read_text() == "first,second,y\n1,2,-1\n"


# -- triplets: the fast parser never disagrees with the slow one ---------------------------------

CSV, JSON = CellParser([], ",", formats.records.TRIPLETS), JsonParser(formats.records.TRIPLETS)

cells = st.sampled_from(
    ["1", "20", "-1", "+1", "007", "-4", "+5", "", " 6", "x", "9" * 19, "1 2", "\x01", "888888881"]
)
separators = st.sampled_from([",", ", ", ",,", ";", "\x01", '","'])
lines_of_csv = st.tuples(cells, separators, cells, separators, cells).map("".join)
regular = st.lists(st.tuples(*[st.integers(0, 10**19)] * 3), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(lines=st.lists(lines_of_csv, min_size=1, max_size=4))
@example(lines=["1,2,3", "4,5 6,7"])
@example(lines=["1, 2,3", "4,5, 6"])
@example(lines=["1,2,-1", "888888881,2,1"])
@example(lines=["1,2,-4", "888888881,2,1"])
@example(lines=["1,2,1", "4,5-1,1"])
@example(lines=["-1,2,1", "1,-1,1", "1,1,+1"])
@example(lines=["1,2,3", "4\x015\x016"])
def test_blocks_of_odd_csv(lines):
    check_block([line.encode() for line in lines], CSV)


@settings(max_examples=200, deadline=None)
@given(
    rows=regular, odd=st.sampled_from([None, *(text for text, _ in BAD_JSON[:-4])]), data=st.data()
)
@example(rows=[(1, 2, 3)], odd='{"anchor": 1, "negative": 2, "positive": 3}', data=None)
@example(rows=[(1, 2, 3)], odd='{"anchor": 1,2, "negative": 3}', data=None)
def test_blocks_of_odd_json(rows, odd, data):
    pattern = '{"anchor": %d, "positive": %d, "negative": %d}'
    lines = [(pattern % row).encode() for row in rows]
    if odd is not None:
        place = len(lines) if data is None else data.draw(st.integers(0, len(lines)))
        lines.insert(place, odd.encode())
    check_block(lines, JSON)


def check_block(lines, parser):
    triplets = parser.parse_block(b"\n".join([*lines, b""]))
    if triplets is not None:
        assert triplets.tolist() == parser.parse_lines(lines).numbers.tolist()


def test_regular_blocks_are_parsed_as_a_whole():
    """Otherwise the test above would be about nothing."""
    for lines, parser in [
        (b"1,2,3\n40,50,60\n", CSV),
        (b" 1, 2,3\r\n 40, 50,60\r\n", CSV),
        (b"[1, 2, 3]\n[40, 50, 60]\n", JSON),
        (
            b'{"loser": 3, "head": 1, "winner": 2}\n{"loser": 60, "head": 40, "winner": 50}\n',
            JSON,
        ),
    ]:
        assert parser.parse_block(lines).tolist() == [[1, 2, 3], [40, 50, 60]]
    for lines, parser in [
        (b"1,2,-1\n40,50,+1\n", CSV),
        (b"1 2 -1\n40 50 1\n", CellParser([], None, formats.records.TRIPLETS)),
        (b"[1, 2, -1]\n[40, 50, 1]\n", JSON),
    ]:
        assert parser.parse_block(lines).tolist() == [[1, 2, -1], [40, 50, 1]]
    assert JSON.parse_block(b"[1, 2, +1]\n") is None


def test_public_names():
    assert set(formats.__all__) == {
        "Batch",
        "ClickedSearch",
        "FormatError",
        "ItemsFile",
        "PairBatch",
        "RowBlocks",
        "atomic_write",
        "open_rows",
        "read_clicks",
        "read_ids",
        "read_items",
        "read_labels",
        "read_pairs",
        "read_relevance",
        "read_tasks",
        "read_texts",
        "read_triplets",
        "write_items",
        "write_pairs",
        "write_triplets",
    }
    assert issubclass(FormatError, ValueError)
    error = pickle.loads(pickle.dumps(FormatError("one line")))
    assert str(error) == "one line"


# -- triplets with answers and tasks ----------------------------------------------------------------


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".txt", ".jsonl", ".csv.gz", ".npz"])
@pytest.mark.parametrize("besides", [("y",), ("tasks",), ("y", "tasks")], ids="+".join)
def test_answers_and_tasks_are_read_as_written(tmp_path, extension, besides):
    path = tmp_path / f"t{extension}"
    triplets = np.array([[0, 1, 2], [3, 4, 5], [1, 0, 9]])
    given = {"y": np.array([1, -1, -1]), "tasks": np.array(["ann", "17", 'b"o,b'])}
    write_triplets(path, triplets, **{name: given[name] for name in besides})
    (batch,) = read_triplets(path)
    np.testing.assert_array_equal(batch.triplets, triplets)
    for name, values in given.items():
        found = getattr(batch, name)
        if name in besides:
            assert found.tolist() == values.tolist()
        else:
            assert found is None
    assert len(batch.tuples) == 1 + ("y" in besides or "tasks" in besides) + ("tasks" in besides)


def test_columns_are_found_by_name_and_bad_records_told():
    text = "task,loser,y,head,winner\nann,2,+1,0,1\n,2,1,0,1\nbob,2,0,0,1\nbob,5,-1,3,4\n"
    first, *rest = read_triplets(io.StringIO(text), on_error="skip", batch_size=1)
    assert (first.triplets.tolist(), first.y.tolist()) == ([[0, 1, 2]], [1])
    assert [batch.n_skipped for batch in rest] == [1, 1, 0]
    assert rest[-1].tasks.tolist() == ["bob"]
    for n_lines, message in ((3, "line 3: no task"), (4, "line 3: bad answer")):
        lines = text.splitlines()[:n_lines]
        if n_lines == 4:
            del lines[2]
        with pytest.raises(FormatError, match=message):
            list(read_triplets(io.StringIO("\n".join(lines) + "\n")))


def test_json_has_a_task_in_every_line_or_in_none():
    with_task = '{"anchor": 0, "positive": 1, "negative": 2, "task": 7}\n'
    without = '{"anchor": 0, "positive": 1, "negative": 2}\n'
    for text, n_good in (
        (with_task + without, 1),
        (without + with_task, 1),
        ("{oops\n" + with_task, 1),
    ):
        batches = list(read_triplets(io.StringIO(text), on_error="skip"))
        assert sum(len(batch.triplets) for batch in batches) == n_good
        assert sum(batch.n_skipped for batch in batches) == 1
    assert batches[0].tasks.tolist() == ["7"]
    with pytest.raises(FormatError, match="the task that the first record has"):
        list(read_triplets(io.StringIO(with_task + without)))


def test_what_a_format_cannot_hold_is_refused(tmp_path):
    for name, options, message in (
        ("t.npy", {"tasks": ["a"]}, "npy cannot hold"),
        ("t.txt", {"tasks": ["a b"]}, "without white space"),
        ("t.csv", {"tasks": ["a\nb"]}, "one line of text"),
        ("t.csv", {"tasks": [""]}, "no task"),
        ("t.csv", {"y": [2]}, "bad answer"),
        ("t.csv", {"y": [1, 1]}, "bad array 'y'"),
    ):
        with pytest.raises(FormatError, match=message):
            write_triplets(tmp_path / name, [[0, 1, 2]], **options)
        assert not (tmp_path / name).exists()


def test_names_of_tasks_are_texts(tmp_path):
    np.save(tmp_path / "t.npy", np.array([1.0, 2.0]))
    (tmp_path / "t.jsonl").write_text('{"task": 1}\n{"task": 2}\n')
    (tmp_path / "t.csv").write_text("task\n1\n2\n")
    for extension in (".npy", ".jsonl", ".csv"):
        assert read_tasks(tmp_path / f"t{extension}").tolist() == ["1", "2"]


def test_errors_of_triplets_say_what_is_missing():
    whole = '{"anchor": 0, "positive": 1, "negative": 2, "y": 1, "task": "ann"}\n'
    for text, message in (
        (
            "a,b,c\n0,1,2\n",
            "unknown header.*anchor,first,second,y, optionally with task and y",
        ),
        ("0,1,2,1,ann\n", "5 columns without a header, which is required"),
        ('{"anchor": 0, "positive": 1}\n', "no key 'negative'"),
        ('{"head": 0, "loser": 1}\n', "no key 'winner'"),
        ('{"anchor": 0, "positive": 1.5, "negative": 2}\n', "key 'positive' is not an integer"),
        (whole + whole.replace(', "y": 1', ""), "line 2: not a triplet: no key 'y'"),
        (whole + whole.replace(', "task": "ann"', ""), "line 2: not a triplet: no key 'task'"),
        (whole + whole.replace('"ann"', "[]"), "key 'task' is not a string or an integer"),
        (whole.replace(', "y": 1', "") + whole, "key 'y', which the first record does not have"),
        (
            "anchor,positive,negative,y\n0,1,2,0\n",
            r"y = \+1 \(the first candidate is nearer\) or -1",
        ),
    ):
        with pytest.raises(FormatError, match=message):
            list(read_triplets(io.StringIO(text)))


def test_missing_names_of_tasks_are_told(tmp_path):
    np.save(tmp_path / "blank.npy", np.array(["ann", ""]))
    np.save(tmp_path / "nan.npy", np.array(["ann", np.nan]))
    np.save(tmp_path / "number.npy", np.array([1.0, np.nan]))
    (tmp_path / "number.txt").write_text("1\nnan\n")
    (tmp_path / "line.txt").write_text("ann\n\nbob\n")
    (tmp_path / "blank.csv").write_text('ann\n"  "\n')
    (tmp_path / "blank.jsonl").write_text('"ann"\n""\n')
    (tmp_path / "none.jsonl").write_text('{"task": "ann"}\n{"user": "bob"}\n')
    for name, message in (
        ("blank.npy", "task 1 .counted from 0. is missing; .*got ''"),
        ("nan.npy", "task 1 .counted from 0. is missing; .*got 'nan'"),
        ("number.npy", "task 1 .counted from 0. is not finite"),
        ("number.txt", "task 1 .counted from 0. is not finite"),
        ("line.txt", "line 2: blank line; expected a task"),
        ("blank.csv", "task 1 .counted from 0. is missing"),
        ("blank.jsonl", "task 1 .counted from 0. is missing"),
        ("none.jsonl", "line 2: not a task; expected a string, like the first task"),
    ):
        with pytest.raises(FormatError, match=message):
            read_tasks(tmp_path / name)
