"""``simstream repro adaptation``: tasks, contenders, records and the page, on small collections made here."""

import itertools
import json

import numpy as np
import pytest

from commands import fail, succeed
from simstream import metrics
from simstream.extras import MissingExtraError
from simstream_repro.adaptation import plan
from simstream_repro.adaptation.page import part_tables, summary
from simstream_repro.protocols.adaptation import contenders, tasks, torch_layers
from simstream_repro.protocols.adaptation.contenders import CONTENDERS
from simstream_repro.records import RecordStore

D = 12


def made_collection(seed=0, n_queries=60, n_items=150):
    """Queries lie near their two items in half of the features, and anywhere in the others."""
    rng = np.random.default_rng(seed)
    items, half = rng.standard_normal((n_items, D)), slice(D // 2)
    own = np.arange(n_queries)
    queries = rng.standard_normal((n_queries, D))
    for relevant in (own, own + n_queries):
        items[relevant, half] = queries[:, half] + 0.2 * rng.standard_normal((n_queries, D // 2))
    pairs = np.column_stack([np.tile(own, 2), np.concatenate([own, own + n_queries])])
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, items)]
    return tasks.Collection(*(rows.astype(np.float32) for rows in unit), pairs, None)


def ndcg(learnt, test):
    scores = learnt.scores(test.queries, test.items)
    report = metrics.ranking_report_from_scores(scores, test.relevant, exclude=test.excluded)
    return report["nDCG@10"]


@pytest.fixture
def data_folder(tmp_path):
    folder = tmp_path / "data"
    for number, name in enumerate(plan.COLLECTIONS):
        one = made_collection(number)
        place = folder / "retrieval" / name
        place.mkdir(parents=True)
        np.savez(place / "vectors.npz", queries=one.queries, items=one.items)
        np.savetxt(
            place / "relevance.tsv", one.relevance, "%d", "\t", header="query\titem", comments=""
        )
    return folder


# -- tasks --------------------------------------------------------------------------------------------------


def test_queries_are_divided_by_the_seed():
    one = made_collection()
    shuffled = np.random.default_rng(3).permutation(60)
    task, test = tasks.search_task(one, 3)
    np.testing.assert_array_equal(task.queries, one.queries[shuffled[:36]])
    np.testing.assert_array_equal(test.queries, one.queries[shuffled[36:]])
    few, _ = tasks.search_task(one, 3, n_queries=10)
    np.testing.assert_array_equal(few.queries, task.queries[:10])
    assert set(few.relevance[:, 0]) == set(range(10))


def test_queries_that_are_distributed_divided():
    one = made_collection()._replace(parts=np.array(["train"] * 40 + ["test"] * 20))
    task, test = tasks.search_task(one, 1)
    assert len(task.queries) == 40
    np.testing.assert_array_equal(test.queries, one.queries[40:])


def test_new_items_are_not_seen_while_learning():
    one = made_collection()
    task, test = tasks.search_task(one, 0, new_items=True)
    known = {row.tobytes() for row in task.items}
    is_known = np.array([row.tobytes() in known for row in test.items])
    assert is_known.sum() == 75
    assert not test.relevant[:, is_known].any()
    assert test.relevant.any(axis=1).all()
    assert not test.excluded[:, ~is_known].any()
    assert len(set(task.relevance[:, 0])) == len(task.queries)


def test_a_collection_that_is_damaged(data_folder):
    path = data_folder / "retrieval" / "cacm" / "relevance.tsv"
    path.write_text("query\titem\n0\t150\n")
    with pytest.raises(ValueError, match=r"relevance.tsv: expected rows of 60 queries and 150"):
        tasks.read_collection("cacm", data_folder)


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_and_resumes(data_folder, tmp_path):
    results, page = tmp_path / "results", tmp_path / "docs" / "page.md"
    given = ["repro", "adaptation", "--results", results, "--output", page]
    runs = ["--data-dir", data_folder, "--seeds", 1, "--methods", "nothing learnt,OASIS"]
    succeed(*given, *runs, "--only", "retrieval", "--only", "items")
    text = page.read_text()
    assert "**scifact**: 36 queries train, 72 judgements" in text
    assert "## Search where the relevant items are new" in text
    records = {path: path.read_bytes() for path in results.iterdir()}
    assert len(list(results.glob("*.jsonl"))) == 2
    succeed(*given, *runs, "--only", "retrieval")
    succeed(*given, "--page-only")
    assert page.read_text() == text
    assert {path: path.read_bytes() for path in results.iterdir()} == records

    (table, *_) = part_tables("retrieval", RecordStore(results))
    baseline = next(row for row in table["rows"] if row["name"] == "nothing learnt")
    one = made_collection()
    learnt = contenders.Learnt(contenders.inner_products)
    assert baseline["cells"][0]["text"] == f"{ndcg(learnt, tasks.search_task(one, 0)[1]):.3f}"


N_BASELINES = len(plan.COLLECTIONS)


@pytest.fixture
def baselines(data_folder, tmp_path):
    """The command that measures what nothing learnt has, run once, and its folder of results."""
    results = tmp_path / "results"
    command = ["repro", "adaptation", "--results", results, "--output", tmp_path / "page.md"]
    command += ["--data-dir", data_folder, "--only", "retrieval", "--seeds", 1]
    command += ["--methods", "nothing learnt"]
    succeed(*command)
    return command, results


def status(results, *ids):
    """What `repro status` says of studies of this page."""
    given = ["repro", "status", *ids, "--json", "--results", results]
    rows = json.loads(succeed(*given).stdout)
    return {row["study"]: row for row in rows if row["study"].startswith("adaptation")}


def made_by_other_code(results):
    path = results / "adaptation-retrieval.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for one in records:
        one["versions"]["source"] = "another"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


def test_studies_without_records_are_listed_if_asked_for(baselines):
    _, results = baselines
    assert list(status(results)) == ["adaptation-retrieval"]
    assert len(status(results, "adaptation")) == len(plan.STUDIES)
    assert status(results, "p3") == {}


def test_records_of_other_code_are_run_again(baselines):
    command, results = baselines
    made_by_other_code(results)
    for options, n_stale in ([], N_BASELINES), (["--stale"], 0):
        succeed(*command, *options)
        row = status(results)["adaptation-retrieval"]
        assert (row["n_done"], row["n_stale"]) == (N_BASELINES, n_stale)
    assert row["n_repeated"] == row["n_same"] == N_BASELINES
    told = fail(2, "repro", "adaptation", "--page-only", "--stale", "--results", results)
    assert "--stale has no meaning with --page-only" in told


def test_the_command_that_mends_it_is_named(baselines):
    _, results = baselines
    assert succeed("repro", "status", "--results", results).stderr == ""
    made_by_other_code(results)
    told = succeed("repro", "status", "--results", results).stderr
    assert told.rstrip().endswith("simstream repro adaptation --stale")
    assert "run --stale" not in told


def test_superseded_records_are_tidied(baselines):
    command, results = baselines
    made_by_other_code(results)
    succeed(*command, "--stale")
    tidied = succeed("repro", "tidy", "--yes", "--results", results).stderr
    assert f"deleted: {N_BASELINES} superseded records" in tidied
    assert status(results)["adaptation-retrieval"]["n_done"] == N_BASELINES


def test_what_is_missing_is_told(tmp_path, monkeypatch, data_folder):
    given = ["repro", "adaptation", "--results", tmp_path / "none"]
    (tmp_path / "empty").mkdir()
    without_torch = ["--only", "retrieval", "--methods", "nothing learnt"]
    told = fail(1, *given, "--data-dir", tmp_path / "empty", *without_torch)
    assert "retrieval/scifact/vectors.npz" in told
    assert "expected a folder with records" in fail(2, *given, "--page-only")
    assert "got 'OASI'" in fail(2, *given, "--methods", "OASI")
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    cells = list(plan.STUDIES["retrieval"].cells([0]))
    with pytest.raises(MissingExtraError, match=r"pip install 'simstream\[torch\]'"):
        plan.check_needs(cells, data_folder)
    plan.check_needs([cell for cell in cells if "torch" not in cell.method], data_folder)


def records_of(method, seeds, value, seconds):
    """Finished records of one contender on digits, as the command would have written them."""
    cells = plan.STUDIES["labels"].cells(seeds, [method])
    measures = {"mAP": value, "P@1": 0.5, "seconds": seconds, "process MB": 100.0}
    for cell in cells:
        if cell.dataset == "digits":
            own = {**measures, "mAP": value + 0.1 * cell.seed}
            yield cell, {"status": "done", "measures": own, "n_train": 8, "n_test": 8}


def test_comparisons_are_over_the_seeds_that_both_have(tmp_path):
    store = RecordStore(tmp_path)
    for cell, result in [
        *records_of("nothing learnt", [0, 1, 2], 0.2, 0.0),
        *records_of("torch, SupCon", [0], 0.4, 50.0),
        *records_of("RCA, then ListwiseSoftmax", [0, 1, 2], 0.5, 2.0),
    ]:
        store.append(cell, result)
    (table,) = part_tables("labels", store)
    own = next(row for row in table["rows"] if row["name"] == "RCA, then ListwiseSoftmax")
    assert own["cells"][0]["text"] == "0.600 (0.500 0.600 0.700)"
    assert (own["beside"], own["faster"], own["worst"]) == ("+0.100", "25x", "+0.300")
    assert not any(cell["best"] for row in table["rows"] for cell in row["cells"])
    found = summary(store)
    (row,) = found["rows"]
    assert (row["before"], row["theirs"], row["own"], row["n_seeds"]) == (
        "0.200",
        "0.400",
        "0.500",
        1,
    )
    assert found["missed"] == {"as good": [], "safe": [], "fast": []}


def test_the_summary_tells_what_was_not_reached(tmp_path):
    store = RecordStore(tmp_path)
    for cell, result in [
        *records_of("nothing learnt", [0, 1], 0.506, 0.0),
        *records_of("torch, SupCon", [0, 1], 0.7, 9.0),
        *records_of("RCA, then ListwiseSoftmax", [0, 1], 0.5, 2.0),
    ]:
        store.append(cell, result)
    names = ["digits"]
    assert summary(store)["missed"] == {"as good": names, "safe": names, "fast": names}


# -- contenders of simstream --------------------------------------------------------------------------------


def labelled(seed=0, n=200):
    """Four classes that differ in three features, which are the smallest ones."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    items = rng.standard_normal((n, D)) * np.where(np.arange(D) < 3, 1, 3)
    items[:, :3] += 4 * np.eye(4)[labels][:, :3] - 1
    return items.astype(np.float32), labels


def answers_by_three_features():
    """Items, and all triplets ordered by the distance in the first three features."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((30, D)).astype(np.float32)
    anchor, first, second = np.array(list(itertools.permutations(range(30), 3))).T
    near = lambda one, other: np.linalg.norm((items[one] - items[other])[:, :3], axis=1)  # noqa: E731
    answers = np.column_stack([anchor, first, second])[near(anchor, first) < near(anchor, second)]
    return items, rng.permutation(answers)


def quality_from_labels(name):
    items, labels = labelled()
    task = tasks.LabelTask(items[:100], labels[:100], 0)
    learnt = CONTENDERS[name].learn("labels", task)
    return metrics.mean_average_precision(learnt.scores, items[100:], labels[100:])


def accuracy_from_triplets(name):
    items, answers = answers_by_three_features()
    task, (anchor, near, far) = tasks.TripletTask(items, answers[:5000], 0), answers[5000:].T
    scores = CONTENDERS[name].learn("triplets", task).scores(items, items)
    return (scores[anchor, near] > scores[anchor, far]).mean()


def test_the_adapter_gains_and_maps_queries_alone():
    task, test = tasks.search_task(made_collection(n_queries=200, n_items=500), 0)
    before = ndcg(CONTENDERS["nothing learnt"].learn("search", task), test)
    learnt = CONTENDERS["Adapter"].learn("search", task)
    assert ndcg(learnt, test) > before + 0.1
    candidate, trust = learnt.details["chosen"]
    assert candidate in (0, 1, 2)
    assert 0 < trust <= 1
    one = learnt.scores(test.queries, test.items)
    np.testing.assert_allclose(learnt.scores(test.queries, 2 * test.items), 2 * one, rtol=1e-5)


@pytest.mark.parametrize("name", ["ListwiseSoftmax", "RCA, then ListwiseSoftmax"])
def test_the_listwise_learner_gains_from_labels_and_triplets(name):
    assert quality_from_labels(name) > quality_from_labels("nothing learnt") + 0.1
    assert accuracy_from_triplets(name) > accuracy_from_triplets("nothing learnt") + 0.1


def test_lists_from_labels_leave_out_the_query_and_lonely_items():
    labels = np.array([0, 1, 1, 0, 2, 1, 0])
    lists = contenders.lists_from_labels(labels, 4000, 2, 3, np.random.default_rng(0))
    query, relevant, negatives = lists[:, :1], lists[:, 1:3], lists[:, 3:]
    assert (labels[relevant] == labels[query]).all()
    assert (relevant != query).all()
    assert (labels[negatives] != labels[query]).all()
    assert set(query.ravel()) == {0, 1, 2, 3, 5, 6}
    assert set(negatives.ravel()) == set(range(7))
    for one in (0, 3, 6):
        assert set(relevant[query[:, 0] == one].ravel()) == {0, 3, 6} - {one}


# -- layers of torch ----------------------------------------------------------------------------------------


def test_a_query_map_of_torch_gains():
    pytest.importorskip("torch")
    task, test = tasks.search_task(made_collection(n_queries=200, n_items=500), 0)
    before = ndcg(CONTENDERS["nothing learnt"].learn("search", task), test)
    learnt = CONTENDERS["torch, softmax"].learn("search", task)
    assert ndcg(learnt, test) > before + 0.1
    assert learnt.details["rate"] in torch_layers.SEARCH_RATES


@pytest.mark.parametrize("name", ["torch, SupCon", "torch, triplet loss"])
def test_layers_of_torch_learn_from_labels(name):
    pytest.importorskip("torch")
    assert quality_from_labels(name) > quality_from_labels("nothing learnt") + 0.1


def test_a_layer_of_torch_learns_from_triplets():
    pytest.importorskip("torch")
    before = accuracy_from_triplets("nothing learnt")
    assert accuracy_from_triplets("torch, triplet loss") > before + 0.1


def test_losses_of_torch_by_their_definitions():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((14, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.arange(14) % 3
    same = (labels[:, None] == labels) & ~np.eye(14, dtype=bool)
    cosines = rows @ rows.T
    contrasts, hinges = [], []
    for i in range(14):
        others = [j for j in range(14) if j != i]
        total = np.log(sum(np.exp(cosines[i, j] / torch_layers.SUPCON_TEMPERATURE) for j in others))
        positives = np.flatnonzero(same[i])
        scaled = cosines[i, positives] / torch_layers.SUPCON_TEMPERATURE
        contrasts.append(np.mean(total - scaled))
        negatives = 1 - cosines[i, labels != labels[i]]
        for near in 1 - cosines[i, positives]:
            farther = negatives[negatives > near]
            far = farther.min() if len(farther) else negatives.max()
            hinges.append(max(0.0, near - far + torch_layers.LABEL_MARGIN))
    given = torch.from_numpy(rows), torch.from_numpy(same)
    assert float(torch_layers.supcon_loss(*given)) == pytest.approx(np.mean(contrasts))
    assert float(torch_layers.semi_hard_loss(*given)) == pytest.approx(np.mean(hinges))


def test_ndcg_of_torch_is_that_of_simstream():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    scores, relevant = rng.standard_normal((9, 40)), rng.random((9, 40)) < 0.3
    expected = metrics.ranking_report_from_scores(scores, relevant)["nDCG@10"]
    found = torch_layers.ndcg_at_10(torch.from_numpy(scores), torch.from_numpy(relevant))
    assert found == pytest.approx(expected, abs=1e-6)
