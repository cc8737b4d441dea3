"""``org/name:Q8_0``: GGUF files of the hub, from its cache or downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from spec_sdk.errors import UserError
from spec_sdk.model import source_hub
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.source_hub_gguf import hub_gguf, named_in
from tests.checkpoints.gguf_files import write_gguf

NAMES = (
    "tiny-Q8_0.gguf",
    "tiny-IQ4_0.gguf",
    "tiny-q4_k_m.gguf",
    "tiny-UD-Q2_K.gguf",
    "tiny-Q2_K.gguf",
    "mmproj-Q8_0.gguf",
    "tiny-Q3_K.gguf",
    "large-Q3_K.gguf",
)


class Hub:
    """A repository of these files, and what is asked of it."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
        self.snapshot = directory / "models--org--tiny" / "snapshots" / "0123"
        self.names = list(names)
        self.downloads: list[list[str]] = []
        patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(directory))
        patch.setattr(source_hub, "snapshot_download", self.download)
        patch.setattr(huggingface_hub.HfApi, "model_info", self.info)

    def info(self, repository: str, timeout: float) -> Any:
        assert repository == "org/tiny"
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.names])

    def download(self, repository: str, *, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only and not self.snapshot.exists():
            raise LocalEntryNotFoundError("nothing")
        if not local_files_only:
            self.downloads.append(options["allow_patterns"])
            for name in options["allow_patterns"]:
                blob = self.snapshot.parents[1] / "blobs" / f"of {len(name)} letters"
                for path in (blob, self.snapshot / name):
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_gguf(blob)
                (self.snapshot / name).symlink_to(blob)
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path / "hub", monkeypatch, NAMES)


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ("Q8_0", "tiny-Q8_0"),
        ("q4_K_M", "tiny-q4_k_m"),
        ("IQ4_0", "tiny-IQ4_0"),
        ("UD-Q2_K", "tiny-UD-Q2_K"),
        ("Q2_K", "tiny-Q2_K"),
        ("tiny-Q3_K.gguf", "tiny-Q3_K"),
    ],
)
def test_one_file_is_downloaded_once(quantization: str, name: str, hub: Hub) -> None:
    checkpoint = open_checkpoint(f"org/tiny:{quantization}")
    assert (checkpoint.name, hub.downloads) == (name, [[f"{name}.gguf"]])
    assert open_checkpoint(f"org/tiny:{quantization}").directory == checkpoint.directory
    assert len(hub.downloads) == 1


def test_what_ends_alike_in_the_cache_is_another_file(hub: Hub) -> None:
    assert open_checkpoint("org/tiny:UD-Q2_K").name == "tiny-UD-Q2_K"
    assert open_checkpoint("org/tiny:Q2_K").name == "tiny-Q2_K"


def test_a_file_in_parts_in_a_folder(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.names = [f"Q6_K/tiny-Q6_K-0000{number}-of-00002.gguf" for number in (1, 2)]
    opened: list[Path] = []

    def converted(path: Path) -> Path:
        opened.append(path)
        return path.parent

    monkeypatch.setattr("spec_sdk.model.checkpoint.converted_gguf", converted)
    with pytest.raises(UserError, match="has no config.json"):
        open_checkpoint("org/tiny:Q6_K")
    assert hub.downloads == [hub.names] and opened == [hub.snapshot / hub.names[0]]


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("org/tiny:Q3_K", "several files are of this quantization; name one: large-Q3_K, tiny-Q3_K"),
        ("org/tiny:q4_k_s", "no such file, did you mean 'Q4_K_M'"),
        ("org/tiny:F16", "no such file; there are: IQ4_0, Q2_K, Q3_K, Q4_K_M, Q8_0, UD-Q2_K"),
        ("org/tiny", "'org/tiny' has GGUF files: say which, as in org/tiny:Q8_0"),
    ],
)
def test_what_is_no_file_or_several(reference: str, told: str, hub: Hub) -> None:
    with pytest.raises(UserError, match=told):
        open_checkpoint(reference)
    assert not hub.downloads


def test_a_part_that_is_not_there(hub: Hub) -> None:
    hub.names = ["tiny-Q6_K-00001-of-00002.gguf"]
    with pytest.raises(UserError, match="lacks tiny-Q6_K-00002-of-00002.gguf, a part of the file of Q6_K"):
        open_checkpoint("org/tiny:Q6_K")


def test_a_repository_without_gguf_files(hub: Hub) -> None:
    hub.names = ["model.safetensors"]
    with pytest.raises(UserError, match="the repository has no GGUF file"):
        open_checkpoint("org/tiny:Q8_0")


def test_modules_beside_their_model(hub: Hub) -> None:
    """Files of draft heads are no models of a quantization; by its whole name each is found."""
    hub.names = ["tiny-Q8_0.gguf", "mtp-tiny-Q8_0.gguf", "dflash-tiny-Q8_0.gguf"]
    assert open_checkpoint("org/tiny:Q8_0").name == "tiny-Q8_0"
    assert hub_gguf("org/tiny", "mtp-tiny-Q8_0").name == "mtp-tiny-Q8_0.gguf"
    with pytest.raises(UserError, match=r"has no prediction module \(MTP\), the only draft head"):
        open_draft_head("org/tiny:mtp-tiny-Q8_0")


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(UserError, match="'org/tiny:Q8_0': not in the hub's local cache, and .* does not answer"):
        open_checkpoint("org/tiny:Q8_0")


def test_quantizations_are_what_names_end_with() -> None:
    names = [
        "a-bf16.gguf",
        "b.F16.gguf",
        "c-MXFP4_MOE.gguf",
        "d-UD-IQ1_S-00001-of-00002.gguf",
        "mmproj-F32.gguf",
        "e.md",
    ]
    assert named_in(names) == ["BF16", "F16", "MXFP4_MOE", "UD-IQ1_S"]
