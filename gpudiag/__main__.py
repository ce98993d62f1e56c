"""`python -m gpudiag` and the `gpudiag` program."""

from gpudiag.commands.main import main

if __name__ == "__main__":
    raise SystemExit(main())
