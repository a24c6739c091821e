"""Keys of a role's `args`, which become flags of SGLang."""


def flag_of(key: str) -> str:
    """The name of the flag that a key of `args` makes, as argparse reads it."""
    return key.lstrip("-").partition("=")[0].replace("_", "-")
