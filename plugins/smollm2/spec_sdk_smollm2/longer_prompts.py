"""Prompts of up to 700 tokens to train drafts on: instructions with some pages' paragraphs, or with texts that the
target wrote itself.

    python -m spec_sdk_smollm2.longer_prompts ANSWERS PAGES OUTPUT.jsonl --seed 1

ANSWERS is a ``task.data`` directory of ``task=train_draft``, PAGES one of Markdown files. Another seed makes others.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import read_text
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.training.sample_shards import read_shard, shard_files
from spec_sdk.training.samples import Sample

TARGET = "smollm2-135m-instruct"
SEED = 7
TRIED = 1600
LEAST, MOST = 60, 700
"""Tokens of a prompt."""
PASSAGE_TOKENS = 120
"""A text of the target's own has more."""
PARAGRAPH_LETTERS = 150
"""A paragraph of a page has more."""
NO_PASSAGES = ("code", "maths", "lists", "rewriting")
QUESTIONS = ("questions", "history", "science", "explanations", "how_to")
BEFORE_QUESTION, BEHIND_QUESTION = "user\n", "assistant"
"""In the target's chat template."""
FROM_PAGES = 0.3
TOGETHER = (1, 2, 2, 3, 3, 4)
"""How many passages stand in a prompt, one of these numbers."""

INSTRUCTIONS: Sequence[Callable[[str, str], str]] = (
    lambda text, question: f"Summarize: {text}",
    lambda text, question: f"Summarize the following article in a few sentences.\n\n{text}",
    lambda text, question: f"{text}\n\nWhat are the main points of this text?",
    lambda text, question: f"{text}\n\nTL;DR:",
    lambda text, question: f"{text}\n{question}",
    lambda text, question: f"Answer the question with the help of these passages.\n\n{text}\n\nQuestion: {question}",
    lambda text, question: f"Read this and answer: {question}\n\n{text}",
    lambda text, question: f"Context: {text}\n\nQuestion: {question}\nAnswer:",
    lambda text, question: f"Rewrite this text for a newspaper:\n\n{text}",
    lambda text, question: f"List the facts in this text:\n\n{text}",
    lambda text, question: f"{text}\n\nWrite a title and a short abstract for this.",
)


def passage(sample: Sample, tokenizer: Tokenizer) -> str | None:
    """What the target wrote, up to the end of its last sentence; None for what is short or no prose."""
    if sample.kind in NO_PASSAGES or len(sample.answer) <= PASSAGE_TOKENS:
        return None
    text = tokenizer.decode([token for token in sample.answer if token not in tokenizer.stop_ids]).strip()
    return re.sub(r"\*\*", "", text[: text.rfind(".") + 1] or text)


def question(sample: Sample, tokenizer: Tokenizer) -> str | None:
    """The first line of what was asked; None for what is no question of some words."""
    text = tokenizer.decode(sample.prompt).split(BEFORE_QUESTION)[-1].split(BEHIND_QUESTION)[0].strip()
    return text.split("\n")[0] if sample.kind in QUESTIONS and 20 < len(text) < 160 else None


def paragraphs(page: str) -> Iterator[str]:
    """Neighbouring paragraphs of a Markdown page, three at a time, without its code, tables and headings."""
    page = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^\s*\|.*$|^#.*$|^    .*$", "", page, flags=re.MULTILINE)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    prose = [re.sub(r"\s+", " ", part).strip() for part in page.split("\n\n")]
    prose = [text for text in prose if len(text) > PARAGRAPH_LETTERS]
    for first in range(0, len(prose), 3):
        yield " ".join(prose[first : first + 3])


def prompts(
    own: Sequence[str], pages: Sequence[str], questions: Sequence[str], tokenizer: Tokenizer, seed: int = SEED
) -> Iterator[str]:
    """Instructions with one to four passages of one kind, those that have LEAST to MOST tokens."""
    chance = random.Random(seed)
    for _ in range(TRIED):
        count = chance.choice(TOGETHER)
        passages = chance.sample(pages if chance.random() < FROM_PAGES else own, count)
        text = chance.choice(INSTRUCTIONS)("\n\n".join(passages), chance.choice(questions))
        if LEAST < len(tokenizer.encode(text)) < MOST:
            yield text


def prompts_of(answers: Path, pages: Path, seed: int = SEED) -> Iterator[str]:
    """:func:`prompts` from what is in these directories. Raises UserError if that is too little, or damaged."""
    tokenizer = open_checkpoint(TARGET).tokenizer
    samples = [sample for path in shard_files(answers) for sample in read_shard(path)]
    own = [text for sample in samples if (text := passage(sample, tokenizer))]
    questions = [text for sample in samples if (text := question(sample, tokenizer))]
    found = [text for path in sorted(pages.glob("*.md")) for text in paragraphs(read_text(path, str(path)))]
    if min(len(own), len(found)) < max(TOGETHER) or not questions:
        raise UserError(
            f"{answers} has {len(own)} texts and {len(questions)} questions, {pages} has {len(found)} texts: too few"
        )
    return prompts(own, found, questions, tokenizer, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("answers", "pages", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    try:
        found = list(prompts_of(options.answers, options.pages, options.seed))
        options.output.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in found), "utf-8")
    except (UserError, OSError) as error:
        parser.error(message_of(error))
    print(f"{options.output}: {len(found)} prompts")


if __name__ == "__main__":
    main()
