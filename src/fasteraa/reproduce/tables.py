"""Every table and figure of the paper's sections 5 and 6, as data, and one that the paper does not have."""

from __future__ import annotations

from types import MappingProxyType

from fasteraa.errors import ConfigError, choices_hint
from fasteraa.reproduce.equal_budget import EQUAL_BUDGET
from fasteraa.reproduce.quality import QUALITY
from fasteraa.reproduce.schema import CHUNKED, FULL, OURS, Line, Search, Table, search_on

CIFAR10, CIFAR100, SVHN, IMAGENET = (search_on(name) for name in ("cifar10", "cifar100", "svhn", "imagenet"))

# base, cutout, AutoAugment, PBA, Fast AutoAugment, Faster AutoAugment
_CIFAR10 = {
    "wrn-40-2": (5.3, 4.1, 3.7, None, 3.6, 3.7),
    "wrn-28-10": (3.9, 3.1, 2.6, 2.6, 2.7, 2.6),
    "shake-shake-26-2x32d": (3.6, 3.0, 2.5, 2.5, 2.7, 2.7),
    "shake-shake-26-2x96d": (2.9, 2.6, 1.9, 2.0, 2.0, 2.0),
    "shake-shake-26-2x112d": (2.8, 2.6, 1.9, 2.0, 2.0, 2.0),
}
# the last two: with policies from CIFAR-10, from CIFAR-100
_CIFAR100 = {
    "wrn-40-2": (26.0, 25.2, 20.7, None, 20.7, 22.1, 21.4),
    "wrn-28-10": (18.8, 18.4, 17.1, 16.7, 17.3, 17.8, 17.3),
    "shake-shake-26-2x96d": (17.1, 16.0, 14.3, 15.3, 14.9, 15.6, 15.0),
}
_ADDED = "not in the paper"


def _results(
    data: str,
    recipe: str,
    numbers: tuple[float | None, ...],
    autoaugment: str,
    searches: tuple[tuple[str, Search], ...],
) -> list[Line]:
    """A row of the results table; TrivialAugment is added, because it needs no search."""
    base, cutout, aa, pba, fast, *ours = numbers

    def line(label: str, policy: str | Search | None, paper: float | None, note: str = "") -> Line:
        own = recipe + CHUNKED * isinstance(policy, Search)
        return Line(data=data, recipe=own, label=label, policy=policy, paper=paper, note=note)

    lines = [
        line("baseline", "none", base),
        line("cutout", "cutout", cutout),
        line("AA", autoaugment, aa, "the policy of CIFAR-10" if data == "cifar100" else ""),
        *([line("PBA", None, pba)] if pba is not None else []),
        *([line("Fast AA", None, fast)] if fast is not None else []),
        line("TrivialAugment (wide)", "trivialaugment-wide", None, _ADDED),
    ]
    return lines + [line(label, search, number) for (label, search), number in zip(searches, ours, strict=True)]


def _cifar10() -> Table:
    rows = [
        _results("cifar10", f"cifar/{net}", numbers, "autoaugment-cifar10", ((OURS, CIFAR10),))
        for net, numbers in _CIFAR10.items()
    ]
    return Table(
        name="cifar10", title="Test errors on CIFAR-10 (Table 4)", lines=tuple(line for row in rows for line in row)
    )


def _cifar100() -> Table:
    searches = ((f"{OURS}, policy from CIFAR-10", CIFAR10), (f"{OURS}, policy from CIFAR-100", CIFAR100))
    rows = [
        _results("cifar100", f"cifar/{net}", numbers, "autoaugment-cifar10", searches)
        for net, numbers in _CIFAR100.items()
    ]
    return Table(
        name="cifar100", title="Test errors on CIFAR-100 (Table 4)", lines=tuple(line for row in rows for line in row)
    )


def _gpu_hours() -> Table:
    numbers = {
        "cifar10": (5_000.0, 5.0, 3.5, 0.23, CIFAR10),
        "svhn": (1_000.0, 1.0, 1.5, 0.061, SVHN),
        "imagenet": (15_000.0, None, 450.0, 2.3, IMAGENET),
    }
    lines = []
    for data, (*quoted, ours, search) in numbers.items():
        for label, hours in zip(("AA", "PBA", "Fast AA"), quoted, strict=True):
            if hours is not None:
                lines.append(Line(data=data, label=label, policy=None, paper=hours, measure="hours"))
        lines.append(Line(data=data, label=OURS, policy=search, paper=ours, measure="hours"))
    return Table(
        name="gpu-hours",
        title="What a search costs (Table 1)",
        lines=tuple(lines),
        unit="GPU hours",
        logarithmic=True,
        beside=("equal-budget", "equal-budget-5"),
    )


def _imagenet() -> Table:
    def line(label: str, policy: str | Search | None, paper: float, measure: str, note: str = "") -> Line:
        return Line(
            data="imagenet",
            recipe="imagenet/resnet-50-200",
            label=label,
            policy=policy,
            paper=paper,
            measure=measure,
            note=note,
        )

    lines = []
    for measure, numbers in {"error": (24.1, 22.4, 22.4, 23.5), "error_top5": (7.2, 6.2, 6.3, 6.8)}.items():
        base, aa, fast, ours = numbers
        their_base = "the paper quotes it beside a baseline of " + ("23.7" if measure == "error" else "6.9")
        lines += [
            line("baseline", "none", base, measure),
            line("AA", "autoaugment-imagenet", aa, measure, their_base),
            line("Fast AA", None, fast, measure),
            line(OURS, IMAGENET, ours, measure, "each image draws its own sub-policy (the paper: 32 share one)"),
        ]
    return Table(name="imagenet", title="Validation errors on ImageNet with ResNet-50 (Table 6)", lines=tuple(lines))


def _figure(name: str, title: str, setting: str, values: tuple[int, ...], axis: str, paper: dict[int, float]) -> Table:
    lines = tuple(
        Line(
            data="cifar10",
            recipe="cifar/wrn-40-2" + CHUNKED,
            label=f"{axis} {value}",
            policy=search_on("cifar10", **{setting: value}),
            paper=paper.get(value),
            x=value,
            note="" if value in paper else "the paper has a figure without numbers",
        )
        for value in values
    )
    return Table(name=name, title=title, lines=lines, axis=axis)


def _data_size() -> Table:
    everything = Search(source="cifar10")
    sampled = Search(source="cifar10", settings=MappingProxyType({**FULL, "sub_policies": 80}), keep=10)

    def line(label: str, policy: Search | None, paper: float) -> Line:
        return Line(data="cifar10", recipe="cifar/wrn-40-2" + CHUNKED, label=label, policy=policy, paper=paper)

    lines = (
        line("Fast AA, searched on 4,000", None, 3.6),
        line("Fast AA, searched on 50,000", None, 3.7),
        line(f"{OURS}, searched on 4,000, L = 10", CIFAR10, 3.7),
        line(f"{OURS}, searched on 50,000, L = 10", everything, 4.1),
        line(f"{OURS}, searched on 50,000, L = 80, 10 sampled", sampled, 3.8),
    )
    return Table(name="data-size", title="CIFAR-10 with policies from few and from all images (Table 7)", lines=lines)


def _reduced() -> Table:
    lines = _results(
        "reduced-cifar10",
        "cifar/wrn-28-10",
        (24.3, 22.5, 14.1, None, None, 14.8),
        "autoaugment-cifar10",
        ((OURS, CIFAR10),),
    )
    lines += [
        Line(data="reduced-cifar10", recipe="cifar/wrn-28-10", label=name, policy=name, paper=None, note=_ADDED)
        for name in ("uniform", "random")
    ]
    return Table(
        name="reduced-cifar10", title="Test errors after 4,000 images of CIFAR-10 (Table 5)", lines=tuple(lines)
    )


def _policy_training() -> Table:
    def line(label: str, policy: str | Search, paper: float | None, note: str = "") -> Line:
        return Line(
            data="cifar10", recipe="cifar/wrn-28-10" + CHUNKED, label=label, policy=policy, paper=paper, note=note
        )

    lines = (
        line("trained policies", CIFAR10, 2.6),
        line("random policies", "random", 2.7),
        line("uniform", "uniform", None, _ADDED),
    )
    return Table(name="policy-training", title="Do trained policies beat random ones? (section 6.4)", lines=lines)


def _svhn() -> Table:
    lines = _results("svhn", "svhn/wrn-28-10", (1.5, 1.3, 1.1, 1.2, 1.1, 1.2), "autoaugment-svhn", ((OURS, SVHN),))
    return Table(name="svhn", title="Test errors on SVHN, core and extra images (Table 4)", lines=tuple(lines))


# The paper's tables and figures and our own, by the names that `fasteraa reproduce` takes.
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _gpu_hours(),
        _cifar10(),
        _cifar100(),
        _svhn(),
        _reduced(),
        _imagenet(),
        _figure(
            "sub-policies",
            "More sub-policies (Figure 6): CIFAR-10, WRN-40-2",
            "sub_policies",
            (1, 2, 5, 10, 20, 50, 80),
            "L =",
            {10: 3.7},
        ),
        _figure(
            "operation-count",
            "More operations in a sub-policy (Figure 7): CIFAR-10, WRN-40-2",
            "operation_count",
            (1, 2, 3, 4),
            "K =",
            {2: 3.7},
        ),
        _data_size(),
        _policy_training(),
        QUALITY,
        *EQUAL_BUDGET,
    )
}


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise ConfigError(f"the paper has no table or figure {name!r} here: {choices_hint(name, TABLES)}")
    return TABLES[name]


def with_beside(name: str) -> list[str]:
    """The table, and those that belong to it."""
    return [name, *find_table(name).beside]
