"""Ranks that share a training: gradients, statistics of norm layers and errors are those of one process."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from torch import nn

from fasteraa.data.lazy_set import LazyImageSet
from fasteraa.data.resolve import open_source
from fasteraa.errors import ConfigError, OutOfTime, RunError, Stopped
from fasteraa.nets.norm import BatchNorm2d
from fasteraa.nets.shared_norm import SharedBatchNorm, share_statistics
from fasteraa.policy.named import named
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.train.job import TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.runner.shared import SharedRunner, tell_end, train_along
from fasteraa.train.split import Split
from fasteraa.train.trainer import train_together
from fasteraa.train.training import Training, TrainingRun

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def _as_rank(rank, size, work, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(work(Ranks(rank, size, joined=True)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def on_ranks(size, work, folder):
    """What `work(ranks)` returns on each of so many processes, which speak gloo."""
    folder.mkdir(exist_ok=True)
    mp.start_processes(_as_rank, (size, work, str(folder)), size, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


# --- norm layers -----------------------------------------------------------------------------------------------------


def normalised(layer, x, ranks):
    """Output, gradients of the image and of the parameters, statistics."""
    x = x[ranks.rows(len(x))].clone().requires_grad_()
    out = layer(x)
    (out * torch.linspace(-1, 2, out[0].numel()).view(out[0].shape)).sum().backward()
    gradients = [layer.weight.grad, layer.bias.grad]
    ranks.sum_(gradients)
    whole = [ranks.whole(each, 7) for each in (out.detach(), x.grad)] if ranks.joined else [out.detach(), x.grad]
    return [*whole, *gradients, layer.running_mean, layer.running_var, layer.num_batches_tracked]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.BatchNorm2d(3), (7, 3, 4, 5)),
        (lambda: nn.BatchNorm2d(3, momentum=None), (7, 3, 2, 2)),
        (lambda: BatchNorm2d(3), (7, 3, 4, 5)),
        (lambda: nn.BatchNorm1d(6), (7, 6)),
    ],
)
def test_a_shared_batch_norm_is_that_of_the_whole_batch(make, shape, tmp_path):
    """7 images are 3 and 4."""
    x = 3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = normalised(make(), x, ALONE)
    shares = on_ranks(2, lambda ranks: normalised(share_statistics(make(), ranks), x, ranks), tmp_path / "ranks")
    for share in shares:
        for mine, whole in zip(share, expected, strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-4, atol=1e-5)
    alone = normalised(share_statistics(make(), ALONE), x, ALONE)
    for mine, whole in zip(alone, expected, strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-4, atol=1e-5)


def test_timms_norm_layer_keeps_its_activation(tmp_path):
    timm = pytest.importorskip("timm")
    x = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = timm.layers.BatchNormAct2d(4)(x)
    layer = share_statistics(timm.layers.BatchNormAct2d(4), ALONE)
    torch.testing.assert_close(layer(x), expected)
    assert isinstance(layer, SharedBatchNorm)
    assert float(layer(x).detach().min()) == 0.0


def test_a_layer_that_cannot_be_shared_is_named():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm3d(2))
    with pytest.raises(ConfigError, match="ranks cannot share a network with BatchNorm3d at '1'"):
        share_statistics(network, Ranks(0, 2))


# --- trainings -------------------------------------------------------------------------------------------------------


@pytest.fixture
def recipe(tiny):
    """In float32, with all that draws random numbers. Rates are small: rounding grows with what a step changes."""
    return replace(tiny, epochs=2, precision="float32", crop=0.125, flip=True, cutout=2, learning_rate=0.002)


def trained(data, held_out, recipe, ranks, **more):
    run = TrainingRun(named("trivialaugment-wide"), recipe, 3, **more)
    (found,) = train_together(data, held_out, [run], device="cpu", ranks=ranks)
    return {
        "network": found.network.state_dict(),
        "numbers": [found.train_loss, found.held_out_loss, found.balanced_loss, found.error, found.error_top5],
    }


def same(share, whole, rtol=2e-4):
    for name, expected in whole["network"].items():
        torch.testing.assert_close(share["network"][name], expected, rtol=rtol, atol=1e-5, msg=lambda m, n=name: n + m)
    assert share["numbers"] == pytest.approx(whole["numbers"], rel=rtol)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        (3, {"mixup": 1.0, "cutmix": 1.0, "clip": 0.1}),  # 16 images are 5, 5 and 6
        (2, {"optimizer": "adamw", "accumulate": 3, "ema": 0.9, "label_smoothing": 0.1, "learning_rate": 1e-5}),
    ],
)
def test_ranks_train_as_one_process(size, changes, data, held_out, recipe, tmp_path):
    recipe = replace(recipe, **changes)
    whole = trained(data, held_out, recipe, ALONE)
    shares = on_ranks(size, lambda ranks: trained(data, held_out, recipe, ranks), tmp_path / "ranks")
    same(shares[0], whole)
    for share in shares[1:]:  # exactly, or the ranks would drift apart
        assert all(torch.equal(share["network"][name], mine) for name, mine in shares[0]["network"].items())
        assert share["numbers"] == shares[0]["numbers"]


@pytest.fixture
def folder(tmp_path):
    """17 pictures of two classes."""
    rng = np.random.default_rng(0)
    for number in range(17):
        pixels = rng.integers(0, 256, (9 + number % 3, 11, 3), dtype=np.uint8)
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "pictures"


def test_images_in_files_are_decoded_once(folder, recipe, tmp_path, monkeypatch):
    """Each rank reads its part of a batch; the numbers are those of one process, which reads all."""
    opened = open_source(folder)
    data = LazyImageSet.of(opened.listing("train"), "pictures", (8, 8))
    recipe = replace(recipe, batch_size=5, epochs=1)  # the last batch is measured by all
    reads = []
    monkeypatch.setattr("fasteraa.train.worker_batches.worker_count", lambda: 0)
    real = LazyImageSet.read
    monkeypatch.setattr(LazyImageSet, "read", lambda self, place: (reads.append(place), real(self, place))[1])

    def work(ranks):
        reads.clear()
        return {**trained(data, data, recipe, ranks), "reads": len(reads)}

    whole = work(ALONE)
    shares = on_ranks(2, work, tmp_path / "ranks")
    for share in shares:
        same(share, whole)
    sample = len(data)  # read by each for the mean colour
    assert sum(share["reads"] - sample for share in shares) <= whole["reads"] - sample + 4


def test_another_rank_continues_from_the_checkpoint_of_the_first(data, held_out, recipe, tmp_path):
    """With another number of ranks: it was begun by one."""
    whole = trained(data, held_out, recipe, ALONE)
    checkpoint = tmp_path / "begun.pt"
    run = TrainingRun(named("trivialaugment-wide"), recipe, 3, checkpoint)
    with pytest.raises(OutOfTime, match="1 of 2"):
        train_together(data, held_out, [run], device="cpu", until=lambda: 0.0)
    assert checkpoint.exists()

    def work(ranks):
        return trained(data, held_out, recipe, ranks, checkpoint=checkpoint if ranks.is_first else None)

    for share in on_ranks(2, work, tmp_path / "ranks"):
        same(share, whole)
    assert not checkpoint.exists()


def test_a_signal_of_one_rank_ends_all_of_them(data, held_out, recipe, tmp_path, monkeypatch):
    import signal

    from fasteraa.train import group

    @contextmanager
    def caught_by_the_second(all_of_them):
        assert all_of_them
        yield [signal.SIGTERM] if dist.get_rank() == 1 else []

    def work(ranks):
        try:
            trained(data, held_out, recipe, ranks)
        except KeyboardInterrupt as stopped:
            return stopped.args
        except Stopped as stopped:
            return str(stopped)

    monkeypatch.setattr(group, "defer_signals", caught_by_the_second)
    assert on_ranks(2, work, tmp_path / "ranks") == [
        (signal.SIGTERM,),
        "stopped by SIGTERM, as the first rank reports",
    ]


def test_more_ranks_than_images_of_a_step(data, recipe):
    with pytest.raises(ConfigError, match=r"17 ranks share batches of 16: at most 16 ranks \(--nproc-per-node\)"):
        Training(data, named("none"), recipe, 0, CPU, ranks=Ranks(0, 17))
    Ranks(0, 4).check_shares(16, 3)
    with pytest.raises(ConfigError, match="5 ranks share batches of 16 in 3 parts: at most 4 ranks"):
        Ranks(0, 5).check_shares(16, 3)


# --- the runner ------------------------------------------------------------------------------------------------------


def test_the_first_rank_decides_and_the_others_train_along(data, held_out, recipe, tmp_path):
    """Finished jobs are not trained again; one for which there is no time is left out, and nobody waits for it."""
    split = Split(data, held_out, "test images")
    jobs = [TrainJob("wide", named("trivialaugment-wide"), recipe, seed, split) for seed in range(3)]
    alone = RunCache(tmp_path / "alone").open()
    with LocalRunner(alone, device="cpu", jobs=1) as runner:
        expected = {job.key: outcome.loss for job, outcome in runner.run(jobs)}
    folder = tmp_path / "shared"
    RunCache(folder).open().write(jobs[0], dict(alone.read(jobs[0]).record))

    def work(ranks):
        if not ranks.is_first:
            return train_along(ranks, split, "cpu")
        with SharedRunner(RunCache(folder), ranks, "cpu") as runner:
            assert list(runner.run(jobs[1:], until=0.0)) == []
            found = {job.key: outcome.loss for job, outcome in runner.run(jobs)}
            assert runner.estimate(jobs) > 0
            tell_end(ranks, "done")
            return found

    found, said = on_ranks(2, work, tmp_path / "ranks")
    assert said == "done"
    assert found == pytest.approx(expected, rel=2e-4)
    assert len(list((folder / "runs").glob("*.json"))) == 3


def test_an_engine_beside_the_ranks_is_refused(monkeypatch, tmp_path):
    from fasteraa.api import compare

    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"so --jobs 3 has no place: leave it out"):
        compare(None, out=tmp_path, jobs=3)
    with pytest.raises(ConfigError, match=r"so --engine ray has no place"):
        compare(None, out=tmp_path, engine="ray")


def test_ranks_with_other_recipes_are_named(tmp_path):
    def work(ranks):
        try:
            ranks.check_alike({"epochs": 3 + ranks.rank, "training images": "a"})
        except RunError as error:
            return str(error)

    assert (
        on_ranks(2, work, tmp_path / "ranks") == ["all ranks must have the same epochs: rank 0 has 3, rank 1 has 4"] * 2
    )
