"""Pin memory that was not allocated by CUDA, so that GPUs copy to and from it at full speed and can wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpudiag.errors import HardwareMissingError

if TYPE_CHECKING:
    import torch

_HINT = "Raise the limit on locked memory (ulimit -l, docker --ulimit memlock=-1), or use another strategy."


class Pinned:
    """Memory registered with the driver until it is closed; on a CPU nothing needs to be done.

    Args:
        address: where it begins in this process.
        size: bytes.
        device: the device that is to use it; all GPUs of the process may.

    Raises:
        HardwareMissingError: the driver refuses.
    """

    def __init__(self, address: int, size: int, device: torch.device) -> None:
        self._device = device
        self._address: int | None = None
        #: The same memory as the device sees it.
        self.on_device = address
        if device.type != "cuda":
            return
        import torch
        from cuda.bindings import driver

        self._driver = driver
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes the driver's context, if need be
            flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
            what = f"pin {size / 1e6:.0f} MB of shared memory"
            checked(driver, driver.cuMemHostRegister(address, size, flags), what, device, _HINT)
            self._address = address
            (pointer,) = checked(driver, driver.cuMemHostGetDevicePointer(address, 0), f"map {what[4:]}", device, _HINT)
            self.on_device = int(pointer)

    def close(self) -> None:
        """Unpin. Nothing may be under way to or from it. May be called again."""
        if self._address is not None:
            import torch

            with torch.cuda.device(self._device):
                self._driver.cuMemHostUnregister(self._address)
            self._address = None


def checked(
    driver: Any, answer: tuple[Any, ...], what: str, device: torch.device, hint: str | None = None
) -> tuple[Any, ...]:
    """What a function of the driver returned beside its error code. Raises HardwareMissingError if that is one."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(answer[0])
        told = name.decode() if isinstance(name, bytes) else str(answer[0])
        raise HardwareMissingError(f"{device} cannot {what} ({told})", hint)
    return answer[1:]
