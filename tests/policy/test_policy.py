"""The frozen policy: round trips, hashes, damaged files, and life without torch."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from fasteraa.errors import FasterAAError, PolicyError
from fasteraa.ops import OPS, Span
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import NAMES
from fasteraa.policy.parts import Strength
from fasteraa.policy.resolve import load_policy


def every_op() -> Policy:
    """A policy with each operation, ranges, signs, weights and spans."""
    stages = [
        (
            Choice(row.name, 0.25, 0.123456789012 if row.span else None, 2.0),
            Choice(row.name, 1.0, (0.1, 0.7) if row.span else None, sign="-" if row.signed else None),
        )
        for row in OPS.values()
    ]
    spans = {"rotate": Span(0, 135, "degree"), "translate_x": Span(0, 32, "px")}
    return Policy((SubPolicy(tuple(stages), 3.0), SubPolicy(())), "all", spans, (1, 2, 3), (4, 5, 6), {"seed": 1})


def schema():
    return json.loads((resources.files("fasteraa.policy") / "schema.json").read_text())


@pytest.mark.parametrize("policy", [every_op(), *map(Policy.named, NAMES)], ids=["every op", *NAMES])
def test_round_trip(policy, tmp_path):
    policy.save(tmp_path / "p.json")
    again = Policy.load(tmp_path / "p.json")
    assert again == policy
    assert again.hash == policy.hash
    assert again.provenance == policy.provenance
    assert list(tmp_path.iterdir()) == [tmp_path / "p.json"]  # no partial file is left


def test_schema_takes_what_the_reader_takes():
    jsonschema = pytest.importorskip("jsonschema")
    for policy in (every_op(), *map(Policy.named, NAMES)):
        jsonschema.validate(json.loads(policy.to_json()), schema())


def test_hash_is_of_what_the_policy_does():
    policy = every_op()
    assert policy.hash == replace(policy, name="other", provenance={"seed": 2}).hash
    changed = [
        replace(policy, fill=(0, 0, 0)),
        replace(policy, hole_fill=(0, 0, 0)),
        replace(policy, spans={}),
        replace(policy, sub_policies=policy.sub_policies[:1]),
        replace(policy, sub_policies=(replace(policy.sub_policies[0], weight=2.0), policy.sub_policies[1])),
    ]
    assert len({policy.hash, *(p.hash for p in changed)}) == 6
    # pinned: a change here breaks every file people have
    assert Policy.named("cutout").hash == "sha256:f45fd048d399f54e36dbe0045dde1d1ad11470bab4012564e27abcb9dbea8cb9"


def test_physical_values_stand_beside_unit_ones():
    content = json.loads(every_op().to_json())
    by_op = {stage[0]["op"]: stage for stage in content["sub_policies"][0]["stages"]}
    assert by_op["rotate"][0]["value"] == pytest.approx(0.123456789 * 135)
    assert by_op["rotate"][1] == {
        "op": "rotate", "weight": 1.0, "probability": 1.0, "magnitude": [0.1, 0.7], "value": [13.5, 94.5],
        "unit": "degree", "sign": "-",
    }  # fmt: skip
    assert by_op["invert"][0] == {"op": "invert", "weight": 2.0, "probability": 0.25}
    assert by_op["solarize"][1]["value"] == [230.4, 76.8]


def test_float32_magnitudes_survive():
    import numpy as np

    for number in np.random.default_rng(0).random(100, dtype=np.float32):
        assert np.float32(Choice("rotate", 1.0, float(number)).magnitude) == number


@pytest.mark.parametrize(
    ("choice", "more", "nothing"),
    [
        (Choice("rotate", 0.0, 1.0), {}, True),
        (Choice("rotate", 1.0, 0.0), {}, True),
        (Choice("solarize", 1.0, 0.0), {"spans": {"solarize": Span(256, 128, "level")}}, True),
        (Choice("solarize", 1.0, 0.1), {"spans": {"solarize": Span(256, 128, "level")}}, False),
        (Choice("invert", 1.0), {"strength": Strength((1.0,))}, True),
        (Choice("invert", 1.0), {"strength": Strength(probability=0)}, True),
        (Choice("invert", 1.0), {"strength": Strength(magnitude=0)}, False),
        (Choice("rotate", 1.0, (0.0, 0.1)), {}, False),
    ],
)
def test_what_does_nothing(choice, more, nothing):
    assert Policy((SubPolicy(((choice,),)),), **more).does_nothing is nothing
    begins_without = (SubPolicy((), during=(0, 0.5)), SubPolicy(((choice,),), during=(0.5, 1)))
    assert Policy(begins_without, **more).does_nothing is nothing


def test_ops_depth_and_discretize():
    policy = every_op()
    assert policy.ops == list(OPS)
    assert policy.depth == len(OPS)
    discrete = policy.discretize()
    assert [len(stage) for stage in discrete.sub_policies[0].stages] == [1] * len(OPS)
    assert discrete.sub_policies[0].stages[4][0] == Choice("rotate", 0.25, 0.123456789, 1.0)
    assert Policy((SubPolicy(((Choice("invert", 0.0), Choice("flip", 1.0, weight=0)),)),)).ops == []


def test_without_some_operations():
    """What is left of a stage takes the share; a stage of nothing else goes, its sub-policy does nothing then."""
    both = (Choice("rotate", 0.5, 0.5, 3.0), Choice("sample_pairing", 1.0, 0.5, 1.0))
    alone = (Choice("sample_pairing", 1.0, (0.0, 1.0)), Choice("invert", 1.0, weight=0.0))
    policy = Policy((SubPolicy((both, alone)), SubPolicy((alone,), 2.0)), "mine", provenance={"seed": 1})
    less = policy.without("sample_pairing", "cutout")
    assert less.sub_policies == (SubPolicy(((both[0],),)), SubPolicy((), 2.0))
    assert less.ops == ["rotate"]
    assert less.name == "mine (without sample_pairing)"
    assert less.provenance == {"seed": 1}
    assert less.hash != policy.hash
    assert dict(less.exposures()) == {both[0]: pytest.approx(1 / 3 * 0.5)}
    assert policy.without("cutout") == policy.without() == policy
    assert Policy.named("none").without("rotate") == Policy.named("none")
    with pytest.raises(PolicyError, match="'mine' without rotate, sample_pairing has no operation left"):
        policy.without("rotate", "sample_pairing")
    with pytest.raises(FasterAAError, match="did you mean 'rotate'"):
        policy.without("rotat")


def test_describe():
    text = every_op().describe()
    assert text.splitlines()[0].startswith(f"all: 2 sub-policies, up to {len(OPS)} stages, sha256:")
    assert Policy.named("cutout").describe().startswith("cutout: 1 sub-policy, up to 1 stage, sha256:")
    assert "rotate(25%, ±16.7°)" in text
    assert "rotate(100%, -13.5° to -94.5°)" in text
    assert "(25%) leave the image alone" in text
    assert "brightness(25%, x0.89 or x1.11)" in text
    assert "posterize(25%, 7 bits)" in text


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy.named("none"), "Leaves every image as it is."),
        (Policy.named("general-or-trivial"), "About 1.5 medium operations an image, mostly solarize and equalize."),
        (Policy.named("trivialaugment-wide"), "About one strong operation an image, drawn evenly from 13 kinds."),
        (
            Policy((SubPolicy(((Choice("rotate", 0.25, 0.2),),)),)),
            "About one mild operation for every four images, rotate.",
        ),
        (
            Policy((SubPolicy(((Choice("invert"),), (Choice("flip"),))),)),
            "About two operations an image, invert and flip.",
        ),
    ],
)
def test_a_policy_in_a_plain_sentence(policy, words):
    assert policy.describe().splitlines()[1] == words


def test_equal_stages_are_merged_and_nothing_has_no_chance():
    twice, never = (Choice("invert", 0.5), Choice("flip", 0.5, weight=0.001)), (Choice("rotate", 0.001, 0.5),)
    policy = Policy((SubPolicy((twice, twice, never)), SubPolicy((never,), 0.001), SubPolicy((never,), 0.0)))
    assert policy.describe().splitlines()[2:] == [
        "  1. (100%) 2 times [100% invert(50%)]",
        "  2. (<1%) leave the image alone",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice("rotat"), "unknown operation 'rotat': did you mean 'rotate'"),
        (lambda: Choice("rotate", 1.0, 1.7), r"magnitude must be in \[0, 1\], got 1.7 for op 'rotate'"),
        (lambda: Choice("rotate", 1.0, float("nan")), "magnitude must be"),
        (lambda: Choice("rotate", 1.0, True), "magnitude must be"),
        (lambda: Choice("rotate", 1.0), "got none for op 'rotate'"),
        (lambda: Choice("rotate", -0.1, 0.5), r"probability must be in \[0, 1\], got -0.1"),
        (lambda: Choice("rotate", float("nan"), 0.5), "probability must be"),
        (lambda: Choice("rotate", 1.0, (0.6, 0.5)), r"\[low, high\], got \[0.6, 0.5\]"),
        (lambda: Choice("rotate", 1.0, (0.6, 0.5, 0.4)), r"\[low, high\]"),
        (lambda: Choice("rotate", 1.0, 0.5, sign="left"), "sign must be random or"),
        (lambda: Choice("invert", 1.0, sign="+"), "no direction"),
        (lambda: Choice("invert", 1.0, weight=-1), "weight must be"),
        (lambda: Choice("invert", 1.0, weight=float("inf")), "weight must be"),
        (lambda: Choice("invert", 1.0, weight=10**400), "weight must be"),
        (lambda: Choice("invert", 1.0, weight=1e308), "weight must be"),
        (lambda: every_op().with_strength([1e308, 1e308]), "weight must be"),
        (lambda: every_op().with_strength(magnitude=10**400), "scale of magnitude must be"),
        (lambda: every_op().save(""), "is written to a file"),
        (lambda: replace(every_op(), provenance={"loss": float("nan")}).to_json(), "plain values of JSON"),
        (lambda: replace(every_op(), provenance={"loss": np.float32(1)}).to_json(), "plain values of JSON"),
        (lambda: SubPolicy(((),)), "stage 1 holds none"),
        (lambda: SubPolicy(((Choice("invert", weight=0),),)), "stage 1 holds none"),
        (lambda: Policy(()), "must hold a sub-policy"),
        (lambda: Policy((SubPolicy((), 0.0),)), "must hold a sub-policy"),
        (lambda: replace(every_op(), fill=(0, 0)), "fill must be three levels"),
        (lambda: replace(every_op(), fill=(0, 0, 256)), "fill must be three levels"),
        (lambda: replace(every_op(), spans={"rotate": Span(0, 9, "px")}), "unit degree, got 'px'"),
        (lambda: replace(every_op(), spans={"rotate": Span(1, 9, "degree")}), "must start at 0"),
        (lambda: replace(every_op(), spans={"rotate": Span(0, 0, "degree")}), "another finite value"),
        (lambda: replace(every_op(), spans={"rotate": Span(0, float("nan"), "degree")}), "at_one must be a number"),
        (lambda: replace(every_op(), spans={"invert": Span(0, 1, "x")}), "has no magnitude"),
        (lambda: Policy.named("autoaugment"), "unknown policy 'autoaugment': did you mean 'autoaugment-"),
        (lambda: Policy.named("randaugment(2,14,3)"), r"is written as randaugment\(n=2, m=9\), got"),
        (lambda: Policy.named("randaugment(0)"), r"n of randaugment must be in 1\.\.100, got 0"),
        (lambda: Policy.named("randaugment(n=2, k=3)"), "is written as"),
        (lambda: Policy.named("randaugment(2, 'much')"), "is written as"),
        (lambda: Policy.named("randaugment(2, 9"), "is written as"),
        (lambda: Policy.named("randaugment(2, __import__('os'))"), "is written as"),
        (lambda: Policy.named("randaugment(**{'n': 2})"), "is written as"),
        (lambda: Policy.named("cutout(3)"), r"'cutout' has no settings, got 'cutout\(3\)'"),
        (lambda: Policy.named("uniform", operation_count=0), r"operation_count must be in 1\.\.100, got 0"),
        (lambda: Policy.named("randaugment(import os)"), "is written as"),
        (lambda: Policy.load("/no/such/policy.json"), "could not be read: No such file"),
    ],
)
def test_impossible_policies(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def damage(**changes):
    content = json.loads(every_op().to_json())
    content.pop("hash")
    for key, value in changes.items():
        content.pop(key) if value is ... else content.update({key: value})
    return json.dumps(content)


def damaged_choice(**changes):
    content = json.loads(every_op().to_json())
    content.pop("hash")
    content["sub_policies"][0]["stages"][4][0].update(changes)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (every_op().to_json()[:300], "the policy is not valid JSON: "),
        ("", "the policy is not valid JSON: "),
        ("[" * 100_000, "the policy nests deeper than 100 levels"),
        ('{"provenance": ' + "[" * 200 + "]" * 200 + "}", "the policy nests deeper than 100 levels"),
        ("[]", "must be an object, got list"),
        ("{}", "'format' must be"),
        (damage(version=3), "unknown version 3 of the policy format; choices: 1 or 2"),
        (damage(version=...), "unknown version None"),
        (damage(sub_policies=[]), "must hold a sub-policy"),
        (damage(sub_policies=...), "'sub_policies' is missing"),
        (damage(sub_policies={}), "must be a list, got dict"),
        (damage(sub_policies=[{"stages": [[{"op": "rotate", "magnitude": 2}]]}]), r"\(sub-policy 1, stage 1\)"),
        (damage(sub_policies=[{"stages": [[]]}]), r"holds none \(sub-policy 1\)"),
        (damage(sub_policies=[{"stages": [[{"op": 3}]]}]), "must be the name"),
        (damage(sub_policies=[{"stages": 3}]), "must be a list, got int"),
        (damage(sub_polices=[]), "unknown key 'sub_polices' in a policy: did you mean 'sub_policies'"),
        (damage(interpolation="bicubic"), "unknown interpolation 'bicubic'"),
        (damage(fill="red"), "fill must be"),
        (damage(spans={"rotate": {"at_one": 3}}), "'at_zero' is missing in the span of 'rotate'"),
        (damage(spans={"rotate": {"at_zero": 0, "at_one": 10**200, "unit": "degree"}}), "at_one must be a number"),
        (damage(spans={"rotate": {"at_zero": 0, "at_one": 10**400, "unit": "degree"}}), "more than 300 digits"),
        (damage(provenance={"loss": float("nan")}), "holds nan, which is not a number"),
        (damage(provenance={"loss": 1}).replace('"loss": 1', '"loss": 1e999'), "holds inf, which is not a number"),
        (damage(version=1).replace('"version": 1', f'"version": {"9" * 5000}'), "a number of more than 300 digits"),
        (damaged_choice(weight=10**400), "more than 300 digits"),
        (damaged_choice(weight=10**200), "weight must be"),
        (damaged_choice(op="x" * 10**6), "unknown operation 'xxx"),
        (damaged_choice(sign=["x"] * 10**5), "sign must be"),
        (damaged_choice(magnitude=[0.5] * 10**5), "must be .low, high."),
        (damaged_choice(**{"\ud800" * 1000: 1}), "unknown key"),
        (damage(spans={"\x1b[31m" * 1000: {}}), r"missing in the span of '\\x1b"),
        (damage(format="x" * 10**6), "'format' must be"),
        (damage(version="x" * 10**6), "unknown version"),
        (damage(semantics="x" * 10**6), "unknown semantics"),
        (damage(hash="x" * 10**6), "does not match its hash"),
        (damage(name="x" * 10**6, sub_policies=[]), "must hold a sub-policy"),
        (damage(spans={"rotate": {"at_zero": "0", "at_one": 3, "unit": "degree"}}), "must be a number"),
        (damaged_choice(value=3.0), r"value 3.0 contradicts magnitude .* for op 'rotate' \(sub-policy 1, stage 5\)"),
        (damaged_choice(unit="px"), "unit 'px' contradicts"),
        (damaged_choice(probability="1"), "probability must be"),
        (every_op().to_json().replace('"weight": 3.0', '"weight": 4.0'), "does not match its hash"),
    ],
)
def test_damaged_files(text, message, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(PolicyError, match=message) as told:
        Policy.load(tmp_path / "p.json")
    assert len(str(told.value).removeprefix(repr(str(tmp_path)))) < 500
    assert str(told.value).isprintable()


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(PolicyError, match=r"p.json' is not text in UTF-8 \(byte 0\)$"):
        Policy.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + every_op().to_json().encode())  # as some editors save it
    assert Policy.load(path) == every_op()
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(PolicyError, match="it is a pipe, not a regular file"):
        Policy.load(tmp_path / "pipe.json")
    path.write_bytes(b" " * ((16 << 20) + 1))
    with pytest.raises(PolicyError, match="the limit is 16 MiB"):
        Policy.load(path)


def test_names_cannot_steer_a_terminal():
    names = ["\x1b[31mred\nb", "\ud800", "\udce9", "häß"]
    for name, shown in zip(names, ["\\x1b[31mred\\nb", "\\ud800", "\\xe9", "häß"], strict=True):
        policy = replace(every_op(), name=name)
        assert policy.describe().startswith(f"{shown}: 2 sub-policies")
        assert Policy.from_json(policy.to_json()).name == name
    assert len(replace(every_op(), name="x" * 10**6).describe().splitlines()[0]) < 300


def test_numbers_of_numpy_are_numbers():
    choice = Choice("rotate", np.float32(0.5), (np.float32(0.25), np.int64(1)), np.int64(3))
    assert choice == Choice("rotate", 0.5, (0.25, 1.0), 3.0)
    policy = replace(every_op(), fill=np.array([1, 2, 3])).with_strength(np.array([1, 3]), magnitude=np.float32(0.5))
    assert policy.fill == (1, 2, 3)
    assert policy.strength == Strength((0.25, 0.75), 0.5)
    assert Policy.from_json(policy.to_json()) == policy


def test_threads_write_the_same_file(tmp_path):
    path, wrong = tmp_path / "policy.json", []

    def work():
        for _ in range(40):
            try:
                every_op().save(path)
                Policy.load(path)
            except FasterAAError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [each.name for each in tmp_path.iterdir()] == ["policy.json"]


def test_a_path_is_as_good_as_its_text(tmp_path):
    every_op().save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json") == load_policy(tmp_path) == every_op()


def test_any_cut_of_a_file_is_an_error():
    text = every_op().to_json()
    for end in range(0, len(text) - 2, 97):
        with pytest.raises(FasterAAError):
            Policy.from_json(text[:end])


def test_a_missing_folder_is_made_and_a_file_is_none(tmp_path):
    Policy.named("none").save(tmp_path / "new" / "folder" / "policy.json")
    assert Policy.load(tmp_path / "new" / "folder" / "policy.json") == Policy.named("none")
    with pytest.raises(PolicyError, match=r"could not be written.*a part of its path is a file, not a folder"):
        Policy.named("none").save(tmp_path / "new" / "folder" / "policy.json" / "below.json")
    with pytest.raises(PolicyError, match="could not be written: it is a folder, not a regular file"):
        Policy.named("none").save(tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["policy.json"]


def test_schema_refuses_what_the_reader_refuses():
    jsonschema = pytest.importorskip("jsonschema")
    for text in (damage(version=3), damage(sub_policies=[]), damage(fill=[0]), damaged_choice(probability=2)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(text), schema())


def test_loads_without_torch(tmp_path):
    every_op().save(tmp_path / "p.json")
    code = (
        "import sys; sys.modules.update(torch=None, torchvision=None, numpy=None)\n"
        "from fasteraa.policy import Policy\n"
        f"p = Policy.load({str(tmp_path / 'p.json')!r}); print(p.hash); p.describe(); p.discretize().to_json()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == every_op().hash
