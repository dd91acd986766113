"""Registry of the algorithms, one file each; a new algorithm needs its file and a line here.

An algorithm outside the package needs neither: name it ``package.module:Class``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, HeterophonyError, find_name, suggest_or_list
from ..core.own_modules import (
    forget_module,
    import_named_module,
    is_own_code,
    load_module_file,
    locate_code,
    make_import_error,
    suggest_module_and_class,
)
from ..core.settings import construct, is_required, list_settings

if TYPE_CHECKING:
    from ..core.algorithm import Algorithm


KEY = "algorithm.name"  # the key that names code outside this package
TABLE_FILE = Path(__file__).with_name("table.json")  # written by scripts/generate
ALGORITHM_CLASSES = {  # file name, which is the name users write, and its class
    "apfl": "APFL",
    "apple": "APPLE",
    "centralized": "Centralized",
    "cfl": "CFL",
    "ditto": "Ditto",
    "fedadam": "FedAdam",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "fedas": "FedAS",
    "fedavg": "FedAvg",
    "fedavg2rep": "FedAvg2Rep",
    "fedavg_ft": "FedAvgFT",
    "fedavgm": "FedAvgM",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedcac": "FedCAC",
    "fedcp": "FedCP",
    "feddbe": "FedDBE",
    "feddecomp": "FedDecomp",
    "feddistill": "FedDistill",
    "feddpa": "FedDPA",
    "feddyn": "FedDyn",
    "fedem": "FedEM",
    "fedetf": "FedETF",
    "fedfomo": "FedFomo",
    "fedgen": "FedGen",
    "fedgh": "FedGH",
    "fedkd": "FedKD",
    "fednova": "FedNova",
    "fedpac": "FedPAC",
    "fedpara": "FedPara",
    "fedper": "FedPer",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedreg": "FedReG",
    "fedrep": "FedRep",
    "fedrep_full": "FedRepFull",
    "fedrod": "FedRoD",
    "fedsa_lora": "FedSALoRA",
    "fedtgp": "FedTGP",
    "fedyogi": "FedYogi",
    "ffa_lora": "FFALoRA",
    "fixhead": "FixHead",
    "floco": "Floco",
    "flora": "FLoRA",
    "fml": "FML",
    "gausshead": "GaussHead",
    "gpfl": "GPFL",
    "heterofl": "HeteroFL",
    "heurfedamp": "HeurFedAMP",
    "ifca": "IFCA",
    "knnper": "KNNPer",
    "lgfedavg": "LGFedAvg",
    "linear_probe": "LinearProbe",
    "local": "Local",
    "moon": "MOON",
    "pefll": "PeFLL",
    "perfedavg": "PerFedAvg",
    "pfakd": "PFAKD",
    "pfedfda": "PFedFDA",
    "pfedgate": "PFedGate",
    "pfedhn": "PFedHN",
    "pfedme": "PFedMe",
    "pfedpara": "PFedPara",
    "pfedsd": "PFedSD",
    "scaffold": "Scaffold",
}
DISPLAY_NAMES = {  # the papers' names, where they differ from the class names
    "centralized": "Centralised",
    "fedavg_ft": "FedAvg-FT",
    "fedrep_full": "FedRep-full",
    "fedsa_lora": "FedSA-LoRA",
    "ffa_lora": "FFA-LoRA",
    "knnper": "kNN-Per",
    "lgfedavg": "LG-FedAvg",
    "linear_probe": "Linear probe",
    "perfedavg": "Per-FedAvg",
    "pfedfda": "pFedFDA",
    "pfedgate": "pFedGate",
    "pfedhn": "pFedHN",
    "pfedme": "pFedMe",
    "pfedpara": "pFedPara",
    "pfedsd": "pFedSD",
    "scaffold": "SCAFFOLD",
}


def get_algorithm_class(name: str, trust: bool = False) -> type[Algorithm]:
    """Return the class of an algorithm, given a registered name or ``package.module:Class``.

    A module outside this package is imported only with ``trust``: the user wrote its name, or
    trusts whoever wrote it. A module that this process has already imported needs no ``trust``.
    """
    if is_own_code(name):
        return import_algorithm_class(name, trust)
    name = find_algorithm_name(name)
    return import_class(f"{__name__}.{name}", ALGORITHM_CLASSES[name])


def find_algorithm_name(name: str) -> str:
    """Return the registered algorithm name that a user's name matches: ``fedreg`` for ``FedReG``."""
    if is_own_code(name):
        return name
    if hint := suggest_module_and_class(name, "Class"):
        raise ConfigError(f"algorithm.name: unknown name '{name}'; {hint}")
    return find_name(ALGORITHM_CLASSES, name, "algorithm.name")


def get_algorithm_name(algorithm: Algorithm) -> str:
    """Return the registered name of an algorithm, or the name of its class in lower case."""
    return get_class_name(type(algorithm))


def get_class_name(cls: type[Algorithm]) -> str:
    """Return the registered name of an algorithm's class, or the class name in lower case."""
    for name, class_name in ALGORITHM_CLASSES.items():
        if (cls.__module__, cls.__name__) == (f"{__name__}.{name}", class_name):
            return name
    return cls.__name__.lower()


def shorten_name(name: str) -> str:
    """Shorten an algorithm's name for folders and labels: ``my_fedavg`` for ``lab.ideas:My_FedAvg``."""
    return name.rpartition(":")[2].lower() if ":" in name else name


def get_display_name(name: str) -> str:
    """Return the name of an algorithm for display: ``FedAvg`` for ``fedavg``.

    For ``package.module:Class`` this is the class; an unregistered name is returned unchanged.
    """
    return DISPLAY_NAMES.get(name) or ALGORITHM_CLASSES.get(name) or name.rpartition(":")[2]


def label_algorithm(algorithm: Algorithm, name: str) -> str:
    """Return the display name of the algorithm ``name``; for a user's class, the class name."""
    own = type(algorithm).__name__
    return own if name == own.lower() and name not in ALGORITHM_CLASSES else get_display_name(name)


# Importing a class: every mistake in it is a one-line error --------------------------------------


def import_algorithm_class(name: str, trust: bool) -> type[Algorithm]:
    """Import an algorithm ``package.module:Class``, which may be outside this package."""
    return import_class(*locate_code(name, KEY, "Class", trust))


def import_class(module_name: str, class_name: str) -> type[Algorithm]:
    """Import an algorithm's class from a module, and check it; every mistake becomes a ConfigError."""
    name, module = f"{module_name}:{class_name}", import_named_module(module_name, KEY)
    cls = vars(module).get(class_name)
    if cls is None:
        known = [k for k, v in vars(module).items() if is_algorithm_class(v) and k != "Algorithm"]
        raise ConfigError(
            f"algorithm.name: {module_name} has no class '{class_name}'"
            f"{suggest_or_list(class_name, known)}"
        )
    if not is_algorithm_class(cls):
        raise ConfigError(f"algorithm.name: {name} is not a subclass of heterophony.Algorithm")
    check_complete(cls, name)
    checked: type[Algorithm] = cls
    return checked


def load_algorithm_file(name: str, path: Path) -> None:
    """Load a user's algorithm file as the module of this name; raise ConfigError if its code fails."""
    try:
        load_module_file(name, path)
    except HeterophonyError:
        raise
    except Exception as error:  # the file may raise anything
        forget_module(name)
        raise make_import_error(name, KEY, error) from None


def is_algorithm_class(value: object) -> bool:
    """Return True if a value is a subclass of Algorithm."""
    from ..core.algorithm import Algorithm

    return isinstance(value, type) and issubclass(value, Algorithm)


def check_complete(cls: type[Algorithm], name: str) -> None:
    """Raise ConfigError if an algorithm's class is abstract, or its settings would be ignored."""
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ConfigError(f"algorithm.name: {name} is abstract; it does not define {missing}")
    # @dataclass replaces fields by their defaults: a field that is left never became a setting
    attributes = [item for c in cls.__mro__ for item in vars(c).items()]
    ignored = [k for k, v in attributes if isinstance(v, dataclasses.Field)]
    if ignored:
        raise ConfigError(
            f"algorithm.name: {name} has a setting '{ignored[0]}' but is not a dataclass;"
            " write @dataclass(frozen=True) above it"
        )


def construct_algorithm(cls: type[Algorithm], settings: Mapping[str, Any]) -> Algorithm:
    """Build an algorithm from settings; the error about a missing default names class and module."""
    required = [f.name for f in list_settings(cls) if is_required(f)]
    for name in [n for n in required if n not in settings]:
        raise ConfigError(
            f"algorithm.{name}: {cls.__module__}:{cls.__name__} gives this setting no default; write"
            f" {name}: … = setting(1.0, 'what it is') in the class, or set algorithm.{name}"
        )
    return construct(cls, settings, "algorithm")


def read_stored_rows() -> dict[str, dict[str, Any]]:
    """Read the stored algorithm table, without rows whose source file has changed since."""
    table = json.loads(TABLE_FILE.read_text()) if TABLE_FILE.exists() else {}
    return {
        name: entry["row"]
        for name, entry in table.items()
        if name in ALGORITHM_CLASSES and entry["source_sha256"] == digest_source(name)
    }


def digest_source(name: str) -> str:
    """Return the SHA-256 digest of an algorithm's source file."""
    return hashlib.sha256(Path(__file__).with_name(f"{name}.py").read_bytes()).hexdigest()
