"""A plain timm training that a race judges policies by: a folder of train/CLASS and val/CLASS, the error on val/.

fasteraa race -p none,trivialaugment-wide --seeds 3 -- \
    python examples/race_timm.py photos --model resnet50 --pretrained --aug {policy} --seed {seed} --out {out}

A policy whose name begins with rand-m is timm's own RandAugment of that name, whatever its file holds:

fasteraa race -p none,randaugment-m9,rand-m9-mstd0.5-inc1=randaugment-m9 -- python examples/race_timm.py ...
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import timm
import torch
from timm.data import create_dataset, create_transform, resolve_model_data_config

import fasteraa


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--size", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--aug", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    torch.manual_seed(args.seed)
    random.seed(args.seed)  # timm's own RandAugment draws from it and from numpy
    np.random.seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    sets = {split: create_dataset("folder", root=args.data, split=split) for split in ("train", "val")}
    net = timm.create_model(args.model, pretrained=args.pretrained, num_classes=len(sets["train"].reader.class_to_idx))
    expects = resolve_model_data_config(net)
    expects |= {"input_size": (3, args.size, args.size)} if args.size else {}
    policy = fasteraa.load(args.aug)
    own = policy.name if policy.name.startswith("rand-m") else None
    plain = create_transform(**expects, is_training=True, auto_augment=own, color_jitter=None)
    pool = [sets["train"][place][0] for place in range(min(len(sets["train"]), 100))]  # for those that mix images
    sets["train"].transform = plain if own else policy.to_timm(plain, pool=pool)  # after crop and flip
    sets["val"].transform = create_transform(**expects, is_training=False)
    whole = len(sets["train"]) >= args.batch_size  # fewer images are one small batch
    loaders = {
        split: torch.utils.data.DataLoader(
            data, args.batch_size, shuffle=split == "train", drop_last=split == "train" and whole,
            num_workers=args.workers,
        )
        for split, data in sets.items()
    }  # fmt: skip
    net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), args.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, epochs=args.epochs, steps_per_epoch=len(loaders["train"])
    )
    for _ in range(args.epochs):
        net.train()
        for images, labels in loaders["train"]:
            loss = torch.nn.functional.cross_entropy(net(images.to(device)), labels.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    net.eval()
    with torch.inference_mode():
        guesses = [(net(images.to(device)).argmax(1).cpu() != labels).float() for images, labels in loaders["val"]]
    error = torch.cat(guesses).mean().item()
    (args.out / "score.json").write_text(json.dumps({"score": error}))
    return error, sets["train"].transform


if __name__ == "__main__":
    main()
