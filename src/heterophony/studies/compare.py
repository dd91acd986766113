"""``hp.compare``, and comparisons on the command line: several algorithms on the same clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..algorithms import find_algorithm_name, get_class_name, shorten_name
from ..config.keys import expand_overrides, ignore_note
from ..config.reading import read_config, read_toml
from ..core.errors import ConfigError, suggest_similar
from ..core.files import hold_folder, write_json
from ..data.federation import Federation
from ..engines.child_processes import exit_if_script_is_imported
from ..runs.folder import RunFolder
from ..runs.result import Result
from .hooks import show_progress
from .many import run_all
from .run import SPEC_KEYWORDS, AlgorithmLike, check_renamed_keyword, make_spec
from .spec import RunSpec, load_data_of_specs, prepare_run_folders
from .sweep import StudyOptions, list_keywords, open_study_folder


class Comparison(dict[str, Result]):
    """A comparison's results by run, as in ``comparison["fedavg-0"]``, and its folder."""

    folder: Path

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self)}>"


def compare(
    algorithms: Sequence[AlgorithmLike],
    federation: Federation,
    **how: Any,
) -> Comparison:
    """Run several algorithms on the same clients, with each seed.

    ``how`` holds ``seeds``, by default (0,), and keywords of ``hp.run``. With ``out``, the same call
    continues an interrupted comparison, and ``heterophony report`` shows it; without ``out``, the
    folder is deleted with the comparison.
    """
    options, how = StudyOptions.split_off(how)
    check_run_keywords(how)
    if options.engine == "pool":
        exit_if_script_is_imported()
    named = {name_algorithm(a): a for a in algorithms}
    how |= {"engine": options.engine, "workers": options.workers}
    specs = {
        f"{name}-{seed}": make_spec(algorithm, federation, {**how, "seed": seed}, {})
        for seed in options.seeds
        for name, algorithm in named.items()
    }
    with open_study_folder(options.out) as (parent, temporary):
        with open_comparison(parent, specs) as runs, show_progress(options.progress) as shown:
            run_all(runs, options.make_run_options(shown, side_by_side=False))
        found = Comparison({f.path.name: Result(f, spec.build_plan) for f, spec in runs.items()})
        found.folder = parent
        temporary.bind(found)
    return found


def check_run_keywords(how: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword that neither ``hp.compare`` nor ``hp.run`` accepts."""
    for key, value in how.items():
        check_renamed_keyword(key, value)
        if key not in SPEC_KEYWORDS:
            near = suggest_similar(key, list_keywords(StudyOptions))
            hint = "; pass a setting of an algorithm to an instance, as in hp.FedProx(mu=0.1)"
            raise ConfigError(f"{key}: not a keyword of hp.compare{near or hint}")


def name_algorithm(algorithm: AlgorithmLike) -> str:
    """Return the label of an algorithm, which becomes part of a folder's name."""
    if isinstance(algorithm, str):
        return shorten_name(find_algorithm_name(algorithm))
    return get_class_name(algorithm if isinstance(algorithm, type) else type(algorithm))


@contextmanager
def open_comparison(
    parent: Path, specs: Mapping[str, RunSpec]
) -> Iterator[dict[RunFolder, RunSpec]]:
    """Create or reopen a comparison, and lock its folder inside the ``with`` block.

    Raise BusyError if another process runs the comparison.
    """
    complete = load_data_of_specs(specs)
    with hold_folder(parent):
        yield create_comparison(parent, complete)


def create_comparison(parent: Path, complete: Mapping[str, RunSpec]) -> dict[RunFolder, RunSpec]:
    """Write a folder for each run, and ``compare.json``, so that all runs can be resumed."""
    runs = prepare_run_folders(parent, complete)
    write_json(parent / "compare.json", {"runs": list(complete)})
    return runs


def build_comparison(
    algorithms: Sequence[str],
    seeds: Sequence[int] | None,
    file: Path | None,
    overrides: Sequence[str],
    note: Callable[[str], None] = ignore_note,
) -> dict[str, RunSpec]:
    """Build the spec of every run, by label; the default seed is the configuration's.

    ``note`` receives the notes of ``read_config``. Algorithms of other packages are imported, because
    the user named them.
    """
    algorithms = [find_algorithm_name(name) for name in algorithms]
    labels, specs = label_algorithms(algorithms), dict[str, RunSpec]()
    overrides = expand_overrides(read_toml(file)[1], overrides, algorithms, note, True)
    for seed in [None] if seeds is None else seeds:
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            told = ignore_note if specs else note  # notes are the same for all runs
            config = read_config(file, [*overrides, *own], told, trust=True)
            specs[f"{labels[name]}-{config.top.seed}"] = RunSpec(config)
    return specs


def label_algorithms(names: Sequence[str]) -> dict[str, str]:
    """Return a label for each algorithm, for folder names; classes of the same name get longer labels."""
    names = list(dict.fromkeys(names))
    uses = Counter(map(shorten_name, names))
    return {n: s if uses[s := shorten_name(n)] == 1 else n.replace(":", ".") for n in names}
