"""Write configs/base.yaml from the fields of the configuration."""

from __future__ import annotations

from pathlib import Path

from mupo_ray.config import Config
from mupo_ray.settings.text import base_yaml

if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "configs" / "base.yaml"
    path.write_text(base_yaml(Config), encoding="utf-8")
