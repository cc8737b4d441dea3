"""Tokenizers from GGUF metadata: transformers' ids, except where the model's real tokenizer differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer
from transformers.models.gemma import GemmaTokenizer

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.gguf_merges import merges_from_scores
from spec_sdk.model.gguf_pre_tokenizers import PRE_TOKENIZERS
from tests.checkpoints.gguf_files import (
    add_byte_level,
    add_gemma_tokenizer,
    add_sentencepiece,
    sentencepiece_vocabulary,
    write_gguf,
)
from tests.checkpoints.gguf_gemma4 import add_gemma4_tokenizer, gemma4_vocabulary

TEXTS = [
    "The quick brown fox.",
    "the dozen over the over dozen  foxes'll don't",
    "tabs\tand\n\nlines \n x",
    "Zahlen: 1234567, 3.14",
    "日本語 🙂 ﷺ äöü",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]


def with_pre(pre: str) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: add_byte_level(writer, pre)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_ids_equal_transformers(pre: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=with_pre(pre))
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False)
        # transformers does not split digits for smollm: see the next tests
        if pre != "smollm" or not any(character.isdigit() for character in text):
            assert ids == reference.encode(text, add_special_tokens=False)
        assert ours.decode(ids, skip_special_tokens=False) == text
    # llama.cpp puts BOS before text for llama-bpe alone; the file does not say
    assert (ours.encode("the")[0] == 1) == (pre == "llama-bpe")
    assert ours.decode([1, *ours.encode("the"), 2]) == "the"


def test_a_gemmas_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "gemma2", tokenizer=add_gemma_tokenizer)
    tokenizer = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    tokens = [*sentencepiece_vocabulary()[0], "  ", "   ", "\n\n", "<start_of_turn>", "<end_of_turn>"]

    def pieces(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("over the") == ["over", "▁the"], "no space is put before the text"
    assert pieces("the   over\n\nthe") == ["the", "   ", "over", "\n\n", "the"], "the longest run of spaces"
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.chat([{"role": "user", "content": "the fox"}])
    assert [tokens[i] for i in chat][:2] == ["<s>", "<start_of_turn>"]
    assert tokenizer.stop_ids == {2, len(tokens) - 1}


def test_a_gemma_4_s_tokenizer(tmp_path: Path) -> None:
    """That of its tokenizer.json: merges of a whole text, and bytes of what no token holds."""
    tokens, merges = gemma4_vocabulary()
    reference = GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    reference.add_tokens(["<turn|>", "<|tool_response>"], special_tokens=True)
    write_gguf(tmp_path / "m.gguf", tokenizer=add_gemma4_tokenizer)
    tokenizer = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer

    def pieces(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("the  over\n\n\nthe") == ["the", "▁▁", "over", "\n\n", "\n", "the"]
    assert pieces(" theö") == ["▁", "the", "<0xC3>", "<0xB6>"]
    for text in [*TEXTS[:5], "the <turn|> the", "  the\n \nthe\n\n\n\n", "<0x41>"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    # whatever the file says of it
    assert tokenizer.encode("the") == [2, tokens.index("the")]
    assert tokenizer.stop_ids == {1, len(tokens) - 2, len(tokens) - 1}


def test_a_merge_that_makes_no_token(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        add_gemma4_tokenizer(writer)
        del writer.kv_data[0]["tokenizer.ggml.merges"]
        writer.add_token_merges(["t h", "h t"])

    write_gguf(tmp_path / "m.gguf", tokenizer=add)
    with pytest.raises(UserError, match="tokenizer merge 'h t' does not join two tokens into a third"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_sentencepiece_ids_equal_transformers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=add_sentencepiece)
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        assert ours.encode(text) == reference.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("the dozen")[0] == 1
    assert len(ours.encode("the dozen")) < len("the dozen")
    assert ours.stop_ids == {2}


def test_sentencepiece_keeps_leading_spaces_as_sentencepiece_does(tmp_path: Path) -> None:
    """SentencePiece puts its dummy space before leading spaces too; transformers' GGUF conversion does not."""
    write_gguf(tmp_path / "m.gguf", tokenizer=add_sentencepiece)
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    ids = ours.encode(" the", add_special_tokens=False)
    assert [token for token, i in ours.vocabulary.items() if i == ids[0]] in (["▁▁"], ["▁"])
    assert ours.decode(ids) == " the"


def test_smollm_splits_every_digit_before_anything_else(tmp_path: Path) -> None:
    """As the model's own tokenizer.json: Digits(individual_digits=True), then ByteLevel."""
    write_gguf(tmp_path / "m.gguf")
    directory = open_checkpoint(str(tmp_path / "m.gguf")).directory
    fast = FastTokenizer.from_file(str(directory / "tokenizer.json"))
    pieces = [piece for piece, _ in fast.pre_tokenizer.pre_tokenize_str("in   2013")]
    assert pieces == ["in", "ĠĠĠ", "2", "0", "1", "3"]


def test_qwen2_normalizes_to_nfc(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=with_pre("qwen2"))
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    assert ours.encode("e\u0301") == ours.encode("\u00e9") != ours.encode("e")


def test_user_defined_tokens_stay_whole_and_visible(tmp_path: Path) -> None:
    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_byte_level(writer)
        fields = writer.kv_data[0]
        token_id = fields["tokenizer.ggml.tokens"].value.index("the")
        fields["tokenizer.ggml.token_type"].value[token_id] = 4

    write_gguf(tmp_path / "m.gguf", tokenizer=tokenizer)
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    token_id = ours.vocabulary["the"]
    assert ours.encode("other") == [*ours.encode("o"), token_id, *ours.encode("r")]
    assert ours.decode([token_id]) == "the"


def test_padding_rows_are_no_tokens(tmp_path: Path) -> None:
    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_byte_level(writer)
        fields = writer.kv_data[0]
        tokens = fields["tokenizer.ggml.tokens"].value
        first = len(tokens)
        tokens.extend(f"[PAD{i}]" for i in range(first, 384))
        fields["tokenizer.ggml.token_type"].value.extend([5] * (384 - first))

    write_gguf(tmp_path / "m.gguf", tokenizer=tokenizer)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert checkpoint.config.vocab_size == 384
    assert not any(token.startswith("[PAD") for token in checkpoint.tokenizer.vocabulary)
    assert checkpoint.tokenizer.decode([383]) == ""


def test_every_end_token_of_the_file_stops(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", customize=lambda writer: writer.add_eot_token_id(0))
    assert open_checkpoint(str(tmp_path / "m.gguf")).tokenizer.stop_ids == {0, 2}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("tekken", "HelloWorld's 123/\n", ["Hello", "World", "'s", "Ġ", "1", "2", "3", "/Ċ"]),
        ("llama-bpe", "HelloWorld's 1234", ["HelloWorld", "'s", "Ġ", "123", "4"]),
        ("falcon-h1", "HelloWorld's 1234", ["HelloWorld", "'s", "Ġ", "123", "4"]),
        ("smaug-bpe", "HelloWorld's 1234", ["HelloWorld", "'s", "Ġ", "123", "4"]),
        ("stablelm2", "don't 12", ["don", "'t", "Ġ", "1", "2"]),
        ("glm4", "HelloWorld's 1234", ["HelloWorld", "'s", "Ġ", "123", "4"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
        ("seed-coder", "a ;\n\nb", ["a", "Ġ;", "ĊĊ", "b"]),
        ("qwen2", "a ;\n\nb", ["a", "Ġ;ĊĊ", "b"]),
        ("qwen2", "ae\u0301 b", ["ae", "Ìģ", "Ġb"]),
        ("qwen35", "ae\u0301 b", ["aeÌģ", "Ġb"]),
        ("starcoder", "in   2013", ["in", "ĠĠĠ", "2", "0", "1", "3"]),
        ("mellum", "in   2013", ["in", "ĠĠ", "Ġ2013"]),
        ("deepseek-coder", "a b\n12", ["a", "Ġb", "Ċ", "1", "2"]),
        ("default", "a (b) 1234", ["a", "Ġ", "(", "b", ")", "Ġ", "123", "4"]),
    ],
)
def test_text_is_split_as_the_file_names_it(pre: str, text: str, pieces: list[str], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=with_pre(pre))
    directory = open_checkpoint(str(tmp_path / "m.gguf")).directory
    fast = FastTokenizer.from_file(str(directory / "tokenizer.json"))
    assert [piece for piece, _ in fast.pre_tokenizer.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize(("pre", "whole"), [("tekken", True), ("smaug-bpe", False), ("gpt-4o", False)])
def test_a_piece_that_is_a_token_may_need_no_merges(pre: str, whole: bool, tmp_path: Path) -> None:
    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_byte_level(writer, pre)
        fields = writer.kv_data[0]
        fields["tokenizer.ggml.tokens"].value.append("xyz")
        fields["tokenizer.ggml.token_type"].value.append(1)

    write_gguf(tmp_path / "m.gguf", tokenizer=tokenizer)
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    assert (ours.encode("xyz", add_special_tokens=False) == [ours.vocabulary["xyz"]]) == whole
    # llama.cpp puts BOS before such a tokenizer's texts where the file does not say
    assert (ours.encode("the")[0] == 1) == whole


def test_a_file_that_names_no_way_of_splitting_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_byte_level(writer)
        del writer.kv_data[0]["tokenizer.ggml.pre"]

    write_gguf(tmp_path / "m.gguf", tokenizer=tokenizer)
    assert len(open_checkpoint(str(tmp_path / "m.gguf")).tokenizer.encode("1234")) <= 3
    assert "names no tokenizer.ggml.pre" in capsys.readouterr().err


def test_an_unknown_way_of_splitting_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=with_pre("smolm"))
    with pytest.raises(UserError, match=r"not known \(tokenizer.ggml.pre 'smolm'\): take .* Hugging Face layout"):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("type_", [3, 4, 1, None])
def test_tokens_that_end_a_turn_stop_by_their_names(type_: int | None, tmp_path: Path) -> None:
    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_gemma_tokenizer(writer)
        fields = writer.kv_data[0]
        del fields["tokenizer.ggml.eot_token_id"]
        if type_ is None:
            del fields["tokenizer.ggml.token_type"]
        else:
            fields["tokenizer.ggml.token_type"].value[-1] = type_

    write_gguf(tmp_path / "m.gguf", "gemma2", tokenizer=tokenizer)
    ours = open_checkpoint(str(tmp_path / "m.gguf")).tokenizer
    assert ours.stop_ids == {2, ours.vocabulary["<end_of_turn>"]}


@pytest.mark.parametrize("unknown", [False, True])
def test_the_end_of_texts_stops_unless_it_is_what_is_unknown(unknown: bool, tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        if unknown:
            writer.add_unk_token_id(0)

    write_gguf(tmp_path / "m.gguf", customize=say)
    assert open_checkpoint(str(tmp_path / "m.gguf")).tokenizer.stop_ids == ({2} if unknown else {0, 2})


def test_a_list_of_end_tokens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", customize=lambda writer: writer.add_array("tokenizer.ggml.eos_token_ids", [2, 5]))
    assert open_checkpoint(str(tmp_path / "m.gguf")).tokenizer.stop_ids == {0, 2, 5}


def test_no_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer=lambda writer: None)
    with pytest.raises(UserError, match="has no tokenizer"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_merges_follow_the_scores() -> None:
    scores = {"a": -9.0, "b": -8.0, "c": -7.0, "ab": -2.0, "bc": -1.0, "abc": -3.0}
    assert merges_from_scores(scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_the_guide_lists_every_way_of_splitting() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text(encoding="utf-8")
    _, *rows = re.findall(r"^  \| [^|]+ \| (`.*) \|$", guide, flags=re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(PRE_TOKENIZERS)
