"""The model is computed from the log alone, however it is cut, restarted, undone or rolled back."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import (
    add_items,
    assert_same_matrix,
    do,
    judge,
    learner_of,
    oasis_of,
    running,
    vectors,
)

from simstream import OMTRSL
from simstream.serve.access import ConflictError, NotFoundError
from simstream.serve.events import (
    LEARNER_KINDS,
    Event,
    SparseVector,
    can_start_from,
    excluded_ranges,
    is_excluded,
)
from simstream.serve.log import LogError
from simstream.serve.service import Settings
from simstream.serve.snapshots import compare, same_bits
from simstream.serve.state import Learning, State
from simstream.serve.writer import Judgement, Ledger, NewItem, Write


class Diary:
    """The meaning of a log, written as plainly as can be: what counts after every position."""

    def __init__(self):
        self.states = [()]

    @property
    def counting(self):
        return self.states[-1]

    def add(self, kind, position=None):
        here, now = len(self.states), self.counting
        if kind == "event":
            now = (*now, here)
        elif kind == "retract":
            now = tuple(other for other in now if other != position)
        elif kind == "rollback":
            now = self.states[position]
        self.states.append(now)


controls = st.lists(
    st.tuples(st.sampled_from(["event", "event", "retract", "rollback"]), st.integers(0, 10**6)),
    max_size=25,
)


@given(controls)
def test_exclusions_are_what_a_plain_diary_says(steps):
    diary, events = Diary(), []
    for here, (kind, number) in enumerate(steps, 1):
        position = None
        if kind == "retract":
            if not diary.counting:
                kind = "event"
            else:
                position = diary.counting[number % len(diary.counting)]
        elif kind == "rollback":
            position = number % here
        diary.add(kind, position)
        if kind != "event":
            events.append(Event(here, 0.0, kind, None, None, {"position": position}))
    plain = [
        here for here, (kind, _) in enumerate(steps, 1) if here not in {e.position for e in events}
    ]
    for until in range(len(steps) + 1):
        ranges = excluded_ranges(events, until)
        counting = [p for p in plain if p <= until and not is_excluded(ranges, p)]
        assert counting == list(diary.states[until])
        for start in range(until + 1):
            if can_start_from(events, start, until):
                assert diary.states[until][: len(diary.states[start])] == diary.states[start]


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["judge"] * 6 + ["ask", "put", "delete", "retract", "rollback", "restart", "pin"]
        ),
        st.integers(0, 10**6),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions, st.integers(1, 12))
def test_any_history_gives_what_the_learner_makes_of_the_triplets_that_count(
    tmp_path_factory, steps, snapshot_every
):
    """Against OASIS itself on triplets that the test collects, after every kind of event and restart."""
    folder = tmp_path_factory.mktemp("service")
    rng = np.random.default_rng(1)
    rows = vectors(8)
    current = {f"i{n}": row for n, row in enumerate(rows)}
    triplets = {}  # position -> vectors at that time
    diary = Diary()
    service = None

    def note(receipt, kind="other", position=None):
        assert receipt.first == len(diary.states)
        diary.add(kind, position)
        for _ in range(receipt.events - 1):
            diary.add("other")

    try:
        options = {"snapshot_every": snapshot_every}
        context = running(folder, **options)
        service = context.__enter__()
        note(add_items(service, rows))
        for kind, number in steps:
            names = sorted(current)
            chosen = [names[i] for i in rng.permutation(len(names))[:3]]
            answers = list(diary.counting)
            if kind == "judge":
                receipt = judge(service, *chosen)
                note(receipt, "event")
                triplets[receipt.first] = [current[name] for name in chosen]
            elif kind == "ask":
                note(do(service, Ledger.ask, service.choose_question(None)))
                asked = service.log.get(len(diary.states) - 1).body["names"]
                winner = number % 2
                receipt = do(service, Ledger.answer, len(diary.states) - 1, winner)
                note(receipt, "event")
                order = [asked[0], asked[1 + winner], asked[2 - winner]]
                triplets[receipt.first] = [current[name] for name in order]
            elif kind == "put":
                row = rng.normal(size=6).astype(np.float32)
                note(do(service, Ledger.put_item, NewItem(chosen[0], row, {})))
                current[chosen[0]] = row
            elif kind == "delete" and len(names) > 5:
                note(do(service, Ledger.delete_item, chosen[0]))
                del current[chosen[0]]
            elif kind == "retract" and answers:
                target = answers[number % len(answers)]
                note(do(service, Ledger.retract, target), "retract", target)
            elif kind == "rollback":
                target = number % len(diary.states)
                note(do(service, Ledger.roll_back, target), "rollback", target)
            elif kind == "pin":
                target = number % len(diary.states)
                note(do(service, Ledger.pin, target))
                pinned = [triplets[p] for p in diary.states[target]]
                expected = oasis_of(pinned)
                got = service.version.model.common
                assert (got is None) == (expected is None)
                assert got is None or np.array_equal(got.matrix, expected.get_bilinear_matrix())
                note(do(service, Ledger.pin, None))
            elif kind == "restart":
                context.__exit__(None, None, None)
                context = running(folder, **options)
                service = context.__enter__()
        service.engine.wait_for(service.writer.last, 60)
        assert_same_matrix(learner_of(service), oasis_of([triplets[p] for p in diary.counting]))
        assert service.version.tally.triplets == len(diary.counting)
        assert set(service.engine.items.positions) == set(current)
        for name, row in current.items():
            assert np.array_equal(service.item(name)[1], row)
    finally:
        if service is not None:
            service.close()
    report, _ = compare(folder, lambda kept: kept)
    assert report["identical"] in (True, None)


@pytest.mark.parametrize("block", [1, 7])
@pytest.mark.parametrize("algorithm", ["oasis", "sors", "omtrsl", "aroma", "osllrgs"])
def test_a_restart_anywhere_is_as_if_nothing_had_happened(tmp_path, algorithm, block):
    learning = Learning(algorithm, block=block)
    rows, rng = vectors(20), np.random.default_rng(0)
    triplets = [rng.permutation(20)[:3] for _ in range(60)]

    def feed(service, some):
        for triplet in some:
            names = [f"i{n}" for n in triplet]
            task = f"u{names[0][-1]}" if service.has_tasks else None
            write = Write(Ledger.judge, (Judgement(names[0], [(names[1], names[2])], task),))
            service.submit([write]).result(30)

    options = {"learning": learning, "snapshot_every": 5}
    with running(tmp_path / "whole", **options) as whole:
        add_items(whole, rows)
        feed(whole, triplets)
        for begin in range(0, 60, 20):
            with running(tmp_path / "cut", **options) as cut:
                if begin == 0:
                    add_items(cut, rows)
                feed(cut, triplets[begin : begin + 20])
        with running(tmp_path / "cut", **options) as cut:
            assert whole.engine.wait_for(whole.writer.last, 60)
            assert cut.engine.snapshots.positions()
            assert same_bits(learner_of(whole), learner_of(cut))
            assert whole.version.tally == cut.version.tally


def test_blocks_end_at_multiples_of_the_position(tmp_path):
    rows = vectors(20)
    with running(tmp_path, learning=Learning("oasis", block=10)) as service:
        add_items(service, rows)  # positions 1 to 20
        for n in range(9):
            judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
        assert service.engine.wait_for(29, 60)
        assert service.version.tally.triplets == 0
        judge(service, "i0", "i5", "i6")
        assert service.engine.wait_for(30, 60)
        assert service.version.tally.triplets == 10


def test_tasks_have_their_own_similarity(tmp_path):
    rows = vectors(6)
    with running(tmp_path, learning=Learning("omtrsl", {"C": 0.5})) as service:
        add_items(service, rows)
        for task, (p, n) in {"ann": (1, 2), "bob": (2, 1)}.items():
            write = Write(Ledger.judge, (Judgement("i0", [(f"i{p}", f"i{n}")], task),))
            (receipt,) = service.submit([write]).result(30)
        service.wait_for(receipt)
        expected = OMTRSL(C=0.5, block_size=1, dtype="float32", preprocessor=rows)
        expected.partial_fit([[0, 1, 2]], tasks=["ann"]).partial_fit([[0, 2, 1]], tasks=["bob"])
        for task in ("ann", "bob", "a stranger"):
            found = service.search("i0", 5, task)
            scores = expected.score_items(rows[:1], rows, task)[0]
            order = [n for n in np.argsort(-scores) if n != 0]
            assert [name for name, _ in found] == [f"i{n}" for n in order]


def test_random_questions_are_judged_before_they_are_learnt_from(tmp_path):
    """An answer that contradicts the model counts as wrong, even though the model learns it at once."""
    from simstream.asking import Asking

    rows = vectors(12, d=3)
    with running(tmp_path, asking=Asking(random_share=1.0)) as service:
        add_items(service, rows)
        right = {"learnt": 0, "baseline": 0}
        learner = None
        seen = []
        for step in range(40):
            asked = do(service, Ledger.ask, service.choose_question(None))
            a, b, c = (int(name[1:]) for name in service.log.get(asked.first).body["names"])
            winner = step % 2
            p, n = (b, c) if winner == 0 else (c, b)
            right["baseline"] += float(rows[a] @ rows[p].astype(float)) > float(
                rows[a] @ rows[n].astype(float)
            )
            learner = oasis_of(seen)
            margin = rows[a] @ (rows[p] - rows[n])
            if learner is not None:
                margin = rows[a] @ learner.get_bilinear_matrix() @ (rows[p] - rows[n])
            right["learnt"] += bool(margin > 0)
            seen.append(rows[[a, p, n]])
            do(service, Ledger.answer, asked.first, winner)
        tally = service.version.tally
        assert (tally.random, tally.learnt_right, tally.baseline_right) == (
            40,
            right["learnt"],
            right["baseline"],
        )


def test_an_undone_answer_is_neither_counted_nor_learnt_and_asked_again(tmp_path):
    from simstream.asking import Asking

    with running(tmp_path, asking=Asking(random_share=1.0)) as service:
        add_items(service, vectors(5))
        asked = do(service, Ledger.ask, service.choose_question(None))
        answered = do(service, Ledger.answer, asked.first, 0)
        assert service.version.tally.random == 1
        undone = do(service, Ledger.retract, answered.first)
        tally = service.version.tally
        assert (tally.random, tally.answers, tally.triplets) == (0, 0, 0)
        assert learner_of(service) is None
        again = service.log.get(undone.first + 1)
        assert again.body["names"] == service.log.get(asked.first).body["names"]
        with pytest.raises(ConflictError, match="already undone"):
            do(service, Ledger.retract, answered.first)
        do(service, Ledger.answer, again.position, 1)
        assert service.version.tally.random == 1
        with pytest.raises(NotFoundError, match="no feedback or answer"):
            do(service, Ledger.retract, 1)


def test_other_settings_are_refused(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(3))
    with (
        pytest.raises(ValueError, match=r"was begun with -p C 0\.1 \(the default\), got 0\.5;"),
        running(tmp_path, learning=Learning("oasis", {"C": 0.5})),
    ):
        pass
    assert Settings(tmp_path).learning == Learning()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning": Learning("oasis", {"dtype": None}).as_json()}, "-p dtype None, got float32"),
        ({"of_a_later_version": 1}, "'of_a_later_version': 1"),
    ],
)
def test_it_is_told_which_settings_differ(tmp_path, changed, message):
    with running(tmp_path, learning=Learning("oasis", {})) as service:
        service.log.set_setting("service", service.log.setting("service") | changed)
    with (
        pytest.raises(LogError, match=f"was begun with .*{message}"),
        running(tmp_path, learning=Learning("oasis", {})),
    ):
        pass


def test_a_learner_that_diverges_is_not_served(tmp_path):
    """OGD with a huge step: what is served stays finite, nothing stops, and going back helps."""
    rows = 1e3 * vectors(6)
    with running(tmp_path, learning=Learning("ogd", {"eta": 1e35})) as service:
        add_items(service, rows)
        before = service.search("i0", 5)
        for n in range(4):
            judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
        assert service.engine.wait_for(service.writer.last, 60)
        assert service.engine.failure is None
        assert service.version.has_diverged
        assert service.search("i0", 5) == before
        do(service, Ledger.roll_back, 6)
        assert not service.version.has_diverged


def test_triplets_that_are_left_out_draw_no_losses(tmp_path):
    """Once learning stops at a point of the loss curve, no more points are added."""
    rows = 1e3 * vectors(6)
    rows[5] = 0  # as an anchor it changes nothing
    with running(tmp_path, learning=Learning("ogd", {"eta": 1e35})) as service:
        add_items(service, rows)
        for n in range(6):
            judge(service, "i5", f"i{n % 4}", f"i{n % 4 + 1}")
        for n in range(20):
            judge(service, f"i{n % 3}", f"i{n % 3 + 1}", f"i{n % 3 + 2}")
        assert service.engine.wait_for(service.writer.last, 60)
        tally = service.version.tally
        assert (tally.triplets, tally.diverged, tally.stride) == (8, 18, 8)
        assert len(tally.losses) == 1
        assert tally.losses[0] > 0


def test_sparse_items(tmp_path):

    from simstream import OASIS

    rows = sp.random(12, 30, 0.3, "csr", np.float32, random_state=0)
    with running(tmp_path, n_features=30) as service:
        items = [
            NewItem(f"i{n}", SparseVector(row.indices, row.data), {})
            for n, row in enumerate(rows[i] for i in range(12))
        ]
        do(service, Ledger.add_items, items)
        for n in range(9):
            judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
        assert service.engine.wait_for(service.writer.last, 60)
        triplets = np.array([[n, n + 1, n + 2] for n in range(9)])
        expected = OASIS(block_size=1, dtype="float32", preprocessor=rows).fit(triplets)
        got = learner_of(service).get_bilinear_matrix()
        assert np.allclose(got.toarray(), expected.get_bilinear_matrix().toarray(), atol=1e-6)
        scores = expected.score_items(rows[:1], rows)[0]
        order = [f"i{n}" for n in np.argsort(-scores, kind="stable") if n]
        assert [name for name, _ in service.search("i0", 3)] == order[:3]
        learner = learner_of(service)
    with running(tmp_path, n_features=30) as service:
        assert same_bits(learner, learner_of(service))


@pytest.mark.parametrize("block", [1, 7])
def test_large_sparse_items_are_laid_out_the_same_however_the_log_is_read(tmp_path, block):
    """Features are renumbered by their frequency among the items added before the first triplet."""
    d, n_first, n_more = 30_000, 10, 200
    rng = np.random.default_rng(0)
    rows = [
        SparseVector(
            np.sort(rng.choice(d // (1 + n % 3), 20, replace=False)).astype(np.int32),
            rng.normal(size=20).astype(np.float32),
        )
        for n in range(n_first + n_more)
    ]
    learning = Learning("oasis", {"head_bytes": 2**20}, block)
    with running(tmp_path, learning=learning, n_features=d) as service:
        names = [f"i{n}" for n in range(len(rows))]
        add_items(service, rows[:n_first])
        judge(service, *names[:3])
        add_items(service, rows[n_first:], names[n_first:])
        for _ in range(40):
            judge(service, *(names[n] for n in rng.permutation(len(rows))[:3]))
        assert service.engine.wait_for(service.writer.last, 60)
        log, items, last = service.log, service.engine.items, service.writer.last
        whole = State(learning, items, log).read_on(last)
        events = list(log.read(0, last, kinds=LEARNER_KINDS))
        cuts = [[*range(1, last)], []]
        cuts += [sorted(rng.choice(last, size=size, replace=False)) for size in (1, 2, 5, 20)]
        for cut in cuts:
            state = State(learning, items, log)
            for until in (*cut, last):
                some = [e for e in events if state.position < e.position <= until]
                state.advance(some, int(until))
            assert same_bits(state.learner, whole.learner), cut
            assert state.tally == whole.tally
        assert same_bits(learner_of(service), whole.learner)


@pytest.mark.parametrize("n_items", [20, 5])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_centre_comes_from_the_items_before_the_first_judgement(is_sparse, n_items, tmp_path):
    """Whatever is added later, and however the log is read: restarting and replaying give the same model."""
    rows = vectors(n_items + 1, d=8) + np.float32(0.5)
    rows[rows < 0.5] = 0
    rows[-1] = 9
    vectors_of = [SparseVector(np.flatnonzero(row), row[row > 0]) for row in rows]
    given = vectors_of if is_sparse else rows
    learning = Learning("oasis", {"centre": "auto", "item_term": True, "init_scale": "auto"})
    options = {"learning": learning, "n_features": 8 if is_sparse else None}
    with running(tmp_path, **options) as service:
        add_items(service, given[:-1])
        do(service, Ledger.judge, Judgement("i0", [("i1", "i2")]))
        add_items(service, given[-1:], ["later"])
        for n in range(30):
            names = [f"i{(n + more) % n_items}" for more in range(3)]
            do(service, Ledger.judge, Judgement(names[0], [(names[1], names[2])]))
        learner = learner_of(service)
        np.testing.assert_allclose(learner.centre_, rows[:-1].mean(axis=0), rtol=1e-5)
        query = sp.csr_matrix(rows[:1]) if is_sparse else rows[:1]
        found = service.version.search_many(query, n_items + 1)[0]
        names = [service.engine.items.names[position] for position, _ in found]
        expected = learner.search(rows[:1], rows, k=n_items + 1)
        assert names == [f"i{n}" if n < n_items else "later" for n in expected.indices[0]]
        differences = np.diff([score for _, score in found])
        np.testing.assert_allclose(differences, np.diff(expected.scores[0]), atol=1e-3)
    with running(tmp_path, **options) as service:
        assert same_bits(learner_of(service), learner)
        replayed = State(learning, service.engine.items, service.log)
        assert same_bits(replayed.read_on(service.writer.last).learner, learner)
