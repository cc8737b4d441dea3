"""``deterministic=true`` in whole pipelines: what is refused, what is promised, and that it is kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Engine, UserError
from spec_sdk.app import main
from spec_sdk.bench.checking import Difference
from spec_sdk.bench.figures import losslessness_of
from spec_sdk.bench.greedy_checks import GreedyChecks
from spec_sdk.bench.reading import read_bench
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing.answers_by_bits import Answered, serve
from tests.support.real_pipelines import settings_of
from tests.support.text_checkpoints import write_text_checkpoint

HEADS_OF_16: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
ALWAYS_DRAFTS = ("policy=fixed", "policy.depth=4", "policy.max_nodes=9")
"""In the place of a policy that looks at times."""
LOSSLESS = [
    ("sd_chain", ()),
    ("specinfer_tree", ()),
    ("easyspec_paper", ()),
    ("layer_skip_tree", ()),
    ("prompt_lookup", ALWAYS_DRAFTS),
    ("suffix", (*ALWAYS_DRAFTS, "drafter.min_probability=0.01")),
]
PROMPTS = [
    [3 + (7 * i + i * i // 5) % 400 for i in range(150)],
    [3 + i % 9 for i in range(40)],
    [3 + (7 * i + i * i // 5) % 400 for i in range(110)] + [9, 8, 7],
    [5, 6],
    [3 + i % 9 for i in range(90)],
]
"""Some begin like others, so that slots are used again; some are longer than one native call takes."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_text_checkpoint(directory, **HEADS_OF_16, num_hidden_layers=9)
    return directory


@functools.lru_cache(maxsize=8)
def pipeline(checkpoint: Path, name: str, *overrides: str) -> Pipeline:
    shared = (f"model.target={checkpoint}", "backend=cpu", "deterministic=true")
    settings = settings_of(f"pipeline={name}", *shared, *(overrides or ("model.dtype=bfloat16",)))
    return build_pipeline(settings, Registry.discover())


@functools.cache
def plain(checkpoint: Path) -> list[Answered]:
    """Each alone, in caches of its own."""
    vanilla = pipeline(checkpoint, "vanilla")
    return [serve(vanilla.new_engine(), [prompt], 24)[0] for prompt in PROMPTS]


@pytest.mark.parametrize(("name", "overrides"), LOSSLESS, ids=[name for name, _ in LOSSLESS])
def test_answers_and_their_logits(name: str, overrides: tuple[str, ...], checkpoint: Path) -> None:
    """Several at once, then again in slots that hold what was left, in another order."""
    engine = pipeline(checkpoint, name, "model.dtype=bfloat16", *overrides).new_engine(3)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        answers = serve(engine, [PROMPTS[i] for i in order], 24)
        for i, answer in zip(order, answers, strict=True):
            assert answer == plain(checkpoint)[i], i


@pytest.mark.parametrize("name", ["vanilla", "prompt_lookup", "layer_skip_tree"])
def test_what_a_constraint_forces_changes_no_bit(name: str, checkpoint: Path) -> None:
    """Tokens and log-probabilities of an answer with forced runs, beside those of drawing each of its tokens."""
    pattern = "(yes|no), because (it|there) is (a|the) (cat|dog) in the (house|garden)"

    def told(made: Pipeline) -> tuple[list[Any], int]:
        events: list[dict[str, Any]] = []
        matcher = made.constraints.of({"name": "regex", "pattern": pattern})
        asked = TokenRequest(PROMPTS[2], 60, constraint=matcher, logprobs=2, emit=events.append)
        for _ in made.new_engine().stream(asked):
            pass
        cycles = [event for event in events if event["event"] == "cycle"]
        taken = sum(cycle["constraint"]["taken"] for cycle in cycles)
        return [one for cycle in cycles for one in cycle["logprobs"]], taken

    expected, taken = told(pipeline(checkpoint, "vanilla", "model.dtype=bfloat16", "forced_tokens=false"))
    assert taken == 0
    found, taken = told(pipeline(checkpoint, name, "model.dtype=bfloat16", *dict(LOSSLESS).get(name, ())))
    assert found == expected and taken > 5


def sampled(pipeline: Pipeline, prompts: Sequence[Sequence[int]], together: int) -> dict[int, list[int]]:
    engine, tokens = pipeline.new_engine(together), dict[int, list[int]]()
    for number, prompt in enumerate(prompts):
        tokens[engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=20, ignore_eos=True))] = []
    while engine.busy:
        for progress in engine.step():
            tokens[progress.request] += progress.tokens
    return tokens


CHOSEN = [
    ("prompt_lookup", ALWAYS_DRAFTS),
    ("easyspec_paper", ("drafter.growth=beam", "drafter.width=2", "drafter.children=top_k")),
]
"""Drafts that draw nothing."""


@pytest.mark.parametrize(("name", "overrides"), CHOSEN, ids=[name for name, _ in CHOSEN])
def test_sampled_answers_of_naive_tree_are_plain_decodings(
    name: str, overrides: tuple[str, ...], checkpoint: Path
) -> None:
    """It draws each token from the target with one random number, as plain decoding does."""
    hot = ("model.dtype=bfloat16", "sampling.temperature=1", "sampling.seed=3")
    made = pipeline(checkpoint, name, *hot, "verifier=naive_tree", *overrides)
    expected = sampled(pipeline(checkpoint, "vanilla", *hot), PROMPTS, 1)
    found = sampled(made, PROMPTS, 3)
    assert len({tuple(tokens) for tokens in found.values()}) == len(PROMPTS)
    assert found == expected


def test_sampled_answers_do_not_depend_on_neighbours(checkpoint: Path) -> None:
    made = pipeline(checkpoint, "sd_chain", "model.dtype=bfloat16", "sampling.temperature=1", "sampling.seed=3")
    assert sampled(made, PROMPTS, 1) == sampled(made, PROMPTS, 4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.dtype=float16"], "the native kernels do not compute in float16; use model.dtype=float32 or bfloat16"),
        (["model.kv_cache=int8"], "attention over a cache in int8 is torch's; use model.kv_cache=exact"),
        (["backend.native=false"], "it takes the native kernels: they are turned off"),
        (["backend.compile=true"], "compiled graphs round in other places; leave out backend.compile=true"),
        (["verifier=typical"], "with verifier 'typical' an answer is not plain decoding's; use verifier=multi_step"),
        (["pipeline=alspec"], "an answer is not plain decoding's; use predictor=none"),
        (["backend=accelerate"], "on backend 'accelerate' a row's bits depend on the rows beside it; use backend=cpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_refused(overrides: list[str], message: str, checkpoint: Path) -> None:
    settings = settings_of(f"model.target={checkpoint}", "backend=cpu", "deterministic=true", *overrides)
    with pytest.raises(UserError) as refusal:
        build_pipeline(settings, Registry.discover())
    assert str(refusal.value).startswith("deterministic: ") and message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_family_that_is_not_run_natively(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, hidden_size=48)
    settings = settings_of(f"model.target={tmp_path}", "backend=cpu", "deterministic=true")
    with pytest.raises(UserError, match="the native kernels do not run its blocks: heads of 8 in"):
        build_pipeline(settings, Registry.discover())


def test_engines_on_loaded_models(checkpoint: Path) -> None:
    """An engine beside one that was not loaded so is refused; one that was keeps the promise."""
    engine = Engine.from_pipeline("vanilla", target=checkpoint, overrides=["backend=cpu", "deterministic=true"])
    assert engine.with_pipeline("prompt_lookup").pipeline.deterministic
    ordinary = Engine.from_pipeline("vanilla", target=checkpoint, overrides=["backend=cpu"])
    assert not ordinary.pipeline.deterministic
    with pytest.raises(UserError, match="deterministic: True is asked for, and the loaded models have False"):
        ordinary.with_pipeline("prompt_lookup", overrides=["deterministic=true"])


def test_what_a_run_says(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"model.target={checkpoint}", "backend=cpu", "prompt=a b c", "max_new_tokens=4"]
    for value, said in (("true", "exact, to the bit"), ("false", "exact")):
        output = tmp_path / value
        assert main(["pipeline=prompt_lookup", *options, f"deterministic={value}", f"output_dir={output}"]) == 0
        table = [line for line in capsys.readouterr().err.splitlines() if line.strip().startswith("guarantee")]
        assert [line.split(maxsplit=1)[1].strip() for line in table] == [said]
        metrics = json.loads((output / "metrics.json").read_text())
        assert (metrics["guarantee"], metrics["deterministic"]) == ("exact", value == "true")


def bench(checkpoint: Path, directory: Path, *overrides: str) -> int:
    (directory / "p.jsonl").write_text('{"question_id": 1, "category": "qa", "turns": ["a b c a b c"]}\n')
    return main(
        [
            "task=bench",
            f"model.target={checkpoint}",
            f"prompt_file={directory / 'p.jsonl'}",
            "backend=cpu",
            "max_new_tokens=8",
            "task.pipelines=[prompt_lookup]",
            f"output_dir={directory / 'out'}",
            *overrides,
        ]
    )


@pytest.mark.parametrize(("option", "status"), [("deterministic=true", 1), ("deterministic=false", 0)])
def test_bench_excuses_no_near_tie(
    option: str, status: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that plain decoding nearly chose is a fault."""
    take = GreedyChecks.take

    def takes(self: GreedyChecks, record: Any) -> None:
        if record["record"] == "answer" and record["candidate"] == "prompt_lookup":
            record = {**record, "tokens": [*record["tokens"][:-1], record["tokens"][-1] ^ 1]}
        take(self, record)

    monkeypatch.setattr(GreedyChecks, "take", takes)
    monkeypatch.setattr(Difference, "tie", True)
    assert bench(checkpoint, tmp_path, option) == status
    run = read_bench(tmp_path / "out")
    found = losslessness_of(run, "prompt_lookup")
    assert (found.equal, found.ties, found.faults) == ((0, 0, 1) if status else (0, 1, 0))
    assert run.head.data["deterministic"] is (option == "deterministic=true")


def test_bench_finds_answers_equal(checkpoint: Path, tmp_path: Path) -> None:
    assert bench(checkpoint, tmp_path, "deterministic=true", "task.batch_sizes=[1,2]", "model.dtype=bfloat16") == 0
