"""Export: the checkpoint's very tensors, whole or not at all, with a card whose code runs."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mupo_ray.config import load_config
from mupo_ray.demo.tiny_model import build_tiny_model
from mupo_ray.errors import CheckpointError, ConfigError
from mupo_ray.runs.export import export_checkpoint
from mupo_ray.runs.folder import verify

SETTINGS = (
    *("model.path=runs/demo/model", "method.num_groups=2", "method.min_group_size=4"),
    *("train.num_steps=60", "data.prompts_per_step=16", "rollout.num_generations=12"),
)
JOB = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "export.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "m", seed=5)


def make_checkpoint(run: Path, step: int, model: Path) -> Path:
    folder = run / f"step_{step:06d}"
    shutil.copytree(model, folder / "hf")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "states.pt").write_bytes(b"12345")
    files = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    state = {"step": step, "stream_position": 16 * step, "config_hash": "abc", "files": files}
    (folder / "state.json").write_text(json.dumps(state))
    assert verify(folder).step == step
    return folder


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A run with checkpoints at 20 and 40."""
    folder = tmp_path / "runs" / "mupo"
    for step in (20, 40):
        make_checkpoint(folder, step, model)
    config = load_config(overrides=SETTINGS)
    record = {
        "config": json.loads(config.model_dump_json()),
        "seeds": {"run": 11},
        "commit": "c0ffee",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0"},
    }
    (folder / "run.json").write_text(json.dumps(record))
    rows = [
        {"step": 0, "eval/heldout/acc@1": 0.25, "eval/heldout/acc@4": 0.5},
        {"step": 20, "eval/heldout/acc@1": 0.375, "eval/heldout/acc@4": 0.625},
        {"step": 30, "eval/heldout/acc@1": 0.5, "eval/heldout/acc@4": 0.75},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_export_loads_and_holds_the_same_tensors(run: Path, tmp_path: Path) -> None:
    out = export_checkpoint(run, tmp_path / "new" / "export")
    want = load_file(run / "step_000040" / "hf" / "model.safetensors")
    have = load_file(out / "model.safetensors")
    assert have.keys() == want.keys()
    assert all(torch.equal(have[name], want[name]) for name in want)
    loaded = AutoModelForImageTextToText.from_pretrained(out)
    before = AutoModelForImageTextToText.from_pretrained(run / "step_000040" / "hf")
    for (name, a), (_, b) in zip(loaded.named_parameters(), before.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert loaded.generation_config.do_sample
    assert AutoProcessor.from_pretrained(out).chat_template
    assert not {p.name for p in out.iterdir()} & {"trainer", "rng", "state.json"}
    assert [p.name for p in out.parent.iterdir()] == ["export"]


def test_card_says_what_and_how(run: Path, tmp_path: Path) -> None:
    card = (export_checkpoint(run, tmp_path / "e") / "README.md").read_text()
    front = card.split("---")[1]
    assert "pipeline_tag: image-text-to-text" in front and "license: unknown" in front
    # The base is a folder here, which is not an id that the front matter may name.
    assert "base_model" not in front and "Base model: `runs/demo/model`" in card
    assert "Steps: 40 of 60, each 16 prompts with 12 responses, 7680 responses" in card
    assert "|  | base model | after 30 steps |" in card
    assert "10 steps before this checkpoint" in card
    assert "| acc@4 | 0.500 | 0.750 |" in card
    assert "| `method.num_groups` | `2` |" in card and "| seed (run) | 11 |" in card
    assert "c0ffee" in card and "## Licence" in card


def test_code_of_the_card_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (export_checkpoint(run, tmp_path / "e") / "README.md").read_text()
    code, vllm_code = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    Image.new("RGB", (84, 84), "white").save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "card", "exec"), {})
    assert capsys.readouterr().out.strip()
    compile(vllm_code, "card", "exec")
    assert 'dtype="float32"' in vllm_code


def test_step_and_checkpoint_can_be_named(run: Path, tmp_path: Path) -> None:
    by_step = export_checkpoint(run, tmp_path / "a", step=20)
    assert "| acc@1 | 0.250 | 0.375 |" in (by_step / "README.md").read_text()
    by_folder = export_checkpoint(run / "step_000020", tmp_path / "b")
    text = (by_folder / "README.md").read_text()
    assert text.replace("# b", "# a").replace('"b"', '"a"') == (by_step / "README.md").read_text()


def test_a_checkpoint_away_from_its_run(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(run / "step_000020", alone)
    card = (export_checkpoint(alone, tmp_path / "e") / "README.md").read_text()
    assert "after 20 training steps" in card and "not known here" in card
    assert "## Settings" not in card


def test_a_checkpoint_cut_short_is_passed_over(run: Path, tmp_path: Path) -> None:
    (run / "step_000040" / "trainer" / "states.pt").write_bytes(b"123")
    out = export_checkpoint(run, tmp_path / "e")
    assert "Steps: 20 of 60" in (out / "README.md").read_text()
    with pytest.raises(CheckpointError, match=r"states\.pt has 3 bytes instead of 5"):
        export_checkpoint(run, tmp_path / "f", step=40)
    assert not (tmp_path / "f").exists()


def test_nothing_is_left_where_copying_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(CheckpointError, match="No space left"):
        export_checkpoint(run, tmp_path / "out" / "e")
    assert list((tmp_path / "out").iterdir()) == []


def test_faults_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*argv: object) -> str:
        assert JOB["main"]([str(a) for a in argv]) == 1
        text = capsys.readouterr().err
        assert text.startswith("error: ") and text.count("\n") == 1
        return text

    out, full, empty = tmp_path / "out", tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "mine.txt").write_text("keep")
    assert "is no folder" in fails(tmp_path / "nope", out)
    assert "is not empty" in fails(run, full)
    assert "there are: step_000020, step_000040" in fails(run, out, "--step", 30)
    assert "checkpoint of step 20, got --step 40" in fails(run / "step_000020", out, "--step", 40)
    assert "it has no step_... folder" in fails(empty, out)
    for step in (20, 40):
        (run / f"step_{step:06d}" / "state.json").unlink()
    assert "none of step_000020, step_000040 is whole" in fails(run, out)
    assert "state.json cannot be read" in fails(run / "step_000040", out)
    assert not out.exists() and [p.name for p in full.iterdir()] == ["mine.txt"]


def test_a_model_without_processor_is_refused(run: Path, tmp_path: Path) -> None:
    state_file = run / "step_000040" / "state.json"
    state = json.loads(state_file.read_text())
    del state["files"]["hf/processor_config.json"]
    state_file.write_text(json.dumps(state))
    (run / "step_000040" / "hf" / "processor_config.json").unlink()
    with pytest.raises(CheckpointError, match="no processor_config.json or preprocessor"):
        export_checkpoint(run, tmp_path / "e")


def test_an_empty_folder_will_do(run: Path, tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    assert JOB["main"]([str(run), str(tmp_path / "e")]) == 0
    assert (tmp_path / "e" / "config.json").exists()
    with pytest.raises(ConfigError, match="not empty"):
        export_checkpoint(run, tmp_path / "e")
