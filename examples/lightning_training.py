"""A policy in Lightning: whole batches, on the device where they train, and only while training.

python examples/lightning_training.py [policy.json]
"""

import sys

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fasteraa
from fasteraa.data import load


class Data(L.LightningDataModule):
    def __init__(self, policy, count):
        super().__init__()
        self.policy = fasteraa.load(policy)
        data = load(subset=count)
        self.images = TensorDataset(data.images, data.labels)  # uint8

    def train_dataloader(self):
        return DataLoader(self.images, batch_size=50, shuffle=True)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        images, labels = batch
        if self.trainer.training:
            images = self.policy(images)  # uint8 (B, C, H, W): a draw of its own for every image
        return images.float() / 255, labels


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)
        )

    def training_step(self, batch, index):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def main(policy="trivialaugment-wide", count=1000, epochs=3, **trainer):
    trainer = L.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False, **trainer)
    trainer.fit(Classifier(), datamodule=Data(policy, count))
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
