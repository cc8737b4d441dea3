"""What the architecture promises of the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "spec_sdk").rglob("*.py"))
YAML = [path for folder in ("conf", "docs") for path in sorted((ROOT / folder).rglob("*.yaml"))]


def imported(path: Path) -> set[str]:
    """Every module that a file imports when it runs, anywhere in it; what only type checkers see is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_the_core_imports_no_plugin() -> None:
    guilty = {(str(path), name) for path in CORE for name in imported(path) if name.startswith("spec_sdk_")}
    assert not guilty


@pytest.mark.parametrize(
    ("package", "above"),
    [
        ("model", {"scheduler", "pipeline", "tasks", "cli", "app", "registry", "settings"}),
        ("scheduler.py", {"pipeline", "tasks", "cli", "app", "registry", "settings"}),
        ("pipeline.py", {"tasks", "cli", "app"}),
    ],
)
def test_arrows_point_one_way(package: str, above: set[str]) -> None:
    place = ROOT / "spec_sdk" / package
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    for path in files:
        modules = [name.split(".") for name in imported(path)]
        guilty = {module[1] for module in modules if module[0] == "spec_sdk" and len(module) > 1} & above
        assert not guilty, (path, guilty)


def test_nothing_unpickles_or_evaluates() -> None:
    for path in [*CORE, *sorted((ROOT / "plugins").rglob("*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not imported(path) & {"pickle", "dill", "cloudpickle", "joblib"}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "eval", "exec"), (path, node.lineno)


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(ROOT)))
def test_yaml_names_no_python_object(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "_target_" not in text
    assert yaml.safe_load(text) is not None


def test_every_pipeline_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "conf" / "pipeline").glob("*.yaml")):
        assert f"`{path.stem}`" in readme
