"""Needles in a text: where they stand, how long it gets, what is refused."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.needles import Haystack, Question, build_haystack
from spec_sdk.needles.drawing import FIRST, LAST, PHRASES, draw_needles
from spec_sdk.needles.filler import filler_sentences
from spec_sdk.needles.haystack import split_sentences

LONGEST_SENTENCE = 80
"""Tokens of the tiny tokenizer; measured below."""


@pytest.fixture(params=["chat", "plain"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(f"{request.param}_tokenizer")
    return found


def prompt_text(tokenizer: Tokenizer, question: Question) -> str:
    return tokenizer.decode(question.prompt, skip_special_tokens=False)


def spans(haystack: Haystack) -> list[tuple[int, int]]:
    """Where the needles' sentences begin and end in the text, in order. Fails unless each is there once."""
    found = []
    for question in haystack.questions:
        sentence = question.needle.sentence
        assert haystack.text.count(sentence) == 1
        begin = haystack.text.index(sentence)
        found.append((begin, begin + len(sentence)))
    return sorted(found)


@pytest.mark.parametrize("context", [900, 1500, 3000])
def test_every_prompt_has_all_needles_and_at_most_the_asked_length(tokenizer: Tokenizer, context: int) -> None:
    haystack = build_haystack(tokenizer, context, seed=context)
    kinds = [question.needle.kind for question in haystack.questions]
    assert kinds == ["hash"] * 7 + ["fact"] * 3
    longest = max(len(tokenizer.encode(s)) for s in islice(filler_sentences(random.Random(5)), 500))
    assert longest < LONGEST_SENTENCE
    assert context - LONGEST_SENTENCE < haystack.tokens <= context
    for question in haystack.questions:
        assert len(question.prompt) <= context
        text = prompt_text(tokenizer, question)
        assert text.count(question.needle.question) == 1
        for other in haystack.questions:
            assert text.count(other.needle.sentence) == 1
            assert text.count(other.needle.answer) == 1


def test_needles_stand_between_whole_sentences_and_apart(tokenizer: Tokenizer) -> None:
    haystack = build_haystack(tokenizer, 2500, seed=3)
    places = spans(haystack)
    for (_, end), (begin, _) in zip(places, places[1:], strict=False):
        # a sentence of the text between any two
        assert begin - end > 20
    text = haystack.text
    for begin, end in places:
        assert begin == 0 or re.search(r"[.”]\s+$", text[:begin])
        assert end == len(text) or text[end].isspace()
    gaps = zip([0, *(end + 1 for _, end in places)], [*(begin for begin, _ in places), None], strict=True)
    rest = "".join(text[begin:end] for begin, end in gaps)
    made_up = "".join(islice(filler_sentences(random.Random("text 3")), 500))
    assert len(rest) > 1000 and made_up.startswith(rest.rstrip())


def test_a_needles_place_is_where_its_tokens_begin(tokenizer: Tokenizer) -> None:
    haystack = build_haystack(tokenizer, 1500, seed=1)
    begins = {begin for begin, _ in spans(haystack)}
    assert len(begins) == 10
    for question in haystack.questions:
        rest = tokenizer.decode(question.prompt[question.place :]).lstrip(" \n")
        assert rest.startswith(question.needle.sentence)
        assert 0 <= question.share < 1
    shares = sorted(question.share for question in haystack.questions)
    assert shares[0] < 0.3 and shares[-1] > 0.7


def test_the_right_answer_is_the_needles_own_words(tokenizer: Tokenizer) -> None:
    for question in build_haystack(tokenizer, 1000, facts=8, hashes=2).questions:
        needle = question.needle
        lead, answer = tokenizer.decode(question.lead), tokenizer.decode(question.answer)
        assert answer.strip() == needle.answer
        assert needle.sentence.startswith((lead + answer).strip())
        assert lead.strip() and len(question.answer) >= 1


def test_the_seed_decides_everything(chat_tokenizer: Tokenizer) -> None:
    first, again, other = (build_haystack(chat_tokenizer, 1200, seed=seed) for seed in (4, 4, 5))
    assert first == again
    assert first.text[:200] != other.text[:200]
    answers = [{question.needle.answer for question in haystack.questions} for haystack in (first, other)]
    assert len(answers[0]) == 10 and not answers[0] & answers[1]
    assert [q.place for q in first.questions] != [q.place for q in other.questions]
    longer = build_haystack(chat_tokenizer, 2400, seed=4)
    assert [q.needle for q in longer.questions] == [q.needle for q in first.questions]
    assert longer.tokens > 2300


def test_the_least_context_is_told_and_is_enough(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"task.context: 100 is too short for 10 needles; the least is \d+") as refused:
        build_haystack(tokenizer, 100)
    least = int(str(refused.value).split()[-1])
    haystack = build_haystack(tokenizer, least)
    assert haystack.tokens == least
    assert len(spans(haystack)) == 10
    with pytest.raises(UserError, match=f"the least is {least}"):
        build_haystack(tokenizer, least - 1)


def test_a_text_of_the_users_is_taken_from_its_beginning(tokenizer: Tokenizer) -> None:
    text = "".join(f"Line {i} of a poem,\nwhich ends (here!) " for i in range(400))
    haystack = build_haystack(tokenizer, 1500, seed=2, text=text)
    assert 1400 < haystack.tokens <= 1500
    rest = haystack.text
    for question in haystack.questions:
        rest = rest.replace(question.needle.sentence + " ", "").replace(question.needle.sentence, "")
    assert text.startswith(rest.strip())
    with pytest.raises(
        UserError, match=r"task.context: 1500 is more than the text gives: .* use task.context=(\d+) or"
    ) as e:
        build_haystack(tokenizer, 1500, seed=2, text=text[:1000])
    given = int(re.findall(r"task.context=(\d+)", str(e.value))[0])
    assert build_haystack(tokenizer, given, seed=2, text=text[:1000]).tokens == given


def test_a_fact_that_the_text_has_is_not_asked_for(chat_tokenizer: Tokenizer) -> None:
    known = [phrase for blank in ("dish", "name") for phrase in PHRASES[blank]]
    text = " ".join(f"Somebody said: {phrase.upper()}!" for phrase in known) + " It was late." * 300
    for seed in range(5):
        haystack = build_haystack(chat_tokenizer, 1000, hashes=0, facts=6, seed=seed, text=text)
        assert not {question.needle.answer for question in haystack.questions} & set(known)
    every_town = " ".join(f"They went to {a}{b}." for a in FIRST for b in LAST)
    with pytest.raises(UserError, match="use task.facts=0"):
        build_haystack(chat_tokenizer, 3000, text=every_town)


def test_more_facts_than_can_be_made_up_are_refused_with_how_many_can() -> None:
    with pytest.raises(UserError, match=r"task.facts: 500 facts cannot be made up .*; use task.facts=\d+") as refused:
        draw_needles(random.Random(1), 2, 500, "")
    most = int(str(refused.value).split("=")[-1])
    assert 0 < most <= len(FIRST) * len(LAST)
    assert len(draw_needles(random.Random(1), 2, most, "")) == 2 + most


def test_needles_are_those_of_the_whole_text_whatever_the_context(tokenizer: Tokenizer) -> None:
    # what gives the answers away stands at the end, out of sight of a short context
    known = " ".join(f"Somebody said: {phrase}!" for blank in PHRASES for phrase in PHRASES[blank][1:])
    text = "It was late. " * 2000 + known
    for seed in range(3):
        short, long = (build_haystack(tokenizer, context, seed=seed, text=text) for context in (700, 2100))
        assert [q.needle for q in short.questions] == [q.needle for q in long.questions]
        assert not any(q.needle.answer in known for q in short.questions)


def test_made_up_text_repeats_no_sentence_and_has_no_digit() -> None:
    sentences = list(islice(filler_sentences(random.Random(1)), 3000))
    assert len({sentence.strip() for sentence in sentences}) == 3000
    assert not re.search(r"\d|[{}]| [Aa] [aeiou]", "".join(sentences))
    assert all(len(sentence.split()) > 6 for sentence in sentences)
    paragraphs = "".join(sentences).strip().split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 3000 / 7


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! (Three?) Four", ["One. ", "Two! ", "(Three?) ", "Four"]),
        ("A title\n\nA line\nand more.\n", ["A title\n\n", "A line\nand more."]),
        ("第一。第二！", ["第一。", "第二！"]),
        ("3.14 and e.g.this stay whole.", ["3.14 and e.g.this stay whole."]),
        ("word " * 100, ["word " * 80, "word " * 19 + "word"]),
        ("x" * 500, ["x" * 500]),
        ("x" * 500 + " word" * 100, ["x" * 500 + " ", "word " * 80, "word " * 19 + "word"]),
    ],
)
def test_sentences_of_a_text(text: str, sentences: list[str]) -> None:
    assert list(split_sentences(text)) == sentences
