"""Datastores: the suffix array, look-ups against plain counting, files and their refusal, and what is drafted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec_sdk.contracts import Budget
from spec_sdk.errors import UserError
from spec_sdk.model.models import Model
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, check_tree
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.datastore import Datastore, Run
from spec_sdk_drafters.datastore_file import END, SORTED_BY, fingerprint, open_datastore, write_datastore
from spec_sdk_drafters.datastore_source import LONGEST, SHORTEST
from spec_sdk_drafters.datastore_texts import documents
from spec_sdk_drafters.suffix_array import suffix_array
from tests.drafters.test_retrieval import paths, request
from tests.support.tiny_models import TinyModels

VOCABULARY = 24
TOKENIZER = {f"t{n}": n for n in range(VOCABULARY)}


class NamedTokens:
    vocabulary = TOKENIZER


class WithTokenizer(TinyModels):
    """The tiny models, with a tokenizer that has nothing but its vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        tokenizer: Any = NamedTokens()
        self.target = Model("tiny target", self.target.executor, tokenizer)


MODELS = WithTokenizer()


def datastore_file(path: Path, *texts: Sequence[int], tokenizer: dict[str, int] | None = None) -> Path:
    token_N = np.array([token for text in texts for token in (*text, END)], np.uint32)
    write_datastore(path, token_N, VOCABULARY, fingerprint(tokenizer or TOKENIZER), "tiny")
    return path


def datastore_of(path: Path, *texts: Sequence[int]) -> Datastore:
    return Datastore(open_datastore(datastore_file(path, *texts), fingerprint(TOKENIZER), "drafter.datastore"))


def drafter_of(name: str, **options: Any) -> Any:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    return plugin(config, MODELS)


def proposed(drafter: Any, tokens: Sequence[int], budget: Budget) -> set[tuple[int, ...]]:
    asked = request(tokens)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [budget])
    drafter.finish([asked.view])
    check_tree(tree)
    return paths(tree)


def random_texts(seed: int, texts: int, tokens: int, vocabulary: int) -> list[list[int]]:
    """Texts that repeat one another here and there."""
    choose = random.Random(seed)
    found = [[choose.randrange(vocabulary) for _ in range(tokens)] for _ in range(texts)]
    for text in found:
        source, at = choose.choice(found), choose.randrange(tokens // 2)
        text[at : at + tokens // 3] = source[at : at + tokens // 3]
    return found


# the suffix array


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("vocabulary", [1, 2, 9, 1 << 31])
def test_places_are_sorted_by_the_tokens_that_begin_there(vocabulary: int, depth: int) -> None:
    choose = random.Random(depth)
    text = [choose.randrange(vocabulary) for _ in range(300)]
    order = suffix_array(np.array(text, np.uint32), depth).tolist()
    assert sorted(order) == list(range(300))
    keys = [text[place : place + depth] for place in order]
    assert keys == sorted(keys)


@pytest.mark.parametrize("text", [[], [5], [5, 5]])
def test_short_texts_are_sorted_too(text: list[int]) -> None:
    assert suffix_array(np.array(text, np.uint32), 8).tolist() == list(range(len(text)))[::-1]


# look-ups


def followers(texts: Sequence[Sequence[int]], run: Sequence[int]) -> Counter[int]:
    """Counted one by one; END where a text ends."""
    found: Counter[int] = Counter()
    for text in texts:
        for at in range(len(text) - len(run) + 1):
            if list(text[at : at + len(run)]) == list(run):
                found[text[at + len(run)] if at + len(run) < len(text) else END] += 1
    return found


@pytest.mark.parametrize("vocabulary", [2, 6, VOCABULARY])
def test_look_ups_find_what_counting_finds(tmp_path: Path, vocabulary: int) -> None:
    texts = random_texts(1, 6, 90, vocabulary)
    datastore, choose = datastore_of(tmp_path / "d", *texts), random.Random(2)
    known = 0
    for _ in range(300):
        text = choose.choice(texts)
        at, length = choose.randrange(len(text)), choose.randint(1, 12)
        run = text[at : at + length]
        if choose.random() < 0.3:
            run[-1] = choose.randrange(vocabulary)
        expected = followers(texts, run)
        found = datastore.find(run)
        assert (found.occurrences if found else 0) == sum(expected.values())
        if found is None:
            continue
        known += 1
        for rarest in (0.0, 0.05, 0.3):
            continuations = datastore.continuations(found, rarest)
            least = rarest * found.occurrences
            assert dict(continuations) == {token: n for token, n in expected.items() if n >= least}
            assert len(continuations) == len(dict(continuations))
        for token in range(vocabulary):
            after = datastore.after(found, token)
            assert (after.occurrences if after else 0) == expected[token]
            assert after is None or (after == datastore.find([*run, token]) and after.length == len(run) + 1)
    assert known > 100


def test_frequent_followers_are_found_among_many_occurrences(tmp_path: Path) -> None:
    """Shares about the least one that counts, where occurrences are not looked at one by one."""
    choose = random.Random(3)
    after = [*[3] * 260, *[4] * 52, *[5] * 49, *[6] * 51, *(choose.randrange(7, 24) for _ in range(588))]
    choose.shuffle(after)
    texts = [[1, 2, token] for token in after]
    datastore = datastore_of(tmp_path / "d", *texts)
    run = datastore.find([1, 2])
    assert run is not None and run.occurrences == 1000
    expected = {token: n for token, n in Counter(after).items() if n >= 50}
    assert {3, 4, 6} <= set(expected) and 5 not in expected
    assert dict(datastore.continuations(run, 0.05)) == expected


def test_the_longest_run_is_found_and_the_next_that_occurs_more_often(tmp_path: Path) -> None:
    texts = [[9, 1, 2, 3, 4], [8, 2, 3, 5], [7, 2, 3, 5], [3, 6]]
    datastore = datastore_of(tmp_path / "d", *texts)
    longest = datastore.longest([5, 5, 1, 2, 3], 1, 16)
    assert longest is not None and (longest.length, longest.occurrences) == (3, 1)
    further = datastore.longest([5, 5, 1, 2, 3], 1, 2, more_than=1)
    assert further is not None and (further.length, further.occurrences) == (2, 3)
    assert datastore.longest([5, 5, 1, 2, 3], 1, 16, more_than=4) is None
    assert datastore.longest([23], 1, 16) is None and datastore.longest([], 1, 16) is None
    assert datastore.longest([1, 2, 3], 4, 16) is None


def test_runs_end_with_their_text_and_at_the_tokens_that_are_sorted(tmp_path: Path) -> None:
    datastore = datastore_of(tmp_path / "d", [1, 2], [3, 4], list(range(1, 24)) * 3)
    assert datastore.find([2, 3, 5]) is None
    run = datastore.find([1])
    text = list(range(1, 24)) * 3
    for token in text[1:SORTED_BY]:
        assert run is not None
        run = datastore.after(run, token)
    assert run is not None and run.length == SORTED_BY
    assert datastore.after(run, text[SORTED_BY]) is None and datastore.continuations(run, 0.05) == []
    assert datastore.find(text[: SORTED_BY + 1]) is None
    # of a model with more tokens, or none
    assert datastore.find([VOCABULARY]) is None and datastore.find([-1]) is None
    assert LONGEST < SORTED_BY


# the file


def opened(path: Path, tokenizer: dict[str, int] = TOKENIZER) -> str:
    with pytest.raises(UserError) as refused:
        open_datastore(path, fingerprint(tokenizer), "drafter.datastore")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_file_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = datastore_file(tmp_path / "d", [1, 2, 3])
    swapped = {**TOKENIZER, "t1": 2, "t2": 1}
    assert fingerprint(swapped) != fingerprint(TOKENIZER) == fingerprint(dict(reversed(TOKENIZER.items())))
    assert opened(path, swapped) == (
        f"drafter.datastore: {path} has tokens of another tokenizer, that of tiny; make one with task=build_datastore "
        "and this model.target"
    )


def test_what_is_no_datastore_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = datastore_file(tmp_path / "d", [1, 2, 3])
    whole = path.read_bytes()
    assert "does not exist; task=build_datastore makes one" in opened(tmp_path / "nowhere")
    for content in (b"", b"text", whole[:-4], whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert "is no datastore; task=build_datastore makes one" in opened(path)
    save_file({"tokens": torch.zeros(3)}, path)
    assert opened(path) == f"drafter.datastore: {path} is no datastore; task=build_datastore makes one"
    path.write_bytes(whole.replace(b'"version":"1"', b'"version":"7"'))
    assert "has version 7 of the format, not 1" in opened(path)


@pytest.mark.parametrize("starts", [[0, 3, 1, 3], [0, 1, 2, 99], [1, 2, 3, 3], []])
def test_starts_that_lead_elsewhere_are_refused(tmp_path: Path, starts: list[int]) -> None:
    from safetensors.torch import save_file

    tensors = {
        "tokens": torch.tensor([0, 1, 2, END], dtype=torch.uint32),
        "suffixes": torch.tensor([0, 1, 2, 3], dtype=torch.uint32),
        "starts": torch.tensor(starts, dtype=torch.int64),
    }
    metadata = {"format": "spec_sdk.datastore", "version": "1", "tokenizer": fingerprint(TOKENIZER)}
    save_file(tensors, tmp_path / "d", metadata)
    assert "is corrupted" in opened(tmp_path / "d")


def test_a_damaged_index_drafts_tokens_all_the_same(tmp_path: Path) -> None:
    """Nobody reads gigabytes to see whether they are whole: wrong guesses are rejected like any other."""
    path = datastore_file(tmp_path / "d", [1, 2, 3, 1, 2, 4, 1, 2, 5])
    tensors = open_datastore(path, fingerprint(TOKENIZER), "drafter.datastore")
    damaged = memoryview(bytearray(len(tensors.suffixes) * 4)).cast("I")
    for at in range(len(damaged)):
        damaged[at] = 0xFFFFFFFF - at
    datastore = Datastore(type(tensors)(tensors.tokens, damaged, tensors.starts))
    assert datastore.find([1, 2]) is None
    assert [token for token, _ in datastore.continuations(Run(1, 4, 1), 0.05)] == [END]


def test_a_datastore_may_be_read_like_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    assert datastore_file(tmp_path / "d", [1]).stat().st_mode == (tmp_path / "new").stat().st_mode


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        datastore_file(tmp_path / "d", [1, 2])
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


# drafting


@pytest.mark.parametrize("name", ["suffix", "mixed"])
def test_what_followed_in_the_datastore_is_drafted(tmp_path: Path, name: str) -> None:
    path = datastore_file(tmp_path / "d", *[[11, 12, 13, 14, 15, 16]] * 3, [11, 12, 17])
    options = {"successors": 0} if name == "mixed" else {}
    with_it = drafter_of(name, datastore=str(path), min_probability=0.0, **options)
    found = proposed(with_it, [1, 11, 12], Budget(3))
    assert found == {(13,), (13, 14), (13, 14, 15), (17,)}
    assert proposed(drafter_of(name, min_probability=0.0, **options), [1, 11, 12], Budget(3)) == set()
    # one tree, with what the text itself has
    both = proposed(with_it, [11, 12, 18, 19, 11, 12], Budget(2))
    assert {(13,), (13, 14), (17,), (18,), (18, 19)} == both
    # one token is no run that is looked up
    assert SHORTEST == 2 and proposed(with_it, [1, 12], Budget(3)) == set()


def test_the_more_frequent_continuation_has_the_last_node(tmp_path: Path) -> None:
    path = datastore_file(tmp_path / "d", [11, 12, 17], *[[11, 12, 13, 14]] * 9, [12, 20])
    drafter = drafter_of("suffix", datastore=str(path))
    assert proposed(drafter, [11, 12], Budget(1, 2)) == {(13,)}


def test_tokens_that_the_target_has_not_are_not_drafted(tmp_path: Path) -> None:
    tokens = MODELS.target.executor.vocabulary
    path = tmp_path / "d"
    token_N = np.array([11, 12, tokens, END, 11, 12, tokens - 1, END], np.uint32)
    write_datastore(path, token_N, tokens + 8, fingerprint(TOKENIZER), "tiny")
    assert proposed(drafter_of("suffix", datastore=str(path), min_probability=0.0), [11, 12], Budget(1)) == {
        (tokens - 1,)
    }


def test_where_it_knows_nothing_it_does_not_change_what_the_text_says(tmp_path: Path) -> None:
    path = datastore_file(tmp_path / "d", [11, 12, 13, 14])

    def probabilities(**options: Any) -> dict[int, float]:
        drafter, asked = drafter_of("suffix", **options), request([1, 2, 3, 5, 9, 1, 2, 4, 6, 1, 2])
        drafter.start([asked.view])
        guesser = drafter._guessers[0]
        return guesser.at_end()

    assert probabilities(datastore=str(path)) == probabilities() != {}


@pytest.mark.parametrize("right", [True, False])
def test_the_datastore_is_believed_as_often_as_it_was_right(tmp_path: Path, right: bool) -> None:
    path = datastore_file(tmp_path / "d", *[[20, 21, 2]] * 4)
    drafter, asked = drafter_of("suffix", datastore=str(path)), request([1])
    drafter.start([asked.view])
    surest = []
    for n in range(40):
        for token in (30 + n, 20, 21):
            asked.tokens.append(token)
            drafter.observe([asked.view], [[token]])
        surest.append(drafter._guessers[0].at_end()[2])
        asked.tokens.append(2 if right else 100 + n)
        drafter.observe([asked.view], [asked.tokens[-1:]])
    assert surest[-1] > 0.85 if right else surest[-1] < 0.5 * surest[1]


@pytest.mark.parametrize(
    ("name", "draws"),
    # enumerating both guessers and a model takes as long as all of the file's other tests
    [("suffix", 40), pytest.param("mixed", 4, marks=pytest.mark.full)],
)
def test_conformance(tmp_path: Path, name: str, draws: int) -> None:
    """In a vocabulary of six every outcome of a cycle is tried: what it emits has the target's distribution."""
    texts = random_texts(5, 8, 40, 6)
    path = datastore_file(tmp_path / "d", *texts)
    check_drafter(
        lambda: drafter_of(name, datastore=str(path), min_probability=0.0),
        6,
        prompts=[[3], texts[1][:2], texts[2][:20]],
        draws=draws,
        target=TableModel(6, 0),
    )


# the texts


def texts_of(path: Path) -> list[str]:
    return ["".join(document) for document in documents(path, "task.texts")]


def test_texts_of_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert texts_of(tmp_path / "a.txt") == ["one\ntwo\n"]
    chat = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]
    lines = [{"text": "first"}, {"text": ""}, {"messages": [*chat, *chat]}]
    (tmp_path / "b.ndjson").write_text("\n\n".join(map(json.dumps, lines)))
    assert texts_of(tmp_path / "b.ndjson") == ["first", "so\n\nso"]
    (tmp_path / "metrics.json").write_text(json.dumps({"prompts": [{"text": "answer"}, {"text": ""}]}))
    assert texts_of(tmp_path / "metrics.json") == ["answer"]


def test_a_long_text_comes_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(200_000)))
    (document,) = documents(tmp_path / "a.txt", "task.texts")
    pieces = list(document)
    assert len(pieces) > 1 and all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == (tmp_path / "a.txt").read_text()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"text": "x"}\n{"prompt": "y"}', "line 2: has neither a 'text' nor a list of 'messages'"),
        ("a.jsonl", "[", "line 1: not JSON that can be read"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": 3}]}', "line 1: has neither"),
        ("a.jsonl", '{"text": "\\ud800"}', "line 1: no valid Unicode text"),
        ("metrics.json", "{}", "is no metrics.json of a run"),
        ("metrics.json", '{"prompts": [{"text": 3}]}', "is no metrics.json of a run"),
        ("a.txt", b"\xff\xfe", "is no UTF-8 text"),
        ("a.jsonl", b'{"text": "\xff"}', "is no UTF-8 text"),
        ("a.txt", None, "cannot be read: No such file"),
    ],
)
def test_what_holds_no_texts_is_refused(tmp_path: Path, name: str, content: str | bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        texts_of(tmp_path / name)
    assert said in str(refused.value) and str(refused.value).startswith("task.texts: ")


def test_a_tree_of_the_datastore_is_chosen(tmp_path: Path) -> None:
    path = datastore_file(tmp_path / "d", [11, 12, 13])
    asked = request([11, 12])
    drafter = drafter_of("suffix", datastore=str(path))
    drafter.start([asked.view])
    tree: TokenTree = drafter.propose([asked.view], [Budget(2)])[0]
    assert tree.token_N == (12, 13) and tree.draws_N[0][0].kind == "chosen"
