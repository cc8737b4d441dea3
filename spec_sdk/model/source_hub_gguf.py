"""GGUF files of the Hugging Face hub: ``org/name:Q4_K_M`` is the repository's file of that quantization.

As in llama.cpp and what is built on it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.gguf_parts import parts_of, whole_name
from spec_sdk.model.source_hub import downloaded_files, local_snapshot, repository_files

QUANTIZATION = re.compile(r"(?:.*?[-._])?(?P<name>(?:UD-)?(?:I?Q|TQ|MXFP|NVFP|B?F)\d\w*)", re.IGNORECASE)
"""What a file's name ends with."""
BESIDE = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""How files begin that are no language models."""


def hub_gguf(repository: str, quantization: str) -> Path:
    """The file of a quantization, or the first of its parts: from the hub's local cache, else downloaded.

    Raises UserError where the repository is not accessible or has no such file, or several, and HubUnreachable.
    """
    snapshot = local_snapshot(repository, ["*.gguf"])
    if snapshot is not None:
        there = [str(path.relative_to(snapshot)) for path in sorted(snapshot.rglob("*.gguf"))]
        # a name that merely ends so may not be the nearest that the hub has
        found = [parts for parts in _wholes(there, quantization) if _is_called(parts[0], quantization)]
        if len(found) == 1 and all(part in there for part in found[0]):
            return snapshot / found[0][0]
    names = repository_files(repository)
    found = _wholes(names, quantization)
    if len(found) != 1:
        raise UserError(
            f"'{repository}:{quantization}': {_instead(names, [parts[0] for parts in found], quantization)}"
        )
    if missing := [part for part in found[0] if part not in names]:
        raise UserError(f"'{repository}' lacks {missing[0]}, a part of the file of {quantization}")
    return downloaded_files(repository, [glob.escape(part) for part in found[0]]) / found[0][0]


def named_in(names: Iterable[str]) -> list[str]:
    """The quantizations that a repository's files are of, by their names, in capitals."""
    return sorted({found for name in _language_models(names) if (found := _quantization(name))})


def _wholes(names: Iterable[str], quantization: str) -> list[list[str]]:
    """Files of this quantization or name, each as its parts, the first one first. The end of a name is one too."""
    ends = re.compile(rf"(.*[-._])?{re.escape(_wanted(quantization))}")
    # one that is named as a whole is meant, whatever it is
    files = names if quantization.lower().startswith(BESIDE) else _language_models(names)
    found = [name for name in files if ends.fullmatch(_whole(name).upper())]
    exact = [name for name in found if _is_called(name, quantization)]
    return sorted([*map(str, parts)] for parts in {tuple(parts_of(Path(name))) for name in exact or found})


def _wanted(quantization: str) -> str:
    return quantization.upper().removesuffix(".GGUF")


def _is_called(name: str, quantization: str) -> bool:
    return _wanted(quantization) in (_quantization(name), _whole(name).upper())


def _quantization(name: str) -> str | None:
    match = QUANTIZATION.fullmatch(_whole(name))
    return match["name"].upper() if match else None


def _language_models(names: Iterable[str]) -> list[str]:
    files = [name for name in names if name.endswith(".gguf")]
    return [name for name in files if not PurePosixPath(name).name.lower().startswith(BESIDE)]


def _whole(name: str) -> str:
    return whole_name(Path(name))


def _instead(names: Iterable[str], found: list[str], quantization: str) -> str:
    if found:
        return f"several files are of this quantization; name one: {', '.join(map(_whole, found))}"
    known = named_in(names) or sorted({_whole(name) for name in _language_models(names)})
    if not known:
        return "the repository has no GGUF file"
    return f"the repository has no such file{did_you_mean(quantization.upper(), known)}"
