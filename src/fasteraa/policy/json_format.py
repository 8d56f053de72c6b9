"""The policy as a JSON document: what is written, and reading one that somebody may have damaged. No torch.

`docs/policies.md` describes the format. `Policy.to_json` and `Policy.from_json` are the ways in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fasteraa.errors import PolicyError, choices_hint
from fasteraa.ops import Span
from fasteraa.policy.parts import Choice, Strength, SubPolicy, plain_span, tidy
from fasteraa.runtime.documents import cut, parse_json, quoted

if TYPE_CHECKING:
    from fasteraa.policy.policy import Policy

FORMAT = "fasteraa-policy"
VERSION = 1
SCHEDULED_VERSION = 2  # of a policy with a schedule
LARGEST_FILE = 16 << 20  # bytes
_TOP = {
    "$schema", "format", "version", "name", "semantics", "interpolation", "fill", "hole_fill", "spans",
    "sub_policies", "strength", "provenance", "hash",
}  # fmt: skip
_SUB = {"weight", "stages", "during"}
_CHOICE = {"op", "weight", "probability", "magnitude", "value", "unit", "sign"}
_SPAN = {"at_zero", "at_one", "unit"}
_STRENGTH = {"passes", "magnitude", "probability"}


# --- writing ---------------------------------------------------------------------------------------------------------


def write(policy: Policy) -> str:
    """The text of the file."""
    text = json.dumps({**_written(policy), "hash": policy.hash}, indent=1, allow_nan=False) + "\n"
    if len(text) > LARGEST_FILE:
        size, most = (f"{number / 2**20:,.0f} MiB" for number in (len(text), LARGEST_FILE))
        raise PolicyError(
            f"the policy {quoted(policy.name, 40)} takes {size} as a file, at most {most} can be read again"
        )
    return text


def plain_provenance(provenance: Any) -> dict[str, Any]:
    """As it is when it was written and read again."""
    if not isinstance(provenance, Mapping):
        raise PolicyError(f"the provenance of a policy must be a mapping, got {type(provenance).__name__}")
    try:
        text = json.dumps({"provenance": dict(provenance)}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyError(f"the provenance of a policy must hold plain values of JSON: {cut(error)}") from error
    plain: dict[str, Any] = parse_json(text, PolicyError, "the provenance of a policy")["provenance"]
    return plain


def plain_text(text: str) -> str:
    """As it is when it was written and read again: JSON joins halves of a character that stand beside each other."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def hash_of(policy: Policy) -> str:
    """sha256 over what the policy does; name and provenance do not count."""
    content = {key: value for key, value in _written(policy).items() if key not in ("name", "provenance")}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def _written(policy: Policy) -> dict[str, Any]:
    """All but the hash."""
    return {
        "format": FORMAT,
        "version": SCHEDULED_VERSION if policy.scheduled else VERSION,
        "name": policy.name,
        "semantics": "pillow-uint8",
        "interpolation": "nearest",
        "fill": list(policy.fill),
        "hole_fill": list(policy.hole_fill),
        "spans": {name: vars(span) for name, span in sorted(policy.spans.items())},
        "sub_policies": [_written_sub(policy, sub) for sub in policy.sub_policies],
        **({} if policy.strength.plain else {"strength": _written_strength(policy.strength)}),
        "provenance": dict(policy.provenance),
    }


def _written_sub(policy: Policy, sub: SubPolicy) -> dict[str, Any]:
    return {
        "weight": sub.weight,
        **({} if sub.during is None else {"during": list(sub.during)}),
        "stages": [[_written_choice(policy, choice) for choice in stage] for stage in sub.stages],
    }


def _written_choice(policy: Policy, choice: Choice) -> dict[str, Any]:
    written: dict[str, Any] = {"op": choice.op, "weight": choice.weight, "probability": choice.probability}
    span = policy.span(choice.op)
    if span is not None:
        low, high = choice.range
        ranged = isinstance(choice.magnitude, tuple)
        values = [tidy(span.value(low)), tidy(span.value(high))]
        written["magnitude"] = [low, high] if ranged else low
        written["value"] = values if ranged else values[0]
        written["unit"] = span.unit
    if choice.sign is not None:
        written["sign"] = choice.sign
    return written


def _written_strength(strength: Strength) -> dict[str, Any]:
    return {
        "passes": list(strength.passes),
        "magnitude": strength.magnitude,
        "probability": strength.probability,
    }


# --- reading ---------------------------------------------------------------------------------------------------------


def read(text: str) -> Policy:
    """The policy in the text of a file; one that contradicts itself, or was changed without its hash, is refused."""
    from fasteraa.policy.policy import Policy  # which imports this file

    content = _parsed(text)
    spans = {name: _read_span(name, span) for name, span in _expect_object(content.get("spans", {}), "'spans'").items()}
    policy = Policy(
        sub_policies=tuple(
            _read_sub(sub, number, content["version"])
            for number, sub in enumerate(_expect_list(content["sub_policies"], "'sub_policies'"), 1)
        ),
        name=str(content.get("name", "policy")),
        spans=spans,
        fill=content.get("fill", (0, 0, 0)),
        hole_fill=content.get("hole_fill", (125, 123, 114)),
        provenance=_expect_object(content.get("provenance", {}), "'provenance'"),
        strength=_read_strength(content.get("strength", {})),
    )
    _check_values(policy, content)
    if content.get("hash", policy.hash) != policy.hash:
        raise PolicyError(
            f"the content does not match its hash ({policy.hash} against {cut(content['hash'], 80)}): the file was "
            "changed; remove the line with 'hash' to accept it as it is"
        )
    return policy


def _parsed(text: str) -> dict[str, Any]:
    """The content of a document of our format, with the keys that it must and may have."""
    content = _expect_object(parse_json(text, PolicyError, "the policy", nan=False), "a policy")
    if content.get("format") != FORMAT:
        got = quoted(content.get("format"))
        raise PolicyError(f"this is no policy file: its 'format' must be {FORMAT!r}, got {got}")
    version, known_versions = content.get("version"), (VERSION, SCHEDULED_VERSION)
    if isinstance(version, bool) or version not in known_versions:
        choices = " or ".join(map(str, known_versions))
        raise PolicyError(f"unknown version {quoted(version)} of the policy format; choices: {choices}")
    _expect_keys(content, _TOP, {"sub_policies"}, "a policy")
    for key, expected in (("semantics", "pillow-uint8"), ("interpolation", "nearest")):
        if content.get(key, expected) != expected:
            raise PolicyError(f"unknown {key} {quoted(content[key])}; choices: {expected}")
    return content


def _read_span(name: str, span: Any) -> Span:
    where = f"the span of {quoted(name)}"
    _expect_keys(_expect_object(span, where), _SPAN, _SPAN, where)
    return plain_span(name, Span(**span))


def _read_strength(strength: Any) -> Strength:
    _expect_keys(_expect_object(strength, "'strength'"), _STRENGTH, set(), "'strength'")
    given = dict(strength)
    if "passes" in given:
        given["passes"] = tuple(_expect_list(given["passes"], "'passes'"))
    return Strength(**given)


def _read_sub(sub: Any, number: int, version: int) -> SubPolicy:
    where = f"sub-policy {number}"
    keys = _SUB if version == SCHEDULED_VERSION else _SUB - {"during"}
    _expect_keys(_expect_object(sub, where), keys, {"stages"}, where)
    stages = [
        tuple(_read_choice(choice, f"{where}, stage {k}") for choice in _expect_list(stage, f"{where}, stage {k}"))
        for k, stage in enumerate(_expect_list(sub["stages"], f"the stages of {where}"), 1)
    ]
    try:
        return SubPolicy(tuple(stages), sub.get("weight", 1.0), sub.get("during"))
    except PolicyError as error:
        raise PolicyError(f"{error} ({where})") from error


def _read_choice(choice: Any, where: str) -> Choice:
    _expect_keys(_expect_object(choice, where), _CHOICE, {"op"}, where)
    if not isinstance(choice["op"], str):
        raise PolicyError(f"'op' must be the name of an operation, got {quoted(choice['op'])} ({where})")
    magnitude = choice.get("magnitude")
    arguments = {key: choice[key] for key in ("weight", "probability", "sign") if key in choice}
    try:
        return Choice(
            choice["op"], magnitude=tuple(magnitude) if isinstance(magnitude, list) else magnitude, **arguments
        )
    except PolicyError as error:
        raise PolicyError(f"{error} ({where})") from error


def _check_values(policy: Policy, content: dict[str, Any]) -> None:
    """Physical values are written for the reader; where they are given they must agree with the unit magnitudes."""
    for number, (sub, written_sub) in enumerate(zip(policy.sub_policies, content["sub_policies"], strict=True), 1):
        for k, (stage, written_stage) in enumerate(zip(sub.stages, written_sub["stages"], strict=True), 1):
            for choice, written in zip(stage, written_stage, strict=True):
                meant = _written_choice(policy, choice)
                for key in ("value", "unit"):
                    if written.get(key, meant.get(key)) != meant.get(key):
                        raise PolicyError(
                            f"{key} {quoted(written[key])} contradicts magnitude {written.get('magnitude')!r}, which "
                            f"means {meant.get(key)!r}, for op {choice.op!r} (sub-policy {number}, stage {k})"
                        )


def _expect_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError(f"{what} must be an object, got {type(value).__name__}")
    return value


def _expect_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise PolicyError(f"{what} must be a list, got {type(value).__name__}")
    return value


def _expect_keys(value: dict[str, Any], keys: set[str], needed: set[str], where: str) -> None:
    for key in value:
        if key not in keys:
            raise PolicyError(f"unknown key {quoted(key)} in {where}: {choices_hint(key, sorted(keys))}")
    for key in sorted(needed):
        if key not in value:
            raise PolicyError(f"the key {key!r} is missing in {where}")
