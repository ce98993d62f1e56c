"""Numbers in the kernel's list notation, such as `0-3,8`."""

from collections.abc import Iterable


def number_list(numbers: Iterable[int]) -> str:
    """The shortest notation of the numbers; "" for none.

    >>> number_list([8, 0, 1, 3, 2])
    '0-3,8'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
