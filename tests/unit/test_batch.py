"""Micro-batches: hand-made cohorts, columns written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mupo_ray.data.encode import EncodedPrompt
from mupo_ray.train.batch import Layout, Sharing, TrainItem, empty_micro_batch, micro_batches

PAD, IMAGE = 0, 9


def prompt(num_text: int, *, image: bool = True) -> EncodedPrompt:
    """`num_text` ones, then one image token where asked for; a patch's pixels hold `num_text`."""
    ids = [1] * num_text + [IMAGE] * image
    return EncodedPrompt(
        input_ids=torch.tensor(ids),
        mm_token_type_ids=torch.tensor([int(i == IMAGE) for i in ids]),
        pixel_values=torch.full((4 * image, 2), float(num_text)),
        image_grid_thw=torch.tensor([[1, 2, 2]] * image, dtype=torch.int64).reshape(-1, 3),
    )


def item(num_text: int, lengths: list[int], *, image: bool = True) -> TrainItem:
    """Response i of T tokens holds 100 + 10 i, 101 + 10 i, ..."""
    return TrainItem(
        prompt=prompt(num_text, image=image),
        completion_ids=tuple(100 + 10 * i + np.arange(t) for i, t in enumerate(lengths)),
        sampler_logprobs=tuple(np.full(t, -float(i), np.float32) for i, t in enumerate(lengths)),
        advantages=tuple(np.full(n, i + 0.5) for i, n in enumerate(lengths)),
        is_given=(None,) * len(lengths),
    )


LAYOUT = Layout(
    sharing=Sharing.VISION_ONLY,
    pad_token_id=PAD,
    # Twice the index, so that the response's start shows that it follows the largest position.
    positions=lambda p: 2 * torch.arange(len(p.input_ids)).expand(3, -1),
    filler=prompt(1),
)
PACKED = replace(LAYOUT, sharing=Sharing.PACKED)
OFF = replace(LAYOUT, sharing=Sharing.OFF)


def test_columns_of_one_cohort() -> None:
    (batch,) = micro_batches([item(2, [1, 3])], max_tokens=100, layout=LAYOUT)
    assert batch.input_ids.tolist() == [[1, 1, 9, 100, 0, 0], [1, 1, 9, 110, 111, 112]]
    assert batch.position_ids[1].tolist() == [[0, 2, 4, 5, 6, 7]] * 2
    # The last prompt token predicts the first response token.
    assert batch.predict_from.tolist() == [2, 8, 9, 10]
    assert batch.targets.tolist() == [100, 110, 111, 112]
    assert batch.lengths.tolist() == [1, 3]
    assert batch.sampler_logprobs.tolist() == [0.0, -1.0, -1.0, -1.0]
    assert batch.advantages.tolist() == [0.5, 1.5, 1.5, 1.5]
    assert batch.mask.tolist() == [True] * 4
    assert batch.response_ids == ((0, 0), (0, 1))


def test_images_come_once_a_prompt() -> None:
    (batch,) = micro_batches([item(2, [1, 1]), item(3, [1, 1])], max_tokens=100, layout=LAYOUT)
    assert batch.pixel_values[:, 0].tolist() == [2.0] * 4 + [3.0] * 4
    assert batch.image_grid_thw.tolist() == [[1, 2, 2]] * 2
    assert batch.image_of_slot == (0, 0, 1, 1)
    assert int((batch.input_ids == IMAGE).sum()) == len(batch.image_of_slot)


def test_nothing_shared_repeats_the_images() -> None:
    (batch,) = micro_batches([item(2, [1, 1]), item(3, [1])], max_tokens=100, layout=OFF)
    assert batch.pixel_values[:, 0].tolist() == [2.0] * 8 + [3.0] * 4
    assert batch.image_grid_thw.tolist() == [[1, 2, 2]] * 3
    assert batch.image_of_slot == (0, 1, 2)


def test_columns_of_a_packed_row() -> None:
    items = [item(2, [1, 3]), item(1, [2], image=False)]
    (batch,) = micro_batches(items, max_tokens=100, layout=PACKED)
    # prompt | 100 | 110 111 112 | prompt | 100 101
    assert batch.input_ids.tolist() == [[1, 1, 9, 100, 110, 111, 112, 1, 100, 101]]
    assert batch.position_ids[2].tolist() == [[0, 2, 4, 5, 5, 6, 7, 0, 1, 2]]
    # The first token of each response is predicted where its prompt ends.
    assert batch.predict_from.tolist() == [2, 2, 4, 5, 7, 8]
    assert batch.targets.tolist() == [100, 110, 111, 112, 100, 101]
    assert batch.image_of_slot == (0,)
    assert batch.image_grid_thw.tolist() == [[1, 2, 2]]
    assert batch.prefix_layout is not None
    assert batch.prefix_layout.cu_q.tolist() == [0, 3, 4, 7, 8, 10]
    assert batch.prefix_layout.cu_k.tolist() == [0, 3, 7, 13, 14, 17]


def test_a_packed_row_costs_each_prompt_once() -> None:
    # Prompts of 5 tokens; 5 + 4 * 2 = 13 a cohort, where padded rows take 4 * 7 = 28.
    items = [item(4, [2, 2, 2, 2])] * 3
    assert [len(b.response_ids) for b in micro_batches(items, max_tokens=26, layout=PACKED)] == [
        8,
        4,
    ]
    assert len(micro_batches(items, max_tokens=26, layout=LAYOUT)) == 6


def test_packed_text_gets_the_filler_image() -> None:
    (batch,) = micro_batches([item(2, [2], image=False)], max_tokens=100, layout=PACKED)
    assert batch.input_ids.tolist() == [[1, 1, 100, 101, 1, IMAGE]]
    assert batch.image_of_slot == (0,)
    assert batch.predict_from.tolist() == [1, 2]
    empty = empty_micro_batch(PACKED)
    assert (len(empty.targets), empty.input_ids.tolist()) == (0, [[1, IMAGE]])


def test_cohorts_stay_whole_where_they_fit() -> None:
    items = [item(2, [1, 1]), item(2, [5, 5]), item(2, [1, 1])]
    # Widths 4, 8, 4. Longest first: 2 rows x 8 = 16; a third row would be 24 padded tokens.
    batches = micro_batches(items, max_tokens=20, layout=LAYOUT)
    assert [b.response_ids for b in batches] == [
        ((1, 0), (1, 1)),
        ((0, 0), (0, 1), (2, 0), (2, 1)),
    ]


def test_large_cohort_is_cut_by_length() -> None:
    (long, short) = micro_batches([item(2, [1, 7, 1, 7])], max_tokens=20, layout=LAYOUT)
    assert long.response_ids == ((0, 1), (0, 3))
    assert short.response_ids == ((0, 0), (0, 2))
    assert short.input_ids.shape == (2, 4)


def test_row_over_budget_stands_alone() -> None:
    batches = micro_batches([item(2, [50, 1])], max_tokens=10, layout=LAYOUT)
    assert [b.response_ids for b in batches] == [((0, 0),), ((0, 1),)]


def test_text_only_gets_the_filler_image() -> None:
    (batch,) = micro_batches([item(2, [2], image=False)], max_tokens=100, layout=LAYOUT)
    assert batch.input_ids.tolist() == [[1, 1, 100, 101], [1, 9, 0, 0]]
    assert batch.image_of_slot == (0,)
    assert batch.predict_from.tolist() == [1, 2]
    (mixed,) = micro_batches(
        [item(2, [2], image=False), item(2, [2])], max_tokens=100, layout=LAYOUT
    )
    assert mixed.input_ids.shape[0] == 2


def test_empty_micro_batch_has_an_image_and_no_token() -> None:
    batch = empty_micro_batch(LAYOUT)
    assert (batch.num_trained_tokens, batch.num_responses) == (0, 0)
    assert batch.image_of_slot == (0,)
    assert batch.input_ids.tolist() == [[1, IMAGE]]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"completion_ids": (np.zeros(0, np.int64), np.arange(2))}, "0 tokens, 1 sampler"),
        ({"sampler_logprobs": (np.zeros(3), np.zeros(2))}, "1 tokens, 3 sampler"),
        ({"advantages": (np.zeros(1),) * 3}, "3 of advantages"),
        ({"advantages": (np.zeros(1), np.zeros(3))}, "2 tokens, 2 sampler .* 3 advantages"),
        ({"is_given": (np.array([True]), None)}, "response 0: 1 of 1 tokens are marked as given"),
        ({"is_given": (None, np.array([True]))}, "response 1: 1 of 1 .* of 2 in all"),
    ],
    ids=["empty", "logprobs", "rows", "advantages", "all given", "marks"],
)
def test_columns_that_do_not_fit_are_refused(broken: dict[str, object], message: str) -> None:
    good = item(2, [1, 2])
    parts = {k: getattr(good, k) for k in TrainItem.__slots__} | broken
    with pytest.raises(ValueError, match=message):
        micro_batches([TrainItem(**parts)], max_tokens=100, layout=LAYOUT)


def test_given_tokens_are_masked_and_not_counted() -> None:
    base = item(2, [1, 3])
    marked = replace(base, is_given=(None, np.array([True, False, True])))
    for layout in (LAYOUT, PACKED, OFF):
        (batch,) = micro_batches([marked], max_tokens=100, layout=layout)
        assert batch.mask.tolist() == [True, False, True, False]
        assert batch.num_trained_tokens == 2
        assert batch.targets.tolist() == [100, 110, 111, 112], "they stand in the row all the same"


@settings(max_examples=60, deadline=None)
@given(
    cohorts=st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(1, 12), min_size=1, max_size=5)),
        max_size=6,
    ),
    max_tokens=st.integers(1, 120),
    layout=st.sampled_from([LAYOUT, PACKED, OFF]),
)
def test_every_response_once_and_within_budget(
    cohorts: list[tuple[int, list[int]]], max_tokens: int, layout: Layout
) -> None:
    items = [item(text, lengths) for text, lengths in cohorts]
    batches = micro_batches(items, max_tokens=max_tokens, layout=layout)
    seen = sorted(r for b in batches for r in b.response_ids)
    assert seen == [(i, r) for i, (_, lengths) in enumerate(cohorts) for r in range(len(lengths))]
    for batch in batches:
        assert batch.input_ids.numel() <= max_tokens or batch.num_responses == 1
        tokens = batch.input_ids.flatten()
        # The token after the predicting position is the target; in a packed row, so it is for all
        # but the first tokens of the responses that do not stand next to their prompt.
        follows = tokens[batch.predict_from + 1] == batch.targets
        first = torch.cat([torch.zeros(1), batch.lengths.cumsum(0)[:-1]]).long()
        assert follows[~torch.isin(torch.arange(len(follows)), first)].all()
        if layout is not PACKED:
            assert follows.all()
        wanted = np.concatenate([items[i].completion_ids[r] for i, r in batch.response_ids])
        assert batch.targets.tolist() == wanted.tolist()
    again = micro_batches(items, max_tokens=max_tokens, layout=layout)
    assert [b.response_ids for b in batches] == [b.response_ids for b in again]
