"""Datastores from the command line: building one, drafting with it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk_drafters.datastore_file import END, fingerprint, open_datastore
from tests.support.text_checkpoints import write_text_checkpoint

TEXT = "the cat sat on the mat and the cat sat on the hat\n"


@pytest.fixture(autouse=True)
def model(own_directory: Path) -> None:
    write_text_checkpoint(own_directory / "model")


def tokens_in(path: Path) -> list[list[int]]:
    """The tokens of every text of a datastore, read as any program reads them."""
    tokenizer = open_checkpoint("model").tokenizer
    found: list[list[int]] = [[]]
    for token in open_datastore(path, fingerprint(tokenizer.vocabulary), "").tokens.tolist():
        if token == END:
            found.append([])
        else:
            found[-1].append(token)
    assert found[-1] == []
    return found[:-1]


def test_a_datastore_has_the_texts_in_the_targets_tokens(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "a.txt").write_text(TEXT)
    (own_directory / "b.jsonl").write_text(json.dumps({"text": "a hat"}) + "\n" + json.dumps({"text": "a cat"}))
    command = ["task=build_datastore", "model.target=model", "task.texts=[a.txt,b.jsonl]", "task.output=new/store"]
    done = cli(*command)
    assert done.status == 0 and done.out == "drafter.datastore=new/store\n", done.err
    tokenizer = open_checkpoint("model").tokenizer
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in (TEXT, "a hat", "a cat")]
    assert tokens_in(own_directory / "new" / "store") == expected
    assert f"new/store: 3 texts, {sum(map(len, expected))} tokens of model" in done.err
    # again, over the one that is there
    assert cli(*command[:2], "task.texts=b.jsonl", "task.output=new/store").status == 0
    assert len(tokens_in(own_directory / "new" / "store")) == 2


def test_answers_of_a_run_are_drafted_from_and_the_tokens_stay(cli: Callable[..., Any], own_directory: Path) -> None:
    options = ["model.target=model", "prompt=the cat", "max_new_tokens=24", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *options, "output_dir=plain")
    texts = "task.texts=[plain/metrics.json,plain/metrics.json]"
    assert cli("task=build_datastore", "model.target=model", texts, "task.output=store").status == 0
    fixed = ["policy=fixed", "policy.depth=4", "policy.max_nodes=9", "drafter.min_probability=0.01"]

    def run(name: str, *further: str) -> dict[str, Any]:
        done = cli("pipeline=suffix", *options, *fixed, *further, f"output_dir={name}")
        assert done.status == 0, done.err
        assert done.out == plain.out
        found: dict[str, Any] = json.loads((own_directory / name / "metrics.json").read_text())
        return found

    without, with_it = run("without"), run("with", "drafter.datastore=store")
    (expected,) = json.loads((own_directory / "plain" / "metrics.json").read_text())["prompts"]
    assert with_it["prompts"][0]["token_ids"] == without["prompts"][0]["token_ids"] == expected["token_ids"]
    assert with_it["prompts"][0]["accepted"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["task.output=d"], "task.texts: None must be a file or a list of files, as in task.texts=[answers.jsonl]"),
        (["task.texts=a.txt"], "task.output: is not given; task=build_datastore task.texts=FILE task.output=FILE"),
        (["task.texts=a.txt", "task.output=model"], "task.output: model is a directory; name a file in it"),
        (["task.texts=a.txt", "task.output=a.txt"], "task.output: a.txt is there already and is no datastore"),
        (["task.texts=a.txt", "task.output=model/config.json"], "task.output: model/config.json is there already"),
        (["task.texts=a.txt", "task.output=/dev/null"], "task.output: /dev/null is there already and is no datastore"),
        (["task.texts=[]", "task.output=d"], "task.texts: [] must be a file or a list of files"),
        (["task.texts=b.txt", "task.output=d"], "task.texts: b.txt cannot be read: No such file or directory"),
        (["task.texts=empty.txt", "task.output=d"], "task.texts: there is no text in empty.txt"),
        (["task.texts=a.txt", "task.output=a.txt/d"], "a.txt/d: cannot be written: "),
    ],
)
def test_what_cannot_be_built_is_refused(
    cli: Callable[..., Any], own_directory: Path, options: list[str], said: str
) -> None:
    (own_directory / "a.txt").write_text(TEXT)
    (own_directory / "empty.txt").write_text("")
    refused = cli("task=build_datastore", "model.target=model", *options)
    assert refused.status == 2 and refused.error.startswith(said)
    assert sorted(entry.name for entry in own_directory.iterdir()) == ["a.txt", "empty.txt", "model"]
    assert (own_directory / "a.txt").read_text() == TEXT


def test_a_datastore_that_cannot_be_used_is_refused(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "a.txt").write_text(TEXT)
    run = ["pipeline=suffix", "model.target=model", "prompt=the cat", "max_new_tokens=4"]
    missing = cli(*run, "drafter.datastore=store")
    assert missing.status == 2
    assert missing.error == "drafter.datastore: store does not exist; task=build_datastore makes one"
    assert cli("task=build_datastore", "model.target=model", "task.texts=a.txt", "task.output=store").status == 0
    tokenizer = json.loads((own_directory / "model" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (own_directory / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused = cli(*run, "drafter.datastore=store")
    assert refused.status == 2
    assert refused.error.startswith("drafter.datastore: store has tokens of another tokenizer, that of model; make one")
