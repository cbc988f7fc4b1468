"""How questions are chosen."""

import numpy as np
import pytest

from simstream.asking import Asking, bring_near, choose_triplet, draw_triplets


def test_all_triplets_of_different_items_are_equally_likely():
    drawn = draw_triplets(5, 60_000, np.random.default_rng(0))
    assert all(len(set(triplet)) == 3 for triplet in drawn[:500].tolist())
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(found) == 5 * 4 * 3
    # Each is expected 1,000 times; five standard deviations of a Poisson number.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_too_few_items_are_refused():
    with pytest.raises(ValueError, match=r"n_items: expected at least three .* got 2"):
        draw_triplets(2, 1, np.random.default_rng(0))


def chosen(asking, margins, seed, drawn):
    """One choice from triplets whose numbers say where they were drawn."""
    places = np.arange(drawn)[:, None].repeat(3, axis=1)
    return choose_triplet(
        lambda n: places[:n], lambda t: margins[t[:, 0]], asking, np.random.default_rng(seed)
    )


def test_a_triplet_is_taken_with_probability_delta_over_delta_plus_margin():
    asking = Asking(delta=0.5, random_share=0.0, pool=2)
    margins = np.array([-1.5, 0.0])  # the second is taken whenever the first is not
    firsts = [chosen(asking, margins, seed, 2) for seed in range(4000)]
    share = np.mean([one.considered == 1 for one in firsts])
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
    assert all(one.triplet[0] == one.considered - 1 for one in firsts)
    assert not any(one.is_random for one in firsts)


def test_if_none_is_accepted_the_smallest_margin_is_asked_about():
    asking = Asking(delta=1e-12, random_share=0.0, pool=4)
    one = chosen(asking, np.array([3.0, -2.0, 1.0, -5.0]), 0, 4)
    assert (one.triplet[0], one.considered) == (2, 4)


def test_a_share_is_drawn_at_random():
    asking = Asking(delta=1e-12, random_share=0.3, pool=2)
    found = [chosen(asking, np.array([9.0, 0.0]), seed, 2) for seed in range(3000)]
    share = np.mean([one.is_random for one in found])
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 3000)
    assert all((one.triplet[0] == 0) == one.is_random for one in found)
    assert all(one.considered == (0 if one.is_random else 2) for one in found)


def test_one_candidate_is_brought_near_and_never_the_anchor_or_the_other_one():
    triplets = draw_triplets(6, 500, np.random.default_rng(0))

    def similarity(anchors, candidates):
        return np.where(candidates == anchors[:, None], 99.0, -candidates)  # low numbers are near

    near = bring_near(triplets, 6, 200, similarity, np.random.default_rng(1))
    assert (near[:, 0] == triplets[:, 0]).all()
    for (anchor, *candidates), other in zip(near.tolist(), triplets[:, 2].tolist(), strict=True):
        best = min({0, 1, 2} - {anchor, other})
        assert sorted(candidates) == sorted([best, other])
    assert 0.4 < np.mean(near[:, 2] == triplets[:, 2]) < 0.6  # the order reveals nothing


def test_near_candidates_are_for_questions_about_the_model_only():
    places = np.arange(8)[:, None].repeat(3, axis=1)

    def choose(asking, nearer):
        rng = np.random.default_rng(0)
        return choose_triplet(lambda n: places[:n], lambda t: t[:, 0], asking, rng, nearer=nearer)

    asked = choose(Asking(random_share=0.0, pool=4, near=5), lambda drawn: drawn + 3)
    assert asked.triplet[0] >= 3
    assert choose(Asking(random_share=1.0, pool=4, near=5), None).triplet[0] == 0
    with pytest.raises(
        ValueError, match="near: expected 1 if no function `nearer` is given, got 5"
    ):
        choose(Asking(random_share=0.0, near=5, pool=4), None)
