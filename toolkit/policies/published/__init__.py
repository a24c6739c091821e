"""Rules as others published them, and nothing else; what we changed is in the files above.

Where a source is silent (who is first of equals, who has no reading) the entry says what is done.
"""

RULES = ("paper", "artifact")
"""What a name says after its `@` for one of them, as in `eldr@paper`."""
