"""Ranks that share a batch: gradients and metrics are those of one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fasteraa.data.batches import Normalise
from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa import run as loop
from fasteraa.methods.faster_aa.fast_step import ManualGradStep, make_step
from fasteraa.methods.faster_aa.run import gradient_search
from fasteraa.methods.faster_aa.step import MaskStep, Step
from fasteraa.nets import Critic, PixelCritic, build
from fasteraa.policy.soft import SoftPolicy
from fasteraa.runtime.ranks import ALONE, Ranks
from fasteraa.runtime.seeds import seeded

OPS = ("rotate", "sample_pairing", "cutout", "brightness", "equalize")
KINDS = {"plain": Step, "fast": ManualGradStep, "masks": MaskStep}


def step_of(kind, ranks):
    """The rate is tiny: Adam's first step is all signs, and would make a rounding of the critic a large one."""
    config = SearchConfig(fast=kind == "fast", learning_rate=1e-12, chunk_size=4)
    with seeded(0):
        network = build("small", 3, 12, norm="none")
        critic = (PixelCritic if kind == "masks" else Critic)(network, 3)
        policy = SoftPolicy(3, 2, list(OPS), chunk_size=4)
    step = make_step(critic, policy, Normalise(torch.full((1, 3, 1, 1), 0.5), torch.ones(1, 3, 1, 1)), config, ranks)
    assert type(step) is KINDS[kind]
    return step


def one_step(kind, ranks, count):
    step, generator = step_of(kind, ranks), torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8, generator=generator)
    labels = torch.randint(3, (count,), generator=generator)
    if kind == "masks":  # some of the images have hardly a label
        labels = torch.randint(3, (count, 12, 12), generator=generator).to(torch.uint8)
        labels[::3, 2:] = 255
    measured = step(images, labels, generator)
    gradients = [*step.critic_optimiser.gradients, *step.policy_optimiser.gradients]
    return [measured, *(gradient.clone() for gradient in gradients), generator.get_state().float()]


def as_rank(rank, size, kind, count, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(one_step(kind, Ranks(rank, size, joined=True), count), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("kind", "size", "count"), [("plain", 2, 16), ("fast", 4, 18), ("masks", 2, 12)])
def test_ranks_have_the_gradients_of_the_whole_batch(kind, size, count, tmp_path):
    """18 images are 9 to augment, which 4 ranks cannot share evenly."""
    expected = one_step(kind, ALONE, count)
    mp.start_processes(as_rank, (size, kind, count, str(tmp_path)), size, start_method="fork")
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]
    for mine, whole in zip(shares[0], expected, strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-4, atol=2e-6 * max(1.0, float(whole.abs().max())))
    for other in shares[1:]:  # exactly, or the ranks would drift apart
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(shares[0], other, strict=True))
    assert max(float(each.abs().max()) for each in expected[1:-1]) > 1e-3


def test_rows_are_shared_out_once():
    for count, size in ((9, 4), (64, 3), (2, 2)):
        parts = [Ranks(rank, size).rows(count) for rank in range(size)]
        assert [row for part in parts for row in range(count)[part]] == list(range(count))
        assert max(p.stop - p.start for p in parts) - min(p.stop - p.start for p in parts) <= 1
        assert sum(Ranks(rank, size).share(count) for rank in range(size)) == pytest.approx(1)


def test_what_ranks_cannot_share_is_refused(tiny, quick):
    with pytest.raises(ConfigError, match=r"9 ranks share batches of 16 .* at most 8 ranks"):
        gradient_search(tiny, quick, device="cpu", ranks=Ranks(0, 9))
    batch_norm = SearchConfig(**{**vars(quick), "critic_norm": "batch"})
    with pytest.raises(ConfigError, match="critic_norm = 'batch' takes statistics of whole batches"):
        gradient_search(tiny, batch_norm, device="cpu", ranks=Ranks(0, 2))


class FirstOfTwo(Ranks):
    """The other rank does as this one."""

    def __init__(self, kept):
        super().__init__(kept.get("rank", 0), 2)
        object.__setattr__(self, "kept", kept)

    def largest(self, number):
        return max(number, self.kept.get("signal", 0))

    def from_first(self, state, device):
        if self.is_first:
            self.kept["state"] = state
        return self.kept["state"]

    def rows(self, count):
        return slice(0, count)


def test_another_rank_continues_with_the_state_of_the_first(tiny, quick, tmp_path):
    """It has no folder: on another machine there may be none."""
    kept = {}
    whole = gradient_search(tiny, quick, device="cpu")
    gradient_search(tiny, SearchConfig(**{**vars(quick), "epochs": 1}), out=tmp_path, device="cpu")
    first = gradient_search(tiny, quick, out=tmp_path, resume=True, device="cpu", ranks=FirstOfTwo(kept))
    kept["rank"] = 1
    other = gradient_search(tiny, quick, resume=True, device="cpu", ranks=FirstOfTwo(kept))
    assert kept["state"]["epoch"] == 1
    assert first.policy.hash == other.policy.hash == whole.policy.hash
    assert first.policy.provenance["ranks"] == 2


def test_a_signal_of_one_rank_ends_all_of_them(tiny, quick, tmp_path):
    for rank, words in ((0, "add resume=True to continue"), (1, "as the first rank reports")):
        out = tmp_path if rank == 0 else None
        with pytest.raises(loop.Stopped, match=rf"stopped by SIGTERM.*{words}") as stopped:
            gradient_search(tiny, quick, out=out, device="cpu", ranks=FirstOfTwo({"rank": rank, "signal": 15}))
        assert stopped.value.exit_code == 143
