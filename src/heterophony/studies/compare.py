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
from ..core.files import hold_folder, write_json
from ..data.federation import Federation
from ..engines.child_processes import end_if_script_is_imported
from ..runs.folder import RunFolder
from ..runs.result import Result
from .hooks import Hook, show_progress
from .many import RunOptions, run_all
from .run import AlgorithmLike, make_spec
from .spec import RunSpec, complete_specs, create_folders
from .sweep import open_parent


class Comparison(dict[str, Result]):
    """The results of a comparison by run, as in ``comparison["fedavg-0"]``, and its folder."""

    folder: Path

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self)}>"


def compare(
    algorithms: Sequence[AlgorithmLike],
    federation: Federation,
    *,
    seeds: Sequence[int] = (0,),
    engine: str = "serial",
    workers: int | None = None,
    out: str | Path | None = None,
    on_event: Hook = lambda event: None,
    progress: bool = True,
    **how: Any,
) -> Comparison:
    """Run several algorithms on the same clients, with each of the seeds.

    ``how`` holds keywords of ``hp.run``. With ``out``, the same call continues an interrupted
    comparison, and ``heterophony report`` shows it; without ``out``, the folder is deleted with the
    comparison.
    """
    if engine == "pool":
        end_if_script_is_imported()
    named = {name_algorithm(a): a for a in algorithms}
    how = {**how, "engine": engine, "workers": workers}
    specs = {
        f"{name}-{seed}": make_spec(algorithm, federation, {**how, "seed": seed}, {})
        for seed in seeds
        for name, algorithm in named.items()
    }
    with open_parent(out) as (parent, temporary):
        with open_comparison(parent, specs) as runs, show_progress(progress) as shown:
            run_all(runs, RunOptions(shown, workers, on_event=on_event))
        found = Comparison({f.path.name: Result(f, spec.build_plan) for f, spec in runs.items()})
        found.folder = parent
        temporary.bind(found)
    return found


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
    complete = complete_specs(specs)
    with hold_folder(parent):
        yield create_comparison(parent, complete)


def create_comparison(parent: Path, complete: Mapping[str, RunSpec]) -> dict[RunFolder, RunSpec]:
    """Write the folder of every complete run and ``compare.json``, so that all of them can be resumed."""
    runs = create_folders(parent, complete)
    write_json(parent / "compare.json", {"runs": list(complete)})
    return runs


def build_comparison(
    algorithms: Sequence[str],
    seeds: Sequence[int] | None,
    file: Path | None,
    overrides: Sequence[str],
    note: Callable[[str], None] = ignore_note,
) -> dict[str, RunSpec]:
    """Build every run, by label; without seeds, with the seed of the configuration.

    ``note`` is called with the meaning of each short key. The user named the algorithms, so those
    of other packages are imported.
    """
    algorithms = [find_algorithm_name(name) for name in algorithms]
    labels, specs = label_algorithms(algorithms), dict[str, RunSpec]()
    overrides = expand_overrides(read_toml(file)[1], overrides, algorithms, note, True)
    for seed in [None] if seeds is None else seeds:
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            config = read_config(file, [*overrides, *own], trust=True)
            specs[f"{labels[name]}-{config.top.seed}"] = RunSpec(config)
    return specs


def label_algorithms(names: Sequence[str]) -> dict[str, str]:
    """Give each algorithm a label for folder names; classes of the same name get longer labels."""
    names = list(dict.fromkeys(names))
    uses = Counter(map(shorten_name, names))
    return {n: s if uses[s := shorten_name(n)] == 1 else n.replace(":", ".") for n in names}
