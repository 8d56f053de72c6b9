"""A training as data: what makes it another one, and what its record may hold."""

import math
from dataclasses import replace

import pytest

from fasteraa.data import ImageSet
from fasteraa.policy.named import named
from fasteraa.train.job import Outcome, TrainJob, make_job
from fasteraa.train.split import Split


def test_other_seed_recipe_policy_or_data_is_another_job(split, tiny, data, held_out):
    base = TrainJob("uniform", named("uniform"), tiny, 0, split)
    other_data = ImageSet.of(data.images.flip(3).contiguous(), data.labels, data.classes, "flipped")
    variants = [
        base,
        replace(base, seed=1),
        replace(base, recipe=replace(tiny, epochs=2)),
        replace(base, policy=named("random")),
        replace(base, split=Split(other_data, held_out, "test images")),
        replace(base, split=Split(data, other_data, "test images")),
    ]
    assert len({job.key for job in variants}) == len(variants)
    renamed = replace(base, label="x", policy=replace(base.policy, name="renamed", provenance={"seconds": 3}))
    assert renamed.key == base.key
    assert replace(base, split=Split(data, held_out, "fold 1", 0.2, 7)).key == base.key
    assert (str(renamed), renamed.image_epochs) == ("x, seed 0", 64 * 3)


def test_keys_of_before_are_kept(split, tiny):
    """Runs that were finished are found again by any later version."""
    assert TrainJob("none", named("none"), tiny, 0, split).key == "83551861ff829057"


def test_cutout_follows_every_policy_but_none(split, tiny):
    recipe = replace(tiny, cutout=4)
    none, cutout, uniform = (make_job(name, named(name), recipe, 0, split) for name in ("none", "cutout", "uniform"))
    assert [job.recipe.cutout for job in (none, cutout, uniform)] == [0, 4, 4]
    assert [job.policy.name for job in (none, cutout, uniform)] == ["none", "none", "uniform"]
    without = make_job("cutout", named("cutout"), tiny, 0, split)
    assert without.policy == named("cutout")  # no cutout of the recipe's own: the policy of that name


def test_a_policy_is_not_taken_for_another_by_its_name(split, tiny):
    recipe = replace(tiny, cutout=4)
    for name in ("none", "cutout"):
        job = make_job("mine", replace(named("uniform"), name=name), recipe, 0, split)
        assert (job.policy.hash, job.recipe.cutout) == (named("uniform").hash, 4)
    job = make_job("mine", replace(named("none"), name="found on photos"), recipe, 0, split)
    assert job.recipe.cutout == 0


# --- outcomes --------------------------------------------------------------------------------------------------------


RECORD = {"error": 12.5, "held_out_loss": 0.4, "train_loss": 0.1, "seconds": 8.0}


def test_an_outcome_is_what_its_record_says():
    outcome = Outcome.of({**RECORD, "together": 4, "share_seconds": 3.0})
    assert (outcome.error, outcome.loss, outcome.train_loss, outcome.seconds) == (12.5, 0.4, 0.1, 3.0)
    assert outcome.failed is None
    assert outcome.record["together"] == 4
    assert Outcome.of({**RECORD, "together": 4}).seconds == 2.0  # old records do not say whose seconds they were
    old = Outcome.of({"error": 3, "seconds": 1})
    assert math.isnan(old.loss)
    assert math.isnan(old.train_loss)


def test_a_run_that_failed_has_no_error():
    outcome = Outcome.of({"diverged": "why", "seconds": 2.0})
    assert (outcome.failed, outcome.seconds) == ("why", 2.0)
    assert all(math.isnan(value) for value in (outcome.error, outcome.loss, outcome.train_loss))


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"error": "many"}, TypeError, "error must be a number, got 'many'"),
        ({"error": True}, TypeError, "error must be a number, got True"),
        ({"error": None}, TypeError, "error must be a number, got None"),
        ({"error": -1}, ValueError, r"error must be in \[0, 100\], got -1"),
        ({"error": 100.5}, ValueError, r"error must be in \[0, 100\], got 100\.5"),
        ({"error": math.nan}, ValueError, r"error must be in \[0, 100\], got nan"),
        ({"held_out_loss": -0.1}, ValueError, "held_out_loss must be in"),
        ({"held_out_loss": math.inf}, ValueError, "held_out_loss must be in"),
        ({"train_loss": "low"}, TypeError, "train_loss must be a number"),
        ({"seconds": "long"}, TypeError, "seconds must be a number"),
        ({"seconds": -1.0}, ValueError, "seconds must be in"),
        ({"together": 0}, ValueError, "together must be in"),
        ({"together": "two"}, TypeError, "together must be a number"),
    ],
)
def test_a_record_that_cannot_be_one(wrong, error, words):
    with pytest.raises(error, match=words):
        Outcome.of(RECORD | wrong)
