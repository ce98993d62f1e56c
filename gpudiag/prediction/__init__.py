"""Model the cost of communication from the machine's facts and the gradient sizes, without any framework.

The strategies (`training/strategies`) predict their step times by means of these models.
"""
