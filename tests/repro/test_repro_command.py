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
    told = fail(2, "repro", "run", "nosuch", "--results", tmp_path)
    assert "IDS: expected a paper" in told
    assert "a study, a table or a figure, got 'nosuch'" in told
    assert "got 'OASI'" in fail(2, *given, "--methods", "Euclidean,OASI")
    assert "SIMSTREAM_DATA" in run(*given, "--datasets", "vehicle").stderr


@pytest.fixture
def no_runs(monkeypatch):
    """What should be refused and is not would run for hours."""

    def run_jobs(*_, **__):
        raise ValueError("this would run")

    monkeypatch.setattr("simstream_repro.runner.run_jobs", run_jobs)


@pytest.mark.usefixtures("no_runs")
@pytest.mark.parametrize("command", [["run", "p3-table2", "--datasets"], ["run", "--methods"]])
@pytest.mark.parametrize("nothing", ["", " , "])
def test_no_names_are_not_all_names(tmp_path, command, nothing):
    """As of a variable of the shell that is not set."""
    assert ", got ''" in fail(2, "repro", *command, nothing, "--results", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("no_runs")
def test_no_contenders_are_not_all_contenders(tmp_path):
    assert ", got ''" in fail(2, "repro", "adaptation", "--methods", "", "--results", tmp_path)


@pytest.mark.usefixtures("no_runs")
@pytest.mark.parametrize("option", [["--only", "curve"], ["--methods", "Adapter"]])
def test_a_page_is_not_of_some_records(tmp_path, option):
    given = ["repro", "adaptation", "--page-only", *option, "--results", tmp_path]
    assert f"{option[0]} has no meaning with --page-only" in fail(2, *given)


@pytest.mark.usefixtures("no_runs")
def test_data_that_is_missing_is_told_once(tmp_path, monkeypatch):
    """Several studies need it."""
    monkeypatch.delenv("SIMSTREAM_DATA", raising=False)
    told = run("repro", "run", "p3-standard", "p3-lambda", "--results", tmp_path).stderr
    assert told.count("not available: letter, segment, svmguide4, vehicle, vowel (") == 1
    assert told.count("skipped") == 1


@pytest.mark.usefixtures("no_runs")
def test_a_sample_of_a_smoke_run_is_refused(tmp_path):
    given = ["repro", "run", "p3", "--quick", "--sample", 2, "--results", tmp_path]
    assert "--sample has no meaning with --quick" in fail(2, *given)


def test_what_a_run_did_is_told(tmp_path):
    """Cells that choose parameters count, in every line; what was there already is no news."""
    given = ["repro", "run", "p3-standard", "--quick", "--seeds", 1, "--results", tmp_path]
    given += ["--methods", "OASIS"]
    lines = succeed(*given).stderr.splitlines()
    assert [line.split(",")[0] for line in lines[:-1]] == ["simstream: 1 of 2", "simstream: 2 of 2"]
    assert lines[-1] == "simstream: done: 2 cells (2 new)"
    assert succeed(*given).stderr == "simstream: done: 2 cells (0 new)\n"
    nothing, done = succeed(*given, "--stale").stderr.splitlines()
    assert nothing == "simstream: nothing to run again: no record comes from other code"
    assert done == "simstream: done: 2 cells (0 new)"
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text().splitlines()[0] + "\n{cut\n")
    _, warning, done = succeed(*given).stderr.splitlines()
    assert f"{path}, line 2: not a record, skipped" in warning
    assert done == "simstream: done: 2 cells (1 new)"


def test_nothing_to_sample_is_told(tmp_path):
    """No record; one that is not done; one of this code."""
    given = ["repro", "run", "all-learners", "--datasets", "wine", "--methods", "Euclidean"]
    given += ["--seeds", 1, "--sample", 3, "--results", tmp_path]
    paper = load_paper("all")
    (cell,) = paper.cells(
        paper.studies["all-learners"], seeds=1, datasets=["wine"], methods=["Euclidean"]
    )

    def told():
        return succeed(*given).stderr.splitlines()[0].removeprefix("simstream: nothing to ")

    assert told() == "run again: there are no records of these cells"
    store = RecordStore(tmp_path)
    store.append(cell, {"status": "over budget", "error": "by hand", "measures": {}})
    assert told() == (
        "run again: no record from other code is of a finished cell whose parameters are known"
    )
    here = {"source": store.sources.note(["simstream.validation"])}
    store.append(cell, {"status": "done", "measures": {}, "versions": here})
    assert told() == "run again: no record comes from other code"


def test_a_failure_of_earlier_is_no_failure_of_a_sample(tmp_path):
    """A sample does not try it again."""
    paper = load_paper("all")
    cells = list(
        paper.cells(
            paper.studies["all-learners"], seeds=1, datasets=["wine"], methods=["Euclidean", "Dot"]
        )
    )
    store = RecordStore(tmp_path)
    store.append(cells[0], {"status": "failed", "error": "by hand", "measures": {}})
    store.append(cells[1], {"status": "done", "measures": {"mAP": 0.5}})
    given = ["repro", "run", "all-learners", "--datasets", "wine", "--methods", "Euclidean,Dot"]
    told = succeed(*given, "--seeds", 1, "--sample", 3, "--results", tmp_path).stderr
    assert told.splitlines()[-1].endswith("done: 1 cell (1 new), failed: 1 cell (0 new)")


@pytest.mark.parametrize("name", ["p9", "p3-table2"])
def test_a_page_shows_a_whole_paper(tmp_path, name):
    (tmp_path / "p3-standard.jsonl").touch()
    told = fail(2, "repro", "report", name, "--results", tmp_path)
    assert "PAPERS: expected whole papers, some of p0, " in told
    assert told.endswith(f"got '{name}'")


def test_pages_have_one_form(tmp_path):
    (tmp_path / "p3-standard.jsonl").touch()
    refused = fail(2, "repro", "report", "--md", "--html", "--results", tmp_path)
    assert "--md cannot be written together with --html" in refused
    for form in ("md", "html"):
        succeed("repro", "report", "p3", f"--{form}", "--results", tmp_path, "-o", tmp_path / form)
        assert (tmp_path / form / f"p3.{form}").exists()
    succeed("repro", "report", "p3", "--results", tmp_path, "-o", tmp_path / "default")
    assert (tmp_path / "default" / "p3.html").exists()


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["status"], ["tidy"]])
def test_damaged_lines_are_warned_of(tmp_path, command):
    path = tmp_path / "p3-standard.jsonl"
    path.write_text("{cut\n")
    told = succeed("repro", *command, "--results", tmp_path).stderr
    assert told.count(f"simstream: warning: {path}, line 1: not a record, skipped\n") == 1


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
    assert looked.stderr.splitlines()[-1].endswith("nothing was deleted: --yes deletes 2 records")
    assert (tmp_path / "p3-standard.jsonl").read_bytes() == before
    deleted = succeed("repro", "tidy", "--yes", "--results", tmp_path)
    assert deleted.stderr.splitlines()[-1] == "simstream: deleted: 2 records"
    kept = [one["status"] for one in RecordStore(tmp_path).of_study("p3-standard")]
    assert kept == ["done", "over budget"]
    assert list(json.loads((tmp_path / "sources.json").read_text())) == [used]


def test_tidying_says_what_goes(tmp_path):
    """Damaged lines and what cells had before, too, in a file without anything else."""
    paper = load_paper("p3")
    cell = next(iter(paper.cells(paper.studies["p3-standard"])))
    store = RecordStore(tmp_path)
    for _ in range(3):
        store.append(cell, {"status": "done", "measures": {}})
    (tmp_path / "p3-loss.jsonl").write_text("{cut\n")
    (tmp_path / "of-no-paper.jsonl").write_text("{cut\n")

    def last(*options):
        given = ["repro", "tidy", *options, "--results", tmp_path]
        return succeed(*given).stderr.splitlines()[-1].removeprefix("simstream: ")

    what = "2 superseded records, 1 damaged line"
    assert last() == f"nothing was deleted: --yes deletes {what}"
    assert last("--yes") == f"deleted: {what}"
    assert last() == last("--yes") == "nothing to delete"
    assert (tmp_path / "p3-loss.jsonl").read_text() == ""
    assert (tmp_path / "of-no-paper.jsonl").read_text() == "{cut\n"


def test_hours_that_are_not_known_and_what_is_not_stale(tmp_path):
    """Nothing tells how long cells of p0 take; a record of this code is nothing to explain."""
    paper = load_paper("p3")
    cell = next(iter(paper.cells(paper.studies["p3-standard"])))
    store = RecordStore(tmp_path)
    here = {"source": store.sources.note(["simstream.validation"])}
    store.append(cell, {"status": "done", "measures": {}, "versions": here, "wall_seconds": 3600.0})
    rows = json.loads(succeed("repro", "status", "--json", "--results", tmp_path).stdout)
    hours = {row["study"]: row["missing_hours"] for row in rows}
    assert hours["p0-main"] is None
    assert hours["p3-standard"] > 1
    shown = succeed("repro", "status", "--results", tmp_path)
    assert shown.stderr == ""
    lines = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.strip()}
    assert lines["p0-main"][4] == lines["all"][4] == "?"
    assert float(lines["p3-standard"][4].replace(",", "")) > 1
    store.append(cell, {"status": "done", "measures": {}})
    assert "stale: from other code" in succeed("repro", "status", "--results", tmp_path).stderr


def test_cells_are_counted_alike_by_list_and_status(tmp_path):
    """With those that choose parameters."""
    paper = load_paper("p3")
    study = paper.studies["p3-standard"]
    tuned = next(cell for cell in paper.cells(study) if cell.grid)
    store = RecordStore(tmp_path)
    store.append(tuned.tuning(), {"status": "done", "measures": {}, "parameters": {}})
    listed = json.loads(succeed("repro", "list", "--json", "--results", tmp_path).stdout)
    (row,) = json.loads(
        succeed("repro", "status", "p3-standard", "--json", "--results", tmp_path).stdout
    )
    (table,) = (one for one in listed if one["id"] == "p3-table2")
    assert (table["n_done"], table["n_cells"]) == (row["n_done"], row["n_cells"])
    assert row["n_done"] == 1


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


@pytest.mark.parametrize("command", ["run", "status", "report", "tidy", "list"])
def test_a_folder_without_a_name_is_refused(command):
    assert "expected a path, got an empty text" in fail(2, "repro", command, "--results", "")


def test_more_seeds_than_anyone_can_run_are_refused(tmp_path):
    """Listing the cells of a million seeds alone would take minutes."""
    told = fail(2, "repro", "run", "p0", "--seeds", 1_000_000, "--results", tmp_path)
    assert "1<=x<=1000" in told


def test_a_budget_and_a_folder_that_are_none(tmp_path):
    command = "repro", "run", "p3-standard", "--quick"
    assert "above 0, got nan" in fail(2, *command, "--budget", "nan", "--results", tmp_path)


READERS = [["list"], ["status"], ["tidy"], ["report"], ["adaptation", "--page-only"]]


@pytest.mark.usefixtures("no_runs")
@pytest.mark.parametrize("command", [["run", "p3", "--quick"], ["adaptation"], *READERS])
@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_folder_of_records_that_is_a_file(tmp_path, command, place):
    (tmp_path / "file").touch()
    refused = fail(2, "repro", *command, "--results", tmp_path / place)
    assert f"--results: {tmp_path / place}: {tmp_path / 'file'} is not a folder" in refused


def test_a_folder_of_pages_that_is_a_file(tmp_path):
    (tmp_path / "p3-standard.jsonl").touch()
    given = ["repro", "report", "--results", tmp_path, "-o", tmp_path / "p3-standard.jsonl"]
    assert "for --output: " in (told := fail(2, *given))
    assert "is not a folder" in told


@pytest.mark.usefixtures("no_runs")
@pytest.mark.parametrize("page_only", [[], ["--page-only"]])
def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, page_only):
    (tmp_path / "file").touch()
    given = ["repro", "adaptation", *page_only, "--results", tmp_path, "-o"]
    assert "is not a folder" in fail(2, *given, tmp_path / "file" / "page.md")
    assert "is a folder; expected the name of a file" in fail(2, *given, tmp_path)


@pytest.mark.parametrize("command", ["status", "tidy", "report"])
def test_a_folder_without_records(tmp_path, command):
    for folder in (tmp_path, tmp_path / "none"):
        told = fail(2, "repro", command, "--results", folder)
        assert f"expected a folder with records of simstream repro run, got '{folder}'" in told
    assert not (tmp_path / "none").exists()


def test_a_missing_extra_is_wrong_usage(monkeypatch):
    monkeypatch.setattr("simstream_repro.command.find_spec", lambda name: None)
    packages = "jinja2 and matplotlib and msgspec"
    message = f"repro needs {packages}; install with: pip install 'simstream[repro]'"
    assert fail(2, "repro", "list") == f"simstream: error: {message}"
