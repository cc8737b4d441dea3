"""Chat templates: Jinja text that comes with a model, rendered in a sandbox."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from spec_sdk.errors import UserError, in_a_line, message_of


class RefusedMessages(UserError):
    """A template refused the messages, or failed over them. ``reason``: what it said of them, without its file."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: the chat template failed: {reason}")
        self.reason = reason


class ChatTemplate:
    """A model's chat template with its special tokens (``bos_token``, ``eos_token`` and so on, by role).

    ``where`` names it in errors. ``with_tools``: another that is rendered where there are tools, as some models have
    one. Raises UserError if the template is not valid Jinja.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], where: str, with_tools: ChatTemplate | None = None
    ) -> None:
        self._with_tools = with_tools
        self._special_tokens = dict(special_tokens)
        self._where, self._source = where, source
        self._environment = environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise UserError(f"{where}: the chat template is not valid: {_one_line(error)}") from error

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The fields that it looks up, and its texts."""
        own = _names_in(self._environment.parse(self._source))
        return own if self._with_tools is None else own | self._with_tools.names

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """What it may be given besides messages: names that it looks up, and that are not given anyway."""
        found = meta.find_undeclared_variables(self._environment.parse(self._source))
        own = frozenset(found - self._environment.globals.keys() - self._special_tokens.keys())
        return own if self._with_tools is None else own | self._with_tools.variables

    def mentions(self, text: str) -> bool:
        """Whether this text stands in it as it is."""
        return text in self._source or (self._with_tools is not None and self._with_tools.mentions(text))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation as text, up to where the assistant answers. ``tools``: what it may call; ``variables``: what
        else the template is given.

        Raises RefusedMessages, a UserError, if the template refuses the messages or fails.
        """
        if tools and self._with_tools is not None:
            return self._with_tools.render(messages, tools, variables)
        given = {**self._special_tokens, "documents": None, **variables}
        try:
            return self._template.render(**given, messages=messages, add_generation_prompt=True, tools=tools)
        # the template is somebody else's program: whatever it raises is its fault, not ours
        except Exception as error:
            raise RefusedMessages(self._where, _one_line(error)) from error


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _names_in(template: nodes.Template) -> frozenset[str]:
    fields = {node.attr for node in template.find_all(nodes.Getattr)}
    return frozenset(fields | {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)})


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which no model was trained on
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _one_line(error: BaseException) -> str:
    return message_of(error) if isinstance(error, jinja2.TemplateError) else in_a_line(error)
