"""The settings of a race: its budget, and the training that judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fasteraa.errors import ConfigError
from fasteraa.methods.config import PRETRAINED, SearchConfig
from fasteraa.runtime.settings import Settings, setting

JUDGES = ("auto", "training", "probe")
METRICS = ("error", "balanced-error", "loss")  # by which policies are called better


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
        "training, and none without a race where a CPU lacks the time.",
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


def with_critic_weights(config: SearchConfig, race: RaceConfig | None) -> SearchConfig:
    """Where the critic is the network that is fine-tuned, it begins with what that begins with."""
    if race is None or not race.fine_tunes or config.critic != race.network or config.critic_weights is not None:
        return config
    return replace(config, critic_weights=race.weights or PRETRAINED)
