"""``task=needle``: does a pipeline still find what stands somewhere in a long text? (ALSpec, App. G)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.events import finite
from spec_sdk.files import write_json
from spec_sdk.held_signals import sigterm_held_back
from spec_sdk.prompts import STDIN, read_prompt_texts
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable, write_config
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.tables import number, percent, print_facts, print_table
from spec_sdk.what_ran import facts_of, plugins_of

if TYPE_CHECKING:
    from spec_sdk.needles import Answer, Haystack, NeedleScore
    from spec_sdk.pipeline import Pipeline

SCHEMA_VERSION = 1
RESULT = "needle.json"


@dataclass
class NeedleConfig:
    """Options of ``task=needle``."""

    context: int = option(1024, "most tokens of a prompt, chat template included; the answer comes on top", minimum=1)
    hashes: int = option(7, "MD5 hashes hidden in the text", minimum=0)
    facts: int = option(3, "made-up facts hidden in it", minimum=0)
    seed: int = option(0, "of needles, places and made-up text; the next text has the next seed", minimum=0)
    texts: int = option(1, "how many texts, each with needles and places of its own", minimum=1)
    text: str | None = option(
        None, "the file to hide them in, text or .jsonl (its prompts)", means={None: "made-up sentences"}
    )
    max_new_tokens: int = option(48, "per answer", minimum=1)

    def __post_init__(self) -> None:
        if self.hashes + self.facts == 0:
            raise UserError("task.hashes: with task.facts=0 there is nothing to ask for; use 1 or more")


class FindNeedles(Task):
    """Hides hashes and facts in a long text and asks for them: how many a pipeline finds, how likely it holds them."""

    name = "needle"
    Config = NeedleConfig
    config: NeedleConfig
    without = ("constraint",)

    def run(self, app: Settings) -> int:
        """Every answer and a table go to stderr, ``needle.json`` and the config into the run's directory; returns 0.

        ``compare=true`` asks plain decoding too, text by text. Raises UserError for bad input, before anything is
        asked. An interrupt, or any other exception in the middle, keeps the texts that all were asked about, and is
        raised again.
        """
        text = self._check(app)
        check_writable(app.output_dir)

        from spec_sdk.needles import build_haystack, check_fit, check_room
        from spec_sdk.pipeline import build_pipeline

        config = self.config
        pipeline = build_pipeline(app, Registry.discover())
        check_room(pipeline, str(config.context), config.context, config.max_new_tokens)
        haystacks = [
            build_haystack(
                pipeline.tokenizer,
                config.context,
                hashes=config.hashes,
                facts=config.facts,
                seed=config.seed + i,
                text=text,
                chat=app.chat,
            )
            for i in range(config.texts)
        ]
        for haystack in haystacks:
            check_fit(pipeline, haystack, config.max_new_tokens)
        asked = asked_pipelines(pipeline, app.compare)
        scores: list[list[NeedleScore]] = [[] for _ in asked]
        try:
            self._ask(asked, haystacks, scores)
        finally:
            if whole := len(scores[-1]):
                with sigterm_held_back():
                    self._keep(app, asked, haystacks, [own[:whole] for own in scores])
        return 0

    def _check(self, app: Settings) -> str | None:
        """The text to hide needles in, if one is given. Raises UserError for a run that cannot ask its own."""
        config = self.config
        if app.prompt is not None or app.prompt_file is not None:
            given = "prompt" if app.prompt is not None else "prompt_file"
            raise UserError(
                f"{given}: task=needle asks its own questions; the text to hide needles in is task.text=FILE"
            )
        if app.sampling.temperature:
            raise UserError(f"sampling.temperature: {app.sampling.temperature} must be 0: task=needle answers greedily")
        if config.text is None:
            return None
        if config.text == STDIN:
            raise UserError("task.text: - is not read; give a file")
        text = "\n\n".join(read_prompt_texts(config.text, "task.text"))
        if not text.strip():
            raise UserError(f"task.text: {config.text} is empty")
        return text

    def _ask(
        self, pipelines: Sequence[Pipeline], haystacks: Sequence[Haystack], scores: Sequence[list[NeedleScore]]
    ) -> None:
        """Add each pipeline's scores to its own."""
        from spec_sdk.needles import measure

        for i, haystack in enumerate(haystacks):
            for pipeline, own in zip(pipelines, scores, strict=True):
                say(f"{pipeline.name}, text {i + 1} of {len(haystacks)}: {haystack.tokens} tokens")
                own.append(measure(pipeline, haystack, max_new_tokens=self.config.max_new_tokens, tell=tell))

    def _keep(
        self,
        app: Settings,
        asked: Sequence[Pipeline],
        haystacks: Sequence[Haystack],
        scores: Sequence[Sequence[NeedleScore]],
    ) -> None:
        """Show and write what there is of the first texts."""
        whole = len(scores[0])
        print_facts(facts_of(app, plugins_of(app, Registry.discover())))
        if whole < len(haystacks):
            say(f"{whole} of {counted(len(haystacks), 'text')}")
        show(asked, [total(parts) for parts in scores])
        app.output_dir.mkdir(parents=True, exist_ok=True)
        write_json(app.output_dir / RESULT, self._result(app, asked[0], haystacks[:whole], scores))
        write_config(app.output_dir, app.kept)
        say(f"results in {app.output_dir}")

    def _result(
        self,
        app: Settings,
        pipeline: Pipeline,
        haystacks: Sequence[Haystack],
        scores: Sequence[Sequence[NeedleScore]],
    ) -> dict[str, Any]:
        result = {
            "schema_version": SCHEMA_VERSION,
            "pipeline": pipeline.name,
            "overridden": app.pipeline.overridden,
            "plugins": plugins_of(app, Registry.discover()),
            "guarantee": pipeline.guarantee,
            "target": pipeline.target_name,
            "backend": pipeline.backend.name,
            "dtype": pipeline.dtype,
            "machine": pipeline.backend.describe(),
            "task": asdict(self.config),
            **recorded(haystacks, scores[0]),
        }
        if len(scores) > 1:
            result["comparison"] = {"vanilla": recorded(haystacks, scores[1])}
        return result


def asked_pipelines(pipeline: Pipeline, compare: bool) -> list[Pipeline]:
    """The pipeline, and plain decoding beside it if that is another and it is asked for."""
    baseline = pipeline.vanilla()
    return [pipeline, baseline] if compare and pipeline.name != baseline.name else [pipeline]


def total(scores: Sequence[NeedleScore]) -> NeedleScore:
    """All texts' answers as one score."""
    return sum(scores[1:], scores[0])


def recorded(haystacks: Sequence[Haystack], scores: Sequence[NeedleScore]) -> dict[str, Any]:
    """The summary over all texts, and every answer of each."""
    return {
        "summary": finite(total(scores).as_json()),
        "texts": [
            {
                "seed": haystack.seed,
                "prompt_tokens": haystack.tokens,
                "answers": [finite(answer.as_json()) for answer in score.answers],
            }
            for haystack, score in zip(haystacks, scores, strict=True)
        ],
    }


def show(pipelines: Sequence[Pipeline], scores: Sequence[NeedleScore]) -> None:
    """The closing table: a column per pipeline."""
    hashes, facts = [score.of("hash") for score in scores], [score.of("fact") for score in scores]
    rows: list[tuple[str, list[str]]] = []
    for name, parts in (("hashes", hashes), ("facts", facts)):
        if not parts[0].asked:
            continue
        rows.append((f"{name} found", [f"{part.found}/{part.asked}" for part in parts]))
        rows.append((f"NLL of {name}, nats per token", [number(part.nll_per_token, 3) for part in parts]))
        rows.append((f"NLL of {name}, nats each", [number(part.nll, 2) for part in parts]))
    if any(score.scoring.predicted for score in scores):
        rows.append(("attention hit rate, own answers", [percent(score.answering.rate) for score in scores]))
        rows.append(("attention hit rate, right answers", [percent(score.scoring.rate) for score in scores]))
    rows.append(("guarantee", [pipeline.guarantee for pipeline in pipelines]))
    names = [pipeline.name for pipeline in pipelines]
    print_table("", ["", *names], [[label, *cells] for label, cells in rows])


def tell(answer: Answer) -> None:
    """One line about one answer."""
    needle, place = answer.question.needle, f"{100 * answer.question.share:.0f} %"
    found = "found" if answer.found else "not found"
    told = " ".join(answer.text.split())
    say(f"  {needle.question} at {place}, {found}, NLL {answer.nll_per_token:.3f} per token: {told[:80]}")
