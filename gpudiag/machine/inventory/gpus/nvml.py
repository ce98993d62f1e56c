"""Call NVML. A query that fails returns None, and records its reason in words.

The available answers depend on GPU, driver and permissions: a consumer card has no ECC, an old driver lacks newer
functions, and a container may not see processes. NVML is called without this module in two places: training processes
read the driver's version (`training.session.position`), and a probe waits for clocks (`probes/_clocks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

# Return codes of NVML (nvml.h, nvmlReturn_t). These numbers are part of NVML's ABI and never change.
NOT_SUPPORTED = 3
NO_PERMISSION = 4
INVALID_ARGUMENT = 2
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIBRARY_MISMATCH = 18
UNKNOWN = 999

#: Reasons in words, by return code of a query.
_WORDS = {
    INVALID_ARGUMENT: "the driver does not know this counter for this GPU",
    NOT_SUPPORTED: "not supported by this GPU or in this mode",
    NO_PERMISSION: "no permission: the driver shows this to root only",
    NOT_FOUND: "the driver has no such entry",
    FUNCTION_NOT_FOUND: "the driver is older than this counter",
    GPU_IS_LOST: "the GPU has fallen off the bus; see dmesg for Xid 79, then power-cycle the machine",
    RESET_REQUIRED: "the GPU must be reset before it can be used",
    UNKNOWN: "the driver reports an unknown error",
}

#: Reasons in words why NVML cannot be opened, by return code.
_UNAVAILABLE = {
    LIBRARY_NOT_FOUND: (
        "the NVIDIA driver library (libnvidia-ml.so.1) is not here: no driver is installed, or the container was "
        "started without its GPUs (docker run --gpus all)"
    ),
    DRIVER_NOT_LOADED: (
        "the NVIDIA driver library is here, but its kernel module is not loaded or not reachable: "
        "try `modprobe nvidia` and see dmesg"
    ),
    LIBRARY_MISMATCH: (
        "the NVIDIA driver library and the loaded kernel module are of different versions, as after an update: reboot, "
        "or reload the module"
    ),
    NO_PERMISSION: "no permission to open the NVIDIA device files (/dev/nvidiactl): see their group and mode",
    GPU_IS_LOST: _WORDS[GPU_IS_LOST],
}


def _code(error: Exception) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


class NvmlSession:
    """An open NVML library, or the reason why it is unavailable.

    Args:
        module: `pynvml`, or an object with its functions, constants and error classes; None if NVML did not open.
        unavailable: reason why NVML is unavailable; None if it is open.

    Attributes:
        last_code: return code of the last query if it failed with a code; else None.
    """

    def __init__(self, module: Any, unavailable: str | None = None) -> None:
        self.module: Any = module
        self.unavailable = unavailable
        self.last_code: int | None = None

    def ask(self, reasons: dict[str, str], field: str, function: str | tuple[str, ...], *arguments: Any) -> Any | None:
        """Call an NVML function; return None and set `reasons[field]` if it fails.

        Args:
            reasons: reasons of failed queries by field, to which this function adds.
            field: name of the queried value.
            function: name of the function, or several names, newest first. An older function is called only if the
                driver or the Python binding lacks the newer one.
            arguments: arguments of the function.
        """
        names = (function,) if isinstance(function, str) else function
        self.last_code = None
        reason = self.unavailable or "NVML is not available"
        module = self.module
        for name in names if module is not None else ():
            call = getattr(module, name, None)
            if call is None:
                reason, self.last_code = f"the installed nvidia-ml-py has no {name}", FUNCTION_NOT_FOUND
                continue
            try:
                return call(*arguments)
            except module.NVMLError as error:
                self.last_code = _code(error)
                reason = _WORDS.get(self.last_code or 0, str(error))
            except (ValueError, TypeError, OSError) as error:  # the binding could not decode the answer
                reason = f"the driver's answer could not be read: {error}"
            if self.last_code != FUNCTION_NOT_FOUND:
                break
        reasons[field] = reason
        return None


@contextmanager
def open_nvml(replacement: Any | None = None) -> Iterator[NvmlSession]:
    """Initialise NVML for the `with` block. Without a driver, the yielded session is unavailable.

    Args:
        replacement: object with the functions of `pynvml` to use instead, for tests and recordings.
    """
    module: Any = replacement
    if module is None:
        try:
            module = import_module("pynvml")
        except ImportError:
            yield NvmlSession(None, "the Python package nvidia-ml-py is not installed")
            return
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        code = _code(error)
        yield NvmlSession(None, _UNAVAILABLE.get(code or 0, f"NVML could not start: {error}"))
        return
    try:
        yield NvmlSession(module)
    finally:
        # The driver may have been unloaded meanwhile.
        with suppress(module.NVMLError):
            module.nvmlShutdown()
