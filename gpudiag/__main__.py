"""`python -m gpudiag` and the `gpudiag` program."""

import contextlib
import gc
import os
import sys

#: Verbs that only read files and print: nothing of theirs is left to close when they have returned.
_READERS = frozenset({"analyze", "report", "diff"})

#: Of `malloc.h`: from what size on memory is fetched from the system by itself, and how much free memory is kept.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
#: The most that glibc allows for the first.
_KEEP_UP_TO = 32 << 20


def main() -> int:
    """Run the command line as a whole process; does not return from a verb that only reads.

    Taking the interpreter apart, array by array and module by module, takes a tenth of what an analysis takes.
    """
    reads = len(sys.argv) > 1 and sys.argv[1] in _READERS
    if reads:
        _prepare_to_read()
    from gpudiag.cli import main as run

    code = run()
    if reads:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return code  # whoever read the output has left: the ordinary way out deals with that
        os._exit(code)
    return code


def _prepare_to_read() -> None:
    """What must be done before anything large is imported, for a process that lives a second.

    NumPy's BLAS would start a thread for every processor, which then spin for tens of milliseconds on those that are to
    read traces; nothing here multiplies matrices. Python's cycle collector would walk through all modules several times
    while they are imported; what an analysis makes has no cycles worth collecting. And the C library would give every
    column's memory back to the system when it is dropped, and fetch it again, page by page, for the next.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    if sys.platform == "linux":
        import ctypes  # NumPy imports it anyway

        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            allocator = ctypes.CDLL(None)
            allocator.mallopt(_M_MMAP_THRESHOLD, _KEEP_UP_TO)
            allocator.mallopt(_M_TRIM_THRESHOLD, _KEEP_UP_TO)


if __name__ == "__main__":
    raise SystemExit(main())
