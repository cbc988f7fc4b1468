"""What is published: only as much of what was learnt as events not learnt from yet can justify."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from live import Client, ServerProcess, add_items, do, running, served, vectors

import simstream
from simstream import Bilinear
from simstream.serve.clicks import Clicks
from simstream.serve.engine import Model
from simstream.serve.evidence import Evidence, Publishing
from simstream.serve.log import LogError
from simstream.serve.schemas import Feedback
from simstream.serve.service import Service, Settings
from simstream.serve.snapshots import adopt_learning, compare, same_bits
from simstream.serve.state import Learning
from simstream.serve.writer import Judgement, Ledger, Write

#: Items differ in a part that counts and in a louder part that does not.
N_ITEMS, SIGNAL, NOISE = 200, 4, 4
SAFE = Publishing(half_life=200)


def world(seed=0):
    """Vectors of the items, and what people see in them."""
    rng = np.random.default_rng(seed)
    seen, unseen = rng.normal(size=(N_ITEMS, SIGNAL)), 2 * rng.normal(size=(N_ITEMS, NOISE))
    rows = np.hstack([seen, unseen])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), seen


def judgements(kind, count, seed):
    """Comparisons for new query vectors, by people who are honest, toss a coin, or say the opposite."""
    _, seen = world()
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        signal = rng.normal(size=SIGNAL)
        query = np.concatenate([signal, 2 * rng.normal(size=NOISE)])
        first, second = rng.choice(N_ITEMS, size=2, replace=False)
        is_nearer = seen[first] @ signal > seen[second] @ signal
        turn = {"honest": True, "opposite": False, "random": bool(rng.integers(2))}[kind]
        better, worse = (first, second) if is_nearer == turn else (second, first)
        vector = (query / np.linalg.norm(query)).astype(np.float32)
        made.append(Judgement(vector, [(f"i{better}", f"i{worse}")]))
    return made


def tell(service, told):
    (receipt,) = service.submit([Write(Ledger.judge, tuple(told))]).result(60)
    assert service.wait_for(receipt, 60)


def quality(service, seed=99):
    """Share of held-out comparisons that the served similarity, and the inner product, order right."""
    rows, seen = world()
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(100, SIGNAL))
    queries = np.hstack([signal, 2 * rng.normal(size=(100, NOISE))]).astype(np.float32)
    truth = signal @ seen.T
    pairs = rng.integers(N_ITEMS, size=(100, 50, 2))

    def share(transformed):
        scores = transformed @ rows.T
        right = [
            (scores[q][p[:, 0]] > scores[q][p[:, 1]]) == (truth[q][p[:, 0]] > truth[q][p[:, 1]])
            for q, p in enumerate(pairs)
        ]
        return float(np.mean(right))

    return share(service.version.model.transform(queries)), share(queries)


@pytest.fixture
def folder(tmp_path):
    """A folder with the items."""
    with running(tmp_path / "data", publishing=SAFE) as service:
        add_items(service, world()[0])
    return tmp_path / "data"


def test_honest_feedback_is_trusted_once_it_is_known_to_help(folder):
    with running(folder, publishing=None) as service:
        assert service.version.model.trust == 0
        tell(service, judgements("honest", 600, seed=1))
        told = service.published()
        assert told["trust"] == service.version.model.trust > 0
        assert told["gain"]["lower_bound"] > 0
        assert told["learnt"]["accuracy"] > told["baseline"]["high"]
        learnt, baseline = quality(service)
        assert learnt > baseline + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_random_feedback_leaves_the_inner_product(folder, seed):
    with running(folder, publishing=None) as service:
        tell(service, judgements("random", 300, seed=seed))
        assert service.version.tally.triplets == 300
        assert service.published()["serves"] == "baseline"
        learnt, baseline = quality(service)
        assert learnt == baseline
        rows = world()[0]
        hits = [name for name, _ in service.search(rows[0], 5)]
        assert hits == [f"i{i}" for i in np.argsort(-(rows @ rows[0]), kind="stable")[:5]]


@pytest.mark.parametrize("kind", ["opposite", "random"])
def test_feedback_that_turns_returns_to_the_inner_product(tmp_path, kind):
    with running(tmp_path, publishing=Publishing(half_life=100)) as service:
        add_items(service, world()[0])
        tell(service, judgements("honest", 600, seed=1))
        assert service.version.model.trust > 0
        tell(service, judgements(kind, 400, seed=2))
        assert service.version.model.trust == 0
        learnt, baseline = quality(service)
        assert learnt == baseline


def test_a_query_counts_once_as_new(folder):
    (one,) = judgements("honest", 1, seed=1)
    with running(folder, publishing=None) as service:
        tell(service, judgements("honest", 20, seed=2))
        tell(service, [one] * 30)
        told = service.published()
        assert (told["events"], told["new_queries"]) == (
            49,
            20,
        )  # nothing was learnt before the first


def evidence_of(service):
    return service.engine._state.evidence.state()


@pytest.mark.parametrize(
    "learning",
    [Learning(), Learning(block=7), Learning("omtrsl"), Learning("osllrgs"), Learning("sors")],
    ids=lambda learning: f"{learning.algorithm}-{learning.block}",
)
def test_restarts_and_replay_give_the_same_trust_bit_for_bit(tmp_path, learning):
    told = judgements("honest", 150, seed=1)
    if learning.algorithm == "omtrsl":
        told = [one._replace(task=f"u{n % 3}") for n, one in enumerate(told)]
    options = {"learning": learning, "publishing": SAFE, "snapshot_every": 20}
    with running(tmp_path / "whole", **options) as whole:
        add_items(whole, world()[0])
        for one in told:
            tell(whole, [one])
        expected, trust = evidence_of(whole), whole.version.model.trust
    for begin in (0, 37, 101):
        with running(tmp_path / "cut", **options) as cut:
            if begin == 0:
                add_items(cut, world()[0])
            tell(cut, told[begin : {0: 37, 37: 101, 101: 150}[begin]])
    with running(tmp_path / "cut", **options) as cut:
        assert evidence_of(cut) == expected
        assert cut.version.model.trust == trust
        assert cut.engine.snapshots.n_refused == 0
        assert same_bits(cut.engine._state.reference, whole.engine._state.reference)
    assert expected["new"]["arrays"]["count"][0] > 100
    report, _ = compare(tmp_path / "cut", lambda kept: kept)
    assert report["identical"] in ((True,) if learning.block == 1 else (True, None))


def test_a_damaged_reference_is_refused_and_the_log_is_enough(folder):
    with running(folder, publishing=None) as service:
        tell(service, judgements("honest", 150, seed=1))
        expected = evidence_of(service)
    (path,) = folder.glob("snapshots/reference-*")
    path.write_bytes(path.read_bytes()[:-9])
    with running(folder, publishing=None) as service:
        assert service.engine.snapshots.n_refused == 1
        assert evidence_of(service) == expected


def test_undo_and_rollback_undo_the_evidence_too(folder):
    with running(folder, publishing=None) as service:
        tell(service, judgements("honest", 50, seed=1))
        before, here = evidence_of(service), service.version.position
        tell(service, judgements("opposite", 30, seed=2))
        do(service, Ledger.roll_back, here)
        assert evidence_of(service) == before


def test_a_pinned_version_keeps_its_trust(folder):
    with running(folder, publishing=None) as service:
        tell(service, judgements("honest", 600, seed=1))
        here, trust = service.version.position, service.version.model.trust
        assert trust > 0
        do(service, Ledger.pin, here)
        tell(service, judgements("random", 500, seed=2))
        assert service.version.model.trust == trust
        assert service.published()["why"] == f"The version at log position {here} is pinned."
        assert service.published()["trust"] == trust
        do(service, Ledger.pin, 10)
        assert service.published()["serves"] == "baseline"


def test_always_serves_what_was_learnt_and_measures_nothing(tmp_path):
    rows = world()[0]
    told = judgements("random", 40, seed=1)
    with running(tmp_path, publishing=Publishing("always")) as service:
        add_items(service, rows)
        tell(service, told)
        assert service.engine._state.evidence is None
        assert service.published()["serves"] == "learnt"
        matrix = service.engine._state.learner.get_bilinear_matrix()
        query = rows[:1]
        assert np.array_equal(service.version.model.transform(query), query @ matrix)
    assert not list(tmp_path.glob("snapshots/reference-*"))
    with running(tmp_path, publishing=None) as service:
        assert service.engine.publishing == Publishing("always")


def test_a_folder_of_an_earlier_version_publishes_always_until_it_is_changed(tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(Path(__file__).parents[1] / "models" / "service-dense", folder)
    learning = Learning("oasis", {"C": 0.3})
    with (
        pytest.raises(LogError, match="was begun with"),
        running(folder, learning=learning, publishing=Publishing()),
    ):
        pass
    with running(folder, learning=learning, publishing=None) as service:
        assert service.engine.publishing.promote == "always"
        assert service.version.model.trust == 1
        n_events = service.version.tally.feedback + service.version.tally.answers
    adopt_learning(folder, lambda kept: kept, lambda kept: Publishing())
    with running(folder, learning=learning, publishing=None) as service:
        assert service.engine.publishing == Publishing()
        told = service.published()
        assert 0 < told["events"] < n_events  # measured from the beginning of the log
        assert told["new_queries"] <= told["events"]
    report, _ = compare(folder, lambda kept: kept)
    assert report["identical"] is True


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_the_served_similarity_lies_between(kind):
    matrix, queries, items = vectors(6, seed=1), vectors(3), vectors(9, seed=2)
    mixed = 0.35 * matrix + 0.65 * np.eye(6)
    model = Model(0, Bilinear(kind(matrix)), trust=0.35)

    def dense(found):
        return found.toarray() if sp.issparse(found) else found

    assert np.allclose(dense(model.transform(kind(queries))), queries @ mixed, atol=1e-6)
    assert np.allclose(dense(model.similarity().matrix), mixed, atol=1e-6)
    none = model._replace(trust=0.0)
    assert np.array_equal(dense(none.transform(kind(queries))), queries)
    assert np.array_equal(dense(none.similarity().matrix), np.eye(6, dtype=np.float32))
    assert np.array_equal(dense(model.learnt.similarity().matrix), matrix)
    # With a centre and an item term, the blend ranks as the transformed query does.
    mean, term = items.mean(axis=0), 0.1 * items[0]
    moved = Model(0, Bilinear(kind(matrix), centre=mean, item_term=term), trust=0.35)
    by_query = dense(moved.transform(kind(queries))) @ items.T
    by_score = moved.similarity().score_items(kind(queries), kind(items))
    differences = by_query - by_score
    assert np.allclose(differences, differences[:, :1], atol=1e-5)


def test_a_cosine_is_served_as_it_is_or_not_at_all(tmp_path):
    learning = Learning("oasis", {"normalise": True})
    with running(tmp_path / "new", learning=learning, publishing=None) as service:
        assert service.engine.publishing.promote == "always"
    with (
        pytest.raises(ValueError, match="promote: expected 'always' for a learner that is read as"),
        running(tmp_path / "safe", learning=learning, publishing=Publishing()),
    ):
        pass


def test_the_status_the_metrics_and_the_model_file_say_what_is_served(folder, tmp_path):
    service = Service(Settings(folder))
    tell(service, judgements("honest", 600, seed=1))
    with served(service) as port:
        client = Client(port)
        told = client("GET", "/v1/status")[1]["published"]
        assert told["promote"] == "safe"
        assert 0 < told["trust"] <= 1
        assert f"with trust {told['trust']:g}" in told["why"]
        assert "lower bound" in told["rule"]
        assert told["events"] == told["new_queries"] == 599
        for name in ("baseline", "learnt", "trusted"):
            assert told[name]["low"] < told[name]["accuracy"] < told[name]["high"]
        gain = told["gain"]
        assert gain["low"] < gain["mean"] < gain["high"]
        lines = client.raw("GET", "/metrics")[2].decode().splitlines()
        metrics = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(metrics["simstream_trust"]) == told["trust"]
        assert float(metrics["simstream_gain"]) == pytest.approx(gain["mean"])
        assert float(metrics["simstream_measured_events"]) == 599
        path = tmp_path / "model.safetensors"
        path.write_bytes(client.raw("GET", "/v1/model")[2])
        rows, query = world()[0], world()[0][:1]
        scores = simstream.load(path).score_items(query, rows)[0]
        found = client("POST", "/v1/search", {"vector": query[0].tolist(), "k": 5})[1]["results"]
        best = np.argsort(-scores)[:5]
        assert [hit["id"] for hit in found] == [f"i{i}" for i in best]
        assert [hit["score"] for hit in found] == pytest.approx(scores[best].tolist(), rel=1e-4)
        client.close()


def test_gains_are_shares_of_comparisons_with_ties_as_halves():
    evidence = Evidence(Publishing(half_life=None))
    baseline = np.array([0.3, -0.1, 0.0, 0.2])  # 2.5 of 4 right
    learnt = np.array(
        [0.1, 0.4, 0.0, -5.0]
    )  # fully trusted the second turns right, the fourth wrong
    for query in range(6):
        is_new = evidence.offer(query).is_new
        evidence.add(baseline, learnt, np.array([1.0, 3.0, 1.0, 1.0]), is_new=is_new)
    told = evidence.summary()
    assert told["baseline"]["accuracy"] == pytest.approx((1 + 0.5 + 1) / 6)
    assert told["learnt"]["accuracy"] == pytest.approx((1 + 3 + 0.5) / 6)
    # a fifth of the way the fourth is wrong by 0.84, and the second is not right before a fifth of it
    assert told["gain"] | {"low": 0, "high": 0} == {
        "trust": 0.35,
        "mean": pytest.approx(2 / 6),
        "low": 0,
        "high": 0,
        "lower_bound": pytest.approx(2 / 6),
    }
    assert evidence.trust == 0.35


def test_what_overflows_is_wrong():
    evidence = Evidence(Publishing())
    for query in range(10):
        evidence.offer(query)
        evidence.add(np.array([0.1]), np.array([np.inf]), np.ones(1), is_new=True)
    assert evidence.trust == 0
    assert evidence.summary()["learnt"]["accuracy"] == 0


def test_clicks_far_down_count_more_but_not_without_bound():
    given = Clicks(0.5)
    assert given.weights([1, 4, 9]) == pytest.approx([1, 2, 3])
    assert given.weights([10_000]) == pytest.approx([10])
    with pytest.raises(ValueError, match="propensity"):
        Publishing(propensity=-1.0)


def test_the_power_is_found_from_neighbours_in_random_order():
    """Simulated users look at rank r with probability r^-0.8, and click what they like."""
    rng = np.random.default_rng(0)
    clicks = Clicks("swaps")
    likes = rng.uniform(0.1, 0.9, size=10)
    for search in range(20_000):
        order = np.argsort(-likes)  # liked items are shown first, as a good search does
        place = int(rng.integers(9))
        if rng.random() < 0.5:
            order[[place, place + 1]] = order[[place + 1, place]]
        ranks = np.arange(1, 11)
        is_clicked = (rng.random(10) < ranks**-0.8) & (rng.random(10) < likes[order])
        clicks.add(place + 1, ranks[is_clicked].tolist())
        assert search > 50 or clicks.power == 0
    assert clicks.power == pytest.approx(0.8, abs=0.1)
    again = Clicks("swaps")
    again.restore(json.loads(json.dumps(clicks.state())))
    assert again.power == clicks.power
    assert again.state() == clicks.state()


def test_randomised_searches_and_their_clicks_over_http(folder):
    rows = world()[0]
    adopt_learning(folder, lambda kept: kept, lambda kept: Publishing(propensity="swaps"))
    service = Service(Settings(folder, randomise=1.0))
    with served(service) as port:
        client = Client(port)
        plain = [f"i{i}" for i in np.argsort(-(rows @ rows[0]), kind="stable")[:6]]
        orders = set()
        for _ in range(600):  # each of the five swaps has one chance in ten
            if len(orders) == 6:
                break
            found = client("POST", "/v1/search", {"vector": rows[0].tolist(), "k": 6})[1]
            shown, rank = [hit["id"] for hit in found["results"]], found["randomised"]
            swapped = plain.copy()
            swapped[rank - 1], swapped[rank] = plain[rank], plain[rank - 1]
            assert shown in (plain, swapped)
            orders.add(tuple(shown))
        assert len(orders) == 6
        body = {"query": rows[0].tolist(), "shown": shown, "clicked": shown[2:3]}
        assert client("POST", "/v1/feedback?wait=true", body | {"randomised": 2})[0] == 201
        # A click on the first result corrects nothing, but it is a click.
        body["clicked"] = shown[:1]
        assert client("POST", "/v1/feedback?wait=true", body | {"randomised": 1})[0] == 201
        event = service.log.get(service.writer.last - 1)
        # Learnt from: what was skipped above. Measured by: everything else that was shown.
        assert len(event.body["triplets"]) == 2
        assert (event.body["ranks"], event.body["clicked"]) == ([3] * 5, [3])
        assert len(event.body["compared"]) == 5
        on_top = service.log.get(service.writer.last)
        assert (len(on_top.body["triplets"]), len(on_top.body["compared"])) == (0, 5)
        propensity = client("GET", "/v1/status")[1]["published"]["propensity"]
        assert propensity == {"power": 0.0, "how": "swaps", "swapped_clicks": 2}
        for wrong in (
            body | {"randomised": 6},
            {"anchor": "i0", "positive": "i1", "negative": "i2"},
        ):
            assert client("POST", "/v1/feedback", {"randomised": 6} | wrong)[0] == 422
        client.close()


@pytest.mark.parametrize("share_of_honest", [0.7, 0.0])
def test_clicks_on_what_is_served_do_not_talk_it_out_of_the_baseline(tmp_path, share_of_honest):
    """The inner product is right already; the other clicks are on anything that is shown."""
    rng = np.random.default_rng(0)
    rows = vectors(100, d=16)
    served_well, by_baseline = [], []
    with running(tmp_path, publishing=Publishing()) as service:
        add_items(service, rows)
        for _ in range(250):
            item = int(rng.integers(100))
            query = rows[item] + 0.22 * rng.normal(size=16).astype(np.float32)
            shown = [name for name, _ in service.search(query, 10)]
            plain = [name for name, _ in service.search(query, 10, learnt=False)]
            served_well.append(shown[:1] == [f"i{item}"])
            by_baseline.append(plain[:1] == [f"i{item}"])
            right = f"i{item}" in shown and rng.random() < share_of_honest
            clicked = f"i{item}" if right else shown[rng.integers(10)]
            feedback = Feedback(query=query.tolist(), shown=shown, clicked=[clicked])
            do(service, Ledger.judge, feedback.as_judgement())
    assert np.mean(served_well) >= np.mean(by_baseline) - 0.02


def test_the_weight_of_a_click_weighs_the_evidence(tmp_path):
    """Two clicks disagree about what was learnt; by their ranks, one of them counts three times."""
    for power, expected in ((0.0, 0.5), (1.0, 0.75)):
        evidence = Evidence(Publishing(propensity=power, half_life=None))
        for query, (margin, rank) in enumerate([(0.5, 3), (-0.5, 1)] * 10):
            evidence.offer(query)
            weights = evidence.clicks.weights([rank])
            evidence.add(np.array([0.1]), np.array([margin]), weights, is_new=True)
        assert evidence.summary()["learnt"]["accuracy"] == pytest.approx(expected)


def test_killed_and_started_again_by_command(tmp_path):
    np.save(tmp_path / "items.npy", world()[0])
    folder = tmp_path / "data"
    server = ServerProcess(folder, tmp_path / "items.npy", "--half-life", "200")
    client = Client(server.port)
    body = [
        {"query": one.anchor.tolist(), "shown": [n[1:] for n in reversed(one.pairs[0])]}
        | {"clicked": [one.pairs[0][0][1:]]}
        for one in judgements("honest", 600, seed=1)
    ]
    assert client("POST", "/v1/feedback?wait=true", body)[0] == 201
    told = client("GET", "/v1/status")[1]["published"]
    assert told["trust"] > 0
    client.close()
    server.kill()
    again = ServerProcess(folder)
    client = Client(again.port)
    assert client("GET", "/v1/status")[1]["published"] == told
    client.close()
    again.terminate()
