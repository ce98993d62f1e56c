"""Define the commands, one file each.

The file `<command>.py`, here or in the subfolder that `FOLDERS` names, has one function with the command's name,
annotated for typer. The first line of its docstring is also in `SUMMARIES`. The file also has `EXAMPLES`: pairs of a
command line and its purpose. The function converts its options, calls its use case in `gpudiag/app/`, and draws the
result. The function imports use case and report in its body, so that help is fast.
"""

#: Names and summaries of the commands, which `gpudiag --help` shows without importing the commands.
SUMMARIES = {
    "topology": "Show what this machine has: GPUs, links, host, and what is wrong with them.",
    "doctor": "Check what stands in the way of a job before it runs, and how to mend it.",
    "bandwidth": "Measure what this machine's links really carry.",
    "profile": "Train, record traces, and say where each step's time went.",
    "analyze": "Say where each step's time went, from existing traces.",
    "explain": "Say what a finding or a warning means, and what to do.",
    "digest": "Write what an analysis reads of each rank's trace into a small file, its digest.",
    "gather": "Bring the ranks of several nodes into one run directory.",
    "recommend": "Say which strategy suits this machine and model best.",
    "scale": "Measure how training scales over the GPUs of this machine.",
    "report": "Draw the report of a run again.",
    "view": "Show a run in TensorBoard: verdict, trace viewer, overview, curves.",
    "export": "Convert a run to another tool's format.",
    "log": "Log a run to W&B, MLflow or TensorBoard.",
    "mcp": "Answer the questions of an agent about recordings.",
    "diff": "Compare two runs.",
    "table": "Compare many runs in one table.",
    "selftest": "Check gpudiag itself on this machine.",
}
#: Subfolders with the files of commands, by command. The files of all other commands are in this folder.
FOLDERS = dict.fromkeys(("view", "export", "log", "mcp"), "connect")


def module_of(command: str) -> str:
    """Return the name of the module that defines a command."""
    return ".".join(filter(None, (__name__, FOLDERS.get(command), command)))
