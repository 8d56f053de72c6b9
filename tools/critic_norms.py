"""Can the critic tell augmented images from originals? Its Wasserstein estimate against a policy that does not learn.

python tools/critic_norms.py [SOURCE] [--steps 50] [--seed 0]

SOURCE is whatever `fasteraa search` takes; the embedded sample if left out. One line for each kind of norm layer, the
mean estimate of every tenth of the steps. One thread, on the CPU.
"""

import argparse

import torch

from fasteraa.data import load
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.config import NORMS
from fasteraa.runtime.progress import Silent
from fasteraa.methods.faster_aa.run import Run


def estimates(data, norm: str, steps: int, seed: int) -> list[float]:
    """The Wasserstein estimate of each step, with the policy held still at its random start."""
    run = Run(data, SearchConfig(seed=seed, backbone="wrn-16-1", critic_norm=norm), torch.device("cpu"), None, Silent())
    for group in run.step.policy_optimiser.param_groups:
        group["lr"] = 0.0
    found = []
    for _ in range(steps):
        before = run.sums.clone()
        run._one_step()
        found.append(float((run.sums - before)[0]))
        run.step_of_epoch %= run.steps_per_epoch  # a new order when the images are used up
    assert torch.equal(run.trajectory[0], run._parameters()), "the policy has moved"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load(given.source, seed=given.seed)
    for norm in NORMS:
        parts = torch.tensor(estimates(data, norm, given.steps, given.seed)).tensor_split(5)
        print(f"{norm}: {', '.join(f'{float(part.mean()):.2f}' for part in parts)}", flush=True)


if __name__ == "__main__":
    main()
