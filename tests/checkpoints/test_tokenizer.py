"""Tokenizers: streams give the text of all tokens, chat prompts are right, and the model's files say when to stop."""

from __future__ import annotations

import json
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer

from spec_sdk.errors import UserError
from spec_sdk.model.gguf_merges import merges_from_scores
from spec_sdk.model.tokenizer import Tokenizer
from tests.checkpoints.gguf_files import byte_level_vocabulary, sentencepiece_vocabulary
from tests.support.lfs_pointer import POINTER

ROWS = 384
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level() -> FastTokenizer:
    tokens, merges = byte_level_vocabulary()
    pairs: Any = [tuple(merge.split(" ")) for merge in merges]
    fast = FastTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([token for token in tokens if token.startswith("<|")])
    return fast


def sentencepiece() -> FastTokenizer:
    tokens, scores, types = sentencepiece_vocabulary()
    pieces = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == 1}
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges_from_scores(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    fast = FastTokenizer(model)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    fast.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return fast


def save(directory: Path, fast: FastTokenizer, **files: dict[str, Any]) -> Tokenizer:
    """Write tokenizer files (``name=content`` for name.json) and load them."""
    directory.mkdir(exist_ok=True)
    fast.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return Tokenizer(directory, ROWS)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    home = tmp_path_factory.mktemp("tokenizers")
    return {"bytes": save(home / "bytes", byte_level()), "pieces": save(home / "pieces", sentencepiece())}


def streamed(tokenizer: Tokenizer, ids: list[int], sizes: list[int]) -> list[str]:
    """``ids`` pushed in groups of ``sizes``, over and over."""
    stream = tokenizer.stream()
    pieces, at, turn = [], 0, 0
    while at < len(ids):
        pieces.append(stream.push(ids[at : at + sizes[turn % len(sizes)]]))
        at += sizes[turn % len(sizes)]
        turn += 1
    return [*pieces, stream.flush()]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 339), max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_any_byte_level_tokens_stream_as_their_decoding(both: Any, ids: list[int], sizes: list[int]) -> None:
    """Invalid UTF-8 included."""
    assert "".join(streamed(both["bytes"], ids, sizes)) == both["bytes"].decode(ids)


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    kind=st.sampled_from(["bytes", "pieces"]),
)
def test_texts_stream_whole(both: Any, texts: list[str], sizes: list[int], kind: str) -> None:
    """Several texts in a row, special tokens between them where the tokenizer adds some."""
    tokenizer: Tokenizer = both[kind]
    ids = [token for text in texts for token in tokenizer.encode(text)]
    pieces = streamed(tokenizer, ids, sizes)
    assert "".join(pieces) == tokenizer.decode(ids)
    if not any("\ufffd" in text for text in texts):
        assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_is_held_back(both: dict[str, Tokenizer]) -> None:
    tokenizer = both["bytes"]
    ids = tokenizer.encode("a🙂b")
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in ids] == ["a", "", "", "", "🙂", "b"]
    assert stream.push(ids[:3]) == "a" and stream.flush() == "\ufffd"


def test_special_tokens_are_not_text(both: dict[str, Tokenizer]) -> None:
    tokenizer = both["bytes"]
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("<|im_start|>the<|im_end|>")) == "the"
    assert tokenizer.decode(tokenizer.encode("<|im_end|>"), skip_special_tokens=False) == "<|im_end|>"


def test_chat_equals_transformers(tmp_path: Path) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    tokenizer = save(tmp_path, byte_level(), tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **config})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the fox? <b>"}]
    reference = AutoTokenizer.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.has_chat_template and tokenizer.chat(messages) == expected


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0]['content'] }}", "{{ messages[0]['content'] }}"])
def test_bos_stands_once_before_a_chat(template: str, tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": template}
    tokenizer = save(tmp_path, sentencepiece(), tokenizer_config=config)
    ids = tokenizer.chat([{"role": "user", "content": "the fox"}])
    assert ids[0] == 1 and ids.count(1) == 1


def test_bos_on_request_of_the_config(tmp_path: Path) -> None:
    config = {"bos_token": "<|im_start|>", "add_bos_token": True}
    tokenizer = save(tmp_path, byte_level(), tokenizer_config=config)
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("<|im_start|>the").count(1) == 1
    assert 1 not in tokenizer.encode("the", add_special_tokens=False)


def test_stop_ids_of_all_files(tmp_path: Path) -> None:
    tokenizer = save(
        tmp_path,
        byte_level(),
        generation_config={"eos_token_id": [0, 7]},
        config={"eos_token_id": 8},
        tokenizer_config={"eos_token": "<|im_end|>"},
    )
    assert tokenizer.stop_ids == {0, 2, 7, 8}
    assert save(tmp_path / "none", byte_level()).stop_ids == frozenset()


def test_special_tokens_map_is_a_fallback(tmp_path: Path) -> None:
    assert save(tmp_path, byte_level(), special_tokens_map={"eos_token": "<|im_end|>"}).stop_ids == {2}


@pytest.mark.parametrize("source", ["jinja", "json", "config", "named"])
def test_places_of_the_template(source: str, tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}!"
    if source == "jinja":
        (tmp_path / "chat_template.jinja").write_text(template)
    files: Any = {
        "jinja": {"tokenizer_config": {"chat_template": "older"}},
        "json": {"chat_template": {"chat_template": template}},
        "config": {"tokenizer_config": {"chat_template": template}},
        "named": {
            "tokenizer_config": {
                "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": template}]
            }
        },
    }[source]
    tokenizer = save(tmp_path, byte_level(), **files)
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "the"}])) == "the!"


@pytest.mark.parametrize("beside", [False, True])
def test_a_template_of_its_own_for_tools(beside: bool, tmp_path: Path) -> None:
    one, other = "{{ messages[0].content }}", "{{ tools[0].function.name }}"
    named = [{"name": "tool_use", "template": other}, {"name": "default", "template": one}]
    directory = tmp_path / "additional_chat_templates"
    if beside:
        directory.mkdir()
        (directory / "tool_use.jinja").write_text(other)
    tokenizer = save(tmp_path, byte_level(), tokenizer_config={"chat_template": one if beside else named})
    messages = [{"role": "user", "content": "the"}]
    assert tokenizer.render(messages) == "the"
    assert tokenizer.render(messages, [{"type": "function", "function": {"name": "add"}}]) == "add"
    assert "tools" in tokenizer.template_variables and tokenizer.template_mentions("tools[0]")
    wrong = {"chat_template": [*named[1:], {"name": "tool_use", "template": 3}]}
    if not beside:
        with pytest.raises(UserError, match="not text"):
            save(tmp_path, byte_level(), tokenizer_config=wrong)


def test_special_tokens_that_are_kept(both: dict[str, Tokenizer]) -> None:
    for tokenizer in both.values():
        special = sorted(tokenizer.special_ids([name for name in tokenizer.vocabulary if name.startswith("<")]))
        assert len(special) > 1
        kept, other = special[-1], special[0]
        words = tokenizer.encode("the sea", add_special_tokens=False)
        ids = [other, *words, kept, *words, other]
        name = next(name for name, one in tokenizer.vocabulary.items() if one == kept)
        text = tokenizer.decode(ids, kept={kept})
        assert text.replace(" ", "") == f"thesea{name}thesea"
        assert tokenizer.decode(ids) == tokenizer.decode([*words, *words]) and name not in tokenizer.decode(ids)
        stream = tokenizer.stream({kept})
        assert "".join(stream.push([one]) for one in ids) + stream.flush() == text
        assert not tokenizer.special_ids(["the", "no token at all"])


@pytest.mark.parametrize("no_id", [-1, 2**32, "a", 1.5, None])
def test_what_is_no_token_is_refused(both: dict[str, Tokenizer], no_id: Any) -> None:
    tokenizer = both["bytes"]
    refused: list[Callable[[], object]] = [
        lambda: tokenizer.decode([5, no_id]),
        lambda: tokenizer.decode(iter([no_id])),
        lambda: tokenizer.decode([no_id], kept={5}),
        lambda: tokenizer.stream().push([no_id]),
        lambda: tokenizer.piece(no_id),
        lambda: tokenizer.bytes_of(no_id),
    ]
    for act in refused:
        with pytest.raises(UserError, match=f"^tokens: {no_id!r} is no token id$"):
            act()
    with pytest.raises(UserError, match="^tokens: 5 is no list of token ids$"):
        tokenizer.decode(cast(Any, 5))


@pytest.mark.parametrize("text", [5, None, b"a", ["a"], "\ud800", "a" * 5000 + "\ud800"])
def test_what_is_no_text_is_refused(both: dict[str, Tokenizer], text: Any) -> None:
    with pytest.raises(UserError, match="^text: .*(is no text|no valid Unicode text)"):
        both["bytes"].encode(text)


def test_without_a_template(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_level())
    assert not tokenizer.has_chat_template
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "x"}])


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path: Path) -> None:
    fast = byte_level()
    fast.enable_truncation(4)
    fast.enable_padding(length=64)
    assert len(save(tmp_path, fast).encode("x" * 20)) == 20


def test_tokens_without_an_embedding(tmp_path: Path) -> None:
    fast = byte_level()
    fast.add_tokens([f"<extra{i}>" for i in range(100)])
    tokenizer = save(tmp_path, fast)
    assert tokenizer.encode("<extra1>")
    with pytest.raises(UserError, match="'<extra99>' .*384 tokens"):
        tokenizer.encode("a<extra99>")


def test_a_pointer_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(POINTER)
    with pytest.raises(UserError, match="tokenizer.json: is a pointer of Git LFS.* git lfs pull"):
        Tokenizer(tmp_path, ROWS)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "BPE"}}', "\x00", "[1, 2]"])
def test_broken_tokenizer_files(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="tokenizer.json: is not a tokenizer") as caught:
        Tokenizer(tmp_path, ROWS)
    assert "\n" not in str(caught.value)


def test_a_long_text_is_encoded_while_other_threads_run(both: dict[str, Tokenizer]) -> None:
    text = "".join(f"word{i} <|im_end|> <s>é\u200d😀\t" for i in range(20_000))
    for name, tokenizer in both.items():
        longest, ticks, ended = 0.0, 0, threading.Event()

        def tick(ended: threading.Event = ended) -> None:
            nonlocal longest, ticks
            last = time.monotonic()
            while not ended.is_set():
                time.sleep(0.001)
                longest, last, ticks = max(longest, time.monotonic() - last), time.monotonic(), ticks + 1

        other = threading.Thread(target=tick)
        other.start()
        began = time.monotonic()
        ids = tokenizer.encode(text)
        took = time.monotonic() - began
        ended.set()
        other.join()
        assert longest < took / 2 and ticks > 5, (name, longest, took)
        fast = FastTokenizer.from_str(tokenizer.to_json())
        for special in (False, True):
            same = tokenizer.encode(text, add_special_tokens=special)
            assert same == fast.encode(text, add_special_tokens=special).ids
        assert same == ids


def test_the_bytes_of_tokens_add_up_to_the_text(both: dict[str, Tokenizer]) -> None:
    text = "hi 😀🦄 我爱你 é \ufffd"
    for tokenizer in both.values():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert any("\ufffd" in tokenizer.piece(token) for token in ids)
        assert b"".join(tokenizer.bytes_of(token) for token in ids).decode().strip() == text


def test_the_most_bytes_of_a_token(both: dict[str, Tokenizer], tmp_path: Path) -> None:
    for tokenizer in both.values():
        assert tokenizer.bytes_per_token == max(len(token.encode()) for token in tokenizer.vocabulary)
    composing = byte_level()
    composing.normalizer = normalizers.Sequence([normalizers.NFC()])
    jamo = "\u1112\u1161\u11ab"
    assert save(tmp_path / "nfc", composing).bytes_per_token == 3 * (both["bytes"].bytes_per_token or 0)
    assert len(jamo.encode()) == 3 * len(unicodedata.normalize("NFC", jamo).encode())
    stripping, splitting, fusing, marking = byte_level(), byte_level(), sentencepiece(), byte_level()
    stripping.normalizer = normalizers.Strip()
    splitting.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fusing.model.byte_fallback = False
    marking.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    for number, fast in enumerate((stripping, splitting, fusing, marking)):
        assert save(tmp_path / str(number), fast).bytes_per_token is None
