"""Name the reasons why a GPU's clocks are reduced (NVML's clock event bits).

The bits are those of `nvmlDeviceGetCurrentClocksEventReasons`
(https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html).
"""

from __future__ import annotations

IDLE = "idle"
APPLICATION_CLOCKS = "application clocks setting"
SOFTWARE_POWER_CAP = "software power cap"
HARDWARE_SLOWDOWN = "hardware slowdown"
SYNC_BOOST = "sync boost"
SOFTWARE_THERMAL = "software thermal slowdown"
HARDWARE_THERMAL = "hardware thermal slowdown"
POWER_BRAKE = "hardware power brake"
DISPLAY_CLOCKS = "display clock setting"

REASONS_BY_BIT = {
    0x001: IDLE,
    0x002: APPLICATION_CLOCKS,
    0x004: SOFTWARE_POWER_CAP,
    0x008: HARDWARE_SLOWDOWN,
    0x010: SYNC_BOOST,
    0x020: SOFTWARE_THERMAL,
    0x040: HARDWARE_THERMAL,
    0x080: POWER_BRAKE,
    0x100: DISPLAY_CLOCKS,
}

#: Reasons that slow a job. The other reasons are an idle GPU, a chosen setting, or a GPU at its normal power limit.
HARMFUL = (HARDWARE_SLOWDOWN, HARDWARE_THERMAL, SOFTWARE_THERMAL, POWER_BRAKE)


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Return the reasons of the set bits in words, lowest bit first. All unknown bits together become one reason."""
    known = tuple(words for bit, words in REASONS_BY_BIT.items() if bits & bit)
    unknown = bits & ~sum(REASONS_BY_BIT)
    return (*known, f"unknown reason 0x{unknown:x}") if unknown else known
