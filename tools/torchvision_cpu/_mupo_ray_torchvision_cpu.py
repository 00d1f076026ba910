"""Declare the two torchvision operators that CPU torch lacks, just before they are asked for.

The registry's torchvision is built against CUDA torch. Beside CPU torch its import fails with
"operator torchvision::nms does not exist". The Qwen-VL processors need torchvision to import but
never call these operators, so declaring their signatures is enough. A `.pth` file loads this module
in every interpreter of the environment, Ray workers and vLLM subprocesses included.
"""

import sys

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _DeclareBeforeImport:
    """A meta-path finder that acts once, when torchvision registers its meta kernels."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision._meta_registrations":
            return
        sys.meta_path.remove(self)
        import torch

        for operator in _OPERATORS:
            if not hasattr(torch.ops.torchvision, operator):
                torch.library.define(f"torchvision::{operator}", _SIGNATURE)


sys.meta_path.insert(0, _DeclareBeforeImport())
