"""The files of data sets: runs of two files of one data set are not mixed, and others than ours are told."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from sklearn.datasets import load_wine

from commands import fail, succeed
from simstream_repro.data_files import digests, published_digests

RECORDS = Path(__file__).parents[2] / "docs/repro/records"
WINE = "wine.csv.gz"


def write_wine(folder, level):
    """The wine of scikit-learn as a file; the level of compression changes the file, not the data."""
    folder.mkdir(exist_ok=True)
    data = load_wine()
    rows = [[*map(float, row), label] for row, label in zip(data.data, data.target, strict=True)]
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / WINE).write_bytes(gzip.compress(text.encode(), level, mtime=0))
    index = {WINE: {"rows": len(rows), "features": 13, "classes": 3}}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_files_are_known_by_their_bytes(tmp_path):
    folder = write_wine(tmp_path / "data", 9)
    expected = hashlib.sha256((folder / WINE).read_bytes()).hexdigest()
    assert digests(["wine", "vehicle", "synthetic-projected"], folder) == {"wine": expected}


def test_published_files_are_those_of_the_records():
    found = {}
    for path in RECORDS.glob("[pa]*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "data_sha256" in record:
                found.setdefault(record["data"], set()).add(record["data_sha256"])
    assert len(found) > 20
    known = published_digests()
    assert {name: {known[name]} for name in found} == found


def test_runs_of_two_files_are_not_mixed(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMSTREAM_DATA", raising=False)
    given = ["repro", "run", "p1-table2", "--datasets", "wine", "--methods", "Euclidean"]
    given += ["--results", tmp_path / "results", "--data-dir"]
    first, second = (write_wine(tmp_path / f"level {level}", level) for level in (9, 1))
    told = succeed(*given, first, "--seeds", "1").stderr
    assert "other files than those of the published pages" in told
    before = (tmp_path / "results/p1-main.jsonl").read_bytes()
    told = fail(2, *given, second, "--seeds", "2")
    assert "its records of wine come from another file" in told
    assert (tmp_path / "results/p1-main.jsonl").read_bytes() == before
    succeed(*given, first, "--seeds", "2")


@pytest.mark.parametrize("n_files", [1, 2])
def test_a_page_names_all_files_of_its_runs(tmp_path, n_files):
    """As of folders of records that were put together by hand."""
    results = tmp_path / "results"
    given = ["repro", "run", "p1-table2", "--datasets", "wine", "--methods", "Euclidean"]
    folder = write_wine(tmp_path / "data", 9)
    succeed(*given, "--results", results, "--data-dir", folder, "--seeds", "2")
    path = results / "p1-main.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for place, one in enumerate(lines):
        one["data_sha256"] = f"{place % n_files}" * 64
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    succeed("repro", "report", "p1", "--md", "--results", results, "-o", tmp_path)
    page = (tmp_path / "p1.md").read_text()
    assert ("wine 000000000000 and 111111111111 (several files" in page) == (n_files == 2)
    assert "Sentences on this page were written for the records of the published pages" in page
    assert "still to be run: 2,035 of 2,037 cells" in page
