"""A pipeline as the LM Evaluation Harness asks its models: for answers, and for likelihoods of given texts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from spec_sdk.api.engine import MAX_NUM_SEQS, Engine
from spec_sdk.api.request import Request
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.evaluation.generation import LONGEST_ANSWER, Fitted, GenerationOptions
from spec_sdk.evaluation.scoring import Score, Scorer
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import checked_sampling


class EngineModel(TemplateLM):  # type: ignore[misc]
    """What an :class:`spec_sdk.Engine` answers and scores.

    ``sampling``: ``task`` answers as the task says, ``pipeline`` by these parameters; either seeds every request by its
    number. ``own_scores``: likelihoods are the target's own also where the pipeline's are relaxed.
    """

    def __init__(
        self,
        engine: Engine,
        seed: int = 0,
        sampling: SamplingParams | None = None,
        own_scores: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__()
        if engine.pipeline.encoder is not None:
            raise UserError("model.target: an encoder–decoder model transcribes; benchmarks of text need a decoder")
        self.engine = engine
        self.scorer = Scorer(engine.pipeline, own_scores)
        self.scores: list[Score] = []
        self.sampled_by: set[SamplingParams] = set()
        """Of all answers, seeds left out."""
        self.prompts_cut = 0
        """Prompts that lost their beginning, and contexts of likelihoods that did."""
        self.answers_shortened = 0
        """Answers whose longest length was cut down to what their prompts leave of the context."""
        self._seed, self._sampling, self._silent = seed, sampling, silent
        self._asked = 0
        self._config = engine.pipeline.models.target.executor.config

    @property
    def max_length(self) -> int:
        """Most tokens, prompt and answer together."""
        return self.engine.context

    @property
    def max_gen_toks(self) -> int:
        return LONGEST_ANSWER

    @property
    def eot_token_id(self) -> int:
        ends = self._config.eos_token_ids or sorted(self.engine.tokenizer.stop_ids)
        if not ends:
            raise UserError(
                "model.target: its files name no end token, which stands for an empty prompt and before texts that are "
                "scored whole"
            )
        return int(ends[0])

    @property
    def prefix_token_id(self) -> int:
        """What a text that is scored whole begins after."""
        return self.eot_token_id if self._config.bos_token_id is None else int(self._config.bos_token_id)

    @property
    def tokenizer_name(self) -> str:
        return self.engine.pipeline.target_name

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The harness keeps it beside its results; which one it is, the model's name says."""
        return f"chat template of {self.engine.pipeline.target_name}" if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise UserError("chat: this task begins the assistant's answer itself, which needs chat=false")
        return self.engine.tokenizer.render(chat_history)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        tokenizer = self.engine.tokenizer
        if add_special_tokens is None:
            # BOS once, whether or not a template wrote it already
            return tokenizer.encode_rendered(string)
        return tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        found = []
        for texts, context, continuation in self._shown(requests, "scoring", disable_tqdm):
            self._check_text(continuation)
            # the last token of a continuation is scored, and not fed
            room = self.max_length + 1 - len(continuation)
            self.prompts_cut += len(context) > room
            score = self.scorer.score(context[-room:] or [self.prefix_token_id], continuation)
            self.scores.append(score)
            found.append((score.log_probability, score.greedy))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, found[-1])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of the context, each token scored once."""
        found = []
        for (text,) in self._shown([request.args for request in requests], "scoring texts", disable_tqdm):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            found.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(parts, disable_tqdm=True)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, several at once, up to the first of a task's stop texts."""
        asked = [self._request(request.args, self._asked + i) for i, request in enumerate(requests)]
        self._asked += len(asked)
        for request, fitted in asked:
            self.sampled_by.add(replace(request.options["sampling"], seed=0))
            self.prompts_cut += fitted.prompt_cut
            self.answers_shortened += fitted.answer_shortened
        bar, texts = tqdm(total=len(asked), desc="answering", disable=disable_tqdm or self._silent or None), list[str]()
        # a few rounds at a time, so that there is something to see
        step = 4 * self.engine.pipeline.slots
        with bar:
            for first in range(0, len(asked), step):
                for answer in self.engine.generate([request for request, _ in asked[first : first + step]]):
                    if answer.error is not None:
                        raise answer.error
                    self.cache_hook.add_partial("generate_until", requests[len(texts)].args, answer.text)
                    texts.append(answer.text)
                    bar.update()
        return texts

    def check(self, request: Any) -> None:
        """Raise UserError for a request of the harness that cannot be answered or scored."""
        if request.request_type == "generate_until":
            self.engine.check(self._request(request.args, self._asked)[0])
        elif request.request_type == "loglikelihood":
            context, continuation = request.args
            if not context:
                tokens = self.tok_encode(continuation, add_special_tokens=False)
                tokens = tokens[1:] if tokens[:1] == [self.prefix_token_id] else tokens
            else:
                tokens = self._encode_pair(context, continuation)[1]
            self._check_text(tokens)
        else:
            # a whole text goes in windows, the first after this one
            _ = self.prefix_token_id

    def _check_text(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise UserError("a text that has no token is to be scored")
        if len(tokens) > self.max_length:
            raise UserError(
                f"model.context: a text of {len(tokens)} tokens is to be scored, and the context has {self.max_length}"
            )

    def _request(self, asked: tuple[str, Mapping[str, Any]], number: int) -> tuple[Request, Fitted]:
        context, said = asked
        options = GenerationOptions.of(said)
        fitted = Fitted.of(self.tok_encode(context) or [self.prefix_token_id], options.limit, self.max_length)
        sampling = self._sampling or checked_sampling({**vars(SamplingParams()), **options.sampled_by})
        # of several answers to one question each draws other numbers
        sampling = replace(sampling, seed=self._seed + number)
        request = Request(fitted.prompt, max_new_tokens=fitted.limit, sampling=sampling, stop=list(options.stop))
        return request, fitted

    def _shown(self, items: Sequence[Any], what: str, disable_tqdm: bool) -> Any:
        return tqdm(items, desc=what, disable=disable_tqdm or self._silent or None)


@register_model("spec_sdk")
class PipelineModel(EngineModel):
    """The same from the harness's own command line: ``--model spec_sdk --model_args pipeline=alspec``.

    ``overrides`` are those of ``python -m spec_sdk``, apart by blanks. ``device``, which the harness always gives, is
    not looked at: ``overrides=backend=cuda`` says where it runs.
    """

    def __init__(
        self,
        pipeline: str = "suffix",
        target: str | None = None,
        draft: str | None = None,
        overrides: str = "",
        own_scores: bool = False,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **unknown: Any,
    ) -> None:
        """Raises UserError for arguments that do not exist, and for what the command line would refuse."""
        if unknown:
            name = next(iter(unknown))
            known = ("pipeline", "target", "draft", "overrides", "own_scores")
            raise UserError(f"--model_args: unknown argument '{name}'{did_you_mean(name, known)}")
        if not isinstance(own_scores, bool):
            raise UserError(f"--model_args: own_scores: {own_scores!r} must be True or False")
        engine = Engine.from_pipeline(
            pipeline,
            target=target,
            draft=draft,
            overrides=shlex.split(str(overrides)),
            max_num_seqs=_questions_at_once(batch_size, max_batch_size),
        )
        super().__init__(engine, own_scores=own_scores)


def _questions_at_once(batch_size: int | str | None, most: int | None) -> int:
    if batch_size is None or str(batch_size).startswith("auto"):
        return most or MAX_NUM_SEQS
    if not str(batch_size).isdecimal() or int(batch_size) < 1:
        raise UserError(f"--batch_size: {batch_size!r} must be a number from 1 on, or auto")
    return int(batch_size)
