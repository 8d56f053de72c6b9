"""Every target through its exporter: pixels against ours, draws against exact binomial bounds, refusals."""

import json
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binom

import fasteraa.export
from fasteraa import Choice, Policy, Span, SubPolicy
from fasteraa.errors import ExportError, ImageError
from fasteraa.export import TARGETS, fidelity, render, report, write
from fasteraa.export.embed import embed
from fasteraa.export.fidelity import COVERAGE, fidelity_of
from fasteraa.ops import OPS, Pair, hard_pillow, op
from fasteraa.ops.tone import tone
from fasteraa.testing import export as runs
from fasteraa.testing.export import FILL, HOLE_FILL, NATIVE, distance, exported_file, single, through
from fasteraa.testing.ops import picture

MAGNITUDES = (0.0, 0.1, 0.37, 0.5, 0.8, 1.0)
CHANCY = ("cutout", "sample_pairing")  # what they do depends on more than magnitude and sign
CASES = [(target, name) for target in runs.RUN for name in OPS]


@pytest.fixture(autouse=True)
def _chance():
    random.seed(7)


@pytest.fixture(params=runs.RUN)
def target(request):
    need(request.param)
    return request.param


def need(target):
    package = runs.PACKAGES[target]
    if package:
        pytest.importorskip(package)


def within(count, n, p):
    """A two-sided exact binomial test at one in ten million."""
    return binom.ppf(5e-8, n, p) <= count <= binom.ppf(1 - 5e-8, n, p)


# --- pixels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "name"), [case for case in CASES if case[1] not in CHANCY])
def test_pixels_are_as_claimed(target, name):
    need(target)
    claim = fidelity_of(name, target)
    if claim.kind == "unsupported":
        with pytest.raises(ExportError, match=f"{target} cannot do the operation {name!r}: "):
            through(target, single(OPS[name], 0.5), [])
        return
    found = distance(target, OPS[name], MAGNITUDES)
    if claim.kind == "exact":
        assert found.largest == 0
    elif claim.kind == "within":
        assert found.largest == claim.levels
    elif target != NATIVE or not albumentations_x():  # the other flavour may be better
        assert claim.levels / 3 < found.average <= claim.levels
        assert found.largest > 2


def albumentations_x():
    from fasteraa.export.albumentations import ALBUMENTATIONS_X

    return ALBUMENTATIONS_X


SPANS = {
    "translate_x": Span(0, 10, "px"),
    "translate_y": Span(0, 12, "px"),
    "rotate": Span(0, 135, "degree"),
    "shear_x": Span(0, 0.99, "slope"),
    "brightness": Span(1, 1.99, "factor"),
    "posterize": Span(8, 0, "bit"),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans_of_the_policy(target, name):
    found = distance(target, OPS[name], (0.3, 0.725, 1.0), {"spans": SPANS})
    if fidelity_of(name, target).kind == "exact" or SPANS[name].unit == "px":
        assert found.largest == 0
    else:
        assert found.average < 20


SOME = [("rotate", 0.61), ("shear_y", 0.61), ("sharpness", 0.61), ("brightness", 0.61), ("translate_y", 1.0)]


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (128, 96), (130, 96), (224, 224), (384, 512)])
def test_other_sizes(target, size):
    """0.45 of 130 is a half pixel. DALI's float32 coordinates hold rotations and shears up to 128 pixels."""
    image = picture("noise", *size)
    for name, magnitude in SOME:
        for sign, turn in (("+", 1.0), ("-", -1.0)):
            if fidelity_of(name, target).kind != "exact":
                continue
            exact = hard_pillow(OPS[name], Image.fromarray(image), magnitude, turn, Pair(None, (0, 0), FILL, HOLE_FILL))
            (out,) = through(target, single(OPS[name], magnitude, sign), [image])
            off = float((np.asarray(exact) != out).mean())
            large = target == "dali" and max(size) > 128 and name in ("rotate", "shear_y")
            assert off < 0.01 if large else off == 0, (name, sign, off)


@pytest.mark.parametrize("name", ["torchvision", "timm", "python", "albumentations"])
def test_grey_and_clear_images(name):
    """One channel, and alpha that follows the geometry alone."""
    need(name)
    grey = Image.fromarray(picture("greyscale", 20, 24))
    for row in OPS.values():
        if row.name in CHANCY:
            continue
        policy = single(row, 0.7, "+" if row.signed else None)
        if name == "albumentations":
            out = Image.fromarray(render(policy, name)(image=np.asarray(grey))["image"])
        elif name == "python":
            out = exported_file(policy, "python")["Augment"]()(grey)
        else:
            out = render(policy, name)(grey)
        exact = hard_pillow(row, grey, 0.7, 1.0, Pair(None, (0, 0), FILL, HOLE_FILL))
        assert out.mode == "L"
        assert out.tobytes() == exact.tobytes(), row.name
        if name == "albumentations":
            continue
        clear = Image.fromarray(picture("noise", 20, 24))
        clear.putalpha(grey)
        augment = exported_file(policy, "python")["Augment"]() if name == "python" else render(policy, name)
        assert augment(clear).tobytes() == policy.transform()(clear).tobytes(), row.name


def test_cutout_paints_what_ours_may_paint(target):
    """The box lies where one of ours could, in our colour, and is cut off at the far border as often."""
    side, many = 20, 600
    image = picture("noise", side, side)
    image[image == HOLE_FILL] += 1
    outs = through(target, single(OPS["cutout"], 0.7), [image] * many)
    length = 0.7 * 0.5 * side
    cut = 0
    for out in outs:
        rows, columns = np.nonzero((out != image).any(2))
        box = out[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (box == HOLE_FILL).all()
        assert (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1) == len(rows)
        if fidelity_of("cutout", target).kind == "exact":
            for first, last in ((rows.min(), rows.max()), (columns.min(), columns.max())):
                assert last == min(side - 1, int(first + length))
        else:
            assert abs(len(rows) - (int(length) + 1) ** 2) <= 2 * length + 1
        cut += int(columns.max() == side - 1 and columns.min() > side - 1 - length)
    if fidelity_of("cutout", target).kind == "exact":
        # the first column is cut(u * side - length / 2); the box loses columns from side - int(length) on
        chance = 1 - (side - int(length) + length / 2) / side
        assert within(cut, many, chance), (cut, many * chance)


def test_a_hole_in_pixels_loses_none(target):
    """A 49th of 49 pixels is a little less than one."""
    policy = single(OPS["cutout"], 1.0, spans={"cutout": Span(0, 1, "px")})
    image = picture("noise", 49, 49)
    image[image == HOLE_FILL] += 1
    if target == NATIVE:
        with pytest.raises(ExportError, match="for the operation 'cutout': export without --native"):
            through(target, policy, [image])
        return
    sides = []
    for out in through(target, policy, [image] * 50):
        rows, columns = np.nonzero((out != image).any(2))
        sides += [len(set(side)) for side in (rows, columns) if side.max() < 48]
    assert len(sides) > 50
    assert set(sides) == {2}  # corners included


def test_sample_pairing_mixes_a_partner(target):
    row = OPS["sample_pairing"]
    image, partner = picture("noise", 12, 12), picture("smooth", 12, 12)
    if fidelity_of(row.name, target).kind == "unsupported":
        with pytest.raises(ExportError, match="sample_pairing"):
            through(target, single(row, 0.5), [image])
        return
    mixed = {
        np.asarray(Image.blend(Image.fromarray(image), Image.fromarray(other), 0.4 * 0.6)).tobytes()
        for other in (image, partner)
    }
    outs = {out.tobytes() for out in through(target, single(row, 0.6), [image] * 40, [partner] * 20)}
    assert outs <= mixed
    assert np.asarray(Image.blend(Image.fromarray(image), Image.fromarray(partner), 0.24)).tobytes() in outs


# --- chance -------------------------------------------------------------------------------------------------------

MIXED = Policy(
    (
        SubPolicy(
            (
                (
                    Choice("invert", 0.5, weight=1.7),
                    Choice("brightness", 1.0, 0.5, 0.4, "random"),
                    Choice("posterize", 0.8, 0.5, 1.1),
                    Choice("flip", 1.0, weight=0.0),
                ),
                (Choice("flip", 0.25),),
            ),
            2.5,
        ),
        SubPolicy(((Choice("solarize", 0.6, 0.5),),), 1.0),
        SubPolicy(((Choice("invert"),),), 0.0),
        SubPolicy((), 0.7),
    )
)
EVEN = Policy(
    (
        SubPolicy(((Choice("brightness", 0.7, 0.5, sign="-"),), (Choice("flip", 0.5),))),
        SubPolicy(((Choice("invert", 0.3),),)),
    )
)


def outcomes(policy, image):
    """Every result that the policy can have on the image, with its chance: worked out by hand, not drawn."""
    found, results = {}, {image.tobytes(): 1.0}
    for share in policy.strength.passes:
        for pixels, chance in results.items():
            found[pixels] = found.get(pixels, 0.0) + share * chance
        after = {}
        for pixels, chance in results.items():
            for result, part in after_a_pass(policy, np.frombuffer(pixels, np.uint8).reshape(image.shape)).items():
                after[result] = after.get(result, 0.0) + chance * part
        results = after
    return {pixels: chance for pixels, chance in found.items() if chance > 0}


def after_a_pass(policy, image):
    found = {}
    total = sum(sub.weight for sub in policy.sub_policies)
    for sub in policy.sub_policies:
        results = {image.tobytes(): sub.weight / total}
        for stage in sub.stages:
            after = {}
            weights = sum(choice.weight for choice in stage)
            for pixels, chance in results.items():
                for choice in stage:
                    share = chance * choice.weight / weights
                    for result, part in applied(policy, choice, pixels, image):
                        after[result] = after.get(result, 0.0) + share * part
            results = after
        for pixels, chance in results.items():
            found[pixels] = found.get(pixels, 0.0) + chance
    return {pixels: chance for pixels, chance in found.items() if chance > 0}


def applied(policy, choice, pixels, like):
    row, strength = OPS[choice.op], policy.strength
    probability = min(1.0, choice.probability * strength.probability)
    magnitude = min(1.0, choice.range[0] * strength.magnitude)
    yield pixels, 1 - probability
    signs = {"random": (1.0, -1.0), "+": (1.0,), "-": (-1.0,), None: (1.0,)}[choice.sign]
    picture_ = Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(like.shape))
    for sign in signs:
        pair = Pair(None, (0.5, 0.5), policy.fill, policy.hole_fill)
        out = hard_pillow(row, picture_, magnitude, sign, pair, policy.spans)
        yield np.asarray(out).tobytes(), probability / len(signs)


@pytest.mark.parametrize("policy", [MIXED, EVEN], ids=["mixed", "even"])
def test_frequencies(target, policy):
    """Weights of sub-policies, choices within a stage, gates and signs."""
    image, many = picture("noise", 6, 5), 2000
    expected = outcomes(policy, image)
    seen = [out.tobytes() for out in through(target, policy, [image] * many)]
    assert set(seen) <= set(expected)
    for pixels, chance in expected.items():
        assert within(seen.count(pixels), many, chance), (seen.count(pixels), many * chance)


A_PIXEL = Policy((SubPolicy(((Choice("translate_x", 1.0, 1.0, sign="+"),),)),), spans={"translate_x": Span(0, 1, "px")})
STRONG = {
    "counted": (A_PIXEL, {"passes": (0.2, 0.3, 0.0, 0.5)}),  # the image tells how many passes
    "shares": (EVEN, {"passes": (0.2, 0.3, 0.5)}),
    "scales": (MIXED, {"magnitude": 0.6, "probability": 1.3}),
    "all": (MIXED, {"passes": (0.2, 0.3, 0.5), "magnitude": 1.7, "probability": 0.7}),
    "three": (Policy((SubPolicy(((Choice("flip", 0.5),), (Choice("invert", 0.3),))),)), {"passes": 3}),
    "none": (EVEN, {"passes": 0}),
    "never": (EVEN, {"passes": 2, "probability": 0.0}),
}


@pytest.mark.parametrize("case", STRONG)
def test_strengths(target, case):
    """How many passes, and the two scales: every result comes as often as worked out by hand."""
    policy, strength = STRONG[case]
    policy = policy.with_strength(**strength)
    image, many = picture("noise", 6, 5), 1500
    expected = outcomes(policy, image)
    assert sum(expected.values()) == pytest.approx(1)
    seen = [out.tobytes() for out in through(target, policy, [image] * many)]
    assert set(seen) <= set(expected)
    for pixels, chance in expected.items():
        assert within(seen.count(pixels), many, chance), (seen.count(pixels), many * chance)


def test_strengths_are_said_and_written(tmp_path):
    policy = EVEN.with_strength((0.2, 0.3, 0.5), probability=0.5)
    assert report(policy, "python")[-1] == (
        "strength: 20% of images pass through no sub-policy, 30% through 1, 50% through 2; probabilities x0.5"
    )
    assert report(EVEN.with_strength(0), "dali") == ["strength: every image passes through no sub-policy"]
    for name in ("torchvision", "timm", "kornia", "dali", "keras"):
        package = TARGETS[name]
        if package is None or not fasteraa.export._missing(package):
            assert exported_file(policy, name)["POLICY"] == policy


def test_no_pool_is_asked_for_what_never_happens():
    image = picture("noise", 6, 5)
    for strength in ({"passes": 0}, {"probability": 0.0}):
        policy = single(OPS["sample_pairing"], 0.5).with_strength(**strength)
        for name in ("torchvision", "python", "dali", NATIVE):
            package = runs.PACKAGES[name]
            if package is None or not fasteraa.export._missing(package):
                assert (through(name, policy, [image])[0] == image).all()


def ranged(name, magnitude=(0.0, 1.0), sign=None, spans=None):
    choice = Choice(name, 1.0, magnitude, sign=sign)
    return Policy((SubPolicy(((choice,),)),), spans=spans or {})


def test_ranges_are_drawn_evenly(target):
    """Factors of brightness on a flat image are read off its level."""
    many = 1500
    outs = through(target, ranged("brightness", (0.2, 0.8), "random"), [np.full((2, 2, 3), 100, np.uint8)] * many)
    strength = np.array([abs(float(out[0, 0, 0]) + 0.5 - 100) / 90 for out in outs])
    assert strength.min() >= 0.18
    assert strength.max() <= 0.82
    assert within(int(sum(out[0, 0, 0] > 100 for out in outs)), many, 0.5)
    for low, high in pairwise((0.2, 0.3, 0.5, 0.75)):
        # one level is 1/90 of a magnitude: count whole levels and compare with their share
        levels = [k for k in range(1, 90) if low < (k - 1) / 90 and (k + 1) / 90 < high]
        hits = sum(int(np.ceil(abs(float(out[0, 0, 0]) - 100))) in levels for out in outs)
        assert within(hits, many, len(levels) / 90 / 0.6) or within(hits, many, (len(levels) + 0.5) / 90 / 0.6)


def test_whole_numbers_of_a_range(target):
    """Bits, thresholds and pixels, which are whole, come with the shares that rounding leaves them."""
    many = 1500
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.stack([ramp] * 3, 2)
    bits = [len(np.unique(out)) for out in through(target, ranged("posterize"), [image] * many)]
    for kept in (4, 5, 6, 7):
        assert within(bits.count(2**kept), many, 0.25), (kept, bits.count(2**kept))
    inverted = [int((out[..., 0] != ramp).sum()) for out in through(target, ranged("solarize"), [image] * many)]
    for low, high in ((0, 64), (64, 200), (200, 257)):
        assert within(sum(low <= count < high for count in inverted), many, (high - low - (high > 256)) / 256)
    policy = ranged("translate_x", sign="random", spans={"translate_x": Span(0, 3, "px")})
    image[:] = np.arange(16, dtype=np.uint8)[None, :, None] + 1
    moved = [int(out[8, 8, 0]) - 9 for out in through(target, policy, [image] * many)]
    for shift, chance in {-3: 1 / 12, -2: 1 / 6, -1: 1 / 6, 0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 3: 1 / 12}.items():
        assert within(moved.count(shift), many, chance), (shift, moved.count(shift))


@pytest.mark.parametrize("name", ["trivialaugment-wide", "autoaugment-cifar10", "randaugment(2,9)", "none"])
def test_named_policies(target, name):
    image = picture("noise", 32, 32)
    outs = through(target, Policy.named(name), [image] * 12)
    assert all(out.shape == image.shape and out.dtype == np.uint8 for out in outs)
    assert (len({out.tobytes() for out in outs}) > 3) == (name != "none")
    if name == "none":
        assert all((out == image).all() for out in outs)


def test_the_general_policy(target):
    """It pairs samples: targets either have images to mix in, or refuse it by name."""
    image, policy = picture("noise", 32, 32), Policy.named("general")
    if fidelity_of("sample_pairing", target).kind == "unsupported":
        with pytest.raises(ExportError, match="sample_pairing"):
            through(target, policy, [image] * 12, pool=[image])
        return
    outs = through(target, policy, [image] * 12, pool=[picture("smooth", 32, 32)])
    assert len({out.tobytes() for out in outs}) > 3


@pytest.mark.parametrize("name", ["timm", "python"])
def test_seeds_of_random(name):
    need(name)
    policy, image = Policy.named("trivialaugment-wide"), picture("noise", 16, 16)
    found = []
    for seed in (3, 3, 4):
        random.seed(seed)
        found.append(np.stack(through(name, policy, [image] * 10)))
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).any()


# --- files and what goes with them ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torchvision", "timm", "kornia", "dali", "keras"])
def test_files_make_the_object(name):
    need(name)
    policy = Policy(MIXED.sub_policies, 'a "quoted"\\ näme\n"""', provenance={"by": "'''\"\"\""})
    names = exported_file(policy, name)
    assert names["POLICY"] == policy
    made = names["make"]()
    assert type(made) is type(render(policy, name))


def test_python_file_needs_pillow_alone(tmp_path):
    write(Policy.named("trivialaugment-wide"), "python", tmp_path / "found.py")
    code = (
        "import sys\n"
        "for name in ('fasteraa', 'torch', 'torchvision', 'numpy'): sys.modules[name] = None\n"
        "from PIL import Image\nimport found\n"
        "augment = found.Augment()\n"
        "print(*(augment(Image.new('RGB', (9, 7), (40, 90, 200))).size for _ in range(50)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("(")[1:] == ["9, 7) "] * 49 + ["9, 7)\n"]
    with pytest.raises(ValueError, match="modes L, RGB, LA, RGBA, got 'P'"):
        exported_file(MIXED, "python")["Augment"]()(Image.new("P", (3, 3)))


def test_json_is_the_policy(tmp_path):
    write(MIXED, "json", tmp_path / "a.json")
    assert Policy.load(tmp_path / "a.json") == MIXED
    assert render(MIXED, "json") == MIXED.to_json()


def test_timm_does_its_own_pixels(monkeypatch):
    names = pytest.importorskip("timm.data.auto_augment").NAME_TO_OP
    image = Image.fromarray(picture("noise", 6, 6))
    asked = []
    for name, function in list(names.items()):
        monkeypatch.setitem(
            names, name, lambda *a, name=name, function=function, **k: asked.append(name) or function(*a, **k)
        )
    for name, row in OPS.items():
        asked.clear()
        single(row, 0.5).to_timm(pool=[image])(image)
        native = fidelity_of(name, "timm").note == ""
        assert [asked_.lower().replace("rel", "").replace("original", "") for asked_ in asked] == (
            [name.replace("_", "")] if native else []
        )


def test_timm_pipelines():
    create = pytest.importorskip("timm.data.transforms_factory").create_transform
    image = Image.fromarray(picture("noise", 40, 40))
    augment = MIXED.to_timm()
    assert pickle.loads(pickle.dumps(augment)).policy == MIXED
    for arguments in ({}, {"use_prefetcher": True}, {"re_prob": 0.5}):
        plain = create(32, is_training=True, auto_augment=None, color_jitter=None, **arguments)
        whole = MIXED.to_timm(create(32, is_training=True, auto_augment=None, color_jitter=None, **arguments))
        kinds = [type(step).__name__ for step in whole.transforms]
        place = kinds.index("PolicyAugment")
        assert kinds[:place] + kinds[place + 1 :] == [type(step).__name__ for step in plain.transforms]
        assert isinstance(whole.transforms[place - 1](image), Image.Image)
        assert tuple(whole(image).shape) == (3, 32, 32)
    parts = MIXED.to_timm(create(32, is_training=True, auto_augment=None, color_jitter=None, separate=True))
    assert [type(step).__name__ for step in parts[1].transforms] == ["PolicyAugment"]
    with pytest.raises(ExportError, match="conversion to a tensor"):
        MIXED.to_timm(type(plain)([]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves files open
def test_timm_loaders(tmp_path):
    """create_loader replaces the transform of its data set; put in afterwards, the policy is what images go through."""
    data = pytest.importorskip("timm.data")
    (tmp_path / "train" / "a").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (9, 9), (200, 0, 0)).save(tmp_path / "train" / "a" / f"{number}.png")
    loader = data.create_loader(
        data.create_dataset("folder", root=str(tmp_path), split="train"),
        input_size=(3, 8, 8), batch_size=4, is_training=True, color_jitter=None, num_workers=0, use_prefetcher=False,
        device=torch.device("cpu"), mean=(0.0,) * 3, std=(1.0,) * 3, persistent_workers=False,
    )  # fmt: skip
    loader.dataset.transform = single(OPS["invert"]).to_timm(loader.dataset.transform)
    ((images, _),) = loader
    levels = (images * 255).round()
    assert levels.amin((0, 2, 3)).tolist() == levels.amax((0, 2, 3)).tolist() == [55, 255, 255]


def test_kornia_with_one_draw_for_a_batch_an_empty_one_and_a_wrong_one():
    K = pytest.importorskip("kornia.augmentation")
    augmentation = Policy.named("trivialaugment-wide").to_kornia()
    images = torch.rand(1, 3, 9, 9).expand(12, -1, -1, -1)
    same = K.AugmentationSequential(augmentation, data_keys=["input"], same_on_batch=True)
    assert all(len(same(images).unique(dim=0)) == 1 for _ in range(5))
    assert K.AugmentationSequential(augmentation, data_keys=["input"])(images[:0]).shape == (0, 3, 9, 9)
    with pytest.raises(ImageError, match="1 or 3 channels, got 4"):
        augmentation(torch.rand(2, 4, 9, 9))


def test_options_that_a_target_does_not_have(tmp_path):
    with pytest.raises(ExportError, match="'torchvision' has no option 'colour' here: it has pool, mask_fill"):
        render(MIXED, "torchvision", colour=3)
    with pytest.raises(ExportError, match="'python' has no option 'pool' here: it has none"):
        write(MIXED, "python", tmp_path / "p.py", pool=[])
    assert not list(tmp_path.iterdir())
    need("timm")
    with pytest.raises(ExportError, match="must be what create_transform makes, got a list"):
        MIXED.to_timm([1, 2])


@pytest.mark.parametrize("name", ["torchvision", "timm", "albumentations", "python"])
def test_without_a_pool_images_are_paired_with_those_before(name):
    need(name)
    always = Policy((SubPolicy(((Choice("sample_pairing", 1.0, 1.0),),)),))
    dark, bright = np.full((5, 6, 3), 10, np.uint8), np.full((8, 7, 3), 200, np.uint8)
    first, *others = through(name, always, [dark] + [bright] * 30)
    assert (first == dark).all()
    assert {int(other.mean()) for other in others} == {200, 124}
    assert all((other == bright).all() for other in through(name, always, [dark] + [bright] * 90)[65:])


@pytest.mark.parametrize(
    "name", ["POLICY: dict = {}", "a\x00b", "\x1b[31mred", "TITLE", '"""\\', "\ud800", "a\nb\u202e"]
)
def test_python_files_with_names_that_are_none(name):
    policy = replace(MIXED, name=name)
    for target in ("python", "torchvision"):
        text = exported_text(policy, target)
        assert text.isascii()
        assert all(char.isprintable() or char == "\n" for char in text)
    assert exported_file(policy, "python")["POLICY"]["parts"]
    assert exported_file(policy, "torchvision")["POLICY"] == policy


def exported_text(policy, target):
    return fasteraa.export.render(policy, "python") if target == "python" else embed(policy, target, "")


def test_kornia_containers_move_masks_boxes_and_points():
    K = pytest.importorskip("kornia.augmentation")
    images = torch.zeros(40, 3, 24, 20)
    images[:, :, 6:12, 4:9] = 1.0
    policy = Policy(
        (SubPolicy(((Choice("translate_x", 1.0, 0.6),), (Choice("flip", 0.5),), (Choice("invert", 0.5),))),)
    )
    sequence = K.AugmentationSequential(policy.to_kornia(), data_keys=["input", "mask", "bbox_xyxy", "keypoints"])
    boxes = torch.tensor([[[4.0, 6.0, 8.0, 11.0]]]).expand(40, 1, 4)  # kornia moves the centres of pixels
    points = torch.tensor([[[4.0, 6.0]]]).expand(40, 1, 2)
    out, masks, moved, places = sequence(images, images[:, :1].clone(), boxes, points)
    inverted = out[:, 0, 0, 0] == 1
    assert 5 < int(inverted.sum()) < 35
    shown = torch.where(inverted[:, None, None], 1 - out[:, 0], out[:, 0])
    assert torch.equal(shown, masks[:, 0])
    for mask, box, place in zip(masks[:, 0], moved[:, 0], places[:, 0], strict=True):
        columns = mask.any(0).nonzero().flatten()
        if len(columns) == 5:  # all of it is still there
            assert [float(columns.min()), float(columns.max())] == [float(box[0]), float(box[2])]
            assert float(place[0]) in (int(columns.min()), int(columns.max()))
    assert {float(place[0, 0]) for place in places} == {-1.0, 20.0, 9.0, 10.0}  # 5 to either side, flipped or not
    assert K.ImageSequential(policy.to_kornia())(images).shape == images.shape


@pytest.mark.gpu
def test_batches_on_a_gpu():
    need("kornia")
    images = torch.from_numpy(np.stack([picture("noise", 24, 20, seed) for seed in range(64)])).permute(0, 3, 1, 2)
    module = Policy.named("trivialaugment-wide").to_kornia()
    numbers = torch.rand(64, module._current.plan.width, dtype=torch.float64)
    cpu, gpu = (module(images.to(device) / 255, params={"uniform": numbers}) for device in ("cpu", "cuda"))
    assert torch.equal((cpu * 255).round(), (gpu * 255).round().cpu())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_keras_layer_in_a_model(tmp_path):
    keras = pytest.importorskip("keras")
    images = np.stack([picture("noise", 8, 8, seed) for seed in range(4)])
    layer = EVEN.to_keras(seed=1)
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert again.policy == EVEN
    assert torch.equal(layer(images), again(images))  # the seed goes with it
    assert torch.equal(layer(images, training=False), torch.from_numpy(images))
    floats = EVEN.to_keras(value_range=(0, 1), seed=1)(images.astype("float32") / 255)
    assert torch.equal((floats * 255).round().to(torch.uint8), EVEN.to_keras(seed=1)(images))
    assert layer(images[0]).shape == (8, 8, 3)
    still = Policy.named("none").to_keras(value_range=(-1, 1))  # every level comes back
    levels = torch.arange(256).reshape(1, 16, 16, 1) / 255 * 2 - 1
    assert torch.allclose(still(levels), levels, atol=1e-6)
    model = keras.Sequential([keras.Input((8, 8, 3)), layer, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(images.astype("float32"), np.zeros((4, 2)), verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").layers[0].policy == EVEN
    with pytest.raises(ImageError, match="1 or 3 channels"):
        layer(np.zeros((2, 8, 8, 4), np.uint8))


def test_keras_backends(monkeypatch):
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ExportError, match=r"needs the torch backend .* got 'jax'"):
        EVEN.to_keras()


# --- albumentations -----------------------------------------------------------------------------------------------


class Levels(torch.utils.data.Dataset):
    """What a policy makes of the level 100."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return int(self.transform(image=np.full((2, 2, 3), 100, np.uint8))["image"][0, 0, 0])


def test_albumentations_in_the_workers_of_a_loader():
    """2.0.8 draws alike in all workers, and in every epoch; a seeded loader repeats itself."""
    A = pytest.importorskip("albumentations")
    policy = Policy((SubPolicy(((Choice("brightness", 1.0, (0.0, 1.0)),),)),))

    def epochs():
        transform = A.Compose([policy.to_albumentations()], seed=5)
        loader = torch.utils.data.DataLoader(
            Levels(transform),
            batch_size=20,
            num_workers=2,
            multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(3),
        )
        return [tuple(batch.tolist()) for _ in range(2) for batch in loader]

    seen = epochs()
    assert len(set(seen)) == 4
    assert epochs() == seen


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("native", [False, True])
def test_albumentations_files(tmp_path, suffix, native):
    A = pytest.importorskip("albumentations")
    path = tmp_path / f"policy.{suffix}"
    write(MIXED, "albumentations", path, native=native)
    if native:  # loads without us
        code = (
            "import sys, warnings; warnings.simplefilter('error'); sys.modules['fasteraa'] = None\n"
            f"import albumentations as A; print(len(A.load({str(path)!r}, data_format={suffix!r}).transforms))"
        )
        environment = {"NO_ALBUMENTATIONS_UPDATE": "1", "ALBUMENTATIONS_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        assert done.stdout.strip() == "3", done.stderr
    loaded = A.load(path, data_format=suffix)
    image, many = picture("noise", 6, 5), 1000
    expected = outcomes(MIXED, image)
    runs.seed_apart(loaded, count(1))
    seen = [loaded(image=image)["image"].tobytes() for _ in range(many)]
    assert set(seen) <= set(expected)
    assert all(within(seen.count(pixels), many, chance) for pixels, chance in expected.items())
    with pytest.raises(ExportError, match=r"must end in \.json, \.yaml or \.yml, got 'a\.txt'"):
        write(MIXED, "albumentations", tmp_path / "a.txt", native=native)


def test_albumentations_masks_boxes_and_points():
    A = pytest.importorskip("albumentations")
    policy = Policy((SubPolicy(((Choice("rotate", 0.8, 0.5),), (Choice("flip", 0.5),), (Choice("invert", 0.5),))),))
    image = np.zeros((40, 44, 3), np.uint8)
    image[12:20, 14:22] = 255
    compose = A.Compose(
        [policy.to_albumentations()],
        bbox_params=A.BboxParams("pascal_voc", label_fields=["names"]),
        keypoint_params=A.KeypointParams("xy"),
        seed=1,
    )
    for _ in range(30):
        out = compose(
            image=image, mask=image[..., 0].copy(), bboxes=[[14, 12, 22, 20]], names=[1], keypoints=[(17.5, 15.5)]
        )
        plain = 255 - out["image"][..., 0] if out["image"][20, 0, 0] == 255 else out["image"][..., 0]
        turned_in = (plain != out["mask"]).mean()  # rotation fills with black, which is white after the inversion
        assert turned_in == 0 or (out["image"][20, 0, 0] == 255 and turned_in < 0.2)
        rows, columns = np.nonzero(out["mask"])
        x1, y1, x2, y2 = out["bboxes"][0]
        assert [x1, y1, x2, y2] == pytest.approx(
            [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], abs=1.01
        )
        assert out["keypoints"][0] == pytest.approx([columns.mean(), rows.mean()], abs=0.3)


def test_albumentations_wants_levels():
    pytest.importorskip("albumentations")
    with pytest.raises(ImageError, match=r"got float32 \(4, 4, 3\): put it before A\.Normalize"):
        MIXED.to_albumentations()(image=np.zeros((4, 4, 3), np.float32))


def test_native_tree_is_refused_on_a_warning(monkeypatch):
    """Another flavour takes unknown names with a warning and then uses its defaults."""
    A = pytest.importorskip("albumentations")
    from fasteraa.export import albumentations as exporter

    monkeypatch.setitem(
        exporter._NATIVE, "flip", lambda *_: iter([(1.0, lambda p: A.HorizontalFlip(p=p, limit_of_old=(1, 2)))])
    )
    with pytest.raises(ExportError, match=r"would load the tree with a warning: .*limit_of_old"):
        EVEN.to_albumentations(native=True)
    monkeypatch.setattr(A, "HorizontalFlip", A.Rotate)
    monkeypatch.setitem(exporter._NATIVE, "flip", exporter._plain("HorizontalFlip", nothing__or__nobody=1))
    with pytest.raises(ExportError, match="cannot take the operation 'flip'"):
        EVEN.to_albumentations(native=True)


def sharpened(v):
    """The native tree for a single factor of sharpness below 1."""
    choice = Choice("sharpness", 1.0, 1.0, sign="+")
    return Policy((SubPolicy(((choice,),)),), spans={"sharpness": Span(1, v, "factor")}).to_albumentations(native=True)


def test_the_ends_of_a_native_blur():
    pytest.importorskip("albumentations")
    image = picture("noise", 12, 12)
    mean = sharpened(-0.4444)(image=image)["image"][5, 5].astype(float)
    assert np.abs(mean - image[4:7, 4:7].mean((0, 1))).max() < 3  # the widest kernel of three pixels
    assert (sharpened(1 - 2**-53)(image=image)["image"] == image).all()  # too little to be a blur
    for v in (-0.45, -1, -3):
        with pytest.raises(ExportError, match=f"'sharpness' by {v:g} does .*: export without --native"):
            sharpened(v)


def test_native_holes():
    """All of the image is a hole at 1; a grey fill suits one channel, too."""
    pytest.importorskip("albumentations")
    policy = replace(single(OPS["cutout"], 1.0, spans={"cutout": Span(0, 1, "width")}), hole_fill=(7, 7, 7))
    for image in (picture("noise", 40, 40), picture("greyscale", 40, 40), picture("greyscale", 40, 40)[..., None]):
        out = policy.to_albumentations(native=True)(image=image)["image"]
        assert out.shape == image.shape
        assert (out == 7).mean() > 0.9
    few = Policy((SubPolicy(((Choice("cutout", 1.0, (0.0, 0.5)),),)),), spans={"cutout": Span(0, 8, "px")})
    with pytest.raises(ExportError, match=r"no hole in pixels .* for the operation 'cutout': export without --native"):
        few.to_albumentations(native=True)  # it would take four pixels for all of the side


def test_values_a_native_transform_cannot_take():
    pytest.importorskip("albumentations")
    policy = single(OPS["brightness"], 1.0, "-", spans={"brightness": Span(1, 2.5, "factor")})  # below 0
    with pytest.raises(ExportError, match=r"refuses .* for the operation 'brightness': export without --native"):
        policy.to_albumentations(native=True)


# --- coverage and refusals ----------------------------------------------------------------------------------------


def test_every_target_is_declared_tested_and_a_method():
    assert {target.split()[0] for target in COVERAGE} == set(TARGETS)
    assert set(runs.RUN) == set(COVERAGE) - {"json"}
    for target in TARGETS:
        assert callable(getattr(Policy, f"to_{target}"))


def test_an_added_operation(monkeypatch):
    """One row more: exact where our code runs, refused by name elsewhere."""
    monkeypatch.setattr("fasteraa.ops.declare.OPS", OPS)

    def darken(xp, level, v):
        """Subtract."""
        return level - v, 1.0

    row = op(tone, Span(0, 99, "level"), pillow=lambda image, v, _: image.point(lambda x: max(0, int(x - v))))(darken)
    try:
        policy = single(row, 0.6)
        image = picture("noise", 9, 8)
        exact = np.asarray(row.pillow(Image.fromarray(image), 0.6 * 99, None))
        for target in runs.RUN:
            package = runs.PACKAGES[target]
            if package and fasteraa.export._missing(package):
                continue
            if fidelity_of("darken", target).kind == "unsupported":
                with pytest.raises(ExportError, match="cannot do the operation 'darken': "):
                    through(target, policy, [image])
            else:
                (out,) = through(target, policy, [image])
                assert (out == exact).all(), target
    finally:
        del OPS["darken"]


# --- schedules ---------------------------------------------------------------------------------------------------


def followers(policy):
    """A function of an array for each target that can follow a training, with its `set_epoch`."""
    augment = {name: render(policy, name) for name in ("torchvision", "timm", "albumentations", "kornia", "keras")}
    augment["python"] = exported_file(policy, "python")["Augment"]()
    by_pillow = {name: lambda image, name=name: np.asarray(augment[name](Image.fromarray(image))) for name in augment}
    special = {
        "albumentations": lambda image: augment["albumentations"](image=image)["image"],
        "kornia": lambda image: (
            (augment["kornia"](torch.from_numpy(image).permute(2, 0, 1)[None] / 255)[0] * 255).round().permute(1, 2, 0)
        ),
        "keras": lambda image: augment["keras"](image, training=True).cpu(),
    }
    return {name: (augment[name].set_epoch, {**by_pillow, **special}[name]) for name in augment}


@pytest.mark.filterwarnings("ignore:the policy 'policy' has a schedule")
def test_targets_follow_a_schedule():
    for name in ("timm", "albumentations", "kornia", "keras"):
        need(name)
    policy = Policy((SubPolicy((), during=(0, 0.5)), SubPolicy(((Choice("invert"),),), during=(0.5, 1))))
    image = picture("noise", 9, 8)
    for name, (set_epoch, augment) in followers(policy).items():
        assert (np.asarray(augment(image)) == 255 - image).all(), name  # not told: the last part
        for epoch, expected in ((1, image), (2, 255 - image), (0, image), (9, 255 - image)):
            set_epoch(epoch, 4)
            assert (np.asarray(augment(image)) == expected).all(), (name, epoch)
    assert Policy.from_json(render(policy, "json")) == policy


def test_targets_that_cannot_follow_a_schedule_say_why(tmp_path):
    policy = Policy((SubPolicy((), during=(0, 0.5)), SubPolicy(((Choice("invert"),),), during=(0.5, 1))))
    for target, options in (("dali", {}), ("albumentations", {"native": True})):
        with pytest.raises(ExportError, match=r"cannot follow the schedule of the policy: .*; or export policy\.flatt"):
            report(policy, target, **options)
        assert report(policy.flattened(), target, **options)[0] == "invert: exact"
    need("albumentations")
    with pytest.raises(ExportError, match="albumentations --native cannot follow the schedule"):
        write(policy, "albumentations", tmp_path / "p.json", native=True)


def test_reports(caplog):
    lines = report(MIXED, "albumentations", native=True)
    assert "seed" in lines.pop()
    assert lines == ["invert: exact", "brightness: exact", "posterize: exact", "flip: exact", "solarize: exact"]
    assert report(single(OPS["color"], 0.5), "albumentations", native=True)[:-1] == ["color: within 2 levels"]
    assert report(single(OPS["cutout"], 0.5), "timm") == ["cutout: exact (by fasteraa)"]
    never = Policy(
        (
            SubPolicy(((Choice("sample_pairing", 0.0, 0.5), Choice("flip")),)),
            SubPolicy(((Choice("sample_pairing", 1.0, 0.5),),), 0.0),
        )
    )
    assert report(never, "dali") == ["flip: exact"]  # what never happens does not matter
    caplog.set_level("INFO", "fasteraa.export")
    single(OPS["color"], 0.5).to_python()
    assert caplog.messages == ["python: color: exact"]


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ExportError, match=r"unknown target 'tim': did you mean 'timm'\?"):
        report(MIXED, "tim")
    with pytest.raises(ExportError, match="unknown target 'tim'"):
        MIXED.export("tim")
    with pytest.raises(ExportError, match="only albumentations has a native form, got the target 'timm'"):
        report(MIXED, "timm", native=True)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="could not be written: a part of its path is a file, not a folder"):
        write(MIXED, "json", tmp_path / "file" / "a.json")
    for name in ["kornia", *(name for name in sys.modules if name.startswith("kornia."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "fasteraa.export.kornia", raising=False)
    with pytest.raises(ExportError, match=r"needs the package kornia.*pip install 'fasteraa\[kornia\]'"):
        MIXED.to_kornia()


def test_folders_on_the_way_are_made(tmp_path):
    write(MIXED, "json", tmp_path / "new" / "a.json")
    assert Policy.load(tmp_path / "new" / "a.json") == MIXED


def test_command_line(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "fasteraa", "export", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    MIXED.save(tmp_path / "policy.json")
    done = run("policy.json", "--to", "python", "--out", "found.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"the same pixels: {', '.join(MIXED.ops)}", "found.py"]
    assert "class Augment" in (tmp_path / "found.py").read_text()
    Policy.named("uniform").save(tmp_path / "uniform.json")
    done = run("uniform.json", "--to", "albumentations", "--native", "--out", "tree.json")
    assert done.returncode == 2
    assert done.stderr == (
        "fasteraa: albumentations --native cannot do the operation 'sample_pairing': export without --native; or leave "
        "it out: --without sample_pairing\n"
    )
    assert not (tmp_path / "tree.json").exists()
    done = run("uniform.json", "--to", "dali", "--out", "pipe.py")
    assert done.stderr == (
        "fasteraa: dali cannot do the operation 'sample_pairing': there is no second image; or leave it out: --without "
        "sample_pairing\n"
    )
    done = run("uniform.json", "--to", "albumentations", "--native", "--without", "sample_pairing", "-o", "tree.json")
    assert done.returncode == 0, done.stderr
    assert "sample_pairing" not in done.stdout
    (tmp_path / "tree.json").unlink()
    done = run("policy.json", "--to", "json", "--out", "copy.json")
    assert json.loads((tmp_path / "copy.json").read_text())["hash"] == MIXED.hash


def test_unsupported_notes_say_what_to_do():
    for coverage in COVERAGE.values():
        for claim in (*coverage.ops.values(), coverage.others):
            assert isinstance(claim, fidelity.Fidelity)
            assert claim.note or claim.kind in ("exact", "within")
