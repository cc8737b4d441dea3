"""What the architecture promises of the source itself."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "spec_sdk").rglob("*.py"))
CONVERSION = ROOT / "spec_sdk" / "model" / "draft_heads" / "conversion.py"
YAML = [path for folder in ("conf", "docs") for path in sorted((ROOT / folder).rglob("*.yaml"))]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path: Path) -> set[str]:
    """All that a file imports, anywhere in it: in functions and for type checkers only as well.

    ``import a.b`` and ``from a import b`` both give ``a.b``.
    """
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, f"{path}:{node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Module of spec_sdk → those that it imports.

    Importing a module runs the packages around it first, so they count as well, except those that the importing module
    lies in: they run already.
    """
    files = {module_name(path): path for path in CORE}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = {name for name in imported(path) if name.partition(".")[0] == "spec_sdk"}
        named = {name if name in files else name.rpartition(".")[0] for name in names}
        assert named <= files.keys(), (path, named - files.keys())
        around = {package for name in named for package in packages_around(name)}
        graph[module] = (named | (around - packages_around(module))) - {module}
    return graph


def packages_around(module: str) -> set[str]:
    """Those that a module lies in: of ``a.b.c``, ``a`` and ``a.b``."""
    parts = module.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of more than one module each of which imports, directly or not, all the others of its set."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        ahead = [module]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        reached[module] = seen
    return {frozenset(m for m in seen if module in reached[m]) for module, seen in reached.items() if module in seen}


def test_no_import_cycles() -> None:
    graph = import_graph()
    edges = [f"{a} -> {b}" for cycle in cycles(graph) for a in sorted(cycle) for b in sorted(graph[a] & cycle)]
    assert not edges, "\n".join(edges)


def test_ops_is_the_ground_floor() -> None:
    for path in sorted((ROOT / "spec_sdk" / "ops").rglob("*.py")):
        for name in imported(path):
            top = name.partition(".")[0]
            own = name.startswith(("spec_sdk.ops.", "spec_sdk.errors."))
            assert own or top == "torch" or top in sys.stdlib_module_names, (path, name)


def test_the_core_imports_no_plugin() -> None:
    guilty = {(str(path), name) for path in CORE for name in imported(path) if name.startswith("spec_sdk_")}
    assert not guilty


@pytest.mark.parametrize(
    ("package", "above"),
    [
        ("model", {"engine", "pipeline", "api", "tasks", "cli", "app", "registry", "settings"}),
        ("engine", {"policy", "pipeline", "api", "tasks", "cli", "app", "registry", "settings"}),
        ("pipeline.py", {"api", "tasks", "cli", "app"}),
        ("config", {"pipeline", "api", "tasks", "cli", "app"}),
        ("api", {"serve", "tasks", "cli", "app"}),
        ("serve", {"tasks", "cli", "app"}),
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
        tree = parsed(path)
        roots = {name.partition(".")[0] for name in imported(path)}
        assert not roots & {"pickle", "dill", "cloudpickle", "joblib"}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec"), (path, node.lineno)
                if called == "torch.load":
                    # the one place that converts a user's pickle: torch refuses all but tensors there
                    assert path == CONVERSION, (path, node.lineno)
                    assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(ROOT)))
def test_yaml_names_no_python_object(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "_target_" not in text
    assert yaml.safe_load(text) is not None


def test_every_pipeline_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "conf" / "pipeline").glob("*.yaml")):
        assert f"`{path.stem}`" in readme
