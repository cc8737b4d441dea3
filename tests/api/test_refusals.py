"""What the command line refuses, the library refuses in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine, InMemoryModel, Request, SamplingParams, UserError
from spec_sdk.app import main
from tests.support.text_checkpoints import write_text_checkpoint

LONG = "word " * 5000
CALLS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "temperature": (["sampling.temperature=-1"], {"temperature": -1}),
    "no number": (["sampling.temperature=hot"], {"temperature": "hot"}),
    "infinite": (["sampling.temperature=inf"], {"temperature": float("inf")}),
    "top_p": (["sampling.top_p=0"], {"top_p": 0}),
    "top_k": (["sampling.top_k=-3"], {"top_k": -3}),
    "top_k of a half": (["sampling.top_k=1.5"], {"top_k": 1.5}),
    "min_p": (["sampling.min_p=2"], {"min_p": 2}),
    "penalty": (["sampling.repetition_penalty=0"], {"repetition_penalty": 0}),
    "seed": (["sampling.seed=-1"], {"seed": -1}),
    "no new tokens": (["max_new_tokens=0"], {"max_new_tokens": 0}),
    "ignore_eos": (["ignore_eos=perhaps"], {"ignore_eos": "perhaps"}),
    "chat": (["chat=maybe"], {"chat": "maybe"}),
    "length": (["max_new_tokens=4096"], {"max_new_tokens": 4096}),
}
ENGINES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "pipeline": (["pipeline=nosuch"], {"pipeline": "nosuch"}),
    "target": (["model.target=/no/such"], {"target": "/no/such"}),
    "draft": (["pipeline=sd_chain", "model.draft=/no/such"], {"pipeline": "sd_chain", "draft": "/no/such"}),
    "option": (["drafter.widht=3"], {"overrides": ["drafter.widht=3"]}),
    "key": (["temprature=1"], {"overrides": ["temprature=1"]}),
    "value": (["sampling.top_p=2"], {"overrides": ["sampling.top_p=2"]}),
    "choice": (["verifier=greedi"], {"overrides": ["verifier=greedi"]}),
    "unreadable": (["drafter.width=[3"], {"overrides": ["drafter.width=[3"]}),
    "misfit": (
        ["verifier=greedy", "sampling.temperature=1"],
        {"overrides": ["verifier=greedy", "sampling.temperature=1"]},
    ),
    "chains": (["verifier=chain_rejection"], {"overrides": ["verifier=chain_rejection"]}),
}


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command line's one line for what it refuses."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")

    return run


@pytest.mark.parametrize("name", CALLS)
def test_options_of_a_call(engine: Engine, checkpoint: Path, error_of: Callable[..., str], name: str) -> None:
    overrides, options = CALLS[name]
    expected = error_of(f"model.target={checkpoint}", "prompt=a", *overrides)
    for call in (engine.generate, engine.stream, engine.add):
        with pytest.raises(UserError) as refusal:
            call("a", **options)
        assert str(refusal.value) == expected


@pytest.mark.parametrize("prompt", ["", "  ", LONG])
def test_prompts(engine: Engine, checkpoint: Path, error_of: Callable[..., str], prompt: str) -> None:
    expected = error_of(f"model.target={checkpoint}", f"prompt='{prompt}'", "max_new_tokens=12")
    with pytest.raises(UserError) as refusal:
        engine.generate(prompt)
    assert str(refusal.value) == expected


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_engine_is_made_of(checkpoint: Path, error_of: Callable[..., str], name: str) -> None:
    arguments, options = ENGINES[name]
    expected = error_of(f"model.target={checkpoint}", "prompt=a", *arguments) if "target" not in options else None
    with pytest.raises(UserError) as refusal:
        Engine.from_pipeline(**{"target": checkpoint, **options})
    assert str(refusal.value) == (expected or error_of("prompt=a", *arguments))


@pytest.mark.parametrize("override", ["compare=true", "prompt=a", "task=bench"])
def test_options_of_a_run_of_the_command_line(checkpoint: Path, override: str) -> None:
    with pytest.raises(UserError, match=f"overrides: {override.partition('=')[0]} is of a run of the command line"):
        Engine.from_pipeline("vanilla", target=checkpoint, overrides=[override])


def test_a_verifier_that_cannot_serve_a_request(checkpoint: Path, error_of: Callable[..., str]) -> None:
    engine = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=["verifier=greedy"])
    expected = error_of(
        "pipeline=prompt_lookup", f"model.target={checkpoint}", "verifier=greedy", "sampling.temperature=1", "prompt=a"
    )
    with pytest.raises(UserError) as refusal:
        engine.generate("a", temperature=1)
    assert str(refusal.value) == expected


def test_a_model_without_a_template(tmp_path: Path, error_of: Callable[..., str]) -> None:
    write_text_checkpoint(tmp_path / "plain", chat=False)
    engine = Engine.from_pipeline("vanilla", target=tmp_path / "plain")
    expected = error_of("pipeline=vanilla", f"model.target={tmp_path / 'plain'}", "chat=true", "prompt=a")
    with pytest.raises(UserError) as refusal:
        engine.generate("a", chat=True)
    assert str(refusal.value) == expected
    with pytest.raises(UserError, match="no chat template for messages"):
        engine.generate([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([-1], {}, "prompt: token -1 lies outside the vocabulary of 480"),
        ([480], {}, "prompt: token 480 lies outside the vocabulary of 480"),
        ([[]], {}, "prompt: it is empty"),
        ([1.5], {}, "prompt: 1.5 is no token id"),
        ([None, 5], {}, "prompt: None is no token id"),
        (7, {}, "prompt: 7 is no text, chat or list of token ids"),
        (b"hi", {}, "prompt: b'hi' is no text, chat or list of token ids"),
        ({"hi"}, {}, "prompt: {'hi'} is no text, chat or list of token ids"),
        ((text for text in ("a", "b")), {}, "prompt: several texts are given as a list"),
        ([True, False], {}, "prompt: True is no token id"),
        ({"role": "user", "content": "a"}, {}, "prompt: it is one message; a chat is a list of messages"),
        ("a", {"stop_token_ids": 5}, "stop_token_ids: 5 is no list of token ids"),
        ("\ud800", {}, "prompt: no valid Unicode text (character 0)"),
        ([{"role": "user"}], {}, "prompt: message 1 has no text 'content'"),
        ([{"role": "user", "content": "a"}], {"chat": False}, "chat: messages need the model's chat template"),
        ("a", {"stop_token_ids": [480]}, "stop_token_ids: token 480 lies outside the vocabulary of 480"),
        ("a", {"stop": [""]}, "stop: [''] must be a text, or a list of texts, none of them empty"),
        ("a", {"n": 0}, "n: 0 must be 1 or more"),
        ("a", {"sampling": 0.7}, "sampling: 0.7 is no SamplingParams"),
        ("a", {"sampling": SamplingParams(top_p=-1.0)}, "sampling.top_p: -1.0 must be above 0"),
        ("a", {"temprature": 1}, "temprature: unknown option, did you mean 'temperature'?"),
    ],
)
def test_what_the_command_line_has_not(engine: Engine, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        if prompt == [[]]:
            raise engine.generate(prompt)[0].error or AssertionError
        engine.generate(prompt, **options)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)
    assert not engine.pipeline.engine.busy


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_prompt_costs_the_others_nothing(engine: Engine, place: int) -> None:
    """Wherever it stands in a list."""
    prompts: list[Any] = ["a", "b"]
    prompts[place] = None
    answers = engine.generate(prompts, max_new_tokens=2)
    assert str(answers[place].error) == "prompt: None is no text, chat or list of token ids"
    assert answers[1 - place].error is None and answers[1 - place].tokens


def test_requests_and_engines_check_names_and_numbers(checkpoint: Path) -> None:
    with pytest.raises(UserError, match="max_tokens: unknown option, did you mean 'max_new_tokens'"):
        Request("a", max_tokens=3)  # type: ignore[call-arg]
    for wrong in (0, True, 1.5, "2", None):
        with pytest.raises(UserError, match=f"max_num_seqs: {wrong!r} must be 1 or more"):
            Engine.from_pipeline("vanilla", target=checkpoint, max_num_seqs=wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="max_num_seqs: 0 must be 1 or more"):
        Engine.from_pipeline("vanilla", target=checkpoint).with_pipeline("suffix", max_num_seqs=0)


NUMBER = torch.tensor(5)


@pytest.mark.parametrize("given", [None, 5, NUMBER])
def test_what_is_no_list(engine: Engine, checkpoint: Path, given: Any) -> None:
    """A tensor without dimensions says that it can be gone through, and cannot."""
    for ask in (engine.generate, lambda prompt: list(engine.answers(prompt)), engine.add, engine.check):
        with pytest.raises(UserError, match="^prompt: .* is no text, chat or list of token ids"):
            ask(given)
    for option in ("stop_token_ids", "kept_special_tokens"):
        with pytest.raises(UserError, match=f"^{option}: .* is no list of token ids"):
            engine.generate("a", **{option: given})
    with pytest.raises(UserError, match="^overrides: .* is no list of texts"):
        Engine.from_pipeline("vanilla", target=checkpoint, overrides=given)
    with pytest.raises(UserError, match="^overrides: .* is no text such as"):
        engine.with_pipeline("vanilla", overrides=[given])


@pytest.mark.parametrize("given", [None, "1", [1]])
def test_only_numbers_of_requests_are_cancelled(engine: Engine, given: Any) -> None:
    with pytest.raises(UserError, match="^request: .* is no number that add returned"):
        engine.cancel(given)
    engine.cancel(10**9)


def test_what_is_no_directory_or_mapping(checkpoint: Path) -> None:
    wrong: Any = 5
    with pytest.raises(UserError, match="^config_dir: 5 is no directory"):
        Engine.from_pipeline("vanilla", target=checkpoint, config_dir=wrong)
    for told, tensors, config in (
        ("state_dict: a int is no mapping", wrong, {}),
        ("config: a int is no mapping", {}, wrong),
        ("state_dict: 'a' is a int and no tensor", {"a": wrong}, {"model_type": "llama"}),
    ):
        with pytest.raises(UserError, match=f"^model 'in memory', {told}"):
            InMemoryModel(tensors, config, None)


@pytest.mark.parametrize("given", ["target", "draft"])
def test_what_is_no_model(checkpoint: Path, given: str) -> None:
    models: dict[str, Any] = {"target": checkpoint, given: torch.nn.Linear(2, 2)}
    with pytest.raises(UserError, match=f"^{given}: a Linear is no model: give a directory, .*InMemoryModel"):
        Engine.from_pipeline("sd_chain", **models)


def test_overrides_are_a_list_and_not_one_text(tmp_path: Path) -> None:
    """The letters of a text would be taken for options."""
    write_text_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"^overrides: 'a=1' is a text; give a list of them, \['a=1'\]$"):
        Engine.from_pipeline("vanilla", target=str(tmp_path), overrides="a=1")
    given: Any
    for given, said in (
        ({"a": 1}, r"^overrides: \{'a': 1\} is no list of texts; give \['a=1'\]$"),
        (["prompt=a", 1], "^overrides: 1 is no text such as 'drafter.width=4'$"),
    ):
        with pytest.raises(UserError, match=said):
            Engine.from_pipeline("vanilla", target=str(tmp_path), overrides=given)
    engine = Engine.from_pipeline("vanilla", target=str(tmp_path))
    assert repr(engine).startswith("<Engine vanilla, ") and repr(engine).endswith("float32, cpu, exact>")
    with pytest.raises(UserError, match="^overrides: 'a=1' is a text"):
        engine.with_pipeline("suffix", overrides="a=1")
