"""The demo on docstrings: what is served, who clicks, whether the ranking improves; clicks on the page."""

import json

import numpy as np
import pytest
from browser import Page
from live import Client, ServerProcess, running

from simstream.serve.demo import FOLDERS
from simstream.serve.demo_docstrings import (
    ASKING,
    LEARNING,
    LinkMeasure,
    Reader,
    add_docstrings,
    corpus,
    progress,
    rows,
)
from simstream.serve.events import EventKind
from simstream.serve.evidence import Publishing


def test_clicks_improve_the_search_for_docstrings_that_nobody_searched_for(tmp_path):
    measure = LinkMeasure()
    with running(tmp_path, learning=LEARNING, asking=ASKING) as service:
        assert add_docstrings(service) == len(corpus().names)
        assert add_docstrings(service) == 0
        _, vector, payload = service.item("numpy.linalg.svd")
        assert np.array_equal(vector, rows()[corpus().names.index("numpy.linalg.svd")])
        assert payload["text"] == "numpy.linalg.svd: Singular Value Decomposition."
        before = measure(service.version.model)
        assert before["learnt"] == before["baseline"]
        reader = Reader(seed=0)
        for _ in range(300):
            reader(service)
        after = measure(service.version.model)
        assert after["baseline"] == before["baseline"]
        assert after["learnt"] > after["baseline"] + 0.02
        assert f"{service.version.tally.triplets} comparisons" in progress(service, measure)
        links = {tuple(corpus().names[row] for row in link) for link in corpus().links.tolist()}
        held_out = {corpus().names[row] for row in corpus().split(seed=0)[1][:, 0]}
        for event in service.log.read(0, kinds=(EventKind.FEEDBACK,)):
            anchor, pairs = event.body["anchor"], event.body["pairs"]
            assert anchor not in held_out
            for better, worse in pairs:
                assert (anchor, better) in links
                assert (anchor, worse) not in links


@pytest.mark.parametrize("seed", [0, 1])
def test_the_page_on_the_service_tells_what_600_searches_teach(tmp_path, seed):
    """docs/service.md: from 65 % to 68 %, the mean of 69 and 67 (other versions have other docstrings)."""
    measure = LinkMeasure()
    with running(tmp_path, learning=LEARNING, asking=ASKING, publishing=Publishing()) as service:
        add_docstrings(service)
        reader = Reader(seed)
        for _ in range(600):
            reader(service)
        told = measure(service.version.model)
    assert told["baseline"] == pytest.approx(0.65, abs=0.015)
    assert told["learnt"] == pytest.approx(0.68, abs=0.02)
    assert told["trusted"] >= told["baseline"]


def test_the_measure_is_the_share_of_links_among_the_first_ten():
    _, links = corpus().split(seed=0)
    measure = LinkMeasure()
    queries = measure._judged[0]
    shares = []
    for query in queries:
        scores = rows() @ rows()[query]
        scores[query] = -np.inf
        first = set(np.argsort(-scores, kind="stable")[:10].tolist())
        linked = set(links[links[:, 0] == query, 1].tolist())
        shares.append(len(first & linked) / len(linked))
    assert measure._baseline == pytest.approx(np.mean(shares), abs=0.005)
    assert len(queries) == 300


@pytest.fixture(scope="module")
def port(tmp_path_factory, window):
    folder = tmp_path_factory.mktemp("data")
    server = ServerProcess(folder, "--demo")
    assert (folder / FOLDERS["docstrings"] / "log.sqlite").exists()
    yield server.port
    server.terminate()


def test_a_click_on_a_result_teaches(window, port, tmp_path):
    client = Client(port)
    page = Page(window, port).open("explore/scipy.linalg.lu_factor")
    entries = "return [...document.querySelectorAll('#learnt li')].map((entry) => entry.dataset.id)"
    page.until(lambda: len(page.script(entries)) == 12, "results")
    assert "scipy.linalg.lu_factor: Compute pivoted LU" in page.text("chosen")
    page.picture(tmp_path, "explore-docstrings")
    shown = page.script(entries)
    page.script("document.querySelectorAll('#learnt li button')[4].click()")
    page.until(lambda: shown[4] in page.text("chosen"), "the clicked item")
    page.until(lambda: client("GET", "/v1/status")[1]["triplets"] == 4, "four comparisons")
    records = [json.loads(line) for line in client.raw("GET", "/v1/responses")[2].splitlines()]
    told = {(record["head_id"], record["winner_id"], record["loser_id"]) for record in records}
    assert told == {("scipy.linalg.lu_factor", shown[4], above) for above in shown[:4]}
    page.script("document.querySelectorAll('#baseline li button')[4].click()")
    page.until(lambda: shown[4] not in page.text("chosen"), "another item")
    assert client("GET", "/v1/status")[1]["triplets"] == 4  # the left column does not teach
    page.open("status")
    page.until(lambda: "See Also" in page.text("status-precision"), "the measure")
    client.close()
