"""Weights from files: what fits is loaded, what does not is named, nothing is executed."""

import logging
import math
import os
import pickle
import zipfile

import pytest
import torch

from fasteraa.comparison.setup import check_network_builds
from fasteraa.errors import ConfigError
from fasteraa.nets import build, preprocessing
from fasteraa.nets.weights import read_weights

LITE0 = "timm:tf_efficientnet_lite0"


def test_the_network_says_what_its_images_are_like():
    known = preprocessing(LITE0)
    assert (known.mean, known.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert (known.side, known.crop, known.interpolation) == (224, 0.875, "bicubic")
    assert known.image_side() == 256
    assert known.image_side(64) == 74
    with pytest.raises(ConfigError, match="those of timm's networks"):
        preprocessing("wrn-40-2")


def test_a_head_of_another_size_is_replaced(lite0):
    network = build(LITE0, 7, 64, weights=lite0)
    theirs = read_weights(lite0)
    assert torch.equal(network.body.state_dict()["conv_stem.weight"], theirs["conv_stem.weight"])
    assert network.classifier.weight.shape[0] == 7
    whole = build(LITE0, 1000, 64, weights=lite0)
    assert torch.equal(whole.classifier.weight, theirs["classifier.weight"])


def test_state_dicts_of_torch_and_checkpoints_that_hold_one(lite0, tmp_path):
    plain, inner = tmp_path / "plain.pth", tmp_path / "inner.pt"
    torch.save(read_weights(lite0), plain)
    torch.save({"state_dict": read_weights(lite0), "epoch": 3}, inner)
    assert read_weights(plain).keys() == read_weights(inner).keys() == read_weights(lite0).keys()


def test_files_of_an_old_torch_and_networks_that_were_wrapped(lite0, tmp_path):
    tensors = read_weights(lite0)
    torch.save(tensors, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert all(torch.equal(tensors[name], each) for name, each in read_weights(tmp_path / "old.pth").items())
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        torch.save({"state_dict": {prefix + name: each for name, each in tensors.items()}}, tmp_path / "ddp.pth")
        assert read_weights(tmp_path / "ddp.pth").keys() == tensors.keys()


def test_an_old_file_is_held_to_the_same(tmp_path):
    """Nothing is executed, no size is believed, and what is cut short is named."""
    file = tmp_path / "old.pth"
    for content, message in (
        ({"a": Bomb()}, "hold other objects than tensors, which are not executed"),
        ({"a": torch.zeros(1).expand(10**12)}, "the tensor 'a' is larger than the file"),
        ({"a": torch.tensor([math.nan])}, "holds values that are not finite"),
    ):
        torch.save(content, file, _use_new_zipfile_serialization=False)
        with pytest.raises(ConfigError, match=message):
            read_weights(file)
    torch.save({"a": torch.zeros(100_000)}, file, _use_new_zipfile_serialization=False)
    file.write_bytes(file.read_bytes()[:200_000])
    with pytest.raises(ConfigError, match="could not be read"):
        read_weights(file)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_damaged_file_is_not_called_one_of_other_objects(is_new, tmp_path):
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    torch.save({"a": torch.ones(3)}, good, _use_new_zipfile_serialization=is_new)
    if is_new:
        with zipfile.ZipFile(good) as archive, zipfile.ZipFile(bad, "w") as damaged:
            for name in archive.namelist():
                damaged.writestr(name, b"\xff" * 20 if name.endswith("data.pkl") else archive.read(name))
    else:
        content = bytearray(good.read_bytes())
        content[17] = 255  # in its second pickle
        bad.write_bytes(content)
    with pytest.raises(ConfigError, match="could not be read: the file is damaged"):
        read_weights(bad)
    torch.save({"a": Bomb()}, good, _use_new_zipfile_serialization=is_new)
    with pytest.raises(ConfigError, match="hold other objects than tensors"):
        read_weights(good)


@pytest.mark.parametrize("name", ["levit_128s", "deit_tiny_distilled_patch16_224"])
def test_heads_with_a_norm_and_heads_that_are_two_are_replaced(name, tmp_path):
    timm = pytest.importorskip("timm")
    whole = timm.create_model(name, num_classes=3).state_dict()
    torch.save(whole, tmp_path / "own.pth")
    state = torch.get_rng_state()
    fresh = build(f"timm:{name}", 3, 224).classifier.weight
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    net = build(f"timm:{name}", 3, 224, weights=tmp_path / "own.pth")
    assert torch.equal(net.classifier.weight, fresh)
    assert torch.equal(torch.get_rng_state(), after)  # to look for the head draws nothing
    assert all(torch.equal(whole[each], tensor) for each, tensor in net.body.state_dict().items())
    whole["extra.weight"] = torch.zeros(1)
    torch.save(whole, tmp_path / "own.pth")
    with pytest.raises(ConfigError, match=r"are not known to it: extra\.weight$"):
        build(f"timm:{name}", 3, 224, weights=tmp_path / "own.pth")


def test_weights_of_another_network_are_named(lite0, tmp_path):
    with pytest.raises(
        ConfigError, match=r"another network: these tensors are not known to it: blocks\.0\.0\.bn1.* more$"
    ):
        build("timm:resnet18", 3, 64, weights=lite0)
    tensors = read_weights(lite0)
    short = tmp_path / "short.pth"
    torch.save({name: tensor for name, tensor in tensors.items() if not name.startswith("bn1")}, short)
    with pytest.raises(ConfigError, match=r"are missing: bn1\.weight, bn1\.bias, bn1\.running_mean, bn1\.running_var"):
        build(LITE0, 3, 64, weights=short)
    tensors["conv_stem.weight"] = tensors["conv_stem.weight"][:3]
    torch.save(tensors, short)
    with pytest.raises(ConfigError, match=r"have another shape: conv_stem\.weight"):
        build(LITE0, 3, 64, weights=short)


def test_counts_of_batches_alone_may_be_missing(lite0, tmp_path):
    tensors = {name: each for name, each in read_weights(lite0).items() if not name.endswith("num_batches_tracked")}
    assert len(tensors) < len(read_weights(lite0))
    torch.save(tensors, tmp_path / "w.pth")
    network = build(LITE0, 3, 64, weights=tmp_path / "w.pth")
    assert torch.equal(network.body.state_dict()["bn1.running_mean"], tensors["bn1.running_mean"])


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("it was executed",)


@pytest.mark.parametrize("content", [b"", b"no weights", pickle.dumps({"a": Bomb()})])
def test_files_that_hold_no_weights(content, tmp_path):
    for name in ("w.pth", "w.safetensors"):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="could not be read"):
            build(LITE0, 3, 64, weights=file)
    with pytest.raises(ConfigError, match="no such file"):
        build(LITE0, 3, 64, weights=tmp_path / "gone.pth")
    os.mkfifo(tmp_path / "pipe.pth")
    with pytest.raises(ConfigError, match="it is a pipe, not a regular file"):
        build(LITE0, 3, 64, weights=tmp_path / "pipe.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ConfigError, match="must hold a state dict"):
        build(LITE0, 3, 64, weights=tmp_path / "list.pth")


def test_weights_that_grow_or_are_no_numbers(tmp_path):
    """A compressed file, a tensor of one value that pretends to be many, and what a flipped bit may leave."""
    file = tmp_path / "w.pth"
    torch.save({"a": torch.zeros(100_000)}, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ConfigError, match="could not be read: it is compressed"):
        read_weights(tmp_path / "small.pth")
    torch.save({"a": torch.zeros(1).expand(10**12)}, file)
    with pytest.raises(ConfigError, match="the tensor 'a' is larger than the file"):
        read_weights(file)
    torch.save({"a": torch.tensor([1, 2]), "b": torch.tensor([0.5, math.nan])}, file)
    with pytest.raises(ConfigError, match="the tensor 'b' holds values that are not finite"):
        read_weights(file)


def test_a_tag_of_pretrained_weights_is_not_silently_random():
    with pytest.raises(ConfigError, match=r"names pretrained weights .* say --pretrained"):
        build("timm:resnet18.a1_in1k", 3, 64)


def test_only_networks_of_timm_come_with_weights():
    with pytest.raises(ConfigError, match="only timm's networks come with weights"):
        build("wrn-16-1", 3, 32, pretrained=True)


def test_own_networks_take_their_own_weights(tmp_path):
    first = build("wrn-10-1", 3, 32)
    torch.save(first.state_dict(), tmp_path / "own.pth")
    second = build("wrn-10-1", 5, 32, weights=tmp_path / "own.pth")
    same = first.state_dict().keys() - {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(first.state_dict()[name], second.state_dict()[name]) for name in same)


def test_weights_that_cannot_be_downloaded_are_one_line(monkeypatch, caplog):
    """The hub is asked once, without a line about each of its tries."""
    import huggingface_hub
    import timm

    def fail(*names, **settings):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 8s")
        raise OSError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *names, **settings: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "file_exists", fail)
    monkeypatch.setattr(timm, "create_model", pytest.fail)  # it would try for long
    with pytest.raises(ConfigError, match=r"pretrained weights of 'resnet18' could not be had \(no route to the hub\)"):
        build("timm:resnet18", 3, 64, pretrained=True)
    assert not caplog.records


def test_a_transformer_takes_weights_of_another_input_size(tmp_path):
    timm = pytest.importorskip("timm")
    whole = timm.create_model("test_vit", num_classes=3)
    torch.save(whole.state_dict(), tmp_path / "vit.pth")
    net = build("timm:test_vit", 3, 96, weights=tmp_path / "vit.pth")
    assert net.body.pos_embed.shape[1] < whole.pos_embed.shape[1]
    assert torch.equal(net.body.blocks[0].attn.qkv.weight, whole.blocks[0].attn.qkv.weight)
    assert net(torch.zeros(1, 3, 96, 96)).shape == (1, 3)
    means = [each.detach().mean().item() for each in (net.body.pos_embed, whole.pos_embed)]
    assert means[0] == pytest.approx(means[1], abs=0.02)


def test_a_network_that_takes_one_size_alone_says_so():
    pytest.importorskip("timm")
    with pytest.raises(
        ConfigError, match=r"'timm:test_vit' does not take images of 100x100 \(.*\): it is made for 160"
    ):
        check_network_builds("timm:test_vit", 100, False, "")
    check_network_builds("timm:test_vit", 96, False, "")
