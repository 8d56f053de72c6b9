"""A policy in a plain PyTorch loop: three lines in the transform, nothing else changes.

python examples/plain_pytorch.py [policy.json]
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import fasteraa
from fasteraa.data import load


class Pictures(Dataset):
    """The embedded sample; any dataset that gives Pillow images or uint8 tensors will do."""

    def __init__(self, count, transform):
        self.data = load(subset=count)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data.images[index]), int(self.data.labels[index])


def main(policy="trivialaugment-wide", count=1000, epochs=3):
    transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            fasteraa.load(policy).to_torchvision(),  # on uint8, before the conversion to float
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    loader = DataLoader(Pictures(count, transform), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for epoch in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
