"""What is written is what is loaded: by a pipeline beside its target, and whole by transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spec_sdk import Engine
from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.context_vocabulary import with_all_tokens
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Models
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.training import draft_directory
from spec_sdk.training.draft_directory import draft_settings, settings_of_draft, write_draft
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.frequent_tokens import frequent_tokens
from spec_sdk.training.packing import pack
from spec_sdk.training.trainable import TrainableDraft
from tests.checkpoints.test_own_head import with_head
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint
from tests.training.test_trainable import CPU, logits_one_by_one, sample

SHAPE = DraftShape([0, 3], mlp_size=64, kv_heads=1)


def written(
    place: Path,
    name: str,
    stored: str,
    whole: bool,
    shape: DraftShape = SHAPE,
    token_R: torch.Tensor | None = None,
    **sizes: Any,
) -> Checkpoint:
    """A target in ``place/target``, and a draft model of it in ``place/draft``."""
    write_checkpoint(place / "target", name, **sizes)
    target = open_checkpoint(str(place / "target"))
    settings = draft_settings(target, shape, whole)
    write_draft(place / "draft", TrainableDraft(target, shape, CPU, token_R=token_R), target, settings, stored, token_R)
    return target


class FastInBits(Ops):
    """The reference, said to be fast in few bits."""

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        return True


def models(place: Path, draft: str = "draft", weights: str = "auto", fast: bool = False, **more: Any) -> Models:
    ops = FastInBits() if fast else Ops()
    return Models(
        str(place / "target"),
        str(place / draft),
        "auto",
        lambda source, dtype: TorchExecutor(load_decoder(source, CPU, dtype), ops),
        ops,
        CPU,
        torch.float32,
        weights=weights,
        **more,
    )


@pytest.mark.parametrize("name", ["smollm", "llama2", "qwen3"])
def test_embedding_and_head_are_the_target_s_very_memory(tmp_path: Path, name: str) -> None:
    target = written(tmp_path, name, "float32", False)
    loaded = models(tmp_path)
    draft, whole = loaded.draft().executor, loaded.target.executor
    assert isinstance(draft, TorchExecutor) and isinstance(whole, TorchExecutor)
    assert draft.decoder.embedding is whole.decoder.embedding
    assert draft.decoder.output_head is whole.decoder.output_head
    model, one = TrainableDraft(target, SHAPE, CPU), sample(0, 4, 12)
    with torch.no_grad():
        expected = model.logits(model(pack([[one]], 16)))
    torch.testing.assert_close(logits_one_by_one(draft, one), expected, atol=1e-3, rtol=1e-3)


def test_of_a_target_without_rotary_positions(tmp_path: Path) -> None:
    """What its config.json says of all layers it need not say of each."""
    write_checkpoint(tmp_path, "granite4", position_embedding_type=None)
    settings = draft_settings(open_checkpoint(str(tmp_path)), DraftShape([0, 3]), True)
    assert "no_rope_layers" not in settings and settings["num_hidden_layers"] == 2


@pytest.mark.parametrize("whole", [False, True])
def test_of_a_target_that_is_tied_but_has_another_head(tmp_path: Path, whole: bool) -> None:
    target = with_head(tmp_path / "target")
    settings = draft_settings(target, SHAPE, whole)
    assert settings.get("weights_of_target") == (None if whole else ["embedding", "head"])
    model, one = TrainableDraft(target, SHAPE, CPU), sample(0, 4, 12)
    write_draft(tmp_path / "draft", model, target, settings, "float32")
    executor = models(tmp_path).draft().executor
    assert isinstance(executor, TorchExecutor)
    assert torch.equal(executor.decoder.output_head.weight_OI, target.tensor("lm_head.weight"))
    with torch.no_grad():
        expected = model.logits(model(pack([[one]], 16)))
    torch.testing.assert_close(logits_one_by_one(executor, one), expected, atol=1e-3, rtol=1e-3)
    assert settings_of_draft(open_checkpoint(str(tmp_path / "draft")), whole)["tie_word_embeddings"] is False


def multimodal(directory: Path) -> Checkpoint:
    """A gemma3 checkpoint: the tensors and config.json of a text model as parts of a larger one's."""
    write_checkpoint(directory, "gemma3")
    tensors = load_file(directory / "model.safetensors")
    save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    text = json.loads((directory / "config.json").read_text())
    end = text.pop("eos_token_id")
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": end}))
    return open_checkpoint(str(directory))


@pytest.mark.parametrize("whole", [False, True])
def test_of_a_multimodal_target_it_is_a_text_model(tmp_path: Path, whole: bool) -> None:
    target = multimodal(tmp_path / "target")
    settings = draft_settings(target, SHAPE, whole)
    assert (settings["model_type"], settings["eos_token_id"]) == ("gemma3_text", 2) and "text_config" not in settings
    model, one = TrainableDraft(target, SHAPE, CPU), sample(0, 4, 12)
    write_draft(tmp_path / "draft", model, target, settings, "float32")
    executor = models(tmp_path).draft().executor
    assert isinstance(executor, TorchExecutor)
    with torch.no_grad():
        expected = model.logits(model(pack([[one]], 16)))
    torch.testing.assert_close(logits_one_by_one(executor, one), expected, atol=1e-3, rtol=1e-3)


def test_a_head_of_its_own_beside_the_target_s_embedding(tmp_path: Path) -> None:
    written(tmp_path, "llama2", "float32", False)
    draft, own_VM = tmp_path / "draft", torch.randn(VOCABULARY, 48)
    save_file({**load_file(draft / "model.safetensors"), "lm_head.weight": own_VM}, draft / "model.safetensors")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "weights_of_target": ["embedding"]}))
    loaded = models(tmp_path)
    executor, whole = loaded.draft().executor, loaded.target.executor
    assert isinstance(executor, TorchExecutor) and isinstance(whole, TorchExecutor)
    assert torch.equal(executor.decoder.output_head.weight_OI, own_VM)
    assert executor.decoder.embedding is whole.decoder.embedding


def test_a_backend_that_loads_by_itself_reads_the_target_s_tensors(tmp_path: Path) -> None:
    written(tmp_path, "llama2", "float32", False)
    loaded = models(tmp_path)
    source = loaded._open(str(tmp_path / "draft"), loaded._target_checkpoint)
    assert source.names() == frozenset(
        open_checkpoint(str(tmp_path / "draft")).names()
        | {
            "model.embed_tokens.weight",
            "lm_head.weight",
        }
    )
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(source.tensor(name), loaded._target_checkpoint.tensor(name))
        assert source.quantized(name) is None


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("smollm", "float32"),
        ("llama2", "bfloat16"),
        *((name, "float32") for name in ("qwen3", "phi3", "glm4", "ernie4_5", "smollm3", "granite", "granite4")),
    ],
)
def test_transformers_reads_a_whole_one(tmp_path: Path, name: str, stored: str) -> None:
    target, one = written(tmp_path, name, stored, True), sample(0, 4, 12)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    model = TrainableDraft(target, SHAPE, CPU)
    with torch.no_grad():
        found = theirs(torch.tensor([[*one.prompt, *one.answer[:-1]]])).logits[0, len(one.prompt) - 1 :]
        expected = model.logits(model(pack([[one]], 16)))
    close = 1e-3 if stored == "float32" else 0.5
    torch.testing.assert_close(found, expected, atol=close, rtol=close)
    # and so does a run of its own
    assert models(tmp_path, "target").draft("cut").name and open_checkpoint(str(tmp_path / "draft")).borrowed == set()


@pytest.mark.parametrize(
    ("weights", "draft_weights", "fast", "bits"),
    [
        ("dense", "auto", True, 4),
        ("dense", "auto", False, None),
        ("int8", "auto", False, 4),
        ("auto", "dense", True, None),
        ("dense", "int4", False, 4),
    ],
)
def test_the_draft_s_bits_are_its_own(
    tmp_path: Path, weights: str, draft_weights: str, fast: bool, bits: int | None
) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    written(tmp_path, "llama2", "int4", False, DraftShape([0, 3]), **sizes)
    loaded = models(tmp_path, weights=weights, fast=fast, draft_weights=draft_weights)
    draft, target = (loaded._open(str(tmp_path / "draft"), loaded._target_checkpoint), loaded._target_checkpoint)
    name = "model.layers.0.mlp.up_proj.weight"
    matrix, whole = draft.quantized(name), target.quantized(name)
    assert (None if matrix is None else matrix.bits) == bits
    assert (None if whole is None else whole.bits) == (8 if weights == "int8" else None)


@pytest.mark.parametrize("name", ["smollm", "llama2"])
@pytest.mark.parametrize("weights", ["dense", "int8"])
def test_a_draft_model_of_fewer_tokens(tmp_path: Path, name: str, weights: str) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    token_R = torch.tensor([3, 4, 5, 17, 40, 41, 60, 95])
    shape = DraftShape([0, 3])
    target = written(tmp_path, name, "float32", False, shape, token_R, **sizes)
    all_tokens = TrainableDraft(target, shape, CPU)
    both = models(tmp_path, weights=weights)
    draft, lender = both.draft().executor, both.target.executor
    assert isinstance(draft, TorchExecutor) and isinstance(lender, TorchExecutor)
    assert draft.vocabulary == VOCABULARY and draft.decoder.output_head.nbytes < 64 * VOCABULARY
    # the target's own head stands ready for all tokens, where it is a plain matrix
    more = with_all_tokens(draft, 2**30)
    assert (None if more is None else more.decoder.output_head) is (
        lender.decoder.output_head if weights == "dense" else None
    )
    one = sample(0, 4, 12)
    found_AV = logits_one_by_one(draft, one)
    with torch.no_grad():
        expected_AV = all_tokens.logits(all_tokens(pack([[one]], 16)))
    close = 2e-3 if weights == "dense" else 0.5
    torch.testing.assert_close(found_AV[:, token_R], expected_AV[:, token_R], atol=close, rtol=close)
    others = torch.ones(VOCABULARY, dtype=torch.bool).index_fill_(0, token_R, False)
    assert found_AV[:, others].eq(float("-inf")).all()


def test_the_tokens_that_are_kept_are_the_most_probable_ones() -> None:
    samples = [sample(0, 4, 20), sample(1, 4, 20)]
    mass_V = torch.zeros(VOCABULARY, dtype=torch.float64)
    for one in samples:
        for ids, logprobs in zip(one.top_id_AK, one.top_logprob_AK.double(), strict=True):
            for token, logprob in zip(ids, logprobs, strict=True):
                mass_V[int(token)] += logprob.exp()
    kept = frequent_tokens([*samples, replace(sample(2, 4, 90), held_out=True)], 30, VOCABULARY)
    assert kept is not None and kept.tolist() == sorted(mass_V.topk(30).indices.tolist())
    assert frequent_tokens(samples, VOCABULARY, VOCABULARY) is frequent_tokens(samples, None, VOCABULARY) is None


def test_eight_bits_are_kept_and_near(tmp_path: Path) -> None:
    # rows of whole groups of 32
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    target = written(tmp_path, "smollm", "int8", False, DraftShape([0, 4]), **sizes)
    checkpoint, table = open_checkpoint(str(tmp_path / "draft")), "model.layers.1.mlp.down_proj.weight"
    matrix = checkpoint.quantized(table)
    assert matrix is not None and matrix.bits == 8
    largest = target.tensor("model.layers.4.mlp.down_proj.weight").abs().max()
    error = (checkpoint.tensor(table) - target.tensor("model.layers.4.mlp.down_proj.weight")).abs().max()
    assert 0 < error < largest / 127
    size = (tmp_path / "draft" / "model.safetensors").stat().st_size
    parameters = sum(p.numel() for p in TrainableDraft(target, DraftShape([0, 4]), CPU).parameters())
    assert size < 1.1 * parameters + 4096


@pytest.mark.parametrize("pipeline", ["sd_chain", "easyspec_paper"])
@pytest.mark.parametrize("backend", [["backend.native=false"], [], ["model.weights=int8"]])
def test_a_pipeline_drafts_with_it_without_loss(
    tmp_path: Path, tiny_target: Path, backend: list[str], pipeline: str
) -> None:
    target, shape = open_checkpoint(str(tiny_target)), DraftShape([0, 1])
    model = TrainableDraft(target, shape, CPU, token_R=torch.arange(3, target.config.vocab_size, 2))
    write_draft(tmp_path / "draft", model, target, draft_settings(target, shape, False), "int8")
    engine = Engine.from_pipeline(pipeline, target=tiny_target, draft=tmp_path / "draft", overrides=backend)
    plain = engine.with_pipeline("vanilla")
    prompts = ["What is this?", "Write a story.", "Why"]
    answers, expected = (e.generate(prompts, max_new_tokens=24, ignore_eos=True) for e in (engine, plain))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


def test_refusals(tmp_path: Path) -> None:
    written(tmp_path, "smollm", "float32", False)
    draft = tmp_path / "draft"
    with pytest.raises(UserError, match="draft has no model.embed_tokens.weight of its own: it is a draft model"):
        Models(str(draft), "cut", "auto", lambda *_: None, Ops(), CPU, torch.float32)  # type: ignore[arg-type]
    write_checkpoint(tmp_path / "target", "smollm", hidden_size=96)
    with pytest.raises(UserError, match=r"takes its embedding \[96, 48\] from the target, and that of target is"):
        models(tmp_path).draft()
    config = json.loads((draft / "config.json").read_text())
    for listed, message in (("embedding", "is 'embedding', not a list"), (["embeding"], "did you mean 'embedding'")):
        (draft / "config.json").write_text(json.dumps({**config, "weights_of_target": listed}))
        with pytest.raises(UserError, match=message):
            open_checkpoint(str(draft))
    (draft / "config.json").write_text(json.dumps(config))
    for ids, message in ((torch.tensor([5, 5]), "no list of increasing"), (torch.tensor([5, 999]), "names token 999")):
        tensors = load_file(draft / "model.safetensors")
        save_file({**tensors, "draft_vocabulary": ids.int()}, draft / "model.safetensors")
        with pytest.raises(UserError, match=message):
            open_checkpoint(str(draft))


def test_layers_that_differ_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those from number 3 on have a window; of the draft model's each is told by itself, or it is refused."""
    write_checkpoint(tmp_path, "qwen2_sliding")
    values = json.loads((tmp_path / "config.json").read_text())
    values.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(values))
    target = open_checkpoint(str(tmp_path))
    settings = draft_settings(target, DraftShape([0, 4]), False)
    assert settings["layer_types"] == ["full_attention", "sliding_attention"]
    assert read_config(settings, "tests").windows == (None, 24)
    assert draft_settings(target, DraftShape([0, 1, 2]), False)["num_hidden_layers"] == 3
    by_number = dict[str, Any](num_hidden_layers=2)
    monkeypatch.setattr(draft_directory, "settings_of_layers", lambda values, *_: {**values, **by_number})
    with pytest.raises(UserError, match="task.layers: the config.json of"):
        draft_settings(target, DraftShape([0, 4]), False)
