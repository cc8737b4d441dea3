"""``python -m spec_sdk.config.write``: write the YAML of first-party plugins and the reference in docs/ anew.

For a checkout: run it after changing how an option is declared. ``--check`` writes nothing, and ends with status 1 if a
file is not as it would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import spec_sdk
from spec_sdk.config.reference import reference
from spec_sdk.config.yaml_text import options_yaml, own_lines, plugin_yaml
from spec_sdk.errors import UserError
from spec_sdk.installed import OWN_DISTRIBUTION
from spec_sdk.registry import Registry
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import PLUGIN_NODES, ModelSettings, RunSettings, SweepSettings

BEGIN, END = "# --- options: written by python -m spec_sdk.config.write ---\n", "# --- end of options ---\n"


def written_files(root: Path) -> dict[Path, str]:
    """The files that are written from declarations below ``root``, and their whole text.

    Raises UserError if this is no checkout.
    """
    conf = root / "conf"
    if not (conf / "config.yaml").is_file():
        raise UserError(f"{root} is no checkout of spec-sdk: it has no conf/config.yaml")
    registry = Registry.discover()
    files = {
        conf / kind / f"{offer.plugin.name}.yaml": plugin_yaml(offer, registry)
        for kind in PLUGIN_NODES
        for offer in registry.offers(kind)
        if offer.package == OWN_DISTRIBUTION
    }
    files[conf / "model" / "smollm2.yaml"] = options_yaml(own_lines(ModelSettings))
    files[conf / "config.yaml"] = _with_run_options((conf / "config.yaml").read_text(encoding="utf-8"))
    pages = reference(registry, OWN_DISTRIBUTION, conf)
    files |= {root / "docs" / name: text for name, text in pages.items()}
    return files


def _with_run_options(text: str) -> str:
    """config.yaml with the options of a run between its two marks; what stands around them is kept."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"conf/config.yaml: the line {(BEGIN if not begin else END).strip()!r} is missing")
    sampling = options_yaml(own_lines(SamplingParams), indent="  ")
    sweep = options_yaml(own_lines(SweepSettings), indent="  ")
    run = options_yaml(own_lines(RunSettings))
    return f"{before}{BEGIN}{run}\nsampling:\n{sampling}\nsweep:\n{sweep}{END}{after}"


def main(argv: Sequence[str]) -> int:
    """Write what is not up to date, and say so; return the exit status."""
    if argv not in ([], ["--check"]):
        print("usage: python -m spec_sdk.config.write [--check]", file=sys.stderr)
        return 2
    stale = 0
    for path, text in written_files(Path(spec_sdk.__file__).parents[1]).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if argv:
            print(f"not up to date: {path}")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if argv and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
