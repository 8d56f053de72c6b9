"""Train one network with one policy, and measure it once, at the end, on images it has not seen.

The last epoch is the result. Nothing is ever selected on test data.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fasteraa._version import __version__, commit
from fasteraa.data.batches import Normalise
from fasteraa.data.lazy_set import Images
from fasteraa.errors import ConfigError, RunError
from fasteraa.policy.policy import Policy
from fasteraa.runtime.checkpoint import save_checkpoint
from fasteraa.runtime.device import explain_out_of_memory, find_device
from fasteraa.runtime.files import write_atomic
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.train.group import Group, Tell, Until
from fasteraa.train.live_groups import LiveGroups
from fasteraa.train.metrics import LARGEST
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.training import Training, TrainingRun, is_half


@dataclass(frozen=True)
class Trained:
    """The outcome of one training run."""

    error: float  # % of the held-out images, after the last epoch
    error_top5: float
    held_out_loss: float  # how sure it is of the right classes there, however sure it is in general
    balanced_error: float  # the same, every class counted alike
    balanced_loss: float
    train_loss: float  # mean of the last epoch
    seconds: float  # of training, without set-up and without the final measurement
    setup_seconds: float  # compilation and capture
    together: int  # runs that shared the device in the end, and these seconds
    share_seconds: float  # its own part of them, whoever shared the device meanwhile
    kernels: str  # plain or compiled; of a resumed run, one after the other
    steps: int
    network: nn.Module
    normalise: Normalise
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Diverged:
    """A training run that diverged: there is no network worth measuring."""

    why: str
    seconds: float
    together: int
    provenance: dict[str, Any]


def train(
    data: Images,
    held_out: Images,
    policy: Policy,
    recipe: TrainRecipe,
    seed: int = 0,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    tell: Tell | None = None,
    until: Until | None = None,
) -> Trained:
    """Train on `data` under `policy`, measure on `held_out`. With a checkpoint file a killed run resumes there."""
    job = TrainingRun(policy, recipe, seed, checkpoint)
    (trained,) = train_together(data, held_out, [job], device=device, tell=tell, until=until)
    if isinstance(trained, Diverged):
        raise RunError(f"{trained.why}: lower learning_rate")
    return trained


@torch.inference_mode(False)
@torch.enable_grad()
def train_together(
    data: Images,
    held_out: Images,
    jobs: Sequence[TrainingRun],
    *,
    device: str = "auto",
    fuse: bool | None = None,
    tell: Tell | None = None,
    until: Until | None = None,
    ranks: Ranks = ALONE,
    live: LiveGroups | None = None,
) -> list[Trained | Diverged]:
    """Several runs in lockstep: on a GPU the steps of all are one graph, whose branches run side by side.

    A run whose loss is not finite any more takes no other with it.

    `fuse` makes fewer kernels of the network's on a GPU, by default in runs that are long enough. Most networks are
    compiled for it: half a minute of waiting (WRN-40-2 on an H200, empty caches). Parts of trainings continue groups of
    `live` where they can, and are kept there.

    Several `ranks` share every batch: all of them make this call, the first alone has files.
    """
    if data.classes != held_out.classes:
        raise ConfigError("training and held-out images must have the same classes")
    if len({(job.epochs, job.recipe.epochs, job.recipe.batch_size) for job in jobs}) > 1:
        raise ConfigError("runs trained together must have the same epochs and batch_size")
    place = find_device(device)
    origins = [_provenance(data, held_out, job.policy, job.recipe, job.seed, place) for job in jobs]
    with explain_out_of_memory("lower --batch-size, --size or --jobs, or take a smaller --network"):
        group = None if live is None else live.take(data.fingerprint, jobs)
        if group is None:
            members = [
                Training(data, job.policy, job.recipe, job.seed, place, part=job.part, ranks=ranks) for job in jobs
            ]
            group = Group(members, False if ranks.joined else fuse)  # a compiler would cut networks at sums over ranks
        try:
            group.go([job.checkpoint for job in jobs], tell, until)
        finally:
            group.release()
        group.leave_states()
        pairs = zip(group.members, origins, strict=True)
        outcomes = [_outcome(group, training, held_out, provenance) for training, provenance in pairs]
    for job in jobs:
        if job.checkpoint is not None:
            job.checkpoint.unlink(missing_ok=True)
    if live is not None:
        live.keep(data.fingerprint, group)
    return outcomes


def _outcome(group: Group, training: Training, held_out: Images, provenance: dict[str, Any]) -> Trained | Diverged:
    together = len(group.members)
    if training.diverged is not None:
        why = f"the training loss was not finite in epoch {training.diverged}"
        return Diverged(why, group.seconds, together, provenance)
    measured = training.measure(held_out)
    if not measured.loss < LARGEST:  # the last steps ruined it: the loss of an epoch does not know of the last one
        return Diverged("the loss on held-out images was not finite", group.seconds, together, provenance)
    return Trained(
        error=measured.error,
        error_top5=measured.error_top5,
        held_out_loss=measured.loss,
        balanced_error=measured.balanced_error,
        balanced_loss=measured.balanced_loss,
        train_loss=training.loss,
        seconds=group.seconds,
        setup_seconds=group.setup_seconds,
        together=together,
        share_seconds=training.share_seconds,
        kernels=" and ".join(training.kernels) or "unknown",
        steps=(group.last - group.first) * training.feed.steps,
        network=training.network if training.averaged is None else training.averaged,  # what was measured
        normalise=training.feed.normalise,
        provenance=provenance,
    )


def _provenance(
    data: Images, held_out: Images, policy: Policy, recipe: TrainRecipe, seed: int, device: torch.device
) -> dict[str, Any]:
    return {
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint},
        "held_out": {"images": len(held_out), "fingerprint": held_out.fingerprint},
        "policy": {"name": policy.name, "hash": policy.hash},
        "recipe": asdict(recipe),
        "precision": "bfloat16" if is_half(recipe.precision, device) else "float32",
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU",
        "versions": {"fasteraa": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
    }


def save_network(path: Path, trained: Trained) -> None:
    """Weights, to be loaded without executing anything."""
    save_checkpoint(path, trained.network.state_dict())
    write_atomic(path.with_suffix(".json"), json.dumps(trained.provenance, indent=1) + "\n")
