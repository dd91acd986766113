"""Settings as users of other platforms write them: as options or bare words, with other names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ..core.errors import OptionError, simplify_name

BARE_SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.S)
NUMBER = re.compile(r"-[0-9.]+(e-?[0-9]+)?")
# other platforms' names for settings: our short keys
OTHER_NAMES = {
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "lr_decay": "decay_factor",
    "wd": "weight_decay",
    "batch_size": "batch",
    "lbs": "batch",
    "local_epochs": "epochs",
    "ls": "epochs",
    "num_rounds": "rounds",
    "num_server_rounds": "rounds",
    "global_rounds": "rounds",
    "gr": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "nc": "clients",
    "join_ratio": "participation.rate",
    "jr": "participation.rate",
    "fraction_fit": "participation.rate",
    "dataset": "data.name",
    "device": "accelerator",
}
REPETITIONS = "times"  # other platforms' option for the number of seeds


def translate_habits(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Rewrite settings given as options (``--lr 0.1``) or bare words (``lr=0.1``) with ``-c``.

    ``takes_value`` maps each option of the command to whether it takes a value.
    """
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, sign, value = word.partition("=")
        if word == "--":
            return [*out, word, *rest]
        if name in takes_value:
            out.append(word)
            if takes_value[name] and not sign and rest:
                out.append(rest.pop(0))
        elif word.startswith("--") or is_short_name(name, takes_value):
            out += translate_option(name, value if sign else None, rest, takes_value)
        elif BARE_SETTING.fullmatch(word):
            out += ["-c", f"{translate_setting_name(name)}={value}"]
        else:
            out.append(word)
    return out


def is_short_name(option: str, takes_value: Mapping[str, bool]) -> bool:
    """Return True if an option is another platform's setting after one hyphen, as in ``-gr``."""
    known = option[:1] == "-" and option[1:] in {*OTHER_NAMES, *OTHER_NAMES.values()}
    return known and option[:2] not in takes_value  # otherwise the rest is the value of that option


def translate_option(
    option: str, value: str | None, rest: list[str], takes_value: Mapping[str, bool]
) -> list[str]:
    """Rewrite an unknown option as a setting with ``-c``; its value may be the first word of ``rest``."""
    key = translate_setting_name(option.lstrip("-"))
    if key == REPETITIONS and "--seeds" not in takes_value:
        raise OptionError(
            f"{option}: no such option; heterophony compare … --seeds 0-2 runs several seeds"
        )
    if key != REPETITIONS and not is_setting_name(key):
        known = [*list_short_keys(), *OTHER_NAMES, *(o.lstrip("-") for o in takes_value)]
        if near := get_close_matches(key, known, n=1, cutoff=0.75):
            hint = translate_setting_name(near[0]).replace("_", "-")
            raise OptionError(f"{option}: no such option; did you mean --{hint}?")
        return [option if value is None else f"{option}={value}"]  # the parser refuses it
    if value is None and rest and (not rest[0].startswith("-") or NUMBER.fullmatch(rest[0])):
        value = rest.pop(0)
    if value is None:
        raise OptionError(f"{option}: a value is missing, as in {option} 1")
    if key == REPETITIONS:
        return ["--seeds", format_seed_range(option, value)]
    takes_seeds = key == "seed" and "--seeds" in takes_value
    return ["--seeds", value] if takes_seeds else ["-c", f"{key}={value}"]


def format_seed_range(option: str, value: str) -> str:
    """Format a number of seeds as a range for ``--seeds``: ``0-2`` for ``3``."""
    if not value.isdecimal() or not int(value):
        raise OptionError(f"{option} {value}: must be a number of seeds, as in {option} 3")
    return f"0-{int(value) - 1}"


def translate_setting_name(key: str) -> str:
    """Translate another platform's name of a setting to our short key; other names are unchanged."""
    key = key.replace("-", "_")
    return OTHER_NAMES.get(key, key)


def is_setting_name(key: str) -> bool:
    """Return True if a full or short key exists in the configuration of any algorithm."""
    from ..config.keys import NAMED_SECTIONS

    if key in (*NAMED_SECTIONS, "partition"):  # their name or kind
        return True
    wanted = [simplify_name(part) for part in key.split(".")]
    known = ([simplify_name(part) for part in k.split(".")] for k in list_all_keys())
    return any(parts[-len(wanted) :] == wanted for parts in known)


def list_short_keys() -> list[str]:
    """List the last parts of a configuration's keys."""
    return list(dict.fromkeys(k.rpartition(".")[2] for k in list_all_keys()))


def list_all_keys() -> Iterable[str]:
    """List the keys of a configuration with every algorithm and partition."""
    from ..algorithms import ALGORITHM_CLASSES
    from ..config.keys import list_keys
    from ..data.partitions import PARTITIONS

    keys = (list_keys(ALGORITHM_CLASSES, kind) for kind in PARTITIONS)
    return dict.fromkeys(k for listed in keys for k in [*listed, "data.name", "model.name"])
