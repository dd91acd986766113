"""``federate``: build clients with data from a name, a path, arrays, or each client's own arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ..config.sections import DataSection, fill_data_defaults, list_rule_settings
from ..core.errors import ConfigError, DataError, choose
from ..core.scores import TaskName
from ..core.settings import construct
from ..core.status_line import show_slow_work
from ..data.columns import is_frame
from ..data.federation import Federation
from ..data.packing import find_packing_form, pack_examples
from ..data.partitioning import partition_source, resolve_skew, split_into_clients
from ..data.partitions import PARTITIONS, Dirichlet, Natural, Partition, Terms
from ..data.partitions.base import SplitMode
from ..data.source import Source, decide_classes, name_own_clients, name_users
from ..data.sources import find_named_clients, huggingface, read_source, wrap_arrays
from ..data.sources.arrays import NamedClients, Request, to_array, unpack_datasets
from ..data.sources.tables import JoinedFrame, join_labels, read_frame, read_frames
from ..data.transforms import Skew, describe_skew


def federate(
    data: str | Path | Sequence[Any] | Mapping[str, Any] | Dataset[Any],
    *,
    clients: int | None = None,
    client: Iterable[object] | None = None,
    users: str | None = None,
    partition: Partition | str | None = None,
    seed: int = 0,
    train_fraction: float = 0.75,
    path: str | None = None,
    transform: str = "half",
    frozen_augment: bool = False,
    split: SplitMode | None = None,
    feature_skew: Skew | None = None,
    new_clients: float = 0.0,
    validation_fraction: float = 0.0,
    classes: int | Sequence[str] | None = None,
    task: TaskName = "classification",
    tokenizer: str | None = None,
) -> Federation:
    """Build a federation: clients, and the data that each one holds.

    Args:
        data: A name (``"fmnist"``); a path to a file or folder in one of the formats of
            docs/reference/data.md; arrays ``(x, y)`` to be partitioned; or each client's own
            ``(x, y)`` or ``(x_train, y_train, x_test, y_test)``, in a list, or by name in a dict. x may
            be a dict or a tuple of arrays, for a net with several inputs, or a list of sequences of
            different lengths. A torch ``Dataset`` or ``DataLoader`` can replace ``(x, y)``, and a pair of
            them the four arrays; so can ``{"train": …, "test": …}``. A ``Dataset`` or ``DatasetDict`` of Hugging Face, a partitioner or
            ``FederatedDataset`` of flwr-datasets, and a frame of pandas, with a column ``label`` or as
            ``(frame, labels)``, are accepted, too.
        clients: The number of clients; default: 20, or all clients named in the data.
        partition: How examples are divided, as in ``hp.Dirichlet(0.1)`` (the default) or ``"iid"``.
        train_fraction: The share of a client's examples that it trains on.
        seed: The seed of the partition, and of the choice of clients that join later.
        split: ``"official"``, the default if each client has its own test examples, keeps the
            data's own split; ``"merged"`` splits each client's examples anew.
        client: The name of each example's client, training before test. Each name is then a client,
            in natural order, unless ``partition`` is given.
        users: The column or array that names clients; default: ``client``, if there is one.
        path: The folder or archive with the files of a named data set.
        transform: How stored images become input: ``"half"`` scales them to [-1, 1]; ``"fedavg2rep"``
            and ``"feddecomp"`` also transform training images at random.
        frozen_augment: Transform each training image in the same way for the whole run.
        feature_skew: A change of each client's images, as in ``hp.Rotation()``.
        new_clients: The share of clients, drawn by the seed, that join only after training.
        validation_fraction: The share of each client's training examples that is held out, to
            choose the best round.
        classes: The number or the names of the classes; needed if the labels in arrays are not
            0, 1, … without gaps.
        task: What is learned from arrays: ``"classification"`` (one label per example),
            ``"regression"`` (numbers), ``"multilabel"`` (rows of 0 and 1) or ``"sequence"`` (a token for
            each token of x). Partitions by label then use groups of examples: see docs/how-to/tasks.md.
        tokenizer: For texts, the name or folder of a transformers tokenizer. Default: each byte is a token.
    """
    shares = {"new_clients": new_clients, "validation_fraction": validation_fraction, "task": task}
    terms = Terms(20 if clients is None else clients, train_fraction, split or "merged", seed)
    construct(DataSection, {**shares, "split": terms.split}, "data")
    if not isinstance(terms.clients, Integral):
        raise ConfigError(f"clients: must be a whole number, not {clients!r}")
    if path is not None and not isinstance(data, str | Path):
        raise ConfigError("path: is only for data sets that are given by name; leave it out")
    data, request = join_labels(join_split(data)), Request(classes, task, users, tokenizer)
    if is_data_by_client(data):
        check_not_divided(request, client, partition)
        federation = federate_own_data(data, request, terms, validation_fraction, split)
        if clients not in (None, len(federation.train)):
            raise ConfigError(
                f"clients: is {clients}, but the data have {len(federation.train)} clients; leave it out"
            )
        federation = replace(federation, skew=resolve_skew(feature_skew, federation.x, seed))
    else:
        with show_slow_work(f"reading {data}" if isinstance(data, str | Path) else "partitioning"):
            source, named = read_source_and_clients(data, path, request, client)
            if partition is None and named.names:
                partition, count = Natural(), len(named.names) if clients is None else clients
                official = named.has_split and split is None
                terms = replace(terms, clients=count, split="official" if official else terms.split)
            rule = resolve_partition(partition)
            federation = partition_source(source, rule, terms, feature_skew, validation_fraction)
    if federation.remark:
        warnings.warn(federation.remark, stacklevel=2)
    federation = federation.with_transform(transform, frozen_augment).set_aside_new_clients(
        new_clients, seed
    )
    federation = federation.encode_table()
    if client is not None or not isinstance(data, str | Path):
        return federation
    settings = {**shares, **asdict(terms), **vars(request), "name": str(data), "path": path}
    settings |= {"transform": transform, "frozen_augment": frozen_augment}
    settings["clients"] = len(federation.train)
    return federation.with_recipe(complete_recipe(settings, rule, feature_skew))


def is_data_by_client(data: Any) -> bool:
    """Return True if data are a list or dict with the arrays of each client."""
    return isinstance(data, list | dict) and not (
        huggingface.is_datasets_object(data) or has_tables(data)
    )


def check_not_divided(request: Request, client: object, partition: Partition | str | None) -> None:
    """Raise ConfigError for an argument that cannot apply to arrays of each client."""
    belong = "data in a list or dict already belong to clients"
    if client is not None or request.users is not None:
        raise ConfigError(f"client: {belong}; remove client and users")
    if request.tokenizer is not None:
        raise ConfigError("tokenizer: is only for texts, not for arrays; leave it out")
    if partition is not None:
        raise ConfigError(f"partition: {belong}; leave it out")


def read_source_and_clients(
    data: Any, path: str | None, request: Request, client: Iterable[object] | None
) -> tuple[Source, NamedClients]:
    """Read a data set, and find the clients that it or ``client`` names."""
    source = resolve_source(data, path, request)
    if client is None:
        return source, find_own_clients(data, request.users, source)
    source = name_users(source, client, "client")
    named = find_own_clients(data, request.users, source)
    return source, replace(named, names=named.names or source.user_names)


def complete_recipe(
    settings: Mapping[str, Any], rule: Partition, skew: Skew | None
) -> Mapping[str, Any] | None:
    """Return the section [data] that recreates a federation; None if settings cannot describe it."""
    kinds = [kind for kind, cls in PARTITIONS.items() if type(rule) is cls]
    if not kinds:  # the partition is the user's own
        return None
    partition = {"kind": kinds[0], **list_rule_settings(rule)}
    described = None if skew is None else describe_skew(skew)
    classes = settings["classes"]
    classes = classes if isinstance(classes, int | None) else list(classes)
    rest = {"classes": classes, "partition": partition, "feature_skew": described}
    try:
        section = DataSection(**{**settings, **rest})
        return asdict(fill_data_defaults(section))
    except ConfigError:  # allowed here, but not in a configuration
        return None


def resolve_partition(partition: Any) -> Partition:
    """Return the partition that an object or a name such as ``"iid"`` stands for; default: Dirichlet(0.1)."""
    if partition is None:
        return Dirichlet()
    if isinstance(partition, str):
        cls: type[Partition] = choose(PARTITIONS, partition.lower(), "partition")
        return construct(cls, {}, "partition")
    is_class = isinstance(partition, type)
    if is_class or not (hasattr(partition, "deal") or hasattr(partition, "allot")):
        what = partition.__name__ if is_class else repr(partition)
        raise ConfigError(
            f"partition: must be an object such as hp.IID() or hp.Dirichlet(0.1), or a name such as"
            f" 'iid', not {what}"
        )
    rule: Partition = partition
    return rule


def join_split(data: Any) -> Any:
    """Convert ``{"train": …, "test": …}`` to one data set with this split; return other data unchanged."""
    if type(data) is not dict or huggingface.is_datasets_object(data):
        return data
    if data.keys() == {"train", "validation", "test"}:
        raise ConfigError(
            "data: must have the keys train and test only; add the validation examples to train, and set"
            " validation_fraction"
        )
    if data.keys() != {"train", "test"}:
        return data
    parts = [data["train"], data["test"]]
    if all(map(is_frame, parts)):
        return JoinedFrame(*((frame, None) for frame in parts))
    if all(isinstance(part, Dataset | DataLoader) for part in parts):
        return tuple(parts)
    pairs = [
        (p["x"], p["y"]) if isinstance(p, dict) and p.keys() == {"x", "y"} else p for p in parts
    ]
    if all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        values = (*pairs[0], *pairs[1])
        return data if isinstance(values[0], Dataset | DataLoader) else values
    return data


def find_own_clients(data: Any, users: str | None, source: Source) -> NamedClients:
    """Return the clients that the data name, and whether these have their own test examples."""
    if isinstance(data, str | Path):
        return find_named_clients(str(data), users)
    if isinstance(data, tuple) or source.users is None or not source.official:
        return NamedClients(source.user_names)
    train, test = np.split(source.users, [source.official])
    return NamedClients(source.user_names, has_split=set(train.tolist()) == set(test.tolist()))


def has_tables(data: Sequence[Any] | Mapping[Any, Any]) -> bool:
    """Return True if every client's data are a pandas frame or a data set of Hugging Face."""
    values = list(data.values() if isinstance(data, Mapping) else data)
    return bool(values) and all(is_frame(v) or huggingface.is_datasets_object(v) for v in values)


def resolve_source(data: Any, path: str | None, request: Request) -> Source:
    """Read the data set of a name or path, or convert arrays and objects of other packages to one."""
    if isinstance(data, type):
        raise DataError(f"data: is the class {data.__name__}; pass an instance")
    if isinstance(data, str | Path):
        return read_source(str(data), path, **vars(request))
    if huggingface.is_datasets_object(data):
        return huggingface.read_splits("datasets", huggingface.get_splits(data), request)
    if isinstance(data, list | dict):
        own = name_own_clients(data.items() if isinstance(data, dict) else enumerate(data))
        frames = all(map(is_frame, own.values()))
        return (read_frames if frames else huggingface.read_datasets_by_client)(own, request)
    if huggingface.is_flower_data(data):
        return huggingface.read_flower_data(data, request)
    if is_frame(data):
        return read_frame(data, request)
    if request.tokenizer is not None:
        raise ConfigError("tokenizer: is only for texts, not for arrays; leave it out")
    if request.users is not None:
        raise ConfigError("users: arrays have no columns; pass the names themselves as client")
    given = unpack_datasets(data, request.task)
    if not isinstance(given, tuple) or len(given) not in (2, 4):
        raise DataError(
            "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or DataLoader of torch, a"
            " frame, a Dataset of Hugging Face, a list or dict with these of each client, or the name"
            f" or path of a data set; not {describe_given(given)}"
        )
    official = len(given[1]) if len(given) == 4 else None
    return decide_classes(join_examples([given], request.task, official), request.classes)


def describe_given(given: Any) -> str:
    """Describe, for error messages, a value that was passed as data but cannot be data."""
    if isinstance(given, tuple | list):
        return f"{len(given)} values"
    return "None" if given is None else f"an object of type {type(given).__name__}"


def federate_own_data(
    data: Sequence[Any] | Mapping[str, Any],
    request: Request,
    terms: Terms,
    validation_fraction: float,
    split: SplitMode | None,
) -> Federation:
    """Build a federation of clients that have their own arrays; clients in a list are numbered.

    Clients with training and test arrays keep this split, unless ``split`` is ``"merged"``.
    """
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    own = name_own_clients((c, unpack_datasets(d, request.task)) for c, d in pairs)
    for name, given in own.items() if own else [("", None)]:
        if not isinstance(given, tuple | list) or len(given) not in (2, 4):
            found = f"; client {name} has {describe_given(given)}" if own else ""
            raise DataError(
                f"every client needs (x, y) or (x_train, y_train, x_test, y_test){found}"
            )
        if split == "official" and len(given) == 2:
            raise ConfigError(
                f"split: 'official', but client {name} has no test examples of its own; give"
                " (x_train, y_train, x_test, y_test), or leave split out"
            )
    parts = list(own.values())
    whole = decide_classes(join_examples(parts, request.task, names=list(own)), request.classes)
    trains = [len(p[1]) if len(p) == 4 and split != "merged" else None for p in parts]
    sizes = [sum(map(len, p[1::2])) for p in parts]
    how_much = (terms.train_fraction, terms.seed, validation_fraction)
    names = list(own) if isinstance(data, dict) else ()
    return split_into_clients(whole, sizes, trains, *how_much, names)


def join_examples(
    parts: Sequence[Sequence[Any]],
    task: TaskName,
    official: int | None = None,
    names: Sequence[str] = (),
) -> Source:
    """Join the arrays (x, y) or (x_train, y_train, x_test, y_test) of one or several clients to a source."""
    xs = [x for p in parts for x in p[::2]]
    ys = [to_array(y) for p in parts for y in p[1::2]]
    counts = [y.shape[0] if y.ndim else 0 for y in ys]
    if any(find_packing_form(x, n) for x, n in zip(xs, counts, strict=True)):
        if task == "sequence":
            raise ConfigError("task: 'sequence' needs one array of tokens as examples; pad them")
        x, record = pack_examples(xs, counts)
        return replace(
            wrap_arrays(x, np.concatenate(ys), task=task, official=official), x=x, record=record
        )
    both = [concatenate_train_and_test(p) for p in parts]
    check_same_examples(dict(zip(names, (x for x, _ in both), strict=False)))
    x, y = (np.concatenate([b[i] for b in both]) for i in (0, 1))
    return wrap_arrays(x, y, official=official, task=task)


def check_same_examples(xs: Mapping[str, Any]) -> None:
    """Raise DataError if clients have examples of different shapes or types."""
    shapes = {c: (x.shape[1:], x.dtype) for c, x in xs.items()}
    first, usual = next(iter(shapes.items()), ("", None))
    for name, (shape, dtype) in shapes.items():
        if usual is not None and (shape, dtype) != usual:
            raise DataError(
                f"client {name} has examples of shape {shape} and type {dtype},"
                f" client {first} of {usual[0]} and {usual[1]}"
            )


def unify_numbers(x: NDArray[Any]) -> NDArray[Any]:
    """Convert a client's numbers to float32 or int64, the types in which data sets store them; keep bytes."""
    if np.issubdtype(x.dtype, np.floating):
        return x.astype(np.float32, copy=False)
    whole = np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8
    return x.astype(np.int64, copy=False) if whole else x


def concatenate_train_and_test(data: Sequence[Any]) -> tuple[Any, Any]:
    """Join training and test arrays; return all examples and all labels, training before test."""
    plain = [to_array(a) for a in data]
    for x, y in zip(plain[::2], plain[1::2], strict=True):
        if x.shape[:1] != y.shape[:1]:
            raise DataError(f"examples {x.shape} and labels {y.shape} have different lengths")
    try:
        xs = [unify_numbers(x) for x in plain[::2]]
        return np.concatenate(xs), np.concatenate(plain[1::2])
    except ValueError:
        raise DataError(
            f"training examples {plain[0].shape} and test examples {plain[2].shape} must have the same shape"
        ) from None
