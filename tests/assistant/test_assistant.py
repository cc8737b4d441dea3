"""Assistants: a draft model that attends to the target's K and V says what transformers' says of the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.assistant.from_gguf import assistant_of_gguf
from spec_sdk.model.assistant.loading import load_assistant
from spec_sdk.model.assistant.model import Assistant
from spec_sdk.model.assistant.session import AssistantSession
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TreeBuilder
from tests.checkpoints.gguf_files import write_gguf
from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of
from tests.support.tiny_assistant import CLUSTERED, TARGET, TEXT, write_assistant, write_gguf_assistant
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint

CPU = torch.device("cpu")
WINDOW = TEXT["sliding_window"]


def beside(directory: Path, decoder: Decoder, bits: int | None = None) -> Assistant:
    return load_assistant(directory, TargetEnds.of("target", decoder), CPU, torch.float32, Ops(), bits)


@pytest.fixture
def target(tmp_path: Path) -> Any:
    return write_checkpoint(tmp_path / "target", TARGET)


def executor_of(directory: Path) -> TorchExecutor:
    return TorchExecutor(load_decoder(open_checkpoint(str(directory)), CPU, torch.float32), Ops())


@pytest.mark.parametrize("options", [{}, CLUSTERED], ids=["all", "clusters"])
def test_logits_and_states_are_transformers(options: dict[str, Any], target: Any, tmp_path: Path) -> None:
    """Behind texts that are shorter than the window, as long, and longer; two requests at once; a second level."""
    theirs = write_assistant(tmp_path / "assistant", **options)
    executor = executor_of(tmp_path / "target")
    session = Session(executor)
    ours = AssistantSession(beside(tmp_path / "assistant", executor.decoder))
    tap = executor.layers
    lengths = [WINDOW - 9, WINDOW, WINDOW + 1, WINDOW + 2, 60]
    texts = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    states = [session.prefill(slot, text, (tap,))[tap][-1:] for slot, text in enumerate(texts)]
    pending, child = [7 + slot for slot in range(len(texts))], 9
    roots = ours.begin(session, list(range(len(texts))), pending, states)
    trees = [TreeBuilder(token, 8) for token in pending]
    for tree in trees:
        tree.add(0, child, "chosen")
    levels = ours.grow(list(range(len(texts))), trees, [1] * len(trees))
    embed = target.get_input_embeddings()
    for slot, text in enumerate(texts):
        with torch.inference_mode():
            said = target(torch.tensor([text]), output_hidden_states=True, return_shared_kv_states=True, use_cache=True)
            state = said.hidden_states[-1][:, -1:]
            for token, found in ((pending[slot], roots[slot]), (child, levels[slot])):
                step = theirs(
                    inputs_embeds=torch.cat((embed(torch.tensor([[token]])), state), -1),
                    position_ids=torch.tensor([[len(text)]]),
                    shared_kv_states=said.shared_kv_states,
                    attention_mask=torch.ones(1, len(text), dtype=torch.long),
                )
                state, expected_V, (ours_V,) = step.last_hidden_state, step.logits[0, 0], found.full_KV
                scored = ours_V.isfinite()
                assert int(scored.sum()) == (VOCABULARY // 12 * 4 if options else VOCABULARY)
                assert (ours_V - expected_V)[scored].abs().max() < 2e-5
                # transformers gives all others one number below these
                assert not options or expected_V[~scored].max() < expected_V[scored].min()
        assert expected_V.std() > 0.1


@pytest.mark.parametrize("native", [True, False])
def test_answers_are_those_of_plain_decoding(native: bool, target: Any, tmp_path: Path) -> None:
    write_assistant(tmp_path / "all")
    write_assistant(tmp_path / "clusters", **CLUSTERED)
    on = f"backend.native={str(native).lower()}"
    plain = answers(pipeline_of(tmp_path / "target", "pipeline=vanilla", on), 1, PROMPTS)
    for options in (
        ("drafter.checkpoint=all",),
        ("drafter.checkpoint=clusters", "drafter.width=3", "policy.depth=2"),
        ("drafter.checkpoint=all", "drafter.growth=dynamic", "drafter.weights=dense", "policy=adaptive"),
    ):
        said = [option.replace("checkpoint=", f"checkpoint={tmp_path}/") for option in options]
        pipeline = pipeline_of(tmp_path / "target", "pipeline=assistant_chain", on, *said)
        for together in (1, 4):
            assert answers(pipeline, together, PROMPTS) == plain, options


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_a_rounded_cache_is_read_as_it_is_stored(form: str, target: Any, tmp_path: Path) -> None:
    write_assistant(tmp_path / "assistant")
    executor = executor_of(tmp_path / "target")
    text = torch.arange(3, 43).tolist()
    logits = []
    for kept in ("exact", form):
        executor.keep_cache_in(kept)
        session, ours = Session(executor), AssistantSession(beside(tmp_path / "assistant", executor.decoder))
        state = session.prefill(0, text, (executor.layers,))[executor.layers][-1:]
        logits.append(ours.begin(session, [0], [7], [state])[0].full_KV)
    exact, rounded = logits
    assert 0 < (exact - rounded).abs().max() < 0.2 * exact.std()


def test_matrices_in_few_bits_draft_nearly_the_same(target: Any, tmp_path: Path) -> None:
    write_assistant(tmp_path / "assistant")
    executor = executor_of(tmp_path / "target")
    session = Session(executor)
    state = session.prefill(0, [5, 6, 7], (executor.layers,))[executor.layers][-1:]
    found = [
        AssistantSession(beside(tmp_path / "assistant", executor.decoder, bits)).begin(session, [0], [7], [state])[0]
        for bits in (None, 8, 4)
    ]
    dense, in_8, in_4 = (logits.full_KV for logits in found)
    spread = dense.std()
    assert 0 < (dense - in_8).abs().max() < 0.2 * spread
    assert (dense - in_8).abs().mean() < (dense - in_4).abs().mean() < spread


def changed_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (
            {},
            {"model_type": "llama"},
            "model_type is 'llama', and an assistant's is gemma4_assistant or gemma4_unified",
        ),
        ({}, {"backbone_hidden_size": 64}, "backbone_hidden_size is 64, .* model dim of 48: .* another one"),
        (CLUSTERED, {"num_centroids": 13}, "4 of 13 clusters .* do not divide 96 tokens"),
        (CLUSTERED, {"centroid_intermediate_top_k": 13}, "13 of 12 clusters .* do not divide 96 tokens"),
        ({"text": {"global_head_dim": 16}}, {}, "6 heads of 16 in layers without a window cannot attend to the 2 KV "),
        ({"text": {"vocab_size": 90}}, {}, "has 90 tokens, and the target target 96"),
    ],
)
def test_what_does_not_fit_is_one_line(
    options: dict[str, Any], changes: dict[str, Any], message: str, target: Any, tmp_path: Path
) -> None:
    write_assistant(tmp_path / "assistant", **options)
    changed_config(tmp_path / "assistant", **changes)
    decoder = executor_of(tmp_path / "target").decoder
    with pytest.raises(UserError, match=message):
        beside(tmp_path / "assistant", decoder)


def test_damaged_tensors_are_one_line(target: Any, tmp_path: Path) -> None:
    write_assistant(tmp_path / "assistant", **CLUSTERED)
    decoder, file = executor_of(tmp_path / "target").decoder, tmp_path / "assistant" / "model.safetensors"
    whole = load_file(file)
    order = "masked_embedding.token_ordering"
    for name, tensor, message in (
        ("post_projection.weight", None, "tensor 'post_projection.weight' is missing"),
        ("pre_projection.weight", torch.zeros(32, 48), r"has shape \[32, 48\], but the config asks for \[32, 96\]"),
        (order, torch.zeros_like(whole[order]), "does not name each of 96 tokens once"),
        (order, whole[order].float(), "is stored as F32, not as I64"),
    ):
        left = {key: value for key, value in whole.items() if key != name}
        save_file(left if tensor is None else {**left, name: tensor}, file)
        with pytest.raises(UserError, match=message):
            beside(tmp_path / "assistant", decoder)


def test_another_familys_target_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", "gemma3")
    write_assistant(tmp_path / "assistant")
    with pytest.raises(UserError, match="is an assistant of a Gemma 4, and the target target is a gemma3_text"):
        beside(tmp_path / "assistant", executor_of(tmp_path / "target").decoder)


def test_it_must_be_named(target: Any, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="drafter.checkpoint: names no assistant; give a directory, a .gguf file, or .* hub id"
    ):
        pipeline_of(tmp_path / "target", "pipeline=assistant_chain")


@pytest.mark.parametrize(("kind", "bits"), [("F32", None), ("Q8_0", 8), ("Q4_0", 4)])
def test_one_in_a_gguf_file_is_the_same(kind: str, bits: int | None, target: Any, tmp_path: Path) -> None:
    """In its own bits; clusters, which such files lack, are those of all tokens."""
    model = write_assistant(tmp_path / "assistant", **CLUSTERED)
    write_gguf_assistant(tmp_path / "assistant.gguf", model, kind)
    changed_config(tmp_path / "assistant", use_ordered_embeddings=False)
    executor = executor_of(tmp_path / "target")
    session = Session(executor)
    state = session.prefill(0, [5, 6, 7], (executor.layers,))[executor.layers][-1:]
    directories = tmp_path / "assistant", assistant_of_gguf(tmp_path / "assistant.gguf")
    published, stored = (
        AssistantSession(beside(directory, executor.decoder, bits)).begin(session, [0], [7], [state])[0].full_KV
        for directory in directories
    )
    difference = (published - stored).abs().max()
    # of 4 bits ours have offsets, and the file's have none
    assert difference < (1e-5 if bits != 4 else published.std())


def test_another_gguf_file_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "gemma3")
    with pytest.raises(UserError, match="general.architecture is 'gemma3', and an assistant's is 'gemma4-assistant'"):
        assistant_of_gguf(tmp_path / "m.gguf")


def test_a_pipeline_drafts_with_one_in_a_gguf_file(target: Any, tmp_path: Path) -> None:
    write_gguf_assistant(tmp_path / "a.gguf", write_assistant(tmp_path / "assistant"), "Q8_0")
    plain = answers(pipeline_of(tmp_path / "target", "pipeline=vanilla"), 1, PROMPTS)
    pipeline = pipeline_of(tmp_path / "target", "pipeline=assistant_chain", f"drafter.checkpoint={tmp_path}/a.gguf")
    assert answers(pipeline, 1, PROMPTS) == plain
