"""``simstream repro`` on the command line: names, mistakes, folders."""

import json
from dataclasses import replace

import pytest

from commands import fail, run, succeed
from simstream_repro.plan import load_paper
from simstream_repro.records import RecordStore


def test_names_that_hold_a_comma(tmp_path):
    given = ["repro", "run", "p3-table2", "--quick", "--seeds", "1", "--results", tmp_path]
    succeed(*given, "--methods", "OASIS, averaged,Euclidean")
    (path,) = tmp_path.glob(
        "*.jsonl"
    )  # not that of the study: quick results do not mix with others
    lines = path.read_text().splitlines()
    done = [line for line in lines if '"seed": 0' in line]
    assert sorted('"method": "OASIS, averaged"' in line for line in done) == [False, True]


def test_mistakes_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMSTREAM_DATA", raising=False)
    given = ["repro", "run", "p3-table2", "--results", tmp_path]
    assert "IDS: expected a paper" in fail(2, "repro", "run", "nosuch", "--results", tmp_path)
    assert "got 'OASI'" in fail(2, *given, "--methods", "Euclidean,OASI")
    assert "SIMSTREAM_DATA" in run(*given, "--datasets", "vehicle").stderr


def test_a_report_needs_records(tmp_path):
    nothing = tmp_path / "nothing"
    assert "expected a folder with records" in fail(2, "repro", "report", "--results", nothing)
    assert not nothing.exists()


@pytest.mark.parametrize("word", ["SORS and AdaSORS", "p3-table2"])
def test_papers_are_listed_by_name(tmp_path, word):
    assert word in succeed("repro", "list", "--results", tmp_path).stdout


def test_tidying_keeps_finished_cells_of_the_plan(tmp_path):
    paper = load_paper("p3")
    cells = list(paper.cells(paper.studies["p3-standard"]))[:3]
    store = RecordStore(tmp_path)
    assert not store.sources.is_current(store.sources.note([]))  # of no code at all
    used, _ = (store.sources.note([name]) for name in ("simstream.data", "simstream.metrics"))
    assert store.sources.note(["simstream.data", "simstream.cli.train"]) == used
    for one, status in zip(cells, ("done", "failed", "over budget"), strict=True):
        store.append(one, {"status": status, "measures": {}, "versions": {"source": used}})
    store.append(replace(cells[0], preprocessing="other"), {"status": "done", "measures": {}})
    before = (tmp_path / "p3-standard.jsonl").read_bytes()
    looked = succeed("repro", "tidy", "--results", tmp_path)
    assert "p3-standard: 2 of 4 records would be kept" in looked.stderr
    assert (tmp_path / "p3-standard.jsonl").read_bytes() == before
    succeed("repro", "tidy", "--yes", "--results", tmp_path)
    kept = [one["status"] for one in RecordStore(tmp_path).of_study("p3-standard")]
    assert kept == ["done", "over budget"]
    assert list(json.loads((tmp_path / "sources.json").read_text())) == [used]


def test_what_is_to_be_run_and_what_comes_from_other_code_is_told(tmp_path):
    paper = load_paper("p3")
    cell = next(iter(paper.cells(paper.studies["p3-standard"])))
    record = {"status": "done", "measures": {}, "wall_seconds": 7200.0}
    RecordStore(tmp_path).append(cell, record)
    (row,) = json.loads(
        succeed("repro", "status", "p3-table2", "--json", "--results", tmp_path).stdout
    )
    assert (row["study"], row["n_done"], row["n_stale"], row["stale_hours"]) == (
        "p3-standard",
        1,
        1,
        2.0,
    )
    assert row["n_missing"] == row["n_cells"] - 1
    assert "p3-standard" in succeed("repro", "status", "p3", "--results", tmp_path).stdout
    assert "IDS: expected a paper" in fail(2, "repro", "status", "nosuch", "--results", tmp_path)


def test_a_budget_and_a_folder_that_are_none(tmp_path):
    command = "repro", "run", "p3-standard", "--quick"
    assert "above 0, got nan" in fail(2, *command, "--budget", "nan", "--results", tmp_path)
    (tmp_path / "file").touch()
    refused = fail(2, *command, "--results", tmp_path / "file")
    assert "expected a folder, got the file" in refused


def test_a_missing_extra_is_wrong_usage(monkeypatch):
    monkeypatch.setattr("simstream_repro.command.find_spec", lambda name: None)
    packages = "jinja2 and matplotlib and msgspec"
    message = f"repro needs {packages}; install with: pip install 'simstream[repro]'"
    assert fail(2, "repro", "list") == f"simstream: error: {message}"
