"""A small segmentation network that a race judges policies by: masks move with the image. The score is the mean IoU.

fasteraa race -p none,trivialaugment-wide --seeds 3 --maximize -- \
    python examples/race_segmentation.py camvid --ignore 11 --aug {policy} --seed {seed}

The folder holds train/images, train/masks, val/images and val/masks, as CamVid is often packed.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

import fasteraa
from fasteraa.data import load

VOID = 255  # pixels that do not count


class Net(nn.Module):
    """Down to a quarter and back up; yours is larger and pretrained."""

    def __init__(self, classes, width=24):
        super().__init__()
        sizes = ((3, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 2))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU())
            for before, after, stride in sizes
        )
        self.head = nn.Conv2d(5 * width, classes, 1)

    def forward(self, images):
        maps, found = [], images
        for layer in self.down:
            found = layer(found)
            maps.append(F.interpolate(found, images.shape[-2:], mode="bilinear", align_corners=False))
        return self.head(torch.cat(maps, 1))


def mean_iou(guesses, masks, classes):
    counted = masks != VOID
    overlaps = []
    for label in range(classes):
        one, other = (guesses == label) & counted, masks == label
        if other.any():
            overlaps.append(((one & other).sum() / (one | other).sum()).item())
    return sum(overlaps) / len(overlaps)


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--ignore", type=int, default=VOID)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--aug", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = load(args.data, split="train", size=args.size, ignore_index=args.ignore)
    val = load(args.data, split="val", size=args.size, ignore_index=args.ignore)
    classes = max(len(train.classes), len(val.classes))
    policy = fasteraa.load(args.aug).transform(pool=train.images, mask_fill=VOID)
    augment = v2.Compose([v2.RandomHorizontalFlip(), policy])

    net = Net(classes).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(args.epochs):
        net.train()
        for places in torch.randperm(len(train)).split(8):
            pairs = [
                augment(tv_tensors.Image(train.images[place]), tv_tensors.Mask(train.masks[place]))
                for place in places.tolist()
            ]
            images, masks = (torch.stack(list(part)).to(device) for part in zip(*pairs, strict=True))
            loss = F.cross_entropy(net(images.float() / 127.5 - 1), masks.long(), ignore_index=VOID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    net.eval()
    with torch.inference_mode():
        guesses = [net(part.to(device).float() / 127.5 - 1).argmax(1).cpu() for part in val.images.split(16)]
    score = mean_iou(torch.cat(guesses), val.masks, classes)
    print(f"score: {score}")
    return score


if __name__ == "__main__":
    main()
