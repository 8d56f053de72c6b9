"""An independent training loop, which shares nothing with `fasteraa.train`: does a policy help there, too?

    python3 tools/loop.py IMAGES.npz none,trivialaugment-wide,run/policy.json --epochs 100 --seeds 3 [--no-flip]

Four convolutions, the last one residual (159,000 parameters), batches of 50, SGD with Nesterov
momentum, a cosine after a short warm-up, a shifted crop and maybe a flip before every policy; `trivialaugment-wide` is
torchvision's own, on Pillow images. Errors on the test images after the last epoch, a line of JSON for each training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

import fasteraa

BATCH, RATE, DECAY, WARMUP = 50, 0.05, 1e-3, 0.05
Augment = Callable[[Tensor, torch.Generator], Tensor]


class Net(nn.Module):
    """Halves its images three times, those of 16 pixels twice."""

    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        sizes = ((3, 32), (32, 64), (64, 96), (96, 96))
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1, bias=False) for i, o in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o in sizes)
        self.last, self.halvings = nn.Linear(96, classes), 3 if side > 16 else 2

    def forward(self, x: Tensor) -> Tensor:
        for number in range(3):
            x = self.convs[number](x)
            x = F.max_pool2d(x, 2) if number < self.halvings else x
            x = F.relu(self.norms[number](x))
        x = F.relu(x + self.norms[3](self.convs[3](x)))
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits


def augmentation(name: str) -> Augment:
    if name == "trivialaugment-wide":
        transform = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.NEAREST)

        def one(image: Tensor) -> Tensor:
            changed = transform(Image.fromarray(image.permute(1, 2, 0).numpy()))
            return torch.from_numpy(np.array(changed)).permute(2, 0, 1)

        return lambda images, generator: torch.stack([one(image) for image in images])
    policy = fasteraa.load(name)
    return lambda images, generator: policy(images, generator)


def shifted(images: Tensor, flip: bool, generator: torch.Generator) -> Tensor:
    """Cut out of the image with an eighth of black around it, mirrored half of the time."""
    count, _, side, _ = images.shape
    pad = side // 8
    padded = F.pad(images, (pad,) * 4)
    offset = torch.randint(0, 2 * pad + 1, (count, 2), generator=generator)
    rows, columns = (offset[:, place : place + 1] + torch.arange(side) for place in (0, 1))
    every = torch.arange(count)[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if not flip:
        return cut
    mirrored = torch.rand(count, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], cut.flip(3), cut)


def as_images(array: np.ndarray) -> Tensor:
    array = array[..., None] if array.ndim == 3 else array
    array = np.repeat(array, 3, 3) if array.shape[3] == 1 else array
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def load_images(file: str) -> dict[str, Tensor]:
    archive = np.load(file, allow_pickle=False)
    data = {name: as_images(archive[name]) for name in ("x_train", "x_test")}
    return data | {name: torch.from_numpy(archive[name].astype(np.int64)) for name in ("y_train", "y_test")}


def train(
    data: dict[str, Tensor], augment: Augment, epochs: int, flip: bool, seed: int, device: str = "cpu"
) -> tuple[float, float]:
    """Error in % on the test images, and the training loss of the last epoch. Images are augmented on the CPU."""
    images, labels = data["x_train"], data["y_train"].to(device)
    scaled = images.float() / 255
    mean, spread = (moment((0, 2, 3), keepdim=True) for moment in (scaled.mean, scaled.std))

    def normal(pixels: Tensor) -> Tensor:
        return ((pixels.float() / 255 - mean) / spread).to(device, memory_format=torch.channels_last)

    torch.manual_seed(seed)
    net = Net(int(labels.max()) + 1, images.shape[2]).to(device, memory_format=torch.channels_last)
    crops, draws = (torch.Generator().manual_seed(first + seed) for first in (1000, 2000))
    torch.manual_seed(3000 + seed)
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in net.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, RATE, momentum=0.9, nesterov=True)
    steps = len(images) // BATCH
    total = epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (WARMUP * total), 0.5 * (1 + math.cos(math.pi * step / total)))
    )
    lost = torch.zeros(())
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=crops)
        inputs = normal(augment(shifted(images[order], flip, crops), draws))
        lost, targets = torch.zeros((), device=device), labels[order.to(device)]
        for start in range(0, steps * BATCH, BATCH):
            loss = F.cross_entropy(net(inputs[start : start + BATCH]), targets[start : start + BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            lost += loss.detach() / steps
    net.eval()
    with torch.no_grad():
        guesses = torch.cat([net(normal(part)).argmax(1) for part in data["x_test"].split(500)])
    return 100 * (guesses.cpu() != data["y_test"]).float().mean().item(), float(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help="x_train, y_train, x_test and y_test in an .npz file")
    parser.add_argument("policies", help="names, policy files or run folders, with commas between them")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-flip", action="store_true")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    data = load_images(given.images)
    for seed in range(given.seeds):
        for name in given.policies.split(","):
            error, loss = train(data, augmentation(name), given.epochs, not given.no_flip, seed, given.device)
            record = {"policy": name, "seed": seed, "error": round(error, 3), "training_loss": round(loss, 4)}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
