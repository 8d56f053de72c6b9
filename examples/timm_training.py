"""A policy inside timm's own pipeline, model and loader.

python examples/timm_training.py [policy.json]
"""

import sys

import timm
import torch
from timm.data import create_dataset, create_transform

import fasteraa
from fasteraa.data import load
from fasteraa.images import to_pillow


def pictures(folder, count):
    """A folder of class folders, as timm reads it; yours is there already."""
    data = load(subset=count)
    for index, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        place = folder / "train" / data.classes[label].replace("/", "-").lower()
        place.mkdir(parents=True, exist_ok=True)
        to_pillow(image).save(place / f"{index}.png")


def main(policy="trivialaugment-wide", folder=None, count=200, size=32, model="test_resnet"):
    pictures(folder, count)
    transform = create_transform(size, is_training=True, auto_augment=None, color_jitter=None)
    transform = fasteraa.load(policy).to_timm(transform)  # after crop and flip, before the conversion to a tensor
    dataset = create_dataset("folder", root=str(folder), split="train")
    dataset.transform = transform
    loader = torch.utils.data.DataLoader(dataset, batch_size=20, shuffle=True, drop_last=True)
    net = timm.create_model(model, num_classes=len(dataset.reader.class_to_idx))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    losses = []
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(transform, f"loss {losses[-1]:.3f}", sep="\n")
    return losses


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        main(*sys.argv[1:] or ["trivialaugment-wide"], folder=Path(folder))
