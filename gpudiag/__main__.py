"""`python -m gpudiag` and the `gpudiag` program."""

import gc
import os
import sys

#: Verbs that only read files and print: nothing of theirs is left to close when they have returned.
_READERS = frozenset({"analyze", "report", "diff"})


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
    while they are imported; what an analysis makes has no cycles worth collecting.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()


if __name__ == "__main__":
    raise SystemExit(main())
