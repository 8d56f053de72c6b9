"""The settings of a race: its budget, and the training that judges."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fasteraa.errors import ConfigError, RunError
from fasteraa.methods import Method
from fasteraa.methods.config import PRETRAINED, SearchConfig, read_tables
from fasteraa.runtime.documents import cut, quoted
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.settings import Settings, setting, toml_value

JUDGES = ("auto", "training", "probe")
METRICS = ("error", "balanced-error", "loss")  # by which policies are called better

if TYPE_CHECKING:
    from fasteraa.data import ImageSet
    from fasteraa.train.recipe import TrainRecipe

_QUICK_NETWORK = "wrn-16-2"  # on a GPU: many epochs tell more than a large network
_QUICK_SIDE = 128  # up to which it is quick; above, the network for CPUs takes its place
_GPU_EPOCHS = 200  # where the budget allows; the recipe of the small network is one for CPUs
_GPU_STEPS = 1_200  # the same
_CPU_EPOCHS = 100  # a policy for these does well after half and after twice as many: results/adapt
_COPIES = 4  # augmented, of every image, for a probe
_MANY_IMAGES = 2_000  # from which on batches are twice as large


@dataclass(frozen=True, kw_only=True)
class RaceConfig(Settings):
    """How a search ends. `about` of each field is its help on the command line."""

    minutes: float = setting(1.5, "What the race may take, trainings of methods included.", above=0)
    trainings: int | None = setting(
        None, "A number of trainings instead of minutes: then the same seed gives the same policy.", least=2
    )
    network: str | None = setting(None, "What is trained: the network that you will train, if it is a small one.")
    pretrained: bool = setting(False, "Fine-tune timm's own weights of the network (--network timm:NAME).")
    weights: str = setting("", "Fine-tune the weights in this file (.safetensors, or a state dict of torch.save).")
    epochs: int | None = setting(
        None,
        "Epochs of your own training: the race chooses for this length (default: 100 on a CPU, 200 on a GPU).",
        least=1,
    )
    tune: bool = setting(
        False, "Take learning rate and weight decay from a small grid first, measured without a policy."
    )
    judge: str = setting(
        "auto",
        "How fine-tuning judges: training (the whole network), probe (a linear head on frozen features), or auto: "
        "training, and probe where a CPU lacks the time.",
        choices=JUDGES,
    )
    metric: str = setting(
        "error", "What the race minimises: error, balanced-error (every class counts alike) or loss.", choices=METRICS
    )
    validation: str = setting(
        "", "Measure on these images instead of a part of the training images: a split (val) or a folder."
    )
    group_by: str = setting(
        "", "Images of one group are held out together: a column of a manifest, or a pattern on file names."
    )
    prior: str = setting(
        "", "A file that tools/prior.py fitted: the race predicts with its lines, not with those of the package."
    )
    train: Mapping[str, Any] = field(default_factory=dict, metadata={"about": "Other settings of the training."})

    def __post_init__(self) -> None:
        super().__post_init__()
        from fasteraa.train.recipe import check_one_of_both, check_weights_of

        check_one_of_both(self.pretrained, self.weights)
        check_weights_of(self.train, self.pretrained, self.weights)
        if not self.fine_tunes and (self.judge == "probe" or self.train.get("freeze")):
            asked = "judge = probe" if self.judge == "probe" else "train.freeze"
            raise ConfigError(
                f"{asked} trains a head alone, so the body needs weights of its own: --pretrained, or --weights FILE"
            )

    @property
    def fine_tunes(self) -> bool:
        """Whether the training begins with weights of another task."""
        return self.pretrained or bool(self.weights)

    def _converted(self, name: str, value: Any) -> Any:
        if name != "train":
            return super()._converted(name, value)
        if not isinstance(value, Mapping):
            raise ConfigError(f"train must be a table of settings, got {value!r}")
        from fasteraa.train.recipe import TrainRecipe

        TrainRecipe.make(value)  # a wrong name or value is noticed here
        return dict(value)


def race_recipe(data: ImageSet, device: str, config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """That of the training which is to come, where `network` and `epochs` say so, with the search's crop and flip.

    Otherwise of a network that is trained for many epochs within the time of a race.
    """
    from fasteraa.train.recipe import check_input

    if race.fine_tunes:
        recipe = suiting(fine_tuning(config, race), _of_a_fold(len(data)), race)
    else:
        recipe = _from_scratch(data, device, config, race)
    check_input(recipe, data.size, data.name)
    return recipe


def suiting(recipe: TrainRecipe, images: int, race: RaceConfig) -> TrainRecipe:
    """A fine-tuning with epochs and batches that suit so many training images, where none are asked for."""
    from fasteraa.train.recipe import finetuned_on

    if not recipe.fine_tunes:
        return recipe
    return finetuned_on(recipe, images, (*race.train, "epochs") if race.epochs else race.train)


def _of_a_fold(images: int) -> int:
    """Training images, where a fold of all is held out."""
    from fasteraa.methods.task import FOLDS

    return max(images * (FOLDS - 1) // FOLDS, 1)


def _from_scratch(data: ImageSet, device: str, config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    from fasteraa.runtime.device import find_device
    from fasteraa.train.recipe import choose_recipe, with_settings

    on_cpu, side = find_device(device).type == "cpu", min(data.size)
    quick = "small" if on_cpu or side > _QUICK_SIDE else _QUICK_NETWORK
    recipe = choose_recipe(len(data), side, device, race.network or quick)
    if not on_cpu:
        if race.network is None:
            recipe = _in_large_batches(recipe, len(data))
        recipe = _long_enough(recipe, len(data))
    elif race.network is None:  # of the training to come nothing is known
        recipe = replace(recipe, epochs=max(recipe.epochs, _CPU_EPOCHS))
    recipe = replace(recipe, epochs=race.epochs or recipe.epochs, cutout=0, crop=config.crop, flip=config.flip)
    return with_settings(recipe, race.train)


def fine_tuning(config: SearchConfig, race: RaceConfig) -> TrainRecipe:
    """The training that is to come, as it is: crop and flip come with it, for every policy."""
    from fasteraa.train.recipe import finetune_recipe, with_settings

    network = race.network or "auto"
    recipe = finetune_recipe(network, pretrained=race.pretrained, weights=race.weights, side=config.size)
    recipe = replace(recipe, epochs=race.epochs or recipe.epochs, flip=config.flip)
    recipe = with_settings(recipe, race.train)
    return probing(recipe) if race.judge == "probe" else recipe


def with_critic_weights(config: SearchConfig, race: RaceConfig | None) -> SearchConfig:
    """Where the critic is the network that is fine-tuned, it begins with what that begins with."""
    if race is None or not race.fine_tunes or config.critic != race.network or config.critic_weights is not None:
        return config
    return replace(config, critic_weights=race.weights or PRETRAINED)


def probing(recipe: TrainRecipe) -> TrainRecipe:
    """A head on the features of a few augmented copies: many times cheaper, and blind to what the body would learn."""
    return replace(recipe, freeze=True, copies=_COPIES, mixup=0.0, cutmix=0.0, accumulate=1)


def _long_enough(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Few images make few steps of an epoch: more epochs."""
    steps = max(_of_a_fold(images) // recipe.batch_size, 1)
    return replace(recipe, epochs=max(recipe.epochs, _GPU_EPOCHS, math.ceil(_GPU_STEPS / steps)))


def _in_large_batches(recipe: TrainRecipe, images: int) -> TrainRecipe:
    """Where there are many images, which a GPU gets through faster that way."""
    if images < _MANY_IMAGES:
        return recipe
    return replace(recipe, batch_size=2 * recipe.batch_size, learning_rate=2 * recipe.learning_rate)


def write_settings(
    folder: RunFolder,
    config: SearchConfig,
    race: RaceConfig | None,
    methods: Sequence[Method],
    training: RaceConfig | None = None,
) -> None:
    """config.toml: from here on the folder holds a run."""
    folder.write_config(settings_text(config, race, methods, training=training))


def check_same_race(
    folder: RunFolder, config: SearchConfig, race: RaceConfig | None, methods: Sequence[Method]
) -> None:
    """A race that was begun is resumed with its own settings, or more minutes: another would replace its answer."""
    tables = read_tables(folder.config)
    if race is None or not tables["run"].get("race"):
        return
    before = _race_values(tables, methods)
    now = _race_values(tomllib.loads(settings_text(config, race, methods)), methods)
    others = [
        f"{name} = {quoted(before.get(name), 60)}, now {quoted(now.get(name), 60)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if others:
        raise RunError(
            f"the race in {str(folder.path)!r} was begun with {cut('; '.join(others))}: resume it with its own "
            "settings (more minutes are welcome), or choose another folder (--out)"
        )


def _race_values(tables: Mapping[str, Any], methods: Sequence[Method]) -> dict[str, Any]:
    """Whatever makes it another race, by name; a setting that a file of an earlier version lacks is as by default."""
    race = RaceConfig.make(tables.get("race", {})).plain()
    own = {each.name: type(each.settings) for each in methods if each.settings is not None}
    settings = {name: kind.make(tables.get("methods", {}).get(name, {})).plain() for name, kind in own.items()}
    return {
        "methods": tables["run"].get("methods"),
        **{name: value for name, value in race.items() if name not in ("minutes", "train")},
        **{f"train.{name}": value for name, value in tables.get("train", {}).items()},
        **{f"{name}.{key}": value for name, each in settings.items() for key, value in each.items()},
    }


def settings_text(
    config: SearchConfig,
    race: RaceConfig | None,
    methods: Sequence[Method],
    explain: bool = False,
    training: RaceConfig | None = None,
) -> str:
    """All settings of a run as TOML; to `explain`, those of the training that are as its recipe says as well.

    Without a race `training` is that of the methods.
    """
    names = [method.name for method in methods]
    text = (
        config.toml("search") + "\n" + f"[run]\nmethods = {toml_value(names)}\nrace = {toml_value(race is not None)}\n"
    )
    race = race or training
    if race is not None:
        text += "\n" + replace(race, train={}).toml("race")
        rows = _train_rows(race) if explain else "".join(_row(name, value) for name, value in race.train.items())
        text += f"\n[train]\n{rows}" if rows else ""
    own = [method.settings.toml(f"methods.{method.name}") for method in methods if method.settings is not None]
    return "\n".join([text, *own])


def _row(name: str, value: Any) -> str:
    return f"{name} = {toml_value(value)}\n"


def _train_rows(race: RaceConfig) -> str:
    """Every setting of the training with its meaning; those that follow from the images stand as comments."""
    from fasteraa.train.recipe import TrainRecipe

    lines = []
    for name, each in TrainRecipe.fields().items():
        if name in ("pretrained", "weights"):  # settings of the race
            continue
        lines.append(f"# {each.metadata['about']}\n")
        lines.append(_row(name, race.train[name]) if name in race.train else f"# {name} =\n")
    return "".join(lines)
