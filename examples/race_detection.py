"""A small detector that a race judges policies by: boxes move with the image. The score is 1 - the mean IoU.

fasteraa race -p none,trivialaugment-wide --seeds 3 -- python examples/race_detection.py --aug {policy} --seed {seed}

The images are drawn here: bright things on a dark ground. Yours come from your own dataset.
"""

import argparse

import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, box_iou
from torchvision.transforms import v2

import fasteraa

SIDE = 64


def scenes(count, seed):
    """(image, target): one thing in each image, bright or red."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        width, height = torch.randint(14, 32, (2,), generator=generator).tolist()
        left, top = torch.randint(0, SIDE - 32, (2,), generator=generator).tolist()
        label = int(torch.randint(1, 3, (), generator=generator))
        image = torch.randint(0, 90, (3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
        image[: 3 if label == 1 else 1, top : top + height, left : left + width] = 230
        corners = torch.tensor([[left, top, left + width, top + height]], dtype=torch.float32)
        box = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(SIDE, SIDE))
        yield tv_tensors.Image(image), {"boxes": box, "labels": torch.tensor([label])}


def detector():
    """torchvision's, on a backbone of four layers; yours is larger and pretrained."""
    layers = [
        nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.ReLU())
        for before, after in ((3, 16), (16, 32), (32, 32))
    ]
    body = nn.Sequential(*layers)
    body.out_channels = 32
    anchors = AnchorGenerator(sizes=((16, 24, 32),), aspect_ratios=((0.5, 1.0, 2.0),))
    pool = MultiScaleRoIAlign(featmap_names=["0"], output_size=5, sampling_ratio=2)
    return FasterRCNN(
        body, 3, min_size=SIDE, max_size=SIDE, rpn_anchor_generator=anchors, box_roi_pool=pool,
        rpn_pre_nms_top_n_train=200, rpn_post_nms_top_n_train=100, box_batch_size_per_image=64,
    )  # fmt: skip


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--aug", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(words)
    torch.manual_seed(args.seed)
    train, val = list(scenes(args.images, 1)), list(scenes(max(args.images // 4, 4), 2))
    pool = torch.stack([image for image, _ in train])  # for policies that mix in other images
    augment = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            fasteraa.load(args.aug).transform(pool),  # image and boxes go through one draw
            v2.SanitizeBoundingBoxes(min_size=4),  # those that left the image
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    net = detector()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(args.epochs):
        for places in torch.randperm(len(train)).split(8):
            images, targets = zip(*(augment(*train[place]) for place in places.tolist()), strict=True)
            loss = sum(net(list(images), list(targets)).values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()

    net.eval()
    with torch.inference_mode():
        found = net([image.as_subclass(torch.Tensor) / 255 for image, _ in val])
    overlaps = [
        float(box_iou(each["boxes"][:1], target["boxes"].as_subclass(torch.Tensor)).sum())  # the surest one
        for each, (_, target) in zip(found, val, strict=True)
    ]
    score = 1 - sum(overlaps) / len(overlaps)
    print(f"score: {score}")
    return score


if __name__ == "__main__":
    main()
