"""Check the interpreter of the training processes, and its framework."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check
from gpudiag.model.checkup.surroundings import PythonSeen


def check_interpreter(setting: JobSetting) -> Check:
    """Check that the interpreter runs and has what gpudiag needs in training processes."""
    python = setting.surroundings.python
    if python is None:
        reason = setting.surroundings.reasons.get("python", "it was not asked")
        return Check(
            code="interpreter",
            status="unknown",
            title="The interpreter did not answer.",
            fix=("Give the job's interpreter: gpudiag doctor --python PATH",),
            not_seen=reason,
        )
    # If the version is known, the interpreter runs, and `check_framework` reports the problem.
    if python.problem is not None and python.framework is None and python.version is None:
        fix = (python.hint,) if python.hint else ()
        return Check(code="interpreter", status="blocked", title=f"{python.problem}.", fix=fix)
    return Check(code="interpreter", status="ok", title=f"Python {python.version or '?'} at {python.path}.")


def check_framework(setting: JobSetting) -> Check:
    """Check that the framework is installed, and that its CUDA fits the driver."""
    code, python = "framework", setting.surroundings.python
    if python is None or (python.problem is not None and python.version is None):
        return Check(code=code, status="unknown", title="The framework is unknown.", not_seen="see interpreter")
    if python.framework is None:
        fix = (python.hint,) if python.hint else ()
        return Check(code=code, status="blocked", title=f"{python.problem or 'The framework is missing'}.", fix=fix)
    name = f"{python.framework_title} {python.framework}"
    if not setting.gpus:
        built = f" for CUDA {python.cuda}" if python.cuda else ""
        return Check(code=code, status="ok", title=f"{name}{built}; without a GPU it trains on CPU processes.")
    return _on_gpus(setting, python, name)


def _on_gpus(setting: JobSetting, python: PythonSeen, name: str) -> Check:
    """Compare the versions of CUDA of framework and driver; `name` is the framework's title with its version."""
    code, driver_cuda = "framework", setting.host.cuda_driver
    if python.cuda is None:
        if python.framework_title == "PyTorch":
            return Check(
                code=code,
                status="blocked",
                title=f"{name} is built without CUDA, so that it sees none of the {len(setting.gpus)} GPUs.",
                fix=(_install(python, driver_cuda),),
            )
        return Check(code=code, status="ok", title=f"{name}.", not_seen="the version of CUDA it was built for")
    if driver_cuda is None:
        return Check(
            code=code, status="ok", title=f"{name} for CUDA {python.cuda}.", not_seen="the driver's version of CUDA"
        )
    if _major(python.cuda) > _major(driver_cuda):
        return Check(
            code=code,
            status="blocked",
            title=f"{name} is built for CUDA {python.cuda}, but driver {setting.host.driver} has CUDA {driver_cuda}.",
            fix=(_install(python, driver_cuda), "Or ask the administrator for a newer driver."),
        )
    return Check(code=code, status="ok", title=f"{name} for CUDA {python.cuda}, driver with CUDA {driver_cuda}.")


def _install(python: PythonSeen, driver_cuda: str | None) -> str:
    """Return the command that installs the framework for the driver's CUDA."""
    if python.framework_title != "PyTorch":
        return f"{python.path} -m pip install 'tensorflow[and-cuda]'"
    return f"{python.path} -m pip install --force-reinstall torch{_index(driver_cuda)}"


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() and len(first) < 4 else 0


def _index(driver_cuda: str | None) -> str:
    """Return the option for the package index of PyTorch builds that run on every driver of this major CUDA version."""
    builds = {11: "cu118", 12: "cu126", 13: "cu130"}
    build = builds.get(_major(driver_cuda or ""))
    return f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
