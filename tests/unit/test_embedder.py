"""Embedding texts: the packaged MiniLM for real, and the client against scripted actors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ray

from mupo_ray.errors import EmbeddingError
from mupo_ray.rollout.embedder import EmbedderPool, TextEmbedder, resolve_model
from mupo_ray.settings.sections import EmbedderConfig
from mupo_ray.testing.actors import ScriptedEmbedder

SUM_ROW = "the numbers of the row add up to fifteen , so the missing one is six"
SUM_ROW_AGAIN = "fifteen is the sum of the row , hence six is missing"
OTHER = "red paint dries slowly in winter"


@pytest.fixture(scope="module")
def minilm() -> TextEmbedder:
    return TextEmbedder(EmbedderConfig(max_tokens=32, cache_texts=5, batch_size=2), "cpu")


def test_vectors_are_unit_rows_in_the_order_of_the_texts(minilm: TextEmbedder) -> None:
    assert minilm.ready() == 384
    texts = [SUM_ROW, OTHER, "", SUM_ROW_AGAIN, OTHER]
    vectors, _ = minilm.embed(texts)
    assert vectors.shape == (5, 384)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        alone, _ = minilm.embed([text])
        assert alone[0] == pytest.approx(vector, abs=1e-5)
    # The same way to the answer in other words is nearer than another subject.
    assert vectors[0] @ vectors[3] > 0.6 > 0.3 > vectors[0] @ vectors[1]
    assert np.array_equal(vectors[1], vectors[4])


def test_known_texts_come_from_the_cache_the_oldest_go(minilm: TextEmbedder) -> None:
    assert minilm.embed(["a", "b", "c", "d", "e"])[1] == 0.0
    assert minilm.embed(["a", "b"])[1] == 1.0
    # Of five places, c's is the oldest now.
    assert minilm.embed(["f", "a"])[1] == 0.5
    assert minilm.embed(["c"])[1] == 0.0
    assert minilm.embed(["a", "b", "f", "c"])[1] == 1.0
    many, hit_frac = minilm.embed([str(i) for i in range(8)])
    assert (many.shape, hit_frac) == ((8, 384), 0.0)


def test_long_texts_are_cut_at_max_tokens(minilm: TextEmbedder) -> None:
    (one, other, early), _ = minilm.embed(
        ["six " * 60 + "seven", "six " * 60 + "eight", "seven " + "six " * 60]
    )
    assert one == pytest.approx(other, abs=1e-6)
    assert np.abs(one - early).max() > 1e-3


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(EmbeddingError, match=r"embedder\.model = '/no/such/model'"):
        TextEmbedder(EmbedderConfig(model="/no/such/model"), "cpu")
    assert resolve_model("/no/such/model") == "/no/such/model"


def pool(*words: str, timeout_s: float = 60) -> EmbedderPool:
    actor: Any = ray.remote(num_cpus=0)(ScriptedEmbedder)
    return EmbedderPool([actor.remote(word) for word in words], timeout_s)


@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_actors_gives_the_same(ray_local: None, count: int) -> None:
    texts = ["x" * n for n in (5, 1, 2, 5, 9, 1)]
    client = pool(*["ok"] * count)
    vectors, hit_frac = client.embed(texts)
    lengths = np.array([5, 1, 2, 5, 9, 1])
    assert vectors[:, 1] / vectors[:, 0] == pytest.approx(lengths)
    assert hit_frac == 0.0
    # Equal texts go to the actor that knows them.
    assert client.embed(["x" * 9, "new one", "xx"])[1] == pytest.approx(2 / 3)


def test_failures_name_the_actor(ray_local: None) -> None:
    with pytest.raises(EmbeddingError, match=r"embedder actor 1 failed: .*out of memory"):
        pool("ok", "fail").embed(["ab", "abc"])
    with pytest.raises(EmbeddingError, match=r"1 of 2 embedder actors gave no answer within 20 s"):
        pool("hang", "ok", timeout_s=20).embed(["ab", "abc"])
    with pytest.raises(EmbeddingError, match="no texts"):
        pool("ok").embed([])
