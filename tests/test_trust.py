"""How far to trust an option: bounds, evidence, new items, forgetting, and the regret of drawing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simstream import Trust


def learnt(gains, **options):
    trust = Trust(len(gains[0]), **options)
    for row in gains:
        trust.update(row)
    return trust


def test_the_baseline_is_chosen_until_there_are_enough_queries():
    trust = Trust(1)
    for _ in range(4):
        trust.update([0.5])
        assert trust.choice is None
    trust.update([0.4])
    assert trust.choice == 0


def test_means_and_bounds_are_those_of_the_textbook():
    rng = np.random.default_rng(0)
    gains = rng.uniform(-0.5, 0.6, (40, 3))
    trust = learnt(gains, caution=1.5, half_life=None)
    errors = gains.std(axis=0, ddof=1) / np.sqrt(40)
    np.testing.assert_allclose(trust.mean_gains(), gains.mean(axis=0))
    np.testing.assert_allclose(trust.lower_bounds(), gains.mean(axis=0) - 1.5 * errors)


def test_old_gains_count_half_after_a_half_life():
    gains = np.array([[1.0], *[[0.0]] * 10])
    weights = 0.5 ** (np.arange(10, -1, -1) / 10)
    assert learnt(gains, half_life=10).mean_gains()[0] == pytest.approx(weights[0] / weights.sum())


def test_the_best_lower_bound_wins_not_the_best_mean():
    rng = np.random.default_rng(1)
    steady = rng.normal(0.10, 0.05, 50)
    wild = rng.normal(0.12, 0.6, 50).clip(-1, 1)
    assert learnt(np.column_stack([wild, steady])).choice == 1


def test_a_few_lucky_queries_are_not_evidence():
    # Gains that are never negative: two lucky queries of fifty have a positive lower bound.
    gains = np.zeros((50, 1))
    gains[[10, 20]] = 0.4
    trust = learnt(gains)
    assert trust.lower_bounds()[0] > 0
    assert trust.choice is None
    assert learnt(gains, clearance=0.0).choice == 0


def test_evidence_can_be_other_than_the_gains():
    trust = Trust(1, half_life=None)
    for n in range(50):
        trust.update([0.4 if n in (10, 20) else 0.0], evidence=[0.1 + 0.01 * (n % 3)])
    assert trust.choice == 0


def test_what_harms_on_new_items_is_not_chosen():
    rng = np.random.default_rng(2)
    trust = Trust(2)
    for gain in rng.normal(0.3, 0.1, 60).clip(-1, 1):
        trust.update([gain, gain / 2], new_item_gains=[-0.05, 0.01])
    assert trust.choice == 1
    assert trust.n_new_item_queries == 60


def test_an_option_that_becomes_worse_is_dropped():
    rng = np.random.default_rng(3)
    trust = Trust(1, half_life=50)
    for gain in rng.normal(0.2, 0.2, 300).clip(-1, 1):
        trust.update([gain])
    assert trust.choice == 0
    for gain in rng.normal(-0.2, 0.2, 100).clip(-1, 1):
        trust.update([gain])
    assert trust.choice is None


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 120), st.integers(0, 10**6), st.sampled_from("rsa"))
def test_drawing_by_weights_never_regrets_more_than_the_bound(n_options, n_queries, seed, kind):
    rng = np.random.default_rng(seed)
    trust = Trust(n_options)
    for n in range(n_queries):
        if kind == "r":
            gains = rng.uniform(-1, 1, n_options)
        elif kind == "s":  # signs that alternate in blocks
            gains = np.where(rng.random(n_options) < 0.5, 1.0, -1.0) * (-1) ** (n // 7)
        else:  # an adversary: whatever weighs most loses, the others win
            gains = np.ones(n_options)
            gains[np.argmax(trust.weights()[:-1])] = -1.0
        trust.update(gains)
    assert trust.expected_total_gain >= trust.best_total_gain - trust.regret_bound
    assert trust.best_total_gain >= 0  # the baseline is among the options


def test_the_regret_bound_is_of_the_order_of_the_root():
    trust = learnt(np.zeros((400, 7)))
    assert trust.regret_bound < 4.1 * np.sqrt(400 * np.log(8) / 2) + 1


def test_a_restored_trust_goes_on():
    rng = np.random.default_rng(4)
    gains = rng.uniform(-1, 1, (30, 2))
    whole, part = learnt(gains), learnt(gains[:20])
    again = Trust(2).restore(*part.state())
    for row in gains[20:]:
        again.update(row)
    assert again.lower_bounds().tolist() == whole.lower_bounds().tolist()
    assert again.weights().tolist() == whole.weights().tolist()
    assert again.expected_total_gain == whole.expected_total_gain
    with pytest.raises(ValueError, match="expected float64 of shape"):
        Trust(3).restore(*part.state())


@pytest.mark.parametrize("gains", [[0.1], [0.1, np.nan], [0.1, 1.5], [[0.1, 0.2]]])
def test_bad_gains_are_refused_before_anything_changes(gains):
    trust = learnt([[0.1, 0.2]])
    with pytest.raises(ValueError, match="gains: expected"):
        trust.update(gains)
    with pytest.raises(ValueError, match="new_item_gains: expected"):
        trust.update([0.1, 0.2], new_item_gains=gains)
    assert trust.n_queries == 1


@pytest.mark.parametrize(
    "options", [{"caution": -1}, {"clearance": np.nan}, {"tolerance": -0.1}, {"half_life": 0}]
)
def test_bad_parameters_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Trust(2, **options)
