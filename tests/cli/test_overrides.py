"""Texts on the command line arrive as they were typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from spec_sdk.config.composing import compose_config
from spec_sdk.config.overrides import as_text, parse, quote_texts
from spec_sdk.errors import UserError

awkward = st.text(alphabet=st.sampled_from("ab1 ,=:'\"\\${}[]()#\n\tüé…-")) | st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\x00")
)


@given(awkward)
def test_any_text_survives_the_grammar_and_interpolation(text: str) -> None:
    config = OmegaConf.create({"prompt": parse([f"prompt={as_text(text)}"])[0].value()})
    assert OmegaConf.to_container(config, resolve=True) == {"prompt": text}


@pytest.mark.parametrize(
    "text",
    ["Hello, world", "it's", "a=b", "{x}", "[1]", "${oc.env:HOME}", "\\${x}", "What (2+2)?", "two\nlines", "true"],
)
def test_prompts_compose_to_their_own_text(text: str) -> None:
    config = compose_config(quote_texts([f"prompt={text}"], sweep=False))
    assert OmegaConf.to_container(config, resolve=True)["prompt"] == text  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "override",
    ["prompt=null", "prompt=", "prompt='quoted, already'", "drafter.width=2", "max_new_tokens=5", "model.target=/a/b"],
)
def test_what_hydra_reads_rightly_is_left_alone(override: str) -> None:
    assert quote_texts([override], sweep=False) == [override]


def test_paths_with_special_characters_are_quoted_and_interpolations_in_them_kept() -> None:
    assert quote_texts(["model.target=/a=b", "output_dir=a,b"], sweep=False) == [
        "model.target='/a=b'",
        "output_dir='a,b'",
    ]
    assert quote_texts(["output_dir=out/${pipeline.name}"], sweep=False) == ["output_dir=out/${pipeline.name}"]


def test_in_a_sweep_commas_are_choices() -> None:
    assert quote_texts(["prompt=a,b", "prompt=it's"], sweep=True) == ["prompt=a,b", "prompt='it\\'s'"]


@pytest.mark.parametrize(
    ("typed", "jobs"),
    [
        ("Où es-tu?,Quel âge as-tu?", ["Où es-tu?", "Quel âge as-tu?"]),
        ('"é, or not",日本', ["é, or not", "日本"]),
        ("'été',¿y?", ["été", "¿y?"]),
        ("it's one, not two", None),
        ("é,", None),
    ],
)
def test_so_they_are_where_hydra_s_grammar_ends(typed: str, jobs: list[str] | None) -> None:
    [override] = parse(quote_texts([f"prompt={typed}"], sweep=True))
    if jobs is None:
        assert override.value() == typed and not override.is_sweep_override()
        return
    told = [parse([f"prompt={text}"])[0].value() for text in override.sweep_string_iterator()]
    configs = [OmegaConf.to_container(OmegaConf.create({"prompt": text}), resolve=True) for text in told]
    assert configs == [{"prompt": text} for text in jobs]


def test_a_job_s_directory_may_be_named_as_it_was_printed() -> None:
    name = "out/1-policy.depth=2,max_new_tokens=4"
    assert parse(quote_texts([f"task.runs={name}"], sweep=False))[0].value() == name
    assert parse(quote_texts(["task.runs=[a,'b=c']"], sweep=False))[0].value() == ["a", "b=c"]


def test_an_unreadable_override_is_named() -> None:
    with pytest.raises(UserError, match=r"'drafter\.width' cannot be read as option=value"):
        parse(["drafter.width"])


def test_a_bare_text_is_taken_for_the_prompt_that_it_may_be() -> None:
    with pytest.raises(UserError) as raised:
        parse(["Why is the sky blue?"])
    assert str(raised.value) == (
        "'Why is the sky blue?' cannot be read as option=value; if it is the prompt, say prompt='Why is the sky blue?'"
    )
    with pytest.raises(UserError, match="need quotes inside the shell's: \"option='some, text'\"$"):
        parse(["drafter.widths=[3"])
