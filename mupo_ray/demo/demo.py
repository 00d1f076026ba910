"""The laptop task on disk, rebuilt only when its settings or the code that makes it change."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mupo_ray.demo import puzzle_files, puzzle_text, puzzles, tiny_model, warm_start
from mupo_ray.demo.puzzle_files import read_boards, write_puzzles
from mupo_ray.demo.tiny_model import save_model
from mupo_ray.demo.warm_start import WarmStartConfig

logger = logging.getLogger(__name__)

_STAMP = "demo.json"
_CODE = (puzzles, puzzle_text, puzzle_files, tiny_model, warm_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """What the laptop task consists of."""

    seed: int = 0
    train_rows: int = 2048
    eval_rows: int = 256
    test_rows: int = 256
    hinted: bool = False
    """Whether the hidden cells show a hint: puzzles in which choosing well can be learned."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)

    def digest(self) -> str:
        """Hash of these settings and of the code that acts on them."""
        content = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode())
        for module in _CODE:
            content.update(Path(str(module.__file__)).read_bytes())
        return content.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Where the laptop task lies."""

    data: Path
    """Folder of train.parquet, eval.parquet and test.parquet."""
    model: Path
    """Hugging Face folder of the base model."""
    was_built: bool
    """False where an earlier build was found."""


def prepare_demo(folder: Path, config: DemoConfig | None = None) -> Demo:
    """Make data and base model in a folder, unless the same ones are there already.

    Args:
        folder: gets `data/`, `model/` and a stamp, which is written last: a build that was cut off
            has none and is made again.
        config: what to build; the default task where absent.
    """
    config = config or DemoConfig()
    data, model, stamp = folder / "data", folder / "model", folder / _STAMP
    digest = config.digest()
    if stamp.is_file() and json.loads(stamp.read_text())["digest"] == digest:
        return Demo(data=data, model=model, was_built=False)
    stamp.unlink(missing_ok=True)
    for stale in (data, model):
        shutil.rmtree(stale, ignore_errors=True)
    sizes = {"train": config.train_rows, "eval": config.eval_rows, "test": config.test_rows}
    files = write_puzzles(data, config.seed, sizes, hinted=config.hinted)
    held_out = [board for split in ("eval", "test") for board in read_boards(files[split])]
    trained, reports = warm_start.warm_start(
        config.warm_start, exclude=held_out, hinted=config.hinted
    )
    save_model(model, trained)
    stages = [asdict(report) for report in reports]
    stamp.write_text(
        json.dumps({"digest": digest, "config": asdict(config), "stages": stages}, indent=2)
    )
    return Demo(data=data, model=model, was_built=True)
