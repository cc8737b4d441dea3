"""Every pipeline on a tiny random checkpoint, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Verdict
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

RETRIEVAL = ["suffix", "token_recycling", "mixed", "easyspec_tree"]
LOSSLESS = [
    "sd_chain",
    "prompt_lookup",
    "lookahead",
    "easyspec_chain",
    "easyspec_paper",
    "specinfer_tree",
    "layer_skip_chain",
    "layer_skip_tree",
    *RETRIEVAL,
]
RELAXED = ["alspec", "alspec_easyspec_tree"]
PROMPT = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9]
NEW_TOKENS = 24
ALWAYS_DRAFTS = ("policy=fixed", "policy.depth=4", "policy.max_nodes=9", "drafter.min_probability=0.01")
"""In the place of a policy that looks at times."""

backends = pytest.mark.parametrize(
    "backend",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts, with MLPs in some of its layers."""
    directory = tmp_path_factory.mktemp("experts")
    write_checkpoint(directory, "qwen2_moe", num_hidden_layers=9)
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_checkpoint(directory, "smollm", num_hidden_layers=9)
    return directory


def pipeline(name: str, backend: str, checkpoint: Path, *overrides: str) -> Pipeline:
    # what is expected was computed in float32, and a GPU's own choice is bfloat16
    fixed = (*(ALWAYS_DRAFTS if name in RETRIEVAL else ()), "model.dtype=float32")
    settings = settings_of(f"pipeline={name}", f"backend={backend}", f"model.target={checkpoint}", *fixed, *overrides)
    return build_pipeline(settings, Registry.discover())


@backends
@pytest.mark.parametrize("name", LOSSLESS)
def test_greedy_tokens_are_those_of_plain_decoding(name: str, backend: str, checkpoint: Path) -> None:
    assert_as_plain_decoding(name, backend, checkpoint)


def test_drafting_passes_of_a_target_that_speculates_on_attention(checkpoint: Path) -> None:
    """At a threshold of 0 nothing is taken from a prediction: the tokens are plain decoding's, and the target's passes
    alone are predicted and measured.
    """
    options = ("drafter=layer_skip", "drafter.width=2", "predictor.size=2", "attention_verifier.threshold=0")
    expected = tokens_of(pipeline("vanilla", "cpu", checkpoint), PROMPT, NEW_TOKENS, ignore_eos=True)
    events: list[dict[str, Any]] = []
    speculating = pipeline("alspec", "cpu", checkpoint, *options)
    assert tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True, emit=events.append) == expected
    cycles = [event for event in events if event["event"] == "cycle"]
    assert sum(cycle["accepted"] for cycle in cycles) > 0
    assert all(len(cycle["attention"]["hit"]) == 9 for cycle in cycles)


@backends
@pytest.mark.parametrize("name", ["sd_chain", "prompt_lookup", "easyspec_paper", "layer_skip_tree"])
def test_greedy_tokens_of_a_mixture_of_experts(name: str, backend: str, experts: Path) -> None:
    assert_as_plain_decoding(name, backend, experts)


def assert_as_plain_decoding(name: str, backend: str, checkpoint: Path) -> None:
    expected = tokens_of(pipeline("vanilla", "cpu", checkpoint), PROMPT, NEW_TOKENS, ignore_eos=True)
    speculating = pipeline(name, backend, checkpoint)
    assert speculating.guarantee == "exact"
    accepted = 0

    def count(event: dict[str, object]) -> None:
        nonlocal accepted
        accepted += int(str(event.get("accepted", 0)))

    assert tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True, emit=count) == expected
    assert accepted > 0


@backends
@pytest.mark.parametrize("name", RELAXED)
@pytest.mark.parametrize("model", ["checkpoint", "experts"])
def test_no_tolerance_leaves_plain_decoding(
    name: str, model: str, backend: str, request: pytest.FixtureRequest
) -> None:
    """At λ = 0 every prediction is a miss, and what is recovered is plain decoding."""
    checkpoint = request.getfixturevalue(model)
    expected = tokens_of(pipeline("vanilla", "cpu", checkpoint), PROMPT, NEW_TOKENS, ignore_eos=True)
    overrides = ("predictor.size=2", "attention_verifier.threshold=0")
    speculating = pipeline(name, backend, checkpoint, *overrides)
    assert tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True) == expected


@backends
@pytest.mark.parametrize("name", [*LOSSLESS, *RELAXED])
def test_sampling_is_reproducible(name: str, backend: str, checkpoint: Path) -> None:
    short = ("predictor.size=2",) if name in RELAXED else ()
    speculating = pipeline(name, backend, checkpoint, "sampling.temperature=0.8", *short)
    first, again = (tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True) for _ in range(2))
    other = tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True, request_id=1)
    assert first == again
    assert first != other


@backends
@pytest.mark.parametrize(
    ("predictor", "space"), [("attention_sink", "residual"), ("quest", "heads"), ("h2o", "residual")]
)
def test_a_predictor_keeps_nothing_between_requests(predictor: str, space: str, backend: str, checkpoint: Path) -> None:
    """The same request twice, another one in between: the same tokens, and the same hits and errors in every layer."""
    page = ("predictor.page=2",) if predictor == "quest" else ()
    options = (f"predictor={predictor}", "predictor.size=4", *page, f"attention_verifier.space={space}")
    speculating = pipeline("alspec_easyspec_tree", backend, checkpoint, *options, "attention_verifier.threshold=0.3")

    def answer(prompt: list[int]) -> tuple[list[int], list[Any]]:
        events: list[dict[str, Any]] = []
        tokens = tokens_of(speculating, prompt, NEW_TOKENS, ignore_eos=True, emit=events.append)
        return tokens, [event["attention"] for event in events if event["event"] == "cycle"]

    first = answer(PROMPT)
    answer([7] * 40)
    assert answer(PROMPT) == first
    hits = [hit for attention in first[1] for hit in attention["hit"]]
    assert True in hits and False in hits


@backends
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs(dtype: str, backend: str, checkpoint: Path) -> None:
    speculating = pipeline("alspec_easyspec_tree", backend, checkpoint, f"model.dtype={dtype}", "predictor.size=2")
    assert speculating.dtype == dtype
    assert len(tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True)) == NEW_TOKENS


PENALTY = "sampling.repetition_penalty=1.5"


@pytest.mark.parametrize("name", ["prompt_lookup", "easyspec_paper"])
def test_greedy_tokens_with_a_repetition_penalty(name: str, checkpoint: Path) -> None:
    """Each node of a tree with the tokens of its own path: as plain decoding, which has only a prefix."""
    expected = tokens_of(pipeline("vanilla", "cpu", checkpoint, PENALTY), PROMPT, NEW_TOKENS, ignore_eos=True)
    assert expected != tokens_of(pipeline("vanilla", "cpu", checkpoint), PROMPT, NEW_TOKENS, ignore_eos=True)
    assert tokens_of(pipeline(name, "cpu", checkpoint, PENALTY), PROMPT, NEW_TOKENS, ignore_eos=True) == expected


@pytest.mark.parametrize("name", ["sd_chain", "easyspec_paper"])
def test_the_fused_sampler_answers_as_the_reference_does(name: str, checkpoint: Path) -> None:
    sampled = (PENALTY, "sampling.temperature=0.9", "sampling.top_p=0.95")
    answers = [
        tokens_of(
            pipeline(name, "cpu", checkpoint, f"sampler={sampler}", *sampled), PROMPT, NEW_TOKENS, ignore_eos=True
        )
        for sampler in ("reference", "exact")
    ]
    assert answers[0] == answers[1]


@pytest.fixture(scope="module", params=["gemma", "gemma2", "gemma3"])
def gemma(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp(request.param)
    write_checkpoint(directory, request.param, num_hidden_layers=9, **WINDOW.get(request.param, {}))
    return directory


WINDOW: dict[str, dict[str, Any]] = {"gemma2": {"sliding_window": 12}, "gemma3": {"sliding_window": 12}}
"""Shorter than the prompt and its answer."""


@backends
@pytest.mark.parametrize("name", ["sd_chain", "prompt_lookup", "easyspec_paper", "specinfer_tree"])
def test_a_gemmas_greedy_tokens_are_those_of_plain_decoding(name: str, backend: str, gemma: Path) -> None:
    test_greedy_tokens_are_those_of_plain_decoding(name, backend, gemma)


def refusal(checkpoint: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        pipeline("alspec", "cpu", checkpoint, "predictor.size=2", *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_predictors_refuse_layers_that_do_not_attend_plainly(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "2", "gemma2")
    assert refusal(tmp_path / "2") == (
        "predictor 'attention_sink': layer 0 of this gemma2 model has a window of 24 tokens, which is not predicted; "
        "use predictor=none"
    )
    capped = refusal(tmp_path / "2", "attention_verifier=static", "attention_verifier.layers=[1]", "predictor=h2o")
    assert capped.startswith("predictor 'h2o': layer 1 of this gemma2 model has soft-capped attention scores")
    write_checkpoint(tmp_path / "3", "gemma3")
    scaled = refusal(tmp_path / "3", "attention_verifier.never=[0,1,2,3,4,6]")
    assert "layer 5 of this gemma3_text model has an attention scale of its own" in scaled


def test_layers_that_see_all_keys_are_predicted_where_the_others_are_left_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma3", query_pre_attn_scalar=16, sliding_window=12)
    assert refusal(tmp_path).endswith("leave such layers out (attention_verifier.never=[0,1,2,3,4,6])")
    options = ["predictor.size=2", "attention_verifier.never=[0,1,2,3,4,6]"]
    expected = tokens_of(pipeline("vanilla", "cpu", tmp_path), PROMPT, NEW_TOKENS, ignore_eos=True)
    exact = pipeline("alspec_easyspec_tree", "cpu", tmp_path, *options, "attention_verifier.threshold=0")
    assert tokens_of(exact, PROMPT, NEW_TOKENS, ignore_eos=True) == expected
    events: list[dict[str, Any]] = []
    hits = pipeline("alspec", "cpu", tmp_path, *options, "attention_verifier.threshold=inf", "error_bounds=true")
    tokens_of(hits, PROMPT, NEW_TOKENS, ignore_eos=True, emit=events.append)
    predicted = [event["attention"]["hit"] for event in events if event["event"] == "cycle"]
    assert predicted and all(hit == [None] * 5 + [True, None] for hit in predicted)


@pytest.mark.parametrize("drafter", ["token_recycling", "lookahead", "mixed"])
def test_speculation_on_attention_beside_a_drafter_that_wants_top_tokens(drafter: str, checkpoint: Path) -> None:
    options = ("predictor.size=2", "attention_verifier.threshold=0", f"drafter={drafter}", "policy.depth=3")
    speculating = pipeline("alspec", "cpu", checkpoint, *options, "policy.max_nodes=7")
    expected = tokens_of(speculating.vanilla(), PROMPT, NEW_TOKENS, ignore_eos=True)
    assert tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True) == expected


def test_plain_decoding_takes_no_part_in_what_a_verifier_does(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always_7(self: Any, tree: TokenTree, logits_NV: Any, request: Any) -> Verdict:
        return Verdict([0], 7, tree)

    speculating = pipeline("prompt_lookup", "cpu", checkpoint)
    expected = tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True)
    monkeypatch.setattr(type(speculating.verifier), "verify_one", always_7)
    assert set(tokens_of(speculating, PROMPT, NEW_TOKENS, ignore_eos=True)) == {7}
    assert tokens_of(speculating.vanilla(), PROMPT, NEW_TOKENS, ignore_eos=True) == expected
    relaxed = pipeline("prompt_lookup", "cpu", checkpoint, "verifier=typical")
    assert relaxed.guarantee == "relaxed" and relaxed.vanilla().guarantee == "exact"
