"""Settings: the paper's defaults, TOML round trips, and mistakes."""

import pytest

from fasteraa.errors import ConfigError, FasterAAError, RunError
from fasteraa.methods.config import (
    FIELDS,
    SearchConfig,
    check_same,
    make_config,
    paper_settings,
    read_config,
    read_tables,
    resolve_defaults,
)
from fasteraa.ops import Span, find


def test_the_papers_settings_are_the_defaults_where_ours_are_not():
    config = resolve_defaults(SearchConfig(), 4_000)
    assert (config.epochs, config.batch_size, config.sub_policies, config.operation_count) == (20, 128, 10, 2)
    assert (config.learning_rate, config.beta1, config.beta2) == (1e-3, 0.0, 0.999)
    assert (config.penalty, config.class_weight) == (10.0, 0.1)
    assert config.choice_temperature == config.gate_temperature == 0.05
    assert config.objective == "diverse"  # ours
    assert all(each.metadata["about"] for each in FIELDS.values())


@pytest.mark.parametrize("source", ["cifar10", "cifar100", "svhn", "imagenet"])
def test_the_papers_cutout_reaches_a_fifth_of_the_side(source):
    """Fast AutoAugment's range, which the paper takes over. The operation's own span stays as it is."""
    config = make_config(paper_settings(source))
    assert config.spans == {"cutout": Span(0, 0.2, "width")}
    assert find("cutout").span == Span(0, 0.5, "width")
    assert make_config(config.plain()) == config


CHANGED = SearchConfig(
    seed=3, subset=40, ops=("flip", "rotate"), flip=False, learning_rate=2e-3, spans={"rotate": Span(0, 90, "degree")}
)


@pytest.mark.parametrize("config", [SearchConfig(), CHANGED])
def test_toml_round_trip(config, tmp_path):
    (tmp_path / "run.toml").write_text(config.toml("search"))
    assert make_config(read_config(tmp_path / "run.toml")) == config
    assert make_config(config.plain()) == config


def test_plain_toml_and_whole_numbers():
    assert make_config({"penalty": 3}) == SearchConfig(penalty=3.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unknown setting 'epoch': did you mean 'epochs'"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"epochs": 0}, "epochs must be a number of at least 1, got 0"),
        ({"batch_size": 5}, "must be even"),
        ({"learning_rate": 0}, "learning_rate must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive"),
        ({"crop": 1.0}, "crop must be below 1, got 1.0"),
        ({"crop": -0.1}, "crop must be a number of at least 0, got -0.1"),
        ({"flip": 1}, "flip must be true or false"),
        ({"spans": {"rotate": 3}}, "must have at_zero, at_one and unit"),
        ({"spans": 3}, "spans must be a table"),
        ({"seed": 2**64}, "seed must be below 9.22337e"),
        ({"penalty": float("inf")}, "penalty must be a number of at least 0, got inf"),
        ({"ops": ["flip", "rotat"]}, "unknown operation 'rotat': did you mean 'rotate'"),
        ({"ops": "flip"}, "ops must be a list, got 'flip'"),
        ({"ops": []}, "no operation was chosen"),
        ({"ops": [1]}, "ops must be a list, each of it text"),
        ({"fill": [0, 0, 256]}, "fill must be three levels"),
        ({"spans": {"rotat": {"at_zero": 0, "at_one": 9, "unit": "degree"}}}, "did you mean 'rotate'"),
        ({"spans": {"rotate": {"at_zero": 0, "at_one": 9, "unit": "px"}}}, "must have the unit degree, got 'px'"),
        ({"spans": {"rotate": {"at_zero": 0, "at_one": True, "unit": "degree"}}}, "must have at_zero"),
        ({"seed": -1}, "seed must be a number of at least 0"),
    ],
)
def test_mistakes(settings, message):
    for make in (make_config, lambda given: SearchConfig(**given)):  # from a file as from Python
        if make is make_config or set(settings) <= set(FIELDS):
            with pytest.raises(FasterAAError, match=message):
                make(settings)


def test_a_setting_that_was_renamed_is_called_by_its_new_name(tmp_path):
    with pytest.raises(ConfigError, match="the setting 'backbone' is called 'critic' now"):
        make_config({"backbone": "small"})
    (tmp_path / "old.toml").write_text('[search]\nbackbone = "small"\n')
    with pytest.raises(ConfigError, match=r"old\.toml' is of version 0\.1: the setting backbone is called critic now"):
        read_config(tmp_path / "old.toml")


def test_other_tables_of_a_run_stand_beside_the_settings(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("[search]\nepochs = 3\n[run]\nrace = true\n[race]\nminutes = 2\n[train]\nepochs = 9\n")
    assert read_config(file) == {"epochs": 3}
    assert read_tables(file)["train"] == {"epochs": 9}
    file.write_text("epochs = 3\n[race]\nminutes = 2\n")
    assert read_config(file) == {"epochs": 3}
    file.write_text("[search]\nepochs = 3\n[serach]\nepochs = 4\n")
    with pytest.raises(ConfigError, match=r"at the top level or all in \[search\], got 'serach' beside it"):
        read_config(file)
    file.write_text("search = 3\n")
    with pytest.raises(ConfigError, match=r"got search = 3"):
        read_config(file)


def test_a_run_is_resumed_with_its_own_settings(tmp_path):
    """But for those that do not change what it finds, and for more epochs."""
    old = SearchConfig(epochs=3, ops=("flip",)).plain()
    check_same(SearchConfig(epochs=4, ops=("flip",), fast=False, kernels=False, deterministic=False), old, tmp_path)
    with pytest.raises(RunError, match=r"was started with ops = \('flip',\), now it is None: resume it with its own"):
        check_same(SearchConfig(epochs=3), old, tmp_path)
    check_same(SearchConfig(epochs=3, ops=("flip",), batch_size=4), old, tmp_path, but=("batch_size",))


def test_bad_files(tmp_path):
    with pytest.raises(ConfigError, match="could not be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[search\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "typo.toml").write_text("[search]\nepocs = 3\n")
    with pytest.raises(ConfigError, match=r"typo\.toml': unknown setting 'epocs': did you mean 'epochs'"):
        read_config(tmp_path / "typo.toml")


@pytest.mark.parametrize(("images", "batch"), [(4_000, 128), (128, 128), (127, 126), (100, 100), (5, 4)])
def test_a_batch_is_no_larger_than_the_images(images, batch):
    assert resolve_defaults(SearchConfig(), images).batch_size == batch
    assert resolve_defaults(SearchConfig(epochs=1), images).batch_size == batch


def test_few_images_make_more_passes():
    """The paper's 20, unless that is fewer than 300 steps."""
    assert resolve_defaults(SearchConfig(), 2_000).epochs == 20  # 15 steps each
    assert resolve_defaults(SearchConfig(), 1_919).epochs == 22  # 14 steps each
    assert resolve_defaults(SearchConfig(batch_size=64), 300).epochs == 75
    assert resolve_defaults(SearchConfig(), 100).epochs == 300
    assert resolve_defaults(SearchConfig(epochs=3), 300).epochs == 3
