"""What ``import spec_sdk`` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spec_sdk


def test_importing_the_package_imports_no_torch() -> None:
    heavy = ("torch", "hydra", "omegaconf", "transformers")
    code = (
        "import sys, spec_sdk; from spec_sdk import UserError; "
        f"sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", spec_sdk.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(spec_sdk, name) is not None
    assert name in dir(spec_sdk)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'spec_sdk' has no attribute 'Enginee'"):
        _ = spec_sdk.Enginee


def test_the_options_of_a_request_hold_every_sampling_parameter() -> None:
    from dataclasses import fields

    from spec_sdk.api.request import RequestOptions

    options = RequestOptions.__annotations__
    assert {field.name for field in fields(spec_sdk.SamplingParams)} <= set(options)
    documented = RequestOptions.__doc__ or ""
    assert all(f"``{name}``" in documented for name in options)
