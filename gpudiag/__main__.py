"""Start gpudiag, as `python -m gpudiag` or as the program `gpudiag`."""

from gpudiag.commands.main import main

if __name__ == "__main__":
    raise SystemExit(main())
