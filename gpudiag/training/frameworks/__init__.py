"""What differs between frameworks, behind one interface with two sides; nothing here imports a framework by itself.

`framework.Framework` is what programs ask that start training processes; `session.runtime.Runtime` is what runs in one.
"""
