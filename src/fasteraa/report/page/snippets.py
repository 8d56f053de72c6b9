"""Commands that repeat and check a run, and code that uses its policy."""

from __future__ import annotations

import shlex
from typing import Any

from fasteraa.policy.named import is_name, named
from fasteraa.report.page.facts import dig
from fasteraa.report.page.race import score_rows
from fasteraa.report.run_record import RACE, RunRecord
from fasteraa.runtime.files import as_file_name
from fasteraa.runtime.run_folder import RunFolder


def repeat_command(run: RunRecord, facts: dict[str, Any]) -> str:
    """With the source as it was given, and the rest from config.toml; a run from Python may have had an object that
    only has a name.
    """
    asked, name = run.asked_for, dig(facts, "data", "name")
    source = asked.get("source", None if name == "sample" else name)
    words = ["fasteraa", run.kind, *([] if source is None else [shlex.quote(str(source))])]
    if run.kind == RACE:
        words += ["--policies", shlex.quote(",".join(_raced_policies(run)))]
    if RunFolder(run.folder).scores.is_dir():
        return " ".join([*words, "--out runs/again -- YOUR COMMAND"])
    if run.config is not None and not run.setup.old:
        words += ["--config", shlex.quote(str(RunFolder(run.folder).config))]
    for flag in ("data_root", "device", "minutes"):
        if (value := asked.get(flag)) is not None:
            words += [f"--{flag.replace('_', '-')}", shlex.quote(value)]
    return " ".join([*words, "--out runs/again"])


def check_commands(run: RunRecord, facts: dict[str, Any]) -> str:
    """What measures the policy on test images, and what makes this page again with the table."""
    source = run.asked_for.get("source")
    images = (
        "" if source is None and dig(facts, "data", "name") == "sample" else f" {shlex.quote(str(source or 'IMAGES'))}"
    )
    folder = shlex.quote(str(run.folder))
    return (
        f"fasteraa compare{images} --policies none,trivialaugment-wide,chosen={folder} --per-op --out runs/compared\n"
        f"fasteraa report {folder} --comparison runs/compared"
    )


def _raced_policies(run: RunRecord) -> list[str]:
    """By name where there is one, else by their files in the run folder."""
    folder, given = RunFolder(run.folder).candidates, run.result.get("candidates")
    if not isinstance(given, dict):
        return [row["label"] for row in score_rows(run.result)]
    labels = given
    return [
        label if is_name(label) and named(label).hash == value else f"{label}={folder / as_file_name(label)}.json"
        for label, value in labels.items()
    ]


def code_tabs(run: RunRecord) -> list[tuple[str, str]]:
    load = _beginning(run)
    policy = run.policy
    pairs = policy is not None and "sample_pairing" in policy.ops
    dali = 'policy.without("sample_pairing").to_dali()' if pairs else "policy.to_dali()"
    file = str(RunFolder(run.folder).policy)
    tabs = {
        "torchvision": f"{load}# for Pillow images, before the conversion to float\ntransform = policy.transform()",
        "batches": f"{load}# uint8 (B, 3, H, W), on any device\nbatch = policy(batch)",
        "timm": (
            f"import timm.data\n{load}"
            "transform = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)\n"
            "transform = policy.to_timm(transform)"
        ),
        "albumentations": (
            f"import albumentations as A\n{load}transform = A.Compose([policy.to_albumentations(), A.Normalize()])"
        ),
        "kornia": (
            f"import kornia.augmentation as K\n{load}"
            "# for floats in [0, 1]\ntransform = K.AugmentationSequential(policy.to_kornia())"
        ),
        "DALI": (
            f"from nvidia.dali.auto_aug import auto_augment\n{load}policy = {dali}\n\n"
            "# in a pipeline with enable_conditionals=True, uint8 (H, W, 3):\n"
            "# images = auto_augment.apply_auto_augment(policy, images)"
        ),
        "Keras": (
            'import os\n\nos.environ.setdefault("KERAS_BACKEND", "torch")  # the layer needs it\n'
            f"{load}# the first layer of the model, for images in [0, 255]\nlayer = policy.to_keras()"
        ),
        "plain Python": (
            f"# a file that needs Pillow alone\nfasteraa export {shlex.quote(file)} --to python --out augment.py"
        ),
    }
    if policy is not None and policy.scheduled:
        del tabs["DALI"]  # which has no epochs
    return list(tabs.items())


def code_tabs_for_masks(run: RunRecord) -> list[tuple[str, str]]:
    """Where image and mask share a draw; what comes from outside the image counts for no class."""
    load = _beginning(run)
    return [
        (
            "torchvision",
            f"from torchvision import tv_tensors\n{load}transform = policy.transform(mask_fill=255)\n"
            "image, mask = transform(image, tv_tensors.Mask(mask))  # mask: whole numbers (H, W)",
        ),
        (
            "albumentations",
            f"import albumentations as A\n{load}"
            "transform = A.Compose([policy.to_albumentations(mask_fill=255), A.Normalize()])\n"
            "both = transform(image=array, mask=numbers)  # uint8 (H, W, 3) and (H, W)",
        ),
    ]


def _beginning(run: RunRecord) -> str:
    """The lines that load the policy."""
    return f"import fasteraa\n\npolicy = fasteraa.load({str(RunFolder(run.folder).policy)!r})\n"
