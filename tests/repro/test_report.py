"""Verdicts, claims, figures and pages, from made-up records."""

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from simstream_repro import report as reporting
from simstream_repro.claims import check_claims, rank_methods
from simstream_repro.figures import style_of
from simstream_repro.means import means_beside
from simstream_repro.plan import load_paper, paper_ids, parse_paper
from simstream_repro.records import RecordStore
from simstream_repro.report import paper_page
from simstream_repro.verdicts import (
    PaperRecords,
    compare,
    count,
    judge,
    n_missing,
    n_with_fewer_runs,
    share_good,
)

PAPER = """
id = "x"
title = "A <paper> & more"
citation = "Somebody 2000."
[methods.SDCA]
learner = "SDCA"
[methods.OASIS]
learner = "OASIS"
[datasets]
vehicle = { data = "vehicle" }
vowel = { data = "vowel", standing = "stand-in" }
letter = { }
[[studies]]
id = "x-main"
title = "main"
protocol = "retrieval"
datasets = ["vehicle", "vowel", "letter"]
methods = ["SDCA", "OASIS"]
seeds = 2
settings = { n_triplets = 10 }
[[studies]]
id = "x-sweep"
title = "sweep"
protocol = "retrieval"
datasets = ["vehicle"]
methods = ["SDCA"]
settings = { n_triplets = 10 }
sweep = { "parameter.lam" = [0.1, 1.0], "parameter.n_epochs" = [1, 2] }
[[exhibits]]
id = "x-table"
title = "Table"
kind = "table"
study = "x-main"
published = "p3_table2_map.csv"
measures = [{ name = "map", ours = "mAP", label = "mAP", digits = 4 }]
[[exhibits]]
id = "x-lines"
title = "Lines"
kind = "figure"
study = "x-main"
draw = { form = "lines", x = "step", curve = "mAP", panels = "dataset" }
[[exhibits]]
id = "x-bars"
title = "Bars"
kind = "figure"
study = "x-main"
draw = { form = "bars", x = "dataset", y = "mAP" }
[[exhibits]]
id = "x-matrix"
title = "Matrix"
kind = "figure"
study = "x-sweep"
draw = { form = "matrix", x = "lam", y = "n_epochs", value = "mAP" }
[[claims]]
text = "SDCA is ahead"
check = { kind = "beats", study = "x-main", measure = "mAP", winner = "SDCA" }
[[claims]]
text = "SDCA is twice as good"
[claims.check]
kind = "ratio"
study = "x-main"
measure = "mAP"
numerator = "SDCA"
denominator = "OASIS"
published = 2.0
[[claims]]
text = "SDCA is ahead in every seed"
check = { kind = "beats", study = "x-main", measure = "mAP", winner = "SDCA", paired = true }
[[claims]]
text = "SDCA needs fewer steps"
check = { kind = "reaches", study = "x-main", curve = "mAP", winner = "SDCA", loser = "OASIS" }
[[claims]]
text = "OASIS needs fewer steps"
check = { kind = "reaches", study = "x-main", curve = "mAP", winner = "OASIS", loser = "SDCA" }
[[explanations]]
dataset = ["vehicle"]
method = ["OASIS"]
text = "because <it> is"
"""


MEANS = """
[[studies]]
id = "x-other"
title = "other"
protocol = "retrieval"
datasets = ["vehicle", "vowel"]
methods = ["SDCA", "LMNN"]
settings = { n_triplets = 20 }
[methods.LMNN]
learner = "LMNN"
[methods.RCA]
learner = "RCA"
[[exhibits]]
id = "x-means"
title = "Means"
kind = "means"
study = "x-main"
beside = { "as printed" = "x-main", "another way" = "x-other" }
baseline = "OASIS"
methods = ["SDCA"]
measures = [{ name = "map", ours = "mAP", label = "mAP", digits = 2 }]
[exhibits.families]
triplets = ["SDCA"]
batch = ["LMNN", "RCA"]
"""


@pytest.fixture
def paper():
    return parse_paper(PAPER)


@pytest.fixture
def store(paper, tmp_path):
    """SDCA near the print (0.5955), OASIS far below it (0.5318) on vehicle; a stand-in for vowel."""
    values = {"SDCA": (0.59, 0.60), "OASIS": (0.40, 0.42)}
    found = RecordStore(tmp_path)
    for cell in paper.cells(paper.studies["x-main"]):
        mean = values[cell.method][cell.seed]
        curve = {"x": [1, 2], "y": [mean / 2, mean]}
        found.append(
            cell,
            {"status": "done", "measures": {"mAP": mean}, "curves": {"mAP": curve}, "stream": "s"},
        )
    for cell in paper.cells(paper.studies["x-sweep"]):
        value = cell.variant["lam"] + cell.variant["n_epochs"]
        found.append(cell, {"status": "done", "measures": {"mAP": value}, "curves": {}})
    return found


@pytest.mark.parametrize(
    ("ours", "theirs", "std", "better", "expected"),
    [
        (0.51, 0.50, None, "higher", "reproduced"),
        (0.5101, 0.50, None, "higher", "better"),
        (0.4899, 0.50, None, "higher", "worse"),
        (0.4899, 0.50, None, "lower", "better"),
        (0.46, 0.50, 0.02, "higher", "reproduced"),
        (0.4599, 0.50, 0.02, "higher", "worse"),
        (0.509, 0.50, 0.001, "higher", "reproduced"),
        (0.0284, 0.018, 0.001, "lower", "worse"),  # not rounded to 0.028
    ],
)
def test_the_rule(ours, theirs, std, better, expected):
    assert judge(ours, theirs, std, better=better) == expected


def test_only_numbers_on_the_papers_own_data_count(paper, store):
    comparisons = compare(PaperRecords(paper, store), paper.exhibits["x-table"])
    verdicts = {(one.dataset, one.method): one.verdict for one in comparisons}
    assert verdicts == {
        ("vehicle", "SDCA"): "reproduced",
        ("vehicle", "OASIS"): "worse",
        ("vowel", "SDCA"): "stand-in",
        ("vowel", "OASIS"): "stand-in",
        ("letter", "SDCA"): "data absent",
        ("letter", "OASIS"): "data absent",
    }
    assert share_good(count(comparisons)) == 0.5
    worse = next(one for one in comparisons if one.verdict == "worse")
    assert worse.ours == pytest.approx((0.41, 0.01, 2))
    assert worse.explanation == "because <it> is"
    assert not worse.is_tested


def test_an_explanation_is_tested_by_a_study_with_records(store):
    with_test = parse_paper(PAPER + 'tested_by = ["x-sweep"]\n')
    table = with_test.exhibits["x-table"]
    (worse,) = (
        one for one in compare(PaperRecords(with_test, store), table) if one.verdict == "worse"
    )
    assert worse.is_tested
    (store.folder / "x-sweep.jsonl").unlink()
    only_main = RecordStore(store.folder)
    (worse,) = (
        one for one in compare(PaperRecords(with_test, only_main), table) if one.verdict == "worse"
    )
    assert not worse.is_tested
    with pytest.raises(ValueError, match="tested_by: expected studies, got 'x-nothing'"):
        parse_paper(PAPER + 'tested_by = ["x-nothing"]\n')


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ({"status": "done", "measures": {"mAP": float("nan")}}, "failed"),
        ({"status": "over budget", "error": "more than 1 GB", "measures": {}}, "over budget"),
        ({"status": "out of memory", "error": "", "measures": {}}, "reproduced"),
    ],
)
def test_one_seed_that_fails(paper, store, second, verdict):
    """Within the budget for some seeds is not within it; memory may be there the next time."""
    cells = paper.cells(paper.studies["x-main"])
    cell = next(c for c in cells if (c.dataset, c.method, c.seed) == ("vehicle", "SDCA", 1))
    store.append(cell, second)
    found = compare(PaperRecords(paper, store), paper.exhibits["x-table"])
    (one,) = (one for one in found if (one.dataset, one.method) == ("vehicle", "SDCA"))
    assert one.verdict == verdict
    assert n_with_fewer_runs(found) == (verdict == "reproduced")


def test_records_of_another_plan_are_not_shown(paper, store):
    changed = parse_paper(
        PAPER.replace('learner = "SDCA"', 'learner = "SDCA"\nparameters = { lam = 0.3 }')
    )
    comparisons = compare(PaperRecords(changed, store), changed.exhibits["x-table"])
    assert {one.verdict for one in comparisons if one.method == "SDCA"} >= {"not run"}


@pytest.mark.parametrize("paper_id", paper_ids())
def test_every_published_record_is_of_the_plan(paper_id):
    """A change of a paper's file, or of how cells are made from it, must not lose results that took hours."""
    paper = load_paper(paper_id)
    records = RecordStore(Path(__file__).parents[2] / "docs" / "repro" / "records")
    for study in paper.studies.values():
        assert records.of_study(study.id), study.id
        assert PaperRecords(paper, records).of(study).n_left_out == 0, study.id


def test_numbers_that_the_protocol_was_chosen_by_are_shown_and_not_counted(paper, store):
    table = msgspec.structs.replace(paper.exhibits["x-table"], not_counted=(("", "SDCA", ""),))
    comparisons = compare(PaperRecords(paper, store), table)
    found = {one.method: one for one in comparisons if one.dataset == "vehicle"}
    assert found["SDCA"].verdict == "not counted"
    assert found["SDCA"].ours is not None
    assert share_good(count(comparisons)) == 0.0


def test_what_is_missing_is_counted_where_the_data_is_here(paper, tmp_path):
    found = RecordStore(tmp_path)
    cells = [one for one in paper.cells(paper.studies["x-main"]) if one.seed == 0]
    for cell in cells:
        if (cell.dataset, cell.method) == ("vehicle", "OASIS"):
            found.append(cell, {"status": "failed", "error": "x", "measures": {}})
    counts = count(compare(PaperRecords(paper, found), paper.exhibits["x-table"]))
    assert counts["failed"] == counts["not run"] == 1  # vehicle
    assert counts["stand-in"] == 2  # vowel, though not run
    assert n_missing(counts) == 2


def test_parameters_chosen_in_two_ways_are_not_mixed(tmp_path):
    text = PAPER.replace(
        '[methods.OASIS]\nlearner = "OASIS"',
        '[methods.OASIS]\nlearner = "OASIS"\ngrid = { C = [1.0] }\nchosen = { vehicle = { C = 0.1 } }',
    )
    paper = parse_paper(text)
    study, found = paper.studies["x-main"], RecordStore(tmp_path)
    for tuning, value in (("paper", 0.8), ("cv", 0.4)):
        for cell in paper.cells(study, tuning=tuning):
            if not (tuning == "cv" and cell.method == "SDCA"):
                found.append(cell, {"status": "done", "measures": {"mAP": value}})
    assert PaperRecords(paper, found).of(study).tuned_instead == []
    only_tuned = RecordStore(tmp_path / "tuned")
    for cell in paper.cells(study, tuning="cv", methods=("OASIS",)):
        only_tuned.append(cell, {"status": "done", "measures": {"mAP": 0.4}})
    assert PaperRecords(paper, only_tuned).of(study).tuned_instead == ["OASIS on vehicle"]
    records = PaperRecords(paper, found).table(study)["vehicle", "OASIS"]
    assert [one["measures"]["mAP"] for one in records] == [0.8, 0.8]


def test_more_seeds_than_planned_are_shown(paper, tmp_path):
    found = RecordStore(tmp_path)
    study = paper.studies["x-main"]
    for cell in paper.cells(study, seeds=4):
        found.append(cell, {"status": "done", "measures": {"mAP": 0.5}})
    assert len(PaperRecords(paper, found).table(study)["vehicle", "SDCA"]) == 4


def test_a_method_over_budget_ranks_last():
    values = {"A": 0.9, "B": 0.1, "C": None}
    records = [
        {
            "dataset": name,
            "method": method,
            "seed": 0,
            "status": "over budget" if value is None else "done",
            "measures": {} if value is None else {"mAP": value},
        }
        for name in ("d", "e")
        for method, value in values.items()
    ]
    result, used = rank_methods(records, ["A", "B", "C"], "mAP", lower_is_better=False)
    assert result.average_ranks.tolist() == [1, 2, 3]
    assert used == ["d", "e"]


def test_means_are_over_the_data_sets_that_all_columns_of_a_row_have(store):
    """OASIS has 0.41 and SDCA 0.595 on both sets in one study; in the other SDCA is better on one of them."""
    paper = parse_paper(PAPER + MEANS)
    exhibit = paper.exhibits["x-means"]
    (measure,) = exhibit.measures
    values = {("vehicle", "SDCA"): 0.7, ("vowel", "SDCA"): 0.3, ("vowel", "LMNN"): 0.41}
    for cell in paper.cells(paper.studies["x-other"]):
        value = values.get((cell.dataset, cell.method))
        done = {"status": "done", "measures": {"mAP": value}}
        over = {"status": "over budget", "error": "more than 1 GB", "measures": {}}
        store.append(cell, over if value is None else done)
    sdca, lmnn = means_beside(PaperRecords(paper, store), exhibit, measure)
    assert (sdca.method, sdca.family, sdca.n_datasets) == ("SDCA", "triplets", 2)
    assert sdca.baseline == pytest.approx(0.41)
    assert sdca.columns == (pytest.approx((0.595, 2)), pytest.approx((0.5, 1)))
    assert (lmnn.method, lmnn.n_datasets) == ("LMNN", 1)  # over budget on vehicle
    assert lmnn.columns == (None, pytest.approx((0.41, 1)))
    (view,) = (one for one in paper_page(paper, store)["exhibits"] if one["id"] == "x-means")
    rows, families, datasets = (
        {row["name"]: [cell["ours"] for cell in row["cells"]] for row in table["rows"]}
        for table in view["tables"]
    )
    assert rows["SDCA"] == ["triplets", "2", "0.41", "0.59 (2)", "0.50 (1)"]
    assert rows["LMNN"] == ["batch", "1", "0.41", "", "0.41 (1)"]
    assert families == {"triplets": ["1 of 1", "1 of 1"], "batch": ["", "1 of 1"]}
    assert view["tables"][2]["methods"] == ["OASIS", "SDCA, as printed", "SDCA, another way"]
    assert datasets["vehicle"] == ["0.41", "0.59", "0.70"]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ('= "x-other" }', '= "x-nothing" }', "no such study: 'x-nothing'"),
        ('baseline = "OASIS"', 'baseline = "Osiris"', "no such method: 'Osiris'"),
        ('["LMNN", "RCA"]\n', '["LMNN", "RCB"]\n', "no such method: 'RCB'"),
    ],
)
def test_means_of_what_is_not_there_are_refused(good, bad, message):
    assert good in MEANS
    with pytest.raises(ValueError, match=message):
        parse_paper(PAPER + MEANS.replace(good, bad))


@pytest.mark.parametrize("paper_id", paper_ids())
def test_methods_of_a_figure_can_be_told_apart(paper_id):
    paper = load_paper(paper_id)
    for exhibit in paper.exhibits.values():
        study = paper.study_of(exhibit.id)
        if exhibit.kind != "figure" or study is None:
            continue
        methods = exhibit.methods or study.methods
        looks = [style_of(name, methods)[:2] for name in methods]
        assert len(set(looks)) == len(looks), exhibit.id


def test_over_budget_is_told(paper, tmp_path):
    found = RecordStore(tmp_path)
    for cell in paper.cells(paper.studies["x-main"]):
        record = {"status": "over budget", "error": "more than 60 seconds", "measures": {}}
        found.append(cell, record)
    comparisons = compare(PaperRecords(paper, found), paper.exhibits["x-table"])
    vehicle = [one for one in comparisons if one.dataset == "vehicle"]
    assert {(one.verdict, one.limit) for one in vehicle} == {("over budget", "60 seconds")}


def test_claims(paper, store, tmp_path):
    ahead, twice, paired, *_ = check_claims(PaperRecords(paper, store))
    assert "seeds" not in ahead.text
    assert "vehicle: ahead of OASIS by 0.185, in 2 of 2 seeds" in paired.text
    assert ahead.verdict == "holds"
    assert "vehicle: ahead of OASIS by 0.185" in ahead.text
    assert twice.verdict == "holds"  # 1.45 is within a factor of two of 2
    nothing = check_claims(PaperRecords(paper, RecordStore(tmp_path / "empty")))
    assert {finding.verdict for finding in nothing} == {"open"}


def test_where_a_curve_has_what_another_has_in_the_end(paper, store):
    sooner, later = check_claims(PaperRecords(paper, store))[3:]
    assert sooner.verdict == "does not hold"  # not before the end
    assert "vehicle: 0.410 at 2 of 2" in sooner.text
    assert later.verdict == "does not hold"
    assert "vehicle: 0.595 not reached" in later.text
    for cell in paper.cells(paper.studies["x-main"], datasets=("vehicle",), methods=("SDCA",)):
        curve = {"x": [1, 2], "y": [0.4 + 0.02 * cell.seed, 0.6]}
        store.append(cell, {"status": "done", "measures": {}, "curves": {"mAP": curve}})
    sooner = check_claims(PaperRecords(paper, store))[3]
    assert sooner.verdict == "partly"
    assert "vehicle: 0.410 at 1 of 2; vowel (for vowel): 0.410 at 2 of 2" in sooner.text


class _Checker(HTMLParser):
    """Tags that are opened are closed; addresses are collected."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_pages(paper, store, tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "load_paper", lambda _: paper)
    monkeypatch.setattr(reporting, "paper_ids", lambda: ["x"])
    for form in ("html", "md"):
        written = reporting.write_reports(("x",), RecordStore(tmp_path), tmp_path / form, form)
        assert {path.name for path in written} >= {f"x.{form}", f"index.{form}", "summary.json"}
    page = (tmp_path / "html" / "x.html").read_text()
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    assert "A &lt;paper&gt; &amp; more" in page
    assert "<paper>" not in page
    assert "because &lt;it&gt; is" in page
    assert len([a for a in checker.addresses if a.startswith("data:image/png;base64,")]) == 3
    assert not [a for a in checker.addresses if a.startswith("http")]
    markdown = (tmp_path / "md" / "x.md").read_text()
    assert "0.5950 ± 0.0050** (0.5955) `=`" in markdown
    assert "0.4100 ± 0.0100 (0.5318) `-`" in markdown
    assert (tmp_path / "md" / "x-lines.png").stat().st_size > 1000


def test_different_streams_are_noticed(paper, store):
    assert paper_page(paper, store)["runs"][0]["same_streams"]
    cell = next(iter(paper.cells(paper.studies["x-main"])))
    store.append(cell, {"status": "done", "measures": {}, "curves": {}, "stream": "another"})
    assert not paper_page(paper, store)["runs"][0]["same_streams"]


def test_of_streams_nobody_recorded_nothing_is_said(paper, store):
    main, sweep = paper_page(paper, store)["runs"]
    assert main["same_streams"] is True
    assert sweep["same_streams"] is None


def test_what_is_not_from_a_paper_is_not_called_a_claim(store, tmp_path, monkeypatch):
    own = parse_paper(PAPER.replace('published = "p3_table2_map.csv"', ""))
    monkeypatch.setattr(reporting, "load_paper", lambda _: own)
    for form, other in (("md", "reproduced"), ("html", "Colours")):
        reporting.write_reports(("x",), store, tmp_path / form, form)
        text = (tmp_path / form / f"x.{form}").read_text()
        assert "What was expected" in text
        assert "What the paper claims" not in text
        assert other not in text.split("What was expected")[0]
