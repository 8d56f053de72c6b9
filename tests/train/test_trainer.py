"""Training: it learns, it repeats itself, it continues after any kind of end, and it reports the last epoch."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, OutOfTime, RunError
from fasteraa.policy.named import named
from fasteraa.runtime.checkpoint import save_checkpoint
from fasteraa.train import group as group_module
from fasteraa.train.group import Group
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.trainer import Diverged, train, train_together
from fasteraa.train.training import Training, TrainingRun, epochs_done

CPU = torch.device("cpu")


def run(data, held_out, recipe, seed=0, policy="none", **options):
    return train(data, held_out, named(policy), recipe, seed, device="cpu", **options)


def weights(trained):
    return torch.cat([value.double().flatten() for value in trained.network.state_dict().values()])


def test_it_learns_planted_data_and_its_mirror_image_is_wrong(data, held_out, tiny):
    recipe = replace(tiny, epochs=5)
    trained = run(data, held_out, recipe)
    assert (trained.error, trained.error_top5) == (0, 0)
    assert trained.train_loss < 0.2
    assert trained.steps == 5 * 4
    mirrored = ImageSet.of(held_out.images.flip(3).contiguous(), held_out.labels, held_out.classes, "mirrored")
    assert run(data, mirrored, recipe).error == 100


def test_errors_are_counted_over_all_images_in_batches_of_any_size(data, tiny, monkeypatch):
    """A network that always says 'left': the error is the share of the others."""
    training = Training(data, named("none"), tiny, 0, CPU)
    monkeypatch.setattr(training, "logits", lambda x: torch.tensor([[1.0, 0.0]]).expand(len(x), 2))
    labels = torch.tensor([0] * 210 + [1] * 90)
    images = torch.zeros(300, 3, 8, 8, dtype=torch.uint8)
    assert training.measure(ImageSet.of(images, labels, data.classes, "skewed"))[:2] == (30.0, 0.0)


def test_top_five(tiny, monkeypatch):
    data = ImageSet.of(torch.zeros(16, 3, 8, 8, dtype=torch.uint8), torch.arange(16) % 8, tuple("abcdefgh"), "eight")
    training = Training(data, named("none"), tiny, 0, CPU)
    monkeypatch.setattr(training, "logits", lambda x: torch.arange(8.0).expand(len(x), 8))  # 7, 6, 5, 4, 3
    assert training.measure(data)[:2] == (100 * 7 / 8, 100 * 3 / 8)


def test_a_network_that_is_ruined_at_the_end_has_diverged(data, held_out, tiny, monkeypatch):
    """The loss of an epoch is that before its steps; one that is no number would decide a race by chance."""
    plain = Group.one_epoch

    def ruining(self):
        plain(self)
        for parameter in self.members[-1].network.parameters():
            parameter.data.fill_(math.nan)

    monkeypatch.setattr(Group, "one_epoch", ruining)
    jobs = [TrainingRun(named("none"), replace(tiny, epochs=1), seed) for seed in (0, 1)]
    sound, ruined = train_together(data, held_out, jobs, device="cpu")
    assert math.isfinite(sound.held_out_loss)
    assert isinstance(ruined, Diverged)
    assert ruined.why == "the loss on held-out images was not finite"


@pytest.mark.parametrize("network", ["small", "wrn-10-1", "shake-shake-8-2x8d"])
def test_same_seed_same_numbers(data, held_out, tiny, network):
    recipe = replace(tiny, network=network, epochs=2, flip=True, crop=0.125, cutout=3)
    one = run(data, held_out, recipe, policy="uniform")
    torch.rand(7)  # what the caller draws in between does not matter
    two = run(data, held_out, recipe, policy="uniform")
    other = run(data, held_out, recipe, 1, policy="uniform")
    assert torch.equal(weights(one), weights(two))
    assert one.train_loss == two.train_loss
    assert not torch.equal(weights(one), weights(other))


def test_the_callers_generator_is_left_alone(data, held_out, tiny):
    before = torch.get_rng_state()
    run(data, held_out, replace(tiny, epochs=1, network="shake-shake-8-2x8d"))
    assert torch.equal(torch.get_rng_state(), before)


class Stop(Exception):
    pass


@pytest.mark.parametrize("network", ["small", "shake-shake-8-2x8d"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_run_that_crashed_ends_as_if_nothing_had_happened(
    data, held_out, tiny, tmp_path, monkeypatch, network, after
):
    monkeypatch.setattr(group_module, "_FIRST_SAVE_S", 0.0)
    monkeypatch.setattr(group_module, "_WORK_PER_SAVE", 0)
    recipe, checkpoint = replace(tiny, network=network, flip=True), tmp_path / "run.pt"
    whole = run(data, held_out, recipe, policy="uniform")

    def crash(epoch, epochs, loss):
        if epoch == after + 1:
            raise Stop

    with pytest.raises(Stop):
        run(data, held_out, recipe, policy="uniform", checkpoint=checkpoint, tell=crash)
    assert checkpoint.exists()
    seen = []
    resumed = run(
        data, held_out, recipe, policy="uniform", checkpoint=checkpoint, tell=lambda *row: seen.append(row[0])
    )
    assert seen == list(range(after + 1, 4))  # the epochs before were not run again
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.train_loss == whole.train_loss
    assert not checkpoint.exists()


def test_runs_that_were_begun_are_not_begun_again_to_be_trained_together(data, held_out, tiny, tmp_path):
    jobs = [TrainingRun(named("none"), tiny, seed, tmp_path / f"{seed}.pt") for seed in (0, 1)]
    with pytest.raises(OutOfTime):
        train_together(data, held_out, jobs[:1], device="cpu", until=lambda: 0.0)
    assert [epochs_done(job.checkpoint) for job in jobs] == [1, 0]
    with pytest.raises(RunError, match=r"from the same epoch on, these have \[1, 0\] behind them: train them apart"):
        train_together(data, held_out, jobs, device="cpu")
    assert epochs_done(jobs[0].checkpoint) == 1


SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
from conftest import planted
from fasteraa.train import group, trainer
from fasteraa.train.recipe import TrainRecipe
from fasteraa.policy.named import named
torch.set_num_threads(1)
group._FIRST_SAVE_S, group._WORK_PER_SAVE = 0.0, 0
recipe = TrainRecipe(network="small", epochs=40, batch_size=16, learning_rate=0.05, cutout=3)
trainer.train(planted(64), planted(40, seed=1), named("uniform"), recipe, 3, device="cpu",
              checkpoint=Path(sys.argv[1]), tell=lambda *row: print(row[0], flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_killed_ends_with_the_same_weights(data, held_out, tmp_path, number):
    checkpoint = tmp_path / "run.pt"
    command = [sys.executable, "-c", SCRIPT.format(tests=os.path.dirname(__file__)), str(checkpoint)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.stdout.readline().strip() not in (b"5", b""):
        pass
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert checkpoint.exists()
    recipe = TrainRecipe(network="small", epochs=40, batch_size=16, learning_rate=0.05, cutout=3)
    seen = []
    resumed = run(data, held_out, recipe, 3, "uniform", checkpoint=checkpoint, tell=lambda *row: seen.append(row[0]))
    assert seen[0] >= 5  # what was done before the end was not done again
    assert torch.equal(weights(resumed), weights(run(data, held_out, recipe, 3, "uniform")))


def test_a_signal_in_the_last_epoch_is_not_lost(data, held_out, tiny, tmp_path):
    def interrupt(epoch, epochs, loss):
        if epoch == epochs:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(data, held_out, tiny, checkpoint=tmp_path / "run.pt", tell=interrupt)
    seen = []
    done = run(data, held_out, tiny, checkpoint=tmp_path / "run.pt", tell=lambda *row: seen.append(row))
    assert seen == []  # nothing was left to train
    assert torch.equal(weights(done), weights(run(data, held_out, tiny)))


def test_a_time_limit_ends_after_an_epoch_with_the_state_saved(data, held_out, tiny, tmp_path):
    checkpoint = tmp_path / "run.pt"
    with pytest.raises(OutOfTime, match="after 1 of 3 epochs"):
        run(data, held_out, tiny, checkpoint=checkpoint, until=lambda: 0.0)
    done = run(data, held_out, tiny, checkpoint=checkpoint, until=lambda: math.inf)
    assert torch.equal(weights(done), weights(run(data, held_out, tiny)))


def test_the_last_epoch_is_reported_and_test_images_are_seen_once(data, held_out, tiny, monkeypatch):
    calls, epochs = [], []
    measure, one_epoch = Training.measure, Group.one_epoch

    def counted(self, images):
        calls.append((len(epochs), images))
        return measure(self, images)

    def noted(self):
        epochs.append(self.epoch)
        one_epoch(self)

    monkeypatch.setattr(Training, "measure", counted)
    monkeypatch.setattr(Group, "one_epoch", noted)
    run(data, held_out, tiny)
    assert calls == [(3, held_out)]


def test_weights_decay_but_norms_and_biases_do_not(data, tiny):
    """One step with a zero gradient: what is left is the decay."""
    training = Training(data, named("none"), replace(tiny, weight_decay=0.5, momentum=0.0, clip=0), 0, CPU)
    kinds = {}
    for layer in training.network.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            kinds[parameter] = isinstance(layer, nn.Conv2d | nn.Linear) and name == "weight"
    with torch.no_grad():
        for parameter in training.network.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.zeros_like(parameter)
    for rate in training.rates:
        rate.fill_(0.1)
    training.optimiser.step()
    assert len(set(kinds.values())) == 2
    for parameter, decays in kinds.items():
        assert parameter.flatten()[0].item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) if decays else 2.0)


@pytest.mark.parametrize(("clip", "length"), [(0.01, 0.01), (1e6, None), (0, None)])
def test_the_gradient_is_clipped(data, tiny, clip, length):
    recipe = replace(tiny, clip=clip, weight_decay=0.0, momentum=0.0)
    training = Training(data, named("none"), recipe, 0, CPU)
    before = torch.cat([p.detach().flatten().clone() for p in training.network.parameters()])
    for rate in training.rates:
        rate.fill_(1.0)
    images, labels = next(training.feed.epoch(0))
    training.step(images, labels)
    after = torch.cat([p.detach().flatten() for p in training.network.parameters()])
    moved = float((after - before).norm())
    free = torch.cat([p.grad.flatten() for p in training.network.parameters()]).norm()
    assert moved == pytest.approx(length if length else float(free), rel=1e-3)
    assert moved > 0.5 or length


def test_every_step_has_the_rate_of_the_schedule(data, held_out, tiny, monkeypatch):
    rates = []
    step = Training.step

    def noted(self, *batch):
        rates.append(float(self.optimiser.param_groups[0]["lr"]))
        return step(self, *batch)

    monkeypatch.setattr(Training, "step", noted)
    run(data, held_out, tiny)
    assert rates == pytest.approx([tiny.rate(number, 4) for number in range(12)])


@pytest.mark.parametrize(
    ("told", "precision", "half"),
    [
        ({"avx512_bf16": True}, "auto", True),
        ({"amx_bf16": True, "avx512_bf16": False}, "auto", True),
        ({"avx512_bf16": False}, "auto", False),
        ({}, "auto", False),
        ({"avx512_bf16": True}, "float32", False),
        ({}, "bfloat16", True),
    ],
)
def test_a_cpu_trains_in_bfloat16_where_it_calculates_in_it(data, held_out, tiny, monkeypatch, told, precision, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    kinds, plain = set(), nn.Conv2d.forward

    def watched(self, x):
        kinds.add(plain(self, x).dtype)
        return plain(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", watched)
    trained = run(data, held_out, replace(tiny, epochs=1, precision=precision))
    assert kinds == {torch.bfloat16 if half else torch.float32}
    assert trained.provenance["precision"] == ("bfloat16" if half else "float32")


def test_nesterov_momentum(data, tiny):
    group = Training(data, named("none"), tiny, 0, CPU).optimiser.param_groups[0]
    assert (group["momentum"], group["nesterov"]) == (0.9, True)


def test_a_loss_that_is_not_finite_is_one_sentence(data, held_out, tiny):
    with pytest.raises(RunError, match=r"^the training loss was not finite in epoch \d: lower learning_rate$"):
        run(data, held_out, replace(tiny, learning_rate=1e30, clip=0))


WILD = {"learning_rate": 1e30, "clip": 0}


def test_only_the_run_that_diverges_is_lost(data, held_out, tiny):
    """Of two in lockstep the other one learns what it would have learned alone."""
    jobs = [TrainingRun(named("none"), replace(tiny, **WILD)), TrainingRun(named("uniform"), tiny, 3)]
    lost, kept = train_together(data, held_out, jobs, device="cpu")
    assert isinstance(lost, Diverged)
    assert lost.why == "the training loss was not finite in epoch 1"
    assert lost.provenance["policy"]["name"] == "none"
    assert torch.equal(weights(kept), weights(run(data, held_out, tiny, 3, "uniform")))


def test_that_a_run_diverged_outlives_a_stop(data, held_out, tiny, tmp_path):
    jobs = [TrainingRun(named("none"), recipe, 0, tmp_path / name) for name, recipe in
            (("lost.pt", replace(tiny, **WILD)), ("kept.pt", tiny))]  # fmt: skip
    with pytest.raises(OutOfTime):
        train_together(data, held_out, jobs, device="cpu", until=lambda: 0.0)
    lost, kept = train_together(data, held_out, jobs, device="cpu")
    assert isinstance(lost, Diverged)
    assert lost.why.endswith("in epoch 1")
    assert torch.equal(weights(kept), weights(run(data, held_out, tiny)))


def test_nothing_is_trained_once_all_have_diverged(data, held_out, tiny):
    told = []
    jobs = [TrainingRun(named("none"), replace(tiny, **WILD), seed) for seed in (0, 1)]
    found = train_together(data, held_out, jobs, device="cpu", tell=lambda *row: told.append(row[0]))
    assert [each.why for each in found] == ["the training loss was not finite in epoch 1"] * 2
    assert told == [1]


def test_how_long_a_run_is_decides_whether_it_is_fused(data, tiny):
    """And nothing else: the same run beside others, or after them, is calculated in the same way."""
    short, long = (replace(tiny, epochs=epochs) for epochs in (1, 5000))
    for count in (1, 3):
        assert not Group([Training(data, named("none"), short, seed, CPU) for seed in range(count)]).fuse
        assert Group([Training(data, named("none"), long, seed, CPU) for seed in range(count)]).fuse
    assert not Group([Training(data, named("none"), long, 0, CPU)], fuse=False).fuse


def test_a_step_is_captured_on_the_gpu_of_its_network(data, tiny, monkeypatch):
    """Streams and graphs are those of the current GPU, which is the first one unless someone says so."""
    current = [torch.device("cuda", 0)]

    @contextmanager
    def device(wanted):
        current.append(wanted)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(group_module, "network_draws", lambda seed, place: nullcontext())
    monkeypatch.setattr(group_module, "CapturedGroup", lambda group: current[-1])
    group = Group([Training(data, named("none"), tiny, 0, CPU)])
    group.device = torch.device("cuda", 1)
    group.capture()
    assert group.step == torch.device("cuda", 1)
    assert len(current) == 1


@pytest.mark.gpu
def test_on_a_gpu_only_the_run_that_diverges_is_lost(data, held_out, tiny):
    recipe = replace(tiny, network="wrn-10-1", epochs=5, precision="float32")
    jobs = [TrainingRun(named("none"), each) for each in (replace(recipe, **WILD), recipe)]
    lost, kept = train_together(data, held_out, jobs, device="cuda", fuse=False)
    assert isinstance(lost, Diverged)
    assert kept.error == 0


def test_a_run_knows_its_share_of_the_time_and_what_calculated_it(data, held_out, tiny, tmp_path, monkeypatch):
    """Two runs share the first epoch; one of them continues alone, on other kernels, for two more."""
    ticks = itertools.count()  # every look at the clock is a second later: so long is an epoch
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), time=time.time)
    monkeypatch.setattr(group_module, "time", clock)
    jobs = [TrainingRun(named("none"), replace(tiny, epochs=3), seed, tmp_path / f"{seed}.pt") for seed in (0, 1)]
    with pytest.raises(OutOfTime):
        train_together(data, held_out, jobs, device="cpu", until=lambda: 0.0)
    monkeypatch.setattr(Group, "capture", lambda group: setattr(group, "kernels", "compiled"))
    (found,) = train_together(data, held_out, jobs[:1], device="cpu")
    assert (found.seconds, found.share_seconds, found.together) == (3.0, 2.5, 1)
    assert found.kernels == "plain and compiled"


def test_nothing_in_a_checkpoint_is_executed(data, held_out, tiny, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    save_checkpoint(tmp_path / "run.pt", {"network": Evil()})  # the digest is right
    with pytest.raises(RunError, match=r"run\.pt' is damaged .*: remove it"):
        run(data, held_out, tiny, checkpoint=tmp_path / "run.pt")
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_of_another_network_is_refused(data, held_out, tiny, tmp_path):
    with pytest.raises(OutOfTime):
        run(data, held_out, tiny, checkpoint=tmp_path / "run.pt", until=lambda: 0.0)
    with pytest.raises(RunError, match=r"is of another run \(other images, policy, settings or seed\): remove it"):
        run(data, held_out, replace(tiny, network="wrn-10-1"), checkpoint=tmp_path / "run.pt")
    (tmp_path / "run.pt").write_bytes((tmp_path / "run.pt").read_bytes()[:500])
    with pytest.raises(RunError, match=r"is damaged \(it has no digest at its end\): remove it to start again"):
        run(data, held_out, tiny, checkpoint=tmp_path / "run.pt")


def test_mistakes(data, held_out, tiny):
    other = ImageSet.of(held_out.images, held_out.labels, ("left", "middle"), "other")
    with pytest.raises(ConfigError, match="same classes"):
        run(data, other, tiny)
    with pytest.raises(ConfigError, match="did you mean"):
        run(data, held_out, TrainRecipe(network="smal"))


@pytest.mark.gpu
def test_on_a_gpu_a_network_that_draws_leaves_the_callers_generators_alone(data, held_out, tiny):
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    recipe = replace(tiny, network="shake-shake-8-2x8d")
    train(data, held_out, named("uniform"), recipe, device="cuda")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


@pytest.mark.gpu
@pytest.mark.parametrize("fuse", [False, True])
def test_on_a_gpu_the_captured_step_learns_the_same(data, held_out, tiny, fuse):
    recipe = replace(tiny, network="wrn-10-1", epochs=5, precision="float32")
    captured, plain = (Group([Training(data, named("none"), recipe, 0, torch.device("cuda"))], fuse) for _ in range(2))
    captured.capture()
    for group in (captured, plain):
        for _ in range(recipe.epochs):
            group.one_epoch()
        (training,) = group.members
        assert training.measure(held_out).error == 0
    assert captured.members[0].loss == pytest.approx(plain.members[0].loss, rel=0.05)
