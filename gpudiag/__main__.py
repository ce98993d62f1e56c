"""`python -m gpudiag` and the `gpudiag` program."""

import os
import sys

from gpudiag.cli import main as _main

#: Verbs that only read files and print: nothing of theirs is left to close when they have returned.
_READERS = frozenset({"analyze", "report", "diff"})


def main() -> int:
    """Run the command line as a whole process; does not return from a verb that only reads.

    Taking the interpreter apart, array by array and module by module, takes a tenth of what an analysis takes.
    """
    code = _main()
    if len(sys.argv) > 1 and sys.argv[1] in _READERS:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return code  # whoever read the output has left: the ordinary way out deals with that
        os._exit(code)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
