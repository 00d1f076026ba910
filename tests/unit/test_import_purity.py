"""Importing the maths must not pull in the big libraries."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import mupo_ray.core
names = [m.name for m in pkgutil.iter_modules(mupo_ray.core.__path__, "mupo_ray.core.")]
assert "mupo_ray.core.loss" in names, names
for name in names:
    importlib.import_module(name)
heavy = {"ray", "vllm", "deepspeed", "transformers", "optuna", "numba", "sklearn"}
print(sorted(heavy & set(sys.modules)))
"""


def test_core_imports_none_of_the_big_libraries() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
