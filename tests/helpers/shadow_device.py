"""The shadow device: an accelerator made of the CPU, to test device placement where there is no GPU.

Its tensors live elsewhere as far as torch is concerned, and cannot be mixed with tensors of the CPU.
Underneath, the CPU computes, so that results must have its bits. This shows that every tensor is on
the right device. It says nothing about the kernels, the memory or the speed of a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from helpers.support import net_with_batch_norm
from heterophony.core import accelerator as devices

MAY_MIX = ("_to_copy", "copy_")  # operations that move values between devices
MATRIX_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
CPU = torch.device("cpu")
SHADOW_BYTES, SHADOW_PEAK_BYTES = 1300 << 20, 100 << 20


class Shadow(torch.Tensor):
    """A tensor on the shadow device; ``computed`` is the tensor of the CPU that computes."""

    computed: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Shadow:
        new = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("shadow:0"),
        )
        new.computed = inner
        return new

    def __repr__(self, **_: Any) -> str:
        return f"Shadow({self.computed})"

    def data_ptr(self) -> int:
        return self.computed.data_ptr()

    def tolist(self) -> Any:
        return self.computed.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Shadow:
        if id(self) not in memo:
            copy = Shadow(self.computed.clone()).requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copy._is_param = True
            memo[id(self)] = copy
        return memo[id(self)]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in MATRIX_PRODUCTS and args[0].dim() == 1 < args[1].dim():
            # as torch does it, but for squeeze_: a wrapper cannot change its shape in place
            return (args[0].unsqueeze(0) @ args[1]).squeeze(0)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})


def compute(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU; the result is on the shadow device, or where it is moved to."""
    name, given = op.overloadpacket.__name__, pytree.tree_leaves((args, kwargs))
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if name not in MAY_MIX and any(not isinstance(v, Shadow) and v.dim() for v in tensors):
        raise RuntimeError(f"{name}: a tensor of the CPU among tensors of the shadow device")
    target = kwargs.get("device")
    if target is not None:
        kwargs = {**kwargs, "device": CPU}
    out = op(*pytree.tree_map(unwrap, args), **pytree.tree_map(unwrap, kwargs))
    if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
        return args[0]
    if target is not None and torch.device(target).type == "cpu":
        return out
    # a view of an ordinary tensor is an ordinary tensor, in inference mode too
    inference = torch.is_inference_mode_enabled() and not (
        op.is_view and not args[0].is_inference()
    )
    with torch.inference_mode(inference):
        return pytree.tree_map(wrap, out)


def unwrap(value: Any) -> Any:
    return value.computed if isinstance(value, Shadow) else value


def wrap(value: Any) -> Any:
    plain = isinstance(value, torch.Tensor) and not isinstance(value, Shadow)
    return Shadow(value) if plain else value


# The backend ------------------------------------------------------------------------------------


class ShadowModule(_DummyBackendModule):
    """``torch.shadow``: one device, which draws from the CPU's generator and hence its numbers."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.default_generator.set_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Report enough memory for three workers whose jobs need ``SHADOW_PEAK_BYTES``."""
        return SHADOW_BYTES - SHADOW_PEAK_BYTES, SHADOW_BYTES

    def max_memory_reserved(self, device: object = None) -> int:
        return SHADOW_PEAK_BYTES

    def memory_reserved(self, device: object = None) -> int:
        return SHADOW_PEAK_BYTES

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def make_empty(size: Any, dtype: Any = None, memory_format: Any = None, **_: Any) -> Shadow:
    return Shadow(
        torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
    )


def make_empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Shadow:
    return Shadow(torch.empty_strided(size, stride, dtype=dtype))


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    unwrap(target).copy_(unwrap(source))
    return target


def register() -> torch.library.Library:
    """Make the device known to torch and to the product."""
    _setup_privateuseone_for_python_backend("shadow", backend_module=ShadowModule())
    torch.__future__.set_swap_module_params_on_conversion(True)  # as net.to(device) needs it here
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", make_empty, "PrivateUse1")
    library.impl("empty_strided", make_empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    devices.KINDS["shadow"] = "shadow"
    return library


LIBRARY = register()


def shadow_net() -> Any:
    """Build a net. Workers of a pool that import this function know the device, too."""
    return net_with_batch_norm()
