"""Constrained answers of every pipeline: those of constrained plain decoding, and always of the grammar."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from benchmarks.support.schemas import varied_schemas
from spec_sdk import Engine, UserError
from spec_sdk.contracts import Matcher
from spec_sdk.errors import ConstraintLimit
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from tests.pipelines.test_tiny_pipelines import ALWAYS_DRAFTS, RELAXED, RETRIEVAL
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint
from tests.support.tiny_blocks import BlockSizes, write_dflash
from tests.support.tiny_heads import HeadSizes, write_eagle3, write_head
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_mtp import mtp_tensors
from tests.support.tiny_peagle import write_peagle

Scale = Callable[[int, int], int]
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "parts": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
        "größe": {"type": "integer", "minimum": 0, "maximum": 300},
    },
    "required": ["colour", "parts", "größe"],
    "additionalProperties": False,
}
NODE = {"name": "json_schema", "schema": SCHEMA, "whitespace": "single"}
VERIFIERS = ("multi_step", "naive_tree", "typical", "chain_rejection", "block_verification")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    write_text_checkpoint(directory, num_hidden_layers=9)
    return directory


def pipeline(name: str, checkpoint: Path, *overrides: str) -> Pipeline:
    drafts = ALWAYS_DRAFTS if name in (*RETRIEVAL, "mixed_eagle") else ()
    chosen = [*drafts, *(("predictor.size=2",) if name in RELAXED else ())]
    settings = settings_of(f"pipeline={name}", f"model.target={checkpoint}", *chosen, *overrides)
    return build_pipeline(settings, Registry.discover(), slots=8)


def matcher(of: Pipeline, node: Mapping[str, Any] = NODE) -> Matcher:
    made = of.constraints.of(node)
    assert made is not None
    return made


def held_to(schema: Any, text: str) -> None:
    # of times jsonschema knows another format than RFC 3339's
    checker = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


def some(names: Sequence[str], always: Sequence[str]) -> list[Any]:
    """All of them, of which only these are tried in the first tier."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.full) for name in names]


PIPELINES = {path.stem for path in (Path(__file__).parents[2] / "conf" / "pipeline").glob("*.yaml")}
EVERY = sorted(PIPELINES - {"assistant_chain"})
"""An assistant is of one family's targets (tests/assistant)."""
FIRST_TIER = ("vanilla", "sd_chain", "prompt_lookup", "layer_skip_tree", "mixed", "mixed_eagle", "alspec_easyspec_tree")
SIZES = HeadSizes(V=VOCABULARY, W=VOCABULARY)
HEADS: dict[str, Callable[[Path], object]] = {
    "eagle_tree": lambda at: write_eagle3(at, SIZES),
    "mixed_eagle": lambda at: write_eagle3(at, SIZES),
    "medusa_tree": lambda at: write_medusa(at, SIZES),
    "hydra_tree": lambda at: write_hydra(at, SIZES),
    "peagle_tree": lambda at: write_peagle(at, SIZES),
    "block_tree": lambda at: write_dflash(at, BlockSizes(V=VOCABULARY, W=VOCABULARY)),
    "mtp_chain": lambda at: write_head(at, SIZES.config(num_hidden_layers=9), mtp_tensors("mimo", SIZES)),
}
IN_FEW_BITS = ("model.weights=int8", "model.kv_cache=int8")


@pytest.mark.parametrize("bits", [(), pytest.param(IN_FEW_BITS, marks=pytest.mark.full)], ids=["float32", "int8"])
@pytest.mark.parametrize("name", some(EVERY, FIRST_TIER))
def test_greedy_tokens_are_those_of_constrained_plain_decoding(
    name: str, bits: Sequence[str], checkpoint: Path, tmp_path: Path
) -> None:
    vanilla = pipeline("vanilla", checkpoint, "forced_tokens=false", *bits)
    options = ["attention_verifier.threshold=0"] if name in RELAXED else []
    if name in HEADS:
        HEADS[name](tmp_path)
        options.append(f"drafter.{'model.' if name == 'mixed_eagle' else ''}checkpoint={tmp_path}")
    # a random head drafts nothing that is worth its price
    options += ["policy=fixed"] * (name == "eagle_tree")
    speculating, events = pipeline(name, checkpoint, *options, *bits), list[dict[str, Any]]()
    prompt = vanilla.tokenizer.encode("Describe a thing: ")
    expected = tokens_of(vanilla, prompt, 90, constraint=matcher(vanilla))
    assert tokens_of(speculating, prompt, 90, constraint=matcher(speculating), emit=events.append) == expected
    assert expected[-1] in vanilla.tokenizer.stop_ids
    held_to(SCHEMA, vanilla.tokenizer.decode(expected))
    cycles = [event for event in events if event["event"] == "cycle"]
    told = [cycle["constraint"] for cycle in cycles]
    assert len(cycles) < len(expected) - 20 and sum(cycle["taken"] for cycle in told) > 10
    # a random head drafts like one that was trained
    assert sum(cycle["drafted"] for cycle in cycles) > 0 or name in ("vanilla", "alspec")


@pytest.mark.parametrize("sampler", ["reference", "exact", "sigmoid"])
@pytest.mark.parametrize("verifier", some(VERIFIERS, ("multi_step", "typical", "block_verification")))
def test_sampled_answers_are_of_the_schema(verifier: str, sampler: str, checkpoint: Path) -> None:
    chain = verifier in ("chain_rejection", "block_verification")
    name = "sd_chain" if chain or verifier == "typical" else "specinfer_tree"
    options = (f"verifier={verifier}", f"sampler={sampler}", "sampling.temperature=1")
    try:
        sampling = pipeline(name, checkpoint, *options)
    except UserError as error:
        pytest.fail(str(error)) if sampler != "sigmoid" else None
        return
    prompt = sampling.tokenizer.encode("Describe a thing: ")
    for seed in range(3):
        tokens = tokens_of(sampling, prompt, 200, constraint=matcher(sampling), request_id=seed)
        assert tokens[-1] in sampling.tokenizer.stop_ids
        held_to(SCHEMA, sampling.tokenizer.decode(tokens))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return Engine(pipeline("mixed", checkpoint), settings_of(f"model.target={checkpoint}", "pipeline=mixed"))


def test_schemas_of_all_kinds(engine: Engine, scale: Scale) -> None:
    """Whatever is finished is valid; of a random model at temperature 1, at most a few are not finished."""
    schemas, unfinished = varied_schemas(scale(12, 200)), 0
    for i, schema in enumerate(schemas):
        node = {"name": "json_schema", "schema": schema, "whitespace": ("single", "none", "any")[i % 3]}
        [answer] = engine.generate("Answer: ", max_new_tokens=400, temperature=1.0, seed=i, constraint=node)
        if answer.finish_reason == "stop":
            held_to(schema, answer.text)
        unfinished += answer.finish_reason == "length"
    assert unfinished <= len(schemas) // 10


def test_a_batch_of_different_constraints(engine: Engine) -> None:
    """Requests beside one another, each with its own constraint or none: each answer is what it is alone."""
    nodes: list[Any] = [
        NODE,
        {"name": "choice", "choices": ["yes", "no", 'quote " and \\ and ü']},
        None,
        {"name": "regex", "pattern": r"[a-f]{3}-\d{2}"},
        {"name": "grammar", "text": 'start: "<" NAME ">" \n NAME: /[a-z]{1,6}/'},
        {"name": "tokens", "allowed": [40, 41, 42], "begin": [41]},
    ]
    options: Any = {"max_new_tokens": 60, "temperature": 1.0, "seed": 5}
    from spec_sdk import Request

    together = engine.generate([Request("Say: ", constraint=node, **options) for node in nodes])
    for node, answer in zip(nodes, together, strict=True):
        [alone] = engine.generate("Say: ", constraint=node, **options)
        assert alone.tokens == answer.tokens
        assert ("constraint" in answer.metrics) == (node is not None)
    texts = [answer.text for answer in together]
    held_to(SCHEMA, texts[0])
    assert texts[1] in ("yes", "no", 'quote " and \\ and ü')
    assert len(texts[3]) == 6 and texts[3][3] == "-"
    assert texts[4].startswith("<") and texts[4].endswith(">")
    assert together[5].tokens[0] == 41 and set(together[5].tokens) <= {40, 41, 42, *engine.tokenizer.stop_ids}


def test_answers_of_one_constraint_beside_one_another(engine: Engine) -> None:
    """They differ in what they draw, and none follows another's tokens."""
    from spec_sdk import Request

    pattern = "a[bc]{9}|d[ef]{9}|g[hi]{9}|j[kl]{9}"
    node = {"name": "regex", "pattern": pattern}
    options: Any = {"constraint": node, "max_new_tokens": 40, "temperature": 1.0}
    together = engine.generate([Request("Say: ", seed=seed, **options) for seed in range(6)])
    assert all(answer.error is None and re.fullmatch(pattern, answer.text) for answer in together)
    assert len({answer.text[0] for answer in together}) > 1


def test_bias_and_penalties_stand_beside_a_constraint(engine: Engine) -> None:
    """A token with a bias of 100 is taken where it is allowed, and nowhere else."""
    [token] = engine.tokenizer.encode("n", add_special_tokens=False)
    node = {"name": "regex", "pattern": "(yes|no){2}"}
    [answer] = engine.generate("Say: ", constraint=node, logit_bias={token: 100.0}, max_new_tokens=20)
    assert answer.text == "nono"


def test_an_answer_that_is_cut_or_goes_on(engine: Engine) -> None:
    [cut] = engine.generate("Say: ", constraint=NODE, max_new_tokens=5)
    assert cut.finish_reason == "length" and cut.text.startswith('{"colour"'[: len(cut.text)])
    [on] = engine.generate("Say: ", constraint={"name": "regex", "pattern": "abc"}, max_new_tokens=20, ignore_eos=True)
    assert on.text == "abc" and len(on.tokens) == 20


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"name": "choice", "choices": []}, "constraint.choices: [] must list one answer or more"),
    "no pattern": ({"name": "regex"}, "constraint.pattern: give the regular expression"),
    "bad pattern": ({"name": "regex", "pattern": "(a"}, "constraint.pattern: unclosed group"),
    "look-around": ({"name": "regex", "pattern": "(?=a)b"}, "constraint.pattern: look-around"),
    "too long": ({"name": "regex", "pattern": "a" * 300_000}, "constraint.pattern: it has 300000 characters"),
    "no grammar": ({"name": "grammar"}, "constraint.file: give a file"),
    "bad grammar": ({"name": "grammar", "text": 'start: "a" b'}, "constraint.text: at 1(8): unknown name"),
    "keyword": (
        {"name": "json_schema", "schema": {"type": "object", "properties": {"a": {"uniqueItems": True}}}},
        "constraint.schema.properties.a: the keyword 'uniqueItems' is not supported",
    ),
    "misspelt": (
        {"name": "json_schema", "schema": {"type": "string", "maxLenght": 3}},
        "constraint.schema: unknown keyword 'maxLenght', did you mean 'maxLength'?",
    ),
    "format": ({"name": "json_schema", "schema": {"type": "string", "format": "nope"}}, "Unknown format: nope"),
    "impossible": ({"name": "json_schema", "schema": False}, "constraint.schema: false allows no answer at all"),
    "no text": (
        {"name": "regex", "pattern": r"[^\s\S]"},
        "constraint: the regular expression allows no answer at all",
    ),
    "lenient": (
        {"name": "json_schema", "schema": {"x-guidance": {"lenient": True}}},
        "constraint.schema: x-guidance would change",
    ),
    "no schema": ({"name": "json_schema", "schema": {"items": 3}}, ""),
    "no file": ({"name": "json_schema", "schema": "/nowhere.json"}, "constraint.schema: /nowhere.json"),
    "unknown": ({"name": "json"}, "constraint: unknown constraint 'json', did you mean 'json_schema'?"),
    "option": ({"name": "regex", "patern": "a"}, "did you mean 'pattern'?"),
    "token": ({"name": "tokens", "banned": ["two words"]}, "name tokens one by one"),
    "id": ({"name": "tokens", "banned": [480]}, "a token id from 0 to 479"),
    "bias": ({"name": "tokens", "bias": {3: 1000.0}}, "must be between -100 and 100"),
    "begin": ({"name": "tokens", "banned": [7], "begin": [7]}, "constraint.begin: token 7 is banned"),
    "begin, the first id": ({"name": "tokens", "banned": [0], "begin": [0]}, "constraint.begin: token 0 is banned"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, engine: Engine) -> None:
    node, told = REFUSED[case]
    with pytest.raises(UserError) as refused:
        engine.generate("Say: ", constraint=node)
    assert told in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UserError, match="is no constraint; give a mapping"):
        engine.generate("Say: ", constraint="yes|no")  # type: ignore[arg-type]


NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "two bounds": ({"type": "integer", "minimum": 10**30, "maximum": 10**30 + 5}, ".minimum: 1"),
    "one bound": (
        {"type": "number", "exclusiveMaximum": -(2**53)},
        ".exclusiveMaximum: -9007199254740992 must be betw",
    ),
    "inside": (
        {"items": {"properties": {"a": {"minimum": 1e19}}}},
        ".items.properties.a.minimum: 1e+19",
    ),
    "decimals": ({"type": "number", "maximum": 1e-100}, ".maximum: 1e-100 has more than 60 decimals"),
    "no number": ({"type": "number", "maximum": "a"}, '.maximum: "a" must be a number'),
    "const": (
        {"const": 12345678901234567890123},
        ".const: 12345678901234567890123 must be between -9007199254740991 and",
    ),
    "const that ended the process": ({"const": -(2**63)}, ".const: -9223372036854775808 must be between"),
    "enum": ({"anyOf": [{"enum": ["a", {"b": [2**60]}]}]}, ".anyOf[0].enum: 1152921504606846976 must be between"),
    "multiple": ({"type": "integer", "multipleOf": 2**31}, ".multipleOf: 2147483648 must be above 0, and 100000000"),
    "digits": ({"type": "integer", "multipleOf": 999983}, ".multipleOf: 999983 has more than 5 significant digits"),
    "small": ({"type": "number", "multipleOf": 1e-12}, ".multipleOf: 1e-12 has more than 8 decimals"),
    "negative": ({"type": "number", "multipleOf": -3}, ".multipleOf: -3 must be above 0"),
    "both": (
        {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        ".allOf[1].multipleOf: it and the others have more",
    ),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_that_no_answer_could_be_held_to(case: str, engine: Engine) -> None:
    schema, told = NUMBERS[case]
    with pytest.raises(UserError) as refused:
        engine.generate("Say: ", constraint={"name": "json_schema", "schema": schema})
    assert f"constraint.schema{told}" in str(refused.value)


@pytest.mark.parametrize("value", [2**53 - 1, -(2**53 - 1), 0.125, 1e-8])
def test_the_largest_numbers_that_answers_are_held_to(value: float, engine: Engine) -> None:
    for schema in (
        {"const": value},
        {"type": "number", "minimum": value, "maximum": value},
        {"enum": [value], "multipleOf": 1e-8},
    ):
        [answer] = engine.generate("Say: ", constraint={"name": "json_schema", "schema": schema}, max_new_tokens=40)
        assert answer.finish_reason == "stop" and json.loads(answer.text) == value, (schema, answer.text)


def test_without_the_library(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"'regex' needs llguidance: pip install 'spec-sdk\[constrained\]'"):
        engine.generate("Say: ", constraint={"name": "regex", "pattern": "never asked for before"})


def test_a_constraint_is_compiled_once(engine: Engine) -> None:
    of = engine.pipeline.constraints.of
    assert of(NODE) is of(dict(NODE)) is not of({**NODE, "whitespace": "none"})
    assert of({"name": "none"}) is of(None) is None


TOO_MANY_RULES = 'start: /[c-h]{30}/ "Q" tail\ntail: ' + " | ".join(f"r{i}" for i in range(3000))
TOO_MANY_RULES += "".join(f'\nr{i}: "a" "b"{{{i % 50 + 1}}}' for i in range(3000))
"""Thirty letters and a Q are an answer's begin; what may come then is more than a parser's row takes."""


def test_a_limit_in_the_middle_of_an_answer(engine: Engine) -> None:
    """It ends that request with a line that names it, and the text so far; those beside it are what they are alone."""
    from spec_sdk import Request

    options: Any = {"max_new_tokens": 40, "temperature": 1.0, "seed": 2}
    limited = {"name": "grammar", "text": TOO_MANY_RULES}
    told = r"constraint: the grammar cannot be followed beyond \d+ tokens: Parser Error: .* max is 2000"
    with pytest.raises(ConstraintLimit, match=told):
        engine.generate("Say: ", constraint=limited, **options)
    nodes: list[Any] = [NODE, limited, None, {"name": "regex", "pattern": "[a-f]{3}-[0-9]{2}"}]
    together = engine.generate([Request("Say: ", constraint=node, **options) for node in nodes])
    for node, answer in zip(nodes, together, strict=True):
        if node is limited:
            assert isinstance(answer.error, ConstraintLimit) and answer.finish_reason == "error"
            # all that was accepted before the parser gave up
            assert re.fullmatch("[c-h]{30}Q", answer.text)
        else:
            assert answer.tokens == engine.generate("Say: ", constraint=node, **options)[0].tokens


def test_a_limit_behind_drafted_tokens_says_nothing_of_others(engine: Engine) -> None:
    compiled = engine.pipeline.constraints.of({"name": "grammar", "text": TOO_MANY_RULES})
    assert compiled is not None
    matcher, fresh = compiled.begin(), compiled.begin()
    path = engine.tokenizer.encode("c" * 30 + "Q")
    for answer in ([], path[:3]):
        with pytest.raises(ConstraintLimit, match=f"cannot be followed beyond {len(path)} tokens"):
            matcher.apply(torch.zeros(1, VOCABULARY), answer, [path[len(answer) :]])
        masks = torch.zeros(2, 2, VOCABULARY)
        for mask_NV, each in zip(masks, (matcher, fresh), strict=True):
            each.apply(mask_NV, answer, [[], path[len(answer) : -4]])
        assert masks[0].isneginf().any() and torch.equal(*masks)


def test_expressions_that_explode_are_bounded(engine: Engine) -> None:
    """They are refused, or end their own request with one line, or are followed: none takes long or takes others
    along.
    """
    for pattern in ("(a*)*b", "((a{1,300}){1,300}){1,300}", "(a|b|ab)*c{1,9999}", "(.*a.*){20}", "(x+x+)+y"):
        try:
            engine.generate("Say: ", constraint={"name": "regex", "pattern": pattern}, max_new_tokens=6, seed=1)
        except UserError as error:
            assert str(error).startswith("constraint")
    assert engine.generate("Say: ", max_new_tokens=2)[0].tokens
