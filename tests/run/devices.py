"""A stand-in for a device that says how much of its memory is used."""


class Device:
    """Has 100 bytes; with `used=None` it says nothing, as CPUs do."""

    def __init__(self, used: int | None):
        self.used = used

    def memory_stats(self):
        if self.used is None:
            return None
        return {"bytes_limit": 100, "bytes_in_use": self.used}
