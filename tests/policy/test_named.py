"""Named policies: what they do against torchvision's own classes, how they are spelled, and hashes that stay."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import autoaugment as published

from fasteraa.errors import PolicyError
from fasteraa.methods.published import RACED, RACED_FINE_TUNING
from fasteraa.ops import OPS, Pair, hard_pillow
from fasteraa.policy import Policy
from fasteraa.policy.draw import plan_of
from fasteraa.policy.json_format import LARGEST_FILE
from fasteraa.policy.named import _TORCHVISION, NAMES, descriptions, is_name
from fasteraa.policy.resolve import load_policy
from fasteraa.policy.soft import SoftPolicy

binom = pytest.importorskip("scipy.stats").binom
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
PAIR = Pair(None, (0.5, 0.5), (0, 0, 0), (125, 123, 114))


@pytest.mark.parametrize("which", ["cifar10", "svhn", "imagenet"])
def test_autoaugment_does_what_torchvision_does(which):
    """Every operation of the 25 sub-policies at its strength, both signs, pixel for pixel."""
    theirs = published.AutoAugment(published.AutoAugmentPolicy[which.upper()])
    space = theirs._augmentation_space(10, (32, 32))
    ours = Policy.named(f"autoaugment-{which}")
    assert len(ours.sub_policies) == 25
    compared = 0
    for sub, row in zip(ours.sub_policies, theirs.policies, strict=True):
        for stage, (name, probability, bin_) in zip(sub.stages, row, strict=True):
            (choice,) = stage
            assert (choice.op, choice.probability) == (_TORCHVISION[name], probability)
            strengths, signed = space[name]
            # torchvision's strengths are float32: 0.29999998 for 0.3
            strength = 0.0 if bin_ is None else round(float(strengths[bin_]), 6)
            for sign in (1.0, -1.0) if signed else (1.0,):
                # Pillow's positive shift looks to the right, torchvision's moves to the right
                turned = -sign if name.startswith("Translate") else sign
                one = hard_pillow(OPS[choice.op], IMAGE, choice.range[0], turned, PAIR, ours.spans)
                if name.startswith("Translate"):  # torchvision cuts to whole pixels, Pillow rounds: at most one apart
                    strength = float(round(strength))
                two = published._apply_op(IMAGE, name, strength * sign, InterpolationMode.NEAREST, None)
                assert np.array_equal(np.asarray(one), np.asarray(two)), (name, strength, sign)
                compared += 1
                if bin_ is not None and not name.startswith("Translate"):  # with the float32 itself: one level at most
                    two = published._apply_op(
                        IMAGE, name, float(strengths[bin_]) * sign, InterpolationMode.NEAREST, None
                    )
                    assert np.abs(np.asarray(one, int) - np.asarray(two, int)).max() <= 1, (name, bin_, sign)
    assert compared >= 50


def strengths_of(policy, op):
    return [choice for choice in policy.choices() if choice.op == op]


def test_randaugment():
    policy = Policy.named("randaugment-3-15")
    assert policy.depth == 3
    assert Policy.named("randaugment", n=3, m=15) == policy
    (rotate, *_) = strengths_of(policy, "rotate")
    assert policy.span("rotate").value(rotate.magnitude) == 15
    assert policy.span("translate_x").value(strengths_of(policy, "translate_x")[0].magnitude) == pytest.approx(75 / 331)
    assert policy.span("posterize").value(strengths_of(policy, "posterize")[0].magnitude) == 6
    assert policy.span("solarize").value(strengths_of(policy, "solarize")[0].magnitude) == pytest.approx(127.5)
    assert set(policy.ops) == set(_TORCHVISION.values()) - {"invert"}


def test_trivialaugment_draws_as_torchvision_does():
    """One of 14 with equal chance, and the same shares of bits."""
    policy = Policy.named("trivialaugment-wide")
    plan = plan_of(policy)
    many = 50_000
    draw = plan.draw(many, torch.Generator().manual_seed(0))
    for number in range(-1, len(plan.ops)):
        count = int((draw.op == number).sum())
        assert binom.ppf(1e-6, many, 1 / 14) < count < binom.ppf(1 - 1e-6, many, 1 / 14)
    posterized = draw.magnitude[draw.op == plan.ops.index(OPS["posterize"])]
    bits = policy.span("posterize").value(posterized).floor().int().tolist()
    theirs = v2.TrivialAugmentWide._AUGMENTATION_SPACE["Posterize"][0](31, 32, 32).tolist()
    for kept in range(2, 9):
        share = theirs.count(kept) / 31
        assert binom.ppf(1e-6, len(bits), share) < bits.count(kept) < binom.ppf(1 - 1e-6, len(bits), share)
    widest = {"shear_x": 0.99, "rotate": 135, "translate_y": 32, "brightness": 1.99}
    assert {op: policy.span(op).value(1.0) for op in widest} == pytest.approx(widest)


def test_random_is_where_a_search_starts():
    assert Policy.named("random-4-3-7") == Policy.named("random", sub_policies=4, operation_count=3, seed=7)
    policy = Policy.named("random-4-3-7")
    assert len(policy.sub_policies) == 4
    assert policy.depth == 3
    assert policy.hash != Policy.named("random-4-3-8").hash
    total = [sum(c.weight for c in stage) for sub in policy.sub_policies for stage in sub.stages]
    assert total == pytest.approx([1.0] * 12, abs=2e-3)


def test_uniform_covers_every_operation():
    policy = Policy.named("uniform")
    assert policy.ops == list(OPS)
    assert {choice.range for choice in policy.choices() if OPS[choice.op].span} == {(0.0, 1.0)}
    assert Policy.named("uniform", ops=["flip", "rotate"]).ops == ["rotate", "flip"]


def test_none_and_cutout():
    batch = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(Policy.named("none")(batch), batch)
    painted = (Policy.named("cutout")(batch) == torch.tensor([125, 123, 114]).view(1, 3, 1, 1)).all(1)
    assert painted.flatten(1).sum(1).max() <= 17 * 17  # Pillow's rectangle includes its last row and column
    assert painted.flatten(1).sum(1).min() >= 8 * 8


@pytest.mark.parametrize(
    "text",
    [
        "randaugment-2-5",
        " RandAugment-2-5",
        "randaugment(n=2,m=5)",
        " RandAugment( 2 , m = 5 ) ",
        "randaugment(2,5)",
    ],
)
def test_every_spelling_of_the_settings(text):
    assert Policy.named(text) == load_policy(text) == Policy.named("randaugment", n=2, m=5)
    assert Policy.named(text) != Policy.named("randaugment")


# pinned: runs and results are found by them, so a change here makes everything that was trained another policy's
HASHES = {
    "none": "c3c4f7adfc7831925a67db0c13f0195c325821d4197d4484ba23002db645879c",
    "cutout": "f45fd048d399f54e36dbe0045dde1d1ad11470bab4012564e27abcb9dbea8cb9",
    "autoaugment-cifar10": "6bf7f89fd9da93cead8abf5f86699782f1d43e941bcde8a1240976ef3e260aea",
    "autoaugment-svhn": "06dc623c350f9ac8916ec6b5fd5546a1088128bc0689140051de930a175548b0",
    "autoaugment-imagenet": "3f69b3d516c7493f63a8cd6eacebe7db8a5471b6d00fecee773c039338471cab",
    "randaugment": "d49b4b1f18ed440ef04774fce550db16d5241363c6ee6103356a30279397ed00",
    "randaugment-2-9": "d49b4b1f18ed440ef04774fce550db16d5241363c6ee6103356a30279397ed00",
    "randaugment-2-14": "55941763cc9a2aecf615fb49140578e12ade75899a54bc699e08593b7e997291",
    "randaugment-3-14": "f5ffbf62be021db8d364d8931c78340941624cbd133c011033ffd9a706a4e559",
    "randaugment-2-9.5": "92fd2fd649ca3c05d74de92b02cc62511d8f983d898efce6ba816b849abadcaa",
    "trivialaugment-wide": "f1403700fad67e4b7fbddb38f22686d496b4d027560e32c18269b9e15e2a6d7d",
    "uniform": "bc9ff53d7760e43a28baeca3a15bd3648ab7c40828aa002146892070e1a80585",
    "uniform-x2": "6186ce78588ab778d493570d0b4726055d9bdcfc6a8051a8fd1c9831a7736472",
    "uniform-x3": "20d98619a15de45d83eb64b8469cad057e3d4861f0699f45a5bbff9f2d19a34d",
    "uniform-half": "f6c8c150b61bafcba2e2253c1fcd4a87736d742e580e0fc498412195f1fa2f17",
    "color-ops-x2": "40d9bdd2862e14a3767b2e1b0bdc1dcc453365b0234ef1a0865058aeb9dd2bce",
    "general": "ba7bdf2d1dd6b3d94644d8dbdc3a7805442e3a8eff165939fd8e7e9f06872746",
    "general-or-trivial": "aa7e19959b8000036856737e3810f7e235a918818aa8e01a0bd87beee5f5fc13",
    "general-mild": "be94ff55d5537143aa2b45fe71bd345548b59312facdcb47dc3eb4e2c8550ccb",
    "randaugment-m9": "c86959e647c9bffa8a6d78b215f3f00ffb9183e19ae604d917a14dfed41133fb",
    "three-augment": "81db59c4a3f1860ea4374d3c779f7659c7eea62a1aa037cc80c1cfd2f588c124",
    "random": "0c1ae955e44c27dfb6bdc09706bad21958d343e5e8b792bca35999301098ccd1",
    "random-4-3-7": "eca09ad76d2873f1584f3968cdabb3c30a5fe455454ca0d22b61c6bf4aa08cc0",
}


@pytest.mark.parametrize("name", HASHES)
def test_the_hash_of_a_name_stays(name):
    assert load_policy(name).hash == f"sha256:{HASHES[name]}"


def test_every_name_has_a_pinned_hash():
    assert set(NAMES) | set(RACED) | set(RACED_FINE_TUNING) <= set(HASHES)


@pytest.mark.parametrize(
    ("old", "new"),
    [("randaugment(2,14)", "randaugment-2-14"), ("randaugment(3,14)", "randaugment-3-14"),
     ("random(4,3,7)", "random-4-3-7")],
)  # fmt: skip
def test_the_spelling_of_version_0_1_still_loads(old, new):
    assert load_policy(old) == load_policy(new)


@pytest.mark.parametrize("name", HASHES)
def test_a_name_can_be_typed_and_its_policy_has_it(name):
    """In lists with commas, as a label and as a file's name, without quotes in a shell; it is its own policy's name."""
    assert re.fullmatch(r"[a-z0-9.-]+", name)
    policy = load_policy(name)
    assert policy.name == {"randaugment": "randaugment-2-9", "random": "random-10-2-0"}.get(name, name)
    assert load_policy(policy.name) == policy


def test_the_list_of_names():
    listed = descriptions()
    assert "randaugment-N-M" in listed
    assert set(listed) == {*NAMES, "randaugment-N-M", "random-L-K-SEED"} - {"randaugment", "random"}
    assert all(line.endswith(".") and " " in line for line in listed.values())


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("general or any one", "general-or-trivial"),
        ("colours, 2 passes", "color-ops-x2"),
        ("uniform, 2 passes", "uniform-x2"),
        ("uniform, 3 passes", "uniform-x3"),
        ("uniform, half as often", "uniform-half"),
        ("randaugment(2,14)", "randaugment-2-14"),
    ],
)
def test_what_races_once_called_them_still_loads(old, name):
    assert load_policy(old) == load_policy(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("uniform-x4", "did you mean 'uniform-x3'"),
        ("randaugment-2", "did you mean 'randaugment'"),
        ("randaugment-2-14-3", "did you mean 'randaugment'"),
        ("randaugment-2-1.4.3", r"is written as randaugment\(n=2, m=9\), got 'randaugment-2-1.4.3'"),
        ("randaugment-2-31", r"m of randaugment must be in \[0, 30\], got 31"),
        ("randaugment-0-9", r"n of randaugment must be in 1\.\.100, got 0"),
        ("randaugment-2-14(3)", "unknown policy"),
        ("randaugment(1000000000,1)", r"n of randaugment must be in 1\.\.100, got 1000000000$"),
        ("randaugment(True,1)", "is written as"),
        ("randaugment(2,True)", "m of randaugment must be in"),
        ("randaugment(2,1e999)", "m of randaugment must be in .*, got inf"),
        ("uniform(1000000000)", r"operation_count must be in 1\.\.100, got 1000000000$"),
        ("uniform(2.5)", "is written as"),
        ("random(99999999)", r"sub_policies must be in 1\.\.1,000, got 99999999$"),
        ("random(10,99999999)", r"operation_count must be in 1\.\.100, got 99999999$"),
        ("random(1000,100)", "a policy can hold 50,000 choices, got sub_policies 1,000 x operation_count 100 x 17 op"),
        ("random(10,2,1e30)", "seed must be a whole number of 64 bits, got 1e[+]30"),
        (f"random(10,2,{10**30})", "seed must be a whole number of 64 bits, got 1000"),
        (f"random-10-2-{'9' * 5000}", "a name must have at most 1000 characters, got 5012"),
        (f"randaugment({'9' * 900},1)", r"n of randaugment must be in 1\.\.100, got 999"),
        (f"random(0x{'f' * 900})", r"sub_policies must be in 1\.\.1,000, got 5104"),
        (f"uniform({'(' * 400}1{')' * 400})", "is written as"),
        (f"uniform({'-' * 900}1)", "is written as|must be in"),
        (f"uniform({'[' * 90_000}", "a name must have at most 1000 characters"),
        ("uniform(1or 2)", "is written as"),
        ("uniform('\\d')", "is written as"),
        ("uniform(\0)", "is written as"),
        ("\ud800", "unknown policy"),
        ("x" * 100_000, "unknown policy 'xxx"),
    ],
)
def test_names_that_are_none(text, message):
    with pytest.raises(PolicyError, match=message) as told:
        Policy.named(text)
    assert len(str(told.value)) < 500
    assert str(told.value).isprintable()
    with pytest.raises(PolicyError) as told:
        load_policy(text)
    assert len(str(told.value)) < 500
    assert str(told.value).isprintable()


def test_a_folder_that_may_not_be_looked_into(monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)  # root may look into any
    with pytest.raises(PolicyError, match=r"^'closed/run' could not be read: Permission denied$"):
        load_policy("closed/run")


def test_a_soft_policy_has_limits():
    with pytest.raises(PolicyError, match="can hold 50,000 choices"):
        SoftPolicy(10**9, 10**9)
    assert len(random_largest().to_json()) < LARGEST_FILE


def random_largest():
    """As many choices as there may be, each with all of its digits, in a file."""
    soft = SoftPolicy(50_000 // 17, 1, choice_temperature=100.0)
    return soft.freeze()


def test_settings_are_given_once():
    with pytest.raises(PolicyError, match=r"is written as randaugment\(n=2, m=9\)"):
        Policy.named("randaugment-2-14", n=3)


def test_what_is_a_name():
    assert all(map(is_name, [*HASHES, "RandAugment-2-14", "randaugment(2,14)", "uniform(ops=['flip'])"]))
    assert not any(map(is_name, ["", "uniform-x4", "runs/a", "randaugment-2", "policy.json"]))


@pytest.mark.parametrize(
    "name", [name for name, of_operations in {**RACED, **RACED_FINE_TUNING}.items() if of_operations]
)
def test_what_can_be_made_of_a_choice_of_operations(name):
    """`general-or-trivial` keeps TrivialAugment's, so it races only where those are among the choice."""
    policy, ops = Policy.named(name, ops=["flip", "rotate", "invert"]), {"flip", "rotate", "invert"}
    assert policy.name == name
    assert (set(policy.ops) == ops) == (name != "general-or-trivial")


def test_general_or_trivial_is_one_half_of_each():
    policy, general, trivial = map(Policy.named, ("general-or-trivial", "general", "trivialaugment-wide"))
    assert [sub.stages for sub in policy.sub_policies] == [
        *(sub.stages for sub in general.sub_policies), *(sub.stages for sub in trivial.sub_policies),
    ]  # fmt: skip
    assert [sub.weight for sub in policy.sub_policies] == [1.0, 1.0]


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(PolicyError, match="is no run folder"):
        load_policy(str(tmp_path))
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(PolicyError, match="has not ended yet"):
        load_policy(str(tmp_path))
    with pytest.raises(PolicyError, match="no known policy of that name: ''"):
        load_policy("")
