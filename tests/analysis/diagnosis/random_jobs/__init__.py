"""Draw random jobs with causes of known cost, and judge their diagnosis by that cost.

`recipe` draws a job, `truth` simulates it without each of its causes, `analysed` analyses its traces, `judge` compares
the findings with the truth, `law` checks that findings explain all large parts of the step, and `score` counts right
diagnoses.
"""
