"""Name a method together with the rule for its steps: "ssi-hg", or "ssi-hg@adaptive"."""


def split_label(label: str) -> tuple[str, str | None]:
    """Return the method and the rule of a label; None if it names no rule.

    >>> split_label("ssi-hg@adaptive"), split_label("eg+")
    (('ssi-hg', 'adaptive'), ('eg+', None))
    """
    method, at, rule = label.partition("@")
    return method, rule if at else None
