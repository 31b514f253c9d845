"""A watch that keeps the sentences it hears, for tests of what is said."""

from kmifqe.report.watch import Watch


class Heard(Watch):
    """Keeps what it hears, in `sentences`."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    warn = note = say
