"""Thoughts of models that think come apart from what they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scripted_answers import END, HELLO, Scripted, added_up, as_added_up

Begin = Callable[..., Scripted]
THINKS = """{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>
{% endif %}{{ m.content }}{% endfor %}<assistant>{% if enable_thinking is defined %}{% if enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""
SPECIAL = "{# [THINK] #}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
CHANNELS = """{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}{% if 'thinking' in m %}
[{{ m.thinking }}]{% endif %}{% if m.tool_calls %}({{ m.tool_calls[0].function.name }}){% endif %}
<|end|>{% endfor %}{% if tools %}{{ tools[0].function.name }}{% endif %}
Reasoning: {{ reasoning_effort or "medium" }}<|start|>assistant{# <|channel|> #}"""
ANALYSIS = "<|channel|>analysis<|message|>Hm. So.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Yes, it is.<|return|>"

TOLD: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "between tags": (THINKS, f"<think>\nHm. So.\n</think>\n\nYes, it is.{END}", {}, "Hm. So.", "Yes, it is."),
    "opened by the prompt": (
        THINKS,
        f"Hm. So.</think>Yes, it is.{END}",
        {"chat_template_kwargs": {"enable_thinking": True}},
        "Hm. So.",
        "Yes, it is.",
    ),
    "closed by the prompt": (THINKS, f"Yes, it is.{END}", {"reasoning_effort": "none"}, "", "Yes, it is."),
    "no thoughts": (THINKS, f" Yes, it is.{END}", {}, "", " Yes, it is."),
    "quoted": (THINKS, f"Use <think> so.{END}", {}, "", "Use <think> so."),
    "special tokens": (SPECIAL, f"[THINK]Hm. So.[/THINK]Yes, it is.{END}", {}, "Hm. So.", "Yes, it is."),
    "channels": (CHANNELS, ANALYSIS + FINAL + END, {}, "Hm. So.", "Yes, it is."),
    "channels, one": (CHANNELS, FINAL + END, {}, "", "Yes, it is."),
}


@pytest.mark.parametrize("case", TOLD)
def test_whole_and_streamed(case: str, scripted: Begin) -> None:
    template, text, extra, thoughts, content = TOLD[case]
    server = scripted(template, text)
    expected = {"content": content, "reasoning_content": thoughts, "calls": [], "finish_reason": "stop"}
    whole, chunks = server.whole(extra_body=extra), server.chunks(extra_body=extra)
    assert as_added_up(whole) == added_up(chunks) == expected
    assert whole.usage is not None and chunks[-1].usage == whole.usage
    details = whole.usage.completion_tokens_details
    tokens = server.server.service.engine.tokenizer.encode(thoughts, add_special_tokens=False)
    assert details is not None and details.reasoning_tokens is not None
    # white space around thoughts is some more, and text may be spelt otherwise beside it
    assert len(tokens) <= details.reasoning_tokens <= len(tokens) + 3 * bool(thoughts)
    several = server.whole(n=2, extra_body=extra)
    assert [as_added_up(several, index) for index in range(2)] == [expected] * 2
    streams = server.chunks(n=2, extra_body=extra)
    assert [added_up(streams, index) for index in range(2)] == [expected] * 2


@pytest.mark.parametrize("case", TOLD)
def test_none_leaves_all_of_it_in_the_content(case: str, scripted: Begin) -> None:
    template, text, extra, _, _ = TOLD[case]
    server = scripted(template, text, reasoning="none")
    tokenizer = server.server.service.engine.tokenizer
    plain = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    expected = {"content": plain, "reasoning_content": "", "calls": [], "finish_reason": "stop"}
    whole = server.whole(extra_body=extra)
    assert as_added_up(whole) == added_up(server.chunks(extra_body=extra)) == expected
    assert whole.usage is not None and whole.usage.completion_tokens_details is None


def test_a_whole_answer_may_lack_the_opening_tag(scripted: Begin) -> None:
    told = as_added_up(scripted(THINKS, f"Hm. So.</think>Yes.{END}").whole())
    assert (told["reasoning_content"], told["content"]) == ("Hm. So.", "Yes.")


def test_an_end_in_the_thoughts(scripted: Begin) -> None:
    server = scripted(THINKS, f"<think>Hm. So what now?</think>Yes, stop it.{END}")
    cut: dict[str, tuple[dict[str, Any], str, str, str]] = {
        "tokens": ({"max_tokens": 5}, "", "", "length"),
        "stop string": ({"stop": "what"}, "Hm. So", "", "stop"),
        "stop string behind": ({"stop": ["stop"]}, "Hm. So what now?", "Yes, ", "stop"),
        "part of a tag": ({"stop": "hink>Y"}, "Hm. So what now?</t", "", "stop"),
    }
    for options, thoughts, content, reason in cut.values():
        whole, streamed = as_added_up(server.whole(**options)), added_up(server.chunks(**options))
        assert whole == streamed and whole["finish_reason"] == reason, options
        if reason == "stop":
            assert (whole["reasoning_content"], whole["content"]) == (thoughts, content)


def test_logprobs_are_of_all_tokens(scripted: Begin) -> None:
    """As OpenAI's ``usage`` and vLLM count: the tags and the thoughts too."""
    server = scripted(THINKS, f"<think>Hm.</think>Yes.{END}")
    whole, chunks = server.whole(logprobs=True), server.chunks(logprobs=True)
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    told = whole.choices[0].logprobs.content or []
    assert "".join(one.token for one in told) == server.text and len(told) == whole.usage.completion_tokens
    logprobs = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [one for part in logprobs for one in part.content or []] == told


def test_a_constrained_answer_is_content(scripted: Begin) -> None:
    """It begins with what it is held to: the model is asked not to think, and if it is, that changes nothing."""
    server = scripted(THINKS, "")
    for given, end in (({}, "</think>\n\n"), ({"enable_thinking": True}, "<think>\n")):
        extra = {"chat_template_kwargs": given, "structured_outputs": {"choice": ["yes", "no"]}}
        told = as_added_up(server.whole(extra_body=extra))
        assert told["content"] in ("yes", "no") and not told["reasoning_content"]
        assert server.prompts[-1].endswith(end)


def test_structure_that_asks_for_nothing_leaves_thoughts(scripted: Begin) -> None:
    server = scripted(THINKS, f"<think>Hm.</think>Yes.{END}")
    for given in ({"disable_any_whitespace": True}, {"json_object": False}, {}):
        told = as_added_up(server.whole(extra_body={"structured_outputs": given}))
        assert told["reasoning_content"] == "Hm." and server.prompts[-1].endswith("<assistant>")
    told = as_added_up(server.whole(response_format={"type": "text"}))
    assert told["reasoning_content"] == "Hm."


def test_what_the_template_is_given(scripted: Begin) -> None:
    server = scripted(THINKS, f"Yes.{END}")
    for extra, end in (
        ({}, "<assistant>"),
        ({"reasoning_effort": "high"}, "<assistant>"),
        ({"reasoning_effort": "none"}, "</think>\n\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "<think>\n"),
    ):
        server.whole(extra_body=extra)
        assert server.prompts[-1].endswith(end), extra
    server = scripted(CHANNELS, FINAL + END)
    server.whole(reasoning_effort="high")
    assert "Reasoning: high" in server.prompts[-1]


def test_names_that_the_template_does_not_know_are_refused(scripted: Begin) -> None:
    server = scripted(THINKS, "")
    error = server.refused(chat_template_kwargs={"enable_thinkin": False})
    assert error["param"] == "chat_template_kwargs" and "did you mean 'enable_thinking'" in error["message"]
    for name in ("messages", "range", "add_generation_prompt"):
        assert server.refused(chat_template_kwargs={name: []})["param"] == "chat_template_kwargs"


def test_thoughts_can_be_sent_back(scripted: Begin) -> None:
    again: Any = [*HELLO, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, *HELLO]
    server = scripted(THINKS, f"Yes.{END}")
    server.whole(again)
    assert "<assistant><think>Hm.</think>\nYes.<user>" in server.prompts[-1]
    server = scripted(CHANNELS, FINAL + END)
    server.whole(again)
    assert "Yes.[Hm.]" in server.prompts[-1]
    server = scripted("{% for m in messages %}{{ m.content }}{% endfor %}", f"Yes.{END}")
    server.whole(again)
    assert server.prompts[-1] == "HiYes.Hi"


def test_tags_of_the_vocabulary_alone(scripted: Begin) -> None:
    """Where the template says nothing; one of the two is no sign."""
    for text, thoughts in (("<think>Hm.</think>Yes.", ""), ("[THINK]Hm.[/THINK]Yes.", "Hm.")):
        told = as_added_up(scripted("{{ messages[0].content }}", text + END).whole())
        assert told["reasoning_content"] == thoughts
