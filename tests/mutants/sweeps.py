"""Code out of YAML that Hydra would run, and sweeps that lose or misjudge jobs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OPTIONS = "spec_sdk/config/hydra_options.py"
LOADER = "spec_sdk/config/hydra_loader.py"
OBJECTIVE = "spec_sdk/cli/objective.py"
INSTALLED = "spec_sdk/installed.py"
MERGING = "spec_sdk/options.py"
OF_OPTIONS = "tests/cli/test_hydra_options.py"
OF_SWEEPERS = "tests/cli/test_sweepers.py"

SWEEPS = (
    Mutant(
        "a sweep that is interrupted does not wait for what its jobs keep",
        "spec_sdk/cli/sweep_end.py",
        "                self._wait()\n",
        "",
        (f"{OF_SWEEPERS}::test_jobs_of_joblib_that_run_when_a_sweep_is_ended_keep_what_they_have",),
    ),
    Mutant(
        "a job of another config passes for one that has ended",
        "spec_sdk/cli/sweep_job.py",
        "return is_of(output_dir, settings_of(settled).resolved)",
        "return True",
        ("tests/cli/test_multirun.py::test_a_sweep_that_is_resumed_runs_the_jobs_that_did_not_end_well",),
    ),
    Mutant(
        "a bug of ours below a plugin is told as the plugin's",
        "spec_sdk/cli/plugin_errors.py",
        "if _package(frame) in ours), default=0)",
        "if False), default=0)",
        ("tests/cli/test_plugin_errors.py",),
    ),
    Mutant(
        "packages are looked through once for all",
        INSTALLED,
        "tuple((place, _changed(place)) for place in sys.path)",
        "tuple((place, None) for place in sys.path)",
        ("tests/cli/test_installed.py",),
    ),
    Mutant(
        "options that are merged at once lose their backslashes",
        MERGING,
        "{key: literal(value) for key, value in options.items()}",
        "dict(options)",
        ("tests/cli/test_multirun.py", "tests/cli/test_generate.py"),
    ),
    Mutant(
        "overrides are not checked before the search path is read",
        LOADER,
        "        check_overrides(parse(overrides))\n",
        "",
        (OF_OPTIONS,),
    ),
    Mutant(
        "what an interpolation brings is not looked at",
        LOADER,
        "        check_composed(config.hydra)\n",
        "",
        (OF_OPTIONS,),
    ),
    Mutant(
        "whoever changes a composed config changes the next one",
        LOADER,
        "return copy.deepcopy(kept)",
        "return kept",
        ("tests/cli/test_composing.py",),
    ),
    Mutant(
        "a user's YAML is read once for all",
        LOADER,
        "        self._only_shipped &= result.path in OWN_SOURCES\n",
        "",
        ("tests/cli/test_composing.py",),
    ),
    Mutant(
        "a file may set Hydra's options",
        LOADER,
        'check_file(result.config._get_node("hydra"), file)',
        "pass",
        (OF_OPTIONS,),
    ),
    Mutant(
        "a file may stand in a group of Hydra's",
        LOADER,
        'if path.startswith("hydra/"):',
        'if path == "hydra/":',
        (OF_OPTIONS,),
    ),
    Mutant(
        "a config's path may lead out of its directory",
        LOADER,
        'or ".." in path.split("/"):',
        'and ".." in path.split("/"):',
        (OF_OPTIONS,),
    ),
    Mutant(
        "a package may stand on the search path",
        OPTIONS,
        "not path.startswith(DIRECTORIES)",
        'not path.startswith((*DIRECTORIES, "pkg://"))',
        (OF_OPTIONS,),
    ),
    Mutant(
        "the least is the best",
        OBJECTIVE,
        'signs = [1 if direction == "maximize" else -1 for direction in directions]',
        'signs = [-1 if direction == "maximize" else 1 for direction in directions]',
        (OF_SWEEPERS,),
    ),
    Mutant(
        "options of plugins that jobs choose are looked for in the sweep's own",
        LOADER,
        "if run_mode == RunMode.MULTIRUN else set()",
        "if False else set()",
        ("tests/cli/test_multirun.py::test_options_of_what_jobs_choose",),
    ),
    Mutant(
        "a sweep keeps prompts that are not to be saved",
        "spec_sdk/cli/sweep.py",
        "if config.save_prompts:",
        "if True:",
        ("tests/cli/test_multirun.py::test_prompts_that_are_not_to_be_saved_are_in_no_file",),
    ),
)
