"""The README and the tour run, word by word."""

import json
from pathlib import Path

import readme_tour
from commands import succeed
from simstream_repro.plan import load_paper, paper_ids
from simstream_repro.records import RecordStore
from simstream_repro.report import judged_numbers, number_files
from simstream_repro.verdicts import PaperRecords

ROOT = Path(__file__).parents[1]


def test_tour():
    readme, tour = readme_tour.PAGES
    assert readme_tour.blocks("python", readme)
    assert len(readme_tour.blocks("python", tour)) >= 4
    assert len(readme_tour.commands(tour)) >= 3
    readme_tour.run(succeed)  # in this process: `make wheel-test` starts one for each


def headline(summary):
    """What the README says of the published results."""
    found = summary["all"]
    total = found["within"] + found["above"] + found["below"]
    return (
        f"Of all {total} published quality numbers on exactly the papers' data, {found['within']} are within "
        "two standard errors of the printed one (within 0.01 where no spread is printed), "
        f"{found['above']} above "
        f"({found['above, another experiment']} of them by another experiment) and {found['below']} below; "
        f"{found['missing']} are missing"
    )


def test_headline_numbers_are_those_of_the_pages():
    summary = json.loads((ROOT / "docs/repro/summary.json").read_text())
    text = " ".join((ROOT / "README.md").read_text().split())
    assert headline(summary) in text


def test_numbers_of_the_pages_are_those_of_the_records():
    """Or the pages are to be written again, as their index says."""
    store = RecordStore(ROOT / "docs/repro/records")
    papers = [load_paper(name) for name in paper_ids()]
    found = [(paper, judged_numbers(PaperRecords(paper, store))) for paper in papers]
    for name, text in number_files(found).items():
        assert (ROOT / "docs/repro" / name).read_text() == text, f"{name} is older than the records"
