"""Nets of other packages, by name: ``timm:resnet18``, ``transformers:distilbert-base-uncased``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, get_first_line
from ..core.own_modules import LIBRARIES

Pretrained = bool | str | None


def check_library_name(name: str) -> None:
    """Raise ConfigError if a name such as ``timm:resnet18`` names no net, or if the package is missing."""
    library, _, net = name.partition(":")
    if not net:
        example = {"timm": "resnet18", "transformers": "distilbert-base-uncased"}[library]
        raise ConfigError(
            f"model.name: '{name}' lacks the name of a net; write {library}:{example}"
        )
    if find_spec(library) is None:
        raise ConfigError(
            f"model.name: {name} needs {library}; install it with pip install"
            f" 'heterophony[{library}]'"
        )


def build_library_net(
    name: str, shape: tuple[int, ...] | None, classes: int, pretrained: Pretrained
) -> nn.Module:
    """Build a net of timm or transformers; ``shape`` is None if examples have several inputs.

    ``pretrained`` is True, for the weights published under this name, or a file or folder of weights.
    """
    check_library_name(name)
    library, _, net = name.partition(":")
    module = import_module(library)
    make = {"timm": build_timm_net, "transformers": build_transformer}[library]
    try:
        with silence_library(library):
            return make(module, net, shape, classes, pretrained).float()
    except ConfigError:
        raise
    except Exception as error:  # another package may raise anything
        raise ConfigError(f"model.name: {name} cannot be built: {get_first_line(error)}") from None


assert set(LIBRARIES) == {"timm", "transformers"}


@contextmanager
def silence_library(library: str) -> Iterator[None]:
    """Silence the transformers library inside the ``with`` block: it would warn about the new head."""
    if library != "transformers":
        yield
        return
    logging = import_module("transformers.utils.logging")
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


# timm -------------------------------------------------------------------------------------------


def build_timm_net(
    timm: Any, name: str, shape: tuple[int, ...] | None, classes: int, pretrained: Pretrained
) -> nn.Module:
    """Build a net of timm; its input must be images."""
    if shape is None or len(shape) != 3:
        raise ConfigError(f"model.name: timm:{name} needs images, but the examples are not images")
    how: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
    if isinstance(pretrained, str):
        how["pretrained_cfg_overlay"] = {"file": str(find_file(pretrained))}
    net: nn.Module = timm.create_model(name, pretrained=bool(pretrained), **how)
    return net


def find_file(path: str) -> Path:
    """Return the path of the file that ``model.pretrained`` names; raise ConfigError if there is none."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"model.pretrained: there is no file {path}")
    return file


# transformers -----------------------------------------------------------------------------------


class TokenRows(nn.Module):
    """Calls a transformers model with rows of tokens and the mask of the tokens that are not padding (0)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        x = x.long()
        known = (x != 0) | (x == 0).all(1, keepdim=True)  # an empty text must have a token, too
        return self.model(input_ids=x, attention_mask=known)


def build_transformer(
    transformers: Any,
    name: str,
    shape: tuple[int, ...] | None,
    classes: int,
    pretrained: Pretrained,
) -> nn.Module:
    """Build a classifier of transformers from a folder or from its cache; nothing is downloaded."""
    place = find_place(name if not isinstance(pretrained, str) else pretrained)
    known: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **known)
    except (OSError, ValueError) as error:
        raise make_missing_error(name, place, error) from None
    config.num_labels = classes
    images = import_module("transformers.models.auto.modeling_auto")
    reads_images = type(config) in images.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    if reads_images and shape is not None and len(shape) == 3 and not pretrained:
        config.num_channels, config.image_size = shape[0], shape[1]
    kind = "ImageClassification" if reads_images else "SequenceClassification"
    auto = getattr(transformers, f"AutoModelFor{kind}")
    if pretrained:
        try:
            net: nn.Module = auto.from_pretrained(
                place,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # the head may have other classes
                use_safetensors=True,
                **known,
            )
        except OSError as error:
            raise make_missing_error(name, place, error) from None
    else:
        net = auto.from_config(config)
    return TokenRows(net) if shape is not None and len(shape) == 1 else net


def find_place(name: str) -> str:
    """Return the folder of a transformers model on this machine, or its repository's name unchanged."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"model.name: there is no folder {name}")
    return name


def make_missing_error(name: str, place: str, error: Exception) -> ConfigError:
    """Return the error for a transformers model that is missing or incomplete on this machine."""
    if Path(place).is_dir():
        return ConfigError(
            f"model.name: transformers:{name} cannot be read: {get_first_line(error)}"
        )
    return ConfigError(
        f"model.name: transformers:{name} is not in the cache of Hugging Face on this machine; a run"
        f" downloads nothing: get it with 'hf download {place}', or give a folder that contains it, as in"
        " transformers:path/to/folder"
    )
