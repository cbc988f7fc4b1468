"""Cells run in processes of their own: budgets, choosing parameters, going on after an interruption."""

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

import simstream
from simstream import datasets
from simstream_repro import clock, runner
from simstream_repro.plan import load_paper, paper_ids, parse_paper, published, select
from simstream_repro.protocols.common import make
from simstream_repro.records import RecordStore
from simstream_repro.runner import Budget, Job, _Running, _work, run_jobs
from simstream_repro.sources import SourceLog
from wine_cell import WINE_CELL

ENOUGH = Budget(120, 8)


def cell(**changes):
    given = {"settings": {"n_triplets": 200, "k": [1], "stops": [100, 200]}}
    return replace(WINE_CELL, **given | changes)


def run(cells, folder, budget=ENOUGH, **options):
    seen = []
    run_jobs(
        [Job(one, budget) for one in cells], RecordStore(folder), report=seen.append, **options
    )
    return seen, RecordStore(folder)


def test_a_cell_is_measured_and_recorded(tmp_path):
    _, store = run([cell()], tmp_path)
    record = store.find(cell())
    assert record["status"] == "done"
    assert 0.5 < record["measures"]["mAP"] <= 1
    assert record["curves"]["mAP"]["x"] == [100, 200]
    assert record["curves"]["mAP"]["y"][-1] == record["measures"]["mAP"]
    assert record["seconds"] > 0
    assert record["peak_mb"] > 10
    assert record["versions"]["simstream"]
    assert record["versions"]["cpu"]


def test_same_seed_same_stream_for_all_methods(tmp_path):
    cells = [
        cell(seed=s, method=m, learner=m, parameters={}) for m in ("OASIS", "LEGO") for s in (0, 1)
    ]
    _, store = run(cells, tmp_path, n_processes=2)
    streams = [store.find(one)["stream"] for one in cells]
    assert streams[0] == streams[2]
    assert streams[1] == streams[3]
    assert streams[0] != streams[1]


def test_what_is_finished_is_not_run_again(tmp_path):
    run([cell()], tmp_path)
    seen, store = run([cell(), cell(seed=1)], tmp_path)
    assert [progress.job.cell.seed for progress in seen] == [1]
    assert seen[0].n_cells == seen[0].n_done == 2
    assert store.find(cell(seed=1))["status"] == "done"


def test_a_record_knows_the_code_it_comes_from(tmp_path):
    """What was imported counts, whether it is the learner or the protocol; the service and pages do not."""
    _, store = run([cell()], tmp_path)
    record = store.find(cell())
    modules = json.loads((tmp_path / "sources.json").read_text())[record["versions"]["source"]]
    assert {"simstream.online.triplets", "simstream_repro.protocols.retrieval"} <= modules.keys()
    others = ("simstream.serve", "simstream_repro.report", "simstream_repro.protocols.questions")
    assert not [name for name in modules if name.startswith(others)]
    assert not store.is_stale(record)
    assert store.is_stale({"versions": {}})
    assert store.is_stale({})


def test_records_of_other_code_are_run_again_when_asked(tmp_path):
    """Parameters are chosen again too, before the runs that need them."""
    grid = {"C": [1e-9, 0.1]}
    tuned = cell(parameters={}, grid=grid)
    run([tuned, cell()], tmp_path)
    path = tmp_path / "test.jsonl"
    (digest,) = json.loads((tmp_path / "sources.json").read_text())
    path.write_text(path.read_text().replace(digest, "older"))
    store = RecordStore(tmp_path)
    assert store.is_stale(store.find(cell()))
    seen, _ = run([tuned, cell()], tmp_path)
    assert seen == []
    seen, store = run([tuned, cell(), cell(seed=1)], tmp_path, sample=1)
    assert len(seen) == seen[0].n_cells == 1
    assert store.find(seen[0].job.cell)["repeats"] == {
        "source": "older",
        "same": True,
        "change": 0.0,
    }
    path.write_text(path.read_text().replace(digest, "older"))
    seen, store = run([tuned, cell()], tmp_path, stale=True)
    assert sorted(one.job.cell.seed for one in seen) == [-1, 0, 0]
    assert seen[[one.job.cell.grid == grid for one in seen].index(True)].job.cell.is_tuning
    assert not store.is_stale(store.find(cell()))
    seen, _ = run([tuned, cell()], tmp_path, stale=True)
    assert seen == []


def test_runs_in_one_folder_keep_the_code_of_each_other(tmp_path):
    """Each has read the file before the other writes."""
    first, second = SourceLog(tmp_path), SourceLog(tmp_path)
    digests = first.note(["simstream.data"]), second.note(["simstream.metrics"])
    assert all(SourceLog(tmp_path).is_current(one) for one in digests)
    first.keep(digests)
    assert all(SourceLog(tmp_path).is_current(one) for one in digests)


@pytest.mark.parametrize("text", ["{cut", "[]", "null", '{"digest": 3}'])
def test_digests_that_are_damaged_are_named_before_anything_runs(tmp_path, text):
    """The record of the cell that ran first was lost."""
    (tmp_path / "sources.json").write_text(text)
    with pytest.raises(ValueError, match=f"^{tmp_path / 'sources.json'}: damaged; expected"):
        RecordStore(tmp_path)


def test_cells_without_parameters_are_not_drawn(tmp_path):
    """Nothing would ever run them: their parameters are not chosen again."""
    tuned = cell(parameters={}, grid={"C": [1e-9, 0.1]})
    store = RecordStore(tmp_path)
    store.append(tuned, {"status": "done", "measures": {"mAP": 0.5}})
    store.append(tuned.tuning(), {"status": "failed", "error": "by hand", "measures": {}})
    seen, _ = run([tuned], tmp_path, sample=5)
    assert seen == []


def test_a_run_that_was_stopped_knows_its_code_too(tmp_path):
    minutes = cell(dataset="digits", data="digits", settings={"n_triplets": 10_000_000})
    _, store = run([minutes, replace(minutes, seed=1)], tmp_path, budget=Budget(2, 8))
    for seed in (0, 1):
        record = store.find(replace(minutes, seed=seed))
        assert record["status"] == "over budget"
        assert not store.is_stale(record)


def test_a_line_cut_by_a_crash_is_run_again_and_does_not_spoil_the_next(tmp_path):
    run([cell()], tmp_path)
    path = tmp_path / "test.jsonl"
    path.write_text(path.read_text()[:-20])
    _, store = run([cell()], tmp_path)
    assert store.find(cell())["status"] == "done"
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1])["status"] == "done"


def test_over_budget_is_recorded_and_other_seeds_are_not_tried(tmp_path):
    cells = [cell(seed=seed) for seed in range(3)]
    seen, store = run(cells, tmp_path, budget=Budget(0.001, 8))
    assert len(seen) == 1
    assert [store.find(one)["status"] for one in cells] == ["over budget"] * 3
    assert "0.001 seconds" in store.find(cells[0])["error"]
    again, _ = run(cells, tmp_path, budget=Budget(0.001, 8))
    assert again == []


def test_what_earlier_code_has_finished_is_tried_although_another_seed_is_over_budget(tmp_path):
    first, second = (cell(seed=seed) for seed in (0, 1))
    store = RecordStore(tmp_path)
    store.append(second, {"status": "done", "measures": {"mAP": 0.5}})  # of no known code
    seen, _ = run([first, second], tmp_path, budget=Budget(0.001, 8), stale=True)
    assert [one.job.cell.seed for one in seen] == [0, 1]


@pytest.mark.parametrize(
    ("value", "budget", "status"),
    [(0.1, Budget(0.001, 8), "over budget"), (-1.0, ENOUGH, "failed")],
)
@pytest.mark.parametrize("tuning", ["first run", "every run"])
def test_what_earlier_code_has_finished_stays_where_no_parameters_are_found(
    tmp_path, tuning, value, budget, status
):
    """The run ends: it went on for ever, waiting for the parameters. A third seed has no record before."""
    settings = {"n_triplets": 200, "tuning": tuning}
    cells = [cell(parameters={}, grid={"C": [value]}, settings=settings, seed=s) for s in range(3)]
    done = {"status": "done", "measures": {"mAP": 0.5}, "parameters": {"C": 0.1}}
    store = RecordStore(tmp_path)
    for one in cells[:2]:
        store.append(one, done)
    store.append(cells[0].tuning(), done)
    for _ in range(2):  # the second time the parameters are over budget from the beginning
        seen, store = run(cells, tmp_path, budget=budget, stale=True)
        assert [store.find(one)["status"] for one in cells] == ["done", "done", status]
        assert store.find(cells[0].tuning())["status"] == status
        assert all(one.job.cell.is_tuning for one in seen)
        assert all(one.n_done == one.n_cells for one in seen[-1:])


def test_a_failure_says_why_and_is_tried_again(tmp_path):
    bad = cell(parameters={"C": -1.0})
    _, store = run([bad], tmp_path)
    record = store.find(bad)
    assert record["status"] == "failed"
    assert "C" in record["error"]
    seen, _ = run([bad], tmp_path)
    assert len(seen) == 1


def test_parameters_are_chosen_once_for_all_seeds(tmp_path):
    grid = {"C": [1e-9, 0.1]}
    cells = [cell(parameters={}, grid=grid, seed=seed) for seed in (0, 1)]
    seen, store = run(cells, tmp_path)
    assert len(seen) == 3
    tried = store.find(cells[0].tuning())
    assert tried["parameters"] == {"C": 0.1}
    values = {json.dumps(p): v for p, v in tried["tried"]}
    assert values['{"C": 0.1}'] > values['{"C": 1e-09}']
    assert store.find(cells[1])["parameters"] == {"C": 0.1}


def test_failed_tuning_fails_its_cells(tmp_path):
    bad = cell(parameters={}, grid={"C": [-1.0]})
    _, store = run([bad], tmp_path)
    assert store.find(bad)["status"] == "failed"


def test_compacting_keeps_the_cells_of_the_plan(tmp_path):
    cells = [cell(seed=seed) for seed in range(2)]
    _, store = run(cells, tmp_path)
    store.compact("test", cells[:1])
    assert RecordStore(tmp_path).find(cells[0]) is not None
    assert RecordStore(tmp_path).find(cells[1]) is None


# -- plans ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper_id", paper_ids())
def test_papers_fit_together(paper_id):
    """Learners exist and take the parameters, data sets are known, published files are there."""
    paper = load_paper(paper_id)
    known = set(datasets.names())
    for study in paper.studies.values():
        for one in (study, study.quick_version()):
            for made in paper.cells(one) if one is not None else ():
                assert made.data in known, made.name
                if isinstance(getattr(simstream, made.learner, None), type):
                    make(made, **{name: values[0] for name, values in made.grid.items()})
    for exhibit in paper.exhibits.values():
        if exhibit.published:
            assert published(exhibit.published)


def test_ids_of_exhibits_and_studies_begin_with_that_of_the_paper():
    for paper in map(load_paper, paper_ids()):
        for name in (*paper.exhibits, *paper.studies):
            assert name.startswith(paper.id + "-")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="p9"):
        select(("p9",))
    with pytest.raises(ValueError, match="repro list"):
        select(("p3-table99",))


ONE_STUDY = """
id = "x"
title = "x"
citation = "x"
[methods.OASIS]
learner = "OASIS"
[datasets]
wine = { data = "wine" }
[[studies]]
id = "x-s"
title = "s"
protocol = "retrieval"
datasets = ["wine"]
methods = ["OASIS"]
settings = { n_triplets = 10, pool = "all" }
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("n_triplets", "n_triplet", "study x-s: settings: unknown key 'n_triplet'"),
        ("n_triplets = 10, ", "", "study x-s: settings: missing key 'n_triplets'"),
        ("10", '"ten"', "study x-s: settings: n_triplets: expected int, got str"),
        ('"all"', '"al"', "study x-s: settings: pool: expected one of others, all, got 'al'"),
        ("protocol", "protocl", "study x-s: unknown key 'protocl'; did you mean 'protocol'"),
        ('"retrieval"', '"retrievl"', "study x-s: no such protocol: 'retrievl'"),
        ('methods = ["OASIS"]', 'methods = ["nobody"]', "study x-s: no such method: 'nobody'"),
        ("learner =", "lerner =", "method OASIS: unknown key 'lerner'"),
        ("data =", "dat =", "data set wine: unknown key 'dat'"),
        ("citation", "citaton", "unknown key 'citaton'; did you mean 'citation'"),
        ("settings", 'sweep = { "setting.pol" = ["all"] }\nsettings', "unknown key 'pol'"),
        ("settings", "quick = { seed = 1 }\nsettings", "study x-s: quick: unknown key 'seed'"),
        ("settings", "quick.settings = { kn = true }\nsettings", "x-s-quick: settings: unknown"),
        ("settings", "per_dataset.wine.settings = { kn = true }\nsettings", "unknown key 'kn'"),
    ],
)
def test_a_misspelt_key_or_a_wrong_type_is_named(before, after, message):
    assert parse_paper(ONE_STUDY, "x.toml").id == "x"
    with pytest.raises(ValueError, match=f"x.toml: .*{message}"):
        parse_paper(ONE_STUDY.replace(before, after), "x.toml")


def test_a_misspelt_key_of_a_figure_or_a_claim_is_named():
    figure = '[[exhibits]]\nid = "x-f"\ntitle = "f"\nkind = "figure"\ndraw = { form = "lines", xx = "k" }'
    with pytest.raises(ValueError, match=r"x\.toml: exhibit x-f: draw: unknown key 'xx'"):
        parse_paper(ONE_STUDY + figure, "x.toml")
    check = 'kind = "beats", study = "x-s", measure = "mAP", winer = "OASIS"'
    with pytest.raises(ValueError, match=r"x\.toml: claim 1: check: unknown key 'winer'"):
        parse_paper(ONE_STUDY + f'[[claims]]\ntext = "c"\ncheck = {{ {check} }}', "x.toml")


def test_sweeps_reach_parameters_settings_and_preprocessing():
    sweep = """
sweep = { "parameter.C" = [0.1, 0.2], "setting.n_triplets" = [5], preprocessing = ["as-is", "unit-norm"] }
"""
    grid = 'learner = "OASIS"\ngrid = { C = [1.0, 2.0] }'
    paper = parse_paper(ONE_STUDY.replace('learner = "OASIS"', grid) + sweep)
    cells = list(paper.cells(paper.studies["x-s"]))
    assert len(cells) == 4
    assert {one.parameters["C"] for one in cells} == {0.1, 0.2}
    assert all(one.grid == {} and one.settings["n_triplets"] == 5 for one in cells)
    assert {one.preprocessing for one in cells} == {"as-is", "unit-norm"}
    assert cells[0].variant == {"C": 0.1, "n_triplets": 5, "preprocessing": "as-is"}
    assert len({one.fingerprint for one in cells}) == 4


def test_parameters_that_were_over_budget_end_their_cells_and_not_the_run(tmp_path):
    first, second = (cell(seed=seed, grid={"C": [0.1, 1.0]}) for seed in (0, 1))
    store = RecordStore(tmp_path)
    over = {"status": "over budget", "error": "more than 1 seconds", "measures": {}}
    store.append(first.tuning(), over)
    store.append(first, over)
    later = [first, second]
    _, store = run(later, tmp_path)  # went on for ever
    assert [store.find(one)["status"] for one in later] == ["over budget"] * 2


def test_a_larger_budget_is_tried_again(tmp_path):
    run([cell()], tmp_path, budget=Budget(0.001, 8))
    seen, _ = run([cell()], tmp_path, budget=Budget(0.0005, 8))
    assert not seen
    _, store = run([cell()], tmp_path)
    assert store.find(cell())["status"] == "done"


def test_compiling_is_no_work():
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    inner = numba.njit(lambda x: np.sort(x) + x.sum())
    outer = numba.njit(lambda x: inner(x) @ inner(x))  # compiles two, one within the other
    before = time.process_time(), clock.working_seconds()
    outer(np.arange(3.0))
    cpu, working = time.process_time() - before[0], clock.working_seconds() - before[1]
    assert cpu > 0.1
    assert 0 <= working < cpu / 4
    begin = time.process_time(), clock.working_seconds()
    sum(i * i for i in range(300_000))
    cpu, working = time.process_time() - begin[0], clock.working_seconds() - begin[1]
    assert working == pytest.approx(cpu, rel=0.1)


def work_here(run_cell, monkeypatch):
    """The record of a cell that this process works on, as a worker does, by `run_cell`."""
    answers = []
    monkeypatch.setattr(runner.protocols, "run", run_cell)
    monkeypatch.setattr(runner, "_end_with", lambda watched: None)
    monkeypatch.setattr(runner.clock, "report_to", lambda shared: None)
    _work(cell(), None, SimpleNamespace(send=answers.append), None, None)
    return answers[-1]["record"]


def test_memory_that_is_not_there_is_no_verdict_and_is_tried_again(tmp_path, monkeypatch):
    def greedy(cell):
        return np.empty(2**55)

    record = work_here(greedy, monkeypatch)
    assert record["status"] == "out of memory"
    assert "allocate" in record["error"]
    store = RecordStore(tmp_path)
    store.append(cell(), record)
    seen, store = run([cell()], tmp_path)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("machine", "status"), [(16.0, "over budget"), (8.0, "over budget"), (4.0, "out of memory")]
)
def test_what_a_machine_with_enough_memory_cannot_give_is_over_the_budget(
    monkeypatch, machine, status
):
    """No machine would do for that budget; a smaller one says nothing."""
    monkeypatch.setattr(runner, "machine_megabytes", lambda: machine * 2**10)
    process = SimpleNamespace(join=lambda: None)
    running = runner._Running(Job(cell(), Budget(60, 8)), process, None, None, None)
    sent = {"status": "out of memory", "error": "cannot allocate", "measures": {}}
    running.answer = SimpleNamespace(recv=lambda: {"modules": [], "record": sent})
    assert running.has_ended()
    record = running.result()
    assert (record["status"], record.get("budget")) == (
        status,
        {"seconds": 60, "gigabytes": 8} if status == "over budget" else None,
    )


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time of others is not told")
def test_a_small_budget_is_enough_although_kernels_have_to_be_compiled(tmp_path):
    """In a process that finds nothing compiled; compiling takes several times this budget.

    Neither is it in the seconds of training: 2,000 triplets of wine take milliseconds.
    """
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    script = "from simstream.cli import main; main()"
    command = "repro run p3-standard --quick --methods OASIS --seeds 1 --budget 2.5 -q --results"
    subprocess.run(
        [sys.executable, "-c", script, *shlex.split(command), str(tmp_path)],
        env=environment,
        check=True,
    )
    (path,) = tmp_path.glob("*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records
    assert {one["status"] for one in records} == {"done"}
    assert records[-1]["seconds"] < 0.5


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time of others is not told")
def test_budgets_do_not_count_compiling():
    """The budget is smaller than what this process has used, which is all compiling, or none of it."""

    class Process:
        pid, stopped = os.getpid(), False

        def kill(self):
            self.stopped = True

        def join(self):
            pass

    used = time.process_time()
    assert used > 0.2
    for compiling, is_over in ([used, -1.0], False), ([0.0, 0.0], False), ([0.0, -1.0], True):
        process = Process()
        running = _Running(Job(cell(), Budget(used / 2, 1e3)), process, None, compiling)
        assert running.check_budget() == process.stopped == is_over


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes of others are not seen")
def test_a_killed_run_takes_its_cell_along(tmp_path):
    script = f"""
import sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
import test_runner
from simstream_repro import runner
start = runner._Running.start.__func__
def told(cls, job, data_dir):
    made = start(cls, job, data_dir)
    print(made.process.pid, flush=True)
    return made
runner._Running.start = classmethod(told)
if __name__ == "__main__":
    minutes = dict(dataset="digits", data="digits", learner="LEGO", parameters={{}})
    minutes["settings"] = dict(n_triplets=10_000_000, k=[1])
    test_runner.run([test_runner.cell(**minutes)], {str(tmp_path)!r})
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the cell is still running")


NO_RECORDS = [
    "null",
    json.dumps(
        {"fingerprint": "of no cell", **WINE_CELL.__dict__, "status": "failed", "versions": []}
    ),
    '{"no": "fingerprint"}',
    '{"fingerprint": "of no status"}',
    '{"fingerprint": [], "status": "failed"}',
    '{"fingerprint": "of no cell", "status": "done", "measures": {}}',
    "{cut",
    "\ufffd",
]


@pytest.mark.parametrize("line", NO_RECORDS)
def test_lines_that_are_no_records_are_named_and_left_out(tmp_path, line):
    run([cell()], tmp_path)
    path = tmp_path / "test.jsonl"
    path.write_text(line + "\n" + path.read_text())
    store = RecordStore(tmp_path)
    assert store.find(cell())["status"] == "done"
    assert len(store.damaged) == 1
    assert "test.jsonl, line 1" in store.damaged[0]


@pytest.mark.parametrize(
    ("measures", "told"),
    [
        (None, "measures: expected numbers by name, got None"),
        ([0.5], "measures: expected numbers by name, got [0.5]"),
        ({"mAP": "abc"}, "measures: mAP: expected a finite number, got 'abc'"),
        ({"mAP": None}, "measures: mAP: expected a finite number, got None"),
        ({"mAP": True}, "measures: mAP: expected a finite number, got True"),
        ({"P@1": 0.5, "mAP": float("nan")}, "measures: mAP: expected a finite number, got nan"),
        ({"mAP": float("inf")}, "measures: mAP: expected a finite number, got inf"),
    ],
)
def test_records_whose_results_are_no_numbers_are_named_and_run_again(tmp_path, measures, told):
    RecordStore(tmp_path).append(cell(), {"status": "done", "measures": measures})
    store = RecordStore(tmp_path)
    assert store.finished([cell()]) == []
    assert store.damaged == [f"{tmp_path / 'test.jsonl'}, line 1: {told}, skipped"]


def test_a_record_without_results_is_run_again(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"fingerprint": cell().fingerprint, "status": "done"}) + "\n")
    seen, store = run([cell()], tmp_path)
    assert len(seen) == 1
    assert store.find(cell())["status"] == "done"
    assert len(store.damaged) == 1


def test_results_that_are_no_numbers_are_a_failure(tmp_path, monkeypatch):
    """A record of them would be no record."""
    record = work_here(lambda cell: {"measures": {"mAP": np.nan}}, monkeypatch)
    assert record["status"] == "failed"
    assert "mAP: expected a finite number, got nan" in record["error"]


def test_what_is_loaded_before_processes_are_forked_does_not_count_as_their_code():
    script = (
        "from simstream_repro import protocols, sources; before = sources.imported_modules(); "
        "from simstream_repro import preload; print(sources.imported_modules() == before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
