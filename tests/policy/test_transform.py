"""Applying a policy: every kind of input, batches with a draw per image, loader workers, and bad input."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from fasteraa.errors import ImageError
from fasteraa.images import to_array, to_pillow, to_tensor
from fasteraa.ops import OPS, Context, hard
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.apply import apply_draw, apply_pillow, augment
from fasteraa.policy.draw import plan_of
from fasteraa.testing.ops import picture

MIXED = Policy.named("autoaugment-cifar10")
EVERYTHING = Policy.named("uniform", operation_count=3)


def single(op, magnitude=0.7, sign=None, **settings):
    row = OPS[op]
    sign = (sign or "+") if row.signed else None
    return Policy((SubPolicy(((Choice(op, 1.0, magnitude if row.span else None, sign=sign),),)),), **settings)


def batch(count=8, height=20, width=24):
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


# --- the same result whatever the container ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MIXED, EVERYTHING], ids=["autoaugment", "uniform"])
def test_batch_equals_pillow_image_by_image(policy):
    images, pool = batch(64), batch(5)
    plan = plan_of(policy)
    uniform = torch.rand(64, plan.width, dtype=torch.float64)
    out = apply_draw(policy, plan, images, plan.decode(uniform), pool)
    changed = 0
    for index, numbers in enumerate(uniform.tolist()):
        deeds = plan.decode_one(numbers)
        partner = lambda deed, _: to_pillow(pool[int(deed.partner * len(pool))])  # noqa: E731
        one = apply_pillow(policy, to_pillow(images[index]), deeds, partner)
        assert torch.equal(to_tensor(one), out[index]), deeds
        changed += not torch.equal(out[index], images[index])
    assert changed > 20


@pytest.mark.parametrize("policy", [MIXED, EVERYTHING], ids=["autoaugment", "uniform"])
def test_containers_agree(policy):
    image, pool = batch(1)[0], batch(3)
    transform = policy.transform(pool=pool)
    for seed in range(30):
        results = []
        for given in (
            image,
            tv_tensors.Image(image),
            to_pillow(image),
            image.permute(1, 2, 0).numpy(),
            image[None],
            tv_tensors.Video(image[None]),
        ):
            torch.manual_seed(seed)
            results.append(transform(given))
        assert [type(result).__name__ for result in results] == [
            "Tensor",
            "Image",
            "Image",
            "ndarray",
            "Tensor",
            "Video",
        ]
        tensor, tv_image, pillow, array, one_batch, video = results
        for other in (tv_image, to_tensor(pillow), torch.from_numpy(array).permute(2, 0, 1), one_batch[0], video[0]):
            assert torch.equal(torch.as_tensor(other), tensor)


def test_every_image_of_a_batch_draws_for_itself():
    images = batch(1).expand(64, -1, -1, -1)
    out = MIXED(images)
    assert len({image.numpy().tobytes() for image in out}) > 20
    assert len({image.numpy().tobytes() for image in MIXED.transform()(images)}) > 20


def test_frames_of_a_video_share_a_draw():
    frame = batch(1)[0]
    video = tv_tensors.Video(frame.expand(6, -1, -1, -1).clone())
    for seed in range(10):
        torch.manual_seed(seed)
        out = MIXED.transform()(video)
        assert all(torch.equal(out[0], other) for other in out)
    clips = tv_tensors.Video(frame.expand(16, 2, -1, -1, -1).clone())
    out = MIXED.transform()(clips)
    assert torch.equal(out[:, 0], out[:, 1])
    assert len({clip.numpy().tobytes() for clip in out}) > 5


def test_reproducible_from_a_seed_and_input_untouched():
    images = batch()
    before = images.clone()
    one, two, other = (MIXED(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(images, before)
    transform = MIXED.transform()
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append([transform(to_pillow(image)).tobytes() for image in images])
    assert results[0] == results[1]


def test_empty_batch_comes_back():
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    assert MIXED(empty) is empty
    assert MIXED.transform()(empty).shape == (0, 3, 8, 8)


# --- what goes with images --------------------------------------------------------------------------------------

GEOMETRIC = [name for name, row in OPS.items() if row.geometric]
COLOUR = [name for name, row in OPS.items() if not row.geometric]


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_masks_follow_pixel_by_pixel(op, sign):
    image = batch(1)[0]
    mask = tv_tensors.Mask((image.long().sum(0) % 7) + 300)  # labels above 255, and none is 0
    image_of_mask = torch.stack([(mask % 256).to(torch.uint8)] * 3)
    sample = {"image": tv_tensors.Image(image_of_mask), "mask": mask, "label": 3}
    out = single(op, sign=sign).transform()(sample)
    assert out["label"] == 3
    assert out["mask"].dtype == mask.dtype
    inside = out["mask"] != 0
    assert torch.equal((out["mask"] % 256).to(torch.uint8)[inside], out["image"][0][inside])
    assert (out["image"][0][~inside] == 0).all()
    assert not torch.equal(out["mask"], mask)


@pytest.mark.parametrize("op", COLOUR)
def test_colour_moves_nothing(op):
    image = batch(1)[0]
    mask = tv_tensors.Mask(torch.randint(0, 5, (20, 24)))
    boxes = tv_tensors.BoundingBoxes([[1.0, 2.0, 9.0, 8.0]], format="XYXY", canvas_size=(20, 24))
    points = tv_tensors.KeyPoints([[1.0, 2.0]], canvas_size=(20, 24))
    out = single(op).transform(pool=batch(2))(tv_tensors.Image(image), mask, boxes, points)
    assert not torch.equal(out[0], image)
    for before, after in zip((mask, boxes, points), out[1:], strict=True):
        assert torch.equal(before, after)


def where(mask):
    """The box (XYXY) that holds the pixels of a mask."""
    ys, xs = mask.nonzero(as_tuple=True)
    return [xs.min().item(), ys.min().item(), xs.max().item() + 1, ys.max().item() + 1]


@pytest.mark.parametrize("op", GEOMETRIC)
@pytest.mark.parametrize("sign", ["+", "-"])
@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
def test_boxes_and_points_follow_the_pixels(op, sign, form):
    """The right answer comes from the pixels: paint the box, warp the image, look where the paint went."""
    height, width = 120, 150
    mask = torch.zeros(height, width, dtype=torch.uint8)
    mask[50:70, 60:80] = 1
    boxes = tv_tensors.BoundingBoxes([[60.0, 50.0, 80.0, 70.0]], format="XYXY", canvas_size=(height, width))
    boxes = v2.ConvertBoundingBoxFormat(form)(boxes)
    points = tv_tensors.KeyPoints([[60.0, 50.0], [79.0, 69.0]], canvas_size=(height, width))
    image = tv_tensors.Image(torch.stack([mask * 255] * 3))
    policy = single(op, 0.4, sign)
    new_image, new_mask, new_boxes, new_points = policy.transform()(image, tv_tensors.Mask(mask), boxes, points)
    assert new_boxes.format.name == form
    assert new_boxes.canvas_size == (height, width)
    found = where(new_mask)
    assert where(new_image[0] > 0) == found
    corners = v2.ConvertBoundingBoxFormat("XYXY")(new_boxes)[0].tolist()
    assert corners == pytest.approx(found, abs=1.0)
    for (x, y), corner in zip(points.tolist(), new_points.tolist(), strict=True):
        marked = torch.zeros(height, width, dtype=torch.uint8)
        marked[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2] = 1  # a blob that survives nearest sampling
        ys, xs = policy.transform()(tv_tensors.Image(torch.stack([marked] * 3)))[0].nonzero(as_tuple=True)
        assert corner == pytest.approx([xs.double().mean().item(), ys.double().mean().item()], abs=0.6)


def test_boxes_at_the_border_are_clamped():
    boxes = tv_tensors.BoundingBoxes([[0, 0, 10, 10], [15, 15, 24, 20]], format="XYXY", canvas_size=(20, 24))
    out = single("translate_x", 1.0).transform()(tv_tensors.Image(batch(1)[0]), boxes)[1]
    assert out.dtype == boxes.dtype
    assert out.tolist() == [[0, 0, 0, 10], [4, 15, 13, 20]]  # 0.45 of 24 is 10.8: 11 pixels


def test_masks_go_with_a_batch():
    images = batch(16)
    masks = tv_tensors.Mask(images[:, 0].clone() | 1)
    policy = Policy((SubPolicy(((Choice("rotate", 0.6, (0.3, 1.0)),), (Choice("flip", 0.5),))),))
    images[:, 0] |= 1
    out_images, out_masks = policy.transform()(images, masks)
    assert torch.equal(out_images[:, 0], out_masks)
    with pytest.raises(ImageError, match="only masks"):
        policy.transform()(images, tv_tensors.Mask(torch.zeros(3, 20, 24)))


def test_alpha_follows_the_geometry_alone():
    colours = Image.fromarray(picture("noise", 20, 24))
    alpha = Image.fromarray(picture("greyscale", 20, 24))
    for mode, base in (("RGBA", colours), ("LA", colours.convert("L"))):
        image = base.copy()
        image.putalpha(alpha)
        inverted = single("invert").transform()(image)
        assert inverted.mode == mode
        assert ImageChops.difference(inverted.getchannel("A"), alpha).getbbox() is None
        assert inverted.getchannel(0).getpixel((3, 4)) == 255 - base.getchannel(0).getpixel((3, 4))
        turned = single("rotate").transform()(image)
        assert turned.getchannel("A").tobytes() == alpha.rotate(21.0).tobytes()
        assert turned.getchannel(0).tobytes() == base.getchannel(0).rotate(21.0).tobytes()


LABEL = torch.randint(0, 256, (3, 20, 24), dtype=torch.uint8)  # a label that could pass for an image


@pytest.mark.parametrize("kind", ["pillow", "array", "tv_tensor", "video"])
@pytest.mark.parametrize("label", [LABEL, torch.tensor(7), torch.rand(4, 5, 6, 7)], ids=["image-like", "0-d", "4-d"])
def test_a_tensor_beside_an_image_is_a_label(kind, label):
    image = batch(1)[0]
    made = {
        "pillow": to_pillow(image),
        "array": image.permute(1, 2, 0).numpy(),
        "tv_tensor": tv_tensors.Image(image),
        "video": tv_tensors.Video(image[None]),
    }[kind]
    for given in ((made, label), (label, made), {"a": label, "b": [made, 3]}):
        out = single("invert").transform()(given)
        flat = [*out.values()] if isinstance(out, dict) else list(out)
        flat = [part for item in flat for part in (item if isinstance(item, list) else [item])]
        assert any(part is label for part in flat)
        (done,) = [part for part in flat if part is not label and not isinstance(part, int)]
        assert np.array_equal(np.asarray(done), 255 - np.asarray(made))


def test_the_first_tensor_of_a_sample_without_an_image_is_the_image():
    first, second = batch(2)
    out = single("invert").transform()({"x": first, "y": second, "z": np.zeros((20, 24), np.int64)})
    assert torch.equal(out["x"], 255 - first)
    assert out["y"] is second


# --- sample pairing -----------------------------------------------------------------------------------------------


def test_partners_come_from_the_batch_or_the_pool():
    policy = single("sample_pairing", 1.0)
    dark, light = torch.zeros(40, 3, 6, 6, dtype=torch.uint8), torch.full((40, 3, 6, 6), 200, dtype=torch.uint8)
    out = policy(torch.cat([dark, light]))
    assert set(out[:40].unique().tolist()) == {0, 80}
    assert set(out[40:].unique().tolist()) == {120, 200}
    for pool in (light[:3], [to_pillow(light[0])], [(to_pillow(light[0]), 7)], [to_pillow(light[0]).resize((9, 11))]):
        transform = policy.transform(pool=pool)
        assert transform(to_pillow(dark[0])).getextrema() == ((80, 80),) * 3
        assert set(transform(dark[0]).unique().tolist()) == {80}
        assert set(transform(dark).unique().tolist()) == {80}
    assert transform(torch.zeros(3, 7, 9, dtype=torch.uint8)).shape == (3, 7, 9)  # another size, the same pool
    grey = transform(to_pillow(dark[0]).convert("L"))
    assert grey.getpixel((0, 0)) == 80


def test_a_pool_of_arrays():
    """(H, W, C) as everywhere, one channel with or without its axis; one array of all of them, too."""
    policy = single("sample_pairing", 1.0)
    dark, light = torch.zeros(3, 5, 6, dtype=torch.uint8), torch.arange(90, dtype=torch.uint8).reshape(3, 5, 6)
    rows = to_array(light)
    expected = policy.transform(pool=[to_pillow(light)])(dark)
    for pool in ([rows], rows[None], [light.numpy()], [(rows, 7)]):
        transform = policy.transform(pool=pool)
        assert transform(dark).equal(expected)
        assert to_tensor(transform(to_pillow(dark))).equal(expected)
    grey = policy.transform(pool=[to_pillow(light[:1])])(dark[:1])
    for pool in ([rows[..., 0]], [rows[..., :1]]):
        assert policy.transform(pool=pool)(dark[:1]).equal(grey)


@pytest.mark.parametrize(
    ("member", "got"),
    [
        ({"image": 1}, "a dict"),
        (torch.zeros(3, 5, 6), r"torch.float32 \(3, 5, 6\)"),
        (torch.zeros(5, 6, dtype=torch.uint8).numpy()[None, None], r"torch.uint8 \(1, 1, 5, 6\)"),
        (torch.zeros(4, 5, 6, dtype=torch.uint8), r"torch.uint8 \(4, 5, 6\)"),
    ],
)
def test_a_pool_of_something_else(member, got):
    transform = single("sample_pairing", 1.0).transform(pool=[member])
    with pytest.raises(ImageError, match=f"the pool must give Pillow images, .*, got {got}"):
        transform(to_pillow(torch.zeros(3, 5, 6, dtype=torch.uint8)))


class Counted:
    """A pool that knows how often it was read."""

    def __init__(self, count):
        self.images, self.read = [to_pillow(image) for image in batch(count, 9, 9)], 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.read += 1
        return self.images[index]


def test_partners_that_were_not_drawn_are_not_read():
    pool, images = Counted(50), batch(6)
    for given in (images[0], to_array(images[0]), images):
        transform, before = single("sample_pairing", 1.0).transform(pool=pool), pool.read
        transform(given)
        assert 0 < pool.read - before <= (6 if given is images else 1)
    never = Policy((SubPolicy(((Choice("sample_pairing", 1e-9, 1.0), Choice("invert", weight=1e9)),)),))
    before = pool.read
    never.transform(pool=pool)(images)
    assert pool.read == before


def test_each_image_gets_the_partner_that_it_drew():
    """From a list as from a tensor, in every stage."""
    policy, images, pool = Policy.named("uniform", operation_count=4), batch(60, 9, 9), batch(30, 9, 9)
    outs = []
    for given in (pool, [to_pillow(image) for image in pool]):
        torch.manual_seed(3)
        outs.append(policy.transform(pool=given)(images))
    assert torch.equal(*outs)


@pytest.mark.parametrize("pool", [batch(2) / 255, batch(2).long(), batch(2)[0], torch.zeros(2, 4, 5, 5).byte()])
def test_a_pool_that_is_no_batch_of_images_is_refused(pool):
    for use in (lambda: single("invert").transform(pool=pool), lambda: augment(MIXED, batch(2), pool=pool)):
        with pytest.raises(ImageError):
            use()


@pytest.mark.parametrize("fill", [2.5, "x", True])
def test_masks_are_filled_with_a_class(fill):
    with pytest.raises(ImageError, match="mask_fill must be a class number"):
        MIXED.transform(mask_fill=fill)
    assert MIXED.transform(mask_fill=np.int64(255)).mask_fill == 255


@pytest.mark.parametrize("image", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8)])
def test_a_mask_does_not_move_without_its_image(image):
    mask = tv_tensors.Mask(torch.zeros(8, 8, dtype=torch.uint8))
    with pytest.raises(ImageError, match="a sample with Mask must hold an image, too"):
        single("translate_x").transform()({"image": image, "mask": mask})


@pytest.mark.parametrize("op", OPS)
def test_an_image_that_was_only_opened(op, tmp_path):
    """As a loader has it: Pillow reads the pixels when somebody asks for them."""
    to_pillow(batch(1)[0]).save(tmp_path / "image.png")
    transform = single(op).transform(pool=batch(1))
    opened, read = Image.open(tmp_path / "image.png"), Image.open(tmp_path / "image.png").convert("RGB")
    outs = []
    for image in (opened, read):
        torch.manual_seed(2)
        outs.append(transform(image).tobytes())
    assert outs[0] == outs[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("use", [lambda policy: policy, lambda policy: policy.transform()], ids=["batch", "transform"])
def test_in_a_compiled_model(use):
    """Nothing was called before, as a plan that was made already hides what the compiler cannot trace."""
    policy = Policy.named("trivialaugment-wide")
    augment_, images = use(policy), batch(6)
    compiled = torch.compile(lambda x: augment_(x + 0).float() * 2, backend="eager")
    torch.manual_seed(5)
    out = compiled(images)
    torch.manual_seed(5)
    assert torch.equal(out, use(Policy.named("trivialaugment-wide"))(images).float() * 2)
    torch.compiler.reset()


def test_without_a_pool_partners_are_the_last_images_seen():
    for convert in (to_pillow, lambda image: image, lambda image: image.permute(1, 2, 0).numpy()):
        transform = single("sample_pairing", 1.0).transform()
        first, second = torch.full((3, 6, 5), 10, dtype=torch.uint8), torch.full((3, 9, 8), 200, dtype=torch.uint8)
        assert np.asarray(transform(convert(first))).mean() == 10  # it has itself alone
        found = {float(np.asarray(transform(convert(second))).mean()) for _ in range(30)}
        assert found == {200.0, 10 + (200 - 10) * 0.6}  # of its own size, with what it saw before
        assert len(transform._seen) == 31
        for _ in range(64):
            transform(convert(second))
        assert len(transform._seen) == 64
        assert {float(np.asarray(transform(convert(second))).mean()) for _ in range(30)} == {200.0}  # 10 is forgotten
        assert len(pickle.loads(pickle.dumps(transform))._seen) == 0


def test_bad_pools():
    with pytest.raises(ImageError, match="must not be empty"):
        single("sample_pairing").transform(pool=[])
    with pytest.raises(ImageError, match="must have the shape"):
        single("sample_pairing").transform(pool=batch(3, 9, 9))(batch(2))


# --- in a loader ------------------------------------------------------------------------------------------------


class Pictures(Dataset):
    def __init__(self, policy):
        self.images = [to_pillow(image) for image in batch(24, 8, 8)]
        self.transform = v2.Compose([policy.transform(pool=batch(4, 8, 8)), v2.PILToTensor()])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[0])


def load(workers, method, seed):
    torch.manual_seed(0)
    data = Pictures(EVERYTHING)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, 4, num_workers=workers, multiprocessing_context=method, generator=generator)
    return torch.cat(list(loader))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers(method):
    """Workers draw differently from each other and the same again from the same seed."""
    one = load(2, method, 1)
    assert len({image.numpy().tobytes() for image in one}) > 8
    if method == "fork":  # the cheap one shows the rest
        assert torch.equal(one, load(2, method, 1))
        assert not torch.equal(one, load(2, method, 2))


def test_pickles():
    transform = pickle.loads(pickle.dumps(EVERYTHING.transform(pool=batch(2))))
    assert transform.policy == EVERYTHING
    transform(batch(2))
    EVERYTHING(batch(2))
    assert pickle.loads(pickle.dumps(EVERYTHING)) == EVERYTHING
    assert "uniform" in repr(transform)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(3, 8, 8), "uint8 images, got dtype torch.float32"),
        (torch.zeros(2, 3, 8, 8), "uint8 images, got dtype torch.float32"),
        (torch.zeros(4, 8, 8, dtype=torch.uint8), "1 or 3 channels, got 4"),
        (torch.zeros(8, 8, dtype=torch.uint8), r"\(C, H, W\) or \(B, C, H, W\), got \(8, 8\)"),
        (np.zeros((8, 8, 4), np.uint8), "1 or 3 channels, got uint8"),
        (np.zeros((8, 8, 3), np.float32), "got float32"),
        (Image.new("P", (8, 8)), "modes L, RGB, LA, RGBA, got 'P'"),
        (Image.new("CMYK", (8, 8)), "got 'CMYK'"),
        (Image.new("I;16", (8, 8)), "got 'I;16'"),
    ],
)
def test_bad_images(given, message):
    with pytest.raises(ImageError, match=message):
        MIXED.transform()(given)


def test_bad_batches():
    with pytest.raises(ImageError, match=r"got dtype torch\.float32"):
        MIXED(torch.zeros(2, 3, 8, 8))
    with pytest.raises(ImageError, match=r"\(B, C, H, W\)"):
        MIXED(torch.zeros(3, 8, 8, dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(8, 8))
    with pytest.raises(ImageError, match="only masks"):
        MIXED.transform()(batch(2), boxes)
    with pytest.raises(ImageError, match="batches of the sizes"):
        MIXED.transform()(tv_tensors.Image(batch(2)), tv_tensors.Image(batch(3)))


@pytest.mark.parametrize(
    ("magnitude", "sign", "message"),
    [
        (1.7, 1.0, r"magnitude must be in \[0, 1\], got 1.7 for op 'rotate'"),
        (float("nan"), 1.0, "magnitude must be"),
        (torch.tensor([0.5, 1.5]), 1.0, "magnitude must be"),
        (torch.tensor([0.5]), 1.0, "one entry for each of 2 images"),
        (0.5, 2.0, "sign must be"),
    ],
)
def test_bad_magnitudes(magnitude, sign, message):
    with pytest.raises(Exception, match=message):
        hard("rotate", batch(2), magnitude, sign)


def test_ops_that_need_more_say_so():
    with pytest.raises(ImageError, match="needs a partner"):
        hard("sample_pairing", batch(2), 0.5)
    assert hard("cutout", batch(2), 0.5).shape == (2, 3, 20, 24)  # its hole is in the centre
    assert hard("rotate", batch(2)[:0], 0.5, context=Context()).shape == (0, 3, 20, 24)


@pytest.mark.gpu
def test_gpu_batch_equals_cpu_batch():
    images = batch(64)
    plan = plan_of(EVERYTHING)
    draw = plan.draw(64)
    cpu = apply_draw(EVERYTHING, plan, images, draw)
    assert torch.equal(apply_draw(EVERYTHING, plan, images.cuda(), draw).cpu(), cpu)


def test_a_pairing_that_never_happens_needs_no_pool():
    never = Policy((SubPolicy(((Choice("sample_pairing", 0.0, 0.5),), (Choice("invert"),))),))
    image = batch(1)[0]
    assert torch.equal(never.transform()(image), 255 - image)
