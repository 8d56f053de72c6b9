"""Does it pay to expect anything of a candidate before a race? Races simulated on results/candidates/short.json.

    python3 tools/expectations.py

Each of the seven sets in turn is the one that is raced on; what is expected comes from the other six. A candidate's
true error is taken to be the mean pattern plus 0.7 of what the one run on that set had beside it (the rest is taken for
noise of that run). Printed is the regret: how much worse the chosen one is than the best, in % of the error. First how
far expectations should count, then how trainings should be spread over the rounds of a race, in each of which the
better half goes on.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parent.parent / "results" / "candidates" / "short.json"
IMAGES = {
    "reduced-cifar10": 4000, "reduced-cifar100": 4000, "svhn-1000": 1000, "fashion-1000": 1000, "fashion-300": 300,
    "imagenette-1000": 1000, "ants-and-bees": 244,
}  # fmt: skip
CANDIDATES = (
    "none", "trivialaugment-wide", "uniform, 2 passes", "autoaugment", "diverse, 2 passes", "random",
    "randaugment(2,14)", "uniform", "diverse", "colours, 2 passes", "randaugment(3,14)", "uniform, 3 passes",
    "randaugment(2,9)",
)  # fmt: skip
SPREAD_OF_NONE = 0.25
FURTHEST = 3.0  # standard errors by which an expectation moves an error, at most
RACES = 2000
SCHEDULES = ((1, 1, 1), (1, 2, 2), (3, 3, 3), (1, 3, 3), (1, 3, 6), (1, 3, 9), (5,))  # trainings of a candidate


def main() -> None:
    table = json.loads(RESULTS.read_text())
    errors = np.array([[table[name][each] for each in CANDIDATES] for name in IMAGES])
    middling = np.median(errors[:, 1:], 1, keepdims=True)
    relative = errors / middling
    pattern = relative.mean(0)
    noise = np.sqrt(errors * (100 - errors) / np.array(list(IMAGES.values()))[:, None]) / middling
    for trainings in (1, 3):
        for spread in (np.inf, 0.1, 0.06, 0.05, 0.04, 0.03, 0.02, 0.0):
            rng = np.random.default_rng(0)
            regrets, ahead = [], []
            for number in range(len(IMAGES)):
                true = pattern + 0.7 * (relative[number] - pattern)
                expected = np.delete(relative, number, 0).mean(0)
                chosen = race(true, expected, noise[number] / np.sqrt(trainings), spread, rng)
                regrets.append(100 * (true[chosen] - true.min()).mean())
                ahead.append(100 * (true[1] - true[chosen]).mean())
            print(
                f"each image held back {trainings} x, spread {spread:4.2f}: regret {np.mean(regrets):.2f}%, before "
                f"TrivialAugment by {np.mean(ahead):.2f}%  ({', '.join(f'{each:.1f}' for each in regrets)})"
            )

    print()
    for heats in SCHEDULES:
        rng = np.random.default_rng(0)
        regrets = []
        for number in range(len(IMAGES)):
            true = pattern + 0.7 * (relative[number] - pattern)
            expected = np.delete(relative, number, 0).mean(0)
            one_fold = noise[number] * np.sqrt(3)
            chosen = [rounds(true, expected, one_fold, heats, rng) for _ in range(RACES // 4)]
            regrets.append(100 * (true[chosen] - true.min()).mean())
        runs = sum(heat * count for heat, count in zip(heats, (13, 8, 5), strict=False))
        print(f"{' + '.join(map(str, heats)):9} trainings, {runs:3} runs: regret {np.mean(regrets):.2f}%")


def rounds(
    true: np.ndarray, expected: np.ndarray, noise: np.ndarray, heats: tuple[int, ...], rng: np.random.Generator
) -> int:
    """Who wins a race of several rounds; `none` stays in."""
    spreads = np.where(np.arange(len(true)) == 0, SPREAD_OF_NONE, 0.05)
    alive, total, count = np.arange(len(true)), np.zeros_like(true), 0
    for heat in heats:
        total[alive] += heat * true[alive] + rng.normal(size=len(alive)) * noise[alive] * np.sqrt(heat)
        count += heat
        share = spreads[alive] ** 2 / (spreads[alive] ** 2 + noise[alive] ** 2 / count)
        estimate = share * total[alive] / count + (1 - share) * expected[alive]
        ranked = alive[estimate.argsort()]
        alive = ranked[: -(-len(ranked) // 2)]
        alive = alive if 0 in alive else np.append(alive, 0)
    return int(ranked[0])


def race(
    true: np.ndarray, expected: np.ndarray, noise: np.ndarray, spread: float, rng: np.random.Generator
) -> np.ndarray:
    """Who was chosen, in each of many races."""
    spreads = np.full(len(true), spread)
    spreads[0] = max(SPREAD_OF_NONE, spread)
    measured = true + rng.normal(size=(RACES, len(true))) * noise
    share = np.ones_like(noise) if np.isinf(spread) else spreads**2 / (spreads**2 + noise**2)
    furthest = (
        FURTHEST * noise if spread else np.inf
    )  # a spread of 0 is there to show what the same one everywhere does
    estimate: np.ndarray = measured + np.clip((1 - share) * (expected - measured), -furthest, furthest)
    return estimate.argmin(1)


if __name__ == "__main__":
    main()
