"""Define the commands, one file each.

`commands/<verb>.py` has one function named like the command, annotated for typer, whose docstring begins with its line
in `SUMMARIES`. It also has `EXAMPLES`: pairs of a command line and its purpose. The function converts its options for
its use case in `gpudiag/app/`, calls it, and draws the result. It imports both in its body, so that help is fast.
"""

#: The list of `gpudiag --help`, which imports no command.
SUMMARIES = {
    "topology": "Show what this machine has: GPUs, links, host, and what is wrong with them.",
    "bandwidth": "Measure what this machine's links really carry.",
    "profile": "Train, record traces, and say where each step's time went.",
    "analyze": "Say where each step's time went, from existing traces.",
    "gather": "Bring the ranks of several nodes into one run directory.",
    "recommend": "Say which strategy suits this machine and model best.",
    "scale": "Measure how training scales over the GPUs of this machine.",
    "report": "Draw the report of a run again.",
    "view": "Show a run in TensorBoard: verdict, trace viewer, overview, curves.",
    "export": "Convert a run to another tool's format.",
    "diff": "Compare two runs.",
    "table": "Compare many runs in one table.",
    "selftest": "Check gpudiag itself on this machine.",
}
