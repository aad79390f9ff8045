"""Why a site does not take part."""


class Refused(ValueError):
    """A site does not take part; the coordinator is told why.

    Whatever other error a site meets stays in its own log.
    """

    def __init__(self, reason: str, code: str = ""):
        """Takes the reason in one line, and a word for programs."""
        super().__init__(reason)
        self.code = code
