"""`python -m gpudiag` and the `gpudiag` program."""

from gpudiag.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
