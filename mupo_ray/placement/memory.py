"""Memory that trainers, engines and embedders need, from the configuration and the model's size.

An estimate for planning, made before anything runs. Weights, gradients and optimizer states are
exact counts; activations follow what autograd keeps of each layer; what a library takes for itself
is a constant named below. Letters: P = trained parameters, F = frozen ones, b = bytes of the
compute type, n = train workers, T = padded tokens of a micro-batch. All figures are bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.placement.model_size import ModelSize

Parts = dict[str, int]
"""Name of a use -> bytes, in the order they are shown."""

GIB = 2**30

# As in train/policy.py (elements reduced or gathered at a time) and train/scorer.py (logits held).
_BUCKET_ELEMENTS = 50_000_000
_HEAD_ELEMENTS = 2**26
# DeepSpeed's default for the parameters that ZeRO-3 keeps gathered.
_ZERO3_LIVE_ELEMENTS = 1_000_000_000

# What a process holds before it has a model: interpreter, libraries and their pools. The engine's
# is that of its processes together.
_TRAINER_PROCESS = int(1.0 * GIB)
_ENGINE_PROCESS = int(2.0 * GIB)
_EMBEDDER_PROCESS = int(0.8 * GIB)
# CUDA context, NCCL's buffers and the allocator's waste.
_TRAINER_CUDA = int(2.0 * GIB)
_SIDE_CUDA = int(0.6 * GIB)
# Tokens that vLLM profiles one forward pass with on GPUs.
_ENGINE_BATCH_TOKENS = 8192

# Parameters, hidden and MLP widths of the embedders that the presets name.
_EMBEDDERS = {
    "minilm": (22_713_216, 384, 1536),
    "Qwen/Qwen3-Embedding-0.6B": (595_776_512, 1024, 3072),
}


def trainer_states(size: ModelSize, config: Config) -> tuple[Parts, Parts]:
    """Weights, gradients and optimizer states of one train worker.

    With s = n at ZeRO stage 1 and above, else 1 (bfloat16 shards its masters at stage 0 too):

        weights    (P + F) b,  / n at stage 3; with adapters P is theirs and F all others'
        gradients  4 P,  / n at stage 2 and 3; they add up in float32
        optimizer  8 P / s for AdamW's moments; + 4 P / s for float32 masters, which bfloat16 needs
                   and DeepSpeed's stages 1 and 2 keep for float32 too
        step       4 P / s: the partition of the gradients that a ZeRO step flattens

    Returns:
        (on the device, on the host): the host's is empty unless the optimizer is offloaded.
    """
    train = config.train
    n, b = train.num_workers, _width(config)
    lora = config.model.lora
    frozen = size.vision_params if config.model.freeze_vision else 0
    trained = size.params - frozen
    adapters = 0
    if lora is not None:
        trained = adapters = size.adapter_params(lora.rank, lora.targets)
    is_bf16 = b == 2
    stage = max(train.zero_stage, 1) if is_bf16 else train.zero_stage
    shards = n if stage >= 1 else 1
    has_masters = is_bf16 or stage in (1, 2)
    gradients = 4 * trained // (n if stage >= 2 else 1)
    optimizer = (12 if has_masters else 8) * trained // shards
    # The BF16 optimizer of stage 1 steps on its gradients in place.
    step = 0 if stage == 0 or (stage == 1 and is_bf16) else 4 * trained // shards
    weights = b * (size.params + adapters) // (n if stage == 3 else 1)
    if not train.offload_optimizer:
        device = {"weights": weights, "gradients": gradients, "optimizer": optimizer}
        return device | ({"gradients at the step": step} if step else {}), {}
    kept = 0 if stage >= 2 else b * trained
    return (
        {"weights": weights, "gradients": kept, "optimizer": 0},
        {"optimizer (offloaded)": optimizer, "gradients (offloaded)": 4 * trained // shards},
    )


def activations(size: ModelSize, config: Config) -> int:
    """What autograd keeps of the longest forward pass on one worker.

    Kept numbers of one token in one layer, with h hidden, kv key width, i MLP width, a heads:

        decoder layer   b (8 h + 2 kv + 4 i) + 4 (2 + a)   and 4 h more in bfloat16
        vision block    b (13 h + 4 i)       + 4 (2 + a)   and 4 h more in bfloat16, for each patch

    With gradient checkpointing every layer keeps its input (b h) and one layer at a time is whole.
    As if all T tokens were an image's, each of `patches_per_token` patches, pixels included. A
    frozen tower keeps nothing but one block at a time.
    """
    b, tokens = _width(config), config.train.micro_batch_tokens
    h, v = size.hidden, size.vision_hidden
    extra = 4 if b == 2 else 0
    layer = b * (8 * h + 2 * size.kv_width + 4 * size.intermediate) + 4 * (2 + size.heads)
    layer += extra * h
    block = b * (13 * v + 4 * size.vision_intermediate) + 4 * (2 + size.vision_heads) + extra * v
    patches = tokens * size.patches_per_token
    pixels = patches * size.patch_width * (b + 4)
    if config.model.gradient_checkpointing:
        text = tokens * (size.layers * b * h + layer)
        vision = patches * (size.vision_layers * b * v + block)
    else:
        text = tokens * size.layers * layer
        vision = patches * size.vision_layers * block
    if config.model.freeze_vision or config.model.lora is not None:
        vision = patches * block
    return text + vision + pixels


def head(size: ModelSize, config: Config) -> int:
    """Log-probs of the output layer, whose logits are held a chunk at a time.

    A chunk has E = min(2^26, T vocab) logits: two copies in float32 and two in the compute type;
    the gradient of its weight adds up in float32 beside one product: E (8 + 2 b) + vocab h (4 + b).
    """
    b = _width(config)
    chunk = min(_HEAD_ELEMENTS, config.train.micro_batch_tokens * size.vocab)
    return chunk * (8 + 2 * b) + size.vocab * size.hidden * (4 + b)


def trainer(size: ModelSize | None, config: Config) -> tuple[Parts, Parts]:
    """All of one train worker: (on its GPU, on the host). On CPU the first is empty.

    Adds to `trainer_states`: the reference policy where `loss.kl_coef` is above 0 (sharded at stage
    3, else a copy a worker; none with adapters, whose reference is the model without them),
    activations, head, and the buffers that parameters, gradients and new weights travel in.
    """
    on_gpu = config.run.device == "cuda"
    if size is None:
        return ({"CUDA": _TRAINER_CUDA} if on_gpu else {}), {"process": _TRAINER_PROCESS}
    b, stage, n = _width(config), config.train.zero_stage, config.train.num_workers
    device, host = trainer_states(size, config)
    if config.loss.kl_coef > 0 and config.model.lora is None:
        device["reference policy"] = b * size.params // (n if stage == 3 else 1)
    device["activations"] = activations(size, config)
    device["log-prob head"] = head(size, config)
    buffers = 2 * config.sync.bucket_mib * 2**20
    if stage >= 1 or b == 2:
        buffers += 2 * 4 * min(_BUCKET_ELEMENTS, size.params)
    if stage == 3:
        buffers += b * min(_ZERO3_LIVE_ELEMENTS, size.params)
    device["buffers"] = buffers
    if not on_gpu:
        return {}, {"process": _TRAINER_PROCESS} | device | host
    # A worker reads the whole checkpoint through host memory, at stage 3 only its shard.
    loading = b * size.params // (n if stage == 3 else 1)
    return (
        device | {"CUDA, NCCL": _TRAINER_CUDA},
        {"process": _TRAINER_PROCESS, "loading": loading} | host,
    )


def kv_bytes_per_token(size: ModelSize, config: Config) -> int:
    """Keys and values of one token in all layers: 2 layers kv b."""
    return 2 * size.layers * size.kv_width * _width(config)


def engine(
    size: ModelSize | None, config: Config, card_bytes: int | None = None
) -> tuple[Parts, Parts]:
    """One engine: (on each of its GPUs, on the host). On CPU the first is empty.

    vLLM fills `gpu_memory_utilization` of a card: weights and working set first (both / t for t =
    tensor_parallel_size), the KV cache with the rest. On CPU the cache has `kv_cache_gib`.

    Args:
        size: of the model; None where unknown.
        config: the configuration.
        card_bytes: memory of a GPU; None where unknown, and then the cache is the smallest that
            holds one longest sequence.
    """
    rollout = config.rollout
    if config.run.device == "cpu":
        weights = {} if size is None else {"weights": _width(config) * size.params}
        cache = {"KV cache": int(rollout.kv_cache_gib * GIB)}
        return {}, {"process": _ENGINE_PROCESS} | weights | cache
    host = {"process": _ENGINE_PROCESS}
    budget = None if card_bytes is None else int(rollout.gpu_memory_utilization * card_bytes)
    if size is None:
        return {"engine": budget or 0, "CUDA": _SIDE_CUDA}, host
    b, ways = _width(config), rollout.tensor_parallel_size
    tokens = max(_ENGINE_BATCH_TOKENS, rollout.max_model_len)
    text = b * (2 * size.intermediate + 6 * size.hidden)
    vision = b * (2 * size.vision_intermediate + 6 * size.vision_hidden) * size.patches_per_token
    sampling = 8 * rollout.max_num_seqs * size.vocab
    weights_bytes = b * size.params // ways
    working = tokens * (text + vision) // ways + sampling
    smallest = kv_bytes_per_token(size, config) * rollout.max_model_len // ways
    cache_bytes = max(smallest, (budget or 0) - weights_bytes - working)
    device = {
        "weights": weights_bytes,
        "working set": working,
        "KV cache": cache_bytes,
        "buffers": config.sync.bucket_mib * 2**20,
        "CUDA": _SIDE_CUDA,
    }
    return device, host | {"loading": b * size.params // ways}


def embedder(config: Config) -> tuple[Parts, Parts]:
    """One embedder: (on its GPU, on the host); float32 weights and the widest layer of a batch."""
    cfg = config.embedder
    params, hidden, intermediate = _EMBEDDERS.get(cfg.model, (0, 0, 0))
    work = 4 * cfg.batch_size * cfg.max_tokens * (2 * intermediate + 6 * hidden)
    parts = {"weights": 4 * params, "working set": work}
    process = {"process": _EMBEDDER_PROCESS}
    if cfg.gpus_per_actor > 0:
        return parts | {"CUDA": _SIDE_CUDA}, process
    return {}, process | parts


def _width(config: Config) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4
