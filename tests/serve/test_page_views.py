"""Explore and Status in a real browser, and how every view looks on a desk and a phone, light and dark."""

import time

import numpy as np
import pytest
from browser import Page

from simstream.serve.demo_digits import digits


def neighbour_marks(page, column):
    code = """return [...document.querySelectorAll(`#${arguments[0]} li`)].map((li) =>
        [li.dataset.id, li.className.replace("neighbour ", ""), li.querySelector(".mark").textContent])"""
    return [tuple(row) for row in page.script(code, column)]


def expected_marks(before, after):
    """The marks expected for two rankings: of the twelve nearest now, and of those before."""
    learnt, baseline = [], []
    for rank, name in enumerate(after[:12], 1):
        was = before.index(name) + 1 if name in before else None
        if was is None or was > 12:
            mark = ("new", f"new, was {was or 'beyond 100'}")
        elif was == rank:
            mark = ("same", "=")
        else:
            mark = (
                ("up", f"▲\u202f{was - rank}") if was > rank else ("down", f"▼\u202f{rank - was}")
            )
        learnt.append((name, *mark))
    for name in before[:12]:
        now = after.index(name) + 1 if name in after else None
        is_out = now is None or now > 12
        mark = ("gone", f"out, now {now or 'beyond 100'}") if is_out else ("stays", f"→\u202f{now}")
        baseline.append((name, *mark))
    return learnt, baseline


def teach_digits(page, n, seed=0):
    """Comparisons by class."""
    served, _ = digits()
    names, labels = served.names.tolist(), served.numbers
    rng = np.random.default_rng(seed)
    judgements = []
    for _ in range(n):
        anchor = rng.integers(len(names))
        alike = rng.choice(np.flatnonzero(labels == labels[anchor]))
        other = rng.choice(np.flatnonzero(labels != labels[anchor]))
        if alike != anchor:
            trio = (names[anchor], names[alike], names[other])
            judgements.append(dict(zip(("anchor", "positive", "negative"), trio, strict=True)))
    page.api("POST", "/v1/feedback?wait=true", judgements)


def test_neighbours_before_and_after(window, demo, tmp_path):
    page = Page(window, demo)
    teach_digits(page, 300)
    page.open("explore")
    page.until(lambda: len(page.ids("learnt")) == 12, "neighbours of some item")
    page.until(lambda: page.text("found-live") == "600 items", "the list of items")
    page.element("find").send_keys("digit-004")
    page.until(lambda: len(page.ids("found")) == 10, "ten items found")
    assert page.ids("found") == [f"digit-{n:04d}" for n in range(40, 50)]
    page.element("find").send_keys("2", page.keys.ENTER)
    page.until(lambda: page.data("chosen", "id") == "digit-0042", "the item typed")
    found = page.api("POST", "/v1/search", {"item": "digit-0042", "k": 100, "baseline": True})
    before, after = ([hit["id"] for hit in found[key]] for key in ("baseline", "results"))
    assert before[:12] != after[:12]
    page.until(lambda: page.ids("learnt") == after[:12], "what the service finds")
    learnt, baseline = expected_marks(before, after)
    assert neighbour_marks(page, "learnt") == learnt
    assert neighbour_marks(page, "baseline") == baseline
    new = sum(kind == "new" for _, kind, _ in learnt)
    moved = sum(kind != "same" for _, kind, _ in learnt)
    assert (
        page.text("explore-live")
        == f"{moved} of the 12 nearest neighbours moved, {new} of them are new."
    )
    page.picture(tmp_path, "explore-light")

    # A neighbour is the next item, by keyboard too, and "back" leads back.
    page.script("document.querySelector('#learnt li:nth-child(3) button').focus()")
    page.press(page.keys.ENTER)
    page.until(lambda: page.data("chosen", "id") == after[2], "the neighbour chosen")
    page.window.back()
    page.until(lambda: page.data("chosen", "id") == "digit-0042", "the item before")
    page.script("Math.random = () => 0.5")
    page.element("random").click()
    page.until(lambda: page.data("chosen", "id") == "digit-0300", "the item in the middle")
    page.element("find").clear()
    page.element("find").send_keys("no such id", page.keys.ENTER)
    page.until(lambda: "no item has the id" in page.text("notice"), "the reason")
    assert page.data("chosen", "id") == "digit-0300"


def test_neighbours_keep_up_with_learning(window, demo):
    page = Page(window, demo).open("explore/digit-0007")
    page.until(lambda: len(page.ids("learnt")) == 12, "the neighbours")
    assert page.element("follow").is_selected()  # in the demo
    first = page.ids("baseline")[0]
    page.script("document.querySelector('#baseline button').focus()")
    teach_digits(page, 300, seed=1)
    found = page.api("POST", "/v1/search", {"item": "digit-0007", "k": 12})["results"]
    page.until(lambda: page.ids("learnt") == [hit["id"] for hit in found], "the newest neighbours")
    focused = "return document.activeElement.closest('li')?.dataset.id ?? null"
    assert page.script(focused) == first  # the focus stays on its item


def figure(page, name):
    code = """const dt = [...document.querySelectorAll("#figures dt")].find(
        (place) => place.textContent === arguments[0]);
        return dt ? dt.nextElementSibling.textContent : null"""
    return page.script(code, name)


STATUS_REQUESTS = """return performance.getEntriesByType("resource").filter(
    (entry) => entry.name.endsWith("/v1/status")).length"""


def precision_shown(page, view):
    code = """return [...document.querySelectorAll(`#${arguments[0]}-precision .value`)].map(
        (place) => parseInt(place.textContent))"""
    return page.script(code, view)


def test_the_demo_shows_how_much_better_the_first_neighbours_are(window, demo):
    page = Page(window, demo)
    teach_digits(page, 300, seed=5)
    page.open("label")
    page.until_ready()
    assert "eight colours" in page.text("about-demo")
    told = page.api("GET", "/v1/status")["demo"]
    expected = [round(100 * told[name]) for name in ("learnt", "baseline")]
    assert expected[0] > expected[1] + 10
    for view in ("label", "status"):
        page.open(view)
        page.until(lambda view=view: precision_shown(page, view) == expected, "the measure")
        assert "600 held-out digits" in page.text(f"{view}-precision")


def test_status_is_drawn_and_keeps_itself_fresh(window, demo, tmp_path):
    page = Page(window, demo)
    teach_digits(page, 100, seed=2)
    page.open("status")
    page.until(lambda: figure(page, "Comparisons"), "figures")
    status = page.api("GET", "/v1/status")
    assert figure(page, "Comparisons") == f"{status['triplets']:,}"
    assert figure(page, "Items") == "600"
    assert figure(page, "Learner") == "oasis"
    assert figure(page, "Lag") == "0"
    assert figure(page, "Throughput").endswith("/s")
    assert float(figure(page, "Sparsity").rstrip("%").strip()) == pytest.approx(
        100 * status["sparsity"], rel=0.01
    )
    points = page.script("return document.querySelector('path.raw').getAttribute('d')")
    assert points.count("L") == len(status["losses"]) - 1 > 1
    height = page.script("return document.querySelector('path.smooth').getBBox().height")
    assert height > 5
    page.picture(tmp_path, "status-light")
    teach_digits(page, 100, seed=3)
    triplets = page.api("GET", "/v1/status")["triplets"]
    page.until(lambda: figure(page, "Comparisons") == f"{triplets:,}", "newer figures")

    hide = """Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"))"""
    page.script(hide, True)
    time.sleep(1)  # what was under way has come
    hidden = page.script(STATUS_REQUESTS)
    time.sleep(5)  # two more would have been asked for
    assert page.script(STATUS_REQUESTS) == hidden
    page.script(hide, False)
    page.until(lambda: page.script(STATUS_REQUESTS) > hidden, "figures, seen again")


def published_shown(page, view):
    code = """const place = document.getElementById(`${arguments[0]}-published`);
        const texts = (what) => [...place.querySelectorAll(what)].map((one) => one.textContent);
        return [texts("strong")[0], texts(".name"), texts(".value"), texts(".range"), place.innerText]"""
    return page.script(code, view)


def test_what_is_served_is_shown_beside_the_alternatives(window, safe_demo, tmp_path):
    page = Page(window, safe_demo)
    teach_digits(page, 600, seed=6)
    told = page.api("GET", "/v1/status")["published"]
    assert told["serves"] in ("trusted", "learnt")

    def percent(share):
        return f"{int(np.floor(100 * share + 0.5))}\u202f%"

    names = ("baseline", "learnt", "trusted")
    for view in ("label", "status"):
        page.open(view)
        page.until(
            lambda view=view: not page.element(f"{view}-published").get_property("hidden"), "it"
        )
        served, rows, values, ranges, text = published_shown(page, view)
        assert served.startswith("learnt similarity")
        assert rows == ["Baseline", "Learnt", "Trusted"]
        assert values == [percent(told[name]["accuracy"]) for name in names]
        assert [r.split("\N{EN DASH}")[1] for r in ranges] == [
            percent(told[n]["high"]) for n in names
        ]
        assert told["why"] in text
        page.script(f"document.getElementById('{view}-published').scrollIntoView()")
        page.picture(tmp_path, f"published-{view}")
    assert told["rule"] in page.text("status-rule")
    page.open("explore/digit-0042")
    page.until(lambda: page.text("learnt-what") == served, "what is served")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_every_view_fits_the_screen(window, demo, tmp_path, scheme, phone):
    page = Page(window, demo)
    teach_digits(page, 200, seed=4)
    page.show_as(scheme=scheme, phone=phone)
    name = f"{scheme}-phone" if phone else scheme
    page.open("label")
    page.until_ready()
    page.until(lambda: page.text("answered-all"), "counts")
    bottom = page.script("return document.getElementById('skip').getBoundingClientRect().bottom")
    assert bottom <= page.script("return innerHeight")  # a question is seen without scrolling
    assert page.has_no_sideways_scrolling()
    page.picture(tmp_path, f"label-{name}")
    page.open("explore/digit-0042")
    page.until(lambda: len(page.ids("learnt")) == 12 and len(page.ids("found")) == 24, "items")
    assert page.has_no_sideways_scrolling()
    page.picture(tmp_path, f"explore-{name}")
    page.open("status")
    page.until(lambda: page.script("return Boolean(document.querySelector('path.raw'))"), "curve")
    assert page.has_no_sideways_scrolling()
    page.picture(tmp_path, f"status-{name}")
    is_dark = page.script(
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((c) => c < 128)"
    )
    assert is_dark == (scheme == "dark")


@pytest.mark.parametrize("width", [375, 500, 520, 560, 600, 720, 760])
def test_names_of_neighbours_keep_their_space(window, demo, width):
    page = Page(window, demo)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.open("explore")
    page.until(lambda: len(page.ids("learnt")) == 12, "neighbours of some item")
    space, are_inside = page.script(
        """
        const item = document.querySelector("#baseline li");
        item.className = "neighbour gone";
        item.querySelector(".text").textContent = "a shoe of brown leather, extraordinarily-comfortable";
        item.querySelector(".mark").textContent = "out, now beyond 100";
        const box = (part) => part.getBoundingClientRect();
        const card = box(item.querySelector("button"));
        const parts = [...item.querySelectorAll(".rank, img, .text, .mark")].map(box);
        return [
          box(item.querySelector(".text")).width,
          parts.every((part) => part.right <= card.right && part.bottom <= card.bottom),
        ];
        """
    )
    assert space >= 70
    assert are_inside
    assert page.has_no_sideways_scrolling()
