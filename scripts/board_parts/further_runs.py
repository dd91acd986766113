"""What single further runs showed of methods that are behind; each sentence names its run."""

FURTHER: dict[str, str] = {}
