"""The composed config: what a pipeline sets, what the command line sets over it, what is refused and how."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_sdk.config.composing import compose_config, explain, groups, options_of, pipeline_summaries, settings_of
from spec_sdk.config.hydra_loader import CheckedLoader, config_loader
from spec_sdk.contracts import PLUGIN_KINDS, DraftLogits, Growing, Growth, Request
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.settings import PLUGIN_NODES, Settings, refuse_targets
from spec_sdk.tree import TreeBuilder
from tests.cli.conftest import Result

PIPELINES = [
    *("vanilla", "sd_chain", "prompt_lookup", "easyspec_chain", "easyspec_paper", "easyspec_tree"),
    *("alspec", "alspec_easyspec_tree", "eagle_tree", "medusa_tree", "hydra_tree", "mtp_chain"),
    *("block_tree", "peagle_tree", "mixed", "mixed_eagle", "assistant_chain"),
]


def composed(*overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(compose_config(overrides), resolve=True)  # type: ignore[return-value]


def error_of(*overrides: str) -> str:
    """The one line that this command line is refused with, by composition or by the settings."""
    try:
        config = compose_config(overrides)
    except UserError as error:
        return str(error)
    except (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
        return str(explain(error, overrides))
    with pytest.raises(UserError) as refused:
        settings_of(config)
    return str(refused.value)


def test_settings_know_every_kind_of_plugin() -> None:
    """By a key of its own, or as a part of a plugin that has one."""
    registry = Registry.discover()
    plugins = [registry.get(kind, name) for kind in PLUGIN_NODES for name in registry.names(kind)]
    parts = {kind for plugin in plugins for kind in plugin.parts.values()}
    assert parts and not parts & set(PLUGIN_NODES)
    assert {*PLUGIN_NODES, *parts} == set(PLUGIN_KINDS)


LINES = (
    ("pipeline=sd_chain",),
    ("pipeline=sd_chain", "max_new_tokens=3", "+drafter.layers=2", "model.target=elsewhere"),
    ("max_new_tokens=3", "pipeline=vanilla", "policy=fixed", "pipeline=alspec"),
    ("pipeline=nowhere",),
    ("pipeline=sd_chain", "drafter.nothing=1"),
    ("drafter={name: suffix}",),
    ("pipeline=1",),
    ("~pipeline", "prompt=a"),
    ("task=advise", "policy@sampler=fixed"),
)


@pytest.mark.parametrize("overrides", LINES, ids=" ".join)
def test_kept_files_give_what_hydra_composes_of_them_anew(overrides: tuple[str, ...]) -> None:
    """The first time and the second, Hydra's own part included."""
    with config_loader() as loader:
        expected, *found = (
            outcome(functools.partial(load, loader, "config", list(overrides), RunMode.RUN, from_shell=False))
            for load in (ConfigLoaderImpl.load_configuration, CheckedLoader.load_configuration) * 2
        )
    assert found == [expected] * 3


def outcome(load: Callable[[], DictConfig]) -> str:
    try:
        return OmegaConf.to_yaml(load())
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def test_a_config_is_its_caller_s_own() -> None:
    before = composed("pipeline=sd_chain")
    changed = compose_config(["pipeline=sd_chain"])
    changed.max_new_tokens, changed.drafter.depth = 12345, 67
    assert composed("pipeline=sd_chain") == before


def test_files_that_may_change_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    for tokens in (11, 12):
        (tmp_path / "pipeline" / "mine.yaml").write_text(f"# @package _global_\nmax_new_tokens: {tokens}\n")
        with config_loader([f"file://{tmp_path}"]) as loader:
            config = loader.load_configuration("config", ["pipeline=mine"], RunMode.RUN, from_shell=False)
        assert config.max_new_tokens == tokens


def test_the_default_pipeline_is_suffix() -> None:
    config = composed()
    assert config["pipeline"]["name"] == "suffix"
    assert (config["drafter"]["name"], config["policy"]["name"]) == ("suffix", "break_even")


def test_easyspec_tree_asks_the_model_where_it_pays() -> None:
    config = composed("pipeline=easyspec_tree")
    assert (config["drafter"]["name"], config["drafter"]["model"]) == ("mixed", {"name": "easyspec", "width": 4})
    assert config["policy"]["name"] == "break_even"


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_pipeline_makes_valid_settings(pipeline: str) -> None:
    settings = settings_of(compose_config([f"pipeline={pipeline}"]))
    assert settings.pipeline.name == pipeline
    assert settings.sampling.temperature == 0
    assert settings.model.draft == "auto"
    assert pipeline_summaries()[pipeline] == settings.pipeline.summary != ""


def test_all_pipelines_are_found() -> None:
    assert set(options_of("pipeline")) >= set(PIPELINES)
    assert set(groups()) == {*PLUGIN_NODES, "pipeline", "model"}


def test_the_command_line_beats_the_pipeline() -> None:
    config = composed("pipeline=easyspec_paper", "drafter.width=2", "policy.depth=7")
    assert config["drafter"]["width"] == 2
    assert config["policy"]["depth"] == 7


def test_an_option_of_the_model_inside_a_drafter_is_reached_by_its_path() -> None:
    config = composed("pipeline=easyspec_tree", "drafter.model.width=2", "+drafter.model.growth=dynamic")
    assert config["drafter"]["model"] == {"name": "easyspec", "width": 2, "growth": "dynamic"}


def test_options_of_a_replaced_plugin_are_forgotten() -> None:
    config = composed("pipeline=easyspec_paper", "drafter=prompt_lookup")
    assert config["drafter"] == {"name": "prompt_lookup", "max_ngram": 3, "min_ngram": 1, "matches": 1}


def test_options_that_the_new_plugin_has_too_stay() -> None:
    assert composed("pipeline=easyspec_paper", "drafter=draft_model")["drafter"]["width"] == 4


def test_an_option_typed_for_the_wrong_plugin_is_kept_for_the_registry_to_refuse() -> None:
    assert composed("pipeline=easyspec_paper", "drafter=prompt_lookup", "drafter.width=2")["drafter"]["width"] == 2


@pytest.fixture
def bold() -> Iterator[None]:
    """An installed growth that no YAML of ours knows."""

    @dataclass
    class BoldConfig:
        floor: float = 0.4

    class Bold(Growth):
        name = "bold"
        Config = BoldConfig
        branches = False

        def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
            return fed.build().tree
            yield

    registry = Registry.discover()
    registry.register(Bold, "third")
    yield
    del registry._offers["growth", "bold"]


@pytest.mark.usefixtures("bold")
def test_an_option_that_is_in_no_yaml_is_set_like_any_other() -> None:
    """Whichever drafter it stands beside, in whatever order, and beside choices and other options."""
    chosen = ["pipeline=easyspec_paper", "drafter=draft_model", "drafter.growth=bold"]
    config = composed("drafter.floor=0.7", *chosen, "policy.depth=7")
    assert (config["drafter"]["name"], config["drafter"]["floor"], config["policy"]["depth"]) == ("draft_model", 0.7, 7)
    assert composed("+drafter.floor=0.7", "pipeline=easyspec_paper", "drafter.growth=bold")["drafter"]["floor"] == 0.7
    plugin, options = Registry.discover().configure("drafter", config["drafter"])
    assert (plugin.name, options.growth.name, options.growth.config.floor) == ("draft_model", "bold", 0.7)


@pytest.mark.usefixtures("bold")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["drafter.floor=1"], "drafter.floor: an option of drafter.growth=bold, which is not chosen"),
        (["drafter.growth=bold", "drafter.flor=1"], "drafter.flor: unknown option of drafter 'easyspec', did you mean"),
        (["drafter.growth=bold", "drafter.floor=1", "polcy.depth=1"], "polcy: unknown option, did you mean 'policy'?"),
        (
            ["drafter=prompt_lookup", "drafter.floor=1"],
            "drafter.floor: unknown option of drafter 'prompt_lookup'; there",
        ),
        (["drafter.growth=bald", "drafter.floor=1"], "drafter.floor: an option of drafter.growth=bold, which is not"),
    ],
)
def test_an_option_of_a_part_that_is_not_chosen_is_refused(overrides: list[str], message: str) -> None:
    assert error_of("pipeline=easyspec_paper", *overrides).startswith(message)


@pytest.mark.usefixtures("bold")
def test_options_of_a_drafter_inside_a_drafter() -> None:
    """``drafter.model`` of ``mixed`` is a drafter with parts of its own; its YAML lists few of their options."""
    model = composed("pipeline=easyspec_tree", "drafter.model.size=3", "drafter.model.children=2")["drafter"]["model"]
    assert model == {"name": "easyspec", "width": 4, "size": 3, "children": 2}
    bold = composed("pipeline=easyspec_tree", "drafter.model.growth=bold", "drafter.model.floor=0.7")
    assert bold["drafter"]["model"]["floor"] == 0.7
    for override, message in (
        ("drafter.model.sise=3", "drafter.model.sise: unknown option of drafter 'easyspec', did you mean 'size'?"),
        ("drafter.model.floor=1", "drafter.model.floor: an option of drafter.model.growth=bold, which is not chosen"),
        ("drafter.modl.size=3", "drafter.modl: unknown option of drafter 'mixed', did you mean 'model'?"),
    ):
        assert error_of("pipeline=easyspec_tree", override) == message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pipeline=easyspec_tre"], "pipeline: unknown pipeline 'easyspec_tre', did you mean 'easyspec_tree'?"),
        (["drafter=easispec"], "drafter: unknown drafter 'easispec', did you mean 'easyspec'?"),
        (["drafter=easyspec_paper"], "drafter: 'easyspec_paper' is a pipeline; write pipeline=easyspec_paper"),
        (["predictor=sink"], "predictor: 'sink' is another name of 'attention_sink'; write predictor=attention_sink"),
        (["policy.dept=2"], "policy.dept: unknown option of policy 'break_even'; there are"),
        (["drafter=none", "drafter.x=2"], "drafter.x: unknown option of drafter 'none' (it has no options)"),
        (["max_new_token=1"], "max_new_token: unknown option, did you mean 'max_new_tokens'?"),
        (["sampling.temprature=1"], "sampling.temprature: unknown option, did you mean 'sampling.temperature'?"),
        (["sampling.temp=1"], "sampling.temp: unknown option, did you mean 'sampling.temperature'?"),
        (["model.drat=x"], "model.drat: unknown option, did you mean 'model.draft'?"),
        (["sampling.seed.x=1"], "sampling.seed.x: unknown option; sampling.seed is a value and has none"),
        (["drafterr=easyspec"], "drafterr: unknown option, did you mean 'drafter'?"),
        (["+max_tokens=1"], "max_tokens: unknown option, did you mean 'max_new_tokens'?"),
        (
            ["+model.size=1"],
            "model.size: unknown option of the model; there are: context, draft, draft_layers, draft_weights, dtype, "
            "kv_cache, target, weights",
        ),
        (["model=5"], "model: 5 is no name; there are: smollm2"),
        (["sampling=5"], "sampling: 5 is not a group of options; set its options as sampling.<option>=…"),
        (["sampling=[1]"], "sampling: [1] is not a group of options; set its options as sampling.<option>=…"),
        (["backend=accelerate", "backend.groups=[0]"], "backend.groups: [0] is not a group of options; set its"),
        (["temperature=1"], "temperature: unknown option, did you mean 'sampling.temperature'?"),
        (["dtype=bfloat16"], "dtype: unknown option, did you mean 'model.dtype'?"),
        (["+dtype=bfloat16"], "dtype: unknown option, did you mean 'model.dtype'?"),
        (["pipeline=easyspec_tree", "successors=1"], "successors: unknown option, did you mean 'drafter.successors'?"),
        (
            ["width=2"],
            "width: unknown option; drafter.width is an option of drafter=assistant, block, draft_model, eagle",
        ),
        (
            ["drafter.width=2"],
            "drafter.width: unknown option of drafter 'suffix'; there are: datastore, keep_across_prompts, "
            "max_kept_tokens, min_probability; drafter.width is an option of drafter=assistant, block, draft_model, "
            "eagle, …",
        ),
        (["policy=[-1]"], "policy: [-1] is a list; choose one; there are: adaptive, "),
        (["drafter=[easyspec,none]"], "drafter: ['easyspec', 'none'] is a list; choose one; there are: "),
        (["pipeline=[[]]"], "pipeline: [[]] is a list; choose one; there are: "),
        (["prompt=???"], "prompt: '???' stands for a value that is still missing; give one"),
        (["pipeline=../config"], "pipeline: '../config' is a path and no name; --config-dir adds a directory of YAML"),
        (["drafter=/etc/passwd"], "drafter: '/etc/passwd' is a path and no name; --config-dir adds"),
        (["policy=fixed/../../config"], "policy: 'fixed/../../config' is a path and no name"),
        (["pipeline="], "pipeline: unknown pipeline ''; there are: alspec, "),
        (["pipeline=mine/fast"], "pipeline: unknown pipeline 'mine/fast'; there are: alspec, "),
        (["policy=mine/fixed"], "policy: unknown policy 'mine/fixed', did you mean 'fixed'?"),
        (["pipeline.name=../../x"], "pipeline.name: '../../x' must be 1 to 100 letters, digits"),
        (["pipeline.name=''"], "pipeline.name: '' must be"),
        (["drafter=a,b"], "drafter=a,b: several values; --multirun runs each of them"),
        (["prompt"], "'prompt' cannot be read as option=value"),
        (["=3"], "'=3' cannot be read as option=value"),
        (["=suffix"], "'=suffix' cannot be read as option=value"),
        (["max_new_tokens=ten"], "max_new_tokens: 'ten' is not a whole number"),
        (["max_new_tokens=1.5"], "max_new_tokens: 1.5 is not a whole number"),
        (["max_new_tokens=0"], "max_new_tokens: 0 must be 1 or more"),
        (["max_new_tokens=null"], "max_new_tokens: None is not a whole number"),
        (["compare=maybe"], "compare: 'maybe' is not true or false"),
        (["chat=maybe"], "chat: 'maybe' must be true, false or auto"),
        (["prompt_limit=0"], "prompt_limit: 0 must be 1 or more, or null (all of them)"),
        (["sampling.temperature=-1"], "sampling.temperature: -1.0 must be 0 (greedy) or more"),
        (["sampling.temperature=nan"], "sampling.temperature: nan must be 0 (greedy) or more"),
        (["sampling.temperature=warm"], "sampling.temperature: 'warm' is not a number"),
        (["sampling.top_p=0"], "sampling.top_p: 0.0 must be above 0 and at most 1 (off)"),
        (["sampling.top_p=1.1"], "sampling.top_p: 1.1 must be above 0 and at most 1 (off)"),
        (["sampling.top_k=-1"], "sampling.top_k: -1 must be 0 (off) or more"),
        (["sampling.min_p=2"], "sampling.min_p: 2.0 must be between 0 (off) and 1"),
        (["sampling.seed=-1"], "sampling.seed: -1 must be between 0 and 2^63 - 1"),
        (["model.dtype=bfloat61"], "model.dtype: unknown value 'bfloat61', did you mean 'bfloat16'?"),
        (["model.target="], "model.target: '' must be a directory, a .gguf file or a hub id"),
        (["model.context=1"], "model.context: 1 must be 2 or more, or null (as much as the model says it can)"),
        (["model.draft_layers=3"], "model.draft_layers: 3 must be the name of a cut or a list of layers"),
        (["prompt=a", "prompt_file=b"], "prompt_file: prompt is given too; give one of the two"),
        (["prompt=${nothing}"], "prompt: Interpolation key 'nothing' not found"),
        (["+drafter._target_=os.system"], "drafter._target_: '_target_' is not allowed"),
        (["drafter=null"], "drafter: None is no name; there are: "),
        (["hydra.nothing=1"], "hydra.nothing: not offered; of Hydra's options there are: hydra.launcher.…, "),
    ],
)
def test_bad_input_is_one_line_that_says_where(overrides: list[str], message: str) -> None:
    error = error_of(*overrides)
    assert error.startswith(message)
    assert "\n" not in error


def test_a_file_in_the_place_of_a_name_is_called_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "mine.yaml").write_text("# @package _global_\npipeline: {name: mine}\n")
    monkeypatch.chdir(tmp_path)
    for path in ("pipeline/mine.yaml", "pipeline/mine"):
        assert error_of(f"pipeline={path}") == (
            f"pipeline: '{path}' is a path and no name; --config-dir adds a directory of YAML"
        )


def test_a_plugin_of_hydras_that_is_not_installed_names_what_installs_it() -> None:
    missing = MissingConfigException("", "hydra/sweeper/optuna")
    assert str(explain(missing, [])) == (
        "hydra/sweeper: 'optuna' is not installed; it comes with pip install 'spec-sdk[sweep]'"
    )


def test_targets_are_found_at_any_depth() -> None:
    with pytest.raises(UserError, match=r"^drafter\.list\[1\]\._target_: "):
        refuse_targets({"drafter": {"list": [1, {"_target_": "os.system"}]}})


def test_a_node_without_a_choice_is_named() -> None:
    config = composed()
    del config["verifier"]
    with pytest.raises(UserError, match=r"^verifier: nothing is chosen"):
        Settings.from_config(config, Path("out"))


def test_yaml_with_the_name_of_one_that_comes_first_is_refused(tmp_path: Path, cli: Any) -> None:
    """It would never be read. One that nothing names is in nobody's way."""
    (tmp_path / "mine" / "pipeline").mkdir(parents=True)
    mine = tmp_path / "mine" / "pipeline" / "sd_chain.yaml"
    mine.write_text("# @package _global_\npipeline:\n  name: sd_chain\nmax_new_tokens: 7\n")
    refused = cli("--config-dir", "mine", "pipeline=sd_chain", "--cfg", "job")
    assert refused.error == f"{mine}: there is a pipeline/sd_chain already, which comes first; give yours another name"
    assert cli("--config-dir", "mine", "pipeline=vanilla", "--cfg", "job").status == 0
    # as every run leaves one in its directory
    (tmp_path / "mine" / "config.yaml").write_text("max_new_tokens: 7\n")
    assert cli("--config-dir", "mine", "pipeline=vanilla", "--cfg", "job").status == 0
    # of two directories the first is read
    for name in ("a", "b"):
        (tmp_path / name / "pipeline").mkdir(parents=True)
        (tmp_path / name / "pipeline" / "own.yaml").write_text("# @package _global_\npipeline:\n  name: own\n")
    refused = cli("hydra.searchpath=[a,b]", "pipeline=own", "--cfg", "job")
    assert f"{tmp_path / 'b' / 'pipeline' / 'own.yaml'}: there is a pipeline/own already" in refused.error


def test_yaml_that_names_no_plugin_is_told_of_by_its_own_name(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "mine" / "drafter").mkdir(parents=True)
    (tmp_path / "mine" / "drafter" / "wide.yaml").write_text("name: sufix\n")
    refused = cli("--config-dir", "mine", "drafter=wide", "prompt=Hi")
    assert refused.error == "drafter.name, of drafter=wide: unknown drafter 'sufix', did you mean 'suffix'?"
    (tmp_path / "mine" / "drafter" / "wide.yaml").write_text("name: suffix\n")
    assert cli("--config-dir", "mine", "drafter=wide", "--cfg", "job").status == 0


def test_yaml_of_ones_own_directory(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "my yaml" / "pipeline").mkdir(parents=True)
    mine = tmp_path / "my yaml" / "pipeline" / "mine.yaml"
    mine.write_text("# @package _global_\npipeline:\n  name: mine\nmax_new_tokens: 7\n")
    result: Result = cli("--config-dir", "my yaml", "pipeline=mine", "--cfg", "job")
    assert result.status == 0
    shown = yaml.safe_load(result.out)
    assert (shown["pipeline"]["name"], shown["max_new_tokens"]) == ("mine", 7)
    mine.write_text(mine.read_text(), encoding="utf-8-sig")
    assert cli("--config-dir", "my yaml", "pipeline=mine", "--cfg", "job").out == result.out
    assert "\n  mine\n" in cli("--config-dir", "my yaml", "--help").out
    torn = tmp_path / "my yaml" / "pipeline" / "torn.yaml"
    torn.write_text("# @package _global_\ndefaults:\n\t- override /drafter: suffix\n")
    refused = cli("--config-dir", "my yaml", "--help")
    assert (refused.status, refused.err.count("\n")) == (2, 1) and f"{torn} line 3: not YAML" in refused.err
    assert "\n  mine\n" not in cli("--help").out
    near = "pipeline: unknown pipeline 'mne', did you mean 'mine'?"
    assert cli("--config-dir", "my yaml", "pipeline=mne").error == near

    mine.write_text("# @package _global_\nmax_new_tokens: 7\n")
    error = cli("--config-dir", "my yaml", "pipeline=mine").error
    assert error == "pipeline.name: the pipeline's YAML does not set it; write 'pipeline: {name: …}' there"

    mine.write_text("# @package _global_\npipeline: {name: mine, _target_: os.system}\n")
    error = cli("--config-dir", "my yaml", "pipeline=mine").error
    assert error.startswith("pipeline._target_: '_target_' is not allowed")

    for line in ("defaults:\n  - override /drafter: suffix\n", "drafter: {width: 3}\n"):
        mine.write_text(f"{line}pipeline: {{name: mine}}\n")
        said = f"{mine}: must begin with the line '# @package _global_', as every pipeline's YAML does"
        assert cli("--config-dir", "my yaml", "pipeline=mine").error == said
    mine.write_text("name: mine\nsummary: nothing else\n")
    assert cli("--config-dir", "my yaml", "pipeline=mine", "--cfg", "job").status == 0

    mine.write_text("pipeline: [\n")
    error = cli("--config-dir", "my yaml", "pipeline=mine").error
    assert "mine.yaml line 2: not YAML" in error
    assert cli("--config-dir", "elsewhere").error == "--config-dir: elsewhere is not a directory"
