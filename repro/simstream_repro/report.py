"""Pages of results: one per paper and an index, as self-contained HTML, or as Markdown with pictures."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from simstream.data import atomic_write

from .claims import Finding, adjusted_p_value, check_claims, rank_methods
from .figures import draw, rank_figure
from .means import means_tables
from .plan import Exhibit, Paper, Study, TableMeasure, load_paper, paper_ids, published
from .records import Cell, Record, RecordStore, is_number, repeated
from .scatter import scatter
from .verdicts import (
    COUNTED,
    MAIN_RULE,
    MISSING,
    NO_VERDICT,
    RULES,
    JudgedNumber,
    PaperRecords,
    Tally,
    compare,
    is_comparable,
    outstanding,
    tally,
    without_replaced,
)

_MARKS = {"within": "=", "above": "+", "below": "-"}
#: Columns of comparisons.csv.
_COLUMNS = (
    *("paper", "exhibit", "data_set", "file", "standing", "method", "measure", "kind"),
    *("ours", "ours_std", "runs", "planned_runs", "printed", "printed_std"),
    *("standard_error", "tolerance", "verdict", "cause", "marked"),
)
#: Dots per inch of pictures, and the width in dots from which phones show a picture wider than the screen.
_DPI, _PHONE = 110, 640
#: Of numbers above the print by another experiment, and of those whose agreement is no evidence.
_ANOTHER, _FITTED = "*", "†"
#: Above a table of claims: the rule, what verdicts mean, and what concerns papers only.
_CLAIMS_RULE = (
    "A difference counts if it exceeds two standard errors over the runs (the ± in this table; of a ratio, "
    "[ ] has all values that this leaves possible). From a single run it counts if it exceeds 0.01, and for "
    "times three tenths. Smaller ones are open."
)
_CLAIMS_VERDICTS = (
    "Where decided: no comparison speaks against the claim, and some are open. In part: some support it, "
    "some speak against it. So far: numbers that may change it are missing."
)
_CLAIMS_DATA = (
    "Where some data is exactly the paper's, the verdict rests on that alone; “on other data” means that "
    "there is none, so that the verdict says little about the paper. Wanted: the printed ratio, with "
    "a margin."
)


def write_reports(
    papers: tuple[str, ...], store: RecordStore, output: str | Path, form: str = "html"
) -> list[Path]:
    """Write the pages of these papers (of all, if none is named) from their records.

    Parameters
    ----------
    papers : tuple of ids
    store : RecordStore
    output : folder to write to
    form : "html" or "md"

    Returns
    -------
    list of Path
        What was written: a page per paper; an index, ``summary.json`` and ``comparisons.csv``, unless only
        some papers are asked for and there is an index already; and for Markdown the pictures.
    """
    for paper_id in papers:
        load_paper(paper_id)  # an unknown one is refused before anything is written
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    pages = []
    for paper_id in papers or tuple(paper_ids()):
        paper = load_paper(paper_id)
        page = paper_page(paper, store)
        for view in (page["overview"], *page["exhibits"]):
            written += _place_picture(view, output, form)
        pages.append(page)
        written.append(_write(output / f"{paper.id}.{form}", render(f"paper.{form}.j2", page)))
    index_page = output / f"index.{form}"
    if papers and index_page.exists():  # it covers all papers: keep it
        return written
    everything = tally(one for page in pages for _, one in page["numbers"])
    index = {
        "pages": pages,
        "tally": everything,
        "rules": list(RULES),
        "no_verdict": NO_VERDICT,
        "sources": _sources([page["paper"] for page in pages], store),
    }
    written.append(_write(index_page, render(f"index.{form}.j2", index)))
    files = number_files([(page["paper"], page["numbers"]) for page in pages])
    return written + [_write(output / name, text) for name, text in files.items()]


#: Printed numbers with ours and the verdict, and the exhibit that each is in.
_Numbers = list[tuple[str, JudgedNumber]]


def number_files(found: list[tuple[Paper, _Numbers]]) -> dict[str, str]:
    """What is written for other programs: the counts of verdicts, and every number."""
    everything = tally(one for _, numbers in found for _, one in numbers)
    summary = {"all": _summary(everything)} | {
        paper.id: _summary(tally(one for _, one in numbers))
        for paper, numbers in found
        if paper.is_compared
    }
    return {
        "summary.json": json.dumps(summary, indent=1) + "\n",
        "comparisons.csv": _comparisons(found),
    }


def _sources(papers: list[Paper], store: RecordStore) -> dict[str, int]:
    """How many finished cells all pages rest on, and how many of them come from other code."""
    found = [
        outstanding(paper, study, store) for paper in papers for study in paper.studies.values()
    ]
    return {
        name: sum(getattr(one, name) for one in found)
        for name in ("n_done", "n_stale", "n_repeated", "n_same")
    }


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")
    return path


def render(template: str, context: dict[str, Any]) -> str:
    """A page from a template of this package."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simstream_repro"),
        autoescape=template.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["prose"] = prose
    page = environment.get_template(template).render(context)
    return page.replace(" ± ", "\u00a0±\u00a0")  # a number and its spread in one line


def prose(text: str) -> Any:
    """A note as HTML: its paragraphs, `code` and **emphasis**.

    Examples
    --------
    >>> str(prose("**a** < `b`\\n\\nc"))
    '<p class="note"><b>a</b> &lt; <code>b</code></p><p class="note">c</p>'
    """
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    marked = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", marked)
    paragraphs = [f'<p class="note">{one}</p>' for one in marked.split("\n\n") if one.strip()]
    return Markup("".join(paragraphs))  # the text was escaped before its marks became tags


def _place_picture(exhibit: dict[str, Any], output: Path, form: str) -> list[Path]:
    """The picture inside the page, or in a file beside it."""
    figure = exhibit.pop("figure")
    exhibit["picture"] = None
    if figure is None:
        return []
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, facecolor="white")
    exhibit["is_wide"] = figure.get_figwidth() * _DPI > _PHONE
    if form == "html":
        exhibit["picture"] = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        return []
    path = output / f"{exhibit['id']}.png"
    with atomic_write(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
    exhibit["picture"] = path.name
    return [path]


# -- what a page shows ------------------------------------------------------------------------------------


def paper_page(paper: Paper, store: RecordStore) -> dict[str, Any]:
    """Everything a page says, for the templates."""
    given = PaperRecords(paper, store)
    shown = _shown_numbers(given)
    numbers = _numbers(paper, shown)
    counted = [one for _, one in numbers if is_comparable(one)]
    below = [one for one in counted if one.verdict == "below"]
    runs = _runs(given)
    is_compared = paper.is_compared
    return {
        "paper": paper,
        "numbers": numbers,
        "tally": tally(counted),
        "rules": list(RULES),
        "no_verdict": NO_VERDICT,
        "overview": {
            "id": f"{paper.id}-overview",
            "title": "Our numbers against the printed ones",
            "figure": scatter(paper, [one for _, one in numbers]) if is_compared else None,
        },
        "exhibits": [
            _exhibit(given, exhibit, shown.get(exhibit.id, []))
            for exhibit in sorted(paper.exhibits.values(), key=_is_beyond)
        ],
        "claims": (claims := check_claims(given)),
        "claims_text": _claims_text(claims),
        "claims_legend": " ".join(
            (_CLAIMS_RULE, *([_CLAIMS_DATA] if is_compared else []), _CLAIMS_VERDICTS)
        ),
        "below": _grouped((one, one.explanation) for one in below),
        "untested": _names([one for one in below if not one.is_tested]),
        "another": _grouped((one, one.another) for one in counted),
        "fitted": _grouped((one, one.fitted) for one in counted),
        "runs": runs,
        "n_to_run": sum(run["n_to_run"] for run in runs),
        "versions": [
            json.loads(x) for x in sorted({json.dumps(v) for r in runs for v in r["versions"]})
        ],
        "counted": COUNTED,
        "is_compared": is_compared,
    }


def judged_numbers(given: PaperRecords) -> _Numbers:
    """Every number that a paper prints, or that stands beside such numbers, once."""
    return _numbers(given.paper, _shown_numbers(given))


def _shown_numbers(given: PaperRecords) -> dict[str, list[JudgedNumber]]:
    return {
        exhibit.id: compare(given, exhibit)
        for exhibit in given.paper.exhibits.values()
        if exhibit.kind in ("table", "absent")
    }


def _numbers(paper: Paper, shown: dict[str, list[JudgedNumber]]) -> _Numbers:
    return [(name, one) for name, found in without_replaced(paper, shown).items() for one in found]


def _claims_text(claims: list[Finding]) -> str:
    """How many claims came out how, those on other data than the paper's apart.

    Examples
    --------
    >>> _claims_text([Finding("", "holds"), Finding("", "open so far"), Finding("", "holds")])
    '2 hold, 1 is open'
    >>> _claims_text([Finding("", "holds"), Finding("", "open", on_exact=False)])
    '1 holds; on other data: 1 is open'
    """
    words = {  # of one claim, of several
        "holds": ("holds", "hold"),
        "holds where decided": ("holds where decided", "hold where decided"),
        "holds in part": ("holds in part", "hold in part"),
        "does not hold": ("does not hold", "do not hold"),
        "open": ("is open", "are open"),
    }
    groups = []
    for on_exact, name in ((True, ""), (False, "on other data: ")):
        counts = Counter(
            one.verdict.removesuffix(" so far") for one in claims if one.on_exact == on_exact
        )
        found = [
            f"{counts[word]} {text[counts[word] > 1]}"
            for word, text in words.items()
            if counts[word]
        ]
        groups += [name + ", ".join(found)] if found else []
    return "; ".join(groups)


def _is_beyond(exhibit: Exhibit) -> bool:
    """Whether it shows what the paper does not: those come last."""
    return exhibit.title.startswith("Beyond the paper")


def _exhibit(
    given: PaperRecords, exhibit: Exhibit, comparisons: list[JudgedNumber]
) -> dict[str, Any]:
    paper = given.paper
    view: dict[str, Any] = {
        "id": exhibit.id,
        "title": exhibit.title,
        "note": exhibit.note,
        "tables": _tables(paper, exhibit, comparisons),
        "figure": None,
        "ranks": [],
        "pairs": [],
        "text": "",
        "command": "",
        "to_run": "",
        "duration": "",
        "hashes": "",
        "n_records": 0,
    }
    study = paper.study_of(exhibit.id)
    if study is not None:
        view |= _provenance(given, exhibit, study)
    if study is None:
        view["text"] = "Not run: its data is not available." if exhibit.published else ""
    elif exhibit.kind == "table" and not any(one.ours or one.limit for one in comparisons):
        view |= {"tables": [], "text": "Not run yet."}
    elif exhibit.kind == "figure":
        view["figure"] = draw(given, exhibit)
        view["text"] = "" if view["figure"] else "Not run yet."
    elif exhibit.kind == "means":
        view["tables"] = means_tables(given, exhibit)
        view["text"] = "" if view["tables"] else "Not run yet."
    elif exhibit.kind in ("ranks", "pairs"):
        view |= _ranks(given, exhibit, study)
    given_data = [paper.datasets[name] for name in (study.datasets if study else ())]
    view["data"] = [
        f"{data.name}: {data.standing}"
        + (f" ({data.data})" if data.data and data.data != data.name else "")
        + (f"; {data.note}" if data.note else "")
        for data in given_data
        if data.standing != "bundled" and (data.standing != "exact" or data.note)
    ]
    return view


def _provenance(given: PaperRecords, exhibit: Exhibit, study: Study) -> dict[str, Any]:
    """The command behind an exhibit, the time its study took, and which files it read."""
    records = [one for found in given.table(study).values() for one in found]
    files: dict[str, list[str]] = {}
    for one in records:
        read = files.setdefault(one["data"], [])
        if (digest := one.get("data_sha256", "")[:12]) and digest not in read:
            read.append(digest)
    cells = given.planned(study)
    n_missing = len(cells) - len(given.store.finished(cells))
    return {
        "command": f"simstream repro run {exhibit.id}",
        "to_run": f"{n_missing:,} of {len(cells):,} cells" if n_missing else "",
        "duration": _duration(sum(one.get("wall_seconds", 0.0) for one in records) / 3600),
        "hashes": _hashes(files, _bundled(given.paper)),
        "n_records": len(records),
    }


def _bundled(paper: Paper) -> set[str]:
    """Data sets that come with scikit-learn, in no file of their own."""
    return {one.data for one in paper.datasets.values() if one.standing == "bundled"}


def _hashes(files: dict[str, list[str]], in_sklearn: Collection[str] = ()) -> str:
    """Data sets with their hashes, then those without one and why.

    Examples
    --------
    >>> _hashes({"bbc": ["9a9a"], "digits": [], "wine": [], "glass": []}, ["digits"])
    'data (SHA-256): bbc 9a9a; digits is part of scikit-learn; hash not recorded: wine, glass'
    >>> _hashes({"synthetic-a": []})
    'synthetic-a is generated from the seed'
    >>> _hashes({"bbc": ["9a9a", "1b1b"]})
    'data (SHA-256): bbc 9a9a and 1b1b (several files: their runs do not belong together)'
    """
    without = [name for name, found in files.items() if not found]
    generated = [name for name in without if name.startswith("synthetic-")]
    bundled = [name for name in without if name in in_sklearn]
    unknown = [name for name in without if name not in (*generated, *bundled)]
    known = [
        f"{name} {' and '.join(found)}"
        + (" (several files: their runs do not belong together)" if len(found) > 1 else "")
        for name, found in files.items()
        if found
    ]
    parts = [f"data (SHA-256): {', '.join(known)}"] if known else []
    for names, reason in (
        (generated, "generated from the seed"),
        (bundled, "part of scikit-learn"),
    ):
        if names:
            parts.append(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {reason}")
    if unknown:
        parts.append(f"hash not recorded: {', '.join(unknown)}")
    return "; ".join(parts)


def _duration(hours: float) -> str:
    """Hours in words.

    Examples
    --------
    >>> _duration(1.26), _duration(0.1), _duration(0.001)
    ('1.3 h', '6 min', '4 s')
    """
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 40 else f"{3600 * hours:.0f} s"


def _tables(
    paper: Paper, exhibit: Exhibit, comparisons: list[JudgedNumber]
) -> list[dict[str, Any]]:
    """One table per measure: data sets as rows, methods as columns; of a single method one table in all."""
    if len({one.method for one in comparisons}) == 1 and len(exhibit.measures) > 1:
        rows = []
        for dataset in dict.fromkeys(one.dataset for one in comparisons):
            found = {one.measure.name: one for one in comparisons if one.dataset == dataset}
            name = paper.datasets[dataset].label if dataset in paper.datasets else dataset
            cells = [_cell(found.get(measure.name), None) for measure in exhibit.measures]
            rows.append({"name": name, "cells": cells})
        return [
            {
                "label": "",
                "methods": [one.label for one in exhibit.measures],
                "rows": rows,
                "compared": True,
                "is_time": False,
            }
        ]
    tables = []
    for measure in exhibit.measures:
        mine = [one for one in comparisons if one.measure is measure]
        if not mine:
            continue
        methods = _columns_of(mine)
        datasets = list(dict.fromkeys(one.dataset for one in mine))
        by_place = {(one.dataset, one.method): one for one in mine}
        rows = []
        for dataset in datasets:
            in_row = [by_place.get((dataset, method)) for method in methods]
            if all(map(_says_nothing, in_row)):
                continue  # 50 features of a data set that has fewer
            values = [
                one.ours[0]
                for one in in_row
                if one is not None
                and one.ours is not None
                and one.is_measured
                # What does not learn takes no time, which is no merit.
                and (measure.kind != "time" or one.ours[0] > 0)
            ]
            choose = {"higher": max, "lower": min}.get(measure.better, lambda *_, **__: None)
            best = choose(values, default=None)
            given = paper.datasets.get(dataset)
            name = dataset if given is None or not exhibit.study else given.label
            rows.append({"name": name, "cells": [_cell(one, best) for one in in_row]})
        tables.append(
            {
                "label": measure.label,
                "methods": [paper.shown(one) if exhibit.study else one for one in methods],
                "rows": rows,
                "compared": bool(exhibit.study) and any(one.theirs for one in mine),
                "is_time": measure.kind == "time",
            }
        )
    return tables


def _columns_of(mine: list[JudgedNumber]) -> list[str]:
    """The methods of a table, without those that it does not apply to; all of them if it is empty then."""
    methods = list(dict.fromkeys(one.method for one in mine))
    told = {one.method for one in mine if one.ours is not None or one.theirs}
    apart = {one.method for one in mine if one.verdict == "does not apply"} - told
    return [one for one in methods if one not in apart] or methods


def _says_nothing(one: JudgedNumber | None) -> bool:
    """Whether runs have ended without this number, and the paper prints none."""
    return one is None or (one.verdict == "does not apply" and not one.theirs)


def _times(ratio: float) -> str:
    """How many times faster, or slower.

    Examples
    --------
    >>> _times(1234.5), _times(1.23), _times(0.1)
    ('1,234x', '1.2x', '10x slower')
    """
    slower, ratio = (" slower", 1 / ratio) if ratio < 1 else ("", ratio)
    return (f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x") + slower


def _digits(mean: float, measure: TableMeasure) -> int:
    """Decimal places of a mean: those of its measure, and more for times that would vanish with them."""
    if measure.kind == "time" and 0 < abs(mean) < 10.0**-measure.digits:
        return 1 - math.floor(math.log10(abs(mean)))
    return measure.digits


def _shown(mean: float, measure: TableMeasure) -> str:
    """A mean with the digits of its measure; times that would vanish with them get others.

    Examples
    --------
    >>> seconds = TableMeasure(name="s", ours="seconds", label="s", kind="time", digits=2)
    >>> _shown(0.25, seconds), _shown(0.00025, seconds), _shown(12345.6, seconds)
    ('0.25', '0.00025', '12,345.60')
    """
    return f"{mean:,.{_digits(mean, measure)}f}"


def _with_commas(printed: str) -> str:
    """A printed number as it is, with commas between thousands.

    Examples
    --------
    >>> _with_commas("196561.51"), _with_commas("0.10"), _with_commas("NA"), _with_commas("<1e-5")
    ('196,561.51', '0.10', 'NA', '<1e-5')
    """
    whole, point, rest = printed.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.isdigit() and len(whole) > 3 else printed


def _cell(one: JudgedNumber | None, best: float | None) -> dict[str, Any]:
    if one is None:
        return {"ours": "", "theirs": "", "verdict": "", "mark": "", "best": False, "speed_up": ""}
    ours = ""
    if one.verdict == "over budget":
        ours = f"over {one.limit}".replace(" seconds", " s")
    elif one.ours is not None:
        mean, std, n = one.ours
        ours = _shown(mean, one.measure)
        if n > 1 and (one.measure.kind == "quality" or std):
            ours += f" ± {std:,.{_digits(mean, one.measure)}f}"
        if n != one.planned:
            ours += f" [{n}]"
    elif one.verdict in MISSING:
        ours = one.verdict
    elif one.verdict == "does not apply":
        ours = "not measured"
    theirs = _with_commas(one.theirs)
    theirs += f" ± {_with_commas(one.their_std)}" if one.their_std else ""
    return {
        "ours": ours,
        "theirs": theirs,
        "verdict": one.verdict,
        "mark": (_ANOTHER if one.another else _MARKS.get(one.verdict, ""))
        + (_FITTED if one.fitted else ""),
        "best": one.ours is not None
        and one.is_measured
        and best is not None
        and _shown(one.ours[0], one.measure) == _shown(best, one.measure),
        "speed_up": _times(one.speed_up) if one.speed_up else "",
    }


def _ranks(given: PaperRecords, exhibit: Exhibit, study: Study) -> dict[str, Any]:
    """Average ranks with a critical-difference diagram, or the pairs that differ."""
    measure = exhibit.measures[0]
    methods = exhibit.methods or study.methods
    records = [
        record
        for (dataset, _), found in given.table(study).items()
        for record in found
        if not exhibit.datasets or dataset in exhibit.datasets
    ]
    ranked = rank_methods(records, methods, measure.ours, lower_is_better=measure.better == "lower")
    if ranked is None:
        return {"text": "Not run on enough data sets yet."}
    result, used = ranked
    left_out = sorted({one["dataset"] for one in records} - set(used))
    printed = published(exhibit.published) if exhibit.published else {}
    theirs = {
        method: value for (_, method, name), (value, _) in printed.items() if name == measure.name
    }
    text = (
        f"Friedman over {len(used)} data sets and {len(methods)} methods: chi2 = {result.chi2:.1f}, "
        f"p = {result.p_value:.2g}."
    )
    if exhibit.kind == "pairs":
        pairs = [
            {"name": name, "ours": _p_value(adjusted_p_value(result, name)), "theirs": value}
            for name, value in theirs.items()
        ]
        return {"text": text, "pairs": pairs}
    order = sorted(zip(methods, result.average_ranks, strict=True), key=lambda one: one[1])
    return {
        "text": f"{text} Data sets: {', '.join(used)}."
        + (
            f" Left out, because a method has no number there: {', '.join(left_out)}."
            if left_out
            else ""
        ),
        "ranks": [
            {"name": name, "ours": f"{rank:.2f}", "theirs": theirs.get(name, "")}
            for name, rank in order
        ],
        "figure": rank_figure(result, methods),
    }


def _p_value(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _name(one: JudgedNumber) -> str:
    return f"{one.dataset}, {one.method}, {one.measure.label}"


def _grouped(pairs: Any) -> list[dict[str, Any]]:
    """Explanations with the numbers they explain."""
    groups: dict[str, list[JudgedNumber]] = {}
    for one, text in pairs:
        if text:
            groups.setdefault(text, []).append(one)
    return [{"text": text, "names": _names(found)} for text, found in groups.items()]


def _names(numbers: list[JudgedNumber]) -> list[str]:
    """Which numbers, in few words: by method or by data set, whichever makes fewer groups."""
    by_method: dict[str, list[str]] = {}
    by_dataset: dict[str, list[str]] = {}
    for one in numbers:
        by_method.setdefault(f"{one.method}, {one.measure.label}", []).append(one.dataset)
        by_dataset.setdefault(f"{one.dataset}, {one.measure.label}", []).append(one.method)
    if len(by_method) == len(numbers) == len(by_dataset):
        return [_name(one) for one in numbers]
    fewer = by_method if len(by_method) <= len(by_dataset) else by_dataset
    return [f"{name}: {', '.join(dict.fromkeys(found))}" for name, found in fewer.items()]


def _runs(given: PaperRecords) -> list[dict[str, Any]]:
    """How every study was run."""
    runs = []
    for study in given.paper.studies.values():
        known = given.of(study)
        records = [record for found in known.table.values() for record in found]
        states = Counter(record["status"] for record in records)
        sources = Counter(one.get("versions", {}).get("source", "unknown") for one in records)
        current = [one for one in records if not given.store.is_stale(one)]
        n_repeated, n_same = repeated(current)
        cells = given.planned(study)
        choices = [one for one in cells if one.is_tuning]
        runs.append(
            {
                "study": study,
                "states": dict(states),
                "limits": sorted(
                    {r.get("error", "") for r in records if r["status"] == "over budget"}
                ),
                "n_cells": len(cells) - len(choices),
                "n_choices": len(choices),
                "n_chosen": len(given.store.finished(choices)),
                "n_to_run": len(cells) - len(given.store.finished(cells)),
                "n_left_out": known.n_left_out,
                "tuned_instead": known.tuned_instead,
                "duration": _duration(sum(r.get("wall_seconds", 0) for r in records) / 3600),
                "sources": [name for name, _ in sources.most_common()],
                "n_stale": len(records) - len(current),
                "n_repeated": n_repeated,
                "n_same": n_same,
                "largest_change": _largest_change(current),
                "differing": sorted(
                    {
                        name.replace("sparsity", "zeros in M")
                        for one in current
                        for name in one.get("repeats", {}).get("differing", ())
                    }
                ),
                "chosen": _chosen(given, known.cells),
                "same_streams": _same_streams(records),
                "versions": versions_of(records),
            }
        )
    return runs


def _largest_change(records: list[Record]) -> str:
    """The largest relative difference of a number when its cell was run again; "" if none differs.

    Examples
    --------
    >>> _largest_change([{"repeats": {"same": False, "change": 0.0123}}, {}])
    '1.2 %'
    >>> _largest_change([{"repeats": {"same": False, "change": 0.997}}])
    '100 %'
    >>> _largest_change([{"repeats": {"same": True, "change": 0.0}}])
    ''
    """
    changes = [
        one["repeats"]["change"] or 0.0
        for one in records
        if "repeats" in one and not one["repeats"]["same"]
    ]
    largest = 100 * max(changes, default=0.0)
    if not largest:
        return ""
    return f"{largest:.0f} %" if largest >= 10 else f"{largest:.2g} %"


def versions_of(records: Iterable[Record]) -> list[dict[str, str]]:
    """Versions of Python and the libraries, and processors, that records come from, each once."""
    found = {
        json.dumps({k: v for k, v in one["versions"].items() if k != "source"}, sort_keys=True)
        for one in records
        if "versions" in one
    }
    return [json.loads(one) for one in sorted(found)]


def _chosen(given: PaperRecords, cells: list[Cell]) -> list[str]:
    """Which parameters were chosen, a line for each method: those at an end of what was tried have a mark."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        record = given.store.find(cell) if cell.is_tuning else None
        if record is not None and record["status"] == "done":
            by_dataset = found.setdefault(given.paper.shown(cell.method), {})
            by_dataset.setdefault(given.paper.datasets[cell.dataset].label, []).append(record)
    return [
        f"{method}: "
        + "; ".join(
            f"{dataset} {', '.join(chosen_values(records))}"
            for dataset, records in by_dataset.items()
        )
        for method, by_dataset in found.items()
    ]


def chosen_values(records: list[dict[str, Any]]) -> list[str]:
    """The values chosen in one or several runs, as text; ‡ where one is the least or the greatest tried.

    Examples
    --------
    >>> tried = [[{"C": value}, 0.5] for value in (0.1, 1.0, 10.0)]
    >>> chosen_values([{"parameters": {"C": value}, "tried": tried} for value in (1.0, 10.0)])
    ['C 1 to 10‡']
    """
    texts = []
    for name in {name: None for record in records for one, _ in record["tried"] for name in one}:
        marked = [_marked(record, name) for record in records]
        # By value; of the same one with and without a mark, that with it, which comes later.
        shown = dict(
            sorted((one for one in marked if one), key=lambda one: (_sort_key(one[0]), one[1]))
        )
        if shown:
            values = list(shown.values())
            texts.append(f"{name} {' to '.join(dict.fromkeys([values[0], values[-1]]))}")
    return texts


def _marked(record: dict[str, Any], name: str) -> tuple[float | str, str] | None:
    """The chosen value of a parameter, and its text, with a mark if it is an end of what was tried."""
    grid = sorted(
        {_comparable(one[name]) for one, _ in record["tried"] if name in one}, key=_sort_key
    )
    value = _comparable(record["parameters"].get(name))
    if len(grid) < 2 or value not in grid:
        return None
    if isinstance(value, str):
        return value, value
    return value, f"{value:g}" + ("‡" if value in (grid[0], grid[-1]) else "")


def _comparable(value: Any) -> float | str:
    """Numbers as such, all else as text."""
    return float(value) if is_number(value) else str(value)


def _sort_key(value: float | str) -> tuple[bool, Any]:
    """Numbers first, then texts."""
    return isinstance(value, str), value


def _same_streams(records: list[dict[str, Any]]) -> bool | None:
    """Whether all methods of a run saw the same tuples; None if no record has the digest of its stream."""
    streams: dict[tuple[Any, ...], set[str]] = {}
    for record in records:
        if record.get("stream"):
            key = (record["dataset"], record["seed"], json.dumps(record["variant"]))
            streams.setdefault(key, set()).add(record["stream"])
    return all(len(found) == 1 for found in streams.values()) if streams else None


def _summary(found: Tally) -> dict[str, Any]:
    """Headline numbers, machine-readable."""
    return {
        "within": found.within,
        "above": found.above,
        "above, the same experiment": found.above_same,
        "above, another experiment": found.above_other,
        "below": found.below,
        "marked": found.fitted,
        "fewer runs than planned": found.fewer_runs,
        "another size": found.other_size,
        "missing": found.missing,
        "not on the paper's data": found.others,
        "rules": {
            rule: dict(zip(COUNTED, numbers, strict=True)) for rule, numbers in found.rules.items()
        },
    }


def _comparisons(found: list[tuple[Paper, _Numbers]]) -> str:
    """Every number that a paper prints, with ours where there is one, as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for paper, numbers in found:
        for exhibit, one in numbers:
            if one.published is None:
                continue
            mean, std, n = one.ours or (None, None, 0)
            given = paper.datasets.get(one.dataset)
            counted = one.verdict in COUNTED
            error = one.standard_error
            cause = ""
            if one.verdict == "above":
                cause = "another experiment" if one.another else "the same experiment"
            writer.writerow(
                [
                    paper.id,
                    exhibit,
                    one.dataset,
                    given.data if given is not None else "",
                    one.standing,
                    one.method,
                    one.measure.name,
                    one.measure.kind,
                    "" if mean is None else f"{mean:.6g}",
                    "" if std is None else f"{std:.4g}",
                    n,
                    one.planned,
                    one.theirs,
                    one.their_std,
                    "" if error is None else f"{error:.4g}",
                    f"{RULES[MAIN_RULE](one):.4g}" if counted else "",
                    one.verdict,
                    cause,
                    "yes" if one.fitted else "",
                ]
            )
    return buffer.getvalue()
