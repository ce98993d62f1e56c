"""Random jobs whose causes are known by taking them out: what the diagnosis says of them is judged by that.

`recipe` draws a job, `truth` plays it again without each of its causes, `analysed` takes its traces through the real
stages, `judge` compares, `law` holds that a verdict agrees with its table, `score` counts.
"""
