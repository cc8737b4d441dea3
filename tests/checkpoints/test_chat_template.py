"""Chat templates: what Hugging Face offers to templates, a sandbox around them, and one line when they fail."""

from __future__ import annotations

import datetime

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a <b> & 'c' ü"}]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, "chat.jinja").render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>a <b> & 'c' ü</s>"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "a <b> & \'c\' ü"}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ {'b': 'ü', 'a': [1, 2]} | tojson(ensure_ascii=True, sort_keys=True) }}", '{"a": [1, 2], "b": "\\u00fc"}'),
        ("{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}", '{"a":[1,2]}'),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none and not documents %}none{% endif %}", "none"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ unknown }}.", "."),
    ],
)
def test_renders(source: str, text: str) -> None:
    assert render(source) == text


def test_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.datetime.now().year + i) for i in (-1, 0)}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "is not valid"),
        ("{% endfor %}", "is not valid"),
        ("{{ raise_exception('Roles must\nalternate') }}", "failed: Roles must alternate"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{{ messages[0].content.nothing.more }}", "failed"),
        ("{{ messages + 1 }}", "failed: TypeError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "failed"),
        ("{% include '/etc/passwd' %}", "failed"),
    ],
)
def test_fails_in_one_line(source: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        render(source)
    assert f"chat.jinja: the chat template {message}" in str(caught.value) and "\n" not in str(caught.value)


TOOLS = [{"type": "function", "function": {"name": "add"}}]


def test_tools_and_variables() -> None:
    source = "{{ tools | length if tools }}{{ 'deep' if think_deep }}{{ bos_token }}{% set own = 1 %}{{ range(own) }}"
    template = ChatTemplate(source, {"bos_token": "<s>"}, "chat.jinja")
    assert template.render(MESSAGES, TOOLS, {"think_deep": True}).startswith("1deep<s>")
    assert template.render(MESSAGES).startswith("<s>")
    assert template.variables == {"tools", "think_deep"}
    assert template.mentions("'deep'") and not template.mentions("shallow")


def test_a_template_for_tools() -> None:
    tool_use = ChatTemplate("{% for tool in tools %}{{ tool.function.name }}{% endfor %}<tool_call>", {}, "tool_use")
    template = ChatTemplate("{{ messages[0].content }}{{ mood }}", {}, "chat.jinja", tool_use)
    assert template.render(MESSAGES, TOOLS) == "add<tool_call>"
    assert template.render(MESSAGES) == template.render(MESSAGES, []) == MESSAGES[0]["content"]
    assert template.mentions("<tool_call>") and {"tools", "mood"} <= template.variables
    assert {"content", "function"} <= template.names
