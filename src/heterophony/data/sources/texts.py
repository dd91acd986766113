"""Convert texts to tokens: bytes, or the tokens of a transformers tokenizer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError
from ...core.records import Record
from ..packing import pack_examples

TEXT_LENGTH = 256  # tokens per example, at most
TOKENS = "input_ids"  # the name of the token input in transformers models


def encode_texts(
    texts: list[str], tokenizer: str | None = None
) -> tuple[NDArray[Any], Record | None]:
    """Convert texts to rows of tokens; with a tokenizer, rows are sequences of different lengths.

    Without a tokenizer, a token is a byte plus one, and rows are padded with 0.
    """
    if tokenizer is not None:
        return apply_tokenizer(texts, tokenizer)
    x = np.zeros((len(texts), TEXT_LENGTH), np.int16)
    for row, text in zip(x, texts, strict=True):
        known = np.frombuffer(text.encode()[:TEXT_LENGTH], np.uint8)
        row[: len(known)] = known.astype(np.int16) + 1
    return x, None


def apply_tokenizer(texts: list[str], name: str) -> tuple[NDArray[Any], Record]:
    """Tokenise texts once; the net receives the tokens as ``input_ids``, the mask as ``attention_mask``."""
    tokenizer = load_tokenizer(name)
    found = tokenizer(texts, truncation=True, max_length=TEXT_LENGTH)[TOKENS]
    unknown = tokenizer.pad_token_id or 0  # for an empty text, which has no tokens
    tokens = np.empty(len(texts), object)
    tokens[:] = [np.array(ids or [unknown], np.int64) for ids in found]
    return pack_examples([{TOKENS: list(tokens)}], [len(texts)])


def load_tokenizer(name: str) -> Any:
    """Load a transformers tokenizer from a folder or from the Hugging Face cache, without a download."""
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise ConfigError(
            "data.tokenizer: needs transformers; install it with pip install"
            " 'heterophony[transformers]'"
        ) from None
    folder = Path(name).expanduser()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else name,
            local_files_only=True,
            trust_remote_code=False,
        )
    except Exception as error:  # its loaders can raise any error
        if folder.is_dir():
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"data.tokenizer: {name} holds no readable tokenizer: {reason}"
            ) from None
        raise ConfigError(
            f"data.tokenizer: {name} is not in the cache of Hugging Face on this machine; a run"
            f" downloads nothing: get it with 'hf download {name}', or give a folder that contains it"
        ) from None
