"""What an engine runs on: files, a state dict, the models of another engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from spec_sdk import Engine, InMemoryModel, UserError
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from tests.api.conftest import PROMPTS
from tests.support.text_checkpoints import write_text_checkpoint

OVERRIDES = ["max_new_tokens=10", "ignore_eos=true"]


def parts_of(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())


@pytest.mark.parametrize("kind", ["transformers", "tokenizers", "directory"])
def test_a_state_dict_is_a_model(checkpoint: Path, kind: str) -> None:
    state_dict, config = parts_of(checkpoint)
    tokenizer: Any = {
        "transformers": lambda: PreTrainedTokenizerFast(
            tokenizer_file=str(checkpoint / "tokenizer.json"),
            eos_token="</s>",
            chat_template=AutoTokenizer.from_pretrained(checkpoint).chat_template,
        ),
        "tokenizers": lambda: Tokenizer.from_file(str(checkpoint / "tokenizer.json")),
        "directory": lambda: checkpoint,
    }[kind]()
    model = InMemoryModel(state_dict, config, tokenizer, name="mine")
    engine = Engine.from_pipeline("easyspec_paper", target=model, overrides=OVERRIDES)
    of_files = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OVERRIDES)
    chat = kind != "tokenizers"
    for ours, theirs in zip(engine.generate(PROMPTS, chat=chat), of_files.generate(PROMPTS, chat=chat), strict=True):
        assert ours.tokens == theirs.tokens and ours.text == theirs.text
    assert engine.pipeline.target_name == "mine"
    assert engine.tokenizer.stop_ids == of_files.tokenizer.stop_ids
    assert engine.tokenizer.has_chat_template == (kind != "tokenizers")


def test_a_draft_model_may_be_in_memory_too(checkpoint: Path, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, num_hidden_layers=1, seed=3)
    state_dict, config = parts_of(tmp_path)
    draft = InMemoryModel(state_dict, config, tmp_path, name="small")
    engine = Engine.from_pipeline("sd_chain", target=checkpoint, draft=draft, overrides=OVERRIDES)
    assert engine.pipeline.draft_name == "small"
    plain = engine.with_pipeline("vanilla").generate(PROMPTS)
    assert [answer.tokens for answer in engine.generate(PROMPTS)] == [answer.tokens for answer in plain]


def test_a_model_in_memory_that_is_not_whole_is_refused(checkpoint: Path) -> None:
    state_dict, config = parts_of(checkpoint)
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(UserError, match=f"model 'mine', state_dict: tensor '{name}' is missing"):
        InMemoryModel({key: t for key, t in state_dict.items() if key != name}, config, checkpoint, "mine")
    with pytest.raises(UserError, match=f"tensor '{name}' has shape"):
        InMemoryModel({**state_dict, name: state_dict[name][:2]}, config, checkpoint)
    with pytest.raises(UserError, match="only float32, bfloat16 and float16 weights"):
        InMemoryModel({**state_dict, name: state_dict[name].int()}, config, checkpoint)
    with pytest.raises(UserError, match="object is no tokenizer"):
        _ = InMemoryModel(state_dict, config, object()).tokenizer
    with pytest.raises(UserError, match="unsupported architecture 'other'"):
        InMemoryModel(state_dict, {**config, "model_type": "other"}, checkpoint)


def test_several_pipelines_share_one_loaded_model(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noting(reference: str) -> Checkpoint:
        opened.append(reference)
        return open_checkpoint(reference)

    monkeypatch.setattr("spec_sdk.model.models.open_checkpoint", noting)
    tree = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=[*OVERRIDES, "drafter.width=3"])
    plain, lookup = (
        tree.with_pipeline("vanilla"),
        tree.with_pipeline("prompt_lookup", overrides=["drafter.max_ngram=2"]),
    )
    assert opened == [str(checkpoint)]
    executors = {id(engine.pipeline.models.target.executor) for engine in (tree, plain, lookup)}
    caches = {id(engine.pipeline.engine.target.cache) for engine in (tree, plain, lookup)}
    assert (len(executors), len(caches)) == (1, 3)
    begun = tree.stream(PROMPTS[0])
    first = next(begun)
    answers = [engine.generate(PROMPTS) for engine in (plain, lookup)]
    expected = [answer.tokens for answer in answers[0]]
    assert all(len(tokens) == 10 for tokens in expected)
    assert [answer.tokens for answer in answers[1]] == expected == [a.tokens for a in tree.generate(PROMPTS)]
    assert [token for part in (first, *begun) for token in part.tokens] == expected[0]
    assert [engine.pipeline.name for engine in (tree, plain, lookup)] == ["easyspec_paper", "vanilla", "prompt_lookup"]


def test_another_draft_model_is_loaded_beside_the_target(checkpoint: Path, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, num_hidden_layers=1, seed=3)
    tree = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OVERRIDES)
    other = tree.with_pipeline("sd_chain", draft=tmp_path, max_num_seqs=2)
    assert other.pipeline.draft_name == tmp_path.name != tree.pipeline.draft_name
    assert [a.tokens for a in other.generate(PROMPTS)] == [a.tokens for a in tree.generate(PROMPTS)]


def test_a_pipeline_of_ones_own(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /drafter: prompt_lookup\npipeline:\n  name: mine\n"
    )
    engine = Engine.from_pipeline("mine", target=checkpoint, config_dir=tmp_path, overrides=OVERRIDES)
    assert engine.pipeline.name == "mine" and len(engine.generate(PROMPTS[0])[0].tokens) == 10
    assert engine.with_pipeline("vanilla").with_pipeline("mine").pipeline.engine.drafter.name == "prompt_lookup"
    with pytest.raises(UserError, match="config_dir: /no/such is not a directory"):
        Engine.from_pipeline("mine", config_dir="/no/such")


def test_one_of_several_launched_processes_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were launched; an engine serves one"):
        Engine.from_pipeline("vanilla", target=checkpoint)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dtype=bfloat16", "model.dtype: 'bfloat16' is asked for, and the loaded models have 'float32'"),
        ("model.target=/other", "model.target: '/other' is asked for"),
        ("backend.threads=3", "backend: "),
    ],
)
def test_shared_models_cannot_be_others(engine: Engine, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine.with_pipeline("vanilla", overrides=[override])
