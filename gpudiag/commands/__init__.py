"""Define the commands, one file each.

The file `commands/<command>.py` has one function with the command's name, annotated for typer. The first line of its
docstring is also in `SUMMARIES`. The file also has `EXAMPLES`: pairs of a command line and its purpose. The function
converts its options, calls its use case in `gpudiag/app/`, and draws the result. It imports the use case and the report
in its body, so that help is fast.
"""

#: Names and summaries of the commands. `gpudiag --help` shows them without importing the commands.
SUMMARIES = {
    "topology": "Show what this machine has: GPUs, links, host, and what is wrong with them.",
    "doctor": "Check what stands in the way of a job before it runs, and how to mend it.",
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
