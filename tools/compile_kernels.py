"""Compile every kernel for a GPU that need not be here, and look at what became of the arithmetic.

    PYTHONPATH=src python tools/compile_kernels.py [--arch 90]

Prints registers, spills and shared memory of each; fails where one does not compile, spills, or fuses a product into
a sum although it must round as plain torch does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from fasteraa.nets import pointwise_triton as critic
from fasteraa.ops.kernels import draw, hard, soft, soft_backward, soft_forward, soft_weights

BYTES, WHOLE, LONG, REAL, DOUBLE = "*u8", "*i32", "*i64", "*fp32", "*fp64"
TYPES = {
    **dict.fromkeys(("source", "target", "partners", "tables"), BYTES),
    **dict.fromkeys(("whole", "codes", "counted"), WHOLE),
    **dict.fromkeys(("op", "option_op"), LONG),
    **dict.fromkeys(("uniform", "sub_edges", "edges", "probability", "low", "high", "positive"), DOUBLE),
    **dict.fromkeys(("pass_edges", "magnitude", "sign", "hole", "partner", "spans", "real", "normal"), DOUBLE),
}
TILE = {"ROWS": 32, "COLUMNS": 32, "NORMAL": False}
FLOATS = {"target": REAL, "normal": REAL}
# the soft kernels: images, sums and gradients are real numbers
SOFT = {
    **dict.fromkeys(("source", "partners", "record", "values", "tables", "ranges", "means", "target"), REAL),
    **dict.fromkeys(("gradient", "to_image", "to_smooth", "to_partner", "to_record", "to_mean"), REAL),
    **dict.fromkeys(("choice", "probability", "magnitude", "uniform", "sign", "hole"), REAL),
    **dict.fromkeys(("to_choice", "to_probability", "to_magnitude"), REAL),
    **dict.fromkeys(("fill0", "fill1", "fill2", "hole0", "hole1", "hole2"), "fp32"),
    **dict.fromkeys(("sub_policy", "partner"), LONG),
    "sums": DOUBLE,
    "kinds": WHOLE,
}
ALL = {name: place for place, name in enumerate(soft.TWINS)}
SPREAD = {name: ALL[name] for name in soft._SPREAD}
SURVEYED = {name: ALL[name] for name in soft._SURVEYED}
COLOUR, GREY = ({"CHANNELS": channels, "LANES": lanes, "TILE": soft._TILE} for channels, lanes in ((3, 4), (1, 1)))
WEIGHED = {"CHOICE": 0.05, "GATE": 0.05, "EDGE": 1e-4, "TINY": 2.0**-23, "LANES": 32}
FINISHED = {"LANES": 32, "TILES": soft._TILES, "CONTRAST": 0}
# the critic's kernels: images in float32 or bfloat16, parameters and sums in float32
IMAGES = ("value", "plus", "total", "out", "gradient", "onto", "delta", "to")
VECTORS = dict.fromkeys(("weight", "shift", "parts", "scale", "to_weight", "to_scale"), REAL)
CRITIC = {
    name: {**VECTORS, **dict.fromkeys(IMAGES, real), "table": WHOLE} for name, real in (("", REAL), (", bf16", "*bf16"))
}
CRITIC_TILE = {"ROWS": critic.ROWS, "LANES": critic.LANES}
SUM_TILE = {"ROWS": critic.SUM_ROWS, "LANES": critic.LANES}
ALONE, PLAIN_SHIFT = {"plus": None, "total": None}, {"plus": None, "total": None, "weight": None}
# name -> kernel, constants, other types, warps, may it use fused products (sine and cosine do)?
KERNELS: dict[str, tuple[Any, dict[str, Any], dict[str, str], int, bool]] = {
    "decode": (draw._decode, {"ITEMS": 64}, {}, 2, False),
    "prepare": (hard._prepare, {"ITEMS": 64}, {"partners": "i32"}, 2, True),
    "draw": (hard._draw, {"ITEMS": 64}, {"partners": "i32"}, 2, True),
    "count": (hard._count, {"CHANNELS": 3, "BLOCK": hard._BLOCK}, {}, 8, False),
    "count, grey": (hard._count, {"CHANNELS": 1, "BLOCK": hard._BLOCK}, {}, 8, False),
    "tables, colour": (hard._fill_tables, {"CHANNELS": 3, "BLOCK": 1024, "SPLIT": False}, {}, 4, False),
    "tables, larger": (hard._fill_tables, {"CHANNELS": 3, "BLOCK": 4096, "SPLIT": False}, {}, 8, False),
    "tables, counted": (hard._fill_tables, {"CHANNELS": 3, "BLOCK": hard._BLOCK, "SPLIT": True}, {}, 4, False),
    "tables, grey": (hard._fill_tables, {"CHANNELS": 1, "BLOCK": 256, "SPLIT": False}, {}, 4, False),
    "tables, one pixel": (
        hard._fill_tables,
        {"CHANNELS": 3, "BLOCK": 256, "SPLIT": False, "pixels": 1},
        {},
        4,
        False,
    ),
    "apply, colour": (hard._apply, {"CHANNELS": 3, **TILE}, {}, 4, False),
    "apply, grey": (hard._apply, {"CHANNELS": 1, **TILE}, {}, 4, False),
    "apply, normalised": (hard._apply, {"CHANNELS": 3, **TILE, "NORMAL": True}, FLOATS, 8, False),
    "apply, one column": (hard._apply, {"CHANNELS": 3, **TILE, "width": 1}, {}, 4, False),
    "apply, one pixel": (hard._apply, {"CHANNELS": 3, **TILE, "width": 1, "pixels": 1}, {}, 4, False),
    "weigh": (soft_weights._weigh, {**WEIGHED, "ROTATE": 4, "CUTOUT": 16}, SOFT, 1, True),
    "weigh, back": (soft_weights._weigh_back, {**WEIGHED, "CHUNK": soft_weights._CHUNK}, SOFT, 4, True),
    "survey, colour": (soft_forward._survey, {**SURVEYED, "CHANNELS": 3, "BLOCK": 1024}, SOFT, 4, False),
    "survey, large": (soft_forward._survey, {**SURVEYED, "CHANNELS": 3, "BLOCK": 4096}, SOFT, 8, False),
    "survey, grey": (soft_forward._survey, {**SURVEYED, "CHANNELS": 1, "BLOCK": 256}, SOFT, 4, False),
    "mix, colour": (soft_forward._mix, {**ALL, **COLOUR}, SOFT, soft._WARPS_OF_TILE, False),
    "mix, grey": (soft_forward._mix, {**ALL, **GREY}, SOFT, soft._WARPS_OF_TILE, False),
    "moments, colour": (
        soft_backward._moments,
        {**ALL, **COLOUR, "IMAGE": True, "PARTNER": True, "ENDS": True},
        SOFT,
        soft._WARPS_OF_TILE,
        False,
    ),
    "moments, first": (
        soft_backward._moments,
        {**ALL, **COLOUR, "IMAGE": False, "PARTNER": False, "ENDS": False},
        SOFT,
        soft._WARPS_OF_TILE,
        False,
    ),
    "moments, grey": (
        soft_backward._moments,
        {**ALL, **GREY, "IMAGE": True, "PARTNER": False, "ENDS": True},
        SOFT,
        soft._WARPS_OF_TILE,
        False,
    ),
    "finish": (soft_backward._finish, FINISHED, SOFT, 4, False),
    "spread, colour": (soft_backward._spread, {**SPREAD, **COLOUR}, SOFT, soft._WARPS_OF_TILE, False),
    "spread, grey": (soft_backward._spread, {**SPREAD, **GREY}, SOFT, soft._WARPS_OF_TILE, False),
}


for kind, types in CRITIC.items():
    KERNELS |= {
        f"shift, ReLU{kind}": (critic._forward, {**PLAIN_SHIFT, **CRITIC_TILE, "GATE": 1}, types, 4, True),
        f"affine, ReLU{kind}": (critic._forward, {**ALONE, **CRITIC_TILE, "GATE": 1}, types, 4, True),
        f"sum, affine, ReLU{kind}": (critic._forward, {**CRITIC_TILE, "GATE": 1}, types, 4, True),
        f"tangent of it{kind}": (critic._forward, {**CRITIC_TILE, "shift": None, "GATE": 2}, types, 4, True),
        f"before a ReLU{kind}": (
            critic._backward,
            {**CRITIC_TILE, "weight": None, "onto": None, "to": None},
            types,
            4,
            True,
        ),
        f"before affine, ReLU{kind}": (critic._backward, CRITIC_TILE, types, 4, True),
        f"sums{kind}": (critic._sums, SUM_TILE, types, critic.SUM_WARPS, True),
        f"sums, no product{kind}": (critic._sums, {**SUM_TILE, "value": None}, types, critic.SUM_WARPS, True),
        f"scale{kind}": (critic._scale, {"BLOCK": critic.BLOCK}, types, 4, True),
        f"scale, back{kind}": (critic._scale_back, {"BLOCK": critic.BLOCK}, types, 4, True),
    }


def compiled(name: str, arch: int) -> Any:
    kernel, constants, others, warps, _ = KERNELS[name]
    types = {**TYPES, **others}
    signature = {
        parameter: "constexpr" if parameter in constants else types.get(parameter, "i32")
        for parameter in kernel.arg_names
    }
    # what a launch would find out: pointers and the width can be divided by 16
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, parameter in enumerate(kernel.arg_names)
        if signature[parameter].startswith("*")
        or (parameter in ("width", "pixels", "channels") and parameter not in constants)
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def resources(ptx: str, arch: int) -> str:
    """What the assembler says: registers, stack, spills."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        suffix = "a" if arch >= 90 else ""
        command = [
            get_ptxas(arch).path,
            "-v",
            "--fmad=false",
            f"--gpu-name=sm_{arch}{suffix}",
            file.name,
            "-o",
            "/dev/null",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return " ".join(re.findall(r"\d+ bytes (?:stack frame|spill stores|spill loads)|Used \d+ registers", said))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, default=90)
    given = parser.parse_args()
    bad = 0
    for name in KERNELS:
        made, fuses = compiled(name, given.arch), KERNELS[name][-1]
        fused = len(re.findall(r"\bfma\.", made.asm["ptx"]))
        said = resources(made.asm["ptx"], given.arch)
        wrong = (fused > 0 and not fuses) or not re.search(r"\b0 bytes spill stores", said)
        bad += wrong
        print(f"{name}: {said}, {made.metadata.shared} bytes shared, {fused} fused{'  <- WRONG' if wrong else ''}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
