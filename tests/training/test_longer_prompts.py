"""The longer prompts that the default target's drafts learn from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.training.sample_shards import write_shard
from spec_sdk.training.samples import Sample
from spec_sdk_smollm2 import longer_prompts

PAGE = """# A heading
A first paragraph, which [a link](elsewhere.md) makes longer, {long}.

    code that nobody reads

| a | table |

A second paragraph, {long}.
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_checkpoint(longer_prompts.TARGET).tokenizer


def sample(tokenizer: Tokenizer, number: int, kind: str, prompt: str, answer: str) -> Sample:
    asked = tokenizer.encode_rendered(tokenizer.render([{"role": "user", "content": prompt}]))
    answered = [*tokenizer.encode(answer), *sorted(tokenizer.stop_ids)[:1]]
    nothing = torch.zeros(len(answered), 1)
    return Sample(number, kind, False, 0.0, asked, answered, nothing.int(), nothing, nothing[:, 0])


def test_prompts_are_made_of_answers_pages_and_questions(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answers").mkdir()
    (tmp_path / "pages").mkdir()
    story = "The fox number {} went to the **river** and came home again. " * 12
    samples = [sample(tokenizer, i, "stories", "Tell me a story.", story.format(*[i] * 12) + "Cut") for i in range(5)]
    samples.append(sample(tokenizer, 5, "science", "Why do rivers run to the sea?\nSay it briefly.", "They do."))
    samples.append(sample(tokenizer, 6, "code", "Write a program.", "print() " * 200))
    write_shard(tmp_path / "answers" / "shard-00000.safetensors", samples)
    for i in range(4):
        (tmp_path / "pages" / f"{i}.md").write_text(PAGE.format(long=f"page {i} " * 20))
    monkeypatch.setattr(
        sys, "argv", ["longer_prompts", *(str(tmp_path / part) for part in ("answers", "pages", "out"))]
    )
    monkeypatch.setattr(longer_prompts, "TRIED", 60)
    longer_prompts.main()
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "out").read_text().splitlines()]
    assert f"{len(prompts)} prompts" in capsys.readouterr().out
    assert all(longer_prompts.LEAST < len(tokenizer.encode(text)) < longer_prompts.MOST for text in prompts)
    together = "".join(prompts)
    assert "The fox number 3 went to the river" in together and "which a link makes longer" in together
    assert "Question: Why do rivers run to the sea?\nAnswer:" in together
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--seed", "1"])
    longer_prompts.main()
    others = [json.loads(line)["prompt"] for line in (tmp_path / "out").read_text().splitlines()]
    assert others and others != prompts
    for left_out in ("**", "Cut", "<|im_end|>", "print()", "nobody reads", "table", "heading", "Say it briefly"):
        assert left_out not in together, left_out


def test_too_few_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["longer_prompts", str(tmp_path), str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        longer_prompts.main()
    assert ended.value.code == 2 and "too few" in capsys.readouterr().err


def test_damaged_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shard-00000.safetensors").write_bytes(b"no tensors")
    monkeypatch.setattr(sys, "argv", ["longer_prompts", str(tmp_path), str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        longer_prompts.main()
    assert ended.value.code == 2 and "is damaged" in capsys.readouterr().err


def test_a_page_in_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_bytes("Äpfel".encode("latin-1"))
    monkeypatch.setattr(sys, "argv", ["longer_prompts", str(tmp_path), str(tmp_path), str(tmp_path / "out")])
    monkeypatch.setattr(longer_prompts, "shard_files", lambda answers: [])
    with pytest.raises(SystemExit) as ended:
        longer_prompts.main()
    assert ended.value.code == 2 and "page.md is no UTF-8 text (byte 0)" in capsys.readouterr().err
