"""Model files: damaged, foreign and newer ones are refused, and writing is atomic."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors import SafetensorError
from safetensors.numpy import save_file

import simstream
from cases import dense, items, triplets
from commands import fail
from simstream import OASIS, SORS, AdaSORS, FromLabels, ModelFileError, persistence
from simstream.data import write_items
from test_contract import same_model

X, T = items(), triplets()


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    OASIS(preprocessor=X).fit(T).save(path)
    return path


def test_equal_models_are_equal_files(saved, tmp_path):
    model, other = simstream.load(saved), tmp_path / "other"
    for _ in range(10):  # one of two orders would be there five times
        model.save(other, extra={"text": "\u00e4 \n \x01"})
        content = other.read_bytes()
        assert content.index(b'"simstream"') < content.index(b'"simstream_crc32"')
    simstream.load(other)


def test_every_truncation_is_refused(saved):
    content = saved.read_bytes()
    for size in [0, 1, 7, 8, 9, 50, len(content) // 2, len(content) - 1]:
        saved.write_bytes(content[:size])
        with pytest.raises(ModelFileError, match=r"model\.safetensors: expected a simstream model"):
            simstream.load(saved)


def test_trailing_bytes_are_refused(saved):
    saved.write_bytes(saved.read_bytes() + b"x")
    with pytest.raises(ModelFileError):
        simstream.load(saved)


def test_foreign_files_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a model")
    message = r"notes\.txt: expected a simstream model .*, got a truncated or foreign file$"
    with pytest.raises(ModelFileError, match=message):
        simstream.load(text)
    other = tmp_path / "weights.safetensors"
    save_file({"w": np.ones(3)}, other)
    with pytest.raises(ModelFileError, match="not a simstream model"):
        simstream.load(other)
    with pytest.raises(FileNotFoundError, match="no such model file"):
        simstream.load(tmp_path / "absent")
    with pytest.raises(IsADirectoryError, match="expected a file, got a folder"):
        simstream.load(tmp_path)
    with pytest.raises(ModelFileError, match="got a device or a pipe"):
        simstream.load("/dev/null")


def rewritten(path, change):
    """The same file with a changed header."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["simstream"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, arrays)
    text = json.dumps(header)
    checksum = persistence._checksum(text, arrays)
    save_file(arrays, path, {"simstream": text, "simstream_crc32": checksum})
    return path


def test_newer_versions_are_refused(saved):
    rewritten(saved, lambda h, a: h.update(format_version=99, simstream_version="9.9"))
    with pytest.raises(ModelFileError, match=r"version 2 or older, got 99 .*upgrade"):
        simstream.load(saved)


@pytest.mark.parametrize("name", ["os.system", "load", "Unheard", "TripletSampler"])
def test_a_file_can_only_name_learners(saved, name):
    rewritten(saved, lambda h, a: h["model"].update({"class": name}))
    with pytest.raises(ModelFileError, match="unknown model class"):
        simstream.load(saved)


def test_missing_parts_are_refused(saved):
    rewritten(saved, lambda h, a: a.pop("state.u"))
    with pytest.raises(ModelFileError, match="damaged"):
        simstream.load(saved)


def test_bad_parameters_in_a_file_are_refused(saved):
    rewritten(saved, lambda h, a: h["model"]["params"].update(C=-1))
    with pytest.raises(ModelFileError, match="C: expected"):
        simstream.load(saved)


def test_a_failing_write_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    model = simstream.load(saved, preprocessor=X).partial_fit(T)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["model.safetensors"]


def test_matrix_start_and_parameters_survive(tmp_path):
    start = np.random.default_rng(0).normal(size=(16, 16))
    for init in (start, sp.csr_matrix(start)):
        model = SORS(lam=0.5, off_diagonal=True, init=init, dtype=np.float32, preprocessor=X).fit(T)
        model.save(tmp_path / "m")
        again = simstream.load(tmp_path / "m")
        assert again.lam == 0.5
        assert again.off_diagonal is True
        assert again.dtype == "float32"
        assert again.preprocessor is None
        np.testing.assert_array_equal(dense(again.init), start)
        same_model(model, again)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("labels", [np.arange(40) % 3, np.array(["x", "y"])[np.arange(40) % 2]])
def test_from_labels_goes_on_with_the_same_stream(convert, labels, tmp_path):
    items_ = convert(X)
    never = FromLabels(AdaSORS(lam=1e-3), n_tuples=200, random_state=3).fit(items_, labels)
    never.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    for model in (never, again):
        model.partial_fit(items_[:30], labels[:30])
    same_model(never.learner_, again.learner_)
    np.testing.assert_array_equal(never.predict(items_), again.predict(items_))
    np.testing.assert_array_equal(never.classes_, again.classes_)
    assert again.learner_.n_rounds_ == 400


def test_header_tells_what_the_file_is(saved):
    header = simstream.read_header(saved)
    assert header["model"]["class"] == "OASIS"
    assert header["model"]["params"]["C"] == 0.1
    assert header["simstream_version"] == simstream.__version__


def test_a_flipped_bit_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ModelFileError, match="checksum"):
        simstream.load(saved)


def _set(name, value):
    return lambda h, a: a.update({f"state.{name}": value(a[f"state.{name}"])})


@pytest.mark.parametrize(
    ("sparse", "change"),
    [
        (False, _set("u", lambda u: u[:-1])),
        (False, _set("u", lambda u: u.astype(np.int64))),
        (False, _set("aux", lambda u: u[:-1])),
        (False, _set("clock", lambda c: c.astype(np.float32))),
        (True, _set("indices", lambda i: i + 100)),
        (True, _set("indices", lambda i: -1 - i)),
        (True, _set("indices", lambda i: i.astype(np.int64))),
        (True, _set("indptr", lambda p: p[::-1].copy())),
        (True, _set("indptr", lambda p: p[:-1])),
        (True, _set("indptr", lambda p: p * 2)),
        (True, _set("numbers", lambda n: n[:, :0])),
        (True, lambda h, a: h["model"]["state"]["scalars"].update(shape=[-16, -16])),
        (True, _set("row_rank", lambda r: r * 0)),
        (True, _set("column_rank", lambda r: r[:-1])),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_compiled_code_sees_them(
    sparse, change, tmp_path
):
    items_ = sp.csr_matrix(X) if sparse else X
    path = tmp_path / "m"
    OASIS(preprocessor=items_, head_bytes=8 * 5 * 5).fit(T).save(path)
    with pytest.raises(ModelFileError, match="damaged"):
        simstream.load(rewritten(path, change))


def test_lists_and_sparse_starts_are_saved_as_they_are(tmp_path):
    start = sp.identity(16, format="csr")
    OASIS(init=start, preprocessor=X).fit(T).save(tmp_path / "m")
    assert simstream.load(tmp_path / "m").init.format == "csr"
    OASIS(init=np.eye(16).tolist(), preprocessor=X).fit(T).save(tmp_path / "m")
    np.testing.assert_array_equal(simstream.load(tmp_path / "m").init, np.eye(16))


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    class Mine(OASIS):
        pass

    with pytest.raises((TypeError, ModelFileError), match="Mine"):
        Mine(preprocessor=X).fit(T).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of the size of files")
def test_no_room_is_told_and_leaves_the_file_as_it_was(tmp_path):
    """A limit on the size of files is met like the end of a disk."""
    path = tmp_path / "model.safetensors"
    simstream.OASIS().fit(np.eye(3)[None]).save(path)
    before = path.read_bytes()
    code = (
        "import resource, sys, numpy as np, simstream\n"
        "from simstream.data import write_items\n"
        "model = simstream.OASIS().fit(np.eye(60)[:3][None])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "for save in (model.save, lambda path: write_items(path + '.npy', np.eye(60))):\n"
        "    try:\n"
        "        save(sys.argv[1])\n"
        "    except simstream.data.FormatError as error:\n"
        "        print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"{path}: cannot be written: file too large",
        f"{path}.npy: cannot be written: no space left on device",
    ]
    assert all(f"free in {tmp_path}" in line for line in lines)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        SafetensorError("Error while serializing: IoError(Os { code: 28, kind: StorageFull })"),
    ],
)
def test_a_full_disk_is_no_bug_of_the_command_line(tmp_path, monkeypatch, error):
    path = tmp_path / "items.npz"
    write_items(path, np.eye(6), [0, 1] * 3)

    def full(*_, **__):
        raise error

    monkeypatch.setattr("simstream.persistence.save_file", full)
    message = fail(1, "train", path, "-n", 10, "-o", tmp_path / "model.safetensors")
    assert "model.safetensors: cannot be written: no space left on device" in message
