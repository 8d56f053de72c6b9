"""Which operations help: what is drawn, what the line finds, what is made of it, and that it finds a planted truth."""

import math
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from fasteraa.errors import ConfigError, PolicyError, Stopped
from fasteraa.evaluate import budget, effects, experiment
from fasteraa.evaluate import calibrate as race
from fasteraa.selection.race import Candidate, calibrate
from fasteraa.selection.candidates import weighted_candidates
from fasteraa.comparison.compare import run_group
from fasteraa.methods.op_effects import Effects, drawn, fit, meetings, operations_to_test
from fasteraa.methods.experiment import affordable
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.trainer import Training
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import EFFECTS, named, weighted

from .conftest import levels

OPERATIONS = operations_to_test(None)


def test_all_but_the_flip_are_tested():
    """Of a new operation nothing is known before."""
    assert set(OPERATIONS) == set(OPS) - {"flip"} >= set(EFFECTS)
    assert operations_to_test(["flip", "invert", "rotate"]) == ["rotate", "invert"]


def test_drawn_policies_have_about_half_of_the_operations_and_come_again():
    policies = drawn(200, OPERATIONS, 3)
    assert policies == drawn(200, OPERATIONS, 3)
    assert policies != drawn(200, OPERATIONS, 4)
    counts = [len(policy.ops) for policy in policies]
    assert min(counts) >= 4
    assert np.mean(counts) == pytest.approx(len(OPERATIONS) / 2, abs=0.5)
    doses = [sum(meetings(policy)[0].values()) for policy in policies]
    assert {round(dose, 2) for dose in doses} == {1, 2, 3}
    for op in OPERATIONS:
        assert 70 < sum(op in policy.ops for policy in policies) < 130
    reaches = {choice.range[1] for policy in policies for choice in policy.choices() if OPS[choice.op].geometric}
    assert reaches == {0.35, 0.7, 1.0}
    assert {tuple(policy.ops) for policy in drawn(30, ["rotate", "invert"], 0)} == {
        ("rotate",), ("invert",), ("rotate", "invert"),
    }  # fmt: skip


def test_how_often_an_image_meets_an_operation():
    """Weights of sub-policies and choices, probabilities, passes and scales, all of them."""
    first = SubPolicy(((Choice("rotate", 0.5, (0.1, 0.8), 3.0), Choice("invert", 1.0)),), 2.0)
    second = SubPolicy(((Choice("invert", 0.2),), (Choice("rotate", 1.0, 0.4),)))
    policy = Policy((first, second)).with_strength((0, 0.5, 0.5), probability=0.5)
    met, reached = meetings(policy)
    rotated = 1.5 * 0.5 * (2 / 3 * 3 / 4 * 0.5 + 1 / 3)
    assert met == pytest.approx({"rotate": rotated, "invert": 1.5 * 0.5 * (2 / 3 / 4 + 1 / 3 * 0.2)})
    assert reached["rotate"] == pytest.approx(1.5 * 0.5 * (2 / 3 * 3 / 4 * 0.5 * 0.8 + 1 / 3 * 0.4))


def lost(policies, folds, truth, noise=0.0):
    """Losses that follow the line, each fold with a level of its own."""
    rng = np.random.default_rng(0)
    losses = []
    for policy, fold in zip(policies, folds, strict=True):
        met = meetings(policy)[0]
        change = sum(truth.get(op, 0.0) * math.sqrt(often) for op, often in met.items()) + noise * rng.normal()
        losses.append(0.7 * (1 + int(fold)) * math.exp(change / 100))
    return losses


def test_a_line_is_found_in_noise():
    truth = {"invert": 20.0, "rotate": -15.0, "color": 6.0}
    policies, folds = drawn(300, OPERATIONS, 0), [str(number % 3) for number in range(300)]
    found = fit(policies, lost(policies, folds, truth, noise=3.0), folds, OPERATIONS)
    assert found.trainings == 300
    for op in OPERATIONS:
        assert found.of[op] == pytest.approx(truth.get(op, 0.0), abs=4 * found.errors[op])
        assert 0.5 < found.errors[op] < 2
    few = fit(policies[:12], lost(policies[:12], folds[:12], truth, noise=3.0), folds[:12], OPERATIONS)
    assert min(few.errors.values()) > max(found.errors.values())


def test_noise_is_looked_for_where_there_is_some():
    """Less the means of three folds, twelve measurements have nine dimensions: the evidence is that of those nine."""
    rng = np.random.default_rng(0)
    folds = [str(number % 3) for number in range(12)]
    x, y = (effects._within(rng.normal(size=size), folds) for size in ((12, 4), 12))
    levels = np.array([[float(fold == each) for each in "012"] for fold in folds])
    basis = np.linalg.svd(levels)[0][:, 3:]
    for noise in (0.5, 2.0):
        covariance = basis.T @ (noise**2 * np.eye(12) + 25 * x @ x.T) @ basis
        measured = basis.T @ y
        expected = np.linalg.slogdet(covariance)[1] + measured @ np.linalg.solve(covariance, measured)
        assert effects._evidence(x, y, noise, 3) == pytest.approx(-expected / 2)


def test_far_warps_that_harm_are_seen():
    policies, folds = drawn(120, OPERATIONS, 0), ["one"] * 120
    losses = []
    for policy in policies:
        met, reached = meetings(policy)
        warps = sum(met[op] for op in met if OPS[op].geometric)
        reach = sum(reached[op] for op in met if OPS[op].geometric) / warps if warps else 0.7
        losses.append(math.exp(0.3 * math.sqrt(warps) * (reach - 0.7)))
    assert fit(policies, losses, folds, OPERATIONS).reach == pytest.approx(10, abs=1)
    assert fit(policies, [1 / loss for loss in losses], folds, OPERATIONS).reach == pytest.approx(-10, abs=1)


def test_what_nothing_is_known_about_is_what_was_expected():
    """Noise alone: effects stay near those of other data."""
    policies, folds = drawn(18, OPERATIONS, 0), ["1"] * 18
    found = fit(policies, lost(policies, folds, EFFECTS, noise=40.0), folds, OPERATIONS)
    for op in OPERATIONS:
        assert found.of[op] == pytest.approx(EFFECTS.get(op, 0.0), abs=4)
        assert found.errors[op] > 4


def shares(policy):
    return {choice.op: choice.weight for choice in policy.sub_policies[0].stages[0]}


def test_operations_are_weighted_by_the_squares_of_what_they_do():
    policy = weighted({"invert": -4.0, "rotate": 0.0, "color": 4.0, "solarize": 9.0}, caution=8, dose=2, warps=0.5)
    assert shares(policy) == pytest.approx({"invert": 144 / 224, "rotate": 64 / 224, "color": 16 / 224}, abs=1e-4)
    assert meetings(policy)[0] == pytest.approx({op: 2 * share for op, share in shares(policy).items()}, abs=1e-3)
    assert {choice.op: choice.range[1] for choice in policy.choices()} == {"invert": 0, "rotate": 0.5, "color": 1.0}
    assert set(shares(weighted({"invert": -20.0, "rotate": 7.9}))) == {"invert"}  # not the other with a share of 0


def test_the_general_policy_has_all_operations_and_mild_warps():
    policy = named("general")
    assert policy.name == "general"
    assert set(policy.ops) == set(EFFECTS)
    assert max(shares(policy), key=shares(policy).get) == "solarize"
    assert {choice.range[1] for choice in policy.choices() if OPS[choice.op].geometric} == {0.35}
    assert sum(meetings(policy)[0].values()) == pytest.approx(2, abs=1e-3)


def test_the_general_policy_of_chosen_operations():
    policy = named("general", ops=["rotate", "flip", "solarize"])
    goods = {op: (8 - EFFECTS.get(op, 0.0)) ** 2 for op in ("rotate", "flip", "solarize")}
    assert shares(policy) == pytest.approx({op: good / sum(goods.values()) for op, good in goods.items()}, abs=1e-4)


def known(reach=1.0, **of):
    return Effects(of, dict.fromkeys(of, 1.0), reach, 54)


def test_policies_made_of_what_helps():
    mild, bold, more = (each.policy for each in weighted_candidates(known(rotate=-6.0, color=0.0, invert=4.0), {}))
    ratio = [shares(each)["rotate"] / shares(each)["invert"] for each in (more, mild, bold)]
    assert ratio == sorted(ratio)
    assert [round(sum(meetings(each)[0].values()), 2) for each in (mild, bold, more)] == [2, 2, 3]
    assert [each.label for each in weighted_candidates(known(rotate=1.0, color=2.0), {})] == [
        "weighted", "weighted, boldly", "weighted, 3 operations",
    ]  # fmt: skip


def test_the_same_policy_does_not_race_against_itself():
    labels = [each.label for each in weighted_candidates(known(rotate=1.0, color=20.0), {})]
    assert labels == ["weighted", "weighted, 3 operations"]


def test_warps_go_as_far_as_helps():
    for reach, most in ((1.0, 0.35), (-1.0, 1.0)):
        assert {choice.range[1] for choice in known(reach, rotate=0.0).policy(8).choices()} == {most}


def test_where_all_do_harm_the_least_harmful_are_left():
    assert shares(known(rotate=40.0, invert=60.0).policy(5)) == {"rotate": 1.0}
    with pytest.raises(PolicyError, match=r"no operation helps: all effects are 8\.0 or more"):
        weighted({"rotate": 9.0})


def test_words_and_table():
    assert known(color=-0.4).words() == "color +0 ± 2"
    found = known(rotate=-6.4, invert=4.0)
    assert found.words() == "rotate -6 ± 2, invert +4 ± 2"
    assert found.table() == {"trainings": 54, "of": {"rotate": [-6.4, 1.0], "invert": [4.0, 1.0]}, "reach": 1.0}


# --- the experiment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "runs", "epochs"),
    [
        (10_000, 54, 90),
        (54 * 140, 54, 70),
        (54 * 120, 54, 60),
        (54 * 120 - 1, 51, 63),
        (18 * 120, 18, 60),
        (2159, 0, 0),
    ],
)
def test_half_of_the_time_is_spent_on_whole_folds_of_trainings(seconds, runs, epochs):
    assert affordable(seconds, 1.0, 60, 90, 3) == (runs, epochs)


RECIPE = TrainRecipe(network="small", epochs=4, batch_size=16, learning_rate=0.05, cutout=0, crop=0, flip=False)
TESTED = ["rotate", "invert", "brightness", "sharpness"]
CANDIDATES = [Candidate(label, named(label)) for label in ("none", "trivialaugment-wide", "uniform")]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(budget, "MEASURED_S", 0.0)
    monkeypatch.setattr(budget, "HEATS", ())


def stripes():
    return levels(90, apart=75)


def raced(folder, said=None, **given):
    settings = {"recipe": RECIPE, "device": "cpu", "folder": folder, "minutes": 5, "ops": TESTED} | given
    return calibrate(stripes(), CANDIDATES, say=(said if said is not None else []).append, **settings)


@pytest.mark.slow
def test_planted_truth(quick, tmp_path):
    """Inverting half of the images ruins this data, and turning them does nothing to it."""
    said = []
    found = raced(tmp_path, said)
    assert said[0] == "calibrating: which operations help? 54 trainings of 4 epochs of small"
    effect = found.effects.of
    assert max(effect, key=effect.get) == "invert"
    assert effect["invert"] - 3 * found.effects.errors["invert"] > effect["rotate"]
    bold = next(trial.policy for trial in found.trials if trial.label == "weighted, boldly")
    assert "invert" not in shares(bold) or shares(bold)["invert"] < 0.5 * shares(bold)["rotate"]
    labels = {trial.label for trial in found.trials}
    assert labels == {
        "none",
        "trivialaugment-wide",
        "uniform",
        "weighted",
        "weighted, boldly",
        "weighted, 3 operations",
    }
    assert found.policy(named("none")).provenance["calibration"]["effects"]["trainings"] == 54
    assert "When images meet an operation once" in found.words()

    again = raced(tmp_path, said)
    assert said[-1] == "calibrating: the race that was begun goes on"
    assert again.trials == found.trials
    assert again.effects == found.effects
    assert again.seconds == found.seconds


def test_without_time_or_operations_there_is_no_experiment(quick, tmp_path, monkeypatch):
    assert raced(tmp_path / "a", ops=()).effects is None
    assert raced(tmp_path / "a", ops=["rotate"]).effects is None  # nothing to compare it with
    monkeypatch.setattr(budget, "image_seconds", lambda *given: 1.0)
    found = raced(tmp_path / "b", minutes=0.01)
    assert found.effects is None
    assert "When images meet" not in found.words()
    assert "effects" not in found.provenance()


@pytest.mark.parametrize("stop_after", [7, 18])
def test_an_experiment_that_was_stopped_goes_on_as_it_was_planned(quick, tmp_path, monkeypatch, stop_after):
    """In the middle of it, and between it and the race; the machine seems far slower the second time."""
    monkeypatch.setattr(experiment, "MOST", 18)
    recipe, plain = replace(RECIPE, epochs=1), run_group

    def run(folder, cost, most=math.inf):
        trained = []

        def group(arena, cells, **given):
            if len(trained) >= most:
                raise KeyboardInterrupt
            trained.extend((arena.held_out_from, cell.label, cell.seed, cell.recipe.epochs) for cell in cells)
            return plain(arena, cells, **given)

        monkeypatch.setattr(sys.modules[run_group.__module__], "run_group", group)
        monkeypatch.setattr(budget, "image_seconds", lambda *given: cost)
        with pytest.raises(Stopped) if most < math.inf else nullcontext():
            return trained, raced(tmp_path / folder, recipe=recipe)
        return trained, None

    everything, whole = run("whole", 1e-6)
    begun, _ = run("stopped", 1e-6, stop_after)
    rest, resumed = run("stopped", 1.0)
    assert begun + rest == everything  # nothing twice, nothing else
    assert resumed.effects == whole.effects
    assert resumed.trials == whole.trials


def test_wrong_operations_and_labels_are_named(tmp_path):
    with pytest.raises(PolicyError, match="did you mean 'rotate'"):
        raced(tmp_path, ops=["rotat", "invert"])
    with pytest.raises(ConfigError, match="made of what helps are called weighted: rename the candidate"):
        calibrate(stripes(), [Candidate("weighted", named("none"))], ops=TESTED, recipe=RECIPE, device="cpu")


def test_losses_below_that_of_one_image_say_nothing(monkeypatch, tmp_path):
    """Where no image is wrong, losses of 1e-9 and 1e-3 are the same; by their logarithms all would hang on chance."""
    arenas = race._folds(stripes(), tmp_path, "cpu", 0)
    runs = experiment.cells_of_experiment(arenas, TESTED, RECIPE, 54, 0)

    def read(lost):
        monkeypatch.setattr(experiment, "read_cell", lambda arena, cell: {"held_out_loss": lost(cell)})
        return experiment.read_experiment(runs, TESTED)[0]

    assert read(lambda cell: 1e-3 if "invert" in cell.policy.ops else 0.0) == read(lambda cell: 1e-2)
    assert read(lambda cell: 0.2 if "invert" in cell.policy.ops else 0.0).of["invert"] > 20


def test_trainings_that_diverge_are_left_out_and_most_of_them_are_too_many(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "MOST", 18)
    plain = Training.step

    def diverging(some):
        def step(self, images, targets):
            mine = "sharpness" in self.feed.policy.ops and ("rotate" in self.feed.policy.ops or some != "few")
            mine = mine or (some == "all" and self.feed.policy.ops)
            return plain(self, images, targets) + (float("nan") if mine else 0.0)

        return step

    recipe = replace(RECIPE, epochs=1)
    few = sum({"sharpness", "rotate"} <= set(policy.ops) for policy in drawn(18, TESTED, 0))
    assert 0 < few < 9
    monkeypatch.setattr(Training, "step", diverging("few"))
    assert raced(tmp_path / "few", recipe=recipe).effects.trainings == 18 - few
    monkeypatch.setattr(Training, "step", diverging("all"))
    found = raced(tmp_path / "all", recipe=recipe)
    assert found.effects is None
    assert found.chosen.label == "none"


def test_what_is_measured_on_a_fold_is_not_in_the_policies_that_race_there(quick, tmp_path, monkeypatch):
    """To invert does harm on the images of the second fold alone."""
    monkeypatch.setattr(experiment, "MOST", 18)
    monkeypatch.setattr(race, "better_half", lambda measured, count: measured)
    plain, trained = run_group, {}

    def group(arena, cells, **given):
        trained.update({(cell.label, arena.held_out_from): cell.policy for cell in cells})
        return plain(arena, cells, **given)

    def read(arena, cell):
        ruined = arena.held_out_from == "fold 2" and "invert" in cell.policy.ops
        return {"held_out_loss": 0.8 if ruined else 0.4, "train_loss": 0.1, "error": 10.0}

    monkeypatch.setattr(sys.modules[run_group.__module__], "run_group", group)
    monkeypatch.setattr(experiment, "read_cell", read)
    found = raced(tmp_path, recipe=replace(RECIPE, epochs=1))
    first, second, third = (shares(trained["weighted", f"fold {fold}"])["invert"] for fold in (1, 2, 3))
    chosen = next(shares(trial.policy)["invert"] for trial in found.trials if trial.label == "weighted")
    assert second == pytest.approx(1 / 4, abs=0.01)  # on the others nothing does anything
    assert max(first, third, chosen) < 0.6 * second  # those were made with the second, too
    assert trained["uniform", "fold 1"] == trained["uniform", "fold 2"]


def test_no_training_of_an_experiment_is_another_one_again(tmp_path):
    """Two operations make few policies: the same one on the same fold must begin from another seed."""
    arenas = race._folds(stripes(), tmp_path, "cpu", 0)
    runs = experiment.cells_of_experiment(arenas, ["invert", "solarize"], RECIPE, 54, 0)
    assert len({(arena.held_out_from, cell.policy.hash) for arena, cell in runs}) < 40
    assert len({cell.key(arena.data, arena.held_out) for arena, cell in runs}) == 54
    many = experiment.cells_of_experiment(arenas, operations_to_test(None), RECIPE, 54, 5)
    alone = [(fold, cell.seed) for fold, cell in zip([0, 1, 2] * 18, (cell for _, cell in many), strict=True)]
    assert set(alone) == {(0, 5), (1, 6), (2, 7)}  # a seed for each fold, where policies differ
