"""What runs inside a training process: ranges, steps, profilers. The public API comes from here.

Nothing here imports a framework when it is imported itself; a framework is imported when a session needs it.
"""
