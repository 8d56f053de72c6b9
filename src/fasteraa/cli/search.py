"""What `fasteraa search`, `config` and `preview` do between parsing and printing."""

from __future__ import annotations

import math
import signal
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fasteraa.errors import ConfigError, RaceError, Stopped
from fasteraa.search.config import BEFORE, SearchConfig, make_config, read_config, to_toml

if TYPE_CHECKING:
    from torch import Tensor

    from fasteraa.data import ImageSet
    from fasteraa.evaluate.calibrate import Calibration
    from fasteraa.policy.artifact import Policy
    from fasteraa.search.folder import RunFolder
    from fasteraa.search.progress import Progress
    from fasteraa.search.run import SearchResult


@dataclass(frozen=True)
class Race:
    """How a search ends."""

    minutes: float
    network: str | None = None
    epochs: int | None = None

    def flags(self) -> dict[str, str]:
        """As they are given on the command line."""
        given = {"minutes": f"{self.minutes:g}", "network": self.network, "epochs": self.epochs}
        return {f"calibrate-{name}": str(value) for name, value in given.items() if value is not None}


NO_RACE = {"no-calibrate": ""}


def effective_config(
    flags: Mapping[str, Any], config: Path | None, recipe: str | None, old: bool = False
) -> SearchConfig:
    """Defaults, then the paper's recipe, then the TOML file, which may be that of an `old` run, then flags."""
    settings: dict[str, Any] = dict(BEFORE) if old else {}
    if recipe is not None:
        from fasteraa.data import recipe_for

        found = recipe_for(recipe)
        settings |= {"objective": "paper", "subset": found.subset, "size": found.size}
        settings |= {} if found.classes is None else {"classes": found.classes}
    if config is not None:
        settings |= read_config(config)
    for name, value in flags.items():
        if name == "set_":
            settings |= dict(_assignment(text) for text in value)
        else:
            settings[name] = [part.strip() for part in value.split(",")] if name == "ops" else value
    return make_config(settings)


def print_config(flags: Mapping[str, Any], config: Path | None) -> None:
    """What a search would accept, and nothing else."""
    settings = effective_config(flags, config, None)
    if settings.backbone != "auto":  # only then is torch needed
        from fasteraa.search.run import check_backbone

        check_backbone(settings)
    typer.echo(to_toml(settings), nl=False)


def _assignment(text: str) -> tuple[str, Any]:
    """`learning_rate=0.002`; the value is TOML, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes NAME=VALUE, got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def run_search(
    source: str | None,
    out: Path,
    flags: Mapping[str, Any],
    config: Path | None,
    recipe: bool,
    device: str,
    data_root: Path | None,
    resume: bool,
    max_minutes: float | None,
    race: Race | None,
    trackers: Sequence[str],
) -> None:
    if race is not None:
        _check_minutes(race)
    own = resume and config is None and (out / "config.toml").is_file()  # a resumed run has its own settings
    settings = effective_config(
        flags, out / "config.toml" if own else config, (source or "sample") if recipe else None, old=own
    )
    if race is not None:
        _check_network(race, settings.size)
    from fasteraa.search.progress import for_this_terminal
    from fasteraa.search.trackers import track

    shown = for_this_terminal()
    with track(*trackers, folder=out, config=settings, progress=shown, resume=resume) as progress:
        _search(source, settings, out, device, data_root, resume, max_minutes, race, progress)


def _check_minutes(race: Race) -> None:
    if not 0 < race.minutes < math.inf:
        raise ConfigError(f"--calibrate-minutes must be a positive number, got {race.minutes:g}; or say --no-calibrate")


def _check_network(race: Race, size: int | None) -> None:
    """Before the search: a wrong name would be noticed after it."""
    if race.network is not None:
        from fasteraa.search.run import check_backbone

        check_backbone(SearchConfig(backbone=race.network, size=size))


def _search(
    source: str | None,
    settings: SearchConfig,
    out: Path,
    device: str,
    data_root: Path | None,
    resume: bool,
    max_minutes: float | None,
    race: Race | None,
    progress: Progress,
) -> None:
    from fasteraa.report.preview import draw_sheet
    from fasteraa.report.summary import summarise
    from fasteraa.search.folder import RunFolder
    from fasteraa.search.lock import alone_in
    from fasteraa.search.run import search

    folder = RunFolder(out)
    flags = {**({} if device == "auto" else {"device": device}), **(NO_RACE if race is None else race.flags())}
    try:
        result = search(
            source,
            settings,
            out=out,
            resume=resume,
            device=device,
            data_root=data_root,
            max_minutes=max_minutes,
            progress=progress,
        )
    except Stopped:
        folder.keep_flags(flags)
        raise
    folder.keep_flags(flags)
    policy, summary = result.policy, summarise(result.start, result.policy)
    if result.data.masks is not None:
        summary = f"{_about_masks(result)}\n\n{summary}"
    elif race is not None and result.finished:
        try:
            with alone_in(out):
                calibration = _calibrate(result, settings, race, folder, device, progress.say)
        # such data say nothing about how much, or are too small for --calibrate-network: no reason to lose the summary
        except (RaceError, ConfigError) as error:
            summary += f"\n\n{error}\nThe policy is as the search found it."
        else:
            policy = calibration.policy(result.policy)
            result.policy.save(folder.found)
            policy.save(folder.policy)
            summary += f"\n\nHow much of it to apply:\n{calibration.words()}"
            if policy.sub_policies != result.policy.sub_policies:
                summary += (
                    f"\n{folder.policy.name} is that one; the policy above, which was found, is {folder.found.name}."
                )
    if not result.finished:
        later = ", and calibrates then" if race is not None and result.data.masks is None else ""
        summary += f"\n\nended early, after {len(result.epochs)} of {result.planned} epochs (--resume goes on{later})"
    folder.write(folder.summary, summary + "\n")
    with folder.replacing(folder.preview) as partial:
        images, masks = _shown(result.data, source, settings, data_root)
        draw_sheet(policy, images, masks=masks).save(partial)
    typer.echo(f"\n{summary}\n\n{_use(folder, policy, result.data.masks is not None)}")


def _calibrate(
    result: SearchResult,
    settings: SearchConfig,
    race: Race,
    folder: RunFolder,
    device: str,
    say: Callable[[str], None],
) -> Calibration:
    try:  # from here on: to import what follows takes a while, too
        from fasteraa.evaluate.calibrate import calibrate, race_recipe, usual_candidates
        from fasteraa.evaluate.effects import operations_to_test
        from fasteraa.evaluate.verdict import CREDIT

        recipe = race_recipe(result.data, device, race.network, race.epochs)
        recipe = replace(recipe, crop=settings.crop, flip=settings.flip)
        candidates = usual_candidates(result.start, result.policy, result.halfway, settings.ops)
        return calibrate(
            result.data,
            candidates,
            minutes=race.minutes,
            recipe=recipe,
            device=device,
            folder=folder.path / "calibration",
            seed=settings.seed,
            ops=operations_to_test(settings.ops),
            credit=CREDIT if race.epochs is None else 0.0,  # who knows the epochs has the trainings to come raced
            say=say,
        )
    except (Stopped, KeyboardInterrupt) as stopped:  # the second one between trainings
        number = stopped.signal if isinstance(stopped, Stopped) else next(iter(stopped.args), signal.SIGINT)
        raise Stopped(
            f"calibration was stopped; {str(folder.policy)!r} holds the found policy as the search left it: add "
            "--resume to calibrate it",
            number,
        ) from None


def _shown(
    data: ImageSet, source: str | None, settings: SearchConfig, data_root: Path | None
) -> tuple[Tensor, Tensor | None]:
    """Images of a preview and their masks, which are of scenes: neighbours are often frames of one film."""
    from fasteraa.data import load
    from fasteraa.data.decode import CPU_SIDE
    from fasteraa.report.preview import alternating

    if data.masks is None:
        if settings.size is None and max(data.size) == CPU_SIDE:  # photographs may have been made small for the search
            data = load(
                source,
                data_root=data_root,
                at_most=64,
                classes=settings.classes,
                held_out=settings.held_out,
                seed=settings.seed,
                broken_budget=1.0,
            )
        return data.images[alternating(data.labels)[:64]], None
    step = max(1, len(data) // 6)
    order = [index for first in range(step) for index in range(first, len(data), step)][:64]
    return data.images[order], data.masks[order]


def _about_masks(result: SearchResult) -> str:
    classes = ", ".join(result.data.classes[:20]) + (", ..." if len(result.data.classes) > 20 else "")
    return (
        f"task: semantic segmentation, {len(result.data)} images with masks of {len(result.data.classes)} classes "
        f"({classes})\nThere is no calibration for masks: it trains classifiers. The policy is as the search found it."
    )


def _use(folder: RunFolder, policy: Policy, masks: bool) -> str:
    pairs = "sample_pairing" in policy.ops
    pool = ", ".join(["pool=train_images"] * pairs + ["mask_fill=255"] * masks)
    note = "   # it mixes in other images: a list of them, or uint8 (N, 3, H, W)" if pairs else ""
    files = [f"policy:  {folder.policy}", f"preview: {folder.preview}", f"summary: {folder.summary}"]
    return "\n".join(files) + (
        "\n\nUse it:\n\n"
        "    import fasteraa\n"
        f"    policy = fasteraa.load({str(folder.policy)!r})\n"
        f"    transform = policy.transform({pool}){note}\n\n"
        "transform takes Pillow images, uint8 tensors, masks and boxes; policy(batch) takes whole uint8 batches."
    )


def write_preview(
    source: str | None, policy: str, out: Path, size: int | None, columns: int, seed: int, data_root: Path | None
) -> None:
    from fasteraa.data import load
    from fasteraa.errors import DataError, reason
    from fasteraa.policy.find import find_policy
    from fasteraa.report.preview import alternating, draw_sheet

    found = find_policy(policy)
    if out.is_dir() or out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise DataError(f"a picture (--out) must be a file that ends in .png, .jpg or .webp, got {str(out)!r}")
    # partners of sample_pairing come from the images beside those shown; a broken one is not missed here
    data = load(source, size=size, data_root=data_root, seed=seed, at_most=max(columns, 64), broken_budget=1.0)
    order = slice(None) if data.masks is not None else alternating(data.labels)
    sheet = draw_sheet(found, data.images[order], columns, seed=seed, masks=data.masks)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(out)
    except OSError as error:
        raise DataError(f"the picture {str(out)!r} could not be written: {reason(error)}") from error
