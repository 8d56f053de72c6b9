"""A policy with Hugging Face datasets and Trainer.

python examples/hf_datasets_trainer.py [policy.json]
"""

import sys
import tempfile

import torch
from datasets import Dataset, Features, Image, Value
from torchvision.transforms import v2
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

import fasteraa
from fasteraa.data import load
from fasteraa.images import to_pillow


def pictures(count):
    """Columns image and label, as `load_dataset` gives them."""
    data = load(subset=count)
    rows = {"image": [to_pillow(image) for image in data.images], "label": data.labels.tolist()}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "label": Value("int64")}))


def main(policy="trivialaugment-wide", count=200, steps=5, folder=None):
    augment = v2.Compose(
        [
            fasteraa.load(policy).to_torchvision(),  # on Pillow images
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def transform(batch):
        images = [augment(image.convert("RGB")) for image in batch["image"]]
        return {"pixel_values": images, "labels": batch["label"]}

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
    arguments = TrainingArguments(
        output_dir=folder or tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=20,
        remove_unused_columns=False,  # the transform needs the column `image`
        report_to=[],
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    dataset = pictures(count).with_transform(transform)
    return Trainer(ResNetForImageClassification(config), arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
