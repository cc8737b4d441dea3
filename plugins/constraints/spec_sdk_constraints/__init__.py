"""First-party constraints: what answers may consist of."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_constraints.choice import ChoiceConstraint
    from spec_sdk_constraints.grammar import GrammarConstraint
    from spec_sdk_constraints.json_schema import JsonSchemaConstraint
    from spec_sdk_constraints.no_constraint import NoConstraint
    from spec_sdk_constraints.regex import RegexConstraint
    from spec_sdk_constraints.tokens import TokensConstraint

    return [
        NoConstraint,
        JsonSchemaConstraint,
        RegexConstraint,
        ChoiceConstraint,
        GrammarConstraint,
        TokensConstraint,
    ]
