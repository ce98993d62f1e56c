"""The frameworks, behind one interface with two sides; none is imported when these modules are.

`framework.Framework` is for programs that start training processes, `session.runtime.Runtime` for those processes.
"""
