"""The laptop task: law of the puzzles, texts, pictures, files, and the tiny model's folder."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mupo_ray.demo.demo import DemoConfig, prepare_demo
from mupo_ray.demo.puzzle_files import (
    HINTED_SCHEMA,
    PUZZLE_SCHEMA,
    puzzle_of_row,
    read_boards,
    write_puzzles,
)
from mupo_ray.demo.puzzle_text import (
    MAX_RESPONSE_TOKENS,
    choose_strategies,
    opening_words,
    read_response,
    sample_response,
    write_response,
)
from mupo_ray.demo.puzzles import (
    CELLS,
    VALIDITY,
    Puzzle,
    Strategy,
    add_hint,
    encode_png,
    pair_weights,
    render,
    sample_puzzle,
)
from mupo_ray.demo.text_packing import TextPacker
from mupo_ray.demo.tiny_model import (
    CHAT_TEMPLATE,
    END_TOKEN,
    UNKNOWN_TOKEN,
    build_model,
    build_tiny_model,
    build_tokenizer,
)
from mupo_ray.demo.warm_start import (
    WarmStartConfig,
    draw_pictures,
    image_features,
    seeing_loss,
    warm_start,
)

#   a b c        row: 2*5 - 3 = 7   col: 6 - 1 = 5
# 1 1 1 6       diag: 15 - 1 - 7 = 7   pair: 1 + 3 = 4
# 2 3 7 1
# 3 3 5 ?
BY_HAND = Puzzle(board=(1, 1, 6, 3, 7, 1, 3, 5), truth=7)
MESSAGES = [
    {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": " missing number ?"}],
    }
]


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    rng = np.random.default_rng(0)
    return [sample_puzzle(rng) for _ in range(4000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", seed=0)


def test_candidates_by_hand() -> None:
    assert [BY_HAND.candidate(s) for s in Strategy] == [7, 5, 7, 4]
    assert BY_HAND.valid == (Strategy.ROW, Strategy.DIAG)


def test_strategies_read_every_visible_cell_once() -> None:
    assert sorted(cell for s in Strategy for cell in s.cells) == sorted(CELLS)


def test_exactly_two_strategies_are_valid(puzzles: list[Puzzle]) -> None:
    for puzzle in puzzles:
        assert all(1 <= number <= 9 for number in puzzle.board)
        assert 2 <= puzzle.truth <= 8
        candidates = [puzzle.candidate(s) for s in Strategy]
        assert all(1 <= candidate <= 9 for candidate in candidates)
        wrong = [candidate for candidate in candidates if candidate != puzzle.truth]
        assert len(wrong) == 2
        assert wrong[0] != wrong[1]


def test_validity_has_the_wanted_marginals(puzzles: list[Puzzle]) -> None:
    pairs, weights = pair_weights()
    assert weights.sum() == pytest.approx(1.0)
    counts = Counter(s for puzzle in puzzles for s in puzzle.valid)
    for strategy, wanted in VALIDITY.items():
        exact = sum(w for w, pair in zip(weights, pairs, strict=True) if strategy in pair)
        assert exact == pytest.approx(wanted, abs=1e-9)
        # Four standard errors of a share of 4000.
        assert counts[strategy] / len(puzzles) == pytest.approx(wanted, abs=0.032)


def test_truth_is_uniform_over_2_to_8(puzzles: list[Puzzle]) -> None:
    counts = Counter(puzzle.truth for puzzle in puzzles)
    assert sorted(counts) == list(range(2, 9))
    assert min(counts.values()) > 4000 / 7 - 4 * np.sqrt(4000 * 6 / 49)


def test_pictures_repeat_and_differ_by_seed() -> None:
    first, again, other = (render(BY_HAND, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (84, 84, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(first)))), first)


def test_plain_pictures_are_what_they_were() -> None:
    pixels = render(BY_HAND, np.random.default_rng(1))
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == (
        "f1a1c08c14373c646364dd988e0ca7ecb025c17890610993088ac0b52a3e6871"
    )


def test_a_hint_shows_a_white_quadrant_for_each_strategy_it_names() -> None:
    # Rows of quadrants: row, col / diag, pair. White: row and pair.
    hinted = replace(BY_HAND, hint=(Strategy.ROW, Strategy.PAIR))
    picture = render(hinted, np.random.default_rng(1))
    hidden = picture[56:, 56:].astype(float)
    # Without the grid lines, first row and column of a cell; noise has a deviation of 6.
    quadrants = [hidden[i + 1 : i + 14, j + 1 : j + 14].mean() for i in (0, 14) for j in (0, 14)]
    assert quadrants == pytest.approx([253, 2, 2, 253], abs=1.5)
    # Nothing else differs from the plain picture, grid lines included.
    changed = (picture != render(BY_HAND, np.random.default_rng(1))).any(axis=2)
    assert changed[57:, 57:].any()
    changed[57:, 57:] = False
    assert not changed.any()


def test_hints_are_right_nine_times_in_ten_bit_by_bit(puzzles: list[Puzzle]) -> None:
    rng = np.random.default_rng(9)
    hinted = [add_hint(puzzle, rng) for puzzle in puzzles]
    assert [replace(puzzle, hint=None) for puzzle in hinted] == puzzles
    right = np.array([[(s in p.valid) == (s in (p.hint or ())) for s in Strategy] for p in hinted])
    # Four standard errors of a share of 4000, and of independent bits' correlation.
    assert right.mean(axis=0) == pytest.approx([0.9] * 4, abs=0.019)
    off_diagonal = np.corrcoef(right.T)[np.triu_indices(4, k=1)]
    assert off_diagonal == pytest.approx(np.zeros(6), abs=0.063)


def test_texts_lean_towards_white_quadrants(puzzles: list[Puzzle]) -> None:
    rng = np.random.default_rng(10)
    assert list(choose_strategies(BY_HAND, rng)) == list(Strategy)
    # Odds of 2.4 with one white quadrant: 2.4 of 5.4; with four of four nothing to lean to.
    for hint, share in (((Strategy.COL,), 2.4 / 5.4), (tuple(Strategy), 0.25)):
        hinted = replace(BY_HAND, hint=hint)
        drawn = Counter(s for _ in range(1000) for s in choose_strategies(hinted, rng))
        assert drawn[Strategy.COL] / 4000 == pytest.approx(share, abs=0.02)
        assert drawn[Strategy.ROW] / 4000 == pytest.approx(drawn[Strategy.PAIR] / 4000, abs=0.03)
    picked = [
        s in puzzle.valid
        for puzzle in puzzles
        for s in choose_strategies(add_hint(puzzle, rng), rng)
    ]
    assert np.mean(picked) == pytest.approx(0.666, abs=0.02)


def test_opening_words_tell_strategies_apart() -> None:
    assert opening_words(Strategy.ROW) == ("bottom", "base")
    assert len({word for s in Strategy for word in opening_words(s)}) == 8


@pytest.mark.parametrize("number", range(1, 10))
def test_a_cell_shows_as_many_pips_as_its_number(number: int) -> None:
    picture = render(Puzzle(board=(number,) * 8, truth=5), np.random.default_rng(number))
    # Inks are far from every tint in the green channel; a pip is 5x5 pixels.
    cell = picture[2:27, 2:27, 1] < 130
    assert cell.sum() == 25 * number


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("wording", [0, 1])
@pytest.mark.parametrize("guess", [None, 3], ids=["careful", "hasty"])
def test_texts_are_read_back(strategy: Strategy, wording: int, guess: int | None) -> None:
    text = write_response(BY_HAND, strategy, wording=wording, hasty_guess=guess)
    chain = read_response(text)
    assert chain is not None
    assert (chain.strategy, chain.wording, chain.is_careful) == (strategy, wording, guess is None)
    assert chain.reads(BY_HAND)
    assert chain.boxed == chain.concluded == (guess or BY_HAND.candidate(strategy))
    assert chain.is_faithful == (guess is None)


def test_texts_by_hand() -> None:
    assert write_response(BY_HAND, Strategy.ROW) == (
        r"<think> bottom row : a3 3 then b3 5 , up 2 , next 7 </think> \boxed{ 7 }"
    )
    assert write_response(BY_HAND, Strategy.COL, hasty_guess=6) == (
        r"<think> right column : c1 6 take away c2 1 , number ? 6 </think> \boxed{ 6 }"
    )


def test_reader_tells_slips_from_strange_texts() -> None:
    text = write_response(BY_HAND, Strategy.PAIR)
    other_box = read_response(text.replace(r"\boxed{ 4 }", r"\boxed{ 7 }"))
    assert other_box is not None
    assert not other_box.is_faithful
    misread = read_response(text.replace("b1 1", "b1 2"))
    assert misread is not None
    assert not misread.reads(BY_HAND)
    for strange in ("", text.replace("with", "then"), text.removesuffix(" }"), text + " 4"):
        assert read_response(strange) is None


def test_hasty_texts_are_right_a_quarter_of_the_time() -> None:
    rng = np.random.default_rng(3)
    texts = [sample_response(BY_HAND, Strategy.COL, rng, careful_frac=0.5) for _ in range(4000)]
    chains = [chain for text in texts if (chain := read_response(text))]
    assert len(chains) == len(texts)
    hasty = [chain for chain in chains if not chain.is_careful]
    assert len(hasty) / len(chains) == pytest.approx(0.5, abs=0.032)
    assert np.mean([chain.is_faithful for chain in hasty]) == pytest.approx(0.25, abs=0.039)
    assert all(abs(chain.boxed - 5) <= 2 for chain in hasty)


def test_texts_tokenise_whole_and_decode_to_themselves(puzzles: list[Puzzle]) -> None:
    tokenizer = build_tokenizer()
    rng = np.random.default_rng(4)
    for puzzle in puzzles[:300]:
        for strategy in Strategy:
            text = sample_response(puzzle, strategy, rng, careful_frac=0.5)
            ids = tokenizer(text + END_TOKEN).input_ids
            assert tokenizer.unk_token_id not in ids
            assert 18 <= len(ids) <= MAX_RESPONSE_TOKENS
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
    # Text written without blanks is cut at the same places.
    assert tokenizer.tokenize(r"<think>a1</think>\boxed{5}") == tokenizer.tokenize(
        r"<think> a1 </think> \boxed{ 5 }"
    )
    assert tokenizer.tokenize("zebra") == [UNKNOWN_TOKEN]


def test_files_have_the_schema_and_share_no_board(tmp_path: Path) -> None:
    sizes = {"train": 70, "eval": 40}
    files = write_puzzles(tmp_path / "one", 5, sizes)
    assert list(files) == ["train", "eval"]
    boards = [board for file in files.values() for board in read_boards(file)]
    assert len(set(boards)) == 110
    train = pq.ParquetFile(files["train"])
    assert train.schema_arrow.equals(PUZZLE_SCHEMA)
    assert [train.metadata.row_group(i).num_rows for i in range(3)] == [32, 32, 6]
    for row in train.read().to_pylist():
        assert row["problem"].count("<image>") == len(row["images"]) == 1
        assert Image.open(io.BytesIO(row["images"][0]["bytes"])).size == (84, 84)
        puzzle = puzzle_of_row(row)
        assert "+".join(puzzle.valid) == row["category"]
        assert len(puzzle.valid) == 2
    again = write_puzzles(tmp_path / "two", 5, sizes)
    assert files["train"].read_bytes() == again["train"].read_bytes()
    # A split keeps its rows where another one grows.
    grown = write_puzzles(tmp_path / "three", 5, {"train": 80, "eval": 40})
    assert files["eval"].read_bytes() == grown["eval"].read_bytes()
    with pytest.raises(ValueError, match="split 'eval' has 0 rows"):
        write_puzzles(tmp_path / "four", 5, {"eval": 0})


def test_hinted_files_are_the_plain_ones_but_for_the_hint(tmp_path: Path) -> None:
    plain = write_puzzles(tmp_path / "plain", 5, {"train": 40})["train"]
    hinted = write_puzzles(tmp_path / "hinted", 5, {"train": 40}, hinted=True)["train"]
    again = write_puzzles(tmp_path / "again", 5, {"train": 40}, hinted=True)["train"]
    assert hinted.read_bytes() == again.read_bytes()
    table = pq.read_table(hinted)
    assert table.schema.equals(HINTED_SCHEMA)
    hints = set()
    for row, other in zip(table.to_pylist(), pq.read_table(plain).to_pylist(), strict=True):
        assert row["source"] == "puzzles/hinted"
        for column in ("problem", "answer", "category", "board"):
            assert row[column] == other[column]
        puzzle = puzzle_of_row(row)
        assert puzzle.hint == tuple(s for s in Strategy if s in row["hint"].split())
        hints.add(puzzle.hint)
        picture = np.asarray(Image.open(io.BytesIO(row["images"][0]["bytes"])))
        quadrants = picture[57:, 57:].reshape(27, 27, 3)[[6, 6, 20, 20], [6, 20, 6, 20], 1] > 127
        assert tuple(s for s, bit in zip(Strategy, quadrants, strict=True) if bit) == puzzle.hint
        assert puzzle_of_row(other) == replace(puzzle, hint=None)
    assert len(hints) > 4


def test_folder_round_trip(folder: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder)
    picture = Image.fromarray(render(BY_HAND, np.random.default_rng(0)))
    prompt = processor.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert prompt == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|> missing number ?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    inputs = processor(text=[prompt], images=[picture], return_tensors="pt")
    image_id = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert (inputs["input_ids"] == image_id).sum() == 9
    assert inputs["input_ids"].shape == (1, 19)
    assert processor.tokenizer.unk_token_id not in inputs["input_ids"]
    assert inputs["pixel_values"].shape == (36, 3 * 2 * 14 * 14)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) < 700_000
    assert model.generation_config.eos_token_id == processor.tokenizer.eos_token_id
    built = build_model(0).state_dict()
    assert all(torch.equal(value, built[name]) for name, value in model.state_dict().items())


def test_chat_template_takes_every_role() -> None:
    text = build_tokenizer().apply_chat_template(
        [
            {"role": "system", "content": "the sum"},
            {"role": "user", "content": "a1 ?"},
            {"role": "assistant", "content": "4"},
        ],
        chat_template=CHAT_TEMPLATE,
        tokenize=False,
    )
    assert text == (
        "<|im_start|>system\nthe sum<|im_end|>\n<|im_start|>user\na1 ?<|im_end|>\n"
        "<|im_start|>assistant\n4<|im_end|>\n"
    )


def test_untied_model_has_its_own_output_matrix(tmp_path: Path) -> None:
    build_tiny_model(tmp_path, seed=1, tie=False)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)


def test_fast_tower_and_packed_loss_equal_the_stock_forward(folder: Path) -> None:
    """One packed row must cost what its responses cost alone, through the model's own forward."""
    model = build_model(0)
    processor = AutoProcessor.from_pretrained(folder)
    prompt = processor.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    puzzles, patches = draw_pictures(2, frozenset(), np.random.default_rng(6))
    rng = np.random.default_rng(6)
    drawn = [sample_puzzle(rng) for _ in range(2)]
    assert drawn == puzzles
    pictures = [Image.fromarray(render(puzzle, rng)) for puzzle in puzzles]
    texts = [[sample_response(p, s, rng, careful_frac=0.5) for s in Strategy] for p in puzzles]
    total, num_tokens = 0.0, 0
    with torch.no_grad():
        packed = TextPacker(model).loss(image_features(model, patches), texts)
        for picture, row in zip(pictures, texts, strict=True):
            for text in row:
                inputs = processor(
                    text=[prompt + text + END_TOKEN], images=[picture], return_tensors="pt"
                )
                labels = inputs["input_ids"][0, 19:]
                logits = model(**inputs).logits[0, 18:-1]
                total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
                num_tokens += len(labels)
    assert float(packed) == pytest.approx(total / num_tokens, abs=1e-5)


def test_three_steps_of_each_stage_repeat_and_leave_out_what_is_held_out() -> None:
    config = WarmStartConfig(
        num_puzzles=8, see_steps=3, see_batch=4, reason_steps=3, broaden_steps=3, batch=2
    )
    first, reports = warm_start(config)
    again, _ = warm_start(config)
    assert [report.steps for report in reports] == [3, 3, 3]
    start = build_model(config.seed).state_dict()
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert not torch.equal(value, start[name]), name
    all_boards = {p.board for p in draw_pictures(8, frozenset(), np.random.default_rng([0, 1]))[0]}
    kept, _ = draw_pictures(8, frozenset(all_boards), np.random.default_rng([0, 1]))
    assert not all_boards & {puzzle.board for puzzle in kept}


def test_the_tower_must_name_the_white_quadrants() -> None:
    """The loss of two pictures of one board parts where their hints part, and only there."""
    model = build_model(0)
    puzzles, patches = draw_pictures(4, frozenset(), np.random.default_rng(7), hinted=True)
    plain, plain_patches = draw_pictures(4, frozenset(), np.random.default_rng(7))
    assert [replace(puzzle, hint=None) for puzzle in puzzles] == plain
    assert torch.equal(patches[:, :32], plain_patches[:, :32])
    with torch.no_grad():
        told = [replace(puzzle, hint=()) for puzzle in puzzles]
        hidden = image_features(model, patches)[:, -1]
        ids = build_tokenizer().convert_tokens_to_ids(
            [word for s in Strategy for word in opening_words(s)]
        )
        logits = hidden @ model.get_input_embeddings().weight[ids].T
        visible = seeing_loss(model, patches, plain)
        # Of a black quadrant -log(1 - sigmoid(x)), of a white one -log(sigmoid(x)).
        black = torch.log1p(torch.exp(logits))
        assert float(seeing_loss(model, patches, told) - visible) == pytest.approx(
            float(black.mean()), abs=1e-5
        )
        white = torch.tensor(
            [[s in (p.hint or ()) for s in Strategy for _ in range(2)] for p in puzzles]
        )
        assert float(seeing_loss(model, patches, puzzles) - visible) == pytest.approx(
            float(torch.where(white, black - logits, black).mean()), abs=1e-5
        )


def test_demo_is_built_once_and_again_when_its_settings_change(tmp_path: Path) -> None:
    quick = WarmStartConfig(
        num_puzzles=4, see_steps=1, see_batch=2, reason_steps=1, broaden_steps=1, batch=2
    )
    config = DemoConfig(train_rows=6, eval_rows=4, test_rows=4, warm_start=quick)
    built = prepare_demo(tmp_path, config)
    assert built.was_built
    assert AutoProcessor.from_pretrained(built.model).image_token == "<|image_pad|>"
    assert sorted(f.name for f in built.data.iterdir()) == [
        "eval.parquet",
        "test.parquet",
        "train.parquet",
    ]
    assert not prepare_demo(tmp_path, config).was_built
    for changed in (replace(config, seed=1), replace(config, hinted=True)):
        assert prepare_demo(tmp_path, changed).was_built
    assert pq.read_schema(built.data / "eval.parquet").equals(HINTED_SCHEMA)
