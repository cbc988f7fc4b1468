"""The page, driven in a real browser by its keys."""

import json
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from browser import Page
from live import ServerProcess, add_items, do, served

from simstream.serve.access import KeyRing
from simstream.serve.demo_digits import digits
from simstream.serve.events import EventKind
from simstream.serve.service import Service, Settings
from simstream.serve.state import Learning
from simstream.serve.writer import Ledger, NewItem

PAGE = Path(__file__).parents[2] / "src" / "simstream" / "serve" / "page"
DASH = "\N{EN DASH}"


def accuracy_line(shares, count):
    """What the page says of an accuracy."""

    def told(share):
        if share["accuracy"] is None:
            return DASH
        low, middle, high = (
            int(np.floor(100 * share[name] + 0.5)) for name in ("low", "accuracy", "high")
        )
        return f"{middle}\u202f% {low}{DASH}{high}\u202f%"

    return f"{told(shares['learnt'])} | {told(shares['baseline'])} | {count}"


def accuracy_shown(page):
    code = """
        const texts = (what) => [...document.querySelectorAll(`#label-accuracy ${what}`)].map(
            (place) => place.textContent);
        const values = texts(".value"), ranges = texts(".range");
        const count = texts("p")[0].match(/on (\\d+) random/);
        return values.map((value, i) => `${value} ${ranges[i]}`.trim()).join(" | ")
            + " | " + (count ? count[1] : 0);"""
    return page.script(code)


def test_thirty_questions_by_keyboard_and_one_taken_back(window, demo, tmp_path):
    page = Page(window, demo).open()
    page.until_ready()
    served, _ = digits()
    value = dict(zip(served.names.tolist(), served.numbers.tolist(), strict=True))
    # The smaller the difference of two digits, the more similar: that answers most questions.
    answers, skips, seen = 0, 0, [accuracy_shown(page)]
    while answers < 30:
        is_answered = page.answer(lambda a, b: abs(value[a] - value[b]))
        answers += is_answered
        skips += not is_answered
        assert page.text("answered") == str(answers)
        seen.append(accuracy_shown(page))
    status = page.api("GET", "/v1/status")
    accuracy = status["accuracy"]
    assert (status["answers"], status["skips"]) == (30, skips)
    assert f"{skips} skipped" in page.text("answered-all")
    assert accuracy["random_answers"] > 0
    assert seen[0] == f"{DASH} | {DASH} | 0"
    assert seen[-1] == accuracy_line(accuracy, accuracy["random_answers"])
    assert len(set(seen)) == accuracy["random_answers"] + 1  # it moved with each, and only then
    assert "30 answered" in page.text("label-live")
    page.picture(tmp_path, "label-light")

    asked_now = page.question()
    page.act("u")
    assert page.text("answered") == "29"
    status = page.api("GET", "/v1/status")
    accuracy = status["accuracy"]
    assert status["answers"] == 29
    assert accuracy_shown(page) == accuracy_line(accuracy, accuracy["random_answers"])
    assert len(page.responses()) == 29
    taken_back = page.question()[1]
    page.act(page.keys.ARROW_RIGHT)
    assert page.text("answered") == "30"
    assert page.question() == asked_now  # it was asked already, and is not lost
    assert page.api("GET", "/v1/status")["answers"] == 30
    last = page.responses()[-1]
    assert tuple(last[name] for name in ("head_id", "loser_id", "winner_id")) == taken_back


def test_two_presses_at_once_are_one_answer(window, demo):
    page = Page(window, demo).open()
    page.until_ready()
    before = page.api("GET", "/v1/status")
    asked = page.data("question", "question")
    page.script("""
        window.sent = [];
        const send = window.fetch;
        window.fetch = (path, options) => { window.sent.push(path); return send(path, options); };
        const press = (key, repeat) => document.body.dispatchEvent(
            new KeyboardEvent("keydown", { key, repeat, bubbles: true }));
        press("ArrowLeft", false); press("ArrowLeft", true); press("ArrowRight", false);
        document.getElementById("left").click(); document.getElementById("skip").click();""")
    page.until(lambda: page.data("question", "question") != asked, "the next question")
    page.until_ready()
    sent = page.script("return window.sent")
    assert sent.count("/v1/answer") == 1
    assert sent.count("/v1/query") == 1
    after = page.api("GET", "/v1/status")
    assert after["answers"] + after["skips"] == before["answers"] + before["skips"] + 1
    # A key that is held down, or pressed in a field or together with Control, answers nothing.
    sent = page.script("""
        const press = (place, options) => place.dispatchEvent(
            new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true, ...options }));
        press(document.body, { repeat: true });
        press(document.body, { ctrlKey: true });
        press(document.body, { altKey: true });
        press(document.getElementById("find"), {});
        return window.sent""")
    assert sent.count("/v1/answer") == 1
    page.act("s")
    assert page.script("return window.sent").count("/v1/answer") == 2


FAIL = """
    window.failures = [];
    const send = window.fetch, [wanted, status] = arguments;
    let left = 2;
    window.fetch = (path, options) => {
        if (path !== wanted || left-- <= 0) return send(path, options);
        window.failures.push(options.body);
        if (status === 0) return Promise.reject(new TypeError("no network"));
        const headers = { "Retry-After": "1" };
        return Promise.resolve(new Response('{"error": "not now"}', { status, headers }));
    };"""


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (0, "cannot be reached"),
        (429, "Too many requests"),
        (503, "busy (not now)"),
        (507, "cannot write"),
    ],
)
def test_an_answer_is_sent_again_until_it_is_kept(window, demo, status, told):
    page = Page(window, demo).open()
    page.until_ready()
    before = page.api("GET", "/v1/status")["answers"]
    page.script(FAIL, "/v1/answer", status)
    asked = page.data("question", "question")
    page.press(page.keys.ARROW_LEFT)
    page.until(lambda: told in page.text("notice"), "the reason")
    assert page.data("question", "question") == asked
    page.element("notice-button").click()  # rather than wait
    page.until(lambda: page.data("question", "question") != asked, "the next question")
    page.until_ready()
    assert page.element("notice").is_displayed() is False
    bodies = page.script("return window.failures")
    assert len(bodies) == 2
    assert {json.loads(body)["question"] for body in bodies} == {int(asked)}
    assert page.api("GET", "/v1/status")["answers"] == before + 1


def test_everything_can_be_reached_by_the_tabulator_and_focus_is_seen(window, demo):
    page = Page(window, demo).open()
    page.until_ready()
    reached = []
    for _ in range(12):
        page.press(page.keys.TAB)
        code = """const it = document.activeElement;
            return [it.id || it.textContent, getComputedStyle(it).outlineStyle]"""
        reached.append(tuple(page.script(code)))
    names = [name for name, _ in reached]
    assert [
        name
        for name in names
        if name in ("Label", "Explore", "Status", "left", "right", "skip", "undo")
    ][:7] == ["Label", "Explore", "Status", "left", "right", "skip", "undo"]
    assert all(style == "solid" for name, style in reached if name in ("left", "right", "Explore"))


def last_question(service):
    return list(service.log.read(0, kinds=(EventKind.QUESTION,)))[-1]


@pytest.mark.slow
def test_the_page_while_a_simulated_user_answers(window, tmp_path):
    """Also draws the pictures in docs: PAGE_SCREENSHOTS=docs pytest -m slow tests/serve/test_page.py."""
    server = ServerProcess(tmp_path / "data", "--demo", "digits", "--simulate")
    try:
        page = Page(window, server.port)
        window.set_window_size(900, 1300)
        page.open()
        page.until_ready()
        question = page.question()

        def answered():
            return int(page.text("answered").replace(",", ""))

        page.until(lambda: answered() >= 300, "the counts of what others answer", 300)
        assert page.question() == question  # nobody took it away
        code = "return [...document.querySelectorAll('#label-precision .value')].map((it) => it.textContent)"
        learnt, baseline = (int(text.split("\u202f")[0]) for text in page.script(code))
        assert learnt > baseline + 15
        page.picture(tmp_path, "page-label")
        page.open(
            "explore/digit-0011"
        )  # as many right neighbours at first as digits have on average
        page.until(lambda: len(page.ids("learnt")) == 12 and len(page.ids("found")) == 24, "items")
        page.picture(tmp_path, "page-explore")
    finally:
        server.terminate()


EVIL = "<img src=x onerror=\"document.title='owned'\"> & <b>bold</b>"


def test_keys_tasks_and_texts_that_look_like_html(window, tmp_path):
    ring = KeyRing(tmp_path / "keys.json")
    key, reader = ring.add("page", ["read", "write"]), ring.add("reader", ["read"])
    service = Service(Settings(tmp_path / "data", learning=Learning("omtrsl")))
    rows = np.eye(4, dtype=np.float32) + 0.1
    texts = [EVIL, "a poem about rain", "a poem about snow", "a recipe"]
    names = ["<i>/0", "poem/1", "poem?2", "recipe#3"]
    items = [NewItem(n, r, {"text": t}) for n, r, t in zip(names, rows, texts, strict=True)]
    do(service, Ledger.add_items, items)
    with served(service, ring) as port:
        page = Page(window, port).open()
        page.until(lambda: "needs a key" in page.text("notice"), "the form")
        page.press("simstream_0_wrong", page.keys.ENTER)  # the field has the focus
        page.until(lambda: "does not recognise this key" in page.text("notice"), "the reason")
        page.press(reader, page.keys.ENTER)
        page.until(lambda: "does not allow write" in page.text("notice"), "the reason")
        page.press(key, page.keys.ENTER)
        page.until_ready()
        page.until(lambda: page.text("answered-all"), "counts")
        assert page.element("notice").is_displayed() is False
        assert page.script("return Object.values(sessionStorage)") == [key]
        assert page.script("return localStorage.length + document.cookie.length") == 0
        assert key not in page.script("return location.href")

        page.element("task").send_keys("ann", page.keys.TAB)
        page.until(lambda: last_question(service).body["task"] == "ann", "a question to ann")
        page.until_ready()
        page.act(page.keys.ARROW_LEFT)
        assert service.version.model.task_names == ["ann"]

        page.open(f"explore/{names[0].replace('/', '%2F')}")
        page.until(lambda: page.data("chosen", "id") == names[0], "the item")
        assert page.text("chosen") == EVIL
        page.until(lambda: len(page.ids("found")) == 4, "all items")
        page.element("find").send_keys("POEM rain")
        page.until(lambda: page.ids("found") == ["poem/1"], "the one item with both words")
        page.element("find").send_keys(page.keys.ENTER)
        page.until(lambda: page.data("chosen", "id") == "poem/1", "the item")
        assert unquote(page.script("return location.hash")) == "#/explore/poem/1"
        assert page.script("return document.title") == f"explore {DASH} simstream"
        assert page.script("return document.querySelectorAll('main b, main [onerror]').length") == 0


def test_a_service_without_items_says_so(window, tmp_path):
    service = Service(Settings(tmp_path))
    with served(service) as port:
        page = Page(window, port).open()
        page.until(lambda: "fewer than three items" in page.text("question-missing"), "the reason")
        add_items(service, np.eye(3, dtype=np.float32))
        page.element("ask-again").click()
        page.until_ready()
        assert sorted(page.question()[1]) == ["i0", "i1", "i2"]


def test_files_are_plain_and_made_for_the_policy():
    """Nothing inline, nothing from elsewhere, nothing that reads text as HTML."""
    index = (PAGE / "index.html").read_text()
    assert "<style" not in index
    assert "style=" not in index
    assert "onclick" not in index
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path.name
        assert "https:" not in text, path.name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (path.name, word)
