"""Parameter counts of Qwen2.5-VL and Qwen3-VL from their dimensions alone (no torch).

Written out from the layers of transformers 5.19 and tested against models built by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Dimensions that memory depends on, and the parameter counts that follow from them."""

    family: str
    """`qwen2_5_vl` or `qwen3_vl`."""
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    query_width: int
    """Width of all queries of a token: heads times head size."""
    kv_width: int
    """Width of all keys of a token: KV heads times head size."""
    text_params: int
    """Embedding, decoder and output layer; a tied output layer counts once."""
    vision_hidden: int
    vision_intermediate: int
    vision_layers: int
    vision_heads: int
    patches_per_token: int
    patch_width: int
    """Numbers in one patch of pixels."""
    vision_params: int
    """The vision tower with its merger."""

    @property
    def params(self) -> int:
        """All parameters."""
        return self.text_params + self.vision_params

    def adapter_params(self, rank: int, targets: Iterable[str]) -> int:
        """Parameters of low-rank adapters: rank x (inputs + outputs) of each layer named."""
        h, q, kv, i = self.hidden, self.query_width, self.kv_width, self.intermediate
        widths = {
            "q_proj": h + q,
            "k_proj": h + kv,
            "v_proj": h + kv,
            "o_proj": q + h,
            "gate_proj": h + i,
            "up_proj": h + i,
            "down_proj": i + h,
        }
        return self.layers * rank * sum(widths[name] for name in targets)


def size_from_config(config: Mapping[str, Any], where: str = "config") -> ModelSize:
    """Count parameters.

    Args:
        config: contents of a model's `config.json`, nested (`text_config`) or flat.
        where: name of it for messages.

    Raises:
        ConfigError: another model family, or a dimension is missing.
    """
    family = config.get("model_type")
    if family not in ("qwen2_5_vl", "qwen3_vl"):
        raise ConfigError(f"{where}: model_type is {family!r}, should be qwen2_5_vl or qwen3_vl")
    text = config.get("text_config") or config
    vision: Mapping[str, Any] = config.get("vision_config") or {}
    try:
        # Files written before transformers 5 may say it in the text part only.
        tied = bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
        text_params = (_text_qwen2_5 if family == "qwen2_5_vl" else _text_qwen3)(text, tied)
        vision_params = (_vision_qwen2_5 if family == "qwen2_5_vl" else _vision_qwen3)(vision)
        return ModelSize(
            family=family,
            vocab=text["vocab_size"],
            hidden=text["hidden_size"],
            intermediate=text["intermediate_size"],
            layers=text["num_hidden_layers"],
            heads=text["num_attention_heads"],
            query_width=text["num_attention_heads"] * _head_size(text),
            kv_width=text["num_key_value_heads"] * _head_size(text),
            text_params=text_params,
            vision_hidden=vision["hidden_size"],
            vision_intermediate=vision["intermediate_size"],
            vision_layers=vision["depth"],
            vision_heads=vision["num_heads"],
            patches_per_token=vision.get("spatial_merge_size", 2) ** 2,
            patch_width=_patch_width(vision),
            vision_params=vision_params,
        )
    except (KeyError, TypeError, AttributeError) as err:
        raise ConfigError(
            f"{where}: no usable dimensions ({err!r}); should be a whole config.json"
        ) from err


def find_size(path: str) -> ModelSize | None:
    """Size of the model at a folder or hub id; None where its configuration is nowhere at hand.

    Looks in the folder, then among the published sizes below, then in the local hub cache. Nothing
    is downloaded.

    Raises:
        ConfigError: a `config.json` is there but of no known family, or broken.
    """
    folder = Path(path).expanduser()
    file: Path | None = folder / "config.json"
    if not folder.is_dir():
        if path in PUBLISHED:
            return size_from_config(PUBLISHED[path], path)
        file = _cached(path)
    if file is None or not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ConfigError(f"{file}: {err}; should be a model's configuration") from err
    return size_from_config(config, str(file))


def _cached(repo: str) -> Path | None:
    if repo.count("/") != 1 or repo.startswith((".", "/", "~")):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json")
    return Path(cached) if isinstance(cached, str) else None


def _head_size(text: Mapping[str, Any]) -> int:
    size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return int(size)


def _patch_width(vision: Mapping[str, Any]) -> int:
    channels = vision.get("in_channels") or vision.get("in_chans") or 3
    return int(channels * vision.get("temporal_patch_size", 2) * vision["patch_size"] ** 2)


def _text_qwen2_5(text: Mapping[str, Any], tied: bool) -> int:
    """Biases on q, k and v only; two norms a layer and one at the end."""
    h, i = text["hidden_size"], text["intermediate_size"]
    q = text["num_attention_heads"] * _head_size(text)
    kv = text["num_key_value_heads"] * _head_size(text)
    layer = (h + 1) * q + 2 * (h + 1) * kv + q * h + 3 * h * i + 2 * h
    return int(text["num_hidden_layers"] * layer + h + (1 if tied else 2) * text["vocab_size"] * h)


def _text_qwen3(text: Mapping[str, Any], tied: bool) -> int:
    """No biases; q and k have a norm each of one head's size."""
    h, i = text["hidden_size"], text["intermediate_size"]
    q = text["num_attention_heads"] * _head_size(text)
    kv = text["num_key_value_heads"] * _head_size(text)
    layer = 2 * h * q + 2 * h * kv + 2 * _head_size(text) + 3 * h * i + 2 * h
    if text.get("attention_bias"):
        layer += q + 2 * kv + h
    return int(text["num_hidden_layers"] * layer + h + (1 if tied else 2) * text["vocab_size"] * h)


def _vision_qwen2_5(vision: Mapping[str, Any]) -> int:
    """Blocks of biased qkv, projection and gated MLP, two norms each; then the merger."""
    h, i, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    block = 3 * h * (h + 1) + h * (h + 1) + 2 * (h + 1) * i + (i + 1) * h + 2 * h
    merged = h * vision.get("spatial_merge_size", 2) ** 2
    merger = h + merged * (merged + 1) + (merged + 1) * out
    return int(_patch_width(vision) * h + vision["depth"] * block + merger)


def _vision_qwen3(vision: Mapping[str, Any]) -> int:
    """Learned positions, LayerNorms with bias, plain MLP; one more merger a deepstack level."""
    h, i, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    block = 4 * h * (h + 1) + (h + 1) * i + (i + 1) * h + 4 * h
    merged = h * vision.get("spatial_merge_size", 2) ** 2
    projection = merged * (merged + 1) + (merged + 1) * out
    deepstack = len(vision["deepstack_visual_indexes"])
    mergers = (projection + 2 * h) + deepstack * (projection + 2 * merged)
    stem = (_patch_width(vision) + 1) * h + vision["num_position_embeddings"] * h
    return int(stem + vision["depth"] * block + mergers)


_QWEN2_5_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
}

# Published dimensions, for a plan made where the models cannot be downloaded.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": True,
        "text_config": {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
        },
        "vision_config": {**_QWEN2_5_VISION, "out_hidden_size": 2048},
    },
    "Qwen/Qwen2.5-VL-7B-Instruct": {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": False,
        "text_config": {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        "vision_config": {**_QWEN2_5_VISION, "out_hidden_size": 3584},
    },
}
