"""The README's tour runs, word by word."""

import json
from pathlib import Path

import readme_tour
from commands import succeed
from simstream_repro.verdicts import MISSING

ROOT = Path(__file__).parents[1]


def test_tour():
    assert len(readme_tour.blocks("python")) >= 4
    assert len(readme_tour.commands()) >= 3
    readme_tour.run(succeed)  # in this process: `make wheel-test` starts one for each


def headline(summary):
    """What the README says of the published results."""
    counts = summary["counts"]
    missing = sum(counts.get(word, 0) for word in MISSING)
    share = round(100 * summary["reproduced or better"])
    fewer = summary["fewer runs than planned"]
    return (
        f"{counts['reproduced']} are reproduced, {counts['better']} better and {counts['worse']} worse "
        f"({share} % reproduced or better; {fewer} from fewer runs than planned); "
        f"{missing} were not run, or not within their budget"
    )


def test_headline_numbers_are_those_of_the_records():
    summary = json.loads((ROOT / "docs/repro/summary.json").read_text())
    text = " ".join((ROOT / "README.md").read_text().split())
    assert headline(summary) in text
